-- methods: the methods of str, list, tuple, dict and numbers.
--
-- An entry is { function(self, …), names of its parameters…, min = how many must be given }, or
-- with `raw` a function(self, kw, …) that takes any number. Methods that would change a value are
-- refused, as in the reference.
local case = require "templates.jinja.case"
local format = require "templates.jinja.format"
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local text_of = require "templates.jinja.text"
local values = require "templates.jinja.values"
local fail, null, is_str, typename, text = values.fail, values.null, values.is_str, values.typename,
  strings.text

local methods = {}

-- ---- arguments ----------------------------------------------------------------------------------

local function want_str(v, what)
  if is_str(v) then return v end
  if values.is_undefined(v) then fail(v.message) end
  fail("%s must be a str, not %s", what, typename(v))
end

local function want_int(v, what)
  if type(v) == "boolean" then return v and 1 or 0 end
  if math.type(v) == "integer" then return v end
  if values.is_undefined(v) then fail(v.message) end
  fail("%s must be an int, not %s", what, typename(v))
end

--- nil for an argument that is omitted or None.
local function optional(v) return v ~= null and v or nil end
local function optional_int(v, what) return optional(v) and want_int(v, what) end
local function optional_str(v, what) return optional(v) and want_str(v, what) end

methods.want_str, methods.want_int, methods.optional = want_str, want_int, optional

-- ---- strings ------------------------------------------------------------------------------------

local str = {}
methods.str = str

