-- usage: what a request took: tokens and times, for the answer, the metrics and the access log.
local usage = {}

local function milliseconds(from, to)
  return from and to and math.max(0, math.floor((to - from) * 1e6) / 1e3) or nil
end

--- Milliseconds between the stations of the request, and tokens per second.
local function timings(run, tokens)
  local received = run.req.started * 1e-9
  local granted = run.granted_at or run.added_at
  local decode = run.first_at and run.last_at and run.last_at - run.first_at or 0
  local prefill = run.first_at and granted and run.first_at - granted
  local computed = tokens.prompt_tokens - tokens.cached_tokens
  return { queue_ms = milliseconds(received, granted),
    prefill_ms = milliseconds(granted, run.first_at),
    ttft_ms = milliseconds(received, run.first_at),
    decode_ms = milliseconds(run.first_at, run.last_at),
    forced_tokens = tokens.forced_tokens > 0 and tokens.forced_tokens or nil,
    prompt_per_second = prefill and prefill > 0
      and math.floor(computed / prefill * 100) / 100 or nil,
    tokens_per_second = decode > 0
      and math.floor((tokens.completion_tokens - 1) / decode * 100) / 100 or nil }
end

--- Prompt, answer and cached tokens of everything that ran for the request, with timings.
function usage.of(run)
  local tokens = { prompt_tokens = run.state ~= "preparing" and run.req.prompt_tokens or 0,
    completion_tokens = 0, cached_tokens = 0, reasoning_tokens = 0, forced_tokens = 0,
    image_tokens = run.req.image_tokens }
  local seen = {}
  for _, out in ipairs(run.outputs) do
    tokens.completion_tokens = tokens.completion_tokens + out.usage.completion_tokens
    tokens.reasoning_tokens = tokens.reasoning_tokens + (out.usage.reasoning_tokens or 0)
    tokens.forced_tokens = tokens.forced_tokens + (out.usage.forced_tokens or 0)
    if not seen[out.prompt] then
      seen[out.prompt] = true
      tokens.cached_tokens = tokens.cached_tokens + out.usage.cached_tokens
    end
  end
  tokens.timings = timings(run, tokens)
  return tokens
end

--- Reports it to metrics and access log. Must come before the last byte of the answer, since the
--- log's line is written with that.
function usage.observe(run, tokens, finish)
  local m, labels, t, log = run.app.metrics, run.labels, tokens.timings, run.log
  log.finish, log.model = finish, run.req.model
  log.prompt_tokens, log.completion_tokens = tokens.prompt_tokens, tokens.completion_tokens
  log.cached_tokens, log.ttft_ms = tokens.cached_tokens, t.ttft_ms
  if not m or not labels then return end
  m.prompt_tokens:add(tokens.prompt_tokens, labels)
  m.generated_tokens:add(tokens.completion_tokens, labels)
  m.cached_tokens:add(tokens.cached_tokens, labels)
  if t.ttft_ms then m.ttft:observe(t.ttft_ms * 1e-3, labels) end
  if t.queue_ms then m.queue_time:observe(t.queue_ms * 1e-3, labels) end
end

return usage
