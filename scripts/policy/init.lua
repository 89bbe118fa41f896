-- policy: who runs next. One guarded Lua call per step, with legal moves only.
--
-- A policy is a function(step), or a table whose `schedule` is one; that of a table also gets `self`, which has its `config`
-- and its `state`. The step offers
--
--   step:running(filter)     sequences that have caches, oldest first: { id =, state = "prefill" | "decode", left =, tag =, … }
--   step:waiting(filter)     sequences that have none yet, or none any more
--   step:prompts(filter)     sequences whose prompts are to be read: those that are being read, then those that wait
--   step:decode()             every seq that writes gets its token; returns how many did
--   step:room(factor)        prompt tokens that may still be read: all that is left of the step, and beside sequences that write so
--                            many that it takes about `factor` (policy.STRETCH) times as long as without
--   step:prefill(seq, most)     the seq may read as much of its prompt as there is room, at most `most`; returns how much
--   step:give(seq, n)        the seq may process n tokens (default: all it has left, as far as the step has room); returns n
--   step:order(sequences)         these come first, in this order, when `fill` gives; order(function(seq) … end): smaller first
--                            among sequences that do the same, the older one where they are equal
--   step:preempt(seq)        its caches are given back, its tokens stay
--   step:fill()              the built-in policy gives the rest of the step; `for seq, n in step:fill()` tells what
--   step.tokens, step.left   what a step may hold, and what is left of it
--   step.timing              what steps took lately: decode (seconds of a step without prefill), prefill (seconds per prompt token)
--   step.free                tokens that the caches have room for
--   step.now                 seconds on a clock that only goes forward
--
-- A filter is a table that the seq's tag must agree with ({ lane = "chat" }), or a function(seq).
--
-- A move that is not legal raises, with the numbers. A policy that raises, takes too long, gives nothing although something
-- could run, or returns something, is replaced for that step by the built-in one: reported once, and after three such
-- steps within a minute switched off until it is loaded again. So a bad policy is slow, never wrong.
local perigee = require "perigee"
local uv = require "luv"

-- STRETCH: a step that reads prompts, too, is to take so many times as long as one that only writes. That is the middle: single
-- steps take longer, and no gap between the tokens of a stream should come near three times the usual one.
local policy = { STRIKES = 3, WINDOW_S = 60, DEADLINE_MS = 10, MEMORY = 64 << 20, STRETCH = 1.75 }

-- ---- one step ------------------------------------------------------------------------------------------------------

local Step = {}
Step.__index = Step

local function new_step(sequences, options)
  local timing, by_id, writers = options.timing, {}, 0
  for i = 1, #sequences do
    local info = sequences[i]
    by_id[info.id] = info
    if info.state == "decode" then writers = writers + 1 end
    if type(info.tag) ~= "table" then info.tag = {} end -- so that a policy need not ask
  end
  return setmetatable({ sequences = by_id, list = sequences, grants = {}, preempted = {}, given = {}, first = {}, tokens = options.tokens,
    left = options.tokens, writers = writers, taken = 0, timing = timing and { decode = timing.decode, prefill = timing.prefill },
    free = options.free, now = uv.hrtime() * 1e-9 }, Step)
end

--- A step as policies get it, over sequences as batch:sequences() lists them; for trying policies out. Options: tokens, timing, free.
function policy.step(sequences, options)
  return new_step(sequences, options)
end

local function agrees(info, filter)
  if type(filter) == "function" then return filter(info) end
  for key, value in pairs(filter) do
    if info.tag[key] ~= value then return false end
  end
  return true
end

local function pick(self, states, filter)
  if filter ~= nil and type(filter) ~= "table" and type(filter) ~= "function" then
    error(("a filter is a table or a function, not %s"):format(type(filter)), 3)
  end
  local out, n, list, preempted = {}, 0, self.list, self.preempted
  for i = 1, #list do
    local info = list[i]
    if states[info.state] and not info.follows and not preempted[info.id] and (not filter or agrees(info, filter)) then
      n = n + 1
      out[n] = info
    end
  end
  return out
