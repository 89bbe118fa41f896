-- held: decode of sequences that are held to JSON schemas against sequences that are free.
local common = require "cmd.bench.common"
local grammar = require "grammar"
local perigee = require "perigee"
local json = perigee.json

local held = {}
local now = common.now

local SEQUENCES = 16
local STEPS = 128 -- of each; in these a small model goes through several objects

-- A list that does not end while it is measured, of objects with strings, numbers and choices.
-- The name differs, so that each sequence has a grammar of its own.
local SCHEMA = [[{"type": "array", "minItems": 100000, "items": {"type": "object", "properties": {
  "name_%d": {"type": "string", "maxLength": 20}, "size": {"type": "number"},
  "kind": {"enum": ["rock", "gas", "ice"]}, "on": {"type": "string", "format": "date"},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 4}},
  "required": ["name_%d", "size", "kind", "on", "tags"], "additionalProperties": false}}]]

local function grammar_of(i)
  return assert(grammar.schema(assert(json.decode((SCHEMA:gsub("%%d", tostring(i)))))))
end

--- A batch whose sequences have their first token. phases_of(i): those of a sequence.
local function open(model, tokenizer, context, phases_of)
  local batch = common.batch(model,
    { sequences = SEQUENCES, context = context, cache_bytes = 0 }, tokenizer)
  local list = {}
  for i = 1, SEQUENCES do
    local request = common.request(common.ids(16, batch.core.vocabulary, i))
    -- Drawn, so that the texts differ; each token by a step, so that both sides do the same.
    request.temperature, request.seed, request.fast_forward = 1, i, false
    request.phases = phases_of(i)
    list[i] = assert(batch:add(request))
  end
  for _, seq in ipairs(list) do common.prefill(batch, seq) end
  return batch
end

local function step(batch)
  local t = now()
  local _, ran = assert(batch:step())
  assert(ran == SEQUENCES, "a sequence has ended")
  return now() - t
end

--- Tokens per second of both, by the median of steps that take turns.
function held.run(model, opts, add)
  local tokenizer = opts[1] and perigee.tokenizer.open(opts[1])
  if not tokenizer then
    if opts.tests then error("the test 'grammar' needs a MODEL with a tokenizer", 0) end
    return
  end
  local context = math.min(common.context(model), 1024)
  local free <close> = open(model, tokenizer, context, function() end)
  local bound <close> = open(model, tokenizer, context, function(i)
    return { { grammar = grammar_of(i) } }
  end)
  local times, started = { free = {}, bound = {} }, now()
  while #times.bound < math.min(STEPS, context - 48)
    and (#times.bound < 3 or now() - started < opts.seconds) do
    times.free[#times.free + 1] = step(free)
    times.bound[#times.bound + 1] = step(bound)
  end
  local a, b = common.median(times.free), common.median(times.bound)
  add { test = "grammar", tokens = #times.bound * SEQUENCES, batch = SEQUENCES, depth = 16,
    tokens_per_s = SEQUENCES / b, free_per_s = SEQUENCES / a,
    mean_per_s = SEQUENCES * #times.bound / common.sum(times.bound), ratio = a / b }
end

return held
