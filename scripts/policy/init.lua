-- policy: who runs next. One guarded Lua call per step, with legal moves only.
--
-- A policy is a function(step), or a table whose `schedule` is one. The step offers
--
--   step:running()       rows that have caches, oldest first: { row =, state = "reading" | "writing", left =, prompt =, … }
--   step:waiting()       rows that have none yet, or none any more
--   step:give(row, n)    the row may process n tokens (default: all it has left, as far as the step has room); returns n
--   step:order(rows)     these come first, in this order, when `fill` gives
--   step:preempt(row)    its caches are given back, its tokens stay
--   step:fill()          the built-in policy gives the rest of the step
--   step.tokens, step.left     what a step may hold, and what is left of it
--   step.timing          what steps took lately: decode (seconds of a step that only writes), read (seconds per prompt token)
--   step.free            tokens that the caches have room for
--
-- A move that is not legal raises, with the numbers. A policy that raises, takes too long, gives nothing although something
-- could run, or returns something, is replaced for that step by the built-in one: reported once, and after three such
-- steps switched off until it is loaded again. So a bad policy is slow, never wrong.
local perigee = require "perigee"

local policy = { STRIKES = 3, DEADLINE_MS = 10 }

-- ---- one step ------------------------------------------------------------------------------------------------------

local Step = {}
Step.__index = Step

local function new_step(rows, options)
  local self = setmetatable({ rows = {}, grants = {}, preempted = {}, given = {}, first = {}, tokens = options.tokens,
    left = options.tokens, timing = options.timing, free = options.free }, Step)
  for _, info in ipairs(rows) do self.rows[info.row] = info end
  self.list = rows
  return self
end

