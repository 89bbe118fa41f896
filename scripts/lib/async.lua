-- async: tasks over luv. A task is a coroutine that may wait; everything that waits in perigee is
-- built on await().
--
--   async.run(function()
--     async.sleep(100)
--     local body, why = async.timeout(1000, function() return fetch "…" end)
--   end)
--
-- Tasks run on the loop thread, one at a time, and never nest: waking a task from inside another
-- one puts it into a queue that is served when the running task sleeps or ends. Anywhere else (in a
-- luv callback) it runs at once. So a thousand tasks that wake each other do not use up the stack.
-- A thousand that are woken by as many callbacks of one turn (their clients all left) are queued as
-- well, as soon as the turn has taken its slice; a new task always begins at once.
--
-- The queue is served in slices of time: when all tasks together have computed for SLICE_NS, the
-- loop turns and handles I/O before the queue goes on. So tasks that wake each other forever slow
-- the others down, but never stop them.
--
-- A task ends once: with results, with a perigee.Error, or cancelled. Its <close> variables are
-- closed then. Its error is reported once: to the task that joins it, or else to async.on_error.
-- Tasks have no limits; scripts that need some are run by hooks/phases.lua.
local perigee = require "perigee"
local stderr = require "lib.stderr"
local uv = require "luv"

local async = {}

local SLEEP = {} -- what await() yields, to tell it from a stray coroutine.yield
-- How long all tasks together may compute before breathe() lets the loop turn: a tenth of the 50 ms
-- within which /health must answer.
local SLICE_NS = 5e6
async.SLICE_NS = SLICE_NS

local Task = {}
Task.__index = Task

local current          -- the running task
local settling         -- the loop's time at the end of the last step, until it is settled
local turn, turn_began -- the loop's time in this turn, and the clock at its first step
local ready = {}       -- the queue of steps to run: { task, number of values, values… } or
                       -- { false, function }
local first, last = 1, 0
local later = {}       -- functions to append to the queue after the next poll for I/O
local serving          -- the loop's time while the queue is being served
local idle             -- serves the queue in the next turn; active while something is queued

--- Reports the error of a task that no other task joins.
function async.on_error(err)
  local trace = err.traceback and err.traceback .. "\n" or ""
  stderr.write("perigee: task: ", tostring(err), "\n", trace)
end

-- A step that a surrounding perigee.guard stops never returns here, so `current` and `settling` may
-- be stale. Both are therefore checked: a task runs only while its coroutine does, and settling
-- does not outlast a turn of the loop.

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

-- ---- steps --------------------------------------------------------------------------------------

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
    if not ok then stderr.write("perigee: task: on_error: ", tostring(why), "\n") end
  end
end

--- Ends a task that sleeps or has died, with this error, or with the one that a <close> variable
--- raises now.
local function fail(task, value)
  if task.undo then task.undo() end
  local trace = debug.traceback(task.co)
  local closed, why = coroutine.close(task.co)
  if closed then why = value end
  finish(task, to_error(why, trace))
end

--- Handles the results of coroutine.resume.
local function settle(task, ok, ...)
  settling = uv.now()
  if not ok then
    fail(task, ...)
  elseif coroutine.status(task.co) == "dead" then
    finish(task, nil, ...)
  elseif task.cancelled then
    fail(task, perigee.error("cancelled", "cancelled"))
  elseif ... ~= SLEEP then
    fail(task, "a task must wait with async.await, not with coroutine.yield")
  end
  settling = nil
end

--- Have the tasks of this turn of the loop computed for longer than their slice?
function async.is_over()
  local now = uv.now()
  if turn ~= now then
    turn, turn_began = now, uv.hrtime()
    return false
  end
  return uv.hrtime() - turn_began > SLICE_NS
end

local function step(task, ...)
  if task.finished then return end
  if turn ~= uv.now() then turn, turn_began = uv.now(), uv.hrtime() end
  current = task
  settle(task, coroutine.resume(task.co, ...))
end

local function run_next()
  local entry = ready[first]
  ready[first] = nil
  first = first + 1
  if entry[1] then return step(entry[1], table.unpack(entry, 3, entry[2] + 2)) end
  local ok, why = pcall(entry[2])
  if not ok then pcall(async.on_error, to_error(why)) end
end

local on_idle

--- The queue goes on in the next turn.
local function serve_later()
  idle = idle or uv.new_idle()
  if not idle:is_active() then idle:start(on_idle) end
end

