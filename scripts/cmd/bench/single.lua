-- single: one sequence: the speed of prefill and of decode.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local memory = require "engine.memory"

local single = {}
local now = common.now

local TOKENS = 64 -- to decode

--- What to measure, and the tokens that it needs.
local function lengths(list, option, more)
  local out, most = common.numbers(list, option), 0
  for _, n in ipairs(out) do most = math.max(most, n + more) end
  return out, most
end

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

--- Seconds to decode one token after `depth` others: the median, all of them, and their number.
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
  return common.median(times), common.sum(times), #times
end

--- Raises if there is not enough memory for the longest test.
local function check_room(model, tokens)
  local plan <close> = assert(model.graph:plan())
  local bits = memory.kv_bits(model.options)
  local need = { kv = memory.kv(model.graph, tokens, bits), state = memory.state(model.graph),
    activations = memory.activations(plan, tokens) }
  local ok, why = memory.check(need,
    { tokens = tokens, budget = model.options.memory, weights = model.weights.bytes })
  if not ok then error(why, 0) end
end

local function with_engine(model, tokens, f)
  tokens = math.min(tokens, common.context(model))
  check_room(model, tokens)
  local engine, why = perigee.engine.open(model.graph, { threads = model.options.threads,
    tokens = tokens, kv_bits = model.options.kv_bits, precision = model.options.precision,
    device = model.options.device })
  if not engine then error(why, 0) end
  f(engine, common.bytes_per_token(model), common.context(model))
  engine:close()
end

function single.prefill(model, opts, add)
  local prompts, most = lengths(opts.prompts or "16,128,512", "--prompts", 0)
  with_engine(model, most, function(engine, bytes, context)
    for _, n in ipairs(prompts) do
      if n <= context then
        local s = prefill(engine, n, opts.seconds)
        add { test = "prefill", tokens = n, batch = 1, depth = 0, tokens_per_s = n / s,
          gb_per_s = bytes / s * 1e-9 }
      end
    end
  end)
end

function single.decode(model, opts, add)
  local depths, most = lengths(opts.depths or "0,512", "--depths", TOKENS + 1)
  with_engine(model, most, function(engine, bytes, context)
    for _, depth in ipairs(depths) do
      if depth + TOKENS < context then
        local s, all, n = decode(engine, depth, opts.seconds)
        add { test = "decode", tokens = n, batch = 1, depth = depth, tokens_per_s = 1 / s,
          mean_per_s = n / all, gb_per_s = bytes / s * 1e-9 }
      end
    end
  end)
end

return single
