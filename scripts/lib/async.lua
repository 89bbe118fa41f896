-- async: tasks over luv. A task is a coroutine that may wait; everything that waits in perigee is built on await().
--
--   async.run(function()
--     async.sleep(100)
--     local body, why = async.timeout(1000, function() return fetch "…" end)
--   end)
--
-- One thing runs at a time, on the loop thread, and tasks never nest: a wake-up from inside a task is queued and runs when
-- that task sleeps or ends; from anywhere else (a luv callback) it runs at once. So a chain of a thousand tasks that wake
-- each other needs no stack.
--
-- Always true: a task ends once, with results, with a perigee.Error or cancelled; what it had to close is closed then. Its
-- error is reported once, to whoever waits for it or else to async.on_error. A task that is started inside a guarded one
-- spends the same budget.
local perigee = require "perigee"
local uv = require "luv"

local async = {}

local SLEEP = {}              -- what await() yields, so that a stray coroutine.yield is noticed
local CLEANUP_MS = 10         -- CPU time for the <close> variables of a guarded task that is ended from outside
local UNCLOSABLE = "stopped coroutine cannot be closed"
local LIMITS = { deadline_ms = true, memory = true, wall_ms = true }

local Task = {}
Task.__index = Task

local current                  -- the task that runs
local settling                 -- the loop's time when the last step came back, until all that follows from it is done
local ready = {}               -- steps that wait for it to stop: { task, values… }
local first, last = 1, 0

--- Reports the error of a task for which nobody waits.
function async.on_error(err)
  io.stderr:write("perigee: task: ", tostring(err), "\n", err.traceback or "", err.traceback and "\n" or "")
end

-- A step that is stopped by a perigee.guard around it never comes back to say that it is over. So nothing here is believed
-- that can be checked: a task runs when its coroutine does, and what follows a step does not outlast a turn of the loop.
local function running_task()
  if not current then return nil end
  local status = coroutine.status(current.co)
  if status ~= "running" and status ~= "normal" then current = nil end
  return current
end

--- Is a task in the middle of a step?
local function is_inside()
  if settling then
    if settling == uv.now() then return true end
    settling = nil
  end
  return running_task() ~= nil
end

-- ---- errors --------------------------------------------------------------------------------------------------------

local function to_error(value, co)
  local err = value
  if type(value) ~= "table" or type(value.code) ~= "string" or type(value.text) ~= "string" then
    local text = tostring(value)
    err = perigee.error(text == "not enough memory" and "memory" or "error", text)
    if type(value) ~= "string" then err.value = value end
  end
  if not err.traceback and co then err.traceback = debug.traceback(co) end
  return err
end

-- ---- budgets -------------------------------------------------------------------------------------------------------

--- CPU time and memory for all steps of a task together, inside those of the budget around it. `kept` is by how much the heap
--- grew in its steps, garbage included; `seen` is what it was when that garbage was last collected.
local function new_budget(limits, outer)
  return { limit_ns = limits.deadline_ms and limits.deadline_ms * 1e6, spent_ns = 0, memory = limits.memory, kept = 0, seen = 0,
    outer = outer }
end

--- Bytes that a step may add; 0 when there are none. Nobody is stopped for garbage: when much was added since the last look,
--- it is collected first.
local function memory_left(budget)
  local memory = budget.memory
  if budget.kept > memory / 2 and budget.kept - budget.seen > memory / 4 then
    local before = perigee.heap()
    collectgarbage()
    budget.kept = math.max(0, budget.kept - (before - perigee.heap()))
    budget.seen = budget.kept
  end
  return math.max(0, memory - budget.kept)
end

--- The tightest of a chain of budgets, as options of perigee.guard; nil and an error when nothing is left.
local function what_is_left(budget)
  local left = {}
  repeat
    if budget.limit_ns then
      local ms = (budget.limit_ns - budget.spent_ns) / 1e6
      if ms <= 0 then return nil, perigee.error("deadline", "deadline exceeded") end
      left.deadline_ms = math.min(ms, left.deadline_ms or ms)
    end
    if budget.memory then
      local bytes = memory_left(budget)
      if bytes == 0 then return nil, perigee.error("memory", "not enough memory") end
      left.memory = math.min(bytes, left.memory or bytes)
    end
    budget = budget.outer
  until not budget
  return left
end

local function charge(budget, ns, bytes)
  repeat
    budget.spent_ns = budget.spent_ns + ns
    budget.kept = math.max(0, budget.kept + bytes)
    budget = budget.outer
  until not budget
end

--- Calls fn under what is left: true, results… or false, err.
local function spend(budget, fn)
  local left, err = what_is_left(budget)
  if not left then return false, err end
  local began, heap = perigee.sys.cpu_ns(), perigee.heap()
  local results = table.pack(perigee.guard(fn, left))
  charge(budget, perigee.sys.cpu_ns() - began, perigee.heap() - heap)
  if not results[1] then return false, results[2] end
  return table.unpack(results, 1, results.n)
end

