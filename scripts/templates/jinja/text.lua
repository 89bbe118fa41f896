-- text: values as text: Python's str and repr.
local perigee = require "perigee"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local json, null, kind = perigee.json, values.null, values.kind
local Str, fail = values.Str, values.fail

local text = {}

local MAX_DEPTH = 200

--- 1e16 -> "1e+16", 0.1 -> "0.1", 2.0 -> "2.0"
local function float(v)
  if v ~= v then return "nan" end
  if v == math.huge then return "inf" end
  if v == -math.huge then return "-inf" end
  return json.encode(v)
end
text.float = float

-- Characters outside ASCII that Python's repr escapes: format characters, separators,
-- private use.
local HIDDEN = { { 0x7F, 0xA0 }, { 0xAD, 0xAD }, { 0x600, 0x605 }, { 0x61C, 0x61C },
  { 0x6DD, 0x6DD }, { 0x70F, 0x70F },
  { 0x890, 0x891 }, { 0x8E2, 0x8E2 }, { 0x1680, 0x1680 }, { 0x180E, 0x180E }, { 0x2000, 0x200F },
  { 0x2028, 0x202F }, { 0x205F, 0x206F }, { 0x3000, 0x3000 }, { 0xD800, 0xF8FF },
  { 0xFEFF, 0xFEFF }, { 0xFFF0, 0xFFFB }, { 0xFFFE, 0xFFFF }, { 0x110BD, 0x110BD },
  { 0x1D173, 0x1D17A }, { 0xE0000, 0xE00FF }, { 0xE01F0, 0x10FFFF } }

local function is_hidden(c)
  for _, range in ipairs(HIDDEN) do
    if c < range[1] then return false end
    if c <= range[2] then return true end
  end
  return false
end

local ESCAPES = { ["\x7F"] = "\\x7f" }
for c = 0, 31 do ESCAPES[string.char(c)] = ("\\x%02x"):format(c) end
ESCAPES["\n"], ESCAPES["\r"], ESCAPES["\t"], ESCAPES["\\"] = "\\n", "\\r", "\\t", "\\\\"

local function escape_wide(c)
  local code = utf8.codepoint(c, 1, 1, true)
  if not is_hidden(code) then return nil end
  return (code < 0x100 and "\\x%02x" or code < 0x10000 and "\\u%04x" or "\\U%08x"):format(code)
end

local function quote(t)
  values.scan(#t << 4)
  local mark = t:find("'", 1, true) and not t:find('"', 1, true) and '"' or "'"
  t = t:gsub("[%c\\\x7F]", ESCAPES)
  if mark == "'" then t = t:gsub("'", "\\'") end
  if t:find "[\xC2-\xFD]" then t = t:gsub("[\xC2-\xFD][\x80-\xBF]*", escape_wide) end
  return mark .. t .. mark
end

--- Would repr escape any character of the text?
function text.escapes(t)
  if t:find "[%c\x7F]" then return true end
  for _, c in utf8.codes(t, true) do
    if is_hidden(c) then return true end
  end
  return false
end

local repr

local function items_repr(v, n, depth)
  local out = {}
  for i = 1, n do out[i] = repr(v[i], depth + 1) end
  return strings.join(out, ", ")
end

local function dict_repr(v, depth)
  local out = {}
  values.open(v)
  for i, k in ipairs(v.keys) do
    out[i] = strings.cat { repr(k, depth + 1), ": ", repr(v.map[values.hash(k)], depth + 1) }
  end
  return strings.cat { "{", strings.join(out, ", "), "}" }
end

local printers = {
  int = function(v) return v.digits end,
  list = function(v, depth)
    return strings.cat { "[", items_repr(values.opened(v), #v, depth), "]" }
  end,
  tuple = function(v, depth)
    return strings.cat { "(", items_repr(v, #v, depth), #v == 1 and ",)" or ")" }
  end,
  dict = dict_repr,
  view = function(v, depth)
    return strings.cat { v.typename, "([", items_repr(v, #v, depth), "])" }
  end,
  range = function(v)
    if v.step == 1 then return ("range(%d, %d)"):format(v.from, v.to) end
    return ("range(%d, %d, %d)"):format(v.from, v.to, v.step)
  end,
  namespace = function(v, depth)
    return strings.cat { "<Namespace ", dict_repr(v.dict, depth), ">" }
  end,
  macro = function(v) return ("<Macro %s>"):format(quote(v.name)) end,
  loop = function(v) return ("<LoopContext %d/%d>"):format(v.i, v.n) end,
  generator = function() return "<generator object>" end,
  func = function(v) return ("<function %s>"):format(v.name) end,
  undefined = function() return "Undefined" end,
}

--- Python's repr.
function repr(v, depth)
  local t = type(v)
  depth = depth or 0
  if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
  if t == "string" then return quote(v) end
  if t == "number" then return math.type(v) == "integer" and tostring(v) or float(v) end
  if t == "boolean" then return v and "True" or "False" end
  if v == null then return "None" end
  if getmetatable(v) == Str then
    local quoted = quote(v.text)
    if #v.marks > 0 then quoted = strings.make(quoted, { 1, #quoted }) end
    return v.safe and strings.cat { "Markup(", quoted, ")" } or quoted
  end
  values.tick(10)
  return printers[kind(v)](v, depth)
end
text.repr = repr

--- Python's str, which is also what {{ }} prints.
function text.str(v)
  local t = type(v)
  if t == "string" then return v end
  if t == "table" then
    local mt = getmetatable(v)
    if mt == Str then return strings.unsafe(v) end
    if mt == values.Undefined then return "" end
  end
  return repr(v)
end

return text
