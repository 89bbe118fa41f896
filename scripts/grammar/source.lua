-- source: a grammar in any of the forms that people write one in. Of these fields one is given:
--
--   schema      a decoded JSON schema; strict, whitespace, order: as of grammar.schema
--   regex       a regular expression that the whole text matches
--   choice      a list of texts
--   grammar     GBNF, if a line begins with NAME ::=, else Lark
--   compiled    a perigee.Grammar
--
-- and `pause` and `job`, as of grammar.schema. source.compile makes the grammar of it. source.rule
-- writes it into a builder, as a part of a larger grammar, which what is compiled cannot be.
local grammar = require "grammar"
local perigee = require "perigee"
local reading = require "grammar.reading"
local words = require "grammar.words"
local json = perigee.json

local source = {}

source.KINDS = { "schema", "regex", "choice", "grammar", "compiled" }

-- The codes of errors about grammars, in the words of clients.
local WORDS = { format = "invalid", argument = "invalid", unsupported = "unsupported",
  unsatisfiable = "unsatisfiable", limit = "limit" }

--- The word that clients know an error by; nil: it is not about a grammar.
function source.word(err) return type(err) == "table" and WORDS[err.code] or nil end

local function wrong(message, ...) return nil, perigee.error("format", message:format(...)) end

local function is_text(value) return type(value) == "string" end

--- What the value of a kind must be; of schemas the converter says it.
local checks = {}

function checks.regex(value)
  if not is_text(value) then return "a string" end
end
checks.grammar = checks.regex

function checks.choice(value)
  if type(value) ~= "table" or json.is_object(value) then return "a list of strings" end
  for _, text in ipairs(value) do
    if not is_text(text) then return "a list of strings" end
  end
end

--- Which of the kinds is given; nil and an error unless it is one, with a value of its type.
function source.kind(given)
  local found
  for _, kind in ipairs(source.KINDS) do
    if given[kind] ~= nil then
      if found then return wrong("both '%s' and '%s' are given", found, kind) end
      found = kind
    end
  end
  if not found then return wrong "one of schema, regex, choice and grammar must be given" end
  local must = checks[found] and checks[found](given[found])
  if must then return wrong("'%s' must be %s", found, must) end
  return found
end

local rules = {}

function rules.schema(b, given) return grammar.rule(b, given.schema, given) end
function rules.regex(b, given) return reading.pattern(b, given.regex, nil, given.job) end
function rules.choice(b, given)
  return words.any(b, given.choice, given.pause or function() end)
end

--- The language that a grammar is written in. Strings and comments of Lark may have ::=, too, but
--- not after the name that a line begins with, or where that stands in the line before.
local function language(text)
  for line in text:gmatch "[^\n]+" do
    if line:find "^%s*[%w_-]+%s*::=" or line:find "^%s*::=" then return "gbnf" end
  end
  return "lark"
end

function rules.grammar(b, given)
  return reading.rule(b, language(given.grammar), given.grammar, nil, given.job)
end

--- A symbol of a builder for what is given; or nil and an error.
function source.rule(b, given)
  return rules[assert(source.kind(given))](b, given)
end

local compile = { choice = perigee.grammar.choice, compiled = function(g) return g end }

--- What fn(text, callback) makes, in a job if there are any.
local function read(fn, text, job)
  if not job then return fn(text) end
  return job(function(callback) return fn(text, callback) end)
end

function compile.regex(text, given) return read(perigee.grammar.regex, text, given.job) end

function compile.schema(schema, given) return grammar.schema(schema, given) end

function compile.grammar(text, given)
  return read(perigee.grammar[language(text)], text, given.job)
end

--- The grammar of what is given; or nil and an error.
function source.compile(given)
  local kind, why = source.kind(given)
  if not kind then return nil, why end
  return compile[kind](given[kind], given)
end

return source
