-- idle: gives memory back when there is nothing to do.
--
-- Lua collects garbage while it allocates, so after the last of many requests theirs would stay;
-- and the allocator keeps what is freed. When the server has worked and then rested for REST ticks,
-- a task runs full cycles of the collector, step by step so that requests which come meanwhile do
-- not wait, and then returns free pages to the system. A few small requests per tick (/health,
-- /metrics) also count as rest.
local async = require "lib.async"
local perigee = require "perigee"
local uv = require "luv"

local TICK_MS, REST = 1000, 2
local GROWN_KB = 2048 -- of garbage: work that came and went between two ticks
local FEW = 20      -- requests in a tick that still are rest
local STEP_KB = 64  -- of a step of the collector: well below a millisecond
local CYCLES = 2    -- the first one may have begun before the last object was dropped

local idle = {}

--- Does any work go on, or did it since the last look?
local function is_working(app, seen)
  local counts = app.server.counts
  local requests = counts.requests + counts.refused + counts.accepted
  local many = requests - seen.requests > 2 * FEW
  seen.requests = requests
  if many or app.working > 0 or app.server.held > 0 then return true end
  for _, entry in ipairs(app.models:list()) do
    if entry.batch and entry.batch.alive > 0 then return true end
    if entry.state == "loading" or entry.state == "unloading" then return true end
  end
  return false
end

--- Collects everything, inside a task.
function idle.collect()
  for _ = 1, CYCLES do
    while not collectgarbage("step", STEP_KB) do async.breathe() end
  end
  async.sleep(0)
  perigee.sys.trim()
end

--- Starts the timer; returns a function that stops it.
function idle.start(app)
  local timer, rest, task = uv.new_timer(), 0, nil
  local seen = { requests = 0, worked = true, heap = 0 }
  timer:start(TICK_MS, TICK_MS, function()
    if is_working(app, seen) then
      seen.worked, rest = true, 0
      return
    end
    rest = rest + 1
    if collectgarbage "count" > seen.heap + GROWN_KB then seen.worked = true end
    if not seen.worked or rest < REST or task and not task.finished then return end
    seen.worked = false
    task = async.run(function()
      idle.collect()
      seen.heap = collectgarbage "count"
    end)
  end)
  timer:unref()
  return function()
    timer:close()
    if task then task:cancel() end
  end
end

return idle
