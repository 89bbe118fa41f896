-- args: arguments of calls. Values of JSON are streamed as they are read (see values.lua); texts of tagged formats are typed
-- by the tool's schema. A reader returns false where the text is not what it reads, or ends.
local perigee = require "perigee"
local scan = require "parsers.scan"
local values = require "parsers.values"

local sub = string.sub
local json = perigee.json
local escape, quote, strip = values.escape, values.quote, values.strip

local args = { NAME = scan.NAME, quote = quote, strip = strip }

-- ---- types ---------------------------------------------------------------------------------------------------------

local function field(value, key)
  if type(value) ~= "table" then return nil end
  local v = value[key]
  if v ~= json.null then return v end
end

local function each(list)
  return ipairs(type(list) == "table" and json.is_array(list) and list or {})
end

local function type_of(value)
  if value == json.null then return "null" end
  if type(value) == "number" then return math.type(value) == "integer" and "integer" or "number" end
  if type(value) == "table" then return json.is_array(value) and "array" or "object" end
  return type(value)
end

--- Names that schemas have for the types of JSON.
local TYPES = { str = "string", text = "string", char = "string", varchar = "string", enum = "string", int = "integer",
  int32 = "integer", int64 = "integer", long = "integer", float = "number", double = "number", decimal = "number",
  bool = "boolean", dict = "object", map = "object", list = "array", tuple = "array", none = "null" }

local function named_type(name)
  name = name:lower()
  return TYPES[name] or name
end

local types_of

local function union(list, o)
  local set
  for _, schema in each(list) do
    local some = types_of(schema, o)
    if not some then return nil end
    set = set or {}
    for name in pairs(some) do set[name] = true end
  end
  return set
end

local function resolve(ref, root)
  local at = root
  if type(ref) ~= "string" or sub(ref, 1, 2) ~= "#/" then return nil end
  for step in ref:sub(3):gmatch "[^/]+" do at = field(at, (step:gsub("~1", "/"):gsub("~0", "~"))) end
  return at
end

--- The set of types that a schema allows, or nil when it does not say (or is no schema). Bounded by o.steps, so that
--- schemas that refer to themselves end.
function types_of(schema, o)
  if type(schema) ~= "table" or o.steps == 0 then return nil end
  o.steps = o.steps - 1
  local named, set = field(schema, "type"), {}
  if type(named) == "string" then return { [named_type(named)] = true } end
  for _, name in each(named) do
    if type(name) == "string" then set[named_type(name)] = true end
  end
  if next(set) then return set end
  if field(schema, "$ref") ~= nil then return types_of(resolve(field(schema, "$ref"), o.root), o) end
  for _, value in each(field(schema, "enum")) do set[type_of(value)] = true end
  if next(set) then return set end
  if schema.const ~= nil then return { [type_of(schema.const)] = true } end
  local some = union(field(schema, "anyOf"), o) or union(field(schema, "oneOf"), o)
  if some then return some end
  for _, part in each(field(schema, "allOf")) do
    some = types_of(part, o)
    if some then return some end
  end
end

--- Is this set of types nothing but text (or null)?
function args.only_string(set)
  if not set or not set.string then return false end
  for name in pairs(set) do
    if name ~= "string" and name ~= "null" then return false end
  end
  return true
end

local Tools = {}
Tools.__index = Tools

--- What the parsers ask about tools. `list` is the request's, of any shape.
function args.tools(list)
  local t = setmetatable({ by_name = {}, found = {}, given = false }, Tools)
  for _, tool in each(list) do
    local f = field(tool, "function")
    f = type(f) == "table" and f or tool
    local name = field(f, "name")
    if type(name) == "string" then
      t.given = true
      t.by_name[name] = field(f, "parameters") or field(f, "input_schema") or false
    end
  end
  return t
end

--- Was this tool declared?
function Tools:known(name)
  return self.by_name[name] ~= nil
end

--- The properties of a schema, which may be a reference to the one that has them.
local function properties(schema)
  local at = schema
  for _ = 1, 8 do
    local found = field(at, "properties")
    if found then return found end
    at = resolve(field(at, "$ref"), schema)
  end
end

--- The types of a parameter, nil when nothing is said about it. Found once: a schema may be large.
function Tools:types(name, key)
  local schema = self.by_name[name]
  local property = field(properties(schema), key)
  if type(property) ~= "table" then return nil end
  local types = self.found[property]
  if types == nil then
    types = types_of(property, { steps = 100, root = schema }) or false
    self.found[property] = types
  end
  return types or nil
end

-- ---- texts of tagged formats ---------------------------------------------------------------------------------------

