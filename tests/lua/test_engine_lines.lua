-- What an engine and a batch hand to Lua, line by line: logits, taps, choices, events, the trace.
local perigee = require "perigee"
local test = require("harness").test
local tiny = require "tiny"

test("lines of logits and of taps are those of their rows", function(t)
  local model = tiny.model()
  local name = model.graph:values()[1].name
  local ids = { 5, 77, 3, 200, 9 }
  --- Runs the ids in these portions; logits of every row, and the taps.
  local function run(portions)
    local engine = assert(perigee.engine.open(model.graph,
      { threads = 1, tokens = 64, sequences = 1, taps = { name } }))
    local seq, at, lines, taps = engine:add(), 1, {}, {}
    for _, n in ipairs(portions) do
      local part = table.move(ids, at, at + n - 1, 1, {})
      t.eq(engine:step { { seq = seq, ids = part, outputs = n } }, n)
      t.eq(engine.outputs, n)
      local logits, tap = engine:logits(), engine:tap(1)
      t.eq({ logits.shape, tap.shape[1] }, { { n, 256 }, n })
      for i = 1, n do
        local line = logits:select(1, i)
        lines[at + i - 1], taps[at + i - 1] = line:totable(), tap:select(1, i):flatten():totable()
        local best = 1
        for k, v in ipairs(lines[at + i - 1]) do
          if v > lines[at + i - 1][best] then best = k end
        end
        t.eq(engine:argmax(i), best - 1)
        t.eq(engine:sample(i, { temperature = 0 }), best - 1)
        t.eq(engine:sample(i, { top_k = 1, seed = 7 }), best - 1)
      end
      for _, wrong in ipairs { 0, n + 1 } do
        t.raises(function() engine:argmax(wrong) end, "no such line of logits")
        t.raises(function() engine:sample(wrong) end, "no such line of logits")
      end
      at = at + n
    end
    for _, wrong in ipairs { 0, 2 } do
      t.raises(function() engine:tap(wrong) end, "no such tap")
    end
    engine:close()
    return lines, taps
  end
  local lines, taps = run { 5 }
  local one_lines, one_taps = run { 1, 1, 1, 1, 1 }
  local two_lines, two_taps = run { 2, 3 }
  t.ok(#lines == 5 and lines[1][1] ~= lines[2][1])
  for i = 1, 5 do
    t.eq({ one_lines[i], two_lines[i] }, { lines[i], lines[i] })
    t.eq({ one_taps[i], two_taps[i] }, { taps[i], taps[i] })
  end
end)

test("each of several taps is the value that was named", function(t)
  local model = tiny.model()
  local values, names = model.graph:values(), {}
  for i = 1, 5 do names[i] = values[i].name end
  local function run(taps)
    local engine = assert(perigee.engine.open(model.graph,
      { threads = 1, tokens = 64, sequences = 1, taps = taps }))
    engine:step { { seq = engine:add(), ids = { 5, 77 }, outputs = 1 } }
    local out = {}
    for i in ipairs(taps) do out[i] = engine:tap(i):flatten():totable() end
    engine:close()
    return out
  end
  local together = run(names)
  t.eq(#together, 5)
  for i, name in ipairs(names) do t.eq(together[i], run({ name })[1], name) end
end)

test("defaults of drawing", function(t)
  local model = tiny.model()
  local engine = assert(perigee.engine.open(model.graph, { threads = 1, tokens = 64 }))
  engine:step { { seq = engine:add(), ids = { 1, 2 }, outputs = 1 } }
  local full = { temperature = 1, top_p = 1, min_p = 0, top_k = 0, position = 0 }
  for seed = 0, 20 do
    full.seed = seed
    t.eq(engine:sample(1, { seed = seed }), engine:sample(1, full))
  end
  full.seed = 0
  t.eq(engine:sample(1, {}), engine:sample(1, full))
  engine:close()
end)

test("events list alternatives, best first, and the trace keeps 256 steps", function(t)
  local model = tiny.model()
  local batch <close> = assert(perigee.batch.open(model.graph,
    { sequences = 2, context = 512, cache_tokens = 1024, threads = 1 }))
  local id = assert(batch:command("add", { prompt = { 1, 2 }, max_tokens = 300, temperature = 0,
    ignore_eos = true, top_logprobs = 4 }))
  local tokens, finish = 0, nil
  for _ = 1, 310 do
    for _, event in ipairs((batch:step { { id, 16 } })) do
      if event.id then
        tokens = tokens + 1
        t.eq(#event.top, 4)
        t.eq({ event.top[1].id, event.top[1].logprob }, { event.id, event.logprob })
        for k = 2, 4 do t.ok(event.top[k].logprob <= event.top[k - 1].logprob) end
      end
      if event.finish then finish = event end
    end
    if finish then break end
  end
  t.eq({ tokens, finish.finish, finish.prompt_tokens, finish.completion_tokens, finish.stop },
    { 300, "length", 2, 300 })
  local stats = batch:stats()
  t.eq({ stats.steps, #batch:trace(1000, -1), #batch:trace(10, -1) }, { 300, 256, 10 })
  local trace = batch:trace(1000, -1)
  for i = 2, #trace do
    if trace[i].at < trace[i - 1].at then return t.fail "not in the order of time" end
  end
end)

test("states are kept at the boundaries of a prompt, in whatever order they are given", function(t)
  for _, boundaries in ipairs { { 7, 18 }, { 18, 7 } } do
    local model <close> = assert(perigee.open("tests/golden/qwen3_next", { threads = 1 }))
    local batch <close> = assert(model:batch { sequences = 1, stride = 1 << 20,
      cache_bytes = 16 << 20 })
    local ids = {}
    for i = 1, 30 do ids[i] = 2 + i * 7 % 60 end
    --- The tokens that a prompt which shares the first n has from the cache.
    local function cached(n)
      local prompt = table.move(ids, 1, n, 1, {})
      for i = n + 1, 30 do prompt[i] = 70 end
      local seq = assert(batch:add { prompt = prompt, max_tokens = 1, temperature = 0 })
      assert(batch:run())
      return seq.cached_tokens
    end
    assert(batch:add { prompt = ids, boundaries = boundaries, max_tokens = 1, temperature = 0 })
    assert(batch:run())
    t.eq({ cached(6), cached(10), cached(20) }, { 0, 7, 18 }, table.concat(boundaries, " "))
  end
end)
