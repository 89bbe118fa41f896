-- text: small helpers for strings, paths and plain tables that many scripts need.
local text = {}

local SIZES = { "B", "KiB", "MiB", "GiB", "TiB" }
local SUFFIXES = { [""] = 0, k = 10, m = 20, g = 30, t = 40 }

-- ---- strings ------------------------------------------------------------------------------------

--- 1536 -> "1.5 KiB"
function text.bytes(n)
  local i = 1
  while n >= 1024 and i < #SIZES do
    n, i = n / 1024, i + 1
  end
  return (i == 1 and "%d %s" or "%.1f %s"):format(i == 1 and math.tointeger(n) or n, SIZES[i])
end

--- "8G", "512 MiB", "1000" -> bytes, or nil
function text.parse_bytes(s)
  local number, suffix = s:lower():match "^(%d+%.?%d*)%s*([kmgt]?)i?b?$"
  if not number then return nil end
  local n = tonumber(number) * 2 ^ SUFFIXES[suffix]
  return n < 2 ^ 62 and math.floor(n) or nil
end

--- 0.00123 -> "1.2 ms"
function text.seconds(s)
  if s < 1e-3 then return ("%.0f µs"):format(s * 1e6) end
  if s < 1 then return ("%.1f ms"):format(s * 1e3) end
  return ("%.2f s"):format(s)
end

--- The lines of a string, without their ends.
function text.lines(s)
  return s:gmatch "([^\n]*)\n?"
end

--- Without white space at its ends. A pattern with "%s*$" would take quadratic time on long runs.
function text.trim(s)
  local from = s:find "%S"
  return from and s:match(".*%S", from) or ""
end

--- The first line of any value.
function text.first_line(value)
  local line = tostring(value)
  local at = line:find("\n", 1, true)
  return at and line:sub(1, at - 1) or line
end

--- The longest prefix that all strings of a list share.
function text.common_prefix(list)
  local first = list[1] or ""
  local n = #first
  for _, s in ipairs(list) do
    while n > 0 and s:sub(1, n) ~= first:sub(1, n) do n = n - 1 end
  end
  return first:sub(1, n)
end

--- Replaces each byte that is not valid UTF-8 by U+FFFD.
function text.clean(bytes)
  if utf8.len(bytes) then return bytes end
  local parts, at = {}, 1
  while at <= #bytes do
    local n, bad = utf8.len(bytes, at)
    local last = n and #bytes or bad - 1
    if last >= at then parts[#parts + 1] = bytes:sub(at, last) end
    if not n then parts[#parts + 1] = "\u{FFFD}" end
    at = last + 2
  end
  return table.concat(parts)
end

--- The number of characters that begin in these bytes, which may start or end inside a character.
function text.characters(bytes)
  local n = 0
  for i = 1, #bytes do
    local b = bytes:byte(i)
    if b < 0x80 or b >= 0xC0 then n = n + 1 end
  end
  return n
end

-- ---- misspellings -------------------------------------------------------------------------------

local LONGEST = 64 -- bytes: the distance takes quadratic time, and a word may come from a client

--- The edit distance of two strings: insertions, deletions and replacements of one byte.
function text.distance(a, b)
  local row = {}
  for j = 0, #b do row[j] = j end
  for i = 1, #a do
    local corner = row[0]
    row[0] = i
    for j = 1, #b do
      local change = corner + (a:byte(i) == b:byte(j) and 0 or 1)
      corner = row[j]
      row[j] = math.min(change, row[j] + 1, row[j - 1] + 1)
    end
  end
  return row[#b]
end

--- The word of a list that was probably meant, or nil.
function text.nearest(word, list)
  if #word > LONGEST then return nil end
  local best, found = #word // 2 + 2, nil
  for _, candidate in ipairs(list) do
    local d = math.abs(#word - #candidate) -- a lower bound of the distance
    if d < best then d = text.distance(word, candidate) end
    if d < best then best, found = d, candidate end
  end
  return found
end

--- ", did you mean 'run'?" for an error message, or "" when no word of the list is near. `form`:
--- how the word is written (default "'%s'").
function text.suggestion(word, list, form)
  local nearest = text.nearest(tostring(word), list)
  return nearest and (", did you mean " .. (form or "'%s'") .. "?"):format(nearest) or ""
end

--- Does a text match a pattern in which * stands for any characters and ? for one byte? Takes time
--- of the product of both lengths at most.
function text.matches(pattern, s)
  local p, i, star, from = 1, 1, nil, nil
  while i <= #s do
    local c = pattern:sub(p, p)
    if c == "*" then
      star, from, p = p, i, p + 1
    elseif c ~= "" and (c == "?" or c == s:sub(i, i)) then
      p, i = p + 1, i + 1
    elseif star then
      from = from + 1
      p, i = star + 1, from
    else
      return false
    end
  end
  return pattern:find("^%**$", p) ~= nil
end

-- ---- files --------------------------------------------------------------------------------------

--- The folder of a path, "." when it has none.
function text.dirname(path)
  local folder = path:match "^(.*)/[^/]*$"
  if folder == "" then return "/" end
  return folder or "."
end

--- The content of a file, or nil and one line that names it.
function text.read_file(path)
  local f, why = io.open(path, "rb")
  if not f then return nil, why end
  local content, reason = f:read "a"
  f:close()
  if not content then return nil, path .. ": " .. tostring(reason) end
  return content
end

-- ---- plain tables: no cycles, no metatables -----------------------------------------------------

--- Are two values equal, tables by content?
function text.same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  for k, v in pairs(a) do
    if not text.same(v, b[k]) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

--- A deep copy.
function text.copy(value)
  if type(value) ~= "table" then return value end
  local out = {}
  for k, v in pairs(value) do out[k] = text.copy(v) end
  return out
end

--- The keys of a table, sorted as strings.
function text.sorted_keys(t)
  local keys = {}
  for k in pairs(t) do keys[#keys + 1] = k end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

return text
