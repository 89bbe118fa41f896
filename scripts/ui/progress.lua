-- progress: a line on stderr that is overwritten; nothing if stderr is not a terminal.
local term = require "ui.term"
local uv = require "luv"

local INTERVAL_NS = 100 * 1000 * 1000 -- ten times a second
local WIDTH = 24

local Progress = {}
Progress.__index = Progress

local function bar(share)
  local full = math.floor(share * WIDTH + 0.5)
  return ("█"):rep(full) .. ("░"):rep(WIDTH - full)
end

--- Shows that `done` of the total is done.
function Progress:update(done, note)
  if not self.visible then return end
  local now = uv.hrtime()
  if now < self.next and (done < self.total or not self.shown) then return end
  self.next, self.shown = now + INTERVAL_NS, true
  local share = self.total > 0 and math.min(1, done / self.total) or 1
  local line = ("%s %s %3d%% %s"):format(self.label, bar(share), share * 100 // 1, note or "")
  io.stderr:write("\r\27[K", term.clip(line, self.columns - 1))
end

--- Removes the line.
function Progress:close()
  if self.visible and self.shown then io.stderr:write "\r\27[K" end
  self.visible = false
end
Progress.__close = Progress.close

--- A progress line for `total` steps. after_ms: work that is done sooner shows none.
local function new(label, total, after_ms)
  local self = { label = label, total = total, visible = term.is_tty(2), shown = false,
    next = after_ms and uv.hrtime() + after_ms * 1000 * 1000 or 0, columns = term.columns() }
  return setmetatable(self, Progress)
end

return { new = new }
