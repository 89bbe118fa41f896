-- load: several sequences: batched decode, streams during a long prefill, a repeated prompt,
-- memory.
local common = require "cmd.bench.common"

local load = {}
local now = common.now

--- Tokens per second of several sequences that decode together, from the median step.
function load.batch(model, opts, add)
  local alone
  for _, sequences in ipairs(common.numbers(opts.sequences or "1,2,4,8", "--sequences")) do
    local context = math.min(common.context(model), 1024)
    local batch <close> = common.batch(model,
      { sequences = sequences, context = context, cache_bytes = 0 })
    local list, times = {}, {}
    for i = 1, sequences do
      list[i] = assert(batch:add(common.request(common.ids(16, batch.core.vocabulary, i))))
    end
    for _, seq in ipairs(list) do common.prefill(batch, seq) end
    local started = now()
    while #times < math.min(64, context - 24) and (#times < 3 or now() - started < opts.seconds) do
      local t = now()
      local _, ran = assert(batch:step())
      assert(ran == sequences)
      times[#times + 1] = now() - t
    end
    local s = common.median(times)
    alone = alone or s
    add { test = "decode", tokens = #times * sequences, batch = sequences, depth = 16,
      tokens_per_s = sequences / s, mean_per_s = sequences * #times / common.sum(times),
      speedup = sequences * alone / s,
      gb_per_s = common.bytes_per_token(model) / s * 1e-9 }
  end
end

local STREAMS = 7

--- Length of the long prompt; an eighth of the context stays free for the answers.
local function prompt_tokens(model, opts)
  return math.min(opts.prompt, common.context(model) // 8 * 7)
end

--- Time between the tokens of running streams, before and during the prefill of a long prompt. A
--- stream that reaches the end of the context starts again.
function load.mixed(model, opts, add)
  local n = prompt_tokens(model, opts)
  local context = math.min(common.context(model), 2 * n + 1024)
  local batch <close> = common.batch(model,
    { sequences = STREAMS + 1, context = context, cache_bytes = 0 })
  local vocabulary, before, during = batch.core.vocabulary, {}, {}
  local function stream(i)
    local request = common.request(common.ids(8 + i, vocabulary, i))
    request.on_done = function() stream(i) end
    return assert(batch:add(request))
  end
  local streams = {}
  for i = 1, STREAMS do streams[i] = stream(i) end
  for _, seq in ipairs(streams) do common.prefill(batch, seq) end
  local function steps(gaps, going_on)
    local last = now()
    while going_on() do
      assert(batch:step())
      local t = now()
      gaps[#gaps + 1] = t - last
      last = t
    end
  end
  local started = now()
  steps(before, function()
    return #before < 16 or (#before < 64 and now() - started < opts.seconds)
  end)
  local long = assert(batch:add(common.request(common.ids(n, vocabulary, 99), 1)))
  started = now()
  steps(during, function() return not long.finish end)
  local alone, p99 = common.median(before), common.quantile(during, 0.99)
  add { test = "mixed", tokens = n, batch = STREAMS + 1, depth = 0,
    tokens_per_s = n / (now() - started), gap_alone_ms = alone * 1e3,
    gap_p50_ms = common.median(during) * 1e3, gap_p99_ms = p99 * 1e3, ratio = p99 / alone }
end

--- Time to first token of a long prompt, and of the same prompt again, as a multiple of a decode
--- step.
function load.prefix(model, opts, add)
  local n = prompt_tokens(model, opts)
  local batch <close> = common.batch(model,
    { sequences = 2, context = n + 32, cache_bytes = 1 << 34 })
  local prompt, times = common.ids(n, batch.core.vocabulary, 7), {}
  local function first_token()
    local t = now()
    local seq = assert(batch:add(common.request(prompt, 16)))
    common.prefill(batch, seq)
    local s = now() - t
    while not seq.finish do
      t = now()
      assert(batch:step())
      times[#times + 1] = now() - t
    end
    return s, seq.cached_tokens
  end
  local cold = first_token()
  local warm, cached = {}, nil
  for i = 1, 3 do warm[i], cached = first_token() end
  local again, step = common.median(warm), common.median(times)
  add { test = "prefix", tokens = n, batch = 1, depth = n, tokens_per_s = n / cold,
    first_ms = cold * 1e3, repeat_ms = again * 1e3, decode_ms = step * 1e3, cached = cached,
    ratio = again / step }
end

--- Bytes of caches per token of context, from what a sequence holds at two depths.
function load.memory(model, _, add)
  local half = math.min(512, (common.context(model) - 2) // 2 // 32 * 32)
  if half == 0 then return end
  local batch <close> = common.batch(model,
    { sequences = 1, context = 2 * half + 2, cache_bytes = 0 })
  local prompt = common.ids(2 * half, batch.core.vocabulary)
  local seq = assert(batch:add(common.request(prompt, 2)))
  local bytes = {}
  for i = 1, 2 do
    while batch:sequences()[1].past < half * i do assert(batch:step { { seq, half } }) end
    bytes[i] = batch:sequences()[1].bytes
  end
  seq:cancel()
  add { test = "memory", tokens = 2 * half, batch = 1, depth = 2 * half,
    bytes_per_token = (bytes[2] - bytes[1]) / half,
    bytes_fixed = math.max(0, 2 * bytes[1] - bytes[2]) }
end

return load
