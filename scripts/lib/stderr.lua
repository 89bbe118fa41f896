-- stderr: writes to stderr that never block the loop, whether or not anybody reads it.
--
--   stderr.write("perigee: ", text, "\n")
--
-- A pipe or terminal that is full takes nothing; a write would wait for its reader, possibly
-- forever. So it is opened once more, for ourselves and non-blocking (setting the flag on fd 2
-- itself would change it for every process that shares it), and what it does not take now waits
-- here, at most LIMIT bytes. More is dropped and counted.
local uv = require "luv"

local LIMIT = 4 << 20   -- bytes; about 10,000 lines of a log
local RETRY_MS = 20     -- between two attempts to write to a full pipe
local CLOSE_MS = 1000   -- for the last lines at the end

local stderr = {}

local fd, is_file  -- where to write; a file is written by libuv's threads, since a disk may be slow
local lines, waiting, dropped = {}, 0, 0
local busy         -- a write of a thread is under way
local timer        -- the next attempt
local closers = {} -- called when everything is written

--- Opens stderr for ourselves. A socket cannot be opened again; luv makes it non-blocking.
local function open()
  local stat = uv.fs_fstat(2)
  is_file = not stat or stat.type == "file"
  if not is_file then fd = uv.fs_open("/dev/stderr", uv.constants.O_WRONLY
    | uv.constants.O_NONBLOCK | (uv.constants.O_NOCTTY or 0), 0) end
  if not fd and not is_file then
    local poll = uv.new_poll(2)
    if poll then poll:close() end
  end
  fd = fd or 2
end

local flush

local function retry()
  if timer then return end
  timer = uv.new_timer()
  timer:start(RETRY_MS, 0, function()
    timer:close()
    timer = nil
    flush()
  end)
  timer:unref() -- unwritten lines do not keep the program alive
end

--- Puts what was not written back to the front.
local function keep(text)
  lines, waiting = { text, table.unpack(lines) }, waiting + #text
end

local function done_if_empty()
  if #lines > 0 or busy then return end
  local list = closers
  closers = {}
  for _, done in ipairs(list) do done() end
end

local function write_file(text)
  busy = true
  uv.fs_write(fd, text, -1, function()
    busy = false
    flush()
  end)
end

function flush()
  if busy or timer then return end
  if #lines > 0 then
    local text = table.concat(lines)
    lines, waiting = {}, 0
    if is_file then return write_file(text) end
    local sent, _, name = uv.fs_write(fd, text, -1)
    if not sent and name ~= "EAGAIN" then sent = #text end -- nobody will ever read it
    if (sent or 0) < #text then
      keep(text:sub((sent or 0) + 1))
      retry()
    end
  end
  done_if_empty()
end

--- Writes strings, now or later. Never blocks or raises. Returns false if they were dropped.
function stderr.write(...)
  if not fd then open() end
  local text = table.concat({ ... })
  if waiting + #text > LIMIT then
    dropped = dropped + 1
    return false
  end
  if dropped > 0 then
    lines[#lines + 1] = ("perigee: %d lines to stderr were dropped\n"):format(dropped)
    dropped = 0
  end
  lines[#lines + 1], waiting = text, waiting + #text
  flush()
  return true
end

--- Calls done() when everything has been written, after CLOSE_MS at the latest.
function stderr.close(done)
  local limit = uv.new_timer()
  local function finish()
    if limit:is_closing() then return end
    limit:close()
    done()
  end
  uv.update_time() -- the loop's clock may be as late as the work before this took
  limit:start(CLOSE_MS, 0, function()
    lines, waiting = {}, 0
    finish()
  end)
  closers[#closers + 1] = finish
  done_if_empty()
end

return stderr
