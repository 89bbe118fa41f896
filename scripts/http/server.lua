-- server: listens, accepts connections, enforces limits and shuts down.
--
--   http.server { handler = fn(request, response), limits = {…}, log = fn(entry),
--     on_error = fn(request, text), error_body = fn(status, message, request), name = "…" }
--
-- error_body returns the body of an error response and its content type: HTTP knows no API, so the
-- owner of the server says how errors look, by the request if its head has come. Without it they
-- are plain text.
--
-- gate(request, response), if given, is called as soon as the head of a request is there whose body
-- will take longer to come. It returns { stop = true } if the handler will refuse the request
-- anyway, which it then does without the body; else { body = most bytes of it, owner = whose bytes
-- they are (limits.bodies_each) }. It may add headers to the response.
--
-- trusts(address), if given, says which peers are proxies, whose connections are not counted.
--
-- log(entry) is called for each response: id, method, target, path, status (499 if the client left
-- first), bytes, ms, peer, local, aborted, agent, request; and for each input that was not a valid
-- request: status, message, peer, local. on_error(request, text) is called if a handler or the log
-- raises; by default the text goes to stderr.
--
-- One timer serves all connections: at each tick their deadlines are checked.
local connection = require "http.connection"
local peers = require "http.peer"
local perigee = require "perigee"
local stderr = require "lib.stderr"
local uv = require "luv"

local server = {}

local BACKLOG = 1024 -- connections the kernel queues until they are accepted
local SOCKET_PATH = 103 -- bytes, the smallest limit (macOS); libuv silently cuts off the rest
local REPORT_MS = 60000 -- between two reports that connections cannot be accepted
local ACCEPT_NS = 5e6 -- of a turn of the loop, for accepting: a tenth of what /health may take
local REFUSING = 64 -- connections above a limit that get a 503; the others are just closed

-- Bytes, counts and seconds (_s).
local LIMITS = {
  head = 32 << 10,         -- request line and headers
  headers = 100,
  target = 8 << 10,
  body = 32 << 20,
  bodies = 256 << 20,      -- of all requests that are being received or processed
  header_s = 10,           -- from the first byte of a head to its last
  bodies_each = 128 << 20, -- of those, of one API key or address
  body_s = 30,             -- for a body, and again for every body_s * body_rate bytes of it
  body_rate = 16 << 10,
  idle_s = 75,             -- between two requests
  requests = 100000,       -- on one connection
  connections = 4096,
  peer_connections = 2048, -- of those, from one address
  write_s = 60,            -- in which a client must take write_rate bytes per second, or all
  low_water = 64 << 10,    -- unsent bytes at which drained() returns
  queue = 8 << 20,         -- unsent bytes of one streamed response
  unsent = 256 << 20,      -- unsent bytes of all connections; who sends more then is cut
  write_rate = 256,        -- bytes per second that a client must take, over write_s
  heartbeat_s = 15,
  linger_s = 2,
}
server.LIMITS = LIMITS

local Server = {}
Server.__index = Server

local function plain_body(_, message) return message .. "\n", "text/plain; charset=utf-8" end

function server.new(options)
  local limits = {}
  for key, value in pairs(LIMITS) do limits[key] = value end
  for key, value in pairs(options.limits or {}) do
    if not LIMITS[key] then error(("unknown limit '%s'"):format(tostring(key)), 2) end
    if type(value) ~= "number" or value <= 0 then
      error(("limit '%s' must be a positive number"):format(key), 2)
    end
    limits[key] = value
  end
  if type(options.handler) ~= "function" then error("a server needs a handler", 2) end
  return setmetatable({
    handler = options.handler, gate = options.gate, trusts = options.trusts, limits = limits,
    log = options.log, on_error = options.on_error, name = options.name or "perigee",
    error_body = options.error_body or plain_body,
    listeners = {}, connections = {}, by_peer = {}, open = 0, refusing = 0, held = 0,
    held_by = {}, unsent = 0, draining = false,
    counts = { accepted = 0, requests = 0, refused = 0, cut = 0 },
    id_prefix = uv.random(8):gsub(".", function(c) return ("%02x"):format(c:byte()) end),
    id_count = 0,
  }, Server)
end

-- ---- services for connections -------------------------------------------------------------------

--- Header lines of every response; formatted once a second.
function Server:common_headers()
  local now = os.time()
  if now ~= self.date_of then
    self.date_of = now
    self.common = ("server: %s\r\nx-content-type-options: nosniff\r\ndate: %s\r\n"):format(
      self.name, os.date("!%a, %d %b %Y %H:%M:%S GMT", now))
  end
  return self.common
