-- http.response and http.server on sockets that are made up: what a response is written in, how
-- many connections there may be, and how a server ends.
local async = require "lib.async"
local servers = require "http.server"
local sockets = require "sockets"
local test = require("harness").test

local connect, with = sockets.connect, sockets.with
local GET, waiting = sockets.GET, sockets.waiting

-- ---- responses ----------------------------------------------------------------------------------

test("head and body are one write up to 64 KiB", function(t)
  with(t, {}, function()
    for _, parts in ipairs { false, true } do
      for bytes, writes in pairs { [0] = 1, [64 << 10] = 1, [(64 << 10) + 1] = 2 } do
        local sent
        local conn, socket = connect { answer = function(response)
          local text = ("x"):rep(bytes)
          if parts then
            response:send_parts(200, nil, { text })
          else
            response:send(200, nil, text)
          end
          sent = response.bytes
        end }
        socket.send(GET)
        t.eq({ socket.writes, sent, socket.got:match "content%-length: (%d+)" },
          { writes, bytes, tostring(bytes) })
        conn:close()
      end
    end
    local conn, socket = connect { answer = function(response)
      response:send_parts(200, nil, { ("a"):rep(40000), ("b"):rep(40000) })
    end }
    socket.send((GET:gsub("GET", "HEAD")))
    t.match(socket.got, "content%-length: 80000\r\n\r\n$")
    socket.send(GET)
    t.match(socket.got, "content%-length: 80000\r\n\r\n" .. ("a"):rep(10) .. ".*b$")
    conn:close()
  end)
end)

test("pieces of a body are chunks, and their bytes are counted", function(t)
  with(t, {}, function()
    local logged
    local function run(version, method, code)
      local conn, socket, server = connect { answer = function(response)
        response:start(code or 200)
        t.eq({ response:write "abc", response:write "", response:write "de" }, { 0, 0, 0 })
        response:finish()
        response:finish()
        t.eq(response:write "late", nil)
      end }
      server.log = function(entry) logged = entry.bytes end
      socket.send(("%s / HTTP/%s\r\nhost: x\r\n\r\n"):format(method or "GET", version))
      conn:close()
      return socket.got:match "\r\n\r\n(.*)$", logged, socket.got:find "connection: close" ~= nil
    end
    t.eq({ run "1.1" }, { "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", 5, false })
    t.eq({ run "1.0" }, { "abcde", 5, true }) -- it ends with the connection
    t.eq({ run("1.1", "HEAD") }, { "", 0, false })
    t.eq({ run("1.1", "GET", 204) }, { "", 0, false })
  end)
end)

test("statuses and headers of a response", function(t)
  with(t, {}, function()
    local function head(send)
      local conn, socket = connect { answer = function(response)
        local ok_, why = pcall(send, response)
        if not ok_ then response:send(500, nil, why) end
      end }
      socket.send(GET)
      conn:close()
      return socket.got
    end
    for _, code in ipairs { 400, 499, 599 } do
      t.match(head(function(r) r:send(code) end), "^HTTP/1.1 " .. code .. " ")
    end
    for _, code in ipairs { 399, 600, 999 } do
      t.match(head(function(r) r:send(code) end), code .. " is not a known HTTP status")
    end
    for _, code in ipairs { 204, 304 } do
      local text = head(function(r) r:send(code, nil, "not sent") end)
      t.eq({ text:find "content%-length", text:sub(-4) }, { nil, "\r\n\r\n" })
    end
    local text = head(function(r)
      r:set("x-a", 5)
      r:set("x-b", { "c", 6 })
      r:json(201, { 1 }, { ["x-d"] = true })
    end)
    for _, line in ipairs { "x-a: 5", "x-b: c", "x-b: 6", "x-d: true",
      "content-type: application/json", "content-length: 3" } do
      t.ok(text:find("\r\n" .. line .. "\r\n", 1, true), line)
    end
    for _, name in ipairs { "Content-Length", "transfer-encoding", "Connection" } do
      t.match(head(function(r) r:send(200, { [name] = 1 }) end),
        "header '" .. name:gsub("%-", "%%-") .. "' is set by the server and cannot be given")
    end
    t.match(head(function(r) r:json(200, "[5]") end), "\r\n\r\n%[5%]$")
  end)
end)

