-- strings: text with marks, and Python's string functions on it.
--
-- All functions take Lua strings and Str tables. A function decides on the plain text where to cut,
-- and builds its result from pieces with `sub` and `cat`, which keep the marks. Python counts
-- characters; ASCII texts are cut by bytes.
local values = require "templates.jinja.values"
local Str, fail, charge, scan, search = values.Str, values.fail, values.charge, values.scan,
  values.search
local rest = values.rest
local find, rawsub, concat = string.find, string.sub, table.concat

local strings = {}

-- ---- the algebra --------------------------------------------------------------------------------

--- The plain text.
local function text(s) return type(s) == "string" and s or s.text end
strings.text = text

--- A string of text and marks.
local function make(s, marks, safe)
  if #marks == 0 and not safe then return s end
  return setmetatable({ text = s, marks = marks, safe = safe }, Str)
end
strings.make = make

--- Bytes i to j.
local function sub(s, i, j)
  if type(s) == "string" then return rawsub(s, i, j) end
  j = math.min(j or #s.text, #s.text)
  local from, marks = s.marks, {}
  for k = 1, #from, 2 do
    local a, b = math.max(from[k], i), math.min(from[k + 1], j)
    if a <= b then
      marks[#marks + 1] = a - i + 1
      marks[#marks + 1] = b - i + 1
    end
  end
  return make(rawsub(s.text, i, j), marks, s.safe)
end
strings.sub = sub

local function add_marks(marks, s, at)
  local from = s.marks
  for k = 1, #from, 2 do
    rest(k - 1)
    local a, b = from[k] + at, from[k + 1] + at
    if marks[#marks] == a - 1 then
      marks[#marks] = b
    else
      marks[#marks + 1] = a
      marks[#marks + 1] = b
    end
  end
end

local function cat_marked(pieces, n)
  local texts, marks, at = {}, {}, 0
  for i = 1, n do
    rest(i)
    local s = pieces[i]
    if type(s) == "table" then
      add_marks(marks, s, at)
      s = s.text
    end
    texts[i] = s
    at = at + #s
  end
  return make(concat(texts), marks)
end

--- Joins n pieces.
local function cat(pieces, n)
  local bytes, plain = 0, true
  n = n or #pieces
  for i = 1, n do
    rest(i)
    local s = pieces[i]
    if type(s) == "string" then
      bytes = bytes + #s
    else
      bytes, plain = bytes + #s.text, false
    end
  end
  charge(bytes)
  if plain then return concat(pieces, "", 1, n) end
  return cat_marked(pieces, n)
end
strings.cat = cat

--- Joins two strings. If one is safe (the filter `safe`), the other is escaped and the result is
--- safe.
function strings.add(a, b)
  if type(a) == "string" and type(b) == "string" then
    charge(#a + #b)
    return a .. b
  end
  local safe = type(a) == "table" and a.safe or type(b) == "table" and b.safe
  if not safe then return cat { a, b } end
  local sum = cat { strings.escape(a), strings.escape(b) }
  return strings.safe(sum)
end

--- Marks a string as safe: it needs no escaping (Markup in the reference).
function strings.safe(s)
  if type(s) == "string" then return make(s, {}, true) end
  return make(s.text, s.marks, true)
end

--- A string without its safe flag.
function strings.unsafe(s)
  return type(s) == "table" and s.safe and make(s.text, s.marks) or s
end

--- A text derived from s by other means: marked as a whole if any part of s is.
function strings.from(s, new)
  if type(s) == "string" or new == "" then return new end
  if #s.marks == 0 then return make(new, {}, s.safe) end
  if #new == #s.text then return make(new, s.marks, s.safe) end
  return make(new, { 1, #new }, s.safe)
end

--- Applies f to each stretch of equal trust; for changes that work character by character.
local function each_part(s, f)
  if type(s) == "string" then return f(s) end
  local pieces, at = {}, 1
  local function take(to)
    if to < at then return end
    scan(to - at)
    local part = sub(s, at, to)
    local origin = type(part) == "table" and make(part.text, part.marks) or part
    pieces[#pieces + 1] = strings.from(origin, f(text(part)))
    at = to + 1
  end
  for k = 1, #s.marks, 2 do
    take(s.marks[k] - 1)
    take(s.marks[k + 1])
  end
  take(#s.text)
  local all = cat(pieces)
  return s.safe and strings.safe(all) or all
end
strings.each_part = each_part

local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&#39;",
  ['"'] = "&#34;" }

--- Escapes HTML, unless the string is safe; the result is safe.
function strings.escape(s, force)
  if not force and type(s) == "table" and s.safe then return s end
  local function escape(t) return (t:gsub("[&<>'\"]", ENTITIES)) end
  return strings.safe(each_part(strings.unsafe(s), escape))
end

--- Joins strings with a separator.
function strings.join(items, separator)
  local pieces, n = {}, 0
  local bare = text(separator) == ""
  for i = 1, #items do
    if i > 1 and not bare then
      n = n + 1
      pieces[n] = separator
    end
    n = n + 1
    pieces[n] = items[i]
  end
  return cat(pieces, n)
end

function strings.times(s, count)
  local t = text(s)
  if count <= 0 or t == "" then return "" end
  if count > values.state.max_output then
    fail("the text is too long: a string repeated %d times", count)
  end
  charge(#t * count)
  if type(s) == "string" then return t:rep(count) end
  values.tick(count)
  local pieces = {}
  for i = 1, count do pieces[i] = s end
  return cat_marked(pieces, count)
end

-- ---- characters ---------------------------------------------------------------------------------

--- Python's len. (utf8.len is ten times as fast as a search for non-ASCII bytes with a pattern.)
function values.length(s)
  local t = text(s)
  scan(#t)
  return utf8.len(t, 1, -1, true) or #t
end

local function is_ascii(t) return values.length(t) == #t end
strings.len = values.length

--- The byte after the first `count` characters.
local function offset(t, count)
  if count <= 0 then return 1 end
  if is_ascii(t) then return math.min(count, #t) + 1 end
  return utf8.offset(t, count + 1) or #t + 1
end

function values.characters(s)
  local out, n = {}, 0
  s = strings.unsafe(s)
  local t, at = text(s), 1
  values.tick(#t)
  while at <= #t do
    local b = t:byte(at)
    local after = at + (b < 0x80 and 1 or b < 0xE0 and 2 or b < 0xF0 and 3 or 4)
    n = n + 1
    out[n] = sub(s, at, after - 1)
    at = after
  end
  return out
end

--- Character i (from 0; negative: from the end), or nil.
function strings.at(s, i)
  local t = text(s)
  if i < 0 then i = i + strings.len(t) end
  if i < 0 then return nil end
  local from = offset(t, i)
  if from > #t then return nil end
  local to = offset(t, i + 1) - 1
  return sub(s, from, to)
end

--- Characters i to j, not including j; both from 0 and in range.
function strings.range(s, i, j)
  if i >= j then return "" end
  local t = text(s)
  return sub(s, offset(t, i), offset(t, j) - 1)
end

--- The number of characters before a byte.
local function to_chars(t, byte)
  if is_ascii(t) then return byte - 1 end
  return utf8.len(t, 1, byte - 1, true) or byte - 1
end

-- ---- white space --------------------------------------------------------------------------------

local SPACES = {}
for _, c in ipairs { 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000 } do
  SPACES[utf8.char(c)] = true
end
for c = 0x2000, 0x200A do SPACES[utf8.char(c)] = true end
for c = 9, 13 do SPACES[string.char(c)] = true end
for c = 28, 32 do SPACES[string.char(c)] = true end

--- Length in bytes of the character that starts at a byte, and of the one that ends there.
local function width_at(t, i)
  local b = t:byte(i)
  return b < 0xC0 and 1 or b < 0xE0 and 2 or b < 0xF0 and 3 or 4
end
local function width_before(t, j)
  local i = j
  while i > 1 and t:byte(i) >= 0x80 and t:byte(i) < 0xC0 do i = i - 1 end
  return j - i + 1
end

--- The first byte at or after i that is not in the set, and the last one at or before j.
local function skip_right(t, i, set)
  if set == SPACES then i = find(t, "[^\t-\r\x1c-\x20]", i) or #t + 1 end
  while i <= #t do
    local w = width_at(t, i)
    if not set[rawsub(t, i, i + w - 1)] then break end
    i = i + w
  end
  return i
end
local function skip_left(t, j, set)
  while j >= 1 do
    local w = width_before(t, j)
    if not set[rawsub(t, j - w + 1, j)] then break end
    j = j - w
  end
  return j
end
strings.SPACES, strings.skip_right, strings.skip_left = SPACES, skip_right, skip_left

--- Strips the characters of `chars` (white space by default); sides: "l", "r" or "lr".
function strings.strip(s, chars, sides)
  local t, set = text(s), SPACES
  if chars then
    set = {}
    for _, c in ipairs(values.characters(text(chars))) do set[c] = true end
  end
  local i = sides ~= "r" and skip_right(t, 1, set) or 1
  local j = sides ~= "l" and skip_left(t, #t, set) or #t
  scan(#t - (j - i + 1) << 6)
  if i == 1 and j == #t then return s end
  return sub(s, i, math.max(j, i - 1))
end

function strings.is_space(t) return t ~= "" and skip_right(t, 1, SPACES) > #t end

-- ---- finding and cutting ------------------------------------------------------------------------

--- The byte range of characters i to j: Python's optional start and end of find, count, startswith
--- …
local function window(t, i, j)
  local n = strings.len(t)
  i, j = i or 0, j or n
  if i < 0 then i = math.max(i + n, 0) end
  if j < 0 then j = math.max(j + n, 0) end
  if i > n or i > j then return nil end
  return offset(t, i), offset(t, math.min(j, n)) - 1
end

local function backwards(t, needle, limit)
  search(#t, #needle)
  local at = find(rawsub(t, 1, limit):reverse(), needle:reverse(), 1, true)
  return at and limit - at - #needle + 2
end

--- The index of the first (or last) occurrence, in characters from 0; -1 if there is none.
function strings.find(s, needle, where)
  local t, part = text(s), text(needle)
  local i, j = window(t, where.from, where.to)
  if not i then return -1 end
  search(j - i, #part)
  local at
  if where.last then
    at = backwards(t, part, j)
    if at and at < i then at = nil end
  else
    at = find(t, part, i, true)
    if at and at + #part - 1 > j then at = nil end
  end
  return at and to_chars(t, at) or -1
end

function strings.count(s, needle, where)
  local t, part = text(s), text(needle)
  local i, j = window(t, where.from, where.to)
  if not i then return 0 end
  if part == "" then return strings.len(rawsub(t, i, j)) + 1 end
  search(j - i, #part)
  local n = 0
  while true do
    local a, b = find(t, part, i, true)
    if not a or b > j then return n end
    n, i = n + 1, b + 1
  end
end

function strings.starts(s, prefix, where)
  local t, part = text(s), text(prefix)
  local i, j = window(t, where and where.from, where and where.to)
  return i ~= nil and #part <= j - i + 1 and rawsub(t, i, i + #part - 1) == part
end

function strings.ends(s, suffix, where)
  local t, part = text(s), text(suffix)
  local i, j = window(t, where and where.from, where and where.to)
  return i ~= nil and #part <= j - i + 1 and rawsub(t, j - #part + 1, j) == part
end

--- Replaces `old` with `new`, at most `count` times.
function strings.replace(s, old, new, count)
  local t, part = text(s), text(old)
  search(#t, #part)
  count = count and count >= 0 and count or math.huge
  local pieces, n, from, done = {}, 0, 1, 0
  if part == "" then
    for _, c in ipairs(values.characters(s)) do
      if done < count then
        n, done = n + 1, done + 1
        pieces[n] = new
      end
      n = n + 1
      pieces[n] = c
    end
    if done < count then
      n = n + 1
      pieces[n] = new
    end
    return cat(pieces, n)
  end
  while done < count do
    local a, b = find(t, part, from, true)
    if not a then break end
    pieces[n + 1], pieces[n + 2] = sub(s, from, a - 1), new
    n, from, done = n + 2, b + 1, done + 1
  end
  if done == 0 then return s end
  pieces[n + 1] = sub(s, from)
  return cat(pieces, n + 1)
end

local function split_spaces(s, most)
  local t, out = text(s), {}
  local i = skip_right(t, 1, SPACES)
  while i <= #t do
    if #out >= most then
      out[#out + 1] = sub(s, i)
      break
    end
    local from = i
    while i <= #t do
      local w = width_at(t, i)
      if SPACES[rawsub(t, i, i + w - 1)] then break end
      i = i + w
    end
    out[#out + 1] = sub(s, from, i - 1)
    i = skip_right(t, i, SPACES)
  end
  values.tick(#out)
  return out
end

--- Reverses a list in place.
local function reversed(list)
  local n = #list
  values.tick(n)
  for i = 1, n // 2 do list[i], list[n + 1 - i] = list[n + 1 - i], list[i] end
  return list
end

local function rsplit_spaces(s, most)
  local t, out = text(s), {} -- last first
  local j = skip_left(t, #t, SPACES)
  while j >= 1 do
    if #out >= most then
      out[#out + 1] = sub(s, 1, j)
      break
    end
    local to = j
    while j >= 1 do
      local w = width_before(t, j)
      if SPACES[rawsub(t, j - w + 1, j)] then break end
      j = j - w
    end
    out[#out + 1] = sub(s, j + 1, to)
    j = skip_left(t, j, SPACES)
  end
  return reversed(out)
end

local function limit(most) return most and most >= 0 and most or math.huge end

--- Splits at a separator, or at white space.
function strings.split(s, separator, most)
  most = limit(most)
  if not separator then return split_spaces(s, most) end
  local t, part = text(s), text(separator)
  if part == "" then fail("the separator of split is empty") end
  search(#t, #part)
  local out, from = {}, 1
  while #out < most do
    local a, b = find(t, part, from, true)
    if not a then break end
    out[#out + 1] = sub(s, from, a - 1)
    from = b + 1
  end
  out[#out + 1] = sub(s, from)
  values.tick(#out)
  return out
end

function strings.rsplit(s, separator, most)
  most = limit(most)
  if not separator then return rsplit_spaces(s, most) end
  local t, part = text(s):reverse(), text(separator):reverse()
  if part == "" then fail("the separator of rsplit is empty") end
  search(#t, #part)
  local out, n, from = {}, #t, 1
  while #out < most do
    local a, b = find(t, part, from, true)
    if not a then break end
    out[#out + 1] = sub(s, n - a + 2, n - from + 1)
    from = b + 1
  end
  out[#out + 1] = sub(s, 1, n - from + 1)
  return reversed(out)
end

--- Returns the text before, the separator and the text after, at its first or last occurrence.
function strings.partition(s, separator, last)
  local t, part = text(s), text(separator)
  if part == "" then fail("the separator of partition is empty") end
  local a
  search(#t, #part)
  if last then a = backwards(t, part, #t) else a = find(t, part, 1, true) end
  local none = sub(s, 1, 0)
  if not a then return last and { none, none, s } or { s, none, none } end
  return { sub(s, 1, a - 1), separator, sub(s, a + #part) }
end

local LINE_ENDS = { ["\n"] = true, ["\v"] = true, ["\f"] = true, ["\x1c"] = true, ["\x1d"] = true,
  ["\x1e"] = true,
  ["\u{85}"] = true, ["\u{2028}"] = true, ["\u{2029}"] = true, ["\r"] = true }

--- Lines; with `keep` they keep their ends.
function strings.lines(s, keep)
  local t, out, from, i = text(s), {}, 1, 1
  while true do
    i = find(t, "[\n-\r\x1c-\x1e\xc2\xe2]", i)
    if not i then break end
    local w = width_at(t, i)
    if LINE_ENDS[rawsub(t, i, i + w - 1)] then
      if rawsub(t, i, i + 1) == "\r\n" then w = 2 end
      out[#out + 1] = sub(s, from, keep and i + w - 1 or i - 1)
      from = i + w
    end
    i = i + w
  end
  if from <= #t then out[#out + 1] = sub(s, from) end
  values.tick(#out)
  return out
end

--- Pads to a width with spaces or another character; side: "left", "right", "center".
function strings.pad(s, width, how)
  local missing = width - strings.len(s)
  if missing <= 0 then return s end
  if missing > values.state.max_output then fail("the text is too long: %d characters", width) end
  local fill = how.fill or " "
  local left = how.side == "right" and missing or 0
  if how.side == "center" then left = missing // 2 + (missing & width & 1) end
  return cat { strings.times(fill, left), s, strings.times(fill, missing - left) }
end

return strings
