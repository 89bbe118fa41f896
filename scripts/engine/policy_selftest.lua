-- policy_selftest: tries a policy on two steps that no model computes, under its deadline.
local scheduler = require "engine.scheduler"

local selftest = { STEPS = 2 }

local function seq(number, state, more)
  local info = { id = number, state = state, left = state == "decode" and 1 or 40, prompt = 40,
    past = 0, generated = 0, cached = 0, choice = 0, follows = false, age = 0, bytes = 0, tag = {} }
  for key, value in pairs(more or {}) do info[key] = value end
  return info
end

--- Sequences of every state: a prompt longer than the step, and a choice that waits for the first
--- one.
local function sequences_of(step)
  if step == 1 then
    return { seq(1, "waiting"), seq(2, "waiting", { left = 5000, prompt = 5000 }) }
  end
  return { seq(1, "decode", { past = 40, generated = 3 }),
    seq(2, "prefill", { left = 4500, prompt = 5000, past = 500 }),
    seq(3, "waiting", { cached = 16 }),
    seq(4, "waiting", { follows = true, choice = 1, left = 0 }) }
end

--- What is wrong with a policy's answer to a step, or nil.
local function problem(given, step, timing, ms)
  local failed = false
  local tried = scheduler.new(given, { deadline_ms = ms, report = function() failed = true end })
  tried:grants(sequences_of(step), { tokens = 512, timing = timing, free = 8192 })
  return failed and tried.breaker.last or nil
end

--- Tries a policy; raises its first failure. options: deadline_ms. A deadline counts when the step
--- exceeds it twice: a garbage collection of the whole process can fall into one call.
function selftest.run(given, options)
  local ms = math.min(options.deadline_ms, scheduler.DEADLINE_MS)
  local timing = scheduler.timing()
  for step = 1, selftest.STEPS do
    local why = problem(given, step, timing, ms)
    if why and why:find "deadline exceeded" then why = problem(given, step, timing, ms) end
    if why then error(("step %d: %s"):format(step, why), 0) end
    timing:observe(0.01, 0, 1) -- the second step knows what steps take
    timing:observe(0.02, 64, 1)
  end
end

return selftest
