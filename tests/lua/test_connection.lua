-- http.connection on sockets and a clock that are made up: deadlines and limits at their last
-- moment and one later, what is sent in which piece, and what a client leaves behind.
local sockets = require "sockets"
local test = require("harness").test

local connect, post, statuses, with = sockets.connect, sockets.post, sockets.statuses, sockets.with
local GET, ok, waiting = sockets.GET, sockets.ok, sockets.waiting

-- ---- deadlines ----------------------------------------------------------------------------------

test("a head has its time from its first byte, a client between two from the last", function(t)
  with(t, {}, function()
    local conn, socket = connect { answer = ok, limits = { header_s = 10, idle_s = 75 } }
    conn:check(sockets.clock + 9999)
    t.eq(socket.closed, nil)
    local other, silent = connect { limits = { header_s = 10 } }
    other:check(sockets.clock + 10000) -- it never sent anything
    t.eq({ silent.closed, silent.got }, { true, "" })
    socket.send "GET / HTTP"
    sockets.clock = sockets.clock + 5000
    socket.send "/1.1\r\n" -- more bytes, but no more time
    conn:check(sockets.clock + 4999)
    t.eq(socket.got, "")
    socket.send "host: x\r\n\r\n"
    t.eq({ statuses(socket.got), conn.deadline }, { { 200 }, sockets.clock + 75000 })
    conn:check(sockets.clock + 74999)
    t.eq(socket.closed, nil)
    sockets.clock = sockets.clock + 60000
    socket.send "GET / HTTP/1.1\r\n"
    t.eq(conn.deadline, sockets.clock + 10000)
    conn:check(sockets.clock + 9999)
    t.eq(statuses(socket.got), { 200 })
    conn:check(sockets.clock + 10000)
    t.eq({ statuses(socket.got), conn.state }, { { 200, 408 }, "linger" })
    t.match(socket.got, "the head took too long")
    conn:close()
    conn, socket = connect { answer = ok }
    socket.send(GET)
    conn:check(conn.deadline)
    t.eq({ socket.closed, statuses(socket.got) }, { true, { 200 } }) -- idle: no word
    conn:check(sockets.clock) -- nothing happens any more
  end)
end)

test("a body has its time, and again for each part that comes in it", function(t)
  with(t, {}, function()
    local conn, socket, server = connect { answer = ok,
      limits = { body_s = 30, body_rate = 10, header_s = 10 } }
    socket.send(post(1000) .. "x")
    t.eq({ conn.state, conn.deadline, server.held }, { "body", sockets.clock + 30000, 1 })
    local first = conn.deadline
    sockets.clock = sockets.clock + 1000
    socket.send(("x"):rep(298)) -- 299 of the 300 bytes
    t.eq({ conn.deadline, server.held }, { first, 299 })
    socket.send "x"
    t.eq(conn.deadline, sockets.clock + 30000)
    sockets.clock = sockets.clock + 1000
    socket.send(("x"):rep(299))
    t.eq(conn.deadline, sockets.clock + 29000)
    conn:check(conn.deadline - 1)
    t.eq(socket.got, "")
    conn:check(conn.deadline)
    t.match(socket.got, "^HTTP/1.1 408 .*the body took too long")
    t.eq({ server.held, next(server.held_by) }, { 0 })
    conn:close()
  end)
end)