--- The type that JSON text has.
local function json_type(text)
  local c = sub(text, 1, 1)
  return c == '"' and "string" or c == "{" and "object" or c == "[" and "array" or text == "null" and "null"
    or (text == "true" or text == "false") and "boolean" or "number"
end

local function one_newline_less(text)
  text = text:gsub("^\r?\n", "", 1)
  return (text:gsub("\r?\n$", "", 1))
end

--- Is JSON of this kind what a schema with these types wants? Where text is allowed, too, only the other types it names.
local function fits(kind, set)
  if not set or not set.string then return true end
  return kind ~= "string" and (set[kind] or kind == "number" and set.integer)
end

--- JSON for a text that should be of one of these types (nil: unknown); what does not fit stays text.
local function convert(text, o)
  local set, bare = o.types, strip(text)
  if bare == "null" then return "null" end
  if set and set.boolean and (bare:lower() == "true" or bare:lower() == "false") then return bare:lower() end
  local value = bare ~= "" and sub(bare, 1, 1) ~= "'" and values.parse(bare)
  if value and fits(json_type(value), set) then return value end
  return quote(o.trim and one_newline_less(text) or text)
end

local LEAD = 16 -- as long as a text can still be a null in white space, it is held

--- Text up to a mark as a JSON string, written as it comes. With o.trim one newline at either end is dropped, and the
--- word null is null.
local function stream_string(s, put, o)
  local lead, tail = "", ""
  local function body(text)
    text = tail .. text
    tail = ""
    if o.trim then
      local keep = text:match "\r?\n$" or text:match "\r$" or ""
      text, tail = sub(text, 1, #text - #keep), keep
    end
    if text ~= "" then put(escape(text)) end
  end
  local function begin()
    put '"'
    local text = lead
    lead = nil
    if o.trim then text = text:gsub("^\r?\n", "", 1) end
    if text ~= "" then body(text) end
  end
  local mark = s:upto(o.close, function(text)
    if not lead then return body(text) end
    lead = lead .. text
    if #lead > LEAD or not o.trim then begin() end
  end)
  if not mark then return false end
  if lead and o.trim and strip(lead) == "null" then
    put "null"
    return mark
  end
  if lead then begin() end
  if tail == "\r" then put "\\r" end
  put '"'
  return mark
end

--- One parameter of a tagged call, up to the mark that closes its value, which is returned: `"key": value`. Options: key,
--- types (a set or nil), close (marks), trim, unknown ("string": a value without a type is text; else what it looks like).
function args.parameter(s, put, o)
  put(quote(o.key) .. ": ")
  if args.only_string(o.types) or not o.types and o.unknown == "string" then return stream_string(s, put, o) end
  local text, mark = s:field(o.close)
  if not text then return false end
  put(convert(text, o))
  return mark
end

-- ---- calls ---------------------------------------------------------------------------------------------------------

local Call = {}
Call.__index = Call

--- A call whose parameters come one by one.
function args.begin(s, name)
  s.events:call(name)
  return setmetatable({ events = s.events, name = name, count = 0, seen = {} }, Call)
end

function Call:put(text)
  self.events:text("arguments", text)
end

--- Before each parameter.
function Call:next()
  self:put(self.count == 0 and "{" or ", ")
  self.count = self.count + 1
end

function Call:finish()
  self:put(self.count == 0 and "{}" or "}")
  self.events:close()
end

--- A call whose arguments are JSON text that is known already.
function args.whole(s, name, text)
  s.events:call(name)
  s.events:text("arguments", text)
  s.events:close()
end

--- A call whose arguments are the value that comes next.
function args.streamed(s, name, options)
  local events = s.events
  events:call(name)
  if not values.read(s, function(text) events:text("arguments", text) end, options) then return false end
  events:close()
  return true
end

--- Arguments that were given as text in JSON: the value in it, if it is an object.
local function unquote(text)
  local inner = json.decode(text)
  if type(inner) ~= "string" then return text end
  if strip(inner) == "" then return "{}" end
  local value = values.parse(inner)
  return value and sub(value, 1, 1) == "{" and value or text
end

local NAMES = { name = "name", ["function"] = "name", type = "type", arguments = "arguments", parameters = "arguments",
  id = "other" }

--- Arguments in a call object: streamed when the name is known and they are an object; else as text.
local function read_arguments(s, call)
  s:space()
  local c = s:peek()
  if call.name and c ~= 34 and c ~= 39 and c ~= 110 and c ~= 78 then
    call.open = true
    return args.streamed(s, call.name)
  end
  local text = values.text(s)
  if not text then return false end
  call.arguments = text == "null" and "{}" or (c == 34 or c == 39) and unquote(text) or text
  return true
end

local function read_member(s, call)
  local key = values.key(s)
  if not key then return false end
  s:space()
  if not s:take ":" then return false end
  s:space()
  key = NAMES[key]
  if key == nil and call.strict then return false end
  call.more = call.more or key == nil
  if key == "arguments" and not call.open and not call.arguments then return read_arguments(s, call) end
  if key == "name" and not call.inner and s:ahead "{" then
    call.inner = true
    return call:members(s)
  end
  if (key == "name" or key == "type") and not call[key] then
    call[key] = values.string(s)
    if key == "name" and call.known and s.tools.given and not s.tools:known(call.name) then return false end
    return call[key] ~= nil and call[key] ~= ""
  end
  return values.text(s) ~= nil
end

--- The last bracket is missing, before a mark or at the end of the text: nothing is lost with it where the call is whole.
local function ends_early(s, call)
  local c = s:peek()
  return (call.open or call.name and call.arguments) and (not c or c == 60 and not call.strict)
end

local function read_members(call, s)
  if not s:take "{" then return false end
  while true do
    s:space()
    if s:take "}" then return true end
    if not read_member(s, call) then return false end
    s:space()
    if not s:take "," and not s:ahead "}" then return ends_early(s, call) end
  end
end

--- A call as a JSON object: {"name": …, "arguments": {…}}; without arguments it must not have keys that calls do not have,
--- for what they say would be lost. Options: bare (it stands in plain text, so it must have arguments and no such keys),
--- known (its tool must be declared, where tools are).
function args.object(s, options)
  local bare = options and options.bare
  local call = { strict = bare, known = options and options.known, members = read_members }
  if not read_members(call, s) then return false end
  if call.open then return true end
  local name = call.name or call.type ~= "function" and call.type
  if not name or (bare or call.more) and not call.arguments then return false end
  args.whole(s, name, call.arguments or "{}")
  return true
end

--- A JSON array of calls; each that is complete stays one. Options: as object's, and inside (its bracket was read).
function args.array(s, options)
  if not (options and options.inside) and not s:take "[" then return false end
  repeat
    s:space()
    if not args.object(s, options) then return false end
    s:commit()
    s:space()
  until not s:take ","
  return s:take "]"
end

local SEPARATORS = { ";", "," }

--- Calls in JSON: an array of them, or objects one after another. Options: as object's.
function args.calls(s, options)
  if s:ahead "[" then return args.array(s, options) end
  local gap
  repeat
    if not args.object(s, options) then return false end
    s:commit()
    gap = s:gap()
    local mark = s:one_of(SEPARATORS)
    if mark then gap = gap .. mark .. s:gap() end
  until not s:ahead "{"
  s.content:text(gap)
  return true
end

--- Calls in JSON behind an opening mark, as a handler; the closing mark may follow (see tagged.close).
function args.wrapped(s)
  s:space()
  if not args.calls(s) then return false end
  s.wrapper = true
  return true
end

--- key=value, … ) behind the opening bracket of a call as Python writes it.
function args.keywords(s, name)
  local call
  s:space()
  if s:take ")" then
    args.begin(s, name):finish()
    return true
  end
  repeat
    s:space()
    local key = s:word "^[%w_]*"
    if not key or key == "" then return false end
    s:space()
    if not s:take "=" then return false end
    call = call or args.begin(s, name)
    call:next()
    call:put(quote(key) .. ": ")
    if not values.read(s, function(text) call:put(text) end) then return false end
    s:space()
    if s:take ")" then
      call:finish()
      return true
    end
    if not s:take "," then return false end
    s:space()
  until s:take ")"
  call:finish()
  return true
end

--- Arguments that stand alone between marks: JSON that is streamed; when that turns out to be broken, its text as a JSON
--- string, so that the caller sees what was written; nothing at all is no arguments. Options: ends (a list), marks
--- (scan.marks of it), soft (set of marks that end a broken one as unfinished). Reads over the end mark and returns it;
--- true at the end of the text; false when unfinished.
function args.between(s, name, options)
  local from = s:held_bytes()
  local first = s.events.calls + 1
  if args.streamed(s, name) then
    s:space()
    local mark = s:one_of(options.ends)
    if mark or not s:peek() then return mark or true end
  end
  s.events:drop(first)
  if s.starved then return false end
  local mark = s:upto(options.marks, function() end)
  if not mark then return false end
  if options.soft and options.soft[mark] then
    s:back(mark)
    return false
  end
  local text = strip(sub(s:held_text(), from + 1, -#mark - 1))
  args.whole(s, name, text == "" and "{}" or quote(text))
  return mark
end

return args
