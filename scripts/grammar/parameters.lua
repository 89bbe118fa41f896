-- parameters: the members of an object as the formats of tool calls write them that have no JSON
-- object for it: as tags, or as keywords of a call.
--
--   <parameter=port>\nBrest\n</parameter>     days=3, metric=True     port:<|"|>Brest<|"|>,days:3
--
-- A value is JSON, but a string may be raw text up to a mark. A reader of such text knows from the
-- types of the schema what it has before it, so whoever makes a style says for each name how that
-- reads:
--
--   "json"     always JSON
--   "text"     always a string
--   "either"   JSON if it is of one of the other types that the schema names, else a string; and a
--              set of the names of all of them
--   "quoted"   a string between marks, or JSON
--
-- parameters.style { … } makes a style for grammar.rule of
--
--   open, close    lists of symbols around all members; between: the symbols between two
--   key            function(term): the symbols from a name to its value
--   after          the symbols after a value
--   names          a Lua pattern of the names that can be written
--   reads          function(name): as above; name is nil for those that the schema does not declare
--   quote          the symbol around a quoted string
--   never          a term of raw texts that would be read as something else; only: a term that all
--                  of them are of (nil: any)
--   null           the raw text null is null
--   bare           a term of what may stand between the quotes of JSON's strings (nil: everything)
--   spelling       of null, true and false (scalar.lua)
local failure = require "grammar.failure"
local input = require "grammar.input"
local scalar = require "grammar.scalar"

local parameters = {}

--- Names that a schema does not declare: of these characters, which no format reads as a mark.
local OTHER = "[A-Za-z0-9_-]{1,64}"

local NUMBER = "-?(?:0|[1-9][0-9]*)(?:\\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"

-- Texts that a reader of "either" takes for a value of each type: in JSON or in Python. Of arrays
-- and objects those that begin like one.
local LOOKS = { null = "None", boolean = "(?i:true|false)", number = NUMBER, integer = NUMBER,
  array = "\\[[\\s\\S]*", object = "\\{[\\s\\S]*" }

--- The term of raw texts that are read as something else than a string, of these types. The word
--- null is null, whatever they are.
local function unlike_strings(b, types)
  local list = { "null" }
  for name in pairs(types) do list[#list + 1] = LOOKS[name] end
  table.sort(list) -- the same grammar every time
  local text = "\\s*(?:" .. table.concat(list, "|") .. ")\\s*"
  return failure.checked(b:pattern(text))
end

local function rule_of(c, alternatives)
  if #alternatives == 1 then return alternatives[1] end
  local rule = c:rule "value"
  c:define(rule, alternatives)
  return { rule }
end

--- The texts of a term that can be written raw.
local function writable(b, term, given)
  if given.only then term = b:both(term, given.only) end
  return b:both(term, b:except(given.never))
end

--- The raw strings of a value, but not those of `unlike`; nil if there are none.
local function raw_of(c, value, given, unlike)
  local set = c:fold(c.raw, value.literals)
  if c.raw:is_none(set) then return nil end
  local term = writable(c.b, c.b:both(set.said, c.raw_words.plain), given)
  if unlike then term = c.b:both(term, c.b:except(unlike)) end
  return not c:empty(term) and term or nil
end

local function has_null(c, value)
  return c:fold(scalar.word, value.literals) & scalar.NULL ~= 0
end

local readings = {}

function readings.json(c, value, _, out) out[1] = { c:symbol(value) } end

function readings.text(c, value, given, out)
  local raw = raw_of(c, value, given)
  if raw then out[#out + 1] = { raw } end
  if given.null and has_null(c, value) then out[#out + 1] = { c.b:text "null" } end
end

function readings.either(c, value, given, out, types)
  local raw = raw_of(c, value, given, unlike_strings(c.b, types))
  local rest = c:without_strings(value)
  if raw then out[#out + 1] = { raw } end
  if not rest.dead then out[#out + 1] = { c:symbol(rest) } end
end

function readings.quoted(c, value, given, out)
  local raw = raw_of(c, value, given)
  local rest = c:without_strings(value)
  if raw then out[#out + 1] = { given.quote, raw, given.quote } end
  if not rest.dead then out[#out + 1] = { c:symbol(rest) } end
end

local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

-- The symbols of a custom tool's text, by how it reads; or nil and an error.
local texts = {}

function texts.json(b, given, _, job)
  local inside, why = input.inside(b, given, job)
  return inside and { b:text '"', inside, b:text '"' }, why
end

function texts.text(b, given, style, job)
  local term, why = input.raw(b, given, job)
  return term and { writable(b, term, style) }, why
end

function texts.quoted(b, given, style, job)
  local raw, why = texts.text(b, given, style, job)
  return raw and joined({ style.quote }, raw, { style.quote }), why
end

--- The symbols of a custom tool's arguments in JSON; or nil and an error.
function parameters.text(b, given, job)
  local value, why = texts.json(b, given, nil, job)
  local open = b:text(('{"%s": '):format(input.NAME))
  return value and joined({ open }, value, { b:text "}" }), why
end

--- A style for object_rules.write.
function parameters.style(given)
  local style = { spelling = given.spelling, bare = given.bare }
  function style.open() return joined(given.open) end
  function style.close() return given.close end

  function style.member(c, value, term, name)
    if name and not name:find(given.names) then
      if c.relax then return nil end
      failure.raise("unsupported", "", "the name %q cannot be written in this format", name)
    end
    if not name then term = c.b:both(term, failure.checked(c.b:pattern(OTHER))) end
    local out = {}
    local how, types = given.reads(name)
    readings[how](c, value, given, out, types)
    if #out == 0 or c:empty(term) then return nil end
    local symbols = joined(given.key(term), rule_of(c, out), given.after)
    return { symbols, joined(given.between, symbols) }
  end

  --- The same in this style.
  function style.text(b, text, job)
    local value, why = texts[given.reads(input.NAME)](b, text, given, job)
    local key = given.key(b:text(input.NAME))
    return value and joined(given.open, key, value, given.after, given.close), why
  end
  return style
end

return parameters
