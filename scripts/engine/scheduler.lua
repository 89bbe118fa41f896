-- scheduler: asks a policy what the next step computes. One guarded call per step.
--
-- A policy is a function(step), or a table whose `schedule` is one and gets `self` in addition,
-- which has its `config` and `state`. What a step offers: engine/step.lua. Policies that ship:
-- scripts/policy.
--
-- A policy that raises, exceeds its deadline, gives nothing although sequences could run, or
-- returns a value is replaced by the built-in policy (step:fill()) for that step. It is reported
-- once, and after three such steps within a minute switched off until it is loaded again
-- (lib/breaker.lua). So a bad policy is slow, never wrong.
local breaker = require "lib.breaker"
local perigee = require "perigee"
local steps = require "engine.step"

-- DEADLINE_MS of the loop thread's CPU time: a fifth of the 50 ms within which /health must answer.
-- MEMORY: what a call may allocate; more would let one policy push the caches out.
local scheduler = { DEADLINE_MS = 10, MEMORY = 64 << 20 }

-- ---- timing -----------------------------------------------------------------------------------

local Timing = {}
Timing.__index = Timing

--- What steps took lately: decode (seconds of a step without prefill), prefill (seconds per token).
function scheduler.timing()
  return setmetatable({ decodes = { at = 0, sorted = {} }, prefills = { at = 0, sorted = {} } },
    Timing)
end

local KEPT = 31 -- steps: fewer are noisy, more follow a change of load too late

