-- single: one sequence: the speed of prefill and of decode.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local memory = require "engine.memory"

local single = {}
local now = common.now

-- Tokens of the longest prompt, before decoding, and to decode.
local PROMPT, DEPTH, TOKENS = 512, 512, 64

local function step(engine, seq, ids)
  local ok, why = engine:step { { seq = seq, ids = ids } }
  if not ok then error(why, 0) end
end

--- Seconds to prefill a prompt: the best of up to three runs.
local function prefill(engine, tokens, seconds)
  local best, started = math.huge, now()
  for _ = 1, 3 do
    local seq = assert(engine:add())
    local t = now()
    step(engine, seq, common.ids(tokens, engine.vocabulary))
    best = math.min(best, now() - t)
    engine:remove(seq)
    if now() - started > seconds then break end
  end
  return best
end

--- Seconds to decode one token after `depth` others: the median, and the number measured.
local function decode(engine, depth, seconds)
  local seq, times = assert(engine:add()), {}
  if depth > 0 then step(engine, seq, common.ids(depth, engine.vocabulary)) end
  step(engine, seq, { 1 })
  local started = now()
  while #times < TOKENS and (#times < 3 or now() - started < seconds) do
    local t = now()
    step(engine, seq, { 2 })
    times[#times + 1] = now() - t
  end
  engine:remove(seq)
  return common.median(times), #times
end

--- Raises if there is not enough memory for the longest test.
local function check_room(model)
  local plan <close> = assert(model.graph:plan())
  local tokens, bits = DEPTH + PROMPT, memory.kv_bits(model.options)
  local need = { kv = memory.kv(model.graph, tokens, bits), state = memory.state(model.graph),
    activations = memory.activations(plan, PROMPT) }
  local ok, why = memory.check(need,
    { tokens = tokens, budget = model.options.memory, weights = model.weights.bytes })
  if not ok then error(why, 0) end
end

local function with_engine(model, f)
  check_room(model)
  local engine, why = perigee.engine.open(model.graph, { threads = model.options.threads,
    tokens = DEPTH + PROMPT, kv_bits = model.options.kv_bits, precision = model.options.precision })
  if not engine then error(why, 0) end
  f(engine, common.bytes_per_token(model), common.context(model))
  engine:close()
end

function single.prefill(model, opts, add)
  with_engine(model, function(engine, bytes, context)
    for _, n in ipairs { 16, 128, PROMPT } do
      if n <= context then
        local s = prefill(engine, n, opts.seconds)
        add { test = "prefill", tokens = n, batch = 1, depth = 0, tokens_per_s = n / s,
          gb_per_s = bytes / s * 1e-9 }
      end
    end
  end)
end

function single.decode(model, opts, add)
  with_engine(model, function(engine, bytes, context)
    for _, depth in ipairs { 0, DEPTH } do
      if depth + TOKENS < context then
        local s, n = decode(engine, depth, opts.seconds)
        add { test = "decode", tokens = n, batch = 1, depth = depth, tokens_per_s = 1 / s,
          gb_per_s = bytes / s * 1e-9 }
      end
    end
  end)
end

return single
