-- peer: addresses of clients.
local text = require "lib.text"

local peer = {}

--- The eight groups of an IPv6 address, as text; nil if it is not one.
local function groups(address)
  local list = {}
  local head, tail = address:match "^(.-)::(.*)$"
  for group in (head or address):gmatch "[^:]+" do list[#list + 1] = group end
  if head then
    local rest = {}
    for group in tail:gmatch "[^:]+" do rest[#rest + 1] = group end
    for _ = 1, 8 - #list - #rest do list[#list + 1] = "0" end
    table.move(rest, 1, #rest, #list + 1, list)
  end
  return #list == 8 and list or nil
end

--- What counts as one client: an IPv4 address, or the /64 network of an IPv6 address.
function peer.network(address)
  if not address:find(":", 1, true) then return address end
  local mapped = address:match "^::[fF][fF][fF][fF]:(%d+%.%d+%.%d+%.%d+)$"
  if mapped then return mapped end
  local list = groups((address:gsub("%%.*$", "")))
  return list and table.concat(list, ":", 1, 4):lower() .. "::/64" or address
end

local function is_address(s)
  return s:find "^%d+%.%d+%.%d+%.%d+$" ~= nil
    or #s <= 45 and s:find "^[%x:.]+$" ~= nil and s:find(":", 1, true) ~= nil
end

--- The client behind proxies: the last address in X-Forwarded-For that trusts(address) does not
--- know. Everything before it was written by the client. `address`: the peer itself.
function peer.client(address, forwarded, trusts)
  if not (address and forwarded and trusts(address)) then return address end
  local list = {}
  for entry in forwarded:gmatch "[^,]+" do
    list[#list + 1] = text.trim(entry):gsub("^%[(.*)%]$", "%1")
  end
  for i = #list, 1, -1 do
    if not is_address(list[i]) then return address end
    address = list[i]
    if not trusts(address) then return address end
  end
  return address
end

return peer
