-- shape: what the calls of a format look like, as rules of a grammar (perigee.grammar). What the
-- rules allow the format's parser reads back as a call of one of the tools, with arguments that the
-- tool declares and its schema accepts.
--
-- A page in tools/ has grammar = function(s), which describes its calls with the helpers below:
--
--   mark      the text that begins a call, or several (nil: nothing marks it)
--   lead      symbols before the mark, where an answer is made to begin with a call
--   before    symbols between the mark and the call
--   call      a rule: the call itself, of any tool
--   after     symbols after it
--   gap       symbols between two calls
--   section   one mark, `before` and `after` enclose all calls
--   other     symbols that may come after the mark where no call follows
--
-- Marks that are tokens of the vocabulary become symbols of these; the same text in other tokens is
-- no mark. A format whose templates differ looks at s:shows.
local args = require "parsers.args"
local grammar = require "grammar"
local object_rules = require "grammar.object_rules"
local parameters = require "grammar.parameters"
local perigee = require "perigee"
local scalar = require "grammar.scalar"
local json = perigee.json
local define = grammar.define

local shape = {}

local Shape = {}
Shape.__index = Shape

local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

--- A shape in a builder. o: tools ({ { name, schema (nil: any arguments), or the text of a custom
--- tool (grammar/input.lua) } }), template (its text), token (function(text): the id of an added
--- token, or nil), ends (a set of the ids that end an answer), known (parsers.known of the tools),
--- pause and refuse (function(tool, err): raises if a schema or text that cannot be followed must
--- be; otherwise what cannot be followed of a schema is left out, and a text is any).
function shape.new(b, o)
  return setmetatable({ b = b, o = o, tools = o.tools, any = {},
    known = o.known or args.tools() }, Shape)
end

function Shape:text(text) return self.b:text(text) end

--- The symbol of a mark.
function Shape:mark(text)
  local id = self.o.token and self.o.token(text)
  return id and self.b:token(id) or self.b:text(text)
end

--- The symbols of a mark at the end of a call: none if it ends the answer anyway.
function Shape:finish(text)
  local id = self.o.token and self.o.token(text)
  if id and self.o.ends and self.o.ends[id] then return {} end
  return { self:mark(text) }
end

--- The symbols of any text up to a mark, and the mark.
function Shape:upto(text)
  local b = self.b
  local any = b:pattern "[\\s\\S]*"
  if not (self.o.token and self.o.token(text)) then
    any = b:both(any, b:except(self:having(b:text(text))))
  end
  return any, self:mark(text)
end

--- A term of the texts that contain one of these terms.
function Shape:having(...)
  local b = self.b
  local all = b:except(b:any {}) -- all bytes, not characters: it absorbs what else may follow
  return b:cat(all, b:any(...), all)
end

--- Is this text in the model's template?
function Shape:shows(text)
  return self.o.template ~= nil and self.o.template:find(text, 1, true) ~= nil
end

--- A rule with an alternative for each tool: the symbols that fn(tool) gives.
function Shape:each(fn)
  local alternatives = {}
  for i, tool in ipairs(self.tools) do alternatives[i] = fn(tool) end
  return define(self.b, "call", alternatives)
end

local OBJECT = json.object { { "type", "object" } }

--- Keywords by which a schema may have names that its properties do not.
local NAMING = { "additionalProperties", "unevaluatedProperties", "patternProperties",
  "propertyNames", "minProperties", "allOf", "anyOf", "oneOf", "not", "if", "$ref", "$dynamicRef",
  "$recursiveRef", "dependentSchemas", "dependencies", "dependentRequired" }

--- A tool's schema with the names that it declares and no others, if it says nothing of others: by
--- the standard a call may have any, but no tool has a use for names that a model made up, and a
--- small model makes up one after the other.
local function declared(schema)
  if not json.is_object(schema) or not json.is_object(schema.properties) then return schema end
  for _, keyword in ipairs(NAMING) do
    if schema[keyword] ~= nil then return schema end
  end
  for _, name in ipairs(json.is_array(schema.required) and schema.required or {}) do
    if schema.properties[name] == nil then return schema end
  end
  local out = json.object {}
  for key, value in pairs(schema) do out[key] = value end
  out.additionalProperties = false
  return out
end

--- The rule of a custom tool's arguments; nil if its text cannot be held to its grammar.
local function text_argument(self, tool, style)
  local b = self.b
  local symbols, why = (style or parameters).text(b, tool.text, self.o.job)
  if symbols then return define(b, "input", { symbols }) end
  if self.o.refuse then self.o.refuse(tool, why) end
end

--- The rule of a tool's schema; nil if there is none. What cannot be followed is left out if that
--- is not refused.
local function schema_arguments(self, tool, o)
  o.pause, o.job = self.o.pause, self.o.job
  o.order = "free" -- models write arguments in their own order
  o.style = o.style or object_rules.JSON -- objects, also where the schema forgets to say so
  local schema = declared(tool.schema)
  local rule, why = grammar.rule(self.b, schema, o)
  if rule then return rule end
  if self.o.refuse then self.o.refuse(tool, why) end
  o.relax = true
  return (grammar.rule(self.b, schema, o))
end

