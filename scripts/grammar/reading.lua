-- reading: patterns and grammars of clients, as terms and rules of a builder. Reading takes up to
-- 8 us a byte, and 4 ms for a class of characters such as (?i:[\p{L}\p{N}]), so long texts are read
-- on a helper thread.
--
--   reading.pattern(b, text, options, job)          a term
--   reading.rule(b, language, text, options, job)   a rule; language: "gbnf" or "lark"
--   reading.term(b, rule, job)                      the term of a rule
--
-- job(start): runs start(callback) on a helper thread and waits; nil: nobody else needs this one.
-- All give nil and an error for what cannot be read.
local reading = {}

local SHORT = 48 -- bytes: three such classes

function reading.pattern(b, text, options, job)
  if not job or #text <= SHORT then return b:pattern(text, options) end
  return job(function(callback) return b:pattern(text, options, callback) end)
end

function reading.rule(b, language, text, options, job)
  if not job then return b[language](b, text, options) end
  return job(function(callback) return b[language](b, text, options, callback) end)
end

function reading.term(b, rule, job)
  if not job then return b:term(rule) end
  return job(function(callback) return b:term(rule, callback) end)
end

return reading
