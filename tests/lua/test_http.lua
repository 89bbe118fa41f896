-- The HTTP server over real sockets: responses, order, streaming, refusals.
local async = require "lib.async"
local http = require "http"
local perigee = require "perigee"
local test = require("harness").test
local tools = require "http_tools"
local uv = require "luv"

local serve, connect, talk, statuses = tools.serve, tools.connect, tools.talk, tools.statuses

local function get(path, more)
  return ("GET %s HTTP/1.1\r\nHost: h\r\n%s\r\n"):format(path, more or "")
end

local LAST = "Connection: close\r\n"

--- Responds with the request.
local function echo(request, response)
  response:json(200, { method = request.method, path = request.path, body = request.body,
    id = request.id, client = request.client_id, came = request["local"],
    x = request:header "X-Test" })
end

test("several requests on a connection", function(t)
  serve(t, { handler = echo, name = "me" }, function(at, server)
    local peer = connect(at)
    peer:send(get "/one")
    local one = peer:wait "}"
    t.match(one, "^HTTP/1%.1 200 OK\r\n")
    t.match(one, "\r\nserver: me\r\n")
    t.match(one, "\r\ndate: %a%a%a, %d%d %a%a%a %d%d%d%d %d%d:%d%d:%d%d GMT\r\n")
    t.match(one, "\r\ncontent%-type: application/json\r\n")
    t.ok(not one:find("connection:", 1, true))
    local id = one:match "\r\nx%-request%-id: (req%-%x+%-%d+)\r\n"
    local body = one:match "\r\n\r\n(.*)$"
    t.eq(one:match "\r\ncontent%-length: (%d+)\r\n", tostring(#body))
    local value = perigee.json.decode(body)
    t.eq({ value.method, value.path, value.id, value.came }, { "GET", "/one", id, "tcp" })
    peer:send("POST /two HTTP/1.1\r\nHost: h\r\nx-test: v\r\nX-Request-Id: my-id.1\r\n"
        .. "Content-Length: 3\r\n\r\nabc")
    local two = peer:wait("}", 2):sub(#one + 1)
    t.match(two, "\r\nx%-request%-id: my%-id%.1\r\n")
    value = perigee.json.decode(two:match "\r\n\r\n(.*)$")
    t.eq({ value.method, value.body, value.x, value.client }, { "POST", "abc", "v", "my-id.1" })
    t.match(value.id, "^req%-%x+%-2$")
    peer:send(get("/three", LAST .. "x-request-id: not sane\r\n"))
    local all, ended = peer:rest()
    t.eq(statuses(all), { 200, 200, 200 })
    t.eq(ended, "end")
    t.match(all:sub(#one + #two + 1), "\r\nconnection: close\r\n")
    t.match(all:sub(#one + #two + 1), "\r\nx%-request%-id: req%-")
    t.eq(server:stats().requests, 3)
    t.eq(server:stats().accepted, 1)
  end)
end)

test("byte by byte", function(t)
  serve(t, { handler = echo }, function(at)
    local peer = connect(at)
    local text = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n"
        .. "0\r\n\r\n" .. get("/b", LAST)
    for i = 1, #text do peer:send(text:sub(i, i)) end
    local got = peer:rest()
    t.eq(statuses(got), { 200, 200 })
    t.match(got, '"body":"abcd"')
    t.match(got, '"path":"/b"')
  end)
end)

test("pipelined requests are served in order, one at a time", function(t)
  local running, most = 0, 0
  local function handler(request, response)
    running = running + 1
    most = math.max(most, running)
    local n = tonumber(request.path:sub(2))
    if n % 3 == 0 then async.sleep(2) end
    if n % 2 == 0 then
      response:send(200, nil, "<" .. n .. ">")
    else
      response:start(200)
      response:write("<" .. n)
      if n % 5 == 0 then async.sleep(1) end
      response:write ">"
      running = running - 1
      return response:finish()
    end
    running = running - 1
  end
  serve(t, { handler = handler }, function(at)
    local parts, want = {}, {}
    for i = 1, 100 do parts[i], want[i] = get("/" .. i, i == 100 and LAST or nil), tostring(i) end
    local got = talk(at, table.concat(parts))
    t.eq(#statuses(got), 100)
    local order = {}
    for n in got:gsub("\r\n1\r\n>", ">"):gmatch "<(%d+)>" do order[#order + 1] = n end
    t.eq(order, want)
    t.eq(most, 1)
  end)
end)

test("a long pipeline gives others their turn", function(t)
  local done = 0
  local function handler(request, response)
    if request.path == "/other" then return response:send(200, nil, tostring(done)) end
    done = done + 1
    response:send(200, nil, "x")
  end
  serve(t, { handler = handler }, function(at)
    local a, b = connect(at), connect(at)
    a:send(get("/"):rep(999) .. get("/", LAST))
    b:send(get("/other", LAST))
    local n = tonumber(b:rest():match "\r\n\r\n(%d+)$")
    t.ok(n < 999, n)
    t.eq(#statuses(a:rest()), 1000)
    a:close()
  end)
end)

test("HEAD, statuses without a body, HTTP/1.0", function(t)
  local function handler(request, response)
    if request.path == "/204" then return response:send(204, nil, "ignored") end
    if request.path == "/stream" then
      response:start(200, { ["content-type"] = "text/plain" })
      response:write "a"
      response:write ""
      response:write "bc"
      return response:finish()
    end
    response:send(200, { ["x-list"] = { "1", "2" } }, "hello")
  end
  serve(t, { handler = handler }, function(at)
    local got = talk(at, "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n"
      .. "HEAD /stream HTTP/1.1\r\nHost: h\r\n\r\n" .. get "/204" .. get("/", LAST))
    t.eq(statuses(got), { 200, 200, 204, 200 })
    t.match(got, "\r\ncontent%-length: 5\r\n\r\nHTTP/1%.1 200")
    t.match(got, "\r\ntransfer%-encoding: chunked\r\n\r\nHTTP/1%.1 204")
    t.match(got, "204 No Content\r\n[^\0]*\r\n\r\nHTTP/1%.1 200[^\0]*x%-list: 1\r\nx%-list: 2\r\n"
        .. "[^\0]*\r\n\r\nhello$")
    t.ok(not got:match "204 No Content\r\n(.-)\r\n\r\n":find("content-length", 1, true))
    got = talk(at, get("/stream", LAST))
    t.match(got, "\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n$")
    got = talk(at, "GET /stream HTTP/1.0\r\n\r\n")
    t.match(got, "connection: close\r\n\r\nabc$")
    t.ok(not got:find("chunked", 1, true))
    got = talk(at, "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET / HTTP/1.0\r\n\r\n")
    t.eq(statuses(got), { 200, 200 })
    t.match(got, "connection: keep%-alive\r\n")
  end)
end)

test("Expect: 100-continue", function(t)
  serve(t, { handler = echo, limits = { body = 100 } }, function(at)
    local peer = connect(at)
    local head = "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n\r\n"
    peer:send(head)
    t.eq(peer:wait "\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n")
    peer:send "abc"
    t.match(peer:wait "}", '"body":"abc"')
    peer:send(head .. "def") -- it did not wait, so it gets no 100
    t.eq(statuses(peer:wait("}", 2)), { 100, 200, 200 })
    peer:close()
    peer = connect(at) -- HTTP/1.0 has no Expect
    peer:send((head:gsub("1%.1", "1.0")))
    async.sleep(5)
    peer:send "abc"
    t.eq(statuses(peer:rest()), { 200 })
    t.eq(statuses((talk(at, (head:gsub("3", "101"))))), { 413 })
    t.eq(statuses((talk(at, (head:gsub("100%-Continue", "200-ok"))))), { 417 })
  end)
end)

test("refusals are errors in OpenAI's shape, and the connection ends", function(t)
  local asked = 0
  local refused = {}
  local function handler(request, response)
    asked = asked + 1
    echo(request, response)
  end
  local function log(entry) refused[#refused + 1] = entry.status end
  serve(t, { handler = handler, limits = { body = 1000 }, log = log }, function(at, server)
    local cases = {
      { 400, "GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n" },
      { 400, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n"
          .. "\r\n0\r\n\r\n" },
      { 400, "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" },
      { 400, "GET / HTTP/1.1\nHost: h\n\n" },
      { 413, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2000000\r\n\r\n"
        .. ("x"):rep(2000000) },
    }
    for _, case in ipairs(cases) do
      local got, ended = talk(at, case[2] .. get "/smuggled")
      t.eq(statuses(got), { case[1] }, case[2]:sub(1, 80))
      t.eq(ended, "end")
      t.match(got, "\r\nconnection: close\r\n")
      t.match(got, "\r\ncontent%-type: text/plain; charset=utf%-8\r\n")
      t.match(got:match "\r\n\r\n(.*)$", "^%a.*\n$")
    end
    t.eq(asked, 0)
    t.eq(server:stats().refused, #cases)
    t.eq(refused, { 400, 400, 400, 400, 413 })
  end)
end)

test("handlers that fail, do not respond or respond twice", function(t)
  local reports = {}
  local handlers = {}
  handlers["/raise"] = function() error "broken" end
  handlers["/nothing"] = function() end
  handlers["/half"] = function(_, response)
    response:start(200)
    response:write "part"
  end
  handlers["/twice"] = function(_, response)
    response:send(200, nil, "first")
    response:send(200, nil, "second")
  end
  handlers["/injection"] = function(request, response)
    response:send(200, { x = request.query.v }, "")
  end
  handlers["/framing"] = function(_, response)
    response:send(200, { ["Content-Length"] = 3 }, "")
  end
  handlers["/status"] = function(_, response) response:send(299, nil, "") end
  handlers["/wait"] = function() async.sleep(1) error { code = "x" } end
  local log = {}
  local options = {
    handler = function(request, response) return handlers[request.path](request, response) end,
    on_error = function(request, text)
      reports[#reports + 1] = request.path .. " " .. tostring(text):match "[^\n]*"
    end,
    log = function(entry) log[#log + 1] = { entry.path, entry.status, entry.aborted } end,
  }
  serve(t, options, function(at)
    for _, path in ipairs { "/raise", "/nothing", "/injection?v=a%0d%0ab:c", "/framing", "/status",
      "/wait" } do
      local got = talk(at, get(path) .. get("/twice", LAST)) -- a 500 does not end the connection
      t.eq(statuses(got), { 500, 200 }, path)
      t.match(got, "\r\n\r\ninternal error, see the log for request req%-")
      t.match(got, "first$")
    end
    local got, ended = talk(at, get "/half" .. get "/twice")
    t.eq(statuses(got), { 200 })
    t.match(got, "\r\n\r\n4\r\npart\r\n$")
    t.ok(ended)
    local text = table.concat(reports, "\n")
    for _, want in ipairs { "/raise .*broken", "/nothing the handler did not respond",
      "/half the handler did not finish", "/twice .*already been started",
      "/injection .*control character in header 'x'", "/framing .*set by the server",
      "/status .*not a known HTTP status", "/wait table" } do
      t.match(text, want)
    end
    t.eq(log[#log], { "/half", 200, false })
  end)
end)

test("Unix sockets: mode, stale files replaced, live ones refused, removed at the end", function(t)
  local path = os.tmpname()
  local file = assert(io.open(path, "w"))
  file:close()
  local spare = http.server { handler = echo }
  local err = t.fails("io", spare:listen { path = path })
  t.match(err.message, "exists and is not a socket")
  t.match(select(2, spare:listen { path = "/tmp/" .. ("x"):rep(99) }).message,
    "the path of a socket may have 103 bytes, this one has 104")
  os.remove(path)
  local stale = uv.new_pipe(false)
  assert(stale:bind(path))
  assert(uv.fs_rename(path, path .. ".kept")) -- closing removes the path it was bound to
  stale:close()
  assert(uv.fs_rename(path .. ".kept", path))
  serve(t, { handler = echo, listen = { path = path, mode = tonumber("600", 8) } }, function(at)
    t.eq(at.address, path)
    t.eq(uv.fs_stat(path).mode & 511, tonumber("600", 8))
    t.match(talk(at, get("/", LAST)), '"came":"unix"')
    t.match(t.fails("io", spare:listen { path = path }).message, "another server is listening")
    local answer = assert(http.request { socket = path, target = "/x", body = "b" })
    t.match(answer.body, '"path":"/x"')
    local timer = uv.new_timer()
    timer:start(20, 0, t.expect(function()
      timer:close()
      t.eq(uv.fs_stat(path), nil)
    end))
  end)
end)

test("a Unix socket whose server is too busy to accept is not taken away", function(t)
  if uv.os_uname().sysname ~= "Linux" then return t.skip "elsewhere a full backlog is a refusal" end
  local path, busy, waiting = os.tmpname(), uv.new_pipe(false), {}
  os.remove(path)
  assert(busy:bind(path))
  assert(busy:listen(1, function() end))
  t.eq(perigee.sys.is_refused(path), false)
  for i = 1, 8 do
    waiting[i] = uv.new_pipe(false)
    waiting[i]:connect(path, function() end)
  end
  t.eq(waiting[8]:getpeername(), nil, "the backlog is full")
  local server = http.server { handler = echo }
  t.match(t.fails("io", server:listen { path = path }).message, "another server is listening")
  for _, one in ipairs(waiting) do one:close() end
  busy:close()
  server:drain()
end)

test("addresses that cannot be bound", function(t)
  local server = http.server { handler = echo }
  t.fails("io", server:listen { host = "not an address" })
  t.fails("io", server:listen { path = "/nowhere/at/all.sock" })
  serve(t, { handler = echo }, function(at)
    t.match(t.fails("io", server:listen { port = at.port }).message, "EADDRINUSE")
  end)
  t.raises(function() http.server {} end, "needs a handler")
  t.raises(function() http.server { handler = print, limits = { bodys = 1 } } end,
    "unknown limit 'bodys'")
  t.raises(function() http.server { handler = print, limits = { body = "1" } } end,
    "must be a positive number")
end)

test("server-sent events", function(t)
  local function handler(request, response)
    local stream = response:sse { ["x-more"] = "1" }
    t.eq(stream:event "one", 0)
    stream:event("a\nb\r\nc\rd", "lines")
    t.raises(function() stream:event("x", "bad\nname") end, "one line")
    if request.path == "/slow" then async.sleep(120) end
    stream:comment "note"
    stream:event "[DONE]"
    stream:finish()
    stream:finish()
    t.eq(stream:event "too late", nil)
  end
  serve(t, { handler = handler, limits = { heartbeat_s = 0.04 } }, function(at)
    local answer = assert(http.request { url = ("http://127.0.0.1:%d/"):format(at.port) })
    t.eq(answer.headers["content-type"], "text/event-stream; charset=utf-8")
    t.eq(answer.headers["x-more"], "1")
    t.eq(answer.body,
      "data: one\n\nevent: lines\ndata: a\ndata: b\ndata: c\ndata: d\n\n: note\n\ndata: [DONE]\n\n")
    local slow = assert(http.request { url = ("http://127.0.0.1:%d/slow"):format(at.port) })
    t.match(slow.body, "data: d\n\n: \n\n")
  end)
end)

test("the log", function(t)
  local entries, reports = {}, {}
  serve(t, { handler = echo, on_error = function(_, text) reports[#reports + 1] = text end,
    log = function(entry)
    entries[#entries + 1] = entry
    if #entries == 2 then error "the log fails" end
  end }, function(at)
    local got = talk(at, get("/a?b=c", "User-Agent: me\r\n") .. get("/b", LAST))
    t.eq(statuses(got), { 200, 200 })
    local e = entries[1]
    t.eq({ e.method, e.target, e.path, e.status, e.bytes, e.peer, e["local"], e.agent, e.aborted },
      { "GET", "/a?b=c", "/a", 200, #got:match "\r\n\r\n(.-)HTTP", "127.0.0.1", "tcp", "me",
      false })
    t.ok(e.ms >= 0 and e.ms < 5000, e.ms)
    t.match(e.id, "^req%-")
    t.eq(#reports, 1)
    t.match(reports[1], "^log: .*the log fails")
  end)
end)

test("the client: framings, failures, portions", function(t)
  local router = http.router()
  router:get("/chunks", function(_, response)
    response:start(200)
    for i = 1, 5 do
      response:write(("%d"):format(i))
      async.sleep(1)
    end
    response:finish()
  end)
  router:post("/len", function(request, response)
    local body = request.body -- over 64 KB it is not a string
    response:send(200, nil, type(body) == "userdata" and body:text() or body)
  end)
  router:get("/hang", function(request)
    local gone = async.signal()
    request:on_abort(function() gone:set() end)
    gone:wait()
  end)
  local function handler(request, response)
    local route, status, allow = router:match(request.method, request.raw_path)
    if route then return route(request, response, status) end
    if allow then response:set("allow", allow) end
    response:error(status, "no such route")
  end
  serve(t, { handler = handler }, function(at)
    local base = ("http://localhost:%d"):format(at.port)
    t.eq(http.request { url = base .. "/chunks" }.body, "12345")
    local big = ("x"):rep(3 << 20)
    t.eq(#http.request { url = base .. "/len", body = big, headers = { ["X-A"] = "b" } }.body, #big)
    local pieces = {}
    local answer = http.request { url = base .. "/chunks",
      on_data = function(bytes) pieces[#pieces + 1] = bytes end }
    t.eq({ answer.body, table.concat(pieces) }, { nil, "12345" })
    local n = 0
    http.request { url = base .. "/chunks", on_data = function() n = n + 1 return false end }
    t.eq(n, 1)
    t.eq(http.request { url = base .. "/nowhere" }.status, 404)
    answer = http.request { url = base .. "/len" }
    t.eq({ answer.status, answer.headers.allow }, { 405, "POST" })
    t.eq(http.request { url = base .. "/chunks", method = "HEAD" }.body, "")
    t.fails("timeout", http.request { url = base .. "/hang", timeout_ms = 30 })
    local err = t.fails("io", http.request { url = base .. "/len", body = big, max_body = 1000 })
    t.match(err.message, "the limit is 1000")
    t.match(t.fails("io", http.request { url = base .. "/chunks", max_body = 3 }).message,
      "larger than 3 bytes")
    t.fails("io", http.request { url = "http://127.0.0.1:1/" })
    t.fails("io", http.request { socket = "/nowhere.sock" })
    t.match(t.fails("format", http.request { url = "ftp://h/" }).message, "scheme 'ftp'")
    t.raises(function() http.request { uri = "x" } end, "unknown option 'uri'")
    t.raises(function() http.request { url = base, headers = { a = "b\r\nc: d" } } end,
      "control character")
  end)
end)

--- A server that sends a text in two parts to each client and closes.
local function fake_server(texts, fn)
  local listener, n = uv.new_tcp(), 0
  listener:bind("127.0.0.1", 0)
  listener:listen(8, function()
    local stream = uv.new_tcp()
    listener:accept(stream)
    n = n + 1
    local text = texts[n]
    stream:read_start(function(_, bytes)
      if not bytes then return end
      stream:read_stop()
      stream:write(text:sub(1, #text // 2))
      stream:write(text:sub(#text // 2 + 1), function() stream:close() end)
    end)
  end)
  local url = ("http://127.0.0.1:%d/"):format(listener:getsockname().port)
  for i in ipairs(texts) do fn(i, http.request { url = url, max_body = 1000 }) end
  listener:close()
end

test("the client: what it sends", function(t)
  tools.serve(t, { handler = function(request, response)
    local headers = request.headers
    response:json(200, { request.method, request.target, headers.host, headers["x-a"],
      headers["content-length"] or "none", headers.connection, request.body or "" })
  end }, function(at)
    local function sent(options)
      options.host, options.port = "127.0.0.1", at.port
      return require("perigee").json.decode(assert(http.request(options)).body)
    end
    local place = "127.0.0.1:" .. at.port
    t.eq(sent { headers = { ["X-A"] = "b" } },
      { "GET", "/", place, "b", "none", "close", "" })
    t.eq(sent { target = "/x?y", body = "abc", headers = { ["x-a"] = 5, Host = "other" } },
      { "POST", "/x?y", "other", "5", "3", "close", "abc" })
    t.eq(sent({ body = "abc", method = "PUT", headers = { ["x-a"] = "" } })[1], "PUT")
  end)
end)

test("the client: responses of other servers, valid and broken", function(t)
  local cases = {
    { "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: 1\r\nx: 2\r\n\r\nuntil the end", 200,
      "until the end" },
    { "HTTP/1.0 204 No Content\r\n\r\n", 204, "" },
    { "HTTP/1.1 404\r\nContent-Length: 3\r\n\r\nabcdef", 404, "abc" },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "abc" },
    { "", nil, "without responding" },
    { "SSH-2.0-OpenSSH\r\n\r\n", nil, "response is not HTTP" },
    { "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc", nil, "in the middle of the body" },
    { "HTTP/1.1 200 OK\r\nContent-Length: " .. ("0"):rep(17) .. "3\r\n\r\nabc", 200, "abc" },
    { "HTTP/1.1 200 OK\r\nContent-Length: " .. ("0"):rep(18) .. "3\r\n\r\nabc", nil,
      "malformed content-length" },
    { "HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\nabc", nil, "malformed content-length" },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", nil, "malformed chunk size" },
    { "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", nil, "unknown transfer-encoding" },
    { "HTTP/1.1 200 OK\r\nbad header\r\n\r\n", nil, "malformed header name" },
    { "HTTP/1.1 200 OK\r\n\r\n" .. ("x"):rep(1001), nil, "larger than 1000 bytes" },
    { "HTTP/1.1 200 OK\r\na: " .. ("x"):rep(70000), nil, "too large" },
  }
  local texts = {}
  for i, case in ipairs(cases) do texts[i] = case[1] end
  async.run(t.expect(function()
    fake_server(texts, function(i, answer, err)
      local _, status, want = table.unpack(cases[i], 1, 3)
      if status then
        t.eq({ answer and answer.status, answer and answer.body }, { status, want }, tostring(err))
      elseif t.fails("io", answer, err) then
        t.match(err.message, (want:gsub("%-", "%%-")))
      end
    end)
  end))
end)

test("connections that cannot be accepted are reported once a minute", function(t)
  local new_tcp, now, clock = uv.new_tcp, uv.now, uv.now()
  local reports, refuse = {}, nil
  local listener = { bind = function() return 0 end, close = function() end,
    getsockname = function() return { ip = "127.0.0.1", port = 1 } end,
    listen = function(_, _, fn)
      refuse = fn
      return 0
    end }
  uv.new_tcp, uv.now = function() return listener end, function() return clock end
  local server = http.server { handler = function() end,
    on_error = function(_, text) reports[#reports + 1] = text end }
  assert(server:listen { port = 0 })
  refuse "EMFILE"
  t.eq(reports, { "cannot accept a connection: EMFILE (0 are open)" })
  clock = clock + 59999
  refuse "EMFILE"
  t.eq(#reports, 1)
  clock = clock + 1
  refuse "EMFILE"
  refuse "EMFILE"
  t.eq(#reports, 2)
  uv.new_tcp, uv.now = new_tcp, now
  server:drain()
end)
