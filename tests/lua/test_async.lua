-- Tasks: waiting, ending, cancelling.
local async = require "lib.async"
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

local forced = ... -- then every allocation is slow

local function task(t, fn) return async.run(t.expect(fn)) end

--- The errors that on_error gets while fn and then the loop run.
local function with_errors(fn)
  local was, errors = async.on_error, {}
  async.on_error = function(err) errors[#errors + 1] = err end
  fn()
  uv.run()
  async.on_error = was
  return errors
end

test("await returns what resume is given, early or late, once", function(t)
  local late
  task(t, function()
    t.eq({ async.await(function(resume) resume(1, nil, 3) resume(4) end) }, { 1, nil, 3 })
    t.eq({ async.await(function(resume) late = resume end) }, { "a", "b" })
    t.eq({ async.await(function(resume) resume() end) }, {})
    late "too late"
    async.sleep(1)
  end)
  late("a", "b")
  late "again"
end)

test("await outside a task is refused", function(t)
  t.raises(function() async.sleep(1) end, "only inside a task")
  task(t, function()
    t.raises(function() coroutine.wrap(function() async.sleep(1) end)() end, "only inside a task")
    local ok, err = perigee.guard(function() async.sleep(1) end)
    t.eq(ok, nil)
    t.match(err.message, "only inside a task")
    async.sleep(1)
  end)
end)

test("errors are reported once, to the task that joins or to on_error", function(t)
  local errors = with_errors(function()
    async.run(function() async.sleep(1) error "nobody waits" end)
    async.run(function() coroutine.yield(1) end)
    async.run(function() error { code = "x" } end)
    task(t, function()
      local ok, err = async.run(function() async.sleep(1) error "seen" end):join()
      t.eq(ok, nil)
      t.match(err.message, "test_async%.lua:%d+: seen")
      t.match(err.traceback, "test_async")
      t.eq({ async.run(function() return 1, nil end):join() }, { true, 1, nil })
    end)
  end)
  t.eq(#errors, 3)
  t.match(errors[1].message, "not with coroutine.yield")
  t.eq(errors[2].value.code, "x")
  t.match(errors[3].message, "nobody waits")
end)

test("an error that nobody waits for goes to stderr", function(t)
  local stderr = require "lib.stderr"
  local out = {}
  t.patch(stderr, "write", function(...) out[#out + 1] = table.concat { ... } end)
  async.on_error(perigee.error("io", "plain"))
  local err = perigee.error("io", "traced")
  err.traceback = "stack"
  async.on_error(err)
  t.patch(async, "on_error", function() error("worse", 0) end)
  async.run(function() error "x" end)
  t.eq(out, { "perigee: task: plain\n", "perigee: task: traced\nstack\n",
    "perigee: task: on_error: worse\n" })
end)

test("a cancelled task closes its variables and stops waiting", function(t)
  local log = {}
  local function closer(name)
    return setmetatable({}, { __close = function() log[#log + 1] = name end })
  end
  local sleeper = async.run(function()
    local x <close> = closer "sleeper" -- luacheck: ignore
    async.sleep(60000)
    log[#log + 1] = "woke"
  end)
  local itself
  itself = async.run(function()
    local x <close> = closer "itself" -- luacheck: ignore
    async.sleep(0)
    itself:cancel()
    async.sleep(60000)
  end)
  task(t, function()
    local ok, err = sleeper:join()
    t.eq(ok, nil)
    t.eq(err.code, "cancelled")
  end)
  sleeper:cancel()
  sleeper:cancel()
  task(t, function()
    itself:join()
    t.eq(log, { "sleeper", "itself" })
  end)
end)

test("a task cancelled while it starts to wait undoes that, and ends once", function(t)
  local taken_back, itself = 0, nil
  itself = async.run(function()
    async.sleep(0)
    async.await(function()
      itself:cancel()
      return function() taken_back = taken_back + 1 end
    end)
  end)
  task(t, function()
    t.fails("cancelled", itself:join())
    t.eq(taken_back, 1)
  end)
end)

test("an error of a <close> variable replaces the first one", function(t)
  task(t, function()
    local ok, err = async.run(function()
      local raiser = { __close = function() error "closing" end }
      local x <close> = setmetatable({}, raiser) -- luacheck: ignore
      async.sleep(0)
      error "first"
    end):join()
    t.eq(ok, nil)
    t.match(err.message, "closing")
  end)
end)

--- Counts turns of the loop while fn runs in a task.
local function turns_of(t, fn, done)
  local turns, counter = 0, uv.new_prepare()
  counter:start(function() turns = turns + 1 end)
  task(t, function()
    fn()
    counter:close()
    done(turns)
  end)
end

test("sleep(0) lets the loop poll for I/O", function(t)
  turns_of(t, function()
    async.sleep(1)
    for _ = 1, 20 do async.sleep(0) end
  end, function(turns) t.ok(turns >= 19, turns) end)
end)

test("long computations breathe; short ones, and those outside tasks, do not", function(t)
  local function compute(ms)
    local stop = perigee.sys.cpu_ns() + ms * 1e6
    while perigee.sys.cpu_ns() < stop do async.breathe() end
  end
  compute(6)
  turns_of(t, function()
    async.sleep(1)
    compute(40)
  end, function(turns) t.ok(turns >= 4, turns) end)
  task(t, function()
    async.sleep(1)
    coroutine.wrap(function() compute(6) end)()
    t.eq((perigee.guard(function() compute(6) end)), true)
    t.ok(not coroutine.wrap(function() return async.is_late() end)())
  end)
end)

test("timeout: results, errors; a late function is cancelled", function(t)
  local closed = false
  task(t, function()
    t.eq({ async.timeout(10000, function() async.sleep(1) return 1, nil, 3 end) }, { 1, nil, 3 })
    t.raises(function() async.timeout(10000, function() error "inner" end) end, "inner")
    t.eq({ async.timeout(5, function()
      local closer = { __close = function() closed = true end }
      local x <close> = setmetatable({}, closer) -- luacheck: ignore
      async.sleep(60000)
    end) }, { nil, "timeout" })
    t.ok(closed)
    local nested = async.run(function()
      async.timeout(60000, function() async.timeout(60000, function() async.sleep(60000) end) end)
    end)
    async.sleep(1)
    nested:cancel() -- the loop ends at once: no timer is active
  end)
end)

test("all: concurrent, results in order; the first error cancels the rest", function(t)
  task(t, function()
    local order = {}
    local function later(ms, name)
      return function()
        async.sleep(ms)
        order[#order + 1] = name
        return name
      end
    end
    t.eq(async.all { later(150, "a"), later(1, "b"), function() return "c" end }, { "a", "b", "c" })
    t.eq(order, { "b", "a" })
    t.eq(async.all {}, {})
    local function stop() async.sleep(1) error "stop" end
    t.raises(function() async.all { later(60000, "x"), stop } end, "stop")
  end)
end)

test("signals", function(t)
  t.at_once()
  local signal, got = async.signal(), {}
  for i = 1, 3 do
    task(t, function() got[i] = signal:wait() end)
  end
  signal:set "v"
  t.eq(got, { "v", "v", "v" })
  task(t, function()
    t.eq(signal:wait(), "v")
    signal:reset()
    t.eq({ async.timeout(1, function() return signal:wait() end) }, { nil, "timeout" })
  end)
end)

test("thousands of tasks that wake each other do not use up the stack", function(t)
  local n, order = forced and 300 or 3000, 0
  local signals = {}
  for i = 1, n + 1 do signals[i] = async.signal() end
  for i = 1, n do
    async.run(function()
      signals[i]:wait()
      order = order + 1
      signals[i + 1]:set()
    end)
  end
  task(t, function()
    signals[n + 1]:wait()
    t.eq(order, n)
  end)
  signals[1]:set()
  local start = async.signal()
  local task_before = async.run(function() return start:wait() end)
  for _ = 1, n do
    local before = task_before
    task_before = async.run(function() return select(2, before:join()) end)
  end
  task(t, function() t.eq({ task_before:join() }, { true, "end" }) end)
  start:set "end"
end)

test("a task stopped by a guard around it does not stop the others", function(t)
  local function loop() while true do end end
  local ok = perigee.guard(function() async.run(loop) end, { deadline_ms = 10 })
  t.eq(ok, nil)
  t.eq(async.current(), nil)
  task(t, function() async.sleep(1) end)
end)

test("a gate lets in a few at a time, in order", function(t)
  local gate = require("lib.gate").new(2)
  local inside, most, order = 0, 0, {}
  local function visit(i)
    local _ <close> = gate:wait()
    inside = inside + 1
    most = math.max(most, inside)
    order[#order + 1] = i
    async.sleep(1)
    inside = inside - 1
  end
  async.run(t.expect(function()
    local list = {}
    for i = 1, 7 do list[i] = function() visit(i) end end
    local gone
    list[8] = function()
      local other = async.run(function() visit "never" end)
      async.sleep(0)
      other:cancel()
      gone = true
    end
    async.all(list)
    t.eq({ most, gone, gate.free, #gate.waiting }, { 2, true, 2, 0 })
    t.eq(order, { 1, 2, 3, 4, 5, 6, 7 })
    -- Let in by another, cancelled before it goes on.
    local leave, late
    gate:enter(function(given) leave = given end)
    gate:enter(function(given) late = given end)
    local visitor = async.run(function() visit "never" end)
    async.sleep(0)
    t.eq(#gate.waiting, 1)
    leave()
    visitor:cancel()
    late()
    t.eq({ gate.free, #gate.waiting, #order }, { 2, 0, 7 })
  end))
end)
