-- sockets: sockets and a clock for tests of the HTTP server, without a system below them.
--
--   sockets.with(t, {}, function()
--     local conn, socket = sockets.connect { answer = sockets.ok }
--     socket.send(sockets.GET)        socket.got: what the client received
--     sockets.clock = sockets.clock + 1000
--   end)
local async = require "lib.async"
local connections = require "http.connection"
local servers = require "http.server"
local uv = require "luv"

local sockets = {}

sockets.clock = 100000 -- milliseconds of uv.now

--- Replaces functions of uv and lib.async while body runs.
function sockets.with(t, replaced, body)
  local was = {}
  replaced.now = function() return sockets.clock end
  replaced.is_over = replaced.is_over or function() return false end
  for name, fn in pairs(replaced) do
    local where = uv[name] and uv or async
    was[name] = { where, where[name] }
    where[name] = fn
  end
  local ok, why = xpcall(body, debug.traceback)
  for name, entry in pairs(was) do entry[1][name] = entry[2] end
  if not ok then t.fail(why) end
end

--- A socket that takes `room` bytes at once, then nothing until take() is called.
function sockets.new(room)
  local s = { got = "", room = room or math.huge, reading = false, writes = 0, queue = 0 }
  function s.nodelay() end
  function s.keepalive(_, _, seconds) s.keepalive_s = seconds end
  function s.getpeername() return s.ip and { ip = s.ip } end
  function s.read_start(_, fn)
    s.reading, s.on_bytes = true, fn
    return true
  end
  function s.read_stop() s.reading = false end
  function s.try_write(_, data)
    s.writes = s.writes + 1
    if s.broken then return nil, "broken", "EPIPE" end
    if s.room == 0 then return nil, "full", "EAGAIN" end
    local n = math.min(s.room, #data)
    s.got, s.room = s.got .. data:sub(1, n), s.room - n
    return n
  end
  function s.write(_, data, done)
    if s.broken then return nil end
    s.later, s.done, s.queue = data, done, #data
    return true
  end
  --- The client reads what is on its way.
  function s.take(err)
    local done = s.done
    s.got, s.later, s.queue = s.got .. s.later, nil, 0
    done(err)
  end
  function s.get_write_queue_size() return s.queue end
  function s.shutdown()
    s.shut = true
    return true
  end
  function s.close() s.closed = true end
  function s.send(bytes) s.on_bytes(nil, bytes) end
  return s
end

--- A connection of a server with these options.
function sockets.connect(options, room, kind)
  local answers = {}
  options = options or {}
  options.handler = options.handler or function(_, response)
    answers[#answers + 1] = response
    if options.answer then options.answer(response, #answers) end
  end
  local server = servers.new(options)
  local socket = sockets.new(room)
  socket.ip = options.ip
  server.open = 1
  local conn = connections.new(server, socket, kind or "unix")
  server.connections[conn] = true
  return conn, socket, server, answers
end

sockets.GET = "GET / HTTP/1.1\r\nhost: x\r\n\r\n"

function sockets.post(length, more)
  return ("POST / HTTP/1.1\r\nhost: x\r\n%scontent-length: %d\r\n\r\n"):format(more or "", length)
end

function sockets.statuses(text)
  local list = {}
  for code in text:gmatch "HTTP/1%.1 (%d%d%d)" do list[#list + 1] = tonumber(code) end
  return list
end

--- A handler that answers at once.
function sockets.ok(response) response:send(200, nil, "ok") end

--- A handler that waits; answers[i].resume() lets it go on.
function sockets.waiting(response)
  async.await(function(resume) response.resume = resume end)
  if not response.started then response:send(200, nil, "ok") end
end

return sockets
