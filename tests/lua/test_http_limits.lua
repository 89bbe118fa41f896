-- The HTTP server with slow, rude, broken or too many clients, and its shutdown.
local async = require "lib.async"
local http = require "http"
local test = require("harness").test
local tools = require "http_tools"
local uv = require "luv"

local serve, connect, talk, statuses = tools.serve, tools.connect, tools.talk, tools.statuses

local function get(path, more)
  return ("GET %s HTTP/1.1\r\nHost: h\r\n%s\r\n"):format(path, more or "")
end
local LAST = "Connection: close\r\n"
local function hello(_, response) response:send(200, nil, "hello") end

test("time for the head, the body and between requests", function(t)
  serve(t, { handler = hello, limits = { header_s = 0.1, body_s = 0.1, idle_s = 0.1 } },
    function(at)
    local results = async.all {
      function() return { talk(at, "GET / HT") } end,
      function()
        return { talk(at, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n123") }
      end,
      function() return { talk(at, get "/") } end,
      function() return { talk(at, "") } end,
      function() -- sending byte by byte does not extend the deadline
        local peer = connect(at)
        local text = get "/long"
        for i = 1, #text - 1 do
          if peer.ended or not peer:send(text:sub(i, i)) then break end
          async.sleep(10)
        end
        return { peer:rest() }
      end,
    }
    t.eq(statuses(results[1][1]), { 408 })
    t.match(results[1][1], "the head took too long")
    t.eq(statuses(results[2][1]), { 408 })
    t.match(results[2][1], "the body took too long")
    t.eq(statuses(results[3][1]), { 200 })
    t.eq(results[4], { "", "end" })
    t.eq(statuses(results[5][1]), { 408 })
  end)
end)

test("requests on a connection, connections in total", function(t)
  local release = async.signal()
  local function handler(request, response)
    if request.path == "/wait" then release:wait() end
    response:send(200, nil, "hello")
  end
  local function error_body(code, message)
    return ("[%d, %q]"):format(code, message), "application/json"
  end
  local options = { handler = handler, error_body = error_body,
    limits = { requests = 3, connections = 2 } }
  serve(t, options, function(at, server)
    t.eq(statuses((talk(at, get("/"):rep(5)))), { 200, 200, 200 })
    local a, b = connect(at), connect(at)
    a:send(get("/wait", LAST))
    b:send(get("/wait", LAST))
    while server:stats().busy < 2 do async.sleep(1) end
    local got, ended = talk(at, get "/")
    t.eq(statuses(got), { 503 })
    t.match(got, "\r\nretry%-after: 1\r\n")
    t.match(got, "\r\ncontent%-type: application/json\r\n")
    t.match(got, '\r\n\r\n%[503, "too many connections"%]$')
    t.eq(ended, "end")
    release:set()
    t.eq(statuses(a:rest()), { 200 })
    t.eq(statuses(b:rest()), { 200 })
    t.eq(statuses((talk(at, get("/", LAST)))), { 200 })
  end)
end)

test("bodies of all connections together", function(t)
  local release = async.signal()
  local function handler(request, response)
    if request.path == "/wait" then release:wait() end
    response:send(200, nil, tostring(#request.body))
  end
  local function post(path, n)
    return ("POST %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n"):format(path, LAST, n)
      .. ("x"):rep(n)
  end
  serve(t, { handler = handler, limits = { bodies = 3 << 20, body = 2 << 20 } },
    function(at, server)
    local a, b = connect(at), connect(at)
    a:send(post("/wait", 2 << 20))
    while server:stats().busy < 1 do async.sleep(1) end
    t.ok(server:stats().body_bytes > 1 << 20, server:stats().body_bytes)
    b:send(post("/", 2 << 20))
    local got, ended = b:rest()
    t.eq({ statuses(got), ended }, { { 503 }, "end" })
    t.match(got, "retry%-after")
    release:set()
    t.match(a:rest(), "\r\n\r\n2097152$")
    while server:stats().connections > 0 do async.sleep(1) end
    t.eq(server:stats().body_bytes, 0)
    t.match(talk(at, post("/", 2 << 20)), "\r\n\r\n2097152$")
  end)
end)

test("a client that reads nothing: writing waits, then the connection is cut", function(t)
  local drained, written, aborted = nil, 0, false
  local function handler(request, response)
    request:on_abort(function() aborted = true end)
    response:start(200)
    local piece = ("x"):rep(64 << 10)
    while response:write(piece) do
      written = written + #piece
      drained = response:drained()
      if not drained then break end
    end
  end
  local log = {}
  serve(t, { handler = handler, limits = { write_s = 0.2 },
    log = function(entry) log[#log + 1] = entry end }, function(at, server)
      local peer = connect(at)
      peer:pause()
      peer:send(get "/")
      while server:stats().connections > 0 do async.sleep(10) end
      t.eq(drained, false)
      t.ok(aborted)
      t.ok(written < 32 << 20, written)
      t.eq(server:stats().cut, 1)
      t.eq({ log[1].status, log[1].aborted }, { 200, true })
      peer:close()
    end)
end)

test("a handler that does not wait is stopped by the queue limit", function(t)
  local most = 0
  local function handler(_, response)
    response:start(200)
    local piece = ("x"):rep(1000)
    repeat
      local n = response:write(piece)
      most = math.max(most, n or 0)
    until not n
  end
  serve(t, { handler = handler, limits = { queue = 1 << 20 } }, function(at, server)
    local peer = connect(at)
    peer:pause()
    peer:send(get "/")
    while server:stats().cut == 0 do async.sleep(1) end
    t.ok(most <= 1 << 20, most)
    t.ok(most > 1 << 18, most)
    peer:close()
  end)
end)

test("a slow reader gets everything", function(t)
  local total = 8 << 20
  local function handler(_, response)
    response:start(200)
    for i = 1, total // 65536 do
      response:write(string.char(65 + i % 26):rep(65536))
      if not response:drained() then return end
    end
    response:finish()
  end
  serve(t, { handler = handler, limits = { queue = 1 << 20 } }, function(at)
    local peer = connect(at)
    peer:send(get("/", LAST))
    local n = 0
    repeat
      peer:pause()
      async.sleep(1)
      n, peer.got = n + #peer.got, ""
      if not peer.ended then peer:read() end
      async.sleep(1)
    until peer.ended
    n = n + #peer.got
    t.eq(peer.ended, "end")
    t.ok(n > total and n < total + 10000, n)
    peer:close()
  end)
end)

test("a client that pipelines and reads nothing has to wait", function(t)
  local asked = 0
  local function handler(_, response)
    asked = asked + 1
    response:send(200, nil, ("x"):rep(100000))
  end
  serve(t, { handler = handler }, function(at)
    local peer = connect(at)
    peer:pause()
    local n = 2000
    async.run(function() peer:send(get("/"):rep(n - 1) .. get("/", LAST)) end)
    local before
    repeat
      before = asked
      async.sleep(50)
    until asked == before
    t.ok(asked > 0 and asked < n / 2, asked)
    peer:close()
  end)
end)

test("clients that go away: the handler is notified, the response is not awaited", function(t)
  local events = {}
  local function handler(request, response)
    local gone = async.signal()
    request:on_abort(function() gone:set() end)
    if request.path == "/stream" then
      local stream = response:sse()
      while not gone.is_set do
        stream:event "tick"
        async.sleep(1)
      end
      events[#events + 1] = "stream"
      t.eq(request.aborted, true)
      -- a closed socket shows at the second write
      repeat async.sleep(1) until not stream:event "late"
      stream:finish()
    else
      gone:wait()
      events[#events + 1] = "wait"
      if request.path == "/answer" then response:send(200, nil, "still here") end
    end
  end
  local log = {}
  serve(t, { handler = handler,
    log = function(e) log[#log + 1] = { e.path, e.status, e.aborted } end }, function(at, server)
    local a, b = connect(at), connect(at)
    a:send(get "/stream")
    b:send(get "/wait")
    a:wait "tick"
    a:close()
    b:close()
    while #log < 2 do async.sleep(1) end
    table.sort(events)
    table.sort(log, function(x, y) return x[1] < y[1] end)
    t.eq(events, { "stream", "wait" })
    t.eq(log, { { "/stream", 200, true }, { "/wait", 499, true } })
    local half = connect(at) -- closes only its sending side
    half:send(get "/answer")
    half:finish_sending()
    t.match(half:rest(), "still here$")
    half = connect(at)
    half:send(get "/answer" .. get "/answer" .. "GET / HT")
    half:finish_sending()
    t.eq(statuses(half:rest()), { 200, 200, 400 })
    half = connect(at)
    half:send "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nabc"
    half:finish_sending()
    t.match(half:rest(), "the request is incomplete")
    while server:stats().connections > 0 do async.sleep(1) end
  end)
end)

test("many idle streams", function(t)
  local open = 0
  local stop = async.signal()
  local function handler(_, response)
    local stream = response:sse()
    open = open + 1
    stop:wait()
    stream:event "bye"
    stream:finish()
  end
  serve(t, { handler = handler, limits = { heartbeat_s = 0.05 } }, function(at)
    local peers = {}
    for i = 1, 100 do
      peers[i] = connect(at)
      peers[i]:send(get("/", LAST))
    end
    while open < 100 do async.sleep(1) end
    for i = 1, 100 do peers[i]:wait ": \n\n" end
    stop:set()
    for i = 1, 100 do
      local got, ended = peers[i]:rest()
      t.eq(ended, "end")
      t.match(got, "\r\n\r\n[%x]+\r\n: \n\n.*data: bye\n\n\r\n0\r\n\r\n$")
    end
  end)
end)

test("drain: idle connections close, busy ones finish, new ones are refused", function(t)
  local release = async.signal()
  local function handler(request, response)
    if request.path == "/stream" then
      local stream = response:sse()
      stream:event "one"
      release:wait()
      stream:event "two"
      return stream:finish()
    end
    if request.path == "/wait" then release:wait() end
    response:send(200, nil, "hello")
  end
  local server = http.server { handler = handler }
  local at = assert(server:listen { port = 0 })
  local order = {}
  async.run(t.expect(function()
    local idle, busy, stream, half = connect(at), connect(at), connect(at), connect(at)
    idle:send(get "/")
    idle:wait "hello"
    busy:send(get "/wait" .. get "/never")
    stream:send(get "/stream")
    stream:wait "one"
    half:send "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab"
    local function reads_body()
      local found = false
      server:each(function(conn) found = found or conn.state == "body" end)
      return found
    end
    while server:stats().busy < 2 or not reads_body() do async.sleep(1) end
    server:drain { seconds = 5, done = t.expect(function() order[#order + 1] = "done" end) }
    server:drain { seconds = 5 } -- a second call does nothing
    local got, ended = idle:rest()
    t.eq({ statuses(got), ended }, { { 200 }, "end" })
    t.eq((http.request { host = "127.0.0.1", port = at.port }), nil)
    t.eq(server:stats().draining, true)
    half:send "cde"
    got = half:rest()
    t.match(got, "connection: close\r\n\r\nhello$")
    order[#order + 1] = "released"
    release:set()
    got = busy:rest()
    t.eq(statuses(got), { 200 })
    t.match(got, "connection: close\r\n\r\nhello$")
    t.match(stream:rest(), "data: two\n\n\r\n0\r\n\r\n$")
    t.raises(function() server:listen { port = 0 } end, "shutting down")
    while #order < 2 do async.sleep(1) end
    t.eq(order, { "released", "done" })
  end))
end)

test("drain: connections left at the deadline are cut", function(t)
  local aborted = 0
  local server = http.server { handler = function(request)
    local gone = async.signal()
    request:on_abort(function() gone:set() end)
    gone:wait()
    aborted = aborted + 1
  end }
  local at = assert(server:listen { port = 0 })
  async.run(t.expect(function()
    local peer = connect(at)
    peer:send(get "/")
    while server:stats().busy < 1 do async.sleep(1) end
    server:drain { seconds = 0.03, done = t.expect(function() end) }
    local got, ended = peer:rest()
    t.eq(got, "")
    t.ok(ended)
    t.eq(aborted, 1)
  end))
end)

-- ---- broken clients -----------------------------------------------------------------------------

local function random(seed)
  local state = seed
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407) & math.maxinteger
    return (state >> 33) % n + 1
  end
end

local SEEDS = {
  get("/", LAST), get("/" .. ("x"):rep(300)) .. get("/", LAST),
  "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello",
  "POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    .. "5\r\nhello\r\n0\r\n\r\n",
}

local function broken(rnd)
  local text = SEEDS[rnd(#SEEDS)]
  for _ = 1, rnd(5) do
    local at = rnd(#text)
    local kind = rnd(3)
    if kind == 1 then text = text:sub(1, at - 1) .. string.char(rnd(256) - 1) .. text:sub(at + 1)
    elseif kind == 2 then text = text:sub(1, at - 1) .. text:sub(at + rnd(3))
    else text = text:sub(1, at) .. text:sub(rnd(at)) end
    if text == "" then text = "\0" end
  end
  return text
end

test("thousands of broken clients: always a response or an end, and no leaks", function(t)
  local rnd = random(11)
  local codes = {}
  local function handler(request, response) response:send(200, nil, request.body) end
  serve(t, { handler = handler, on_error = function(_, text) t.fail(text) end },
    function(at, server)
    local jobs = {}
    for worker = 1, 8 do
      jobs[worker] = function()
        for i = 1, 250 do
          local peer, text = connect(at), broken(rnd)
          local cut = rnd(#text)
          peer:send(text:sub(1, cut))
          if i % 3 == 0 then async.sleep(0) end
          if i % 5 > 0 then
            peer:send(text:sub(cut + 1))
            if rnd(2) == 1 then async.sleep(0) end
            if not peer.ended then peer.stream:shutdown() end
            local got, ended = peer:rest()
            if not ended then t.fail(("no end after %q"):format(text)) end
            for _, code in ipairs(statuses(got)) do codes[code] = (codes[code] or 0) + 1 end
          end
          peer:close()
        end
      end
    end
    async.all(jobs)
    while server:stats().connections > 0 do async.sleep(1) end
    t.eq(statuses((talk(at, get("/", LAST)))), { 200 })
    while server:stats().connections > 0 do async.sleep(1) end
    for code in pairs(codes) do
      t.ok(code == 200 or code >= 400 and code < 500 or code == 505, code)
    end
    t.ok((codes[200] or 0) > 20 and (codes[400] or 0) > 500, codes)
    local streams = 0
    uv.walk(function(handle)
      if not handle:is_closing() and handle:get_type() == "tcp" then streams = streams + 1 end
    end)
    t.eq(streams, 1) -- the listener
  end)
end)

-- ---- the gate -----------------------------------------------------------------------------------

local function begin_post(path, n, more)
  return ("POST %s HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%s\r\n"):format(path, n, more or "")
end

--- Refuses /closed, gives /small 1000 bytes, and lets all others pass.
local function gated(limits)
  local function gate(request)
    if request.path == "/closed" then return { stop = true } end
    return { owner = request:header "x-owner", body = request.path == "/small" and 1000 or nil }
  end
  local function handler(request, response)
    if request.path == "/closed" then return response:send(401, nil, "no") end
    response:send(200, nil, tostring(#(request.body or "")))
  end
  return { gate = gate, handler = handler, limits = limits }
end

test("the gate is asked before a body is read", function(t)
  serve(t, gated(), function(at, server)
    local got, ended = talk(at, begin_post("/closed", 32 << 20) .. "xxx")
    t.eq({ statuses(got), ended }, { { 401 }, "end" })
    t.match(got, "\r\nconnection: close\r\n")
    t.eq(server:stats().body_bytes, 0)
    -- A short body comes with its head: the connection stays.
    got = talk(at, begin_post("/closed", 3) .. "abc" .. get("/", LAST))
    t.eq(statuses(got), { 401, 200 })
  end)
end)

test("a client may send the whole body that is refused before it reads why", function(t)
  serve(t, gated { linger_s = 0.3 }, function(at)
    local peer, piece = connect(at), ("x"):rep(1 << 20)
    peer:pause()
    peer:send(begin_post("/closed", 32 << 20))
    for i = 1, 32 do
      t.ok(peer:send(piece), "piece " .. i)
      if i % 8 == 0 then async.sleep(100) end -- the time starts again with every byte
    end
    peer:read()
    local got, ended = peer:rest()
    t.eq({ statuses(got), ended }, { { 401 }, "end" })
  end)
end)

test("a client that goes on sending after its refusal is cut", function(t)
  serve(t, gated { body = 1 << 20, linger_s = 0.2, body_s = 0.5 }, function(at)
    local peer, sent = connect(at), 0
    peer:send(begin_post("/closed", 1 << 20))
    while sent < 16 and peer:send(("x"):rep(1 << 20)) do sent = sent + 1 end
    t.ok(sent < 16, "by bytes")
    peer:close()
    local slow, began = connect(at), uv.hrtime()
    slow:send(begin_post("/closed", 1 << 20))
    while uv.hrtime() - began < 5e9 and slow:send "x" do async.sleep(20) end
    t.ok(uv.hrtime() - began < 4e9, "by time")
    slow:close()
  end)
end)

test("100-continue comes after the gate", function(t)
  serve(t, gated(), function(at)
    t.eq(statuses((talk(at, begin_post("/closed", 3, "Expect: 100-continue\r\n")))), { 401 })
    local peer = connect(at)
    peer:send(begin_post("/", 3, "Expect: 100-continue\r\n" .. LAST))
    t.eq(statuses(peer:wait "100 Continue"), { 100 })
    peer:send "abc"
    local got = peer:rest()
    t.eq(statuses(got), { 100, 200 })
    t.match(got, "\r\n\r\n3$")
  end)
end)

test("bodies are limited by route, by length and in chunks", function(t)
  serve(t, gated(), function(at)
    t.eq(statuses((talk(at, begin_post("/small", 2000) .. "x"))), { 413 })
    local head = "POST /small HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    local peer = connect(at)
    peer:send(head)
    async.sleep(20)
    peer:send("7d0\r\n" .. ("x"):rep(100))
    t.eq(statuses((peer:rest())), { 413 })
    t.eq(statuses((talk(at, head .. "7d0\r\n" .. ("x"):rep(100)))), { 413 }) -- all at once
  end)
end)

test("bodies of one owner leave room for those of others", function(t)
  serve(t, gated { bodies = 4 << 20, bodies_each = 1 << 20 }, function(at, server)
    local rude = connect(at)
    rude:send(begin_post("/", 1 << 20, "x-owner: a\r\n") .. ("x"):rep(900 << 10))
    while server:stats().body_bytes < 900 << 10 do async.sleep(1) end
    local body = ("x"):rep(300 << 10)
    local same = talk(at, begin_post("/", #body, "x-owner: a\r\n" .. LAST) .. body)
    t.eq(statuses(same), { 503 })
    local other = talk(at, begin_post("/", #body, "x-owner: b\r\n" .. LAST) .. body)
    t.eq(statuses(other), { 200 })
    rude:close()
    while server:stats().body_bytes > 0 do async.sleep(1) end
    t.eq(next(server.held_by), nil)
  end)
end)

test("a body that stops coming is not waited for, however much of it has come", function(t)
  serve(t, { handler = hello, limits = { body_s = 0.2, body_rate = 100 } }, function(at)
    local began = uv.hrtime()
    local got = talk(at, begin_post("/", 1 << 20) .. ("x"):rep((1 << 20) - 1))
    t.eq(statuses(got), { 408 })
    t.ok(uv.hrtime() - began < 5e9) -- at 100 bytes per second it would be three hours
    -- A steady one may take longer than body_s.
    local peer = connect(at)
    peer:send(begin_post("/", 400, LAST))
    for _ = 1, 8 do
      async.sleep(50)
      peer:send(("x"):rep(50))
    end
    t.eq(statuses((peer:rest())), { 200 })
  end)
end)

test("connections from one address", function(t)
  local options = { handler = hello, limits = { peer_connections = 2, connections = 10 } }
  serve(t, options, function(at, server)
    local a, b = connect(at), connect(at)
    while server:stats().connections < 2 do async.sleep(1) end
    local got = talk(at, get "/")
    t.eq(statuses(got), { 503 })
    t.match(got, "too many connections from this address")
    a:close()
    b:close()
    while server:stats().connections > 0 do async.sleep(1) end
    t.eq(next(server.by_peer), nil)
    t.eq(statuses((talk(at, get("/", LAST)))), { 200 })
  end)
  options.listen = nil
  serve(t, { handler = hello, limits = { peer_connections = 1 },
    trusts = function(address) return address == "127.0.0.1" end }, function(at, server)
      local a, b = connect(at), connect(at)
      while server:stats().connections < 2 do async.sleep(1) end
      t.eq(statuses((talk(at, get("/", LAST)))), { 200 })
      a:close()
      b:close()
    end)
end)

test("addresses: networks of IPv6, clients behind proxies", function(t)
  local peer = require "http.peer"
  t.eq(peer.network "10.1.2.3", "10.1.2.3")
  t.eq(peer.network "2001:DB8:1:2:3:4:5:6", "2001:db8:1:2::/64")
  t.eq(peer.network "2001:db8::1", "2001:db8:0:0::/64")
  t.eq(peer.network "::1", "0:0:0:0::/64")
  t.eq(peer.network "::ffff:10.1.2.3", "10.1.2.3")
  local function trusts(address) return address == "10.0.0.2" or address == "10.0.0.3" end
  t.eq(peer.client("1.2.3.4", "9.9.9.9", trusts), "1.2.3.4")
  t.eq(peer.client("10.0.0.2", nil, trusts), "10.0.0.2")
  t.eq(peer.client("10.0.0.2", "6.6.6.6, 9.9.9.9", trusts), "9.9.9.9")
  t.eq(peer.client("10.0.0.2", "6.6.6.6, 9.9.9.9 , 10.0.0.3", trusts), "9.9.9.9")
  t.eq(peer.client("10.0.0.2", "9.9.9.9, <script>", trusts), "10.0.0.2")
  t.eq(peer.client("10.0.0.2", "[2001:db8::7]", trusts), "2001:db8::7")
end)

test("unsent bytes of all connections together", function(t)
  local function handler(_, response)
    response:start(200)
    while response:write(("x"):rep(64 << 10)) do async.sleep(0) end
  end
  local options = { handler = handler, limits = { queue = 64 << 20, unsent = 1 << 20 } }
  serve(t, options, function(at, server)
    local peer = connect(at)
    peer:pause()
    peer:send(get "/")
    while server:stats().cut == 0 do async.sleep(1) end
    t.eq(server:stats().unsent_bytes, 0)
    peer:close()
  end)
end)
