-- args: the arguments of calls. JSON values are streamed as they are read (values.lua); the texts
-- of tagged formats get their types from the tool's schema. Every reader returns false if the text
-- is not what it reads, or if the answer ends.
local perigee = require "perigee"
local resolve = require "grammar.resolve"
local scan = require "parsers.scan"
local values = require "parsers.values"

local sub = string.sub
local json = perigee.json
local escape, quote, strip = values.escape, values.quote, values.strip

local args = { NAME = scan.NAME, quote = quote, strip = strip }

-- ---- types --------------------------------------------------------------------------------------

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

--- Type names that occur in tool schemas, and the JSON types they mean.
local TYPES = { str = "string", text = "string", char = "string", varchar = "string",
  enum = "string", int = "integer", int32 = "integer", int64 = "integer", long = "integer",
  float = "number", double = "number", decimal = "number", bool = "boolean", dict = "object",
  map = "object", list = "array", tuple = "array", none = "null" }

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

--- The schema that a $ref of a document means; nil if there is none.
local function referred(ref, document)
  if type(ref) ~= "string" then return nil end
  local ok, place = pcall(resolve.find, document, document, ref)
  if ok then return place.raw end
  document.names = document.names or {} -- it was too large to search: once is enough
end

local STEPS = 100 -- schemas that a walk looks at: one may refer to itself

--- The set of types that a schema allows, nil if it does not restrict them (or is not a schema).
--- o.steps bounds the walk.
function types_of(schema, o)
  if type(schema) ~= "table" or o.steps == 0 then return nil end
  o.steps = o.steps - 1
  local named, set = field(schema, "type"), {}
  if type(named) == "string" then return { [named_type(named)] = true } end
  for _, name in each(named) do
    if type(name) == "string" then set[named_type(name)] = true end
  end
  if next(set) then return set end
  if field(schema, "$ref") ~= nil then
    return types_of(referred(field(schema, "$ref"), o.document), o)
  end
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

--- Does this set of types allow nothing but strings (or null)?
function args.only_string(set)
  if not set or not set.string then return false end
  for name in pairs(set) do
    if name ~= "string" and name ~= "null" then return false end
  end
  return true
end

local Tools = {}
Tools.__index = Tools

--- The declared tools, as parsers look them up. `list` is the request's and may have any shape;
--- allowed: a set of the names that may be called (nil: all), the others are as if not declared.
function args.tools(list, allowed)
  local t = setmetatable({ by_name = {}, found = {}, given = false, limited = allowed ~= nil },
    Tools)
  for _, tool in each(list) do
    local f = field(tool, "function")
    f = type(f) == "table" and f or tool
    local name = field(f, "name")
    t.given = t.given or type(name) == "string"
    if type(name) == "string" and not (allowed and not allowed[name]) then
      t.by_name[name] = field(f, "parameters") or field(f, "input_schema") or false
    end
  end
  return t
end

--- Was this tool declared?
function Tools:known(name)
  return self.by_name[name] ~= nil
end

local declared

--- All types that the branches of a schema, of which one counts, declare for a parameter; nil if
--- none does.
local function declared_by_branches(schema, key, o)
  local set
  local function add(branch)
    for name in pairs(declared(branch, key, o) or {}) do
      set = set or {}
      set[name] = true
    end
  end
  for _, keyword in ipairs { "anyOf", "oneOf" } do
    for _, branch in each(field(schema, keyword)) do add(branch) end
  end
  add(field(schema, "then"))
  add(field(schema, "else"))
  return set
end

--- The types of a parameter where a schema declares it: in properties, else where $ref and allOf
--- lead, else in its branches. o.steps bounds the walk.
function declared(schema, key, o)
  if type(schema) ~= "table" or o.steps == 0 then return nil end
  o.steps = o.steps - 1
  local property = field(field(schema, "properties"), key)
  local found = type(property) == "table"
    and types_of(property, { steps = STEPS, document = o.document })
    or declared(referred(field(schema, "$ref"), o.document), key, o)
  if found then return found end
  for _, part in each(field(schema, "allOf")) do
    found = declared(part, key, o)
    if found then return found end
  end
  return declared_by_branches(schema, key, o)
end

--- The types of a parameter, nil if the schema does not restrict them. Cached: a schema may be
--- large.
function Tools:types(name, key)
  local schema = self.by_name[name]
  if not schema then return nil end
  local known = self.found[schema]
  if not known then
    known = { document = resolve.document(schema), types = {} }
    self.found[schema] = known
  end
  local types = known.types
  if types[key] == nil then
    types[key] = declared(schema, key, { steps = STEPS, document = known.document }) or false
  end
  return types[key] or nil
end

-- ---- texts of tagged formats --------------------------------------------------------------------

--- The type of a JSON text.
local function json_type(text)
  local c = sub(text, 1, 1)
  if c == '"' then return "string" end
  if c == "{" then return "object" end
  if c == "[" then return "array" end
  if text == "null" then return "null" end
  return (text == "true" or text == "false") and "boolean" or "number"
end

local function one_newline_less(text)
  text = text:gsub("^\r?\n", "", 1)
  return (text:gsub("\r?\n$", "", 1))
end