end

function Server:new_id()
  self.id_count = self.id_count + 1
  return ("req-%s-%d"):format(self.id_prefix, self.id_count)
end

function Server:forget(conn)
  if not self.connections[conn] then return end
  self.connections[conn] = nil
  local n = conn.counted and self.by_peer[conn.counted]
  if n then self.by_peer[conn.counted] = n > 1 and n - 1 or nil end
  if conn.refused then self.refusing = self.refusing - 1 end
  self.open = self.open - 1
  if self.draining and self.open == 0 then self:drained() end
end

--- Calls fn for every open connection; fn may close it.
function Server:each(fn)
  local all = {}
  for conn in pairs(self.connections) do all[#all + 1] = conn end
  for _, conn in ipairs(all) do
    if self.connections[conn] then fn(conn) end
  end
end

--- Reports that a handler or the log raised an error; without a request, the server itself.
function Server:report(request, text)
  if self.on_error then return self.on_error(request, text) end
  local about = request and ("%s %s (%s): "):format(request.method, request.path, request.id) or ""
  stderr.write("perigee: http: ", about, tostring(text), "\n")
end

function Server:log_answer(conn, answer)
  self.counts.requests = self.counts.requests + 1
  if not self.log then return end
  local request = answer.request
  local entry = { id = request.id, method = request.method, target = request.target,
    path = request.path, status = answer.status, bytes = answer.bytes,
    ms = (uv.hrtime() - request.started) / 1e6, peer = conn.peer, ["local"] = conn.kind,
    aborted = request.aborted, agent = request.headers["user-agent"],
    request = request }
  local ok, err = pcall(self.log, entry)
  if not ok then self:report(request, "log: " .. tostring(err)) end
end

function Server:count_refused(conn, code, message)
  self.counts.refused = self.counts.refused + 1
  if self.log then
    pcall(self.log, { status = code, message = message, peer = conn.peer, ["local"] = conn.kind,
      bytes = 0, ms = 0 })
  end
end

--- Counters for the status page and the metrics.
function Server:stats()
  local busy = 0
  for conn in pairs(self.connections) do
    if conn.state == "busy" then busy = busy + 1 end
  end
  local stats = { connections = self.open, busy = busy, draining = self.draining,
    body_bytes = self.held, unsent_bytes = self.unsent }
  for key, n in pairs(self.counts) do stats[key] = n end
  return stats
end

-- ---- accepting ----------------------------------------------------------------------------------

--- Where a connection is counted: the address of the peer or, with IPv6, its network (http.peer),
--- since a client has all of one; nil if it is not.
local function network_of(self, stream, kind)
  local peer = kind == "tcp" and stream:getpeername()
  if not peer or self.trusts and self.trusts(peer.ip) then return nil end
  return peers.network(peer.ip)
end

--- Why one more connection cannot be served; nil if it can.
local function excess(self, network)
  if self.open >= self.limits.connections then return "too many connections" end
  if network and (self.by_peer[network] or 0) >= self.limits.peer_connections then
    return "too many connections from this address"
  end
end

--- A flood costs the loop little: what cannot be served is closed before anything is made for it.
local function accept(self, listener, kind)
  local stream = kind == "tcp" and uv.new_tcp() or uv.new_pipe(false)
  if not listener:accept(stream) then return stream:close() end
  local network = network_of(self, stream, kind)
  local why = excess(self, network)
  if why and self.refusing >= REFUSING then return stream:close() end
  self.counts.accepted = self.counts.accepted + 1
  self.open = self.open + 1
  if network then self.by_peer[network] = (self.by_peer[network] or 0) + 1 end
  local conn = connection.new(self, stream, kind)
  conn.counted, self.connections[conn] = network, true
  if not why then return end
  self.refusing, conn.refused = self.refusing + 1, true
  conn:turn_away(why)
end

--- Accepts a connection, in the next turn if this one has accepted for long enough: libuv offers no
--- other one until then. It does not wait for tasks, so that new clients do not.
local function accept_in_turn(self, listener, kind)
  local now, clock = uv.now(), uv.hrtime()
  if self.accepts_at ~= now then self.accepts_at, self.accepts_from = now, clock end
  if clock - self.accepts_from < ACCEPT_NS then return accept(self, listener, kind) end
  local timer = uv.new_timer()
  timer:start(1, 0, function()
    timer:close()
    if not listener:is_closing() then accept(self, listener, kind) end
  end)
end

--- The interval of the timer: a quarter of the shortest time limit, between 10 ms and a second.
local function tick_ms(limits)
  local shortest = math.huge
  for key, value in pairs(limits) do
    if key:sub(-2) == "_s" then shortest = math.min(shortest, value) end
  end
  return math.floor(math.max(10, math.min(1000, shortest * 250)))
end

local function start_clock(self)
  if self.clock then return end
  self.clock = uv.new_timer()
  local ms = tick_ms(self.limits)
  self.clock:start(ms, ms, function()
    local now = uv.now()
    self:each(function(conn) conn:check(now) end)
  end)
end

--- nil and an error; its `name` is libuv's name of the error, such as "EADDRINUSE".
local function failure(what, text, name)
  local err = perigee.error("io", ("%s: %s"):format(what, text or name))
  err.name = name
  return nil, err
end

local function listen_on(self, listener, kind, what)
  local ok, err, name = listener:listen(BACKLOG, function(why)
    if not why then return accept_in_turn(self, listener, kind) end
    if self.refused_at and uv.now() - self.refused_at < REPORT_MS then return end
    self.refused_at = uv.now()
    self:report(nil, ("cannot accept a connection: %s (%d are open)"):format(why, self.open))
  end)
  if not ok then
    listener:close()
    return failure(what, err, name)
  end
  self.listeners[#self.listeners + 1] = listener
  start_clock(self)
  return true
end

local function listen_unix(self, options)
  local path = options.path
  if #path > SOCKET_PATH then
    return failure(path, ("the path of a socket may have %d bytes, this one has %d"):format(
      SOCKET_PATH, #path))
  end
  local stat = uv.fs_lstat(path)
  if stat then
    if stat.type ~= "socket" then return failure(path, "exists and is not a socket") end
    if not perigee.sys.is_refused(path) then return failure(path, "another server is listening") end
    os.remove(path)
  end
  local listener = uv.new_pipe(false)
  local ok, err, name = listener:bind(path)
  if ok and options.mode then ok, err, name = uv.fs_chmod(path, options.mode) end
  if not ok then
    listener:close()
    return failure(path, err, name)
  end
  ok, err = listen_on(self, listener, "unix", path)
  if not ok then return nil, err end
  return { address = path, path = path }
end

--- The address of a host, IPv4 if it has one: clients try localhost as 127.0.0.1. Blocks, which a
--- server that starts may do. Returns nil and a message for an unknown host.
local function resolve(host)
  local found, why = uv.getaddrinfo(host, nil, { socktype = "stream" })
  if not found then return nil, why end
  for _, entry in ipairs(found) do
    if entry.family == "inet" then return entry.addr end
  end
  return found[1].addr
end

local function listen_tcp(self, options)
  local host, port = options.host or "127.0.0.1", options.port or 0
  local what = ("%s:%d"):format(host, port)
  local address, why = resolve(host)
  if not address then return failure(what, why) end
  local listener = uv.new_tcp()
  local ok, err, name = listener:bind(address, port)
  if not ok then
    listener:close()
    return failure(what, err, name)
  end
  ok, err = listen_on(self, listener, "tcp", what)
  if not ok then return nil, err end
  local bound = listener:getsockname()
  return { address = bound.ip, port = bound.port }
end

--- Starts listening: { host, port } (0: any free port) or { path, mode }. Returns { address, port
--- }, or nil and an error.
function Server:listen(options)
  if self.draining then error("the server is shutting down", 2) end
  if options.path then return listen_unix(self, options) end
  return listen_tcp(self, options)
end

-- ---- shutdown -----------------------------------------------------------------------------------

--- Shuts down gracefully: accepts no connections, closes idle ones and lets busy ones finish. Those
--- still open after `seconds` are cut. Calls done() when the last one is closed.
function Server:drain(options)
  options = options or {}
  if self.draining then return end
  self.draining, self.on_drained = true, options.done
  for _, listener in ipairs(self.listeners) do listener:close() end
  self.listeners = {}
  self:each(function(conn)
    if conn:is_idle() then conn:close() end
  end)
  if self.open == 0 then return self:drained() end
  self.limit = uv.new_timer()
  self.limit:start(math.floor((options.seconds or 30) * 1000), 0, function()
    self:cut()
  end)
end

--- Closes every connection now, without waiting for responses.
function Server:cut()
  self:each(function(conn) conn:close() end)
end

function Server:drained()
  if self.is_drained then return end
  self.is_drained = true
  if self.limit then self.limit:close() end
  if self.clock then self.clock:close() end
  if self.on_drained then self.on_drained() end
end

return server
