-- jobs: whose turn it is to compute on a helper thread.
--
--   local ids, err = jobs.run(client, #text, function(stop, callback)
--     return tok:encode(text, { stop = stop }, callback)
--   end)
--
-- libuv's threads take work in the order it comes, so one client with a dozen long prompts would
-- make everyone wait, and the log with them. Here work waits in one queue per client, and the
-- clients take turns. THREADS jobs run at a time, which leaves a thread for files. Jobs of more
-- than LARGE bytes never have the last of these, and a client has two of them at a time only while
-- no other client's wait: so short work is never behind long work.
--
-- A client is { owner, on_abort(fn), aborted } (http/request.lua), or nil for the server itself.
-- When it goes away its waiting jobs are dropped and its running ones stopped (perigee.job.stop).
local async = require "lib.async"
local errors = require "lib.errors"
local perigee = require "perigee"

local jobs = {}

local THREADS, LARGE_THREADS = 3, 2
local LARGE = 1 << 20 -- bytes: about 0.1 s of tokenizing
-- Jobs of one client that may wait: more is refused, since their texts wait in memory.
local WAITING = 64

local queues = {} -- owner -> { waiting = list of jobs, running, large = how many of them run }
local order = {}  -- owners in the order of their turns
local running, large = 0, 0

local function queue_of(owner)
  local queue = queues[owner]
  if not queue then
    queue = { waiting = {}, running = 0, large = 0 }
    queues[owner] = queue
    order[#order + 1] = owner
  end
  return queue
end

--- Does anyone but this owner wait with a large job?
local function others_wait(owner)
  for other, queue in pairs(queues) do
    if other ~= owner then
      for _, job in ipairs(queue.waiting) do
        if job.large then return true end
      end
    end
  end
  return false
end

local function may_start(owner, queue, job)
  if running >= THREADS then return false end
  if not job.large then return true end
  if large >= LARGE_THREADS then return false end
  return queue.large == 0 or not others_wait(owner)
end

--- Removes the next job that may start from the queue of the first owner who has one; that owner
--- goes to the end of the order.
local function next_job()
  for turn, owner in ipairs(order) do
    local queue = queues[owner]
    for i, job in ipairs(queue.waiting) do
      if may_start(owner, queue, job) then
        table.remove(queue.waiting, i)
        table.insert(order, table.remove(order, turn))
        return job
      end
    end
  end
end

--- Forgets owners that have nothing to do.
local function sweep(owner)
  local queue = queues[owner]
  if #queue.waiting > 0 or queue.running > 0 then return end
  queues[owner] = nil
  for i, other in ipairs(order) do
    if other == owner then return table.remove(order, i) end
  end
end

local function count(job, by)
  local queue = queues[job.owner]
  running, queue.running = running + by, queue.running + by
  if job.large then large, queue.large = large + by, queue.large + by end
end

local function start_jobs()
  while true do
    local job = next_job()
    if not job then return end
    count(job, 1)
    job.started = true
    job.start()
  end
end

local function finish(job)
  count(job, -1)
  sweep(job.owner)
  start_jobs()
end

local function drop(job)
  local queue = queues[job.owner]
  for i, other in ipairs(queue and queue.waiting or {}) do
    if other == job then
      table.remove(queue.waiting, i)
      return sweep(job.owner)
    end
  end
end

local function cancelled()
  return perigee.error("cancelled", "the client has left")
end

--- Ends a job of a client that has left.
local function cancel(job)
  if job.started then return job.stop:set() end
  drop(job)
  job.stop:close()
  job.resume(nil, cancelled())
end

--- Registers a job with its client; returns a function that ends that.
local function watch(client, job)
  if not client or not client.on_abort then return function() end end
  local mine = client.jobs
  if not mine then
    mine = {}
    client.jobs = mine
    client:on_abort(function()
      for one in pairs(mine) do cancel(one) end
    end)
  end
  mine[job] = true
  return function() mine[job] = nil end
end

--- Inside a task: waits for a turn, calls start(stop, callback), which begins a job of this many
--- bytes and returns a true value, or nil and an error; returns what the callback gets.
function jobs.run(client, bytes, start)
  local owner = client and client.owner or ""
  if client and client.aborted then return nil, cancelled() end
  local queue = queue_of(owner)
  if #queue.waiting >= WAITING then
    error(errors.new { status = 429, code = "queue_full", retry_after = 1,
      message = ("%d long texts are waiting to be read, the limit is %d"):format(#queue.waiting,
        WAITING) }, 0)
  end
  local job = { owner = owner, large = bytes > LARGE, stop = perigee.job.stop() }
  local unwatch = watch(client, job)
  return async.await(function(resume)
    local function done(...)
      unwatch()
      job.stop:close()
      finish(job)
      resume(...)
    end
    job.resume = function(...)
      unwatch()
      resume(...)
    end
    function job.start()
      local ok, started, why = pcall(start, job.stop, done)
      if not ok then done(nil, started) elseif not started then done(nil, why) end
    end
    table.insert(queue.waiting, job)
    start_jobs()
    return function() cancel(job) end -- the task was cancelled
  end)
end

--- What is going on: { running, waiting, owners = how many have a queue }.
function jobs.stats()
  local waiting = 0
  for _, queue in pairs(queues) do waiting = waiting + #queue.waiting end
  return { running = running, waiting = waiting, owners = #order }
end

return jobs