local function resume_within(budget, co, ...)
  local args = table.pack(...)
  local results = table.pack(spend(budget, function()
    return coroutine.resume(co, table.unpack(args, 1, args.n))
  end))
  if not results[1] then return false, results[2] end
  return table.unpack(results, 2, results.n)
end

-- ---- steps ---------------------------------------------------------------------------------------------------------

local step

--- The end of a task: err, or the results.
local function finish(task, err, ...)
  task.finished, task.err, task.undo = true, err, nil
  task.results = not err and table.pack(...) or nil
  local waiting = task.waiting
  task.waiting = nil
  if waiting then
    for _, wake in ipairs(waiting) do wake() end
  elseif err and not task.cancelled then
    local ok, why = pcall(async.on_error, err)
    if not ok then io.stderr:write("perigee: task: on_error: ", tostring(why), "\n") end
  end
end

--- Runs the <close> variables of a coroutine that sleeps or died; a new error there replaces err.
local function close(task, err)
  local function close_all() return coroutine.close(task.co) end
  local guarded, ok, why = perigee.guard(close_all, { deadline_ms = task.budget and CLEANUP_MS })
  if not guarded then return ok end
  if ok or why == err or why == err.value or why == err.text or why == UNCLOSABLE then return err end
  return to_error(why)
end

--- After a step: what coroutine.resume returned. A wait that is to be begun for the task is left in task.begin.
local function settle(task, ok, ...)
  settling = uv.now()
  local err
  if not ok then
    err = to_error(..., task.co)
  elseif coroutine.status(task.co) == "dead" then
    return finish(task, nil, ...)
  elseif task.cancelled then
    err = perigee.error("cancelled", "cancelled")
  elseif ... ~= SLEEP then
    err = perigee.error("error", "a task waits with async.await, not with coroutine.yield")
  else
    task.begin = select(2, ...)
    return
  end
  finish(task, close(task, err))
end

--- Goes on with a task, now or as soon as nothing else does.
local function wake(task, ...)
  local n = select("#", ...)
  if is_inside() then
    last = last + 1
    ready[last] = { task, n, ... }
    return
  end
  step(task, ...)
  while first <= last do
    local entry = ready[first]
    ready[first] = nil
    first = first + 1
    step(entry[1], table.unpack(entry, 3, entry[2] + 2))
  end
end

--- Begins a wait with start(resume). Returns what resume was given, packed, when it was called at once; else the task is to
--- sleep.
local function begin(task, start)
  local state, early = "starting", nil
  local undo = start(function(...)
    if state == "sleeping" then
      state, task.undo = "done", nil
      wake(task, ...)
    elseif state == "starting" then
      state, early = "done", table.pack(...)
    end
  end)
  if early then return early end
  state, task.undo = "sleeping", undo
end

local function begin_outside(task, start)
  task.begin = nil
  local ok, early = pcall(begin, task, start)
  if not ok then
    finish(task, close(task, to_error(early)))
  elseif early then
    wake(task, table.unpack(early, 1, early.n))
  end
end

function step(task, ...)
  if task.finished then return end
  current = task
  if task.budget then
    settle(task, resume_within(task.budget, task.co, ...))
  else
    settle(task, coroutine.resume(task.co, ...))
  end
  if task.begin then begin_outside(task, task.begin) end
  settling = nil
end

local function new_task(fn, budget)
  local around = running_task()
  return setmetatable({ co = coroutine.create(fn), budget = budget or around and around.budget }, Task)
end

--- Starts fn(...) as a task.
function async.run(fn, ...)
  local task = new_task(fn)
  wake(task, ...)
  return task
end

--- The running task, or nil.
function async.current()
  return running_task()
end

-- ---- waiting -------------------------------------------------------------------------------------------------------

--- The task that asks to wait.
local function waiting_task()
  local task = running_task()
  if not task or task.co ~= coroutine.running() or not coroutine.isyieldable() then
    error("await: only inside a task, and not below a function of C", 3)
  end
  return task
end

--- Inside a task: start(resume) begins something; the task sleeps until resume(...) is called and goes on with what it was
--- given. The first call counts, others are ignored. start may return a function that takes back what it began; it is
--- called when the task is cancelled meanwhile.
function async.await(start)
  local task = waiting_task()
  local early = not task.cancelled and begin(task, start)
  if early then return table.unpack(early, 1, early.n) end
  return coroutine.yield(SLEEP)
end

--- The same for starts of our own. Those of a guarded task are begun outside of its limits, because one that is stopped between
--- making a timer and handing it over would leave it behind.
local function wait(start)
  if not waiting_task().budget then return async.await(start) end
  return coroutine.yield(SLEEP, start)
end

--- Ends the task where it waits; one that runs ends at its next wait. Nothing is reported.
function Task:cancel()
  if self.finished or self.cancelled then return end
  self.cancelled = true
  if coroutine.status(self.co) ~= "suspended" then return end
  if self.undo then self.undo() end
  finish(self, close(self, perigee.error("cancelled", "cancelled")))
end

--- Waits for the end of a task: true, results… or nil, err.
function Task:join()
  if not self.finished then
    wait(function(resume)
      self.waiting = self.waiting or {}
      table.insert(self.waiting, resume)
    end)
  end
  if self.err then return nil, self.err end
  return true, table.unpack(self.results, 1, self.results.n)
