-- inbox: the events of a batch on the way to their sequences, in the order in which they came.
--
-- A step has an event for each of its sequences, and what is done with one may take a millisecond
-- (20 logprobs as JSON). So events that come from the engine thread are told in slices of time, and
-- the loop turns between two slices. Each event is taken out before it is told: whatever its
-- callback does, even telling the rest, no event is told twice.
local uv = require "luv"

local inbox = {}

local Inbox = {}
Inbox.__index = Inbox

--- tell(event) -> nil, or an error that a callback raised; it may raise errors of its own.
function inbox.new(tell)
  return setmetatable({ tell = tell, first = 1, last = 0, at = 1 }, Inbox)
end

--- Adds a list of events. It is kept, not copied.
function Inbox:put(events)
  if #events == 0 then return end
  self.last = self.last + 1
  self[self.last] = events
end

function Inbox:is_empty() return self.first > self.last end

local function take(self)
  local events = self[self.first]
  local event = events[self.at]
  self.at = self.at + 1
  if self.at > #events then
    self[self.first] = nil
    self.first, self.at = self.first + 1, 1
  end
  return event
end

--- Tells events for about this many nanoseconds, at least one; without a limit, all. Returns true
--- when none is left, and the first error since the inbox was empty.
function Inbox:deliver(ns)
  local began = ns and uv.hrtime()
  while not self:is_empty() do
    local _, failed = pcall(self.tell, take(self))
    self.failed = self.failed or failed
    if ns and not self:is_empty() and uv.hrtime() - began > ns then return false end
  end
  local failed = self.failed
  self.failed = nil
  return true, failed
end

return inbox
