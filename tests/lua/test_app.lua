-- serve.init over sockets that are made up, without a model: who may ask what, how large a body may
-- be, what is counted and logged, and how a server stops. Also the small parts next to it: the log,
-- /admin, and buckets of rates.
local admin = require "serve.admin"
local async = require "lib.async"
local config = require "serve.config"
local connections = require "http.connection"
local logs = require "serve.log"
local perigee = require "perigee"
local rates = require "serve.rate"
local serve = require "serve"
local sockets = require "sockets"
local stderr = require "lib.stderr"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

if ... then return end -- test_serve runs servers under forced collection

--- Runs body(app, ask) with an application that listens; ask(head, body, kind) sends a request and
--- returns status, headers and the decoded body. lines: the access log.
local function with_app(t, settings, body)
  settings.port, settings.log = 0, false
  local app = assert(serve.new { config = config.merge(assert(config.check(settings)), nil) })
  local notes, lines = {}, {}
  app.log.note = function(_, level, text) notes[#notes + 1] = level .. ": " .. text end
  app.log.access = function(_, entry) lines[#lines + 1] = entry end
  local handled = 0
  local function answer(request, response)
    handled = handled + 1
    app.seen = { app.working, request.key and request.key.name, request.owner, request.peer }
    if app.fails then error("boom", 0) end
    request.log.prompt_tokens, request.log.completion_tokens = 30, 12
    request.log.model = "m"
    response:json(200, {})
  end
  app:route("POST", "/test/cost", answer, { cost = true })
  app:route("POST", "/test/free", answer, { auth = false })
  app:route("POST", "/test/plain", answer)
  app:route("GET", "/test/get", answer, { auth = false })
  app:route("POST", "/test/unix", answer, { unix_only = true })
  assert(app:start())
  local function ask(head, sent, kind, ip)
    local socket = sockets.new()
    socket.ip = ip or "1.2.3.4"
    app.server.open = app.server.open + 1
    local conn = connections.new(app.server, socket, kind or "tcp")
    app.server.connections[conn] = true
    if not head:find "\r\nhost:" then head = head .. "\r\nhost: localhost" end
    if type(sent) == "number" then
      socket.send(head .. ("\r\ncontent-length: %d\r\n\r\n"):format(sent))
      socket.send(("x"):rep(math.min(sent, 70000)))
    else
      socket.send(head .. ("\r\ncontent-length: %d\r\n\r\n%s"):format(#(sent or ""), sent or ""))
    end
    if socket.got == "" then -- it waits for the rest of the body
      conn:close()
      return "waits"
    end
    local status, headers, text = socket.got:match "^HTTP/1.1 (%d+)[^\n]*\n(.-\r\n)\r\n(.*)$"
    conn:close()
    return tonumber(status), headers, text ~= "" and json.decode(text) or nil
  end
  local is_over = async.is_over
  async.is_over = function() return false end -- handlers run at once
  local ok, why = xpcall(body, debug.traceback, app, ask, { notes = notes, lines = lines,
    handled = function() return handled end })
  async.is_over = is_over
  if not ok then t.fail(why) end
  if not app.draining then app:stop() end
end

local POST = "POST /test/%s HTTP/1.1"

local function status_of(...) return (...) end

test("keys, sockets and who needs them", function(t)
  with_app(t, { keys = { alice = "secret", bob = "other" } }, function(app, ask)
    local key = "\r\nauthorization: Bearer secret"
    for _, case in ipairs {
      -- route, kind of socket, key; what comes, by whom
      { "cost", "tcp", "", 401 }, { "cost", "tcp", key, 200, "alice" },
      { "cost", "unix", "", 401 }, { "cost", "unix", key, 200, "alice" },
      { "free", "tcp", "", 200 }, { "free", "unix", "", 200 },
      { "plain", "tcp", "", 401 }, { "plain", "unix", "", 401 },
      { "plain", "tcp", key, 200, "alice" },
      { "unix", "tcp", key, 403 }, { "unix", "unix", "", 200 },
      { "unix", "unix", key, 200 },
    } do
      app.seen = {}
      local status, _, body = ask(POST:format(case[1]) .. case[3], nil, case[2])
      t.eq({ status, app.seen[2] }, { case[4], case[5] }, table.concat(case, " ", 1, 2))
      if status == 403 then
        t.eq({ body.error.code, body.error.message }, { "unix_socket_only",
          "this is answered on the Unix socket only (--socket PATH)" })
      end
    end
    ask(POST:format "cost" .. key)
    t.eq(app.seen, { 1, "alice", "key alice", "1.2.3.4" })
    t.eq(app.working, 0)
  end)
  with_app(t, {}, function(app, ask)
    t.eq(status_of(ask(POST:format "cost")), 200)
    t.eq(app.seen, { 1, nil, "1.2.3.4", "1.2.3.4" })
    ask(POST:format "cost", nil, "unix")
    t.eq({ app.seen[3], app.seen[4] }, { "unix" })
    ask(POST:format "free")
    t.eq(app.seen[1], 0) -- only what costs something is work
  end)
end)

test("addresses of clients behind a proxy", function(t)
  with_app(t, { proxies = { "9.9.9.9" } }, function(app, ask)
    local said = "\r\nx-forwarded-for: 5.6.7.8"
    ask(POST:format "free" .. said, nil, nil, "9.9.9.9")
    t.eq(app.seen[4], "5.6.7.8")
    ask(POST:format "free" .. said)
    t.eq(app.seen[4], "1.2.3.4") -- anyone may say so
    t.eq({ app.trusts "9.9.9.9", app.trusts "1.2.3.4" }, { true, false })
  end)
end)

test("bodies: as large as a route needs them", function(t)
  with_app(t, { limits = { body = 4 << 20 } }, function(_, ask)
    for _, case in ipairs { { POST:format "cost", 4 << 20 }, { POST:format "free", 1 << 20 },
      { "GET /test/get HTTP/1.1", 64 << 10 }, { "GET /health HTTP/1.1", 64 << 10 } } do
      local fits = ask(case[1], case[2])
      t.ok(fits ~= 413, case[1])
      local status, _, body = ask(case[1], case[2] + 1)
      t.eq(status, 413, case[1])
      t.match(body.error.message, "larger than " .. case[2] .. " bytes")
    end
  end)
  with_app(t, { limits = { body = 100 << 10 } }, function(_, ask)
    t.eq(ask(POST:format "free", 100 << 10), "waits")
    t.eq(status_of(ask(POST:format "free", (100 << 10) + 1)), 413)
  end)
end)

test("paths and methods that are not there", function(t)
  with_app(t, {}, function(_, ask)
    local status, headers, body = ask "GET /none HTTP/1.1"
    t.eq({ status, body.error.code, body.error.message, headers:find "allow:" },
      { 404, "not_found", "there is nothing at /none" })
    status, headers, body = ask "GET /test/cost HTTP/1.1"
    t.eq({ status, body.error.code, headers:match "\nallow: ([^\r]*)", body.error.message },
      { 405, "method_not_allowed", "POST", "/test/cost takes POST, not GET" })
    status, _, body = ask("GET /" .. ("x"):rep(300) .. " HTTP/1.1")
    t.eq({ status, #body.error.message }, { 404, #"there is nothing at " + 200 })
    status, headers = ask "OPTIONS * HTTP/1.1"
    t.eq({ status, headers:match "\nallow: ([^\r]*)" },
      { 204, "GET, HEAD, POST, DELETE, OPTIONS" })
    t.eq(status_of(ask "GET /test/get HTTP/1.1\r\nhost: evil.example"), 403)
  end)
end)

test("requests are logged, counted and charged", function(t)
  with_app(t, { rate = { requests = 6, tokens = 600 }, keys = { alice = "secret" } },
    function(app, ask, seen)
    local key = "\r\nx-api-key: secret\r\nx-request-id: mine"
    local status, headers, _ = ask(POST:format "cost" .. key)
    t.eq({ status, headers:match "remaining%-requests: (%d+)",
      headers:match "remaining%-tokens: (%d+)" }, { 200, "5", "600" })
    local line = seen.lines[1]
    t.eq({ line.status, line.key, line.client_id, line.peer, line.method, line.path, line.model,
      line.prompt_tokens, line.completion_tokens, line.error, line.bytes },
      { 200, "alice", "mine", "1.2.3.4", "POST", "/test/cost", "m", 30, 12, nil, 2 })
    t.eq(line.ms, math.floor(line.ms * 1000 + 0.5) / 1000)
    _, headers = ask(POST:format "cost" .. key)
    t.match(headers, "remaining%-tokens: 55[89]") -- 42 are charged
    _, headers = ask(POST:format "plain" .. key)
    t.eq(headers:find "ratelimit", nil)
    for _ = 1, 6 do status, headers = ask(POST:format "cost" .. key) end
    t.eq({ status, headers:match "\nretry%-after: (%d+)" }, { 429, "10" })
    local text = app.metrics:text()
    for _, want in ipairs { 'requests_total{method="POST",route="/test/cost",status="200"} 6',
      'requests_total{method="POST",route="/test/cost",status="429"} 2',
      'requests_total{method="POST",route="/test/plain",status="200"} 1',
      'rejected_total{reason="rate_limit_exceeded"} 2' } do
      t.ok(text:find(want, 1, true), want)
    end
    t.eq(tonumber(text:match "request_duration_seconds_count ?%S* (%d+)"
      or text:match "duration_seconds_count (%d+)"), 8)
    ask "nonsense"
    line = seen.lines[#seen.lines]
    t.eq({ line.status, line.path, line.key, line.peer }, { 400, nil, nil, "1.2.3.4" })
    t.ok(app.metrics:text():find('requests_total{method="other",route="none",status="400"} 1', 1,
      true))
  end)
end)

test("a client that leaves is logged", function(t)
  with_app(t, {}, function(app, _, seen)
    local socket, resume = sockets.new(), nil
    app:route("GET", "/test/wait", function(_, response)
      async.await(function(go_on) resume = go_on end)
      if not response.finished then response:send(200) end
    end, { auth = false })
    app.server.open = app.server.open + 1
    local conn = connections.new(app.server, socket, "unix")
    app.server.connections[conn] = true
    socket.send "GET /test/wait HTTP/1.1\r\nhost: localhost\r\n\r\n"
    conn:close()
    resume()
    local line = seen.lines[1]
    t.eq({ line.error, line.status, line.path }, { "the client disconnected", 200, "/test/wait" })
  end)
end)

test("a handler that fails is noted and is no longer working", function(t)
  with_app(t, {}, function(app, ask, seen)
    app.fails = true
    local status, _, body = ask(POST:format "cost")
    t.eq({ status, app.working, body.error.type, #seen.lines, seen.lines[1].status },
      { 500, 0, "server_error", 1, 500 })
    t.match(seen.notes[1], "^error: boom")
  end)
end)

test("while it stops, a server answers but takes no work", function(t)
  with_app(t, { drain_s = 7 }, function(app, ask, seen)
    t.eq(app:state(), "ok")
    app.draining = true
    t.eq(app:state(), "draining")
    local status, headers, body = ask(POST:format "cost")
    t.eq({ status, body.error.code, body.error.message, headers:match "\nretry%-after: (%d+)" },
      { 503, "draining", "this server is shutting down", "7" })
    t.eq({ status_of(ask(POST:format "free")), seen.handled() }, { 200, 1 })
    app.draining = false
  end)
end)

test("connections that the limit of open files leaves room for", function(t)
  local raise = perigee.sys.raise_files
  local files
  perigee.sys.raise_files = function() return files end
  for _, case in ipairs { { 964, 800, 800 }, { 964, 801, 800 }, { 70, 100, 8 }, { nil, 100, 100 },
    { 73, 8, 8 } } do
    files = case[1]
    with_app(t, { limits = { connections = case[2] } }, function(app)
      t.eq(app.server.limits.connections, case[3])
    end)
  end
  local notes = {}
  local app = assert(serve.new { config = config.merge(assert(config.check { port = 0, log = false,
    limits = { connections = 801 } }), nil) })
  files = 964
  app.log.note = function(_, level, text) notes[#notes + 1] = level .. ": " .. text end
  assert(app:start())
  t.eq(notes, { "warning: the limit of open files is 964: at most 800 connections, not 801" })
  app:stop()
  perigee.sys.raise_files = raise
end)

test("sequences of one key", function(t)
  for _, case in ipairs { { {}, 64, nil }, { { a = "x" }, 64, nil },
    { { a = "x", b = "y" }, 64, 48 }, { { a = "x", b = "y" }, 1, 1 },
    { { a = "x", b = "y" }, 64, 5, 5 } } do
    with_app(t, { keys = next(case[1]) and case[1] or nil, sequences_per_key = case[4] },
      function(app)
      t.eq(app.models.key_limit(case[2]), case[3])
    end)
  end
end)

-- ---- the parts next to it -----------------------------------------------------------------------

test("/admin: what was changed, or why not", function(t)
  local handlers, result, why = {}, nil, nil
  local app = { route = function(_, method, path, handler, options)
    t.eq(options.unix_only, true)
    handlers[method .. " " .. path] = handler
  end, reload = function() return result, why end,
    scripts = { status = function() return { version = 3 } end,
      rollback = function() return result, why end } }
  admin.routes(app)
  local function ask(name)
    local got
    handlers[name](nil, { json = function(_, code, value) got = { code, value } end })
    return got
  end
  t.eq(ask "GET /admin/scripts", { 200, { version = 3 } })
  for _, name in ipairs { "POST /admin/reload", "POST /admin/rollback" } do
    result, why = nil, "broken"
    t.eq(ask(name), { 409, { version = 3, ok = false, error = "broken" } })
    result, why = { changed = { "a" }, restart = {} }, nil
    t.eq(ask(name), { 200, { version = 3, ok = true, changed = json.array { "a" },
      restart = json.array {} } })
    result = { version = 4 }
    t.eq(ask(name), { 200, { version = 3, ok = true } })
  end
end)

test("times of the log, and what also goes to the terminal", function(t)
  local clock, write = uv.gettimeofday, stderr.write
  uv.gettimeofday = function() return 1000000000, 250000 end
  local said = {}
  stderr.write = function(...) said[#said + 1] = table.concat { ... } end
  t.eq({ logs.now(), logs.iso(logs.now()) }, { 1000000000.25, "2001-09-09T01:46:40.250Z" })
  local path = os.tmpname()
  os.remove(path)
  local log = assert(logs.open(path))
  log:note("info", "a")
  log:note("warning", "b\n  c", { z = 1, y = 2 })
  log:note("error", "d")
  t.eq(said, { "perigee: b; c\n", "perigee: d\n" })
  t.eq(uv.fs_stat(path).mode & 511 & ~416, 0) -- at most 0640
  log:close(function() end)
  uv.run()
  stderr.write, uv.gettimeofday = write, clock
  local lines = {}
  for line in io.lines(path) do lines[#lines + 1] = json.decode(line) end
  os.remove(path)
  t.eq({ #lines, lines[1].time, lines[1].level, lines[2].text, lines[2].z }, { 3,
    "2001-09-09T01:46:40.250Z", "info", "b\n  c", 1 })
  said = {}
  stderr.write = function(...) said[#said + 1] = table.concat { ... } end
  log = logs.open(nil)
  log:note("error", "once")
  stderr.write = write
  t.eq({ #said, json.decode(said[1]).text }, { 1, "once" })
end)

test("lines of the log that cannot be written", function(t)
  local fs_write, write = uv.fs_write, stderr.write
  local said, written, done = {}, {}, nil
  stderr.write = function(...) said[#said + 1] = table.concat { ... } end
  uv.fs_write = function(_, text, _, callback) written[#written + 1], done = text, callback end
  local path = os.tmpname()
  local log = assert(logs.open(path))
  log:access { time = 1, id = "a" }
  t.eq({ #written, log.waiting }, { 1, 0 })
  local LIMIT = 4 << 20 -- bytes that wait
  local empty = #'{"time":"1970-01-01T00:00:01.000Z","id":""}'
  local function line(bytes) log:access { time = 1, id = ("x"):rep(bytes - empty) } end
  line(1000)
  t.eq(log.waiting, 1001)
  line(LIMIT - 1001) -- exactly
  t.eq({ #log.lines, log.dropped }, { 2, 0 })
  line(empty)
  line(empty)
  t.eq({ #log.lines, log.dropped, log.waiting }, { 2, 2, LIMIT + 1 })
  done "EIO"
  t.eq({ said, #written }, { { "perigee: log: EIO\n" }, 2 })
  done "EIO" -- reported once
  t.eq({ #said, log.busy }, { 1, false })
  line(empty)
  t.eq(written[3]:match "^[^\n]*", '{"level":"warning","text":"2 log lines were dropped"}')
  done()
  line(empty)
  t.eq(select(2, written[4]:gsub("\n", "")), 1)
  done()
  assert(log:reopen())
  line(empty)
  done "EIO" -- another file, another report
  t.eq(#said, 2)
  uv.fs_write, stderr.write = fs_write, write
  log:close(function() end)
  uv.run()
  os.remove(path)
end)

test("rates: full buckets are removed when there are many", function(t)
  local now = 0
  local rate = rates.new(function() return { requests = 6 } end, function() return now end)
  for i = 1, 1024 do rate:take { name = "a" .. i } end
  t.eq(rate.count, 1024)
  now = 10 -- all are full again
  rate:take { name = "b" }
  t.eq({ rate.count, rate.kept }, { 1, 0 })
  for i = 1, 1023 do rate:take { name = "c" .. i } end
  t.eq(rate.count, 1024)
  now = 19.9 -- none is
  rate:take { name = "d" }
  t.eq({ rate.count, rate.kept }, { 1025, 1024 })
  now = 100
  for i = 1, 1024 + 2 * 1024 - 1025 do rate:take { name = "e" .. i } end
  t.eq(rate.count, 3072) -- it pays to look again when there are three times as many
  rate:take { name = "f" }
  t.eq({ rate.count, rate.kept }, { 2048, 2047 })
  local real = rates.new(function() return { requests = 6 } end)
  t.ok(real:take { name = "a" })
  t.near(real.clock(), uv.hrtime() * 1e-9, 5)
end)
