-- json: the filter tojson: Python's json.dumps, character for character.
--
-- A value that came from JSON is written by C, and marked as a whole if it is not trusted; a large
-- one in pieces, between which the loop may turn.
-- Everything else is written here, in pieces, so that strings keep their marks.
local encode_in_pieces = require "lib.encode"
local perigee = require "perigee"
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local encode, null, kind, fail = perigee.json.encode, values.null, values.kind, values.fail

local json = {}

local function rest() values.rest(0) end

local MAX_DEPTH = 200

local function quoted(s, w)
  return strings.each_part(s, function(t)
    if not w.string.ascii and not t:find '[%c"\\]' then return t end
    return encode(t, w.string):sub(2, -2)
  end)
end

local function put(w, piece)
  w.n = w.n + 1
  w[w.n] = piece
end

local function put_string(w, s)
  put(w, '"')
  put(w, strings.unsafe(quoted(s, w)))
  put(w, '"')
end

local function put_line(w, depth)
  if not w.indent then return end
  w.bytes = w.bytes + #w.indent * depth
  if w.bytes > values.state.max_output then values.charge(w.bytes) end
  put(w, "\n" .. w.indent:rep(depth))
end

local put_value

local function put_list(w, v, depth)
  local n = #v
  if n == 0 then return put(w, "[]") end
  put(w, "[")
  for i = 1, n do
    if i > 1 then put(w, w.comma) end
    put_line(w, depth + 1)
    put_value(w, v[i], depth + 1)
  end
  put_line(w, depth)
  put(w, "]")
end

--- Keys that are not strings become text, as in Python.
local function key_text(k)
  if values.is_str(k) then return k end
  if type(k) == "boolean" then return k and "true" or "false" end
  if k == null then return "null" end
  if kind(k) == "int" then return type(k) == "table" and k.digits or tostring(k) end
  if type(k) == "number" then return encode(k) end
  fail("keys of a JSON object must be str, int, float, bool or None, not %s", values.typename(k))
end

local function sorted(keys)
  return operators.sort(table.move(keys, 1, #keys, 1, {}), operators.lt)
end

local function put_dict(w, v, depth)
  values.open(v)
  if #v.keys == 0 then return put(w, "{}") end
  put(w, "{")
  for i, k in ipairs(w.sort and sorted(v.keys) or v.keys) do
    if i > 1 then put(w, w.comma) end
    put_line(w, depth + 1)
    put_string(w, key_text(k))
    put(w, w.colon)
    put_value(w, v.map[values.hash(k)], depth + 1)
  end
  put_line(w, depth)
  put(w, "}")
end

local writers = {
  str = put_string,
  int = function(w, v) put(w, type(v) == "table" and v.digits or tostring(v)) end,
  float = function(w, v) put(w, encode(v)) end,
  bool = function(w, v) put(w, v and "true" or "false") end,
  none = function(w) put(w, "null") end,
  list = function(w, v, depth) put_list(w, values.opened(v), depth) end,
  tuple = put_list,
  dict = put_dict,
}

function put_value(w, v, depth)
  if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
  values.tick()
  local write = writers[kind(v)]
  if not write then fail("an object of type %s cannot be written as JSON", values.typename(v)) end
  write(w, v, depth)
end

--- The indentation of one level: a number of spaces, or a string.
local function indent_of(v)
  if v == nil or v == null then return nil end
  if type(v) == "boolean" then return v and " " or "" end
  if math.type(v) == "integer" then
    if v > 1000 then fail("indent must be at most 1000, got %d", v) end
    return (" "):rep(math.max(v, 0))
  end
  if not values.is_str(v) then
    fail("indent must be a number or a string, got %s", values.typename(v))
  end
  return strings.text(v)
end

local function separators_of(v, indent)
  if v == nil or v == null then return indent and "," or ", ", ": " end
  local pair = values.items(v)
  if #pair ~= 2 or not values.is_str(pair[1]) or not values.is_str(pair[2]) then
    fail "separators must be two strings"
  end
  return strings.text(pair[1]), strings.text(pair[2])
end

--- json.dumps(value, ensure_ascii, indent, separators, sort_keys)
function json.dumps(v, ascii, indent, separators, sort)
  local w = { n = 0, bytes = 0, indent = indent_of(indent),
    string = { ascii = ascii ~= nil and values.truth(ascii) },
    sort = sort ~= nil and values.truth(sort) }
  w.comma, w.colon = separators_of(separators, w.indent)
  if type(v) == "table" and not w.sort and not w.indent and (v.src or v.raw) then
    local out = encode_in_pieces(v.src or v.raw,
      { ascii = w.string.ascii, item_separator = w.comma, key_separator = w.colon }, rest)
    values.charge(#out)
    return v.doubt and strings.make(out, { 1, #out }) or out
  end
  put_value(w, v, 0)
  return strings.cat(w, w.n)
end

--- A JSON text as a value; if the text has marks, every string in it gets them.
function json.loads(s)
  if not values.is_str(s) then fail("JSON text expected, got %s", values.typename(s)) end
  local v, why = perigee.json.decode(strings.text(s), { digits = true })
  if why then fail("not valid JSON: %s", tostring(why)) end
  return values.wrap(v, type(s) == "table" and #s.marks > 0)
end

return json
