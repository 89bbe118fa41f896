-- Parts of the pipeline without a server: times and tokens of a request, forced openings, respond
-- hooks, and what a sequence is added with.
local metrics = require "serve.metrics"
local opening = require "pipeline.opening"
local respond = require "pipeline.respond"
local sequences = require "pipeline.sequences"
local usage = require "pipeline.usage"
local test = require("harness").test

-- ---- usage --------------------------------------------------------------------------------------

--- A run that was received at 100 s and has two choices of one prompt, and one of another.
local function run_of(more)
  local run = { req = { started = 100 * 1000000000, prompt_tokens = 30, image_tokens = 4,
    model = "m" }, state = "done", granted_at = 100.5, first_at = 102.5, last_at = 106.5,
    log = {}, outputs = {
      { prompt = 1, usage = { completion_tokens = 3, cached_tokens = 5 } },
      { prompt = 1, usage = { completion_tokens = 4, cached_tokens = 5 } },
      { prompt = 2, usage = { completion_tokens = 2, cached_tokens = 1 } } } }
  for k, v in pairs(more or {}) do run[k] = v end
  return run
end

test("tokens and times of a request", function(t)
  t.eq(usage.of(run_of()), { prompt_tokens = 30, completion_tokens = 9, cached_tokens = 6,
    reasoning_tokens = 0, forced_tokens = 0,
    image_tokens = 4, timings = { queue_ms = 500.0, prefill_ms = 2000.0, ttft_ms = 2500.0,
      decode_ms = 4000.0, prompt_per_second = 12.0, tokens_per_second = 2.0 } })
  local forced = run_of()
  for i = 1, 2 do forced.outputs[i].usage.forced_tokens = i end
  local counted = usage.of(forced)
  t.eq({ counted.forced_tokens, counted.timings.forced_tokens }, { 3, 3 })
  local early = usage.of(run_of { state = "preparing", outputs = {} })
  t.eq({ early.prompt_tokens, early.completion_tokens, early.cached_tokens }, { 0, 0, 0 })
  local run = run_of { added_at = 101.0 }
  run.granted_at = nil
  t.eq(usage.of(run).timings.queue_ms, 1000.0)
  run.added_at, run.first_at, run.last_at = nil, nil, nil
  t.eq(usage.of(run).timings, {})
  local instant = usage.of(run_of { first_at = 100.5, last_at = 100.5 }).timings
  t.eq({ instant.prompt_per_second, instant.tokens_per_second, instant.prefill_ms,
    instant.decode_ms }, { nil, nil, 0, 0 })
  t.eq(usage.of(run_of { granted_at = 99 }).timings.queue_ms, 0) -- clocks differ: never negative
end)

test("metrics and the log get the numbers of a request", function(t)
  local m = metrics.new()
  local run = run_of { app = { metrics = m }, labels = { model = "m" } }
  usage.observe(run, usage.of(run), "stop")
  t.eq(run.log, { finish = "stop", model = "m", prompt_tokens = 30, completion_tokens = 9,
    cached_tokens = 6, ttft_ms = 2500.0 })
  local text = m:text()
  for _, line in ipairs { 'prompt_tokens_total{model="m"} 30',
    'generated_tokens_total{model="m"} 9', 'cached_prompt_tokens_total{model="m"} 6',
    'time_to_first_token_seconds_sum{model="m"} 2.5',
    'queue_time_seconds_sum{model="m"} 0.5' } do
    t.ok(text:find("perigee_" .. line .. "\n", 1, true), line)
  end
  run = run_of { app = {}, labels = {} }
  usage.observe(run, usage.of(run), "stop") -- no metrics
  t.eq(run.log.completion_tokens, 9)
end)

-- ---- openings -----------------------------------------------------------------------------------

