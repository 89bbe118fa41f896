-- search: whether a term has a text at all. Of most terms that is seen at once; of & and `not` the
-- builder walks an automaton, which a client can make large.
--
--   local is_empty = search.new(b, job)
--   is_empty(term)
--
-- job(start): runs start(callback) on a helper thread and waits; nil: nobody else needs this one.
local failure = require "grammar.failure"

local search = {}

local SOON = 20000 -- steps: about 1 ms

function search.new(b, job)
  return function(term)
    if not job then return failure.checked(b:empty(term)) end
    local empty, why = b:empty(term, { steps = SOON })
    if empty == nil and why.code == "limit" then
      empty, why = job(function(callback) return b:empty(term, nil, callback) end)
    end
    return failure.checked(empty, why)
  end
end

return search
