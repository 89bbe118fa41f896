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
-- error is reported once, to whoever waits for it or else to async.on_error. Tasks have no limits of their own: scripts that
-- must have some are driven from inside a task (hooks/phases.lua).
local perigee = require "perigee"
local uv = require "luv"

local async = {}

local SLEEP = {}     -- what await() yields, so that a stray coroutine.yield is noticed
local SLICE_NS = 5e6 -- all tasks together may compute that long before they let the loop turn, where they can (breathe)

local Task = {}
Task.__index = Task

local current            -- the task that runs
local settling           -- the loop's time when the last step came back, until all that follows from it is done
local turn, turn_began   -- the loop's time in this turn, and the clock when its first step began
local ready = {}         -- steps that wait for it to stop: { task, how many values, values… }
local first, last = 1, 0

--- Reports the error of a task for which nobody waits.
function async.on_error(err)
  io.stderr:write("perigee: task: ", tostring(err), "\n", err.traceback or "", err.traceback and "\n" or "")
end

-- A step that is stopped by a perigee.guard around it never comes back to say that it is over. So nothing here is believed
-- that can be checked: a task runs when its coroutine does, and what follows a step does not outlast a turn of the loop.

--- The running task, or nil.
function async.current()
  if not current then return nil end
  local status = coroutine.status(current.co)
  if status ~= "running" and status ~= "normal" then current = nil end
  return current
end

--- Is a task in the middle of a step?
local function is_inside()
  if settling == uv.now() then return true end
  settling = nil
  return async.current() ~= nil
end

-- ---- steps ---------------------------------------------------------------------------------------------------------

local function to_error(value, trace)
  local err = value
  if type(value) ~= "table" or type(value.code) ~= "string" or type(value.message) ~= "string" then
    local text = tostring(value)
    err = perigee.error(text == "not enough memory" and "memory" or "error", text)
    if type(value) ~= "string" then err.value = value end
  end
  err.traceback = err.traceback or trace
  return err
end

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

--- Ends a task that sleeps or has died, for that reason or for what its <close> variables raise now.
local function fail(task, value)
  if task.undo then task.undo() end
  local trace = debug.traceback(task.co)
  local closed, why = coroutine.close(task.co)
  if closed then why = value end
  finish(task, to_error(why, trace))
end

--- After a step: what coroutine.resume returned.
local function settle(task, ok, ...)
  settling = uv.now()
  if not ok then
    fail(task, ...)
  elseif coroutine.status(task.co) == "dead" then
    finish(task, nil, ...)
  elseif task.cancelled then
    fail(task, perigee.error("cancelled", "cancelled"))
  elseif ... ~= SLEEP then
    fail(task, "a task waits with async.await, not with coroutine.yield")
  end
  settling = nil
end

local function step(task, ...)
  if task.finished then return end
  if turn ~= uv.now() then turn, turn_began = uv.now(), uv.hrtime() end
  current = task
  settle(task, coroutine.resume(task.co, ...))
end

--- Goes on with a task, now or as soon as nothing else does.
local function wake(task, ...)
  if is_inside() then
    last = last + 1
    ready[last] = { task, select("#", ...), ... }
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

local function new_task(fn) return setmetatable({ co = coroutine.create(fn) }, Task) end

--- Starts fn(...) as a task.
function async.run(fn, ...)
  local task = new_task(fn)
  wake(task, ...)
  return task
end

-- ---- waiting -------------------------------------------------------------------------------------------------------

--- The running task when it may wait here: not inside a coroutine of its own, nor below a function of C.
local function waiting_task()
  local task = async.current()
  if task and task.co == coroutine.running() and coroutine.isyieldable() then return task end
end

--- Inside a task: start(resume) begins something; the task sleeps until resume(...) is called and goes on with what it was
--- given. The first call counts, others are ignored. start may return a function that takes back what it began; it is
--- called when the task is cancelled meanwhile.
function async.await(start)
  local task = waiting_task()
  if not task then error("await: only inside a task, and not below a function of C", 2) end
  if task.cancelled then return coroutine.yield(SLEEP) end
  local state, early = "starting", nil
  local undo = start(function(...)
    if state == "sleeping" then
      state, task.undo = "done", nil
      wake(task, ...)
    elseif state == "starting" then
      state, early = "done", table.pack(...)
    end
  end)
  if early then return table.unpack(early, 1, early.n) end
  state, task.undo = "sleeping", undo
  return coroutine.yield(SLEEP)
end

--- Ends the task where it waits; one that runs ends at its next wait. Nothing is reported.
function Task:cancel()
  if self.finished or self.cancelled then return end
  self.cancelled = true
  if coroutine.status(self.co) == "suspended" then fail(self, perigee.error("cancelled", "cancelled")) end
end

--- Waits for the end of a task: true, results… or nil, err.
function Task:join()
  if not self.finished then
    async.await(function(resume)
      self.waiting = self.waiting or {}
      table.insert(self.waiting, resume)
    end)
  end
  if self.err then return nil, self.err end
  return true, table.unpack(self.results, 1, self.results.n)
end

--- Calls fn once, later; returns a function that takes it back. 0 is after the next look at what has come in: a timer
--- of 0 that is set by a timer would run before that.
local function after(ms, fn)
  local handle = ms > 0 and uv.new_timer() or uv.new_idle()
  local function stop()
    if not handle:is_closing() then handle:close() end
  end
  local function run()
    stop()
    fn()
  end
  if ms > 0 then handle:start(math.ceil(ms), 0, run) else handle:start(run) end
  return stop
end

--- Lets this task sleep.
function async.sleep(ms)
  async.await(function(resume) return after(ms, resume) end)
end

--- Has enough been computed in this turn of the loop, and may the running task wait here?
function async.is_late()
  return current and uv.hrtime() - turn_began > SLICE_NS and waiting_task() ~= nil
end

--- For long computations to call now and then: lets the loop turn when that is due, and does nothing outside a task.
function async.breathe()
  if async.is_late() then async.sleep(0) end
end

--- Runs new tasks until all have ended or one has failed (true), or for `ms` (false). Those that still run when the wait ends,
--- whatever ended it, are cancelled.
local function supervise(children, ms)
  local open = #children
  return async.await(function(resume)
    local stop_clock, ended
    local function stop_all()
      ended = true
      if stop_clock then stop_clock() end
      for _, child in ipairs(children) do child:cancel() end
    end
    local function end_wait(in_time)
      if ended then return end
      stop_all()
      resume(in_time)
    end
    for _, child in ipairs(children) do
      child.waiting = { function()
        open = open - 1
        if child.err or open == 0 then end_wait(true) end
      end }
    end
    if ms then stop_clock = after(ms, function() end_wait(false) end) end
    for _, child in ipairs(children) do wake(child) end
    if open == 0 then end_wait(true) end
    return stop_all
  end)
end

--- The results of fn(), or nil and "timeout" when it does not end in time; it is cancelled then. Its errors are raised.
function async.timeout(ms, fn)
  local child = new_task(fn)
  if not supervise({ child }, ms) then return nil, "timeout" end
  if child.err then error(child.err, 0) end
  return table.unpack(child.results, 1, child.results.n)
end

--- Runs functions side by side; returns the list of their first results. The first error cancels the others and is raised.
function async.all(functions)
  local children, results = {}, {}
  for i, fn in ipairs(functions) do children[i] = new_task(fn) end
  supervise(children)
  for i, child in ipairs(children) do
    if child.err and not child.cancelled then error(child.err, 0) end
    results[i] = child.results and child.results[1]
  end
  return results
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
  return async.await(function(resume)
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

return async
