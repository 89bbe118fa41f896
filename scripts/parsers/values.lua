-- values: a forgiving reader of JSON, Python literals and, in formats that have them, bare words.
-- It writes valid JSON as it reads.
--
-- Every reader takes a Scan `s` and a function `put` for the JSON text. It returns false if the
-- text is not such a value, or ends; it has then read up to the place where that became clear.
local perigee = require "perigee"
local scan = require "parsers.scan"

local find, sub = string.find, string.sub
local json = perigee.json

local DEPTH = 500 -- below the limit of the JSON decoder, which may read the result

local values = {}

-- ---- writing ------------------------------------------------------------------------------------

local ESCAPES = { ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n",
  ["\r"] = "\\r", ["\t"] = "\\t" }
for c = 0, 31 do
  local char = string.char(c)
  ESCAPES[char] = ESCAPES[char] or ("\\u%04x"):format(c)
end

--- Escapes text for the inside of a JSON string.
local function escape(text)
  return (text:gsub('[%z\1-\31"\\]', ESCAPES))
end
values.escape = escape

function values.quote(text)
  return '"' .. escape(text) .. '"'
end

--- The text without white space at either end.
local function strip(text)
  local first = find(text, "%S")
  if not first then return "" end
  local last = #text
  while find(sub(text, last, last), "%s") do last = last - 1 end
  return sub(text, first, last)
end
values.strip = strip

-- ---- reading values -----------------------------------------------------------------------------

local PLAIN = { ['"'] = true, ["\\"] = true, ["/"] = true, b = true, f = true, n = true, r = true,
  t = true }

--- Reads after \u: four hex digits, or a surrogate pair. A lone surrogate becomes U+FFFD.
local function read_unicode(s, put)
  if not s:need(4) then return false end
  local hex = sub(s.buf, s.pos, s.pos + 3)
  if not find(hex, "^%x%x%x%x$") then
    put "\\\\u"
    return true
  end
  s.pos = s.pos + 4
  local code = tonumber(hex, 16)
  if code < 0xD800 or code > 0xDFFF then
    put("\\u" .. hex)
  elseif code < 0xDC00 and s:ahead "\\u" and s:need(6)
    and find(s.buf, "^\\u[dD][c-fC-F]%x%x", s.pos) then
    put("\\u" .. hex .. sub(s.buf, s.pos, s.pos + 5))
    s.pos = s.pos + 6
  else
    put "\\ufffd"
  end
  return true
end

--- Reads after a backslash. If JSON has no such escape, the backslash is literal.
local function read_escape(s, put)
  if not s:peek() then return false end
  local c = sub(s.buf, s.pos, s.pos)
  if PLAIN[c] then
    put("\\" .. c)
  elseif c == "'" then
    put "'"
  elseif c == "u" then
    s.pos = s.pos + 1
    return read_unicode(s, put)
  else
    put "\\\\"
    return true
  end
  s.pos = s.pos + 1
  return true
end

local STOP = { ['"'] = '["\\%z\1-\31]', ["'"] = "['\"\\%z\1-\31]" }

