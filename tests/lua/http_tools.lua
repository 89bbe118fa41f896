-- http_tools: a server for a test and raw connections to it.
local async = require "lib.async"
local harness = require "harness"
local http = require "http"
local uv = require "luv"

local tools = {}

--- Runs fn(at, server) in a task against a server on a free port and drains the server afterwards.
function tools.serve(t, options, fn)
  local server = http.server(options)
  local at = assert(server:listen(options.listen or { port = 0 }))
  options.listen = nil
  async.run(t.expect(function()
    local ok, err = xpcall(fn, debug.traceback, at, server)
    if not ok then t.fail(err) end
    server:drain { seconds = 5,
      done = t.expect(function() t.eq(server:stats().connections, 0) end) }
  end))
end

local Peer = {}
Peer.__index = Peer

--- Connects, inside a task. Received bytes are collected in peer.got.
function tools.connect(at)
  local stream = at.path and uv.new_pipe(false) or uv.new_tcp()
  local err = async.await(function(resume)
    if at.path then
      stream:connect(at.path, resume)
    else
      stream:connect(at.address, at.port, resume)
    end
  end)
  assert(not err, err)
  if not at.path then stream:nodelay(true) end
  local self = setmetatable({ stream = stream, got = "", news = async.signal() }, Peer)
  self:read()
  return self
end

function Peer:read()
  self.stream:read_start(function(err, bytes)
    if bytes then self.got = self.got .. bytes else self.ended = err or "end" end
    self.news:set()
  end)
end

function Peer:pause() self.stream:read_stop() end

--- Sends; true, or nil if the connection is gone.
function Peer:send(bytes)
  return async.await(function(resume)
    if not self.stream:write(bytes, function(err) resume(not err or nil) end) then resume(nil) end
  end)
end

--- Waits until a plain text has arrived `n` times (1), the connection ended or the test's time is
--- over; returns the received bytes.
function Peer:wait(text, n)
  async.timeout(harness.LIMIT_MS, function()
    while not self.ended do
      local count, pos = 0, 1
      while text and pos do
        pos = select(2, self.got:find(text, pos, true))
        if pos then count, pos = count + 1, pos + 1 end
      end
      if text and count >= (n or 1) then return true end
      self.news:reset()
      self.news:wait()
    end
    return true
  end)
  return self.got
end

--- Waits for the end; returns the received bytes and how it ended: "end", an error name, or nil.
function Peer:rest()
  self:wait()
  if not self.stream:is_closing() then self.stream:close() end
  return self.got, self.ended
end

function Peer:finish_sending()
  async.await(function(resume) self.stream:shutdown(resume) end)
end

function Peer:close()
  if not self.stream:is_closing() then self.stream:close() end
end

--- Sends bytes and returns everything received until the server closes.
function tools.talk(at, bytes)
  local peer = tools.connect(at)
  peer:send(bytes)
  return peer:rest()
end

--- The statuses in a text of responses.
function tools.statuses(text)
  local list = {}
  for code in text:gmatch "HTTP/1%.1 (%d%d%d)" do list[#list + 1] = tonumber(code) end
  return list
end

return tools
