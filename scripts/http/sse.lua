-- sse: server-sent events over a response.
--
--   local stream = response:sse()
--   stream:event('{"text": "…"}')     -- returns the unsent bytes, nil if the client is gone
--   stream:finish()
--
-- While nothing is sent, the server's timer sends a comment every limits.heartbeat_s (or `beat`,
-- the text of an event), so that proxies keep the connection open and a vanished client is noticed.
local uv = require "luv"

local sse = {}

local Stream = {}
Stream.__index = Stream

local HEADERS = {
  ["content-type"] = "text/event-stream; charset=utf-8",
  ["cache-control"] = "no-cache",
  ["x-accel-buffering"] = "no", -- nginx would hold events back
}

function sse.start(response, headers, beat)
  local all = {}
  for name, value in pairs(HEADERS) do all[name] = value end
  for name, value in pairs(headers or {}) do all[name:lower()] = value end
  response:start(200, all)
  local self = setmetatable({ response = response, beat = beat, last = uv.now() }, Stream)
  response.connection.stream_of_events = self
  return self
end

local function is_one_line(text)
  return not (text:find("\n", 1, true) or text:find("\r", 1, true))
end

--- "a\nb" -> "data: a\ndata: b\n"; \r and \r\n also end a line.
local function lines_of(field, text)
  if is_one_line(text) then return field .. text .. "\n" end
  text = text:gsub("\r\n", "\n"):gsub("\r", "\n"):gsub("\n", "\n" .. field)
  return field .. text .. "\n"
end

local function write(self, text)
  self.last = uv.now()
  return self.response:write(text)
end

--- Sends one event. Its data may have several lines, its name may not.
function Stream:event(data, name)
  if name then
    if not is_one_line(name) then error("the name of an event must be one line", 2) end
    return write(self, "event: " .. name .. "\n" .. lines_of("data: ", data) .. "\n")
  end
  return write(self, lines_of("data: ", data) .. "\n")
end

--- Sends a line that clients ignore.
function Stream:comment(text)
  return write(self, lines_of(": ", text) .. "\n")
end

--- Called by the connection at each tick; `free`: everything has been sent.
function Stream:keep_alive(now, free)
  if free and now - self.last >= self.response.connection.server.limits.heartbeat_s * 1000 then
    write(self, self.beat or ": \n\n")
  end
end

function Stream:drained()
  return self.response:drained()
end

function Stream:finish()
  self.response:finish()
end

return sse
