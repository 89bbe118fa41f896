-- log: one JSON object per line: one per request (access) and what happens beside them (note).
--
--   {"time": "2026-01-31T12:00:00.123Z", "id": "…", "key": "alice", "method": "POST", "path": "/v1/chat/completions", …}
--   {"time": "…", "level": "warning", "text": "…", …}
--
-- Lines go to a file, or to stderr. They are written by the loop's helper threads, one write at a time, so that a slow disk or
-- a reader that sleeps never holds up the loop; when more than LIMIT bytes wait, lines are dropped and the next one that is
-- written says how many. With a file, notes are also said on stderr for whoever is watching.
local lib_text = require "lib.text"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local LIMIT = 4 << 20

local Log = {}
Log.__index = Log

--- Epoch seconds as ISO 8601 in UTC, with milliseconds.
local function iso(seconds)
  local whole = math.floor(seconds)
  return os.date("!%Y-%m-%dT%H:%M:%S", whole) .. (".%03dZ"):format(math.floor((seconds - whole) * 1000))
end

local function now()
  local s, us = uv.gettimeofday()
  return s + us * 1e-6
end

-- ---- writing -------------------------------------------------------------------------------------------------------

local flush

local function written(self, failed)
  self.busy = false
  if self.retired then
    uv.fs_close(self.retired)
    self.retired = nil
  end
  if failed and not self.failed then -- once: who writes about a log that cannot be written, writes for ever
    self.failed = true
    io.stderr:write("perigee: log: ", tostring(failed), "\n")
  end
  if self.closing and #self.lines == 0 then
    self.closing()
  else
    flush(self)
  end
end

function flush(self)
  if self.busy or #self.lines == 0 then return end
  local text = table.concat(self.lines)
  self.lines, self.waiting, self.busy = {}, 0, true
  uv.fs_write(self.fd, text, -1, function(failed) written(self, failed) end)
end

local function put(self, object)
  if not self.fd then return end
  local ok, line = pcall(json.encode, object, { compact = true })
  if not ok then line = json.encode({ text = "a line that cannot be written: " .. tostring(line) }, { compact = true }) end
  if self.waiting + #line > LIMIT then
    self.dropped = self.dropped + 1
    return
  end
  if self.dropped > 0 then
    self.lines[#self.lines + 1] = ('{"level":"warning","text":"%d lines of the log were dropped"}\n'):format(self.dropped)
    self.dropped = 0
  end
  self.lines[#self.lines + 1] = line .. "\n"
  self.waiting = self.waiting + #line + 1
  flush(self)
end

-- ---- lines ---------------------------------------------------------------------------------------------------------

-- What an access line may hold, in this order; what an entry lacks is left out.
local fields = { "id", "key", "peer", "method", "path", "status", "ms", "bytes", "model", "prompt_tokens", "completion_tokens",
  "cached_tokens", "ttft_ms", "finish", "error" }

--- One line about a request that is done.
function Log:access(entry)
  local list = { { "time", iso(entry.time or now()) } }
  for _, name in ipairs(fields) do
    if entry[name] ~= nil then list[#list + 1] = { name, entry[name] } end
  end
  put(self, json.object(list))
end

--- Something else that happened. level: "info", "warning", "error". fields: more keys, plain values.
function Log:note(level, text, more)
  local list = { { "time", iso(now()) }, { "level", level }, { "text", lib_text.clean(text) } }
  local names = {}
  for name in pairs(more or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do list[#list + 1] = { name, more[name] } end
  put(self, json.object(list))
  if self.path and level ~= "info" then io.stderr:write(("perigee: %s\n"):format((text:gsub("%s*\n%s*", "; ")))) end
end

--- Opens the file anew, after somebody has moved it away. True, or nil and why.
function Log:reopen()
  if not self.path then return true end
  local fd, why = uv.fs_open(self.path, "a", 420)
  if not fd then return nil, why end
  if self.busy then self.retired = self.fd else uv.fs_close(self.fd) end -- a write is on its way to the old one
  self.fd, self.failed = fd, nil
  return true
end

--- Calls done() when everything is on its way to the file.
function Log:close(done)
  local function finish()
    if self.path and self.fd then uv.fs_close(self.fd) end
    self.fd = nil
    done()
  end
  if self.busy or #self.lines > 0 then self.closing = finish else finish() end
end

--- path: a file, nil: stderr, false: nowhere. Returns nil and why when the file cannot be opened.
local function open(path)
  local self = setmetatable({ path = path or nil, lines = {}, waiting = 0, dropped = 0 }, Log)
  if path == false then return self end
  if not path then
    self.fd = 2
    return self
  end
  local fd, why = uv.fs_open(path, "a", 420)
  if not fd then return nil, why end
  self.fd = fd
  return self
end

return { open = open, now = now, iso = iso }
