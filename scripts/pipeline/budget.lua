-- budget: how many tokens an answer may think. When these are spent, the text that ends thinking
-- (Words:closing) is forced onto the sequence, and the model goes on with its answer.
--
--   local budget = budgets.new(tokens, closing, forced)      one per sequence
--   budget:token(event, output, seq)                         after output:token
--
-- Tokens are counted as usage reports them: with the mark that opens thinking, without the one that
-- closes it. The sequence is watched (engine/batch.lua) while it may think, so the forced tokens
-- come right after the last one of the budget, alone or among others. A model that begins to think
-- once more is made to answer at once. A `request` hook may set or change req.thinking_budget.
local opening = require "pipeline.opening"

local budgets = {}

local known = setmetatable({}, { __mode = "k" }) -- of words: they belong to one tokenizer

local Budget = {}
Budget.__index = Budget

--- { first, again, once }: the ids that end thinking of a model with these words, those for a model
--- that begins once more, and whether it thinks only before its answer; nil if its format has no
--- such text.
function budgets.closing(words, tok)
  local first, again = words:closing()
  if not first or known[words] then return known[words] end
  local ids = opening.stable(tok, first)
  known[words] = { first = ids, again = again == first and ids or opening.stable(tok, again),
    once = again == first }
  return known[words]
end

--- forced: tokens that the answer begins with in any case.
function budgets.new(tokens, closing, forced)
  return setmetatable({ tokens = tokens, closing = closing, next = closing.first, skip = forced },
    Budget)
end

function Budget:token(event, out, seq)
  if not event.id or event.finish then return end
  if self.skip > 0 then
    self.skip = self.skip - 1
    return
  end
  if not out:thinking() then
    if self.closing.once and not out.thinks then seq.watch = seq.watcher ~= nil end
    return
  end
  if out:thought() < self.tokens then return end
  out:end_thought()
  assert(seq:force(self.next))
  self.skip, self.next = #self.next, self.closing.again
end

return budgets