local function pick(self, wanted)
  local out = {}
  for _, info in ipairs(self.list) do
    if wanted(info) then out[#out + 1] = info end
  end
  return out
end

function Step:running()
  return pick(self, function(info) return info.state ~= "waiting" and not self.preempted[info.row] end)
end

--- Choices that wait for the prompt of the first one are not among them: nothing can be given to them.
function Step:waiting()
  return pick(self, function(info) return info.state == "waiting" and not info.follows end)
end

local function find(self, row, verb)
  local id = type(row) == "table" and row.row or row
  local info = math.type(id) == "integer" and self.rows[id]
  if not info then error(("%s: there is no row %s"):format(verb, tostring(id)), 3) end
  return info
end

function Step:give(row, n)
  local info = find(self, row, "give")
  local id = info.row
  if n == nil then n = math.min(info.left, self.left) end
  if math.type(n) ~= "integer" or n < 0 then error(("give: %s tokens to row %d"):format(tostring(n), id), 2) end
  if self.given[id] then error(("give: row %d has been given %d tokens already"):format(id, self.given[id]), 2) end
  if self.preempted[id] then error(("give: row %d was preempted in this step"):format(id), 2) end
  if n > info.left then error(("give: %d tokens to row %d, which has %d left"):format(n, id, info.left), 2) end
  if n > self.left then error(("give: %d tokens, but the step has room for %d more"):format(n, self.left), 2) end
  if n == 0 then return 0 end
  self.given[id], self.left = n, self.left - n
  self.grants[#self.grants + 1] = { id, n }
  return n
end

function Step:order(rows)
  if type(rows) ~= "table" then error(("order: a list of rows expected, got %s"):format(type(rows)), 2) end
  local first = {}
  for i, row in ipairs(rows) do first[i] = find(self, row, "order") end
  self.first = first
end

function Step:preempt(row)
  local info = find(self, row, "preempt")
  if info.state == "waiting" then error(("preempt: row %d does not run"):format(info.row), 2) end
  if self.given[info.row] then error(("preempt: row %d has been given tokens in this step"):format(info.row), 2) end
  self.preempted[info.row] = true
end

--- Every row once: those that `order` named, then by age, those that write before those that read.
local function importance(self)
  local out, seen = {}, {}
  local function put(info)
    if not seen[info.row] and not info.follows and not self.preempted[info.row] then
      seen[info.row] = true
      out[#out + 1] = info
    end
  end
  for _, info in ipairs(self.first) do put(info) end
  for _, state in ipairs { "writing", "reading", "waiting" } do
    for _, info in ipairs(self.list) do
      if info.state == state then put(info) end
    end
  end
  return out
end

--- Tokens that may be read beside writing rows so that a step takes at most about twice as long as one that only writes.
function policy.read_budget(step, factor)
  local timing = step.timing
  if not (timing and timing.decode and timing.read) then return math.min(step.left, 32) end
  local tokens = timing.decode * ((factor or 2) - 1) / timing.read
  return math.max(4, math.min(step.left, math.floor(tokens)))
end

--- The built-in policy: decode first, then prompts within the room and the time of the step.
function Step:fill()
  local writing, budget = false, nil
  for _, info in ipairs(importance(self)) do
    writing = writing or info.state == "writing"
    if self.left > 0 and not self.given[info.row] and info.left > 0 then
      if info.state == "writing" then
        self:give(info)
      else
        budget = budget or (writing and policy.read_budget(self) or self.left)
        budget = budget - self:give(info, math.min(info.left, budget, self.left))
      end
    end
  end
end

-- ---- what steps take -----------------------------------------------------------------------------------------------

local Timing = {}
Timing.__index = Timing

function policy.timing()
  return setmetatable({ steps = {}, at = 0 }, Timing)
end

local KEPT = 31

--- A step took `seconds`, read so many prompt tokens and wrote for so many rows.
function Timing:observe(seconds, read, written)
  if read == 0 and written > 0 then
    self.at = self.at % KEPT + 1
    self.steps[self.at] = seconds
    local sorted = table.move(self.steps, 1, #self.steps, 1, {})
    table.sort(sorted)
    self.decode = sorted[(#sorted + 1) // 2]
  elseif read > 0 then
    local base = written > 0 and self.decode or 0
    local each = math.max((seconds - base) / read, seconds / read * 0.1)
    if written == 0 and read < 16 then return end -- mostly what a step costs anyway
    local weight = self.read and each < self.read and 0.2 or 0.5 -- careful: what costs more is believed sooner
    self.read = self.read and (1 - weight) * self.read + weight * each or each
  end
end

-- ---- the guarded call ----------------------------------------------------------------------------------------------

local Runner = {}
Runner.__index = Runner

local function to_function(given)
  if type(given) == "function" then return given end
  if type(given) == "table" and type(given.schedule) == "function" then return given.schedule end
  error(("a policy is a function or a table with `schedule`, not %s"):format(type(given)), 3)
end

--- Guards a policy (nil: fifo). Options: report = function(text), deadline_ms.
function policy.guard(given, options)
  options = options or {}
  local self = setmetatable({ strikes = 0, report = options.report or function(text) io.stderr:write("perigee: ", text, "\n") end,
    deadline_ms = options.deadline_ms or policy.DEADLINE_MS }, Runner)
  self.schedule = to_function(given or require "policy.fifo")
  return self
end

--- Another one, or the same again: strikes are forgotten.
function Runner:reload(given)
  self.schedule, self.strikes, self.reported = to_function(given), 0, nil
end

local function strike(self, why)
  self.strikes = self.strikes + 1
  self.last_error = tostring(why)
  if not self.reported then
    self.reported = true
    self.report("policy: " .. self.last_error .. "; the built-in policy takes its place")
  end
  if self.strikes == policy.STRIKES then
    self.report(("policy: switched off after %d failures until it is loaded again"):format(policy.STRIKES))
  end
end

local function could_run(step)
  for _, info in ipairs(step.list) do
    if not info.follows and info.left > 0 then return true end
  end
  return false
end

local function ask(self, step)
  local ok, result = perigee.guard(function() return self.schedule(step) end, { deadline_ms = self.deadline_ms })
  if not ok then return result end
  if result ~= nil then return ("returned %s, nothing was expected"):format(type(result)) end
  if #step.grants == 0 and could_run(step) then return "gave nothing, although rows could run" end
end

--- Grants and rows to preempt first, for rows as batch:rows() lists them. Options: tokens, timing, free.
function Runner:grants(rows, options)
  local step = new_step(rows, options)
  if not could_run(step) then return {}, {} end
  local why
  if self.strikes < policy.STRIKES then why = ask(self, step) else why = false end
  if why ~= nil then
    if why then strike(self, why) end
    step = new_step(rows, options)
    step:fill()
  end
  return step.grants, step.preempted
end

return policy