--- Adds a value to a ring of the last KEPT; returns the one that `share` of them do not exceed.
local function quantile(ring, value, share)
  ring.at = ring.at % KEPT + 1
  local sorted, old = ring.sorted, ring[ring.at]
  ring[ring.at] = value
  local i = 1
  if old then -- its place becomes free
    while i < #sorted and sorted[i] ~= old do i = i + 1 end
  else
    i = #sorted + 1
  end
  while i > 1 and sorted[i - 1] > value do sorted[i], i = sorted[i - 1], i - 1 end
  while i < #sorted and sorted[i + 1] < value do sorted[i], i = sorted[i + 1], i + 1 end
  sorted[i] = value
  return sorted[math.ceil(share * #sorted)]
end

--- A step took `seconds`, computed `prompt` prompt tokens and decoded for `streams` sequences. For
--- the cost of prefill the upper quartile counts, not the median: where times vary, a budget from a
--- few quick steps would delay every stream. A short prompt alone (below 16 tokens) measures mostly
--- the fixed cost of a step.
function Timing:observe(seconds, prompt, streams)
  if prompt == 0 and streams > 0 then
    self.decode = quantile(self.decodes, seconds, 0.5)
  elseif prompt > 0 and (streams > 0 or prompt >= 16) then
    local base = streams > 0 and self.decode or 0
    local each = math.max((seconds - base) / prompt, seconds / prompt * 0.1)
    self.prefill = quantile(self.prefills, each, 0.75)
  end
end

-- ---- the policy -------------------------------------------------------------------------------

local Scheduler = {}
Scheduler.__index = Scheduler

--- The function and its `self`: that of a script that serves, or one from the table's config and
--- state.
local function read_policy(given)
  if given == nil or type(given) == "function" then return given end
  if type(given) ~= "table" or type(given.schedule) ~= "function" then
    error(("a policy must be a function or a table with `schedule`, got %s"):format(type(given)), 4)
  end
  local self = given.self
  if not self then
    local state = given.state and given.state() or {}
    self = { name = given.name, config = given.config or {}, state = state }
  end
  return given.schedule, self
end

local function load(self, given)
  self.schedule, self.self = read_policy(given)
  self.breaker = type(given) == "table" and given.breaker or breaker.new()
  self.struck = type(given) == "table" and given.struck or nil
  self.reported = nil
end

--- A scheduler with a policy (nil: the built-in one). Options: report = function(text),
--- deadline_ms. A table may have `breaker`, which counts its failures, and `struck`, a
--- function(why, off, breaker) that is called at each of them.
function scheduler.new(given, options)
  options = options or {}
  local report = options.report or function(text) io.stderr:write("perigee: ", text, "\n") end
  local self = setmetatable({ report = report, kept = {}, may = {},
    deadline_ms = options.deadline_ms or scheduler.DEADLINE_MS }, Scheduler)
  load(self, given)
  return self
end

--- Another policy, or the same again: its failures are forgotten.
function Scheduler:reload(given)
  load(self, given)
end

local function strike(self, why)
  local b = self.breaker
  b:strike(why)
  if self.struck then self.struck(b.last, b.off, b) end
  if not self.reported then
    self.reported = true
    self.report("policy: " .. b.last .. "; the built-in policy takes its place")
  end
  if b.off then
    local text = "policy: switched off after %d failures until it is loaded again"
    self.report(text:format(b.strikes))
  end
end

-- ---- one call ---------------------------------------------------------------------------------

local function could_run(sequences)
  for _, info in ipairs(sequences) do
    if not info.follows and info.left > 0 then return true end
  end
  return false
end

-- A policy holds the step and its sequences and could overwrite them. What decides about legality
-- is kept aside: four values per sequence in one flat table, since this is done for every step.
local function keep(self, sequences)
  local kept, n = self.kept, 0
  for i = 1, #sequences do
    local info = sequences[i]
    kept[n + 1], kept[n + 2] = info.id, info.state
    kept[n + 3], kept[n + 4] = info.left, info.follows or false
    n = n + 4
  end
  for i = #kept, n + 1, -1 do kept[i] = nil end
end

local function kept_sequences(kept)
  local sequences = {}
  for i = 1, #kept, 4 do
    sequences[#sequences + 1] = { id = kept[i], state = kept[i + 1], left = kept[i + 2],
      follows = kept[i + 3] }
  end
  return sequences
end

local OVERWROTE = "overwrote the step"

--- The step's grants and preempted sequences, copied by raw access: a policy may have put any table
--- there. Raises when it is not one of ours any more.
local function copied(step)
  local grants, preempted = {}, {}
  local given, set_aside = rawget(step, "grants"), rawget(step, "preempted")
  if type(given) ~= "table" or type(set_aside) ~= "table" then error(OVERWROTE, 0) end
  for i = 1, rawlen(given) do
    local grant = rawget(given, i)
    if type(grant) ~= "table" then error(OVERWROTE, 0) end
    grants[i] = { rawget(grant, 1), rawget(grant, 2) }
  end
  for seq, value in next, set_aside do preempted[seq] = value end
  return grants, preempted
end

--- Raises when the grants of a step are not legal moves.
local function check_legal(self, grants, preempted, tokens)
  local kept, left, sum = self.kept, self.may, 0
  for seq in pairs(left) do left[seq] = nil end
  for i = 1, #kept, 4 do left[kept[i]] = kept[i + 3] and 0 or kept[i + 2] end
  for _, grant in ipairs(grants) do
    local seq, n = grant[1], grant[2]
    if math.type(n) ~= "integer" or n < 1 or n > (left[seq or 0] or 0) then error(OVERWROTE, 0) end
    left[seq], sum = 0, sum + n
  end
  for seq in pairs(preempted) do
    if not left[seq] then error(OVERWROTE, 0) end
  end
  if sum > tokens then error(OVERWROTE, 0) end
  if sum == 0 and could_run(kept_sequences(kept)) then
    error("gave nothing, although sequences could run", 0)
  end
end

--- Calls the policy; returns its grants and what it preempts, or nil and why it failed. What it did
--- is looked at under its own deadline.
local function ask(self, step, tokens)
  local ok, grants, preempted = perigee.guard(function()
    local result = self.schedule(step, self.self)
    if result ~= nil then
      error(("must return nothing, returned %s"):format(type(result)), 0)
    end
    local given, set_aside = copied(step)
    check_legal(self, given, set_aside, tokens)
    return given, set_aside
  end, { deadline_ms = self.deadline_ms, memory = scheduler.MEMORY })
  if not ok then return nil, grants end
  return grants, preempted
end

--- Grants, and the sequences to preempt before them, for sequences as batch:sequences() lists them.
--- Options: tokens, timing, free.
function Scheduler:grants(sequences, options)
  if not could_run(sequences) then return {}, {} end
  if self.schedule and not self.breaker.off then
    keep(self, sequences)
    local step = steps.new(sequences, options)
    local grants, result = ask(self, step, options.tokens)
    if grants then return grants, result end
    sequences = kept_sequences(self.kept)
    strike(self, result)
  end
  local step = steps.new(sequences, options)
  step:fill()
  return step.grants, step.preempted
end

return scheduler
