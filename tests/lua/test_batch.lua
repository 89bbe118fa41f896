-- Batches from Lua: many sequences at once give what each gives alone, in the foreground and on the
-- engine thread; policies that misbehave; sequences by hand.
local breaker = require "lib.breaker"
local perigee = require "perigee"
local help = require "repl.help"
local scheduler = require "engine.scheduler"
local steps = require "engine.step"
local test = require("harness").test
local uv = require "luv"

local forced = ...
local PATIENCE = forced and 1000 or 2 -- milliseconds of a policy: every allocation collects
local MODELS = forced and { "gemma3_text" }
  or { "llama", "gemma3_text", "deepseek_v3", "qwen3_5", "nemotron_h" }

local function open(name)
  return assert(perigee.open("tests/golden/" .. name, { threads = 2 }))
end

local ids_of = require("samples").ids

--- Requests of many kinds; some begin alike, one is there twice.
local function requests(vocab)
  local shared = ids_of(40, 1, vocab)
  local function with(head, tail, more)
    local prompt = table.move(tail, 1, #tail, #head + 1, table.move(head, 1, #head, 1, {}))
    more.prompt, more.max_tokens = prompt, more.max_tokens or 12
    return more
  end
  return {
    with({}, ids_of(5, 2, vocab), { temperature = 0 }),
    with(shared, ids_of(9, 3, vocab), { temperature = 1, seed = 11 }),
    with(shared, ids_of(3, 4, vocab),
      { temperature = 0.7, seed = 12, top_p = 0.9, repetition_penalty = 1.3 }),
    with({}, ids_of(61, 5, vocab),
      { temperature = 1.4, seed = 13, top_k = 20, presence_penalty = 0.6, penalty_window = 16 }),
    with({}, ids_of(1, 6, vocab),
      { temperature = 1, seed = 14, min_p = 0.05, frequency_penalty = 0.4 }),
    with(shared, {}, { temperature = 1, seed = 15, typical_p = 0.8, max_tokens = 20,
      ignore_eos = true }),
    with(shared, {}, { temperature = 1, seed = 15, typical_p = 0.8, max_tokens = 20,
      ignore_eos = true }),
    with({}, ids_of(17, 7, vocab),
      { temperature = 1, seed = 16, xtc_probability = 0.5, logit_bias = { [3] = 4, [5] = -100 } }),
    with({}, ids_of(8, 8, vocab),
      { temperature = 1, seed = 17, bad_words = { { 4 }, { 9, 2 } }, min_tokens = 6,
      top_logprobs = 3 }),
  }
end

local function copy(request)
  local out = {}
  for k, v in pairs(request) do out[k] = v end
  return out
end

local function alone(model, request)
  local batch <close> = assert(model:batch { sequences = 1, cache_bytes = 0, kv_block = 16 })
  local seq = assert(batch:add(copy(request)))
  assert(batch:run())
  return seq
end

for _, name in ipairs(MODELS) do
  test("mixed sampling in one batch: " .. name, function(t)
    local model <close> = open(name)
    local list, want = requests(model.config.vocab_size), {}
    if forced then list = { list[2], list[3], list[6] } end
    for i, r in ipairs(list) do want[i] = alone(model, r) end
    for _, options in ipairs { { sequences = 3, step_tokens = 7, kv_block = 4 },
      { sequences = 16, step_tokens = 64, threads = 1 },
      { sequences = 4, cache_tokens = 160, kv_block = 8, context = 128 } } do
      local batch <close> = assert(model:batch(options))
      local sequences = {}
      for i = #list, 1, -1 do sequences[i] = assert(batch:add(copy(list[i]))) end
      assert(batch:run())
      for i, seq in ipairs(sequences) do
        t.eq(seq.ids, want[i].ids)
        t.eq(seq.finish, want[i].finish)
        t.eq(seq.logprobs, want[i].logprobs)
      end
      t.eq(#batch:sequences(), 0)
    end
  end)
end

test("n choices are sequences with seeds of their own", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 8 })
  local request = { prompt = ids_of(20, 3, 100), max_tokens = 8, temperature = 1, seed = 40 }
  local sequences = { batch:add { prompt = request.prompt, max_tokens = 8, temperature = 1,
    seed = 40, n = 3 } }
  t.eq(#sequences, 3)
  assert(batch:run())
  for i, seq in ipairs(sequences) do
    request.seed = 39 + i
    t.eq(seq.ids, alone(model, request).ids)
  end
  t.eq(batch:stats().finished, 3)
end)

test("events, counters and the trace", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 4, step_tokens = 16 })
  local seen, done = {}, 0
  local request = { prompt = ids_of(40, 1, 100), max_tokens = 5, temperature = 0,
    ignore_eos = true }
  request.on_token = function(e, r)
    if e.id then seen[#seen + 1] = e.id end
    t.eq(r.id, e.seq)
  end
  request.on_done = function() done = done + 1 end
  local seq = assert(batch:add(request))
  t.eq(batch:sequences()[1].state, "waiting")
  local events, ran = batch:step()
  t.eq(#events, 0)
  t.eq(ran, 1)
  t.eq(batch:sequences()[1].state, "prefill")
  t.eq(batch:sequences()[1].left, 24)
  t.eq(#assert(batch:step { { seq, 1000 } }), 0)
  assert(batch:run())
  t.eq(seen, seq.ids)
  t.eq(done, 1)
  local stats = batch:stats()
  t.eq({ stats.prefill_tokens, stats.decode_tokens, stats.finished, stats.running },
    { 40, 5, 1, 0 })
  local trace = batch:trace()
  t.eq(#trace, stats.steps)
  t.eq({ trace[1].tokens, trace[1].prefill, trace[1].decode }, { 16, 1, 0 })
  t.eq({ #batch.core:trace(256, trace[1].at), #batch.core:trace(2, 0) }, { #trace - 1, 2 })
  t.eq(batch.core:trace(9, trace[#trace].at), {})
  t.eq(trace[1].lua > 0, true)
  t.eq(stats.lua >= trace[1].lua, true)
  local total = 0
  for ms, n in pairs(stats.histogram) do
    t.eq(math.log(ms, 2) % 1, 0.0)
    total = total + n
  end
  t.eq(total, stats.steps)
  t.eq({ trace[#trace].tokens, trace[#trace].decode }, { 1, 1 })
  local again = assert(batch:add { prompt = ids_of(40, 1, 100), max_tokens = 5, temperature = 0,
    ignore_eos = true })
  assert(batch:run())
  t.eq(again.ids, seq.ids)
  t.eq(again.cached_tokens, 39)
end)

test("stop strings, text and end of text", function(t)
  local model <close> = assert(perigee.open("examples/moonlet", { threads = 2 }))
  local batch <close> = assert(model:batch { sequences = 4 })
  local whole = assert(batch:add { prompt = "Once upon a time", max_tokens = 24, temperature = 0,
    ignore_eos = true })
  assert(batch:run())
  local at = whole.text:find("[%w]", 12)
  local word = whole.text:sub(at, at + 3)
  local pieces = {}
  local cut = assert(batch:add { prompt = "Once upon a time", max_tokens = 24, temperature = 0,
    ignore_eos = true,
    stop = { "no such text", word }, on_token = function(e) pieces[#pieces + 1] = e.text end })
  assert(batch:run())
  t.eq(cut.text, whole.text:sub(1, whole.text:find(word, 1, true) - 1))
  t.eq(table.concat(pieces), cut.text)
  t.eq(cut.finish, "stop")
  t.eq(cut.stop, 2)
end)

test("sequences by hand", function(t)
  local model <close> = open "qwen3_5"
  local batch <close> = assert(model:batch { sequences = 4, kv_block = 8 })
  local seq = assert(batch:add { prompt = ids_of(30, 1, 100), max_tokens = 12, temperature = 0 })
  assert(seq:force { 7, 8 })
  for _ = 1, 3 do batch:step() end
  t.eq({ seq.ids[1], seq.ids[2] }, { 7, 8 })
  assert(seq:keep_logits())
  batch:step()
  local logits = seq:logits()
  t.eq(logits.shape, { model.config.vocab_size })
  t.eq(seq:best(), seq.ids[#seq.ids])
  local child = assert(seq:fork(5))
  assert(child:bias { [9] = 1000 })
  batch:step()
  t.eq(child.ids[#child.ids], 9)
  t.eq(#child.ids, #seq.ids)
  assert(child:cancel())
  local path = os.tmpname()
  assert(seq:save(path))
  assert(batch:run())
  t.eq(#seq.ids, 12)
  t.eq(child.finish, "cancel")
  local other <close> = assert(model:batch { sequences = 2 })
  assert(other:load(path))
  local repeated = assert(other:add { prompt = ids_of(30, 1, 100), max_tokens = 1,
    temperature = 0 })
  assert(other:run())
  t.eq(repeated.ids[1] ~= nil, true)
  local file = assert(io.open(path, "r+b"))
  file:seek("set", 200)
  file:write "broken"
  file:close()
  t.fails("format", other:load(path))
  os.remove(path)
  t.fails("io", other:load(path))
end)

test("trim goes back to what was before", function(t)
  for _, name in ipairs { "llama", "nemotron_h" } do
    local model <close> = open(name)
    local batch <close> = assert(model:batch { sequences = 2 })
    local seq = assert(batch:add { prompt = ids_of(20, 4, 100), max_tokens = 10, temperature = 1,
      seed = 3, ignore_eos = true })
    for _ = 1, 6 do batch:step() end
    local before = #seq.ids
    t.eq(before > 3, true)
    assert(seq:trim(22))
    assert(batch:run())
    local first, again = { table.unpack(seq.ids, 3, before) },
      { table.unpack(seq.ids, before + 1, 2 * before - 2) }
    t.eq(again, first)
  end
end)

test("what is pinned stays", function(t)
  local model <close> = open "qwen3_5"
  local pinned = ids_of(24, 1, 100)
  local function request(prompt) return { prompt = prompt, max_tokens = 1, temperature = 0 } end
  local batch <close> = assert(model:batch { sequences = 1, context = 40, kv_block = 8,
    cache_tokens = 96 })
  local function cached(prompt)
    local seq = assert(batch:add(request(prompt)))
    assert(batch:run())
    return seq.cached_tokens
  end
  local function flood(seed) for i = 1, 12 do cached(ids_of(32, seed + i, 100)) end end
  t.eq(batch:pin(pinned), 0) -- it is not there yet
  cached(pinned)
  local free = batch:room()
  t.eq(batch:pin(pinned), 24)
  t.eq(batch:room(), free - 24)
  flood(10)
  t.eq(cached(pinned), 23)
  assert(batch:start())
  t.eq(batch:pin(pinned, { off = true }), true)
  assert(batch:stop())
  t.eq(batch:room(), free)
  flood(30)
  t.eq(cached(pinned), 0)
  t.raises(function() batch:pin({ 1, "x" }) end, "pin[2] must be a token id, got x")
  t.raises(function() batch:pin({ 1 }, { of = true }) end, "'of'")
end)

test("the fields of a request are those of its annotations", function(t)
  local noted, described = {}, {}
  for _, e in ipairs(help.entries()) do
    if e.class == "perigee.BatchRequest" and e.kind == "field" then
      noted[e.member] = e.description
    end
  end
  for _, f in ipairs(perigee.batch.fields()) do
    described[f.name] = f
    t.eq(noted[f.name], f.type .. "  " .. f.help, f.name)
    if type(f.default) == "number" then
      t.ok(f.default >= (f.min or f.default) and f.default <= (f.max or f.default), f.name)
    end
    noted[f.name] = nil
  end
  for name, description in pairs(noted) do
    t.ok(not description:match "^number" and not description:match "^boolean"
      and not description:match "^integer ",
      name .. " is annotated, but batch.fields() lacks it")
  end
  local top_p, max_tokens, seed = described.top_p, described.max_tokens, described.seed
  t.eq({ top_p.type, top_p.min, top_p.max, top_p.above, top_p.default },
    { "number", 0.0, 1.0, true, 1.0 })
  t.eq({ max_tokens.min, max_tokens.max, max_tokens.default }, { 0 })
  t.eq({ seed.type, seed.min, seed.max, seed.default }, { "integer", nil, nil, 0 })
end)

test("an error about a field names it", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 2, context = 64 })
  local function field(more)
    more.prompt = more.prompt or { 1 }
    return t.fails("argument", batch:add(more)).field
  end
  t.eq(field { top_p = 2 }, "top_p")
  t.eq(field { max_tokens = -1 }, "max_tokens")
  t.eq(field { top_k = 1 << 40 }, "top_k")
  t.eq(field { n = 0 }, "n")
  t.eq(field { stop_ids = { -1 } }, "stop_ids")
  t.eq(field { logit_bias = { [100000] = 1 } }, "logit_bias")
  t.eq(field { prompt = {} }, "prompt")
  local seq = assert(batch:add { prompt = { 1 } })
  t.raises(function() seq:bias { abc = 7 } end, "got [abc] = 7")
end)

test("what cannot be", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 2, context = 64 })
  t.raises(function() batch:add { prompt = { 1 }, temprature = 1 } end,
    "unknown key 'temprature', did you mean 'temperature'?")
  t.raises(function() batch:add { max_tokens = 1 } end, "prompt is missing")
  t.raises(function() batch:add { prompt = { 1, "x" } } end, "prompt[2] must be a token id, got x")
  t.raises(function() batch:add { prompt = { 1 }, stop = 5 } end,
    "stop must be a string or a list of strings, got number")
  t.raises(function() model:batch { sequencez = 2 } end,
    "unknown option 'sequencez', did you mean 'sequences'?")
  t.match(tostring(t.fails("argument", batch:add { prompt = { 1 }, temperature = -2 })),
    "temperature must be 0 or more, got %-2")
  t.match(tostring(t.fails("argument", batch:add { prompt = { 1 }, top_p = 0 / 0 })),
    "top_p must be above 0 and at most 1, got")
  t.match(tostring(t.fails("argument", batch:add { prompt = { 1 }, min_p = math.huge })),
    "min_p must be between 0 and 1, got inf")
  t.match(tostring(t.fails("argument", batch:add { prompt = { 100000 } })), "100000")
  t.match(tostring(t.fails("limit", batch:add { prompt = ids_of(64, 1, 100) })), "64")
  t.match(tostring(t.fails("argument", batch:add { prompt = { 1 }, stop = "x" })),
    "stop strings need a tokenizer")
  t.raises(function() batch:step { { "a", 1 } } end, "grants[1]")
  t.raises(function() batch.core:submit {} end, "start it first")
  t.eq(batch.core:drain(), {})
  local seq = assert(batch:add { prompt = { 1 }, max_tokens = 3, temperature = 0 })
  assert(batch:step { { seq, 99 }, { 77, 1 }, { seq, 1 } })
  assert(batch:run())
  t.eq(seq.finish, "length")
  t.fails("not_found", seq:force { 1 })
end)

test("cancelled sequences say so, with and without a step", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 2 })
  local seq = assert(batch:add { prompt = { 1, 2 }, max_tokens = 9, temperature = 0,
    ignore_eos = true })
  batch:step()
  seq:cancel()
  local other = assert(batch:add { prompt = { 1, 2 }, max_tokens = 2, temperature = 0,
    ignore_eos = true })
  other:cancel()
  assert(batch:run())
  t.eq({ seq.finish, #seq.ids, other.finish, #other.ids }, { "cancel", 1, "cancel", 0 })
  local third = assert(batch:add { prompt = { 1 } })
  third:cancel()
  assert(batch:start())
  t.eq(third.finish, "cancel")
  assert(batch:stop())
end)

-- ---- policies ---------------------------------------------------------------------------------

test("the breaker counts failures within a window, until it is reset", function(t)
  local b = breaker.new { strikes = 3, window_s = 10 }
  t.eq({ b:strike("one\ntraceback", 1), b.last, b.recent, b.total }, { false, "one", 1, 1 })
  t.eq({ b:strike("two", 5), b:strike("three", 12), b.recent, b.total }, { false, false, 2, 3 })
  t.eq({ b:strike("four", 14), b.off, b.recent }, { true, true, 3 })
  t.eq({ b:strike("five", 90), b.recent, b.total }, { true, 1, 5 }) -- it stays off
  b:reset()
  t.eq({ b.off, b.recent, b.total, b.last }, { false, 0, 0 })
end)

test("without options the breaker opens at the third failure within a minute", function(t)
  local b = breaker.new()
  t.eq({ b:strike("one", 0), b:strike("two", 59) }, { false, false })
  t.eq({ b:strike("three", 60.5), b.recent }, { false, 2 }) -- the first one is forgotten
  t.eq({ b:strike("four", 61), b.off, b.recent }, { true, true, 3 })
end)

local bad_policies = {
  { "raises", function() error "no idea" end, "no idea" },
  { "loops", function() while true do end end, "deadline" },
  { "returns nonsense", function() return 42 end, "returned number" },
  { "gives nothing", function() end, "gave nothing" },
  { "gives more than there is",
    function(step) step:give(step:waiting()[1] or step:running()[1], 100000) end,
    "sequence 1 can use %d+ tokens, got 100000" },
  { "gives to a sequence that does not exist", function(step) step:give(99, 1) end,
    "no sequence 99" },
  { "gives twice", function(step)
    local seq = step:waiting()[1] or step:running()[1]
    step:give(seq, 1)
    step:give(seq, 1)
  end, "has been given 1" },
  { "gives a fraction", function(step) step:give(1, 0.5) end, "got 0.5" },
}

test("policies that misbehave are replaced, reported once and switched off", function(t)
  local model <close> = open "llama"
  local request = { prompt = ids_of(12, 1, 100), max_tokens = 6, temperature = 1, seed = 5 }
  local want = alone(model, request).ids
  for _, bad in ipairs(bad_policies) do
    local told, calls = {}, 0
    local function report(line) told[#told + 1] = line end
    local function policy(step)
      calls = calls + 1
      return bad[2](step)
    end
    local batch <close> = assert(model:batch { sequences = 2, report = report, policy = policy })
    batch.scheduler.deadline_ms = PATIENCE
    local seq = assert(batch:add(copy(request)))
    assert(batch:run())
    t.eq(seq.ids, want)
    t.eq(calls, 3, bad[1])
    t.eq(#told, 2)
    t.match(told[1], bad[3])
    t.match(told[2], "switched off after 3")
    batch.scheduler:reload(function(step) step:fill() end)
    assert(batch:add(copy(request)))
    assert(batch:run())
    t.eq(batch.scheduler.breaker.recent, 0)
  end
end)

test("what a policy does to sequences, once it has given, is gone in the next step", function(t)
  local model <close> = open "llama"
  local request = { prompt = ids_of(20, 1, 100), max_tokens = 6, temperature = 1, seed = 5,
    ignore_eos = true }
  local want, states = alone(model, request).ids, {}
  request.tag = { lane = "a" }
  local function policy(step)
    for _, info in pairs(step.sequences) do
      states[#states + 1] = { info.id, info.state, info.left, info.tag.lane }
    end
    step:fill()
    for number, info in pairs(step.sequences) do
      for key in pairs(info) do info[key] = nil end
      setmetatable(info, { __index = error, __newindex = error })
      step.sequences[number] = nil
    end
    for key in pairs(step.timing) do step.timing[key] = "now" end
  end
  local function report(line) t.fail(line) end
  local batch <close> = assert(model:batch { sequences = 2, report = report, policy = policy })
  batch.scheduler.deadline_ms = PATIENCE
  local seq = assert(batch:add(request))
  assert(batch:run())
  t.eq(seq.ids, want)
  t.eq(states[1], { seq.id, "waiting", 20, "a" })
  for i = 2, 6 do t.eq(states[i], { seq.id, "decode", 1, "a" }) end
end)

test("timing is that of the last steps, in whatever order they come", function(t)
  local timing, last, next_random = scheduler.timing(), {}, 1
  for i = 1, 200 do
    next_random = next_random * 48271 % 0x7fffffff
    last[#last + 1] = next_random % 40 / 1000
    if #last > 31 then table.remove(last, 1) end
    timing:observe(last[#last], 0, 1)
    local sorted = table.move(last, 1, #last, 1, {})
    table.sort(sorted)
    t.eq(timing.decode, sorted[math.ceil(#sorted / 2)], i)
  end
end)

test("a policy orders and preempts", function(t)
  local model <close> = open "llama"
  local finished, preempted = {}, false
  local batch <close> = assert(model:batch { sequences = 4, step_tokens = 8, policy = function(step)
    local sequences = step:waiting()
    table.sort(sequences, function(a, b) return a.id > b.id end)
    step:order(sequences)
    for _, seq in ipairs(step:running()) do
      if not preempted and seq.generated == 2 then
        preempted = true
        step:preempt(seq)
        t.raises(function() step:give(seq, 1) end, "was preempted")
      end
    end
    step:fill()
  end })
  local request = { prompt = ids_of(8, 1, 100), max_tokens = 5, temperature = 1, seed = 9 }
  for i = 1, 3 do
    local r = copy(request)
    r.seed = i
    r.on_done = function(seq) finished[#finished + 1] = seq end
    assert(batch:add(r))
  end
  assert(batch:run())
  t.eq(preempted, true)
  t.eq(batch.scheduler.breaker.last, nil)
  t.eq(batch:stats().preempted, 1)
  for _, seq in ipairs(finished) do
    request.seed = seq.id
    t.eq(seq.ids, alone(model, request).ids)
  end
end)

test("prompts are read beside streams only as far as time allows", function(t)
  local timing = scheduler.timing()
  for _ = 1, 10 do timing:observe(0.10, 0, 4) end
  timing:observe(0.30, 40, 4) -- 5 ms for each prompt token
  local runner = scheduler.new(nil,
    { report = function(line) error(line) end, deadline_ms = forced and PATIENCE or nil })
  local function seq(number, state, left)
    return { id = number, state = state, left = left, follows = false }
  end
  local grants = runner:grants({ seq(1, "decode", 1), seq(2, "prefill", 4000),
    seq(3, "waiting", 50), seq(4, "decode", 1) },
    { tokens = 512, timing = timing, free = 10000 })
  t.eq(grants, { { 1, 1 }, { 4, 1 }, { 2, 15 } }) -- 1.75 times as long
  local function room(tokens)
    return steps.new({ seq(1, "decode", 1), seq(2, "prefill", 9) },
      { tokens = tokens, timing = timing, free = 9 }):room()
  end
  t.eq(steps.new({ seq(1, "decode", 1) }, { tokens = 512 }):room(), 32) -- nothing measured yet
  for _ = 1, 2 do timing:observe(0.14, 40, 4) end -- some are quick: that is not believed yet
  t.eq(room(512), 15)
  for _ = 1, 8 do timing:observe(0.14, 40, 4) end -- 1 ms
  t.eq(room(512), 75)
  timing:observe(1, 2, 0) -- a short prompt alone says nothing
  t.eq(room(512), 75)
  t.eq(room(50), 50)
  grants = runner:grants({ seq(2, "prefill", 400), seq(3, "waiting", 500) },
    { tokens = 512, timing = timing, free = 10000 })
  t.eq(grants, { { 2, 400 }, { 3, 112 } }) -- nobody writes: all of the step
  grants = runner:grants({ seq(1, "waiting", 0) }, { tokens = 512, timing = timing, free = 0 })
  t.eq(grants, {})
end)

-- ---- the engine thread ------------------------------------------------------------------------

test("on the engine thread, while the loop goes on", function(t)
  local model = open "gemma3_text"
  local list, want = requests(model.config.vocab_size), {}
  if forced then list = { list[2], list[3], list[6] } end
  for i, r in ipairs(list) do want[i] = alone(model, r).ids end
  local batch = assert(model:batch { sequences = 4, step_tokens = 16, kv_block = 4 })
  local left, ticks = #list, 0
  local timer = uv.new_timer()
  timer:start(0, 1, function() ticks = ticks + 1 end)
  assert(batch:start())
  t.raises(function() batch.core:step {} end, "stop it first")
  t.raises(function() batch:load "x" end, "a function for the result is needed")
  for i, r in ipairs(list) do
    r = copy(r)
    r.on_done = t.expect(function(seq)
      t.eq(seq.ids, want[i])
      left = left - 1
      if left > 0 then return end
      timer:close()
      assert(batch:stop())
      t.eq(batch:stats().finished, #list)
      batch:close()
      model:close()
    end)
    assert(batch:add(r))
  end
end)

test("cancelled and stopped in the middle, and on again in the foreground", function(t)
  local model = open "llama"
  local request = { prompt = ids_of(10, 1, 100), max_tokens = 40, temperature = 1, seed = 2,
    ignore_eos = true }
  local want = alone(model, request).ids
  local batch = assert(model:batch { sequences = 4 })
  local gone = copy(request)
  local first, second
  gone.on_token = function(e, seq)
    if #seq.ids == 3 and not e.finish then seq:cancel() end
  end
  gone.on_done = t.expect(function(seq) t.eq(seq.finish, "cancel") end)
  local stays = copy(request)
  stays.on_token = function(_, seq)
    if #seq.ids ~= 10 or seq.stopping then return end
    seq.stopping = true
    local timer = uv.new_timer()
    timer:start(0, 0, t.expect(function()
      timer:close()
      assert(batch:stop())
      t.eq(first.finish, "cancel")
      assert(batch:run())
      t.eq(second.ids, want)
      batch:close()
      model:close()
    end))
  end
  assert(batch:start(function(step) step:fill() end))
  first, second = assert(batch:add(gone)), assert(batch:add(stays))
end)

test("a request may say how its answers begin", function(t)
  local model = open(MODELS[1])
  local batch = assert(model:batch { sequences = 4 })
  local request = { prompt = { 1, 2, 3 }, max_tokens = 8, temperature = 1, seed = 4,
    ignore_eos = true, n = 2,
    force = { 5, 9, 3 } }
  local sequences = { batch:add(copy(request)) }
  assert(batch:run())
  for i = 1, 2 do
    t.eq({ sequences[i].ids[1], sequences[i].ids[2], sequences[i].ids[3], #sequences[i].ids },
      { 5, 9, 3, 8 })
  end
  local refused, why = batch:add { prompt = { 1 }, force = { 999999 } }
  t.eq({ refused, batch.alive }, { nil, 1 })
  t.ok(tostring(why):find("999999", 1, true), tostring(why))
  assert(batch:start())
  local left = 2
  -- now its prompt is in the prefix cache, and the first step writes
  request.on_done = t.expect(function(seq)
    t.eq(seq.ids, sequences[seq.ids[4] == sequences[1].ids[4] and 1 or 2].ids)
    left = left - 1
    if left > 0 then return end
    assert(batch:stop())
    batch:close()
    model:close()
  end, 2)
  batch:add(copy(request))
end)