test("a client that takes too little for too long is cut", function(t)
  with(t, {}, function()
    local limits = { write_s = 60, write_rate = 10, idle_s = 1000 }
    local conn, socket, server = connect({ answer = function(response)
      response:send(200, nil, ("x"):rep(5000))
    end, limits = limits }, 100)
    socket.send(GET)
    t.eq({ #socket.got, conn.in_flight == #socket.later, server.unsent == #socket.later },
      { 100, true, true })
    conn:check(sockets.clock + 60000)
    t.eq({ socket.closed, server.counts.cut }, { nil, 0 })
    socket.queue = socket.queue - 599 -- taken, of the 600 bytes
    conn:check(sockets.clock + 60000)
    socket.queue = socket.queue - 1
    conn:check(sockets.clock + 60000) -- enough: another minute
    conn:check(sockets.clock + 120000)
    t.eq(socket.closed, nil)
    conn:check(sockets.clock + 120001)
    t.eq({ socket.closed, server.counts.cut, server.unsent, server.open }, { true, 1, 0, 0 })
    conn, socket = connect({ limits = limits, answer = ok }, 0)
    socket.send(GET)
    conn:check(sockets.clock + 60001)
    t.eq(socket.closed, true)
    conn, socket = connect { limits = limits, answer = ok }
    socket.send(GET)
    conn:check(sockets.clock + 70000) -- everything is sent
    t.eq(socket.closed, nil)
    conn:close()
  end)
end)

test("events are kept alive while nothing else is sent", function(t)
  with(t, {}, function()
    local conn, socket, _, answers = connect { limits = { heartbeat_s = 15 },
      answer = function(response)
        response.events = response:sse()
        response.events:event "a"
        waiting(response)
      end }
    socket.send(GET)
    local before = #socket.got
    conn:check(sockets.clock + 14999)
    t.eq(#socket.got, before)
    conn:check(sockets.clock + 15000)
    t.eq(socket.got:sub(before + 1), "4\r\n: \n\n\r\n")
    socket.room = 0
    answers[1].events:event "b"
    conn:check(sockets.clock + 30000)
    t.eq(conn.backlog_bytes, 0) -- the client has not taken what was sent
    socket.room = math.huge
    socket.take()
    conn:close()
    t.eq(answers[1].request.aborted, true)
    answers[1].resume()
  end)
end)

test("what comes after a refusal is discarded, for a while", function(t)
  with(t, {}, function()
    local function refused()
      local conn, socket = connect { limits = { body = 100, body_s = 30, linger_s = 2 } }
      socket.send "nonsense\r\n\r\n"
      t.eq({ statuses(socket.got), conn.state, socket.shut, conn.deadline },
        { { 400 }, "linger", true, sockets.clock + 2000 })
      return conn, socket
    end
    local _, socket = refused()
    local conn
    socket.send(("x"):rep(200))
    t.eq(socket.closed, nil)
    socket.send "x" -- more than two bodies
    t.eq(socket.closed, true)
    conn, socket = refused()
    local began = sockets.clock
    sockets.clock = began + 1000
    socket.send "x"
    t.eq(conn.deadline, sockets.clock + 2000)
    sockets.clock = began + 30000
    socket.send "x"
    t.eq(socket.closed, nil)
    sockets.clock = sockets.clock + 1
    socket.send "x" -- longer than a body may take
    t.eq(socket.closed, true)
    conn, socket = refused()
    conn:check(sockets.clock + 1999)
    t.eq(socket.closed, nil)
    conn:check(sockets.clock + 2000)
    t.eq({ socket.closed, #statuses(socket.got) }, { true, 1 })
    conn, socket = refused()
    conn:on_read(nil, nil) -- the client closes its end
    t.eq(socket.closed, true)
    _, socket = refused()
    socket.on_bytes "ECONNRESET"
    t.eq(socket.closed, true)
  end)
end)

-- ---- bytes --------------------------------------------------------------------------------------

test("one write at a time; the rest waits and goes out as one", function(t)
  with(t, {}, function()
    local conn, socket, server = connect({ limits = { queue = 1000 } }, 4)
    local woken = {}
    t.eq({ conn:write "abcdef", conn.in_flight, server.unsent }, { 2, 2, 2 })
    t.eq({ conn:write "gh", conn:write "ij", conn.backlog_bytes, server.unsent, socket.writes },
      { 4, 6, 4, 6, 1 })
    conn:when_drained(function(value) woken[#woken + 1] = value end)
    local cancel = conn:when_drained(function() woken[#woken + 1] = "cancelled" end)
    cancel()
    socket.take()
    t.eq({ socket.got, socket.later, conn.in_flight, conn.backlog_bytes, server.unsent },
      { "abcdef", "ghij", 4, 0, 4 })
    t.eq(woken, { true }) -- 4 bytes are below limits.low_water
    cancel()
    socket.take()
    t.eq({ socket.got, conn.in_flight, server.unsent, conn.written }, { "abcdefghij", 0, 0, 10 })
    socket.room = math.huge
    t.eq({ conn:write "kl", socket.got }, { 0, "abcdefghijkl" })
    socket.room = 0
    t.eq(conn:write "m", 1) -- EAGAIN
    socket.broken = true
    conn:when_drained(function(value) woken[#woken + 1] = value end)
    socket.take "EPIPE"
    t.eq({ socket.closed, woken, server.unsent, conn:write "n" }, { true, { true, false }, 0 })
    conn:wrote() -- late news of a closed connection
    conn, socket = connect()
    socket.broken = true
    t.eq({ conn:write "x", socket.closed }, { nil, true })
  end)
end)

test("a client is drained at low_water", function(t)
  with(t, {}, function()
    local conn = connect({ limits = { low_water = 10 } }, 0)
    conn:write(("x"):rep(10))
    t.eq(conn:is_drained(), true)
    conn:write "x"
    t.eq({ conn:is_drained(), conn:waiting_bytes() }, { false, 11 })
    conn:close()
  end)
end)

test("a stream may have this many unsent bytes, and all connections together", function(t)
  with(t, {}, function()
    local conn, socket, server = connect({ limits = { queue = 200, unsent = 1000 } }, 0)
    conn:write("x", true) -- in flight
    t.eq(conn:write(("x"):rep(71), true), 72) -- and 64 for the entry
    t.eq(conn:write(("x"):rep(500)), 572) -- not bounded
    t.eq({ conn:write("x", true), socket.closed, server.counts.cut }, { nil, true, 1 })
    conn = connect({ limits = { queue = 200 } }, 0)
    conn:write("x", true)
    t.eq(conn:write(("x"):rep(135), true), 136) -- 136 + 64: exactly
    conn:close()
    conn, socket = connect({ limits = { queue = 200 } }, 0)
    conn:write("x", true)
    t.eq({ conn:write(("x"):rep(136), true), socket.closed }, { nil, true })
    conn, socket, server = connect({ limits = { unsent = 1000 } }, 0)
    server.unsent = 900 -- of others
    conn:write "x"
    t.eq(conn:write(("x"):rep(99)), 100)
    t.eq({ conn:write "x", socket.closed, server.unsent }, { nil, true, 900 })
  end)
end)

test("bytes of further requests wait, up to 64 KiB", function(t)
  with(t, {}, function()
    local conn, socket, _, answers = connect { answer = waiting }
    socket.send(GET)
    t.eq({ conn.state, conn.deadline, #answers }, { "busy", nil, 1 })
    local bytes = (64 << 10) - #post(60000)
    socket.send(post(bytes):sub(1, 10))
    socket.send(post(bytes):sub(11) .. ("x"):rep(bytes))
    t.eq({ conn.stash_bytes, socket.reading }, { 64 << 10, true })
    socket.send "G"
    t.eq({ conn.paused, socket.reading }, { true, false })
    answers[1].resume()
    t.eq({ #answers, conn.stash_bytes }, { 2, 0 })
    answers[2].resume()
    t.eq({ statuses(socket.got), socket.reading, conn.state, conn.paused },
      { { 200, 200 }, true, "head", false })
    conn:close()
  end)
end)

test("a pipeline continues when others had their turn", function(t)
  local deferred = {}
  local over = false
  with(t, { is_over = function() return over end,
    defer = function(fn) deferred[#deferred + 1] = fn end }, function()
    local conn, socket, _, answers = connect({ answer = ok }, 0)
    over = true
    socket.send(GET .. GET)
    t.eq({ #answers, conn.state, conn.queued, #deferred }, { 1, "flush", true, 1 })
    socket.take() -- the response is sent: that is no reason to go on now
    t.eq({ #answers, conn.state }, { 1, "flush" })
    deferred[1]()
    t.eq({ #answers, conn.queued }, { 2, false })
    socket.take()
    conn:close()
    conn, socket = connect { answer = ok }
    socket.send(GET .. "G") -- one byte of the next is enough
    t.eq({ conn.state, conn.queued }, { "flush", true })
    conn:close()
    conn, socket = connect { answer = ok }
    socket.send(GET)
    t.eq({ conn.state, conn.queued }, { "head" })
    conn:close()
    -- A response that is not sent yet holds up the next request.
    over = false
    conn, socket, _, answers = connect({ limits = { low_water = 10 }, answer = ok }, 0)
    socket.send(GET .. GET)
    t.eq({ #answers, conn.state }, { 1, "flush" })
    socket.take()
    t.eq(#answers, 2)
    socket.take()
    t.eq(conn.state, "head")
    conn:close()
    -- A connection's first request is served even if this turn has computed enough.
    over = true
    conn, socket, _, answers = connect { answer = ok }
    socket.send(GET)
    t.eq(#answers, 1)
    deferred = {}
    socket.send(GET)
    t.eq({ #answers, conn.state, #deferred, conn.stash_bytes }, { 1, "flush", 1, #GET })
    deferred[1]()
    t.eq({ #answers, conn.state }, { 2, "head" })
    deferred = {}
    socket.send(GET)
    conn:close()
    deferred[1]() -- too late
    t.eq(#answers, 2)
  end)
end)

test("large bodies are read in turns", function(t)
  local deferred, over = {}, true
  with(t, { is_over = function() return over end,
    defer = function(fn) deferred[#deferred + 1] = fn end }, function()
    local conn, socket = connect { answer = ok }
    socket.send(post(100) .. "x")
    t.eq({ socket.reading, conn.resting, #deferred }, { false, true, 1 })
    socket.send "x" -- came before reading stopped
    t.eq(#deferred, 1)
    deferred[1]()
    t.eq({ socket.reading, conn.resting }, { true, false })
    over = false
    socket.send "x"
    t.eq(#deferred, 1)
    over = true
    socket.send "x"
    conn:close()
    socket.reading = false
    deferred[2]()
    t.eq(socket.reading, false)
  end)
end)

-- ---- requests -----------------------------------------------------------------------------------

test("a body in many chunks is read in turns", function(t)
  local over, later = false, {}
  with(t, { is_over = function() return over end,
    defer = function(fn) later[#later + 1] = fn end }, function()
    local body
    local _, socket = connect { handler = function(request, response)
      body = request.body
      response:send(200, {}, "ok")
    end }
    local head = "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    socket.send(head)
    over = true
    socket.send(("1\r\nx\r\n"):rep(1150)) -- 512 of them at once
    socket.send(("1\r\nx\r\n"):rep(50) .. "0\r\n\r\n") -- came before reading stopped
    t.eq({ #later, socket.reading, body }, { 1, false, nil })
    for i = 1, 2 do
      t.eq({ #later, socket.reading, body }, { i, false, nil })
      later[i]()
    end
    t.eq({ #later, socket.reading, #(body or "") }, { 2, true, 1200 })
    over = false
    socket.send(head .. ("1\r\nx\r\n"):rep(1200) .. "0\r\n\r\n")
    t.eq({ #later, #body, sockets.statuses(socket.got) }, { 2, 1200, { 200, 200 } })
    socket.send(head)
    over = true
    socket.send(("1\r\nx\r\n"):rep(600))
    socket.on_bytes() -- the end of the input
    t.eq({ #later, sockets.statuses(socket.got) }, { 3, { 200, 200 } })
    later[3]()
    t.eq(sockets.statuses(socket.got), { 200, 200, 400 })
    local _, gone = connect {}
    over = false
    gone.send(head)
    over = true
    gone.send(("1\r\nx\r\n"):rep(600))
    gone.on_bytes "ECONNRESET" -- its client goes away meanwhile
    later[4]()
    t.eq(gone.closed, true)
  end)
end)

test("a large first request waits for the next turn, a small one does not", function(t)
  local later = {}
  with(t, { is_over = function() return true end,
    defer = function(fn) later[#later + 1] = fn end }, function()
    local answer = function(response) response:send(200, {}, "ok") end
    local _, small = connect { answer = answer }
    small.send(sockets.GET)
    t.eq({ sockets.statuses(small.got), #later }, { { 200 }, 0 })
    local _, large = connect { answer = answer }
    large.send("GET / HTTP/1.1\r\nhost: x\r\nx-long: " .. ("y"):rep(2048) .. "\r\n\r\n")
    t.eq({ sockets.statuses(large.got), #later, large.reading }, { {}, 2, false })
    later[1]()
    t.eq(sockets.statuses(large.got), { 200 })
  end)
end)

test("large bodies leave room for ordinary ones", function(t)
  with(t, {}, function()
    local mib = 1 << 20
    local limits = { body = 16 * mib, bodies = 16 * mib, bodies_each = 8 * mib }
    local _, large, server = connect { limits = limits }
    server.held, server.held_by.unix = 6 * mib, 6 * mib
    large.send(post(2 * mib) .. ("x"):rep(mib))
    t.eq(large.got, "", "7 of 8 MiB are held")
    large.send "x"
    t.match(large.got, "^HTTP/1.1 503 .*too many large requests")
    local conn, ordinary, other = connect { limits = limits }
    other.held, other.held_by.unix = 7 * mib, 7 * mib
    ordinary.send(post(2 * mib) .. ("x"):rep(mib))
    t.eq({ ordinary.got, other.held }, { "", 8 * mib })
    ordinary.send "x"
    t.match(ordinary.got, "^HTTP/1.1 503 ", "now it is a large one")
    conn:close()
  end)
end)

test("bodies in memory: of all, and of one owner", function(t)
  with(t, {}, function()
    local limits = { bodies = 1000, bodies_each = 100 }
    local conn, socket, server = connect { limits = limits,
      gate = function() return { owner = "k" } end }
    socket.send(post(500) .. ("x"):rep(100))
    t.eq({ socket.got, server.held, server.held_by }, { "", 100, { k = 100 } })
    socket.send "x"
    t.match(socket.got, "^HTTP/1.1 503 .*retry%-after: 1\r\n.*too many large requests")
    t.eq({ server.held, server.held_by }, { 0, {} })
    conn:close()
    conn, socket, server = connect { limits = limits, ip = "1.2.3.4" }
    server.held = 950
    socket.send(post(500) .. ("x"):rep(50))
    t.eq({ socket.got, server.held_by }, { "", { unix = 50 } })
    socket.send "x"
    t.match(socket.got, "^HTTP/1.1 503 ")
    conn:close()
    t.eq(server.held, 950)
    conn, socket, server = connect({ limits = limits, ip = "1.2.3.4" }, nil, "tcp")
    socket.send(post(500) .. "x")
    t.eq({ server.held_by, socket.keepalive_s }, { { ["1.2.3.4"] = 1 }, 60 })
    conn:close()
    t.eq({ server.held, server.held_by }, { 0, {} })
  end)
end)

test("the gate decides about a body before it comes", function(t)
  with(t, {}, function()
    local verdict
    local options = { answer = function(response) response:send(403) end,
      gate = function(request, response)
        response:set("x-gate", request.method)
        return verdict
      end }
    verdict = { stop = true }
    local conn, socket, _, answers = connect(options)
    socket.send(post(10))
    t.eq({ statuses(socket.got), #answers, conn.state }, { { 403 }, 1, "linger" })
    t.match(socket.got, "x%-gate: POST\r\n.*connection: close\r\n")
    conn:close()
    verdict = { body = 10 }
    conn, socket = connect(options)
    socket.send(post(11))
    t.match(socket.got, "^HTTP/1.1 413 .*body is larger than 10 bytes")
    conn:close()
    conn, socket = connect(options)
    socket.send(post(10, "expect: 100-continue\r\n"))
    t.eq({ socket.got, conn.state }, { "HTTP/1.1 100 Continue\r\n\r\n", "body" })
    socket.send(("x"):rep(10))
    t.eq(statuses(socket.got), { 100, 403 })
    conn:close()
    conn, socket = connect(options)
    socket.send(post(10, "expect: 100-continue\r\n") .. "x") -- it did not wait
    t.eq(socket.got, "")
    conn:close()
  end)
end)

test("the last request of a connection says so", function(t)
  with(t, {}, function()
    local conn, socket = connect { answer = ok, limits = { requests = 2 } }
    socket.send(GET)
    t.eq({ socket.got:find "connection:", conn.state }, { nil, "head" })
    socket.send(GET)
    t.match(socket.got, "connection: close\r\n")
    t.eq({ conn.state, socket.shut }, { "linger", true })
    conn:close()
    for _, case in ipairs { { "1.1", "close", false }, { "1.1", "x, Close", false },
      { "1.1", "keep-alive", true }, { "1.0", "close", false }, { "1.0", "keep-alive", true },
      { "1.0", "keep-alive, close", false } } do
      conn, socket = connect { answer = ok }
      socket.send(("GET / HTTP/%s\r\nhost: x\r\nconnection: %s\r\n\r\n"):format(case[1], case[2]))
      t.eq({ conn.state == "head", socket.got:match "connection: ([%w-]+)" },
        { case[3], not case[3] and "close" or case[1] == "1.0" and "keep-alive" or nil })
      conn:close()
    end
  end)
end)

test("what a client leaves behind when it goes", function(t)
  with(t, {}, function()
    local conn, socket, server, answers = connect { answer = waiting }
    local logged = {}
    server.log = function(entry) logged[#logged + 1] = { entry.status, entry.aborted } end
    socket.send(GET .. GET)
    conn:on_read(nil, nil) -- it closed its end
    t.eq({ answers[1].request.aborted, socket.reading, conn.state }, { true, false, "busy" })
    answers[1].resume() -- and still gets what is sent
    t.eq({ statuses(socket.got), #answers }, { { 200 }, 2 })
    answers[2].resume()
    t.eq({ statuses(socket.got), socket.closed, logged }, { { 200, 200 }, true,
      { { 200, true }, { 200, true } } })
    conn, socket, server, answers = connect { answer = waiting }
    socket.send(GET)
    conn:close()
    conn:close()
    t.eq({ answers[1].request.aborted, server.open, conn:write "x" }, { true, 0 })
    answers[1].resume()
    conn, socket = connect {}
    socket.send "GET /"
    conn:on_read(nil, nil)
    t.match(socket.got, "^HTTP/1.1 400 .*the request is incomplete")
    t.eq(socket.closed, true)
    conn, socket = connect {}
    conn:on_read(nil, nil)
    t.eq({ socket.got, socket.closed }, { "", true })
    socket.on_bytes(nil, "x") -- late
    t.eq(socket.got, "")
  end)
end)

test("requests that come while one is answered are read in turns", function(t)
  local over, later = false, {}
  with(t, { is_over = function() return over end,
    defer = function(fn) later[#later + 1] = fn end }, function()
    local _, socket, _, answers = connect { answer = waiting }
    socket.send(GET)
    socket.send(GET)
    t.eq({ #answers, #later, socket.reading }, { 1, 0, true })
    over = true
    socket.send(GET)
    t.eq({ #answers, #later, socket.reading }, { 1, 0, true })
    socket.send("GET / HTTP/1.1\r\nhost: x\r\nx-long: " .. ("y"):rep(2048) .. "\r\n\r\n")
    t.eq({ #answers, #later, socket.reading }, { 1, 1, false })
    later[1]()
    t.eq({ #later, socket.reading }, { 1, true }) -- so that its end is noticed
    over = false
    for i = 1, 4 do answers[i].resume() end
    t.eq(statuses(socket.got), { 200, 200, 200, 200 })
  end)
end)

test("a failure of the server itself is reported, and ends the connection", function(t)
  with(t, {}, function()
    local said
    local conn, socket = connect { on_error = function(_, text) said = text end }
    conn.parser.feed = function() error("no memory", 0) end
    socket.send(GET)
    t.eq({ said, socket.closed }, { "no memory", true })
  end)
end)

test("errors of handlers, and handlers that do not answer", function(t)
  with(t, {}, function()
    local said = {}
    local function run(handler)
      local conn, socket, server = connect { handler = handler, on_error = function(_, text)
        said[#said + 1] = text:match "^[^\n]*"
      end, log = function(entry) said[#said + 1] = entry.status end }
      said = {}
      socket.send(GET)
      local counts = server:stats()
      conn:close()
      return statuses(socket.got), counts.requests
    end
    t.eq({ run(function() error("boom", 0) end) }, { { 500 }, 1 })
    t.eq(said, { "boom", 500 })
    t.eq({ run(function() end) }, { { 500 }, 1 })
    t.eq(said, { "the handler did not respond", 500 })
    t.eq({ run(function(_, response) response:start(200) end) }, { { 200 }, 1 })
    t.eq(said, { "the handler did not finish its response", 200 })
    t.eq({ run(function(request) request:abort() end) }, { {}, 1 })
    t.eq(said, { 499 })
  end)
end)
