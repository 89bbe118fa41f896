-- admission: may this request join the batch? Decided before any work is done for it, and answered
-- with numbers.
--
-- A request that can never fit is a 400. One that does not fit now is refused with the time after
-- which to try again: 429 when too many prompts of the same API key wait (config.queue.requests) or
-- it has too many sequences (config.queue.sequences), 503 when its waiting requests would need more
-- than config.queue.memory times the tokens that the caches hold, and 503 while the server shuts
-- down. Everything is counted by key, so that nobody's queue is full because of somebody else.
--
-- A sequence is predicted to need its prompt and an answer of recent length, at most its
-- max_tokens. Seconds are estimated from the time that steps have taken so far.
--
-- The sequences are listed and counted once in a turn of the loop, unless some join or leave: a
-- flood of requests that are refused costs no more than one of them.
local errors = require "lib.errors"
local uv = require "luv"

local admission = {}

-- The predicted answer before any was seen, and the weight of the newest one in the moving mean.
-- Too large a guess refuses requests of an idle server, too small a one queues more than fits; with
-- 0.1 the guess is forgotten after about 20 answers.
local FIRST_GUESS, WEIGHT = 256, 0.1
local MIN_S, MAX_S = 1, 60 -- of an estimate: a client should neither hammer nor give up
local TOKEN_BYTES = 32 -- the most text a token covers on average in any real prompt; 4 is usual

--- What is known about a batch: { answer = tokens of a recent answer, census = of this turn,
--- [id] = predicted tokens of the sequence }.
local function ledger_of(batch)
  batch.ledger = batch.ledger or { answer = FIRST_GUESS }
  return batch.ledger
end

-- ---- predictions --------------------------------------------------------------------------------

--- Tokens that options.n answers to a prompt are predicted to need.
function admission.predict(batch, tokens, options)
  local answer = math.min(options.max_tokens or math.huge, ledger_of(batch).answer)
  return math.ceil(tokens + (options.n or 1) * answer)
end

--- A sequence has joined.
function admission.joined(batch, id, predicted)
  local ledger = ledger_of(batch)
  ledger[id], ledger.census = predicted, nil
end

--- A sequence has left. `answer`: tokens of its answer, nil when it was cut short.
function admission.left(batch, id, answer)
  local ledger = ledger_of(batch)
  ledger[id], ledger.census = nil, nil
  if answer then ledger.answer = (1 - WEIGHT) * ledger.answer + WEIGHT * answer end
end

--- Seconds to process this many tokens, at the mean speed of all steps so far.
local function seconds(batch, tokens)
  local stats = batch:stats()
  local done = stats.prefill_tokens + stats.decode_tokens
  local each = done > 0 and (stats.schedule + stats.compute + stats.sample) / done or 0
  return math.max(MIN_S, math.min(MAX_S, math.ceil(tokens * each)))
end

local NOBODY = {} -- stands for requests without a key

local function matches(tag, filter)
  for key, value in pairs(filter or {}) do
    if type(tag) ~= "table" or tag[key] ~= value then return false end
  end
  return true
end

--- Counts a sequence; waiting ones are counted as prompts.
local function count(part, info, tokens)
  part.sequences = part.sequences + 1
  if info.state ~= "waiting" then
    part.running = part.running + 1
  elseif not info.follows then
    part.waiting, part.waiting_tokens = part.waiting + 1, part.waiting_tokens + tokens
  end
end

local function new_part() return { sequences = 0, running = 0, waiting = 0, waiting_tokens = 0 } end

--- What is in the batch: { sequences (the list), all (counts), keys = { [name] = counts } }.
local function census_of(batch)
  local ledger, now = ledger_of(batch), uv.now()
  local known = ledger.census
  if known and known.at == now then return known end
  local census = { at = now, sequences = batch:sequences(), all = new_part(), keys = {} }
  for _, info in ipairs(census.sequences) do
    local key = type(info.tag) == "table" and info.tag.key or NOBODY
    census.keys[key] = census.keys[key] or new_part()
    local tokens = ledger[info.id] or info.prompt
    count(census.all, info, tokens)
    count(census.keys[key], info, tokens)
  end
  ledger.census = census
  return census
end

