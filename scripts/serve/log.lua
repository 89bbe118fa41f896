-- log: one JSON object per line: one per request (access), and other events (note).
--
--   {"time": "2026-01-31T12:00:00.123Z", "id": "…", "key": "alice", "method": "POST", …}
--   {"time": "…", "level": "warning", "text": "…", …}
--
-- Lines go to a file or to stderr (lib/stderr.lua). libuv's thread pool writes a file, one write at
-- a time, so that a slow disk never blocks the loop. If more than LIMIT bytes are unwritten, lines
-- are dropped and their number is logged later. With a file, warnings and errors also go to stderr.
local lib_text = require "lib.text"
local perigee = require "perigee"
local stderr = require "lib.stderr"
local uv = require "luv"
local json = perigee.json

local LIMIT = 4 << 20 -- bytes; about 10,000 requests
local CLOSE_MS = 1000 -- for the last lines at the end
local MODE = 416 -- 0640: addresses and names of keys are not for everybody

local Log = {}
Log.__index = Log

--- Epoch seconds as ISO 8601 in UTC, with milliseconds.
local function iso(seconds)
  local whole = math.floor(seconds)
  return os.date("!%Y-%m-%dT%H:%M:%S", whole)
    .. (".%03dZ"):format(math.floor((seconds - whole) * 1000))
end

local function now()
  local s, us = uv.gettimeofday()
  return s + us * 1e-6
end

-- ---- writing ------------------------------------------------------------------------------------

local flush

local function written(self, failed)
  self.busy = false
  if self.retired then
    uv.fs_close(self.retired)
    self.retired = nil
  end
  if failed and not self.failed then -- reported once, as every further line would fail as well
    self.failed = true
    stderr.write("perigee: log: ", tostring(failed), "\n")
  end
  if self.closing and #self.lines == 0 then
    self.closing()
  else
    flush(self)
  end
end

function flush(self)
  if self.busy or #self.lines == 0 or not self.fd then return end
  local text = table.concat(self.lines)
  self.lines, self.waiting, self.busy = {}, 0, true
  uv.fs_write(self.fd, text, -1, function(failed) written(self, failed) end)
end

local function put(self, object)
  if not self.fd and not self.to_stderr then return end
  local ok, line = pcall(json.encode, object, { compact = true })
  if not ok then
    line = json.encode({ text = "cannot encode a log line: " .. tostring(line) },
      { compact = true })
  end
  if self.to_stderr then return stderr.write(line, "\n") end
  if self.waiting + #line > LIMIT then
    self.dropped = self.dropped + 1
    return
  end
  if self.dropped > 0 then
    local warning = '{"level":"warning","text":"%d log lines were dropped"}\n'
    self.lines[#self.lines + 1] = warning:format(self.dropped)
    self.dropped = 0
  end
  self.lines[#self.lines + 1] = line .. "\n"
  self.waiting = self.waiting + #line + 1
  flush(self)
end

-- ---- lines --------------------------------------------------------------------------------------

-- The fields of an access line, in this order; missing ones are left out.
local fields = { "id", "client_id", "key", "peer", "method", "path", "status", "ms", "bytes",
  "model", "prompt_tokens", "completion_tokens", "cached_tokens", "ttft_ms", "finish", "error" }

--- Logs a finished request.
function Log:access(entry)
  local list = { { "time", iso(entry.time or now()) } }
  for _, name in ipairs(fields) do
    if entry[name] ~= nil then list[#list + 1] = { name, entry[name] } end
  end
  put(self, json.object(list))
end

--- Logs another event. level: "info", "warning" or "error"; more: further fields with plain values.
function Log:note(level, text, more)
  local list = { { "time", iso(now()) }, { "level", level }, { "text", lib_text.clean(text) } }
  local names = {}
  for name in pairs(more or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do list[#list + 1] = { name, more[name] } end
  put(self, json.object(list))
  if self.path and level ~= "info" then
    stderr.write("perigee: ", (text:gsub("%s*\n%s*", "; ")), "\n")
  end
end

--- Opens the file again, after log rotation has moved it. True, or nil and a message.
function Log:reopen()
  if not self.path then return true end
  local fd, why = uv.fs_open(self.path, "a", MODE)
  if not fd then return nil, why end
  if self.busy then -- the old file is still being written
    self.retired = self.fd
  else
    uv.fs_close(self.fd)
  end
  self.fd, self.failed = fd, nil
  return true
end

--- Calls done() when everything has been written, after CLOSE_MS at the latest.
function Log:close(done)
  if not self.fd then return stderr.close(done) end
  local limit = uv.new_timer()
  local function finish()
    if limit:is_closing() then return end
    limit:close()
    if not self.busy then uv.fs_close(self.fd) end
    self.fd, self.closing = nil, nil
    stderr.close(done)
  end
  uv.update_time() -- the loop's clock may be as late as the work before this took
  limit:start(CLOSE_MS, 0, finish)
  if self.busy or #self.lines > 0 then self.closing = finish else finish() end
end

--- path: a file; nil for stderr, false for none. Returns nil and a message if it cannot be opened.
local function open(path)
  local self = setmetatable({ path = path or nil, lines = {}, waiting = 0, dropped = 0 }, Log)
  if path == false then return self end
  if not path then
    self.to_stderr = true
    return self
  end
  local fd, why = uv.fs_open(path, "a", MODE)
  if not fd then return nil, why end
  self.fd = fd
  return self
end

return { open = open, now = now, iso = iso }