end

local RUNNING = { prefill = true, decode = true }
local PREFILL, WAITING, DECODE = { prefill = true }, { waiting = true }, { decode = true }

function Step:running(filter) return pick(self, RUNNING, filter) end

--- Choices that wait for the prompt of the first one are not among them: nothing can be given to them.
function Step:waiting(filter) return pick(self, WAITING, filter) end

function Step:prompts(filter)
  local sequences = pick(self, PREFILL, filter)
  return table.move(pick(self, WAITING, filter), 1, #self.list, #sequences + 1, sequences)
end

local function find(self, seq, verb)
  local id = type(seq) == "table" and seq.id or seq
  local info = math.type(id) == "integer" and self.sequences[id]
  if not info then error(("%s: there is no seq %s"):format(verb, tostring(id)), 3) end
  return info
end

--- Writes a move down that is legal.
local function book(self, info, n)
  if n <= 0 then return 0 end
  self.given[info.id], self.left = n, self.left - n
  if info.state ~= "decode" then self.taken = self.taken + n end
  self.grants[#self.grants + 1] = { info.id, n }
  return n
end

function Step:give(seq, n)
  local info = find(self, seq, "give")
  local id = info.id
  if n == nil then n = math.min(info.left, self.left) end
  if math.type(n) ~= "integer" or n < 0 then error(("give: %s tokens to seq %d"):format(tostring(n), id), 2) end
  if self.given[id] then error(("give: seq %d has been given %d tokens already"):format(id, self.given[id]), 2) end
  if self.preempted[id] then error(("give: seq %d was preempted in this step"):format(id), 2) end
  if n > info.left then error(("give: %d tokens to seq %d, which has %d left"):format(n, id, info.left), 2) end
  if n > self.left then error(("give: %d tokens, but the step has room for %d more"):format(n, self.left), 2) end
  return book(self, info, n)
end

function Step:decode()
  local n, given = 0, self.given
  for _, info in ipairs(pick(self, DECODE)) do
    if not given[info.id] then n = n + book(self, info, math.min(info.left, self.left)) end
  end
  return n
end

--- Tokens that may be read beside sequences that write, whatever has been given so far.
local function read_budget(self, factor)
  local timing = self.timing
  if not (timing and timing.decode and timing.prefill) then return 32 end
  return math.max(4, math.floor(timing.decode * (factor - 1) / timing.prefill))
end

function Step:room(factor)
  if self.writers == 0 then return self.left end
  return math.max(0, math.min(self.left, read_budget(self, factor or policy.STRETCH) - self.taken))
end

function Step:prefill(seq, most)
  local info = find(self, seq, "read")
  if info.state == "decode" then error(("read: seq %d has read its prompt"):format(info.id), 2) end
  if self.given[info.id] then return 0 end
  local n = math.min(info.left, self:room(), most and math.max(0, math.floor(most)) or info.left)
  return self:give(info, math.tointeger(n))
end

--- The sequences by what a function says of each, smaller first; the older one where it says the same.
local function by_key(self, key)
  local sequences, keys, age = {}, {}, {}
  for i, info in ipairs(self.list) do
    local value = key(info)
    if type(value) ~= "number" or value ~= value then
      error(("order: the key of seq %d is %s, not a number"):format(info.id, tostring(value)), 3)
    end
    sequences[i], keys[info], age[info] = info, value, i
  end
  table.sort(sequences, function(a, b) return keys[a] < keys[b] or keys[a] == keys[b] and age[a] < age[b] end)
  return sequences
end

function Step:order(by)
  if type(by) == "function" then
    self.sorted = by_key(self, by)
    return
  end
  if type(by) ~= "table" then error(("order: a list of sequences or a function expected, got %s"):format(type(by)), 2) end
  local first = {}
  for i, seq in ipairs(by) do first[i] = find(self, seq, "order") end
  self.first = first
end

function Step:preempt(seq)
  local info = find(self, seq, "preempt")
  if info.state == "waiting" then error(("preempt: seq %d does not run"):format(info.id), 2) end
  if self.given[info.id] then error(("preempt: seq %d has been given tokens in this step"):format(info.id), 2) end
  if info.state == "decode" and not self.preempted[info.id] then self.writers = self.writers - 1 end
  self.preempted[info.id] = true
end

--- Every seq once: those that `order` named, then those that write, read, wait, each by their key or by age.
local function importance(self)
  local out, seen = {}, {}
  local function put(info)
    if not seen[info.id] and not info.follows and not self.preempted[info.id] then
      seen[info.id] = true
      out[#out + 1] = info
    end
  end
  for _, info in ipairs(self.first) do put(info) end
  for _, state in ipairs { "decode", "prefill", "waiting" } do
    for _, info in ipairs(self.sorted or self.list) do
      if info.state == state then put(info) end
    end
  end
  return out
end

--- The built-in policy: decode first, then prompts within the room and the time of the step.
function Step:fill()
  local before = #self.grants
  for _, info in ipairs(importance(self)) do
    if self.left > 0 and not self.given[info.id] and info.left > 0 then
      if info.state == "decode" then self:give(info) else self:prefill(info) end
    end
  end
  local i = before
  return function()
    i = i + 1
    local grant = self.grants[i]
    if grant then return self.sequences[grant[1]], grant[2] end
  end
end

-- ---- what steps take -----------------------------------------------------------------------------------------------

local Timing = {}
Timing.__index = Timing

function policy.timing()
  return setmetatable({ writes = { at = 0, sorted = {} }, reads = { at = 0, sorted = {} } }, Timing)
end

local KEPT = 31

--- One more of the last KEPT values; the one that so large a share of them does not exceed.
local function among(ring, value, share)
  ring.at = ring.at % KEPT + 1
  local sorted, old = ring.sorted, ring[ring.at]
  ring[ring.at] = value
  local i = 1
  if old then -- its place is taken
    while i < #sorted and sorted[i] ~= old do i = i + 1 end
  else
    i = #sorted + 1
  end
  while i > 1 and sorted[i - 1] > value do sorted[i], i = sorted[i - 1], i - 1 end
  while i < #sorted and sorted[i + 1] < value do sorted[i], i = sorted[i + 1], i + 1 end
  sorted[i] = value
  return sorted[math.ceil(share * #sorted)]
end

--- A step took `seconds`, read so many prompt tokens and wrote for so many sequences. Of what reading costs a high value is believed,
--- not the middle: where times vary, every stream would pay for a budget that a few quick steps have made too large.
function Timing:observe(seconds, read, written)
  if read == 0 and written > 0 then
    self.decode = among(self.writes, seconds, 0.5)
  elseif read > 0 and (written > 0 or read >= 16) then -- a short prompt alone is mostly what a step costs anyway
    local base = written > 0 and self.decode or 0
    self.prefill = among(self.reads, math.max((seconds - base) / read, seconds / read * 0.1), 0.75)
  end
end

-- ---- the guarded call ----------------------------------------------------------------------------------------------

local Runner = {}
Runner.__index = Runner

--- What `schedule` gets as self: that of a script which serves, or one made of the table's config and state.
local function to_policy(given)
  if type(given) == "function" then return given end
  if type(given) ~= "table" or type(given.schedule) ~= "function" then
    error(("a policy is a function or a table with `schedule`, not %s"):format(type(given)), 3)
  end
  local self = given.self
  if not self then
    self = { name = given.name, config = given.config or {}, state = given.state and given.state() or {} }
  end
  return given.schedule, self, given.struck
end

local function load(self, given)
  self.schedule, self.self, self.struck = to_policy(given)
  self.times, self.strikes, self.reported, self.off = {}, 0, nil, nil
end

--- Guards a policy (nil: fifo). Options: report = function(text), deadline_ms. A table may have `struck`, a function(why, off)
--- that is told about every failure.
function policy.guard(given, options)
  options = options or {}
  local self = setmetatable({ report = options.report or function(text) io.stderr:write("perigee: ", text, "\n") end,
    deadline_ms = options.deadline_ms or policy.DEADLINE_MS, kept = {}, may = {} }, Runner)
  load(self, given or require "policy.fifo")
  return self
end

--- Another one, or the same again: strikes are forgotten.
function Runner:reload(given)
  load(self, given)
end

local function strike(self, why, now)
  local times = {}
  for _, at in ipairs(self.times) do
    if now - at < policy.WINDOW_S then times[#times + 1] = at end
  end
  times[#times + 1] = now
  self.times, self.strikes = times, #times
  self.last_error = (tostring(why):gsub("%s*\n.*", ""))
  self.off = #times >= policy.STRIKES
  if self.struck then self.struck(self.last_error, self.off) end
  if not self.reported then
    self.reported = true
    self.report("policy: " .. self.last_error .. "; the built-in policy takes its place")
  end
  if self.off then
    self.report(("policy: switched off after %d failures until it is loaded again"):format(policy.STRIKES))
  end
end

local function could_run(sequences)
  for _, info in ipairs(sequences) do
    if not info.follows and info.left > 0 then return true end
  end
  return false
end

local function ask(self, step)
  local ok, result = perigee.guard(function() return self.schedule(step, self.self) end,
    { deadline_ms = self.deadline_ms, memory = policy.MEMORY })
  if not ok then return result end
  if result ~= nil then return ("returned %s, nothing was expected"):format(type(result)) end
end

-- A policy has the step and its sequences in its hands; what it could have written over is kept aside, four values of a seq after the
-- other: this is done for every step.
local function keep(self, sequences)
  local kept, n = self.kept, 0
  for i = 1, #sequences do
    local info = sequences[i]
    kept[n + 1], kept[n + 2], kept[n + 3], kept[n + 4] = info.id, info.state, info.left, info.follows or false
    n = n + 4
  end
  for i = #kept, n + 1, -1 do kept[i] = nil end
end

local function kept_sequences(kept)
  local sequences = {}
  for i = 1, #kept, 4 do
    sequences[#sequences + 1] = { id = kept[i], state = kept[i + 1], left = kept[i + 2], follows = kept[i + 3] }
  end
  return sequences
end

--- Why these are not the grants of legal moves, or nil.
local function illegal(self, step, tokens)
  local kept, left, sum = self.kept, self.may, 0
  for seq in pairs(left) do left[seq] = nil end
  for i = 1, #kept, 4 do left[kept[i]] = kept[i + 3] and 0 or kept[i + 2] end
  if type(step.grants) ~= "table" or type(step.preempted) ~= "table" then return "wrote over the step" end
  for _, grant in ipairs(step.grants) do
    local seq, n
    if type(grant) == "table" then seq, n = grant[1], grant[2] end
    if math.type(n) ~= "integer" or n < 1 or n > (left[seq or 0] or 0) then return "wrote over the step" end
    left[seq], sum = 0, sum + n
  end
  for seq in pairs(step.preempted) do
    if not left[seq] then return "wrote over the step" end
  end
  if sum > tokens then return "wrote over the step" end
  if sum == 0 and could_run(kept_sequences(kept)) then return "gave nothing, although sequences could run" end
end

--- Grants and sequences to preempt first, for sequences as batch:sequences() lists them. Options: tokens, timing, free.
function Runner:grants(sequences, options)
  if not could_run(sequences) then return {}, {} end
  if not self.off then
    keep(self, sequences)
    local step = new_step(sequences, options)
    local why = ask(self, step) or illegal(self, step, options.tokens)
    if not why then return step.grants, step.preempted end
    sequences = kept_sequences(self.kept)
    strike(self, why, uv.hrtime() * 1e-9)
  end
  local step = new_step(sequences, options)
  step:fill()
  return step.grants, step.preempted
end

return policy
