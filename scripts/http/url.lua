-- url: request targets and server addresses. Nothing is guessed: malformed input gives nil and a
-- message.
local url = {}

local find, sub, gsub = string.find, string.sub, string.gsub

local function decode_byte(hex) return string.char(tonumber(hex, 16)) end

--- Decodes %XX; nil for a broken escape.
function url.decode(text)
  if not find(text, "%", 1, true) then return text end
  local plain, n = gsub(text, "%%(%x%x)", decode_byte)
  if n ~= select(2, gsub(text, "%%", "")) then return nil end
  return plain
end

--- Encodes everything except unreserved characters as %XX.
function url.encode(text)
  return (gsub(text, "[^%w%-._~]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function decode_form(text)
  return url.decode((gsub(text, "+", " ")))
end

--- "a=1&b=x%20y" -> { a = "1", b = "x y" } (of equal names the last) and the list of { name, value
--- } pairs; nil for a broken escape.
function url.query(text)
  local query, list = {}, {}
  for item in text:gmatch "[^&]+" do
    local eq = find(item, "=", 1, true)
    local name = decode_form(eq and sub(item, 1, eq - 1) or item)
    local value = decode_form(eq and sub(item, eq + 1) or "")
    if not name or not value then return nil end
    query[name] = value
    list[#list + 1] = { name, value }
  end
  return query, list
end

--- Decodes a path. Refuses dot segments, also encoded ones, control characters and invalid UTF-8.
function url.path(raw)
  local path = url.decode(raw)
  if not path then return nil, "broken escape in the path" end
  if find(path, "%c") then return nil, "control character in the path" end
  if not utf8.len(path) then return nil, "path is not UTF-8" end
  if find(path, "/.", 1, true)
    and (find(path .. "/", "/./", 1, true) or find(path .. "/", "/../", 1, true)) then
    return nil, "dot segments in the path"
  end
  return path
end

--- Splits a request target: { path, raw_path, query, query_list, authority }; or nil and a message.
function url.target(target, method)
  local result = {}
  if target == "*" then
    if method ~= "OPTIONS" then return nil, "target * is only valid for OPTIONS" end
    return { path = "*", raw_path = "*", query = {}, query_list = {} }
  end
  if sub(target, 1, 1) ~= "/" then
    local scheme, rest = target:match "^(%a+)://(.*)$"
    scheme = scheme and scheme:lower()
    if scheme ~= "http" and scheme ~= "https" then return nil, "target is not a path" end
    local at = find(rest, "[/?]") or #rest + 1
    result.authority = sub(rest, 1, at - 1)
    if result.authority == "" or find(result.authority, "@", 1, true) then
      return nil, "target has no valid host"
    end
    target = sub(rest, at)
    if sub(target, 1, 1) ~= "/" then target = "/" .. target end
  end
  if find(target, "#", 1, true) then return nil, "fragment in the target" end
  local mark = find(target, "?", 1, true)
  result.raw_path = mark and sub(target, 1, mark - 1) or target
  local why
  result.path, why = url.path(result.raw_path)
  if not result.path then return nil, why end
  result.query, result.query_list = url.query(mark and sub(target, mark + 1) or "")
  if not result.query then return nil, "broken escape in the query" end
  return result
end

local PORTS = { http = 80, https = 443 }

--- Splits "http://host:port/path?query": { scheme, host, port, target, authority }; or nil and a
--- message.
function url.parse(text)
  local scheme, authority, rest = text:match "^(%a[%w+.-]*)://([^/?#]*)(.*)$"
  if not scheme then return nil, ("'%s' is not a URL"):format(text) end
  scheme = scheme:lower()
  if not PORTS[scheme] then return nil, ("unknown scheme '%s'"):format(scheme) end
  local host, port = authority:match "^%[([%x:.]+)%]:?(%d*)$"
  if not host then host, port = authority:match "^([^:@%[%]%s%c]+):?(%d*)$" end
  port = host and (port == "" and PORTS[scheme] or math.tointeger(tonumber(port)))
  if not port or port > 65535 then
    return nil, ("'%s' is not a valid host and port"):format(authority)
  end
  local fragment = find(rest, "#", 1, true)
  if fragment then rest = sub(rest, 1, fragment - 1) end
  if sub(rest, 1, 1) ~= "/" then rest = "/" .. rest end
  if find(rest, "[%c ]") then return nil, "white space in the URL" end
  return { scheme = scheme, host = host, port = port, target = rest, authority = authority }
end

return url