--- A string after its opening quote.
local function read_string(s, put, quote)
  local stop = STOP[quote]
  put '"'
  while true do
    local buf, pos = s.buf, s.pos
    local at = find(buf, stop, pos)
    local last = (at or #buf + 1) - 1
    if last >= pos then put(sub(buf, pos, last)) end
    s.pos = last + 1
    if not at then
      if not s:more() then return false end
    else
      local c = sub(buf, at, at)
      s.pos = at + 1
      if c == quote then
        put '"'
        return true
      elseif c ~= "\\" then
        put(ESCAPES[c])
      elseif not read_escape(s, put) then
        return false
      end
    end
  end
end

--- A string between two marks, without escapes.
local function read_marked(s, put, o)
  put '"'
  if not s:upto(o.marks, function(text) put(escape(text)) end) then return false end
  put '"'
  return true
end

local WORDS = { ["true"] = "true", ["false"] = "false", ["null"] = "null", True = "true",
  False = "false", None = "null", NaN = '"NaN"', Infinity = '"Infinity"',
  ["-Infinity"] = '"-Infinity"' }

local function is_number(word)
  if find(word, "^%-?0%d") then return false end
  return find(word, "^%-?%d+$") or find(word, "^%-?%d+%.%d+$") or find(word, "^%-?%d+[eE][+-]?%d+$")
    or find(word, "^%-?%d+%.%d+[eE][+-]?%d+$")
end

local BARE_END = scan.marks { ",", "}", "]", "<tool_call|>" }

--- A word: a number, a literal or, in formats with unquoted strings (o.bare), the text up to the
--- next comma or closing bracket.
local function read_word(s, put, o)
  local word
  if o.bare then
    local mark
    word, mark = s:field(BARE_END)
    if not word then return false end
    s:back(mark)
    word = strip(word)
  else
    word = s:word("^[%w_+.%-]*", 400)
  end
  if not word or word == "" then return false end
  local known = WORDS[word] or is_number(word) and word
  if o.text and known ~= "null" then known = nil end
  if not known and not o.bare then return false end
  put(known or values.quote(word))
  return true
end

local read_value

local function read_key(s, put, o)
  if o.quote and s:take(o.quote) then return read_marked(s, put, o) end
  if s:take '"' then return read_string(s, put, '"') end
  if s:take "'" then return read_string(s, put, "'") end
  local word = o.bare and s:name()
  if not word then return false end
  put(values.quote(word))
  return true
end

--- Collects the JSON text that a reader writes; nil if it fails.
local function collect(read, s, o)
  local parts = {}
  if not read(s, function(text) parts[#parts + 1] = text end, o) then return nil end
  return table.concat(parts)
end

--- A nested value.
local function read_inner(s, put, o)
  o.depth = o.depth + 1
  if o.depth > DEPTH or not read_value(s, put, o) then return false end
  o.depth = o.depth - 1
  return true
end

local function read_object(s, put, o)
  put "{"
  local first = true
  while true do
    s:space()
    if s:take "}" then
      put "}"
      return true
    end
    if not first then put ", " end
    first = false
    local text
    if o.is_text then
      local key = collect(read_key, s, o)
      if not key then return false end
      put(key)
      text = o.depth == 1 and o.is_text(json.decode(key))
    elseif not read_key(s, put, o) then
      return false
    end
    s:space()
    if not s:take ":" then return false end
    put ": "
    o.text = text
    if not read_inner(s, put, o) then return false end
    s:space()
    if not s:take "," and not s:ahead "}" then return false end
  end
end

local function read_array(s, put, o)
  put "["
  local first = true
  while true do
    s:space()
    if s:take "]" then
      put "]"
      return true
    end
    if not first then put ", " end
    first = false
    o.text = nil
    if not read_inner(s, put, o) then return false end
    s:space()
    if not s:take "," and not s:ahead "]" then return false end
  end
end

function read_value(s, put, o)
  s:space()
  local c = s:peek()
  if c == 34 or c == 39 then
    s.pos = s.pos + 1
    return read_string(s, put, string.char(c))
  elseif c == 123 then
    s.pos = s.pos + 1
    return read_object(s, put, o)
  elseif c == 91 then
    s.pos = s.pos + 1
    return read_array(s, put, o)
  elseif c == nil then
    return false
  elseif o.quote and s:take(o.quote) then
    return read_marked(s, put, o)
  end
  return read_word(s, put, o)
end

--- Reads a value. Options: quote (a mark that quotes strings) and marks (scan.marks of it), bare
--- (strings need no quotes), is_text (function(key): is that member a string, whatever it looks
--- like?).
function values.read(s, put, options)
  local o = options or {}
  return read_value(s, put,
    { quote = o.quote, marks = o.marks, bare = o.bare, is_text = o.is_text, depth = 1 })
end

--- The JSON text of a string that holds exactly one value, or nil.
function values.parse(text)
  local found
  local s = scan.new(function(s)
    local value = collect(read_value, s, { depth = 1 })
    s:space()
    if value and not s:peek() then found = value end
  end, {})
  s:feed(text)
  s:finish()
  return found
end

--- Reads the next value and returns its JSON text, or nil.
function values.text(s)
  return collect(read_value, s, { depth = 1 })
end

--- Reads the next value (or key) if it is a string and returns it decoded, or nil. The common case
--- is cheap: the whole string has arrived and has no escapes.
function values.string(s, read)
  local _, last, plain = find(s.buf, '^"([^"\\%z\1-\31]*)"', s.pos)
  if last then
    s.pos = last + 1
    return utf8.len(plain) and plain or nil
  end
  local text = collect(read or read_value, s, { depth = 1 })
  local value = text and json.decode(text)
  return type(value) == "string" and value or nil
end

function values.key(s)
  return values.string(s, read_key)
end

return values