--- Does a schema with these types accept JSON of this kind? If it also allows strings, only the
--- other types that it names.
local function fits(kind, set)
  if not set or not set.string then return true end
  return kind ~= "string" and (set[kind] or kind == "number" and set.integer)
end

--- JSON for a text that should have one of these types (nil: unknown). If it does not fit it stays
--- a string.
local function convert(text, o)
  local set, bare = o.types, strip(text)
  if bare == "null" then return "null" end
  if set and set.boolean and (bare:lower() == "true" or bare:lower() == "false") then
    return bare:lower()
  end
  local value = bare ~= "" and sub(bare, 1, 1) ~= "'" and values.parse(bare)
  if value and fits(json_type(value), set) then return value end
  return quote(o.trim and one_newline_less(text) or text)
end

local LEAD = 16 -- bytes held while the text may still be null with white space around it

--- Streams the text up to a mark as a JSON string. With o.trim, one newline is dropped at each end
--- and the word null is null.
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

--- Reads one parameter of a tagged call and writes it as `"key": value`; returns the mark that
--- closed the value. Options: key, types (a set or nil), close (marks), trim, unknown ("string": a
--- value of undeclared type is a string; otherwise it is what it looks like).
function args.parameter(s, put, o)
  put(quote(o.key) .. ": ")
  if args.only_string(o.types) or not o.types and o.unknown == "string" then
    return stream_string(s, put, o)
  end
  local text, mark = s:field(o.close)
  if not text then return false end
  put(convert(text, o))
  return mark
end

-- ---- calls --------------------------------------------------------------------------------------

local Call = {}
Call.__index = Call

--- Begins a call whose parameters are written one by one.
function args.begin(s, name)
  s.events:call(name)
  return setmetatable({ events = s.events, count = 0 }, Call)
end

function Call:put(text)
  self.events:text("arguments", text)
end

--- Goes before each parameter.
function Call:next()
  self:put(self.count == 0 and "{" or ", ")
  self.count = self.count + 1
end

function Call:finish()
  self:put(self.count == 0 and "{}" or "}")
  self.events:close()
end

--- Emits a call whose arguments are complete JSON text.
function args.whole(s, name, text)
  s.events:call(name)
  s.events:text("arguments", text)
  s.events:close()
end

--- Emits a call whose arguments are the next value, as it is read. Options: see values.read.
function args.streamed(s, name, options)
  local events = s.events
  events:call(name)
  if not values.read(s, function(text) events:text("arguments", text) end, options) then
    return false
  end
  events:close()
  return true
end

--- Arguments that are JSON inside a JSON string: the object in it, or the string itself.
local function unquote(text)
  local inner = json.decode(text)
  if type(inner) ~= "string" then return text end
  if strip(inner) == "" then return "{}" end
  local value = values.parse(inner)
  return value and sub(value, 1, 1) == "{" and value or text
end

local NAMES = { name = "name", ["function"] = "name", type = "type", arguments = "arguments",
  parameters = "arguments", id = "other" }

--- The arguments in a call object: streamed if the name came before them, collected otherwise.
local function read_arguments(s, call)
  s:space()
  local c = s:peek()
  if call.name and c ~= 34 and c ~= 39 and c ~= 110 and c ~= 78 then -- not " ' null None
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
  if key == "arguments" and not call.open and not call.arguments then
    return read_arguments(s, call)
  end
  if key == "name" and not call.inner and s:ahead "{" then
    call.inner = true
    return call:members(s)
  end
  if (key == "name" or key == "type") and not call[key] then
    call[key] = values.string(s)
    if key == "name" and s.tools.given and (call.known or s.tools.limited)
      and not s.tools:known(call.name) then
      return false
    end
    return call[key] ~= nil and call[key] ~= ""
  end
  return values.text(s) ~= nil
end

--- The last bracket is missing, before a mark or at the end. That is forgiven if the call is
--- complete.
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

--- A call as a JSON object: {"name": …, "arguments": {…}}. Without arguments it may have only the
--- keys of a call, because the values of others would be lost. Options: bare (it stands in plain
--- text, so it must have arguments and only the keys of a call), known (if tools are declared, it
--- must be one of them).
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

--- A JSON array of calls; each complete one is committed. Options: those of `object`, and inside
--- (the opening bracket has been read).
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

--- Calls in JSON: an array, or a sequence of objects. Options: those of `object`.
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

--- A handler: calls in JSON after an opening mark. A closing mark may follow (tagged.close).
function args.wrapped(s)
  s:space()
  if not args.calls(s) then return false end
  s.wrapper = true
  return true
end

--- key=value, …) after the opening parenthesis of a call in Python's syntax.
function args.keywords(s, name)
  local call
  s:space()
  if s:take ")" then
    args.begin(s, name):finish()
    return true
  end
  repeat
    s:space()
    local key = s:name "^[%w_]*"
    if not key then return false end
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

--- Arguments between marks, as streamed JSON. Broken JSON is passed on as a JSON string, so that
--- the client sees what the model wrote; empty text means no arguments. Options: ends (a list),
--- marks (scan.marks of it), soft (a set of marks after which broken arguments are unfinished).
--- Returns the end mark, which has been read; true at the end of the answer; false if unfinished.
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