end

--- Calls fn once, later; returns the timer.
local function after(ms, fn)
  local timer = uv.new_timer()
  timer:start(math.max(0, math.ceil(ms)), 0, function()
    timer:close()
    fn()
  end)
  return timer
end

local function stop(timer)
  if not timer:is_closing() then timer:close() end
end

--- Lets this task sleep.
function async.sleep(ms)
  wait(function(resume)
    local timer = after(ms, resume)
    return function() stop(timer) end
  end)
end

-- Waits for children to end, for `ms` at most; children that still run when the wait ends, whatever ended it, are cancelled.
-- done(child) is called at the end of each and may return true to end the wait.
local function supervise(children, ms, done)
  local open = #children
  return wait(function(resume)
    local timer, ended
    local function stop_all()
      ended = true
      if timer then stop(timer) end
      for _, child in ipairs(children) do child:cancel() end
    end
    local function end_wait(...)
      if ended then return end
      stop_all()
      resume(...)
    end
    for _, child in ipairs(children) do
      child.waiting = { function()
        open = open - 1
        if done(child) or open == 0 then end_wait(true) end
      end }
    end
    if ms then timer = after(ms, function() end_wait(false) end) end
    for _, child in ipairs(children) do wake(child) end
    if open == 0 then end_wait(true) end
    return stop_all
  end)
end

local function failed(child) return child.err ~= nil end

--- The results of fn(), or nil and "timeout" when it does not end in time; it is cancelled then. Its errors are raised.
function async.timeout(ms, fn)
  local child = new_task(fn)
  if not supervise({ child }, ms, failed) then return nil, "timeout" end
  if child.err then error(child.err, 0) end
  return table.unpack(child.results, 1, child.results.n)
end

--- Runs functions side by side; returns the list of their first results. The first error cancels the others and is raised.
function async.all(functions)
  local children, results = {}, {}
  for i, fn in ipairs(functions) do children[i] = new_task(fn) end
  supervise(children, nil, failed)
  for i, child in ipairs(children) do
    if child.err and not child.cancelled then error(child.err, 0) end
    results[i] = child.results and child.results[1]
  end
  return results
end

--- Runs fn(...), which may wait, under limits: deadline_ms (CPU time of all its steps together), memory (bytes it may add to
--- the heap and keep) and wall_ms (time on the clock). Returns true, results… or nil, err.
function async.guarded(limits, fn, ...)
  for key in pairs(limits) do
    if not LIMITS[key] then error(("guarded: unknown limit '%s'"):format(tostring(key)), 2) end
    if type(limits[key]) ~= "number" or limits[key] <= 0 then
      error(("guarded: limit '%s' is no positive number"):format(key), 2)
    end
  end
  local around, args = running_task(), table.pack(...)
  local child = new_task(function() return fn(table.unpack(args, 1, args.n)) end,
    new_budget(limits, around and around.budget))
  if not supervise({ child }, limits.wall_ms, failed) then
    return nil, perigee.error("timeout", ("not done after %g ms"):format(limits.wall_ms))
  end
  return child:join()
end

-- ---- between tasks -------------------------------------------------------------------------------------------------

local Signal = {}
Signal.__index = Signal

--- Something that happens: wait() sleeps until set(value) and returns the value; once set it stays so until reset().
function async.signal()
  return setmetatable({ waiters = {} }, Signal)
end

function Signal:wait()
  if self.is_set then return self.value end
  return wait(function(resume)
    local entry = { resume = resume }
    table.insert(self.waiters, entry)
    return function() entry.resume = nil end
  end)
end

--- Wakes those who wait, in the order they came.
function Signal:set(value)
  self.is_set, self.value = true, value
  local waiters = self.waiters
  self.waiters = {}
  for _, entry in ipairs(waiters) do
    if entry.resume then entry.resume(value) end
  end
end

function Signal:reset()
  self.is_set, self.value = false, nil
end

local Channel = {}
Channel.__index = Channel

--- A queue between tasks: send() never waits, receive() waits for the next value and returns nil once the channel is closed
--- and empty. One receiver at a time.
function async.channel()
  return setmetatable({ first = 1, last = 0 }, Channel)
end

function Channel:send(value)
  if value == nil then error("channel: nil cannot be sent", 2) end
  if self.closed then return false end
  if self.receiver then
    local resume = self.receiver
    self.receiver = nil
    resume(value)
  else
    self.last = self.last + 1
    self[self.last] = value
  end
  return true
end

function Channel:receive()
  if self.first <= self.last then
    local value = self[self.first]
    self[self.first] = nil
    self.first = self.first + 1
    return value
  end
  if self.closed then return nil end
  if self.receiver then error("channel: somebody is receiving already", 2) end
  return wait(function(resume)
    self.receiver = resume
    return function() self.receiver = nil end
  end)
end

function Channel:close()
  if self.closed then return end
  self.closed = true
  local resume = self.receiver
  self.receiver = nil
  if resume then resume(nil) end
end

return async
