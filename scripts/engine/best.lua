-- best: generates best_of answers and returns the n best of them.
--
-- Candidates are choices of one request: number i draws with seed + i. When the last one is done
-- they are ranked by the mean logprob of their tokens (of the raw logits); of equal ones the first
-- is better. Cancelled candidates come after those that ended normally, failed ones last. The
-- ranking is not known before, so tokens cannot be streamed.
--
-- An answer has the fields of a finished sequence (ids, text, finish, …) and mean_logprob. The
-- tokens of candidates that were not chosen count in completion_tokens of the first answer, so that
-- the sum over all answers is what was generated.
local perigee = require "perigee"
local requests = require "engine.request"

local best = {}
for _, field in ipairs(perigee.batch.fields()) do
  if field.name == "n" then best.MOST = field.max end -- choices of one request
end

local Answer = {}
Answer.__index = Answer
Answer.__name = "perigee.Answer"

--- Ends the whole request: it is not known yet which candidate this answer will be.
function Answer:cancel()
  for _, seq in ipairs(self.candidates) do
    if not seq.finish then seq:cancel() end
  end
  return true
end

--- Does the request want more candidates than answers?
function best.chooses(given) return given.best_of ~= nil and given.best_of ~= (given.n or 1) end

local function check(given, callbacks)
  requests.check(given, callbacks)
  local n, of = math.max(given.n or 1, 1), given.best_of
  if of < n or of > best.MOST then
    error(("best_of must be between n, which is %d, and %d, got %d"):format(n, best.MOST, of), 0)
  end
  if given.on_token then
    error(("best_of is %d and n is %d: tokens cannot be streamed before the best are known")
      :format(of, n), 0)
  end
  if given.hold then error(("best_of is %d: candidates cannot be held"):format(of), 0) end
  return n
end

-- ---- ranking ----------------------------------------------------------------------------------

local function mean_logprob(seq)
  local sum, n = 0, #seq.logprobs
  for _, token in ipairs(seq.logprobs) do sum = sum + token.logprob end
  return n > 0 and sum / n or 0.0
end

local after = { cancel = 1, error = 2 } -- all others ended normally

--- Sorts candidates, { finish =, mean =, at = }, the best first.
function best.rank(list)
  table.sort(list, function(a, b)
    local x, y = after[a.finish] or 0, after[b.finish] or 0
    if x ~= y then return x < y end
    if a.mean ~= b.mean then return a.mean > b.mean end
    return a.at < b.at
  end)
  return list
end

local function ranked(candidates)
  local list = {}
  for i, seq in ipairs(candidates) do
    list[i] = { seq = seq, at = i, finish = seq.finish, mean = mean_logprob(seq) }
  end
  return best.rank(list)
end

local copied = { "id", "ids", "text", "finish", "error", "stop", "prompt_tokens",
  "completion_tokens",
  "cached_tokens" }

--- Fills the answers from the best candidates.
local function choose(answers, candidates, wants_logprobs)
  local list = ranked(candidates)
  for i, answer in ipairs(answers) do
    local seq = list[i].seq
    for _, key in ipairs(copied) do answer[key] = seq[key] end
    answer.mean_logprob, answer.logprobs = list[i].mean, wants_logprobs and seq.logprobs or nil
  end
  for i = #answers + 1, #list do
    local wasted = list[i].seq.completion_tokens or 0
    answers[1].completion_tokens = answers[1].completion_tokens + wasted
  end
end

--- Calls on_done for each answer; if one raises, the others still get theirs.
local function tell(answers, on_done)
  local failed
  for _, answer in ipairs(answers) do
    local ok, why = pcall(on_done, answer)
    if not ok then failed = failed or why end
  end
  if failed then error(failed, 0) end
end

-- ---- adding -----------------------------------------------------------------------------------

--- Adds a request with best_of to a batch; returns its n answers, or nil and an error. `callbacks`:
--- further keys that the caller accepts. Misuse raises.
function best.add(batch, given, callbacks)
  local n, request = check(given, callbacks), {}
  for key, value in pairs(given) do request[key] = value end
  local wants_logprobs = given.top_logprobs or given.logprobs
  if not wants_logprobs then request.top_logprobs = 0 end
  request.n, request.best_of = given.best_of, nil
  local candidates, answers, left = {}, {}, given.best_of
  request.on_done = function()
    left = left - 1
    if left > 0 then return end
    choose(answers, candidates, wants_logprobs)
    if given.on_done then tell(answers, given.on_done) end
  end
  local sequences = table.pack(batch:add(request))
  if not sequences[1] then return nil, sequences[2] end
  table.move(sequences, 1, sequences.n, 1, candidates)
  for i = 1, n do
    local answer = { batch = batch, candidates = candidates, ids = {}, text = "" }
    answers[i] = setmetatable(answer, Answer)
  end
  return table.unpack(answers)
end

return best