--- The queue as `admit` hooks see it: numbers, count { lane = "chat" } (sequences in any state
--- whose tags have these values) and eta().
function admission.queue(batch)
  local census = census_of(batch)
  local sequences, all_of = census.sequences, census.all
  local free, all = batch:room()
  local queue = { running = all_of.running, waiting = all_of.waiting,
    waiting_tokens = all_of.waiting_tokens, free_tokens = free, all_tokens = all }
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

--- What one key has in the batch: { sequences, waiting (prompts), waiting_tokens }.
local function own_part(batch, key)
  return census_of(batch).keys[key or NOBODY] or new_part()
end

-- ---- decisions ----------------------------------------------------------------------------------

local function too_many(queue, format, ...)
  return errors.new { status = 429, code = "queue_full", retry_after = queue.eta(),
    message = format:format(...) }
end

--- Decides as soon as the model is known: an error, or nil. `key`: the name of the API key, or nil.
function admission.early(app, entry, key)
  if app.draining then
    return errors.new { status = 503, code = "draining", message = "the server is shutting down",
      retry_after = app.config.drain_s or MIN_S }
  end
  local most = app.config.queue.requests
  if entry.batch.alive < most then return nil end -- no need to list the sequences
  local waiting = own_part(entry.batch, key).waiting
  if waiting >= most and waiting > 0 then
    return too_many(admission.queue(entry.batch),
      "the queue is full: %d requests are waiting, the limit is %d", waiting, most)
  end
end

--- Refuses a request with pictures while too many of its key's are being fetched and decoded: those
--- are not in the batch's queue yet. An error, or nil.
function admission.pictures(app, entry, key)
  local waiting, most = 0, app.config.queue.requests
  for _, run in pairs(app.live) do
    if run.stop and run.req.key == key then waiting = waiting + 1 end
  end
  if waiting < most or waiting == 0 then return nil end
  return too_many(admission.queue(entry.batch),
    "%d requests with pictures are being prepared, the limit is %d", waiting, most)
end

local function context_of(entry) return entry.context or entry.batch.core.context end

--- Tokens that a prompt may have so that at least one can be generated.
function admission.most(entry)
  local _, all = entry.batch:room()
  return math.min(context_of(entry) - 1, all, 0x7fffffff)
end

--- Refuses a text by its size, before it is rendered or tokenized, when it cannot become `most`
--- tokens: an error, or nil.
function admission.bytes(most, bytes, field)
  if bytes <= most * TOKEN_BYTES then return nil end
  return errors.new { code = "context_length_exceeded", field = field,
    tokens = math.ceil(bytes / TOKEN_BYTES), most = most,
    message = ("%s has %d bytes; there is room for %d tokens of at most %d bytes each"):format(
      field, bytes, most, TOKEN_BYTES) }
end

--- Refuses a prompt by its tokens when it can never be answered: an error, or nil. `least`: there
--- are at least these, nobody counted the rest.
function admission.fits(entry, tokens, field, least)
  local _, all = entry.batch:room()
  local context = context_of(entry)
  if tokens < context and tokens <= all then return nil end
  local why = ("the caches of this server hold %d tokens"):format(all)
  if tokens >= context then
    why = ("this model's maximum context length is %d tokens and one must be left for the answer")
      :format(context)
  end
  return errors.new { code = "context_length_exceeded", field = field, tokens = tokens,
    most = admission.most(entry), message = ("the %s has %s%d tokens and does not fit: %s"):format(
      field == "messages" and "conversation" or "prompt", least and "at least " or "", tokens,
      why) }
end

--- Decides with what the request is predicted to need, { key, tokens, sequences }: an error, or
--- nil and the queue.
function admission.late(app, entry, need)
  local queue, own = admission.queue(entry.batch), own_part(entry.batch, need.key)
  local settings = app.config.queue
  local most, bound = math.floor(settings.memory * queue.all_tokens), settings.sequences
  if bound and own.sequences > 0 and own.sequences + need.sequences > bound then
    return too_many(queue, "%d answers are in progress and %d more were requested, the limit is %d",
      own.sequences, need.sequences, bound)
  end
  if own.waiting > 0 and own.waiting_tokens + need.tokens > most then
    return errors.new { status = 503, code = "overloaded", retry_after = queue.eta(),
      message = ("waiting requests need about %d tokens and this one %d, the limit is %d"):format(
        own.waiting_tokens, need.tokens, most) }
  end
  return nil, queue
end

return admission