--- A tokenizer whose tokens are characters, but "=a" is one.
local tok = { encode = function(_, text, o)
  if o.add_special ~= false then error "special tokens" end
  local ids = {}
  text = text:gsub("=a", "\1")
  for c in text:gmatch "." do ids[#ids + 1] = c:byte() end
  return ids
end }

local function tools(...)
  local list = {}
  for i, name in ipairs { ... } do list[i] = { ["function"] = { name = name } } end
  return list
end

test("forced calls begin with tokens that no following text changes", function(t)
  local function ids(choice, names, words)
    return opening.ids({ force_call = choice, chat = { tools = names } }, { tok = tok },
      { words = words, tail = "T" })
  end
  local words = { opening = function(_, name, o)
    t.eq(o.prompt_tail, "T")
    return name and "<" .. name or "<"
  end }
  t.eq(ids({ name = "f" }, tools("f", "g"), words), { 60, 102 })
  t.eq(ids({}, tools("fab", "fac"), words), { 60, 102, 97 })
  t.eq(ids({}, tools("x", "y"), words), { 60 })
  t.eq(ids(nil, tools "f", words), nil)
  t.eq(ids({}, nil, words), nil)
  local equals = { opening = function(_, name) return (name or "") .. "=" end }
  t.eq(ids({}, tools "f", equals), { 102 }) -- "=" may become a part of "=a"
  t.eq(ids({}, tools("a", "b"), equals), { 61 }) -- nothing in common: the opening of any call
  t.raises(function() ids({}, tools "f", { opening = function() end }) end,
    "tool_choice demands a call, which this model's format cannot force")
end)

-- ---- respond ------------------------------------------------------------------------------------

--- A run whose hook answers with fn(delta).
local function hooked(fn)
  local run = { warned = {}, req = { scripts = { call = function(_, phase, _, delta)
    if phase ~= "respond" then error(phase) end
    return fn(delta)
  end } } }
  function run.warn(_, phase, text) run.warned[#run.warned + 1] = phase .. ": " .. text end
  return run
end

test("what a respond hook may send", function(t)
  local delta = { type = "text", text = "x" }
  local function sent(answer, before)
    local run, out = hooked(function() return answer end), { index = 2, begun_calls = before }
    local list = respond.deltas(run, out, { delta })
    return #run.warned == 0 and list or run.warned[1], out
  end
  for _, fine in ipairs { { type = "text", text = "y" }, { type = "reasoning", text = "" },
    { type = "finish", finish = "stop" }, { type = "call", index = 1, name = "f", id = "i" },
    { type = "call", index = 1, name = "f", id = "i", arguments = "{" } } do
    t.eq((sent { fine }), { fine })
  end
  local begun = { type = "call", index = 1, name = "f", id = "i" }
  t.eq(#sent { begun, { type = "call", index = 1, arguments = "}" } }, 2)
  t.eq(#sent({ { type = "call", index = 3, arguments = "}" } }, { [3] = true }), 1)
  for _, wrong in ipairs { { type = "text" }, { type = "text", text = 1 },
    { type = "reasoning", text = {} }, { type = "finish", finish = "x" }, { type = "other" },
    { type = "call", index = 0, name = "f", id = "i" }, { type = "call", index = 1.5 },
    { type = "call", index = 1, arguments = "{" }, { type = "call", index = 1, name = "f" },
    { type = "call", index = 1, name = "f", id = "i", arguments = 1 }, "x" } do
    local got, out = sent { wrong }
    t.eq({ got, out.altered }, { "respond: a delta that cannot be sent" })
  end
  local got, out = sent(nil)
  t.eq({ got, out.altered }, { { delta } })
  t.eq({ sent {} }, { {}, { index = 2, begun_calls = {}, altered = true } })
  -- Hooks see the choice, and a copy.
  local seen
  respond.deltas(hooked(function(d)
    seen = d
    d.text = "changed"
  end), { index = 2 }, { delta })
  t.eq({ seen.choice, delta.text }, { 2, "x" })
end)

test("the end of an output, and answers of which nothing is left", function(t)
  local out = { index = 1, finish = "stop" }
  t.eq({ respond.finish(hooked(function() end), out) }, { {}, true })
  t.eq({ respond.finish(hooked(function() return {} end), out) }, { {}, false })
  local more = { type = "text", text = "bye" }
  t.eq({ respond.finish(hooked(function()
    return { more, { type = "finish", finish = "length" } }
  end), out) }, { { more }, true })
  t.eq(out.finish, "length")
  local function answer(text) return { index = 0, content = text, text = text, finish = "stop" } end
  local left = respond.answers(hooked(function(d)
    return d.type == "text" and d.text == "no" and {} or d.type == "finish" and {} or nil
  end), { answer "yes", answer "no" })
  t.eq({ #left, left[1].content }, { 1, "yes" })
end)

-- ---- sequences ----------------------------------------------------------------------------------

test("a sequence is added with what the request asked for", function(t)
  local given
  local batch = { core = { context = 100, vocabulary = 9 }, room = function() return 5, 80 end,
    add = function(_, request)
      given = request
      return { id = 1 }, { id = 2 }
    end }
  local words = { marks = function() return { 7 } end, parser = function() return nil end }
  local run = { req = { scripts = { has = function() return false end } }, attached = {},
    app = { config = {} }, sequences = {}, face = {},
    entry = { batch = batch, tok = tok, name = "m" },
    random_name = function() return "r" end }
  local function add(sampling, prompt, context)
    run.entry.context = context
    prompt = prompt or {}
    prompt.ids = prompt.ids or { 1, 2, 3 }
    local made = sequences.add(run, prompt,
      { sampling = sampling, n = 2, first = 4, prompt = 1, left = function() end })
    return given, made
  end
  local request, made = add({ max_tokens = 10, seed = 5 }, { words = words, boundaries = { 1 },
    media = { 2 }, positions = { 3 }, rope_delta = 4 })
  t.eq({ request.prompt, request.boundaries, request.media, request.positions, request.rope_delta,
    request.n, request.seed, request.max_tokens, request.keep_special, request.keep_logprobs },
    { { 1, 2, 3 }, { 1 }, { 2 }, { 3 }, 4, 2, 5, 10, { 7 }, false })
  t.eq({ made[1].index, made[2].index, #made }, { 4, 5, 2 })
  t.eq({ batch.ledger[1], batch.ledger[2] }, { 3 + 2 * 10, 0 })
  t.eq(add({ max_tokens = 1000 }).max_tokens, 78) -- the caches hold 80 tokens
  t.eq(add({ max_tokens = 1000 }, nil, 50).max_tokens, 47) -- the context is 50
  t.eq({ add({}).max_tokens, add({}).keep_special }, {})
  words.kept = nil
  words.marks = function() return {} end
  t.eq(add({}, { words = words }).keep_special, nil)
  batch.add = function() return nil, "no room" end
  local err = t.raises(function() add {} end, "no room")
  t.eq(err.status, 400)
end)