--- The rule of arguments. key: of those that are any. make(any): the options of grammar.rule.
local function arguments(self, tool, key, make)
  if tool.text then
    local rule = text_argument(self, tool, make(false).style)
    if rule then return rule end
  elseif tool.schema then
    local rule = schema_arguments(self, tool, make(false))
    if rule then return rule end
  end
  if not self.any[key] then
    local rule, why = grammar.rule(self.b, OBJECT, make(true))
    if not rule then error(why, 0) end -- the builder is full
    self.any[key] = rule
  end
  return self.any[key]
end

--- The arguments of a tool as a JSON object.
function Shape:object(tool)
  return arguments(self, tool, "object", function() return {} end)
end

--- {"name": NAME, "arguments": {…}}; key: what the arguments are called.
function Shape:json(tool, key)
  return { self:text(('{"name": "%s", "%s": '):format(tool.name, key)), self:object(tool),
    self:text "}" }
end

--- Calls in JSON, for `call`.
function Shape:json_call(key)
  return self:each(function(tool) return self:json(tool, key) end)
end

-- ---- arguments that are not JSON ----------------------------------------------------------------

--- How the parser reads the value of a name: see grammar/parameters.lua.
local function reading(self, tool, unknown)
  return function(name)
    local types = name and self.known:types(tool.name, name)
    if not types then return unknown == "string" and "text" or "json" end
    if args.only_string(types) then return "text" end
    return types.string and "either" or "json", types
  end
end

local function as_text() return "text" end

--- A string of JSON in which no tag is closed.
local UNTAGGED = "(?:[^<]|<+[^</])*<*"
-- Texts that do not include a line end before or after them.
local INSIDE_LINE, BEFORE_LINE = "(?:[^\\r\\n](?:[\\s\\S]*[^\\r\\n])?)?", "(?:[\\s\\S]*[^\\r])?"
local NAMES = '^[^<>%c%s"\\]+$'

--- Parameters in tags. f: key (two texts around a name), value_end, line (the white space around a
--- value, if it has some), stray (a term that also ends a value), trim (the parser drops a line end
--- at either side, and null is null), unknown (as in parsers/tagged.lua), close (symbols).
function Shape:tags(tool, f)
  local b, line = self.b, f.line or ""
  local ended = self:having(b:text(f.value_end), f.stray or b:any {})
  local null = b:pattern "\\s*null\\s*"
  return arguments(self, tool, "tags", function(any)
    return { style = parameters.style { open = {}, close = f.close or {}, between = {},
      key = function(term) return { b:cat(b:text(f.key[1]), term, b:text(f.key[2] .. line)) } end,
      after = { b:text(line .. f.value_end .. "\n") }, names = NAMES,
      reads = any and as_text or reading(self, tool, f.unknown), null = f.trim,
      only = f.trim and b:pattern(line == "" and INSIDE_LINE or BEFORE_LINE) or nil,
      never = f.trim and not any and b:any(ended, null) or ended,
      bare = b:pattern(UNTAGGED, { json = true }) } }
  end)
end

--- key=value, … as in Python.
function Shape:keywords(tool)
  local b = self.b
  return arguments(self, tool, "keywords", function()
    return { style = parameters.style { open = {}, close = {}, between = { b:text ", " },
      key = function(term) return { b:cat(b:both(term, b:pattern "\\w+"), b:text "=") } end,
      after = {}, names = "^[%w_]+$", reads = function() return "json" end,
      spelling = scalar.PYTHON } }
  end)
end

--- {key:value,…} with strings between a mark.
function Shape:marked(tool, quote)
  local b = self.b
  return arguments(self, tool, "marked", function()
    return { style = parameters.style { open = { b:text "{" }, close = { b:text "}" },
      between = { b:text "," }, key = function(term) return { b:cat(term, b:text ":") } end,
      after = {}, names = "^[%w_.%-]+$", reads = function() return "quoted" end,
      quote = self:mark(quote), never = self:having(b:text(quote)) } }
  end)
end

-- ---- all calls ----------------------------------------------------------------------------------

--- one, or with `parallel` one or more with gaps between them.
local function several(b, one, gap, parallel)
  local list = define(b, "calls", { { one } })
  local again = parallel and { joined({ list }, gap or {}, { one }) } or {}
  local _, why = b:define(list, again)
  if why then error(why, 0) end
  return list
end

--- The rules of a page's description: whole, of an answer that is calls; rest, of what comes after
--- a mark, up to the end of the call or section; marks, a list of texts. parallel: more than one
--- call may come.
function shape.rules(s, d, parallel)
  local b = s.b
  local marks = type(d.mark) == "string" and { d.mark } or d.mark or {}
  local begin = joined(d.lead or {}, marks[1] and { s:mark(marks[1]) } or {}, d.before or {})
  local out = { marks = marks }
  if d.section then
    local list = several(b, d.call, d.gap, parallel)
    out.whole = define(b, "answer", { joined(begin, { list }, d.after or {}) })
    out.rest = define(b, "rest", { joined(d.before or {}, { list }, d.after or {}), d.other })
  else
    local unit = define(b, "unit", { joined(begin, { d.call }, d.after or {}) })
    out.whole = several(b, unit, d.gap, parallel)
    out.rest = define(b, "rest", { joined(d.before or {}, { d.call }, d.after or {}), d.other })
  end
  return out
end

return shape
