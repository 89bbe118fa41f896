-- step: what a policy sees of the next step. It can make legal moves only; an illegal one raises,
-- with the numbers.
--
--   step:running(filter)     sequences that have caches, oldest first:
--                            { id =, state = "prefill" | "decode", left =, tag =, … }
--   step:waiting(filter)     sequences without caches: not admitted yet, or preempted; of a long
--                            queue the oldest with each tag (engine/window.lua)
--   step:prompts(filter)     sequences in prefill, then waiting ones
--   step:decode()            gives every sequence in decode its token; returns how many got one
--   step:room(factor)        prompt tokens that still fit: all that is left of the step or, next to
--                            sequences in decode, what makes it take about `factor` times as long,
--                            or 10 ms longer if that is more
--   step:prefill(seq, most)  gives it the prompt tokens that there is room for, at most `most`;
--                            returns how many
--   step:give(seq, n)        gives it n tokens (default: what it has left and what still fits)
--   step:order(sequences)    `fill` serves these first, in this order
--   step:order(f)            `fill` serves smaller f(seq) first within each state, then older ones
--   step:preempt(seq)        frees its caches; its tokens stay
--   step:fill()              the built-in policy gives the rest; `for seq, n in step:fill()`
--   step.tokens, step.left   rows of the step, and how many of them are left
--   step.timing              recent steps: decode (seconds of a step without prefill), prefill
--                            (seconds per prompt token)
--   step.free                tokens that fit into the caches
--   step.slots               sequences that can be admitted
--   step.now                 seconds on a monotonic clock
--
-- A filter is a table that the tag of the sequence must agree with ({ lane = "chat" }), or a
-- function(seq).
local uv = require "luv"

-- STRETCH: a step with prefill may take this many times as long as one that only decodes. It is an
-- average; single steps take longer, and the gap between two tokens of a stream should stay below
-- three times the usual one. BRIEF: seconds of prefill that no reader notices between two tokens,
-- however short the usual gap is. Without it a small model, whose steps take 1 ms, would let thirty
-- prompts in a few tokens at a time, at a third of the speed. BLIND, LEAST: prompt tokens next to
-- streams before anything was measured; and at least, so that a prompt always moves.
local step = { STRETCH = 1.75, BRIEF = 0.01, BLIND = 32, LEAST = 4 }

local Step = {}
Step.__index = Step

--- A step over sequences as batch:sequences() lists them. Options: tokens, timing, free.
function step.new(sequences, options)
  local timing, by_id, streams, running = options.timing, {}, 0, 0
  for i = 1, #sequences do
    local info = sequences[i]
    by_id[info.id] = info
    if info.state == "decode" then streams = streams + 1 end
    if info.state ~= "waiting" then running = running + 1 end
    if type(info.tag) ~= "table" then info.tag = {} end -- so that policies can index it
  end
  return setmetatable({ sequences = by_id, list = sequences, grants = {}, preempted = {},
    given = {}, first = {}, tokens = options.tokens, left = options.tokens, streams = streams,
    taken = 0, timing = timing and { decode = timing.decode, prefill = timing.prefill },
    free = options.free, slots = math.max(0, (options.slots or math.huge) - running),
    now = uv.hrtime() * 1e-9 }, Step)
end

-- ---- looking ----------------------------------------------------------------------------------

local function agrees(info, filter)
  if type(filter) == "function" then return filter(info) end
  for key, value in pairs(filter) do
    if info.tag[key] ~= value then return false end
  end
  return true
end

--- Sequences in these states. Choices that wait for the prompt of the first one are left out:
--- nothing can be given to them.
local function pick(self, states, filter)
  if filter ~= nil and type(filter) ~= "table" and type(filter) ~= "function" then
    error(("a filter must be a table or a function, got %s"):format(type(filter)), 3)
  end
  local out, n, list, preempted = {}, 0, self.list, self.preempted
  for i = 1, #list do
    local info = list[i]
    if states[info.state] and not info.follows and not preempted[info.id]
      and (not filter or agrees(info, filter)) then
      n = n + 1
      out[n] = info
    end
  end
  return out
end

local RUNNING = { prefill = true, decode = true }
local PREFILL, WAITING, DECODE = { prefill = true }, { waiting = true }, { decode = true }

function Step:running(filter) return pick(self, RUNNING, filter) end
function Step:waiting(filter) return pick(self, WAITING, filter) end

