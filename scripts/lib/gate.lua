-- gate: lets a number of callers in at a time; the others wait in the order they came.
--
--   local gate = require("lib.gate").new(8)
--   local _ <close> = gate:wait()                  -- inside a task; leaves at the end of scope
--   gate:enter(function(leave) … leave() … end)    -- anywhere: calls the function, now or later
local async = require "lib.async"

local Gate = {}
Gate.__index = Gate

local function new(size)
  return setmetatable({ free = size, waiting = {} }, Gate)
end

local admit

local function leave_once(self)
  local left = false
  return function()
    if left then return end
    left = true
    self.free = self.free + 1
    admit(self)
  end
end

--- Lets in those for whom there is room.
function admit(self)
  while self.free > 0 and #self.waiting > 0 do
    self.free = self.free - 1
    table.remove(self.waiting, 1)(leave_once(self))
  end
end

--- Calls begin(leave) when there is room, perhaps at once; leave() must be called when the caller
--- is done. Returns a function that gives up the place in the queue.
function Gate:enter(begin)
  self.waiting[#self.waiting + 1] = begin
  admit(self)
  return function()
    for i, other in ipairs(self.waiting) do
      if other == begin then return table.remove(self.waiting, i) end
    end
  end
end

--- Waits for room, inside a task; returns an object that leaves when it is closed.
function Gate:wait()
  local leave, arrived
  -- The task may be cancelled after it was let in and before it goes on.
  local _ <close> = setmetatable({}, { __close = function()
    if leave and not arrived then leave() end
  end })
  async.await(function(resume)
    return self:enter(function(given)
      leave = given
      resume()
    end)
  end)
  arrived = true
  return setmetatable({}, { __close = leave })
end

return { new = new }
