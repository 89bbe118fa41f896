-- engine.scheduler, engine.step and lib.breaker without a batch: what steps take, legal moves, the
-- built-in policy, and what becomes of a policy that fails.
local breaker = require "lib.breaker"
local scheduler = require "engine.scheduler"
local selftest = require "engine.policy_selftest"
local steps = require "engine.step"
local test = require("harness").test

local function seq(id, state, left, more)
  local info = { id = id, state = state, left = left, follows = false, tag = { lane = "l" .. id } }
  for k, v in pairs(more or {}) do info[k] = v end
  return info
end

--- A decode, a prefill, two waiting sequences and one that follows another.
local function five()
  return { seq(1, "decode", 1), seq(2, "prefill", 300), seq(3, "waiting", 40),
    seq(4, "waiting", 0, { follows = true }), seq(5, "waiting", 7, { tag = 1 }) }
end

-- ---- timing -------------------------------------------------------------------------------------

test("timing: quantiles of the last 31 steps", function(t)
  local timing, decodes, each = scheduler.timing(), {}, {}
  local function want(list, share)
    local last = table.move(list, math.max(1, #list - 30), #list, 1, {})
    table.sort(last)
    return last[math.ceil(share * #last)]
  end
  local x = 7
  for i = 1, 150 do
    x = x * 1103515245 + 12345 & 0x7fffffff
    decodes[i] = x % 50 / 8
    timing:observe(decodes[i], 0, 1 + i % 3)
    t.eq(timing.decode, want(decodes, 0.5))
  end
  timing = scheduler.timing()
  for i = 1, 100 do
    x = x * 1103515245 + 12345 & 0x7fffffff
    each[i] = (x % 50 + 1) / 16
    timing:observe(each[i] * 16, 16, 0)
    t.eq(timing.prefill, want(each, 0.75))
  end
end)

test("timing: what a step tells", function(t)
  local function after(...)
    local timing = scheduler.timing()
    for _, step in ipairs { ... } do timing:observe(table.unpack(step)) end
    return { timing.decode, timing.prefill }
  end
  t.eq(after { 1.0, 0, 0 }, {}) -- nothing was computed
  t.eq(after { 1.0, 0, 1 }, { 1.0 })
  t.eq(after { 1.0, 15, 0 }, {}) -- mostly the fixed cost
  t.eq(after { 1.0, 16, 0 }, { nil, 1 / 16 })
  t.eq(after({ 1.0, 0, 1 }, { 3.0, 4, 1 }), { 1.0, 0.5 }) -- the decode is taken off
  t.eq(after({ 1.0, 0, 1 }, { 3.0, 16, 0 }), { 1.0, 3 / 16 }) -- but not without streams
  t.eq(after({ 4.0, 0, 1 }, { 4.0, 4, 1 }), { 4.0, 0.1 }) -- never less than a tenth
end)

-- ---- steps --------------------------------------------------------------------------------------

local function ids(list)
  local out = {}
  for i, info in ipairs(list) do out[i] = info.id end
  return out
end

test("a step shows sequences by state and tag", function(t)
  local step = steps.new(five(), { tokens = 100, slots = 5, free = 9 })
  t.eq({ ids(step:running()), ids(step:waiting()), ids(step:prompts()) },
    { { 1, 2 }, { 3, 5 }, { 2, 3, 5 } })
  t.eq(ids(step:running { lane = "l2" }), { 2 })
  t.eq(ids(step:waiting(function(s) return s.left > 7 end)), { 3 })
  t.eq({ step.slots, step.streams, step.left, step.tokens, step.free }, { 3, 1, 100, 100, 9 })
  t.eq(steps.new(five(), { tokens = 1, slots = 1 }).slots, 0)
  t.raises(function() step:running(1) end, "a filter must be a table or a function, got number")
end)

test("room next to streams follows what steps take", function(t)
  local function room(timing, factor, left)
    return steps.new(five(), { tokens = left or 1000, timing = timing }):room(factor)
  end
  t.eq(room(nil), 32)
  t.eq(room { decode = 1.0 }, 32)
  t.eq(room { prefill = 1.0 }, 32)
  t.eq(room { decode = 1.0, prefill = 0.01 }, 75)
  t.eq(room({ decode = 1.0, prefill = 0.01 }, 3), 200)
  t.eq(room { decode = 1.0, prefill = 9.0 }, 4)
  t.eq(room { decode = 0.001, prefill = 0.0001 }, 100) -- 10 ms, not 0.75
  t.eq(room({ decode = 1.0, prefill = 0.01 }, 3, 150), 150)
  local step = steps.new({ seq(2, "prefill", 300) }, { tokens = 100 })
  t.eq(step:room(), 100)
  step = steps.new(five(), { tokens = 100 })
  t.eq({ step:decode(), step:room(), step:prefill(2, 10), step:room(), step.left },
    { 1, 32, 10, 22, 89 })
  t.eq({ step:prefill(2), step:prefill(3, -5), step:prefill(5, 2.9) }, { 0, 0, 2 })
  t.eq(step.grants, { { 1, 1 }, { 2, 10 }, { 5, 2 } })
  t.eq({ steps.STRETCH, steps.BRIEF, steps.BLIND, steps.LEAST }, { 1.75, 0.01, 32, 4 })
end)

test("illegal moves raise with the numbers", function(t)
  local step = steps.new(five(), { tokens = 50 })
  for part, move in pairs {
    ["give: there is no sequence 9"] = function() step:give(9) end,
    ["give: there is no sequence x"] = function() step:give "x" end,
    ["give: tokens must be an integer and 0 or more, got -1"] = function() step:give(3, -1) end,
    ["give: tokens must be an integer and 0 or more, got 1.5"] = function() step:give(3, 1.5) end,
    ["give: sequence 3 can use 40 tokens, got 41"] = function() step:give(3, 41) end,
    ["give: the step has 50 tokens left, got 51"] = function() step:give(2, 51) end,
    ["prefill: sequence 1 has no prompt tokens left, it is in decode"] = function()
      step:prefill(1)
    end,
    ["preempt: sequence 3 is not running"] = function() step:preempt(3) end,
    ["order: a list of sequences or a function expected, got nil"] = function() step:order() end,
    ["order: there is no sequence 9"] = function() step:order { 9 } end,
    ["order: the key of sequence 1 must be a number, got x"] = function()
      step:order(function() return "x" end)
    end,
    ["must be a number, got nan"] = function()
      step:order(function() return math.abs(0 / 0) end)
    end,
  } do
    t.raises(move, part)
  end
  t.eq({ step.left, #step.grants }, { 50, 0 })
  t.eq(step:give(3, 40), 40)
  t.raises(function() step:give(3, 1) end, "give: sequence 3 has been given 40 tokens already")
  t.raises(function() step:give(2, 11) end, "give: the step has 10 tokens left, got 11")
  t.eq({ step:give(2), step.left, step:give(5, 0) }, { 10, 0, 0 })
  t.raises(function() step:preempt(2) end, "preempt: sequence 2 has been given tokens")
  step = steps.new(five(), { tokens = 50, slots = 4 })
  step:preempt(1)
  t.eq({ step.slots, step.streams }, { 3, 0 })
  step:preempt(1)
  t.eq({ step.slots, step.streams, ids(step:running()) }, { 3, 0, { 2 } })
  t.raises(function() step:give(1) end, "give: sequence 1 was preempted in this step")
end)

test("the built-in policy: decode, prefill, waiting, in the order that was asked for", function(t)
  local function filled(tokens, prepare)
    local step = steps.new(five(), { tokens = tokens, timing = { decode = 1.0, prefill = 0.001 } })
    if prepare then prepare(step) end
    local seen = {}
    for s, n in step:fill() do seen[#seen + 1] = s.id .. ":" .. n end
    return table.concat(seen, " ")
  end
  t.eq(filled(1000), "1:1 2:300 3:40 5:7")
  t.eq(filled(100), "1:1 2:99")
  t.eq(filled(1), "1:1")
  t.eq(filled(305), "1:1 2:300 3:4")
  t.eq(filled(50, function(s) s:order { 5, 3 } end), "5:7 3:40 1:1 2:2")
  t.eq(filled(50, function(s) s:order { s.list[3] } end), "3:40 1:1 2:9")
  t.eq(filled(50, function(s) s:order { 3, 3 } end), "3:40 1:1 2:9")
  t.eq(filled(1000, function(s) s:order(function(x) return -x.id end) end), "1:1 2:300 5:7 3:40")
  t.eq(filled(1000, function(s) s:order(function() return 0 end) end), "1:1 2:300 3:40 5:7")
  t.eq(filled(1000, function(s) s:preempt(2) end), "1:1 3:40 5:7")
  t.eq(filled(1000, function(s) s:give(3, 5) end), "1:1 2:300 5:7")
end)

-- ---- policies -----------------------------------------------------------------------------------

--- A scheduler of a policy, and what it reported.
local function scheduled(policy, options)
  local told = {}
  local s = scheduler.new(policy, { report = function(text) told[#told + 1] = text end,
    deadline_ms = options and options.deadline_ms })
  return s, told
end

test("what a policy may not do", function(t)
  local cases = {
    { function() error("broken", 0) end, "broken" },
    { function() return 1 end, "must return nothing, returned number" },
    { function() end, "gave nothing, although sequences could run" },
    { function(step) step.grants = 1 end, "overwrote the step" },
    { function(step) step.preempted = nil end, "overwrote the step" },
    { function(step) step.grants[1] = 1 end, "overwrote the step" },
    { function(step) step.grants[1] = { 3, 41 } end, "overwrote the step" },
    { function(step) step.grants[1] = { 3, 0 } end, "overwrote the step" },
    { function(step) step.grants[1] = { 3, 1.5 } end, "overwrote the step" },
    { function(step) step.grants[1] = { 4, 1 } end, "overwrote the step" },
    { function(step) step.grants[1] = { 9, 1 } end, "overwrote the step" },
    { function(step) step.grants[1] = { nil, 1 } end, "overwrote the step" },
    { function(step) step.grants[1], step.grants[2] = { 3, 1 }, { 3, 1 } end,
      "overwrote the step" },
    { function(step) step.grants[1] = { 2, 101 } end, "overwrote the step" },
    { function(step) step.preempted[9] = true step:fill() end, "overwrote the step" },
  }
  for _, case in ipairs(cases) do
    local s, told = scheduled(case[1])
    local grants = s:grants(five(), { tokens = 100 })
    t.eq(grants, { { 1, 1 }, { 2, 32 } }, case[2]) -- the built-in policy's
    t.eq(told, { "policy: " .. case[2] .. "; the built-in policy takes its place" })
  end
  for _, fine in ipairs { function(step) step.grants[1] = { 2, 100 } end,
    function(step) step.grants[1] = { 3, 40 } end,
    function(step) step:preempt(2) step:give(1) end } do
    local s, told = scheduled(fine)
    s:grants(five(), { tokens = 100 })
    t.eq(told, {})
  end
  -- Nothing to give: the policy is not even asked.
  local s, told = scheduled(error)
  t.eq({ s:grants({ seq(1, "waiting", 0), seq(2, "waiting", 5, { follows = true }) },
    { tokens = 9 }) }, { {}, {} })
  t.eq(told, {})
  t.eq({ scheduler.DEADLINE_MS > 0, scheduler.MEMORY }, { true, 64 << 20 })
  t.raises(function() scheduler.new {} end,
    "a policy must be a function or a table with `schedule`, got table")
end)

test("a policy that fails three times is switched off, until it is loaded again", function(t)
  local calls, struck = 0, {}
  local policy = { name = "p", schedule = function(_, self)
    calls = calls + 1
    error(("%s %s"):format(self.name, self.config.a), 0)
  end, config = { a = 1 }, struck = function(why, off) struck[#struck + 1] = { why, off } end }
  local s, told = scheduled(policy)
  for _ = 1, 5 do s:grants(five(), { tokens = 10 }) end
  t.eq({ calls, struck }, { 3, { { "p 1", false }, { "p 1", false }, { "p 1", true } } })
  t.eq(told, { "policy: p 1; the built-in policy takes its place",
    "policy: switched off after 3 failures until it is loaded again" })
  s:reload(policy)
  s:grants(five(), { tokens = 10 })
  t.eq({ calls, #told }, { 4, 3 })
  local given
  s = scheduled { schedule = function(step, self)
    given = self.state
    step:fill()
  end, state = function() return { n = 5 } end }
  t.eq(s.deadline_ms, scheduler.DEADLINE_MS)
  t.eq(s:grants({ seq(1, "decode", 1) }, { tokens = 10 }), { { 1, 1 } })
  t.eq(given, { n = 5 })
end)

test("the breaker counts failures of the last minute", function(t)
  local b = breaker.new()
  t.eq({ b:strike("a\nb", 0), b:strike("c", 59), b.recent, b.total, b.last },
    { false, false, 2, 2, "c" })
  t.eq({ b:strike("d", 60), b.recent }, { false, 2 }) -- the first is a minute old
  t.eq({ b:strike(("e"):rep(2000), 118), #b.last, b.recent, b.total }, { true, 1000, 3, 4 })
  t.eq({ b:strike("f", 1000), b.recent }, { true, 1 }) -- it stays off
  b:reset()
  t.eq({ b.off, b.recent, b.total, b.last }, { false, 0, 0 })
  b = breaker.new { strikes = 1, window_s = 5 }
  t.eq(b:strike "x", true)
  t.eq({ breaker.STRIKES, breaker.WINDOW_S }, { 3, 60 })
end)

test("the selftest of a policy has every state, and the times of steps", function(t)
  local seen = {}
  selftest.run(function(step)
    local states = {}
    for i, s in ipairs(step.list) do
      states[i] = ("%d %s %d of %d, %d %d %d %d %d %d%s"):format(s.id, s.state, s.left, s.prompt,
        s.past, s.generated, s.cached, s.choice, s.age, s.bytes, s.follows and " follows" or "")
    end
    seen[#seen + 1] = { states, step.timing, step.tokens, step.free }
    step:fill()
  end, { deadline_ms = 1000 })
  t.eq(seen, { { { "1 waiting 40 of 40, 0 0 0 0 0 0", "2 waiting 5000 of 5000, 0 0 0 0 0 0" }, {},
      512, 8192 },
    { { "1 decode 1 of 40, 40 3 0 0 0 0", "2 prefill 4500 of 5000, 500 0 0 0 0 0",
        "3 waiting 40 of 40, 0 0 16 0 0 0", "4 waiting 0 of 40, 0 0 0 1 0 0 follows" },
      { decode = 0.01, prefill = (0.02 - 0.01) / 64 }, 512, 8192 } })
  local n = 0
  t.raises(function()
    selftest.run(function(step)
      n = n + 1
      if n == 2 then error("second", 0) end
      step:fill()
    end, { deadline_ms = 1000 })
  end, "step 2: second")
end)