--- A change of case visits every character.
local function by_part(f)
  return { function(s)
    values.scan(#text(s) << 6)
    return strings.each_part(s, f)
  end }
end
local function whole(f)
  return { function(s)
    values.scan(#text(s) << 6)
    return strings.from(s, f(text(s)))
  end }
end
str.upper, str.lower, str.casefold, str.swapcase = by_part(case.upper), whole(case.lower),
  by_part(case.fold), by_part(case.swap)
str.title, str.capitalize = whole(case.title), whole(case.capitalize)

for name, sides in pairs { strip = "lr", lstrip = "l", rstrip = "r" } do
  str[name] = { function(s, chars)
    return strings.strip(s, optional_str(chars, "the argument of " .. name), sides)
  end, "chars" }
end

local function splitter(name)
  return { function(s, separator, most)
    separator, most = optional_str(separator, "the separator"), optional_int(most, "maxsplit")
    return values.list(strings[name](s, separator, most))
  end, "sep", "maxsplit" }
end
str.split, str.rsplit = splitter "split", splitter "rsplit"
str.splitlines = { function(s, keep)
  return values.list(strings.lines(s, keep ~= nil and values.truth(keep)))
end, "keepends" }

str.partition = { function(s, sep)
  return values.tuple(strings.partition(s, want_str(sep, "the separator")))
end, "sep", min = 1 }
str.rpartition = { function(s, sep)
  return values.tuple(strings.partition(s, want_str(sep, "the separator"), true))
end, "sep", min = 1 }

str.replace = { function(s, old, new, count)
  local result = strings.replace(s, want_str(old, "what replace looks for"),
    want_str(new, "what replace puts there"),
    count and want_int(count, "count"))
  return result
end, "old", "new", "count", min = 2 }

local function place(s, needle, from, to, last)
  return strings.find(s, want_str(needle, "what is looked for"),
    { from = optional_int(from, "start"), to = optional_int(to, "end"), last = last })
end
local function must_find(s, needle, from, to, last)
  local at = place(s, needle, from, to, last)
  if at < 0 then fail("substring '%s' not found", text(needle)) end
  return at
end
str.find = { place, "sub", "start", "end", min = 1 }
str.rfind = { function(s, needle, from, to) return place(s, needle, from, to, true) end, "sub",
  "start", "end", min = 1 }
str.index = { must_find, "sub", "start", "end", min = 1 }
str.rindex = { function(s, needle, from, to) return must_find(s, needle, from, to, true) end, "sub",
  "start", "end", min = 1 }
str.count = { function(s, needle, from, to)
  return strings.count(s, want_str(needle, "what is counted"),
    { from = optional_int(from, "start"), to = optional_int(to, "end") })
end, "sub", "start", "end", min = 1 }

local function affix(test)
  return { function(s, part, from, to)
    local where = { from = optional_int(from, "start"), to = optional_int(to, "end") }
    if type(part) ~= "table" or getmetatable(part) ~= values.Tuple then
      return test(s, want_str(part, "the argument"), where)
    end
    for i = 1, #part do
      if test(s, want_str(part[i], "the argument"), where) then return true end
    end
    return false
  end, "prefix", "start", "end", min = 1 }
end
str.startswith, str.endswith = affix(strings.starts), affix(strings.ends)

str.removeprefix = { function(s, part)
  return strings.starts(s, want_str(part, "the prefix")) and strings.sub(s, #text(part) + 1) or s
end, "prefix", min = 1 }
str.removesuffix = { function(s, part)
  local n = #text(want_str(part, "the suffix"))
  return n > 0 and strings.ends(s, part) and strings.sub(s, 1, #text(s) - n) or s
end, "suffix", min = 1 }

str.join = { function(s, list)
  local items = values.items(list)
  values.tick(#items)
  for i = 1, #items do
    if not is_str(items[i]) then
      fail("join: item %d is %s, not a str", i - 1, typename(items[i]))
    end
  end
  return strings.join(items, s)
end, "iterable", min = 1 }

local function padder(side)
  return { function(s, width, fill)
    if fill and strings.len(want_str(fill, "the fill")) ~= 1 then
      fail "the fill must be one character"
    end
    return strings.pad(s, want_int(width, "the width"), { side = side, fill = fill })
  end, "width", "fillchar", min = 1 }
end
str.ljust, str.rjust, str.center = padder "left", padder "right", padder "center"

str.zfill = { function(s, width)
  local sign = text(s):match "^[+-]" or ""
  local rest = strings.sub(s, #sign + 1)
  width = want_int(width, "the width") - #sign
  return strings.cat { sign, strings.pad(rest, width, { side = "right", fill = "0" }) }
end, "width", min = 1 }

str.expandtabs = { function(s, size)
  local column, pieces = 0, {}
  size = size and want_int(size, "the tab size") or 8
  for _, c in ipairs(values.characters(s)) do
    local t = text(c)
    if t == "\t" then
      local n = size > 0 and size - column % size or 0
      pieces[#pieces + 1], column = strings.times(" ", n), column + n
    else
      pieces[#pieces + 1], column = c, (t == "\n" or t == "\r") and 0 or column + 1
    end
  end
  return strings.cat(pieces)
end, "tabsize" }

--- The named arguments as a map.
local function as_map(kw)
  local map = {}
  for i = 1, kw and #kw or 0, 2 do map[kw[i]] = kw[i + 1] end
  return map
end
str.format = { function(s, kw, ...) return format.brace(s, { ... }, as_map(kw)) end, raw = true }
str.format_map = { function(s, map)
  if values.kind(map) ~= "dict" then fail("format_map needs a dict, got %s", typename(map)) end
  return format.brace(s, {}, values.open(map).map)
end, "mapping", min = 1 }

-- Characters outside ASCII that are not letters: punctuation, symbols, spaces, private use. Coarse,
-- by block.
local NOT_LETTERS = { { 0x80, 0xA9 }, { 0xAB, 0xB4 }, { 0xB6, 0xB9 }, { 0xBB, 0xBF },
  { 0xD7, 0xD7 }, { 0xF7, 0xF7 },
  { 0x2000, 0x2070 }, { 0x2072, 0x207E }, { 0x2080, 0x208F }, { 0x20A0, 0x2101 },
  { 0x2190, 0x2BFF }, { 0x3000, 0x3004 }, { 0x3007, 0x3030 }, { 0xD800, 0xF8FF },
  { 0xFE00, 0xFE6F }, { 0xFEFF, 0xFF20 }, { 0x1F000, 0x1FAFF }, { 0xE0000, 0x10FFFF } }
local DIGITS = { { 0x660, 0x669 }, { 0x6F0, 0x6F9 }, { 0x7C0, 0x7C9 }, { 0x966, 0x96F },
  { 0x9E6, 0x9EF }, { 0xE50, 0xE59 },
  { 0xFF10, 0xFF19 } }

local function within(ranges, c)
  for _, r in ipairs(ranges) do
    if c >= r[1] and c <= r[2] then return true end
  end
  return false
end
local function is_digit(c) return c >= 48 and c <= 57 or c > 127 and within(DIGITS, c) end
local function is_letter(c)
  if c < 128 then return c >= 65 and c <= 90 or c >= 97 and c <= 122 end
  return not within(NOT_LETTERS, c) and not within(DIGITS, c)
end

--- A question about a text, which may visit every character.
local function asks(f)
  return { function(s)
    local t = text(s)
    values.scan(#t << 6)
    return f(t)
  end }
end
local function every(test)
  return asks(function(t)
    for _, c in utf8.codes(t, true) do
      if not test(c) then return false end
    end
    return t ~= ""
  end)
end

str.isdigit, str.isdecimal, str.isnumeric = every(is_digit), every(is_digit), every(is_digit)
str.isalpha = every(is_letter)
str.isalnum = every(function(c) return is_letter(c) or is_digit(c) end)
str.isascii = asks(function(t) return not t:find "[\x80-\xff]" end)
str.isprintable = asks(function(t) return not text_of.escapes(t) end)
str.isspace = asks(strings.is_space)
str.isupper = asks(function(t) return case.is(t, "upper") end)
str.islower = asks(function(t) return case.is(t, "lower") end)
str.istitle = asks(function(t)
  return t == case.title(t) and (case.is(t, "upper") or t:find "%u" ~= nil)
end)

--- A character of a word: a letter, a digit or an underscore.
function methods.is_word(c) return c == 95 or is_letter(c) or is_digit(c) end
local is_word = every(methods.is_word)[1]
str.isidentifier = { function(s)
  return is_word(s) and not is_digit(utf8.codepoint(text(s), 1, 1, true))
end }

-- ---- lists and dicts ----------------------------------------------------------------------------

local sequence = {}
sequence.index = { function(list, v)
  for i, item in ipairs(values.items(list)) do
    values.tick()
    if operators.eq(item, v) then return i - 1 end
  end
  fail "index: the value is not in the list"
end, "value", min = 1 }
sequence.count = { function(list, v)
  local n = 0
  for _, item in ipairs(values.items(list)) do
    values.tick()
    if operators.eq(item, v) then n = n + 1 end
  end
  return n
end, "value", min = 1 }
methods.tuple, methods.range = sequence, sequence

local function refused(kind, names)
  local out = {}
  for name in names:gmatch "%S+" do
    out[name] = values.undefined(
      ("'%s' of a %s is refused: a template cannot change values"):format(name, kind))
  end
  return out
end
local list = { index = sequence.index, count = sequence.count,
  copy = { function(v) return values.list(table.move(values.opened(v), 1, #v, 1, {})) end } }
methods.list = list

--- Methods that a template must not call, by type.
methods.refused = {
  list = refused("list", "append clear pop reverse insert sort extend remove"),
  dict = refused("dict", "clear pop popitem setdefault update"),
}

local dict = {}
methods.dict = dict

--- Pairs of a dict as tuples.
function methods.pairs(d)
  local out = {}
  values.open(d)
  values.tick(#d.keys)
  for i, k in ipairs(d.keys) do
    values.rest(i)
    out[i] = values.tuple { k, d.map[values.hash(k)] }
  end
  return out
end

dict.get = { function(d, key, default)
  local v = values.open(d).map[values.hash(key)]
  if v ~= nil then return v end
  return default == nil and null or default
end, "key", "default", min = 1, positional = true }
dict.items = { function(d) return values.view("dict_items", methods.pairs(d)) end }
dict.keys = { function(d)
  local keys = values.open(d).keys
  return values.view("dict_keys", table.move(keys, 1, #keys, 1, {}))
end }
dict.values = { function(d)
  local out = {}
  for i, k in ipairs(values.open(d).keys) do out[i] = d.map[values.hash(k)] end
  return values.view("dict_values", out)
end }
dict.copy = { function(d)
  local out = values.dict()
  for _, k in ipairs(values.open(d).keys) do values.put(out, k, d.map[values.hash(k)]) end
  return out
end }

methods.float = { is_integer = { function(v) return v // 1 == v end } }
methods.int = { bit_length = { function(v)
  if type(v) == "table" then fail("%s does not fit in 64 bits", v.digits) end
  local n, bits = math.abs(v), 0
  while n > 0 do n, bits = n >> 1, bits + 1 end
  return bits
end } }

return methods
