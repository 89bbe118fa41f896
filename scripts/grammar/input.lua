-- input: the text that a custom tool takes, as the one argument of a call. Its own grammar says
-- what it is: { regex = TEXT } or { lark = TEXT }.
--
--   input.inside(b, given, job)      a symbol: the text inside of a JSON string
--   input.raw(b, given, job)         a term: the text as it is, for a place that ends at a mark
--   input.compile(given, callback)   a grammar of its own
--
-- job: as of reading.lua.
-- Both give nil and an error for what cannot be followed. A raw text must not contain its mark.
-- Terms can say that and rules cannot, so a grammar that refers to itself is refused there.
local perigee = require "perigee"
local reading = require "grammar.reading"

local input = {}

input.NAME = "input" -- of the argument

--- A text that says all about what is given, which may be nothing.
function input.key(given)
  return not given and "" or given.regex and "regex " .. given.regex or "lark " .. given.lark
end

function input.compile(given, callback)
  if given.regex then return perigee.grammar.regex(given.regex, callback) end
  return perigee.grammar.lark(given.lark, callback)
end

function input.inside(b, given, job)
  if given.regex then return reading.pattern(b, given.regex, { json = true }, job) end
  return reading.rule(b, "lark", given.lark, { json = true }, job)
end

function input.raw(b, given, job)
  if given.regex then return reading.pattern(b, given.regex, nil, job) end
  local rule, why = reading.rule(b, "lark", given.lark, nil, job)
  if not rule then return nil, why end
  return reading.term(b, rule, job)
end

return input