function Step:prompts(filter)
  local sequences = pick(self, PREFILL, filter)
  return table.move(pick(self, WAITING, filter), 1, #self.list, #sequences + 1, sequences)
end

local function find(self, seq, verb)
  local id = type(seq) == "table" and seq.id or seq
  local info = math.type(id) == "integer" and self.sequences[id]
  if not info then error(("%s: there is no sequence %s"):format(verb, tostring(id)), 3) end
  return info
end

--- Prompt tokens next to streams, whatever has been given so far.
local function prefill_budget(self, factor)
  local timing = self.timing
  if not (timing and timing.decode and timing.prefill) then return step.BLIND end
  local seconds = math.max(step.BRIEF, timing.decode * (factor - 1))
  return math.max(step.LEAST, math.floor(seconds / timing.prefill))
end

function Step:room(factor)
  if self.streams == 0 then return self.left end
  return math.max(0, math.min(self.left, prefill_budget(self, factor or step.STRETCH) - self.taken))
end

-- ---- moves ------------------------------------------------------------------------------------

--- Notes a legal move.
local function book(self, info, n)
  if n <= 0 then return 0 end
  self.given[info.id], self.left = n, self.left - n
  if info.state ~= "decode" then self.taken = self.taken + n end
  self.grants[#self.grants + 1] = { info.id, n }
  return n
end

function Step:give(seq, n)
  local info = find(self, seq, "give")
  local id, given = info.id, self.given[info.id]
  if n == nil then n = math.min(info.left, self.left) end
  if math.type(n) ~= "integer" or n < 0 then
    error(("give: tokens must be an integer and 0 or more, got %s"):format(tostring(n)), 2)
  end
  if given then
    error(("give: sequence %d has been given %d tokens already"):format(id, given), 2)
  end
  if self.preempted[id] then
    error(("give: sequence %d was preempted in this step"):format(id), 2)
  end
  if n > info.left then
    error(("give: sequence %d can use %d tokens, got %d"):format(id, info.left, n), 2)
  end
  if n > self.left then
    error(("give: the step has %d tokens left, got %d"):format(self.left, n), 2)
  end
  return book(self, info, n)
end

function Step:decode()
  local n, given = 0, self.given
  for _, info in ipairs(pick(self, DECODE)) do
    if not given[info.id] then n = n + book(self, info, math.min(info.left, self.left)) end
  end
  return n
end

function Step:prefill(seq, most)
  local info = find(self, seq, "prefill")
  if info.state == "decode" then
    error(("prefill: sequence %d has no prompt tokens left, it is in decode"):format(info.id), 2)
  end
  if self.given[info.id] then return 0 end
  local n = math.min(info.left, self:room(), most and math.max(0, math.floor(most)) or info.left)
  return self:give(info, math.tointeger(n))
end

function Step:preempt(seq)
  local info = find(self, seq, "preempt")
  local id = info.id
  if info.state == "waiting" then error(("preempt: sequence %d is not running"):format(id), 2) end
  if self.given[id] then
    error(("preempt: sequence %d has been given tokens in this step"):format(id), 2)
  end
  if info.state == "decode" and not self.preempted[id] then self.streams = self.streams - 1 end
  if not self.preempted[id] then self.slots = self.slots + 1 end
  self.preempted[id] = true
end

-- ---- the built-in policy ----------------------------------------------------------------------

--- The sequences by a function's key, smaller first; the older one where keys are equal.
local function by_key(self, key)
  local sequences, keys, age = {}, {}, {}
  for i, info in ipairs(self.list) do
    local value = key(info)
    if type(value) ~= "number" or value ~= value then
      local text = "order: the key of sequence %d must be a number, got %s"
      error(text:format(info.id, tostring(value)), 3)
    end
    sequences[i], keys[info], age[info] = info, value, i
  end
  table.sort(sequences, function(a, b)
    return keys[a] < keys[b] or keys[a] == keys[b] and age[a] < age[b]
  end)
  return sequences
end

function Step:order(by)
  if type(by) == "function" then
    self.sorted = by_key(self, by)
    return
  end
  if type(by) ~= "table" then
    error(("order: a list of sequences or a function expected, got %s"):format(type(by)), 2)
  end
  local first = {}
  for i, seq in ipairs(by) do first[i] = find(self, seq, "order") end
  self.first = first
end

--- Every sequence once: those that `order` named, then decode, prefill, waiting, each by key or
--- age.
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

return step
