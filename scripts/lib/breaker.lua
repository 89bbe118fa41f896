-- breaker: switches a script off that keeps failing, so that it costs nothing until it is loaded
-- again.
--
--   local b = breaker.new()         -- { strikes = 3, window_s = 60 } by default
--   if not b.off then … if failed then b:strike(message) end end
--
-- b.off      true after `strikes` failures within `window_s` seconds, until b:reset()
-- b.recent   failures within the window, as of the last one
-- b.total    failures since it was created or reset
-- b.last     the first line of the last message
local text = require "lib.text"
local uv = require "luv"

local LONGEST = 1000 -- bytes of a message that are kept

-- Three: one failure may be bad luck, and a broken script fails at every call anyway. A minute: a
-- script that fails less often than that does more good than harm.
local breaker = { STRIKES = 3, WINDOW_S = 60 }

local Breaker = {}
Breaker.__index = Breaker

--- Options: strikes, window_s.
function breaker.new(options)
  options = options or {}
  local self = { strikes = options.strikes or breaker.STRIKES,
    window_s = options.window_s or breaker.WINDOW_S }
  return setmetatable(self, Breaker):reset()
end

--- Counts a failure; returns whether it is off now. `now`: seconds of a monotonic clock, for tests.
function Breaker:strike(message, now)
  now = now or uv.hrtime() * 1e-9
  local times = { now }
  for _, at in ipairs(self.times) do
    if now - at < self.window_s then times[#times + 1] = at end
  end
  self.times, self.recent, self.total = times, #times, self.total + 1
  self.last = text.first_line(message):sub(1, LONGEST)
  self.off = self.off or self.recent >= self.strikes
  return self.off
end

function Breaker:reset()
  self.times, self.recent, self.total, self.last, self.off = {}, 0, 0, nil, false
  return self
end

return breaker