--- Serves the queue for the rest of the slice, and at least `least` entries of it. A step that a
--- surrounding perigee.guard stopped may leave `serving` behind: then the next turn goes on.
local function serve_queue(least)
  if serving == uv.now() then return serve_later() end
  serving = uv.now()
  while first <= last and (least > 0 or not async.is_over()) do
    run_next()
    least = least - 1
  end
  serving = nil
  if first <= last then serve_later() end
end

function on_idle()
  serving = nil
  local list = later
  later = {}
  for i = 1, #list do
    last = last + 1
    ready[last] = list[i]
  end
  serve_queue(1)
  if first > last and #later == 0 then
    idle:close() -- so that it does not outlive the loop
    idle = nil
  end
end

--- Calls fn, outside of tasks, after the next poll for I/O. Returns a function that cancels it.
function async.defer(fn)
  local entry = { false, fn }
  later[#later + 1] = entry
  serve_later()
  return function() entry[2] = function() end end
end

local function queue(task, ...)
  last = last + 1
  ready[last] = { task, select("#", ...), ... }
end

--- Begins a task, now or when the running one sleeps or ends.
local function begin(task, ...)
  if is_inside() then return queue(task, ...) end
  step(task, ...)
  if first <= last then serve_queue(0) end
end

--- Resumes a task: like begin, or later if this turn of the loop has computed for long enough.
local function wake(task, ...)
  if is_inside() or not async.is_over() then return begin(task, ...) end
  queue(task, ...)
  serve_later()
end

local function new_task(fn) return setmetatable({ co = coroutine.create(fn) }, Task) end

--- Starts fn(...) as a task.
function async.run(fn, ...)
  local task = new_task(fn)
  begin(task, ...)
  return task
end

-- ---- waiting ------------------------------------------------------------------------------------

--- The running task, if it may wait here: not inside another coroutine or below a C function.
local function waiting_task()
  local task = async.current()
  if task and task.co == coroutine.running() and coroutine.isyieldable() then return task end
end

--- Inside a task: calls start(resume), sleeps until resume(...) is called, and returns its
--- arguments. Only the first call of resume counts. start may return a function that undoes what it
--- began; it is called if the task is cancelled meanwhile.
function async.await(start)
  local task = waiting_task()
  if not task then error("await works only inside a task, and not below a C function", 2) end
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

--- Ends the task where it waits; a running one ends at its next wait. Reports nothing.
function Task:cancel()
  if self.finished or self.cancelled then return end
  self.cancelled = true
  if coroutine.status(self.co) == "suspended" then
    fail(self, perigee.error("cancelled", "cancelled"))
  end
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

--- Calls fn once, later; returns a function that cancels it. 0 means after the next poll for I/O
--- (a timer of 0 set by a timer would run before that poll), in turn with the other tasks.
local function after(ms, fn)
  if ms <= 0 then return async.defer(fn) end
  local handle = uv.new_timer()
  local function stop()
    if not handle:is_closing() then handle:close() end
  end
  local function run()
    stop()
    fn()
  end
  handle:start(math.ceil(ms), 0, run)
  return stop
end

--- Suspends the running task.
function async.sleep(ms)
  async.await(function(resume) return after(ms, resume) end)
end

--- Has this turn of the loop computed for longer than its slice, and may the running task wait
--- here?
function async.is_late()
  return current and uv.hrtime() - turn_began > SLICE_NS and waiting_task() ~= nil
end

--- Lets the loop turn if that is due. Long computations call it now and then; outside a task it
--- or under perigee.guard it does nothing.
function async.breathe()
  if coroutine.isyieldable() and async.is_late() then async.sleep(0) end
end

--- Runs new tasks until all have ended or one has failed (returns true), or for `ms` (returns
--- false). However the wait ends, the tasks that still run then are cancelled.
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
    for _, child in ipairs(children) do begin(child) end
    if open == 0 then end_wait(true) end
    return stop_all
  end)
end

--- Runs fn as a task for at most `ms`. Returns its results, or nil and "timeout" after cancelling
--- it; raises its errors.
function async.timeout(ms, fn)
  local child = new_task(fn)
  if not supervise({ child }, ms) then return nil, "timeout" end
  if child.err then error(child.err, 0) end
  return table.unpack(child.results, 1, child.results.n)
end

--- Runs functions as concurrent tasks and returns the list of their first results. The first error
--- cancels the others and is raised.
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

-- ---- between tasks ------------------------------------------------------------------------------

local Signal = {}
Signal.__index = Signal

--- An event: wait() sleeps until set(value) and returns the value. It stays set until reset().
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

--- Wakes the waiting tasks, in the order they came.
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
