-- address: is a numeric internet address one of the public internet? A server that fetches URLs for
-- its clients must not reach its own network for them.
local address = {}

--- Blocks of IPv4 that are not public: first address and number of fixed bits (IANA's registry of
--- special purposes, and multicast).
local BLOCKS = {
  { "0.0.0.0", 8 }, { "10.0.0.0", 8 }, { "100.64.0.0", 10 }, { "127.0.0.0", 8 },
  { "169.254.0.0", 16 }, { "172.16.0.0", 12 }, { "192.0.0.0", 24 }, { "192.0.2.0", 24 },
  { "192.31.196.0", 24 }, { "192.52.193.0", 24 }, { "192.88.99.0", 24 }, { "192.168.0.0", 16 },
  { "192.175.48.0", 24 }, { "198.18.0.0", 15 }, { "198.51.100.0", 24 }, { "203.0.113.0", 24 },
  { "224.0.0.0", 3 },
}

local function number_of(text)
  local a, b, c, d = text:match "^(%d+)%.(%d+)%.(%d+)%.(%d+)$"
  if not a then return nil end
  local value = 0
  for _, part in ipairs { a, b, c, d } do
    local n = math.tointeger(tonumber(part))
    if not n or n > 255 then return nil end
    value = value << 8 | n
  end
  return value
end

--- True for an address of the public internet. Of IPv6 that is 2000::/3 without documentation and
--- without the blocks that carry an IPv4 address inside (Teredo, 6to4).
function address.is_public(text)
  local number = number_of(text)
  if number then
    for _, block in ipairs(BLOCKS) do
      local shift = 32 - block[2]
      if number >> shift == number_of(block[1]) >> shift then return false end
    end
    return true
  end
  local first, second = text:lower():match "^(%x+):(%x*):"
  first, second = tonumber(first or "0", 16), tonumber(second or "", 16) or 0
  if first < 0x2000 or first > 0x3fff or first == 0x2002 then return false end
  return not (first == 0x2001 and (second < 0x200 or second == 0xdb8))
end

return address
