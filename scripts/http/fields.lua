-- fields: the header lines of HTTP/1.1, in requests, responses and trailers. Linear and strict:
-- anything two readers could understand differently (folded lines, white space before a colon, bare
-- CR or LF, NUL) is an error, because that is how requests are smuggled past proxies.
local fields = {}

local byte, find, lower, sub = string.byte, string.find, string.lower, string.sub

local NAME = "^[!#$%%&'*+%-.^_`|~%w]+:"
local CONTROL = "[\0-\8\10-\31\127]" -- control characters except tab
local CR, LF, SPACE, TAB, COLON = 13, 10, 32, 9, 58

-- Repeating one of these is an error: another server might use the other value.
local ONCE = { host = true, ["content-length"] = true, ["transfer-encoding"] = true, expect = true }

--- The error in the line at `pos`, which does not begin with a valid name.
local function complain(text, pos)
  local first = byte(text, pos)
  if first == SPACE or first == TAB then return "folded header line" end
  local colon = find(text, "[:\r\n]", pos)
  if byte(text, colon) == COLON and colon > pos and find(text, "^[ \t]", colon - 1) then
    return "white space before a colon"
  end
  return "malformed header name"
end

--- The text between two positions, without white space around it.
local function trimmed(text, from, to)
  local b = byte(text, from)
  while from <= to and (b == SPACE or b == TAB) do
    from = from + 1
    b = byte(text, from)
  end
  b = byte(text, to)
  while to >= from and (b == SPACE or b == TAB) do
    to = to - 1
    b = byte(text, to)
  end
  return sub(text, from, to)
end

--- Reads one line at `pos`: name, value and the position after it; or nil and a message.
function fields.line(text, pos)
  local _, colon = find(text, NAME, pos)
  if not colon then return nil, complain(text, pos) end
  local stop = find(text, CONTROL, colon + 1)
  if not stop or byte(text, stop) ~= CR or byte(text, stop + 1) ~= LF then
    return nil, "control character in a header"
  end
  return lower(sub(text, pos, colon - 1)), trimmed(text, colon + 1, stop - 1), stop + 2
end

--- Reads the lines from `pos` on; the last ends with the CR at `stop`. Names become lower-case,
--- values of equal names are joined by commas. Returns the table; or nil, a message and an HTTP
--- status.
function fields.read(text, pos, stop, max)
  local headers, n = {}, 0
  while pos < stop do
    local name, value, after = fields.line(text, pos)
    if not name then return nil, value, 400 end
    n = n + 1
    if n > max then return nil, ("more than %d headers"):format(max), 431 end
    local had = headers[name]
    if had then
      if ONCE[name] then return nil, "repeated " .. name, 400 end
      value = had .. ", " .. value
    end
    headers[name] = value
    pos = after
  end
  return headers
end

--- Is `word` (lower-case) in a comma-separated list such as the value of "connection"?
function fields.has(list, word)
  if not list then return false end
  list = lower(list)
  if list == word then return true end
  for item in list:gmatch "[^,]+" do
    if trimmed(item, 1, #item) == word then return true end
  end
  return false
end

--- Raises unless name and value are valid in a header.
function fields.check(name, value)
  if type(name) ~= "string" or not find(name, "^[!#$%%&'*+%-.^_`|~%w]+$") then
    error(("'%s' is not a valid header name"):format(tostring(name)), 3)
  end
  if find(value, CONTROL) then error(("control character in header '%s'"):format(name), 3) end
end

return fields
