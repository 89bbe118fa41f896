-- admission: may this request join? Asked before any work is done for it, and answered with numbers.
--
-- What can never fit is a 400. What cannot fit now is refused with the time after which it is worth asking again: 429 when
-- too many requests wait (config.queue.requests), 503 when what waits would need more than config.queue.memory times the
-- tokens that the caches hold, and 503 while the server finishes what it has.
--
-- A seq is predicted to need its prompt and an answer as long as answers were lately, but not more than its max_tokens.
-- Seconds come from what steps have taken so far.
local errors = require "api.errors"

local admission = {}

local FIRST_GUESS, WEIGHT = 256, 0.1 -- tokens of an answer while none has been seen; how much the newest one counts
local LEAST_S, MOST_S = 1, 60
local TOKEN_BYTES = 32 -- what a token stands for in the mean, at most; usual is 4

local ledgers = setmetatable({}, { __mode = "k" }) -- batch -> { answer = tokens, [seq] = predicted tokens }

local function ledger_of(batch)
  local ledger = ledgers[batch]
  if not ledger then
    ledger = { answer = FIRST_GUESS }
    ledgers[batch] = ledger
  end
  return ledger
end

-- ---- what is known ---------------------------------------------------------------------------------------------------

--- Tokens that n answers to a prompt are going to need.
function admission.predict(batch, tokens, options)
  local answer = math.min(options.max_tokens or math.huge, ledger_of(batch).answer)
  return math.ceil(tokens + (options.n or 1) * answer)
end

--- A seq has joined.
function admission.joined(batch, seq, predicted) ledger_of(batch)[seq] = predicted end

--- A seq has left; what it took is what the next ones are expected to take.
function admission.left(batch, seq, answer)
  local ledger = ledger_of(batch)
  ledger[seq] = nil
  if answer then ledger.answer = (1 - WEIGHT) * ledger.answer + WEIGHT * answer end
end

--- Seconds for so many tokens, as steps were lately.
local function seconds(batch, tokens)
  local stats = batch:stats()
  local done, took = stats.prefill_tokens + stats.decode_tokens, stats.schedule + stats.compute + stats.sample
  local each = done > 0 and took / done or 0
  return math.max(LEAST_S, math.min(MOST_S, math.ceil(tokens * each)))
end

local function matches(tag, filter)
  for key, value in pairs(filter or {}) do
    if type(tag) ~= "table" or tag[key] ~= value then return false end
  end
  return true
end

--- What `admit` scripts see: numbers, and count{ lane = "chat" } (sequences, running or not, whose tags have these) and eta().
function admission.queue(batch)
  local ledger, sequences = ledger_of(batch), batch:sequences()
  local free, all = batch:room()
  local queue = { running = 0, waiting = 0, waiting_tokens = 0, free_tokens = free, all_tokens = all }
  for _, info in ipairs(sequences) do
    if info.state ~= "waiting" then
      queue.running = queue.running + 1
    elseif not info.follows then
      queue.waiting = queue.waiting + 1
      queue.waiting_tokens = queue.waiting_tokens + (ledger[info.id] or info.prompt)
    end
  end
  function queue.count(_, filter)
    local n = 0
    for _, info in ipairs(sequences) do
      if matches(info.tag, filter) then n = n + 1 end
    end
    return n
  end
  function queue.eta() return seconds(batch, queue.waiting_tokens) end
  return queue
end

-- ---- decisions -----------------------------------------------------------------------------------------------------

--- Before anything is known but the model: an error, or nil.
function admission.early(app, entry)
  if app.draining then
    return errors.new { status = 503, message = "the server is shutting down", code = "draining",
      retry_after = app.config.drain_s or LEAST_S }
  end
  local most = app.config.queue.requests
  if entry.batch.alive < most then return nil end -- whoever waits is alive, so there is nothing to list
  local queue = admission.queue(entry.batch)
  if queue.waiting >= most and queue.waiting > 0 then
    return errors.new { status = 429, code = "queue_full", retry_after = queue.eta(),
      message = ("%d requests wait, and %d may"):format(queue.waiting, most) }
  end
end

local function context_of(entry) return entry.context or entry.batch.core.context end

--- Tokens that a prompt may have, so that one can be answered.
function admission.most(entry)
  local _, all = entry.batch:room()
  return math.min(context_of(entry) - 1, all, 0x7fffffff)
end

--- A text of so many bytes that is to become `most` tokens, before anything is done with it: an error when it is hopeless.
function admission.bytes(most, bytes, param)
  if bytes <= most * TOKEN_BYTES then return nil end
  return errors.new { status = 400, code = "context_length_exceeded", param = param,
    message = ("%s has %d bytes; there is room for %d tokens, and for each of them at most %d bytes are read"):format(param,
      bytes, most, TOKEN_BYTES) }
end

--- A prompt of so many tokens: an error when it can never be answered, or nil.
function admission.fits(entry, tokens, param)
  local _, all = entry.batch:room()
  local context = context_of(entry)
  if tokens < context and tokens <= all then return nil end
  local why = ("The caches of this server have room for %d tokens"):format(all)
  if tokens >= context then
    why = ("This model's maximum context length is %d tokens, and one of them must be left for the answer"):format(context)
  end
  return errors.new { status = 400, code = "context_length_exceeded", param = param,
    message = ("%s; your %s has %d tokens."):format(why, param == "messages" and "conversation" or "prompt", tokens) }
end

--- With the tokens that the request is predicted to need: an error, or nil and the queue.
function admission.late(app, entry, predicted)
  local queue = admission.queue(entry.batch)
  local most = math.floor(app.config.queue.memory * queue.all_tokens)
  if queue.waiting > 0 and queue.waiting_tokens + predicted > most then
    return errors.new { status = 503, code = "overloaded", retry_after = queue.eta(),
      message = ("what waits is going to need about %d tokens and this request %d, together at most %d may wait")
        :format(queue.waiting_tokens, predicted, most) }
  end
  return nil, queue
end

return admission
