-- grammar: JSON schemas as grammars (perigee.grammar).
--
--   local g, err = grammar.schema(json.decode(text, { digits = true }), { whitespace = "compact" })
--   local rule, err = grammar.rule(b, schema)     -- in a grammar with other rules
--
-- Everything a schema says is followed, or it is refused with the keyword and its place: nothing is
-- dropped unless that is asked for, because a client that gave a bound relies on it. The exception
-- is a name that an object has twice (object_rules.lua). Drafts 4 to 2020-12 are read. Names of
-- unknown keywords and formats are annotations, as the standard has it.
--
-- Options:
--   whitespace   "default": nothing, a space, or a line end with up to 64 blanks between two parts;
--                "any": up to 256 characters; "compact": none. Never without a bound: a model that
--                may write a blank after a blank may do so for ever
--   order        of the members of an object: "schema" (default), "any", or "free": any where that
--                can be enforced
--   strict       refuse what OpenAI's strict mode refuses
--   relax        leave out keywords that cannot be followed, and only those (relax.lua)
--   pause        a function that is called now and then, for a conversion that shares its thread:
--                every few ms
--   job          as of search.lua: what may take long goes to a helper thread
--   style        of a schema whose values are objects only: how their members are written
--                (parameters.lua, or object_rules.JSON)
--
-- A schema may also be a part of a larger grammar: grammar.rule writes it into a builder.
--
-- Errors have the code format (no schema), unsupported, unsatisfiable or limit.
local failure = require "grammar.failure"
local read = require "grammar.read"
local relax = require "grammar.relax"
local strict = require "grammar.strict"
local value = require "grammar.value"
local perigee = require "perigee"

local grammar = {}

-- Steps of a conversion: some µs each, so that the longest takes about a second.
local FUEL = 400000
local PAUSE = 10 -- steps between two pauses: some are of a hundred schemas, and take 0.1 ms

local WHITESPACE = { default = "(?: |\\r?\\n[ \\t]{0,64})?", any = "[ \\t\\r\\n]{0,256}",
  compact = "" }

--- Counts work; lets others run, and looks whether the builder is full: it says so only when it is
--- asked. A step is a schema that is looked at; loops over the values or names of one schema spend
--- GLANCE (read.lua) for each. place(): where the conversion is.
local function meter(b, pause, place)
  local spent, since, none = 0, 0, b:any {}
  return function(n)
    spent, since = spent + n, since + n
    if spent > FUEL then
      failure.raise("limit", "", "takes %d steps or more to convert, the limit is %d",
        spent // 1, FUEL)
    end
    if since < PAUSE then return end
    since = 0
    local _, why = b:empty(none)
    if why then failure.raise(why.code, place(), "%s", why.message) end
    if pause then pause() end
  end
end

--- What stands between values.
local function marks_of(b, whitespace)
  local blank = failure.checked(b:pattern(WHITESPACE[whitespace]))
  local function around(text) return b:cat(blank, b:text(text), blank) end
  return {
    comma = around ",", colon = around ":",
    open_object = b:cat(b:text "{", blank), open_array = b:cat(b:text "[", blank),
    close_empty = b:text "}", close_empty_array = b:text "]",
    close_object = b:cat(blank, b:text "}"), close_array = b:cat(blank, b:text "]"),
  }
end

local ORDERS = { schema = true, any = true, free = true }

local function convert(b, schema, options)
  local reader
  local spend = meter(b, options.pause, function() return reader and reader.last or "" end)
  reader = read.new(schema, spend, options.relax)
  if options.strict then
    function reader.check(node) strict.check(node, reader.root) end
  end
  local c = value.new(b, reader, marks_of(b, options.whitespace or "default"), options, spend)
  if options.relax then
    function reader.check(node) relax.check(c, node) end
  end
  return c:run(options.style)
end

--- Writes a decoded schema into a grammar that is being made: its rule; or nil and an error. Decode
--- with `digits`, so that integers beyond 64 bits keep theirs.
function grammar.rule(b, schema, options)
  options = options or {}
  assert(WHITESPACE[options.whitespace or "default"], "whitespace: default, any or compact")
  assert(ORDERS[options.order or "schema"], "order: schema, any or free")
  local ok, root = pcall(convert, b, schema, options)
  if ok then return root end
  if not failure.is(root) then error(root, 0) end
  return nil, perigee.error(root.code, root.message)
end

--- A rule of a builder with these alternatives; raises its error if it is full.
function grammar.define(b, name, alternatives)
  local rule, why = b:rule(name)
  if rule then why = select(2, b:define(rule, alternatives)) end
  if why then error(why, 0) end
  return rule
end

--- The grammar of a decoded schema; or nil and an error.
function grammar.schema(schema, options)
  local b, why = perigee.grammar.builder()
  if not b then return nil, why end
  local root
  root, why = grammar.rule(b, schema, options)
  if not root then return nil, why end
  return b:compile(root)
end

return grammar