-- ---- the server ---------------------------------------------------------------------------------

--- A server that listens on made up sockets; accept(ip) connects a client and returns its socket.
local function listening(t, options, body)
  local listener, clients = sockets.new(), {}
  local timers = {}
  with(t, {
    hrtime = function() return listener.clock or 0 end,
    new_tcp = function()
      if not listener.bound then return listener end
      local socket = sockets.new()
      socket.ip = listener.next_ip
      clients[#clients + 1] = socket
      return socket
    end,
    new_timer = function()
      local timer = { start = function(self, after, again, fn)
        self.after, self.again, self.fn = after, again, fn
      end, close = function(self) self.closed = true end }
      timers[#timers + 1] = timer
      return timer
    end,
  }, function()
    function listener.bind()
      listener.bound = true
      return true
    end
    function listener.listen(_, backlog, fn)
      listener.backlog, listener.arrived = backlog, fn
      return true
    end
    function listener.accept() return not listener.refuses end
    function listener.getsockname() return { ip = "127.0.0.1", port = 80 } end
    options.handler = options.handler or function(_, response) waiting(response) end
    local server = servers.new(options)
    t.eq(server:listen {}, { address = "127.0.0.1", port = 80 })
    body(server, function(ip)
      listener.next_ip = ip or "1.2.3.4"
      listener.arrived()
      return clients[#clients]
    end, listener, timers)
    server:cut()
  end)
end

test("connections beyond the limit are refused, many of them just closed", function(t)
  listening(t, { limits = { connections = 2 } }, function(server, accept)
    for _ = 1, 2 do t.eq(accept().got, "") end
    local third = accept()
    t.match(third.got, "^HTTP/1.1 503 .*retry%-after: 1\r\n.*too many connections")
    t.eq({ third.shut, server:stats().connections, server:stats().refused }, { true, 3, 1 })
    for _ = 4, 66 do accept() end -- 64 of them are told
    t.eq(server.open, 66)
    local more = accept()
    t.eq({ more.got, more.closed, server.open, server.counts.accepted }, { "", true, 66, 66 })
    server:each(function(conn)
      if conn.state == "linger" then conn:close() end
    end)
    t.eq(server.open, 2)
  end)
end)

test("connections of one address", function(t)
  listening(t, { limits = { peer_connections = 2 },
    trusts = function(ip) return ip == "9.9.9.9" end }, function(server, accept, listener)
    local first = accept()
    accept()
    t.match(accept().got, "too many connections from this address")
    t.eq(accept("1.2.3.5").got, "")
    for _ = 1, 3 do t.eq(accept("9.9.9.9").got, "") end -- a proxy
    t.eq(server.by_peer, { ["1.2.3.4"] = 3, ["1.2.3.5"] = 1 })
    server:each(function(conn)
      if conn.state == "linger" then conn:close() end
    end)
    first.on_bytes()
    t.eq(server.by_peer, { ["1.2.3.4"] = 1, ["1.2.3.5"] = 1 })
    t.eq(accept().got, "")
    t.eq(listener.backlog, 1024)
    listener.refuses = true
    t.eq(accept().closed, true)
    server:cut()
    t.eq({ server.by_peer, server.open }, { {}, 0 })
  end)
end)

test("many connections of one address are closed before anything is made for them", function(t)
  listening(t, { limits = { peer_connections = 2 } }, function(server, accept)
    for _ = 1, 66 do accept() end -- two are served, 64 are told
    t.eq({ server.open, server.refusing, server.counts.accepted }, { 66, 64, 66 })
    local more = accept()
    t.eq({ more.got, more.closed, more.on_bytes, server.open }, { "", true, nil, 66 })
    t.eq(accept("1.2.3.5").got, "")
    server:each(function(conn)
      if conn.state == "linger" then conn:close() end
    end)
    t.eq({ server.open, server.refusing }, { 3, 0 })
    t.match(accept().got, "too many connections from this address")
  end)
end)

test("a turn that has accepted for long enough leaves connections to the next one", function(t)
  listening(t, {}, function(server, accept, listener, timers)
    function listener.is_closing() return false end
    async.is_over = function() return true end -- tasks do not count; restored by sockets.with
    accept()
    listener.clock = 6e6
    listener.arrived()
    t.eq({ server.open, #timers }, { 1, 2 })
    timers[2].fn()
    t.eq({ server.open, timers[2].closed }, { 2, true })
    listener.arrived()
    function listener.is_closing() return true end
    timers[3].fn()
    t.eq(server.open, 2)
    sockets.clock = sockets.clock + 1 -- the next turn
    accept()
    t.eq(server.open, 3)
  end)
end)

test("the clock ticks four times in the shortest time limit", function(t)
  for _, case in ipairs { { {}, 500 }, { { linger_s = 1 }, 250 }, { { linger_s = 0.001 }, 10 },
    { { linger_s = 5 }, 1000 }, { { linger_s = 3.9 }, 975 } } do
    listening(t, { limits = case[1] }, function(server, accept, _, timers)
      t.eq({ #timers, timers[1].after, timers[1].again }, { 1, case[2], case[2] })
      local socket = accept()
      sockets.clock = sockets.clock + 10000
      timers[1].fn()
      t.eq({ socket.closed, server.open }, { true, 0 })
    end)
  end
end)

test("a server that shuts down waits for its answers", function(t)
  local done = 0
  listening(t, {}, function(server, accept, listener, timers)
    local idle, busy = accept(), accept()
    busy.send(GET)
    t.eq(server:stats().busy, 1)
    server:drain { done = function() done = done + 1 end }
    server:drain {}
    t.eq({ listener.closed, idle.closed, busy.closed, timers[2].after, done },
      { true, true, nil, 30000, 0 })
    t.raises(function() server:listen {} end, "the server is shutting down")
    timers[2].fn()
    t.eq({ busy.closed, done, timers[1].closed, timers[2].closed }, { true, 1, true, true })
  end)
  listening(t, {}, function(server, _, _, timers)
    server:drain { seconds = 1.5, done = function() done = done + 1 end }
    t.eq({ done, #timers, timers[1].closed }, { 2, 1, true }) -- nothing was open
  end)
  done = 0
  listening(t, {}, function(server, accept)
    accept()
    server:drain { done = function() done = done + 1 end }
    t.eq(done, 1) -- only an idle one was open
  end)
  listening(t, {}, function(server, accept, _, timers)
    accept().send(GET)
    server:drain { seconds = 1.5 }
    t.eq(timers[2].after, 1500)
  end)
end)

test("limits of a server are positive numbers that it knows", function(t)
  local function new(limits) return servers.new { handler = print, limits = limits } end
  t.raises(function() new { lost = 1 } end, "unknown limit 'lost'")
  for _, wrong in ipairs { 0, -1, "5" } do
    t.raises(function() new { body = wrong } end, "limit 'body' must be a positive number")
  end
  t.eq({ new({ body = 0.5 }).limits.body, new().limits.head }, { 0.5, 32 << 10 })
  t.raises(function() servers.new {} end, "a server needs a handler")
end)

test("the path of a socket has at most 103 bytes", function(t)
  local server = servers.new { handler = print }
  local function at(bytes) return { path = "/none/" .. ("x"):rep(bytes - 6) } end
  local _, err = server:listen(at(103))
  t.eq({ err.code, err.message:find "may have" }, { "io" })
  _, err = server:listen(at(104))
  t.match(err.message, "the path of a socket may have 103 bytes, this one has 104")
end)
