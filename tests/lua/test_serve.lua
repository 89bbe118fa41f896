-- The application over real sockets: its routes, access control, loading models and shutdown.
local async = require "lib.async"
local config = require "serve.config"
local harness = require "harness"
local http = require "http"
local perigee = require "perigee"
local pictures = require "picture_files"
local serve = require "serve"
local sites = require "sites"
local uv = require "luv"
local json = perigee.json

local forced = ... -- forced collection makes servers slow: two tests are enough
local in_forced = {
  ["health: 503 while loading, then 200; requests meanwhile get Retry-After"] = true,
  ["keys, in the log by name only"] = true }

local function test(name, body)
  if not forced or in_forced[name] then harness.test(name, body) end
end

local MOONLET = "examples/moonlet"

--- Runs body(app, ask, base) in a task with a server; ask(method, path, options) returns the
--- response and its JSON.
local function with_server(t, settings, body)
  settings.port, settings.log = settings.port or 0, settings.log or false
  settings.cache_bytes = settings.cache_bytes or 1 << 20
  settings.sequences, settings.context = settings.sequences or 4, settings.context or 1024
  local list = settings.list or { { name = "moonlet", path = MOONLET } }
  local held = settings.held
  settings.list, settings.held = nil, nil
  local merged = config.merge(assert(config.check(settings)), nil)
  local restore = sites.patient(forced)
  local app = assert(serve.new { config = merged, models = list })
  app.models.turn = held -- as if another model were loading
  local places = assert(app:start())
  local function ask(method, path, o)
    o = o or {}
    local given = { socket = o.socket, method = method, headers = o.headers, body = o.body,
      timeout_ms = harness.LIMIT_MS }
    if o.socket then given.target = path else given.url = places[1].address .. path end
    local answer, why = http.request(given)
    if not answer then return error(tostring(why), 0) end
    return answer, answer.headers["content-type"] == "application/json" and answer.body ~= ""
      and json.decode(answer.body) or nil
  end
  async.run(function()
    local ok, why = xpcall(body, debug.traceback, app, ask, places)
    if not ok then t.fail(why) end
    if not app.draining then app:stop() end
    restore()
  end)
  return app
end

local function wait_ready(app)
  while app:state() == "loading" do async.sleep(5) end
end

local function chat(prompt, more)
  local body = { messages = { { role = "user", content = prompt } } }
  for k, v in pairs(more or {}) do body[k] = v end
  return json.encode(body)
end

test("health: 503 while loading, then 200; requests meanwhile get Retry-After", function(t)
  local held = async.signal()
  with_server(t, { held = held }, function(app, ask)
    local answer, body = ask("GET", "/health")
    t.eq(answer.status, 503)
    t.eq(body.status, "loading")
    t.eq(body.models.moonlet, "loading")
    t.ok(answer.headers["retry-after"])
    answer, body = ask("POST", "/v1/chat/completions", { body = chat "Hello!" })
    t.eq(answer.status, 503)
    t.eq(body.error.code, "model_loading")
    t.eq(answer.headers["retry-after"], "5")
    app.models.turn = nil
    held:set()
    wait_ready(app)
    answer, body = ask("GET", "/health")
    t.eq(answer.status, 200)
    t.eq(body.status, "ok")
    t.eq(ask("HEAD", "/health").status, 200)
  end)
end)

test("models, status and metrics", function(t)
  with_server(t, { policy = "fifo" }, function(app, ask)
    wait_ready(app)
    local _, body = ask("GET", "/v1/models")
    t.eq(body.object, "list")
    t.eq(#body.data, 1)
    t.eq(body.data[1].id, "moonlet")
    t.eq(body.data[1].object, "model")
    t.eq(body.data[1].max_model_len, 1024)
    t.ok(math.abs(body.data[1].created - os.time()) < 100)
    _, body = ask("GET", "/v1/models/moonlet")
    t.eq(body.id, "moonlet")
    local answer
    answer, body = ask("GET", "/v1/models/no/such")
    t.eq(answer.status, 404)
    t.eq(body.error.code, "model_not_found")
    t.eq(body.error.message, "The model 'no/such' does not exist (there are: moonlet)")
    answer, body = ask("POST", "/v1/chat/completions",
      { body = chat("Hello!", { temperature = 0 }) })
    t.eq(answer.status, 200, answer.body)
    t.eq(body.choices[1].message.content, "Hello! I am Moonlet. How can I help you?")
    _, body = ask("GET", "/v1/status")
    t.eq(body.status, "ok")
    t.eq(body.version, perigee.version)
    t.eq(body.draining, false)
    t.eq(body.policy, "fifo")
    local m = body.models[1]
    t.eq({ m.id, m.state, m.context, m.chat }, { "moonlet", "ready", 1024, true })
    t.eq(m.batch.finished, 1)
    t.eq(m.batch.running, 0)
    t.ok(m.batch.decode_tokens > 5, m.batch.decode_tokens)
    t.ok(m.memory.weights > 1e6 and m.memory.caches > 0, m.memory.weights)
    answer = ask("GET", "/metrics")
    t.match(answer.headers["content-type"], "^text/plain; version=0.0.4")
    for _, line in ipairs { 'perigee_decode_tokens_total{model="moonlet"} %d+',
      'perigee_sequences_running{model="moonlet"} 0',
      'perigee_model_state{model="moonlet",state="ready"} 1',
      'perigee_memory_bytes{model="moonlet",what="weights"} %d+',
      'perigee_prefix_cache_lookups_total{model="moonlet"} 1',
      'perigee_time_to_first_token_seconds_count{model="moonlet"} 1',
      'perigee_http_requests_total{method="POST",route="/v1/chat/completions",status="200"} 1' } do
      t.match(answer.body, "\n" .. line .. "\n")
    end
  end)
end)

test("unknown paths and methods, request ids, headers of the page", function(t)
  with_server(t, {}, function(app, ask)
    wait_ready(app)
    local answer, body = ask("GET", "/nothing/here")
    t.eq(answer.status, 404)
    t.eq(body.error.code, "not_found")
    answer, body = ask("POST", "/health")
    t.eq(answer.status, 405)
    t.eq(answer.headers.allow, "GET, HEAD")
    t.eq(body.error.code, "method_not_allowed")
    t.eq(ask("GET", "/health",
      { headers = { ["x-request-id"] = "mine-7" } }).headers["x-request-id"], "mine-7")
    t.ok(ask("GET", "/health").headers["x-request-id"])
    answer = ask("GET", "/")
    if perigee.sys.script "ui/web/index.html" then
      t.eq(answer.status, 200)
      t.match(answer.headers["content-security-policy"], "default%-src 'none'")
      t.match(answer.headers["content-security-policy"], "connect%-src 'self'")
      t.eq(answer.headers["x-content-type-options"], "nosniff")
      t.ok(not answer.body:find("{{", 1, true), "a part of the page was not put in")
      for _, way in ipairs { "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
        "DOMParser", "createContextualFragment", "eval(", "new Function" } do
        t.ok(not answer.body:find(way, 1, true), way .. " could make HTML or code of a text")
      end
    else
      t.eq(answer.status, 404)
    end
    t.match(ask("GET", "/favicon.ico").headers["content-type"], "^image/svg")
  end)
end)

test("one large string does not make the collector walk the whole heap at once", function(t)
  with_server(t, {}, function() -- before the loop runs: then the harness sets the collector again
    local heap, swept = {}, nil
    for i = 1, 300000 do heap[i] = {} end -- a cycle is 600,000 units of work
    collectgarbage() -- the next cycle begins when the heap has doubled
    setmetatable({}, { __gc = function() swept = true end })
    local more = 4 << 20 -- bytes beyond that; at the default speed, 26 million units
    local _ = ("x"):rep(collectgarbage "count" * 1024 // 1 + more)
    t.eq({ swept, #heap }, { nil, 300000 })
  end)
end)

test("errors below /v1/messages have its dialect, at every stage", function(t)
  with_server(t, { keys = { alice = "sesame" }, limits = { body = 1000 } }, function(app, ask)
    wait_ready(app)
    local key = { ["x-api-key"] = "sesame" }
    for _, case in ipairs {
      { 401, "authentication_error", "POST", "/v1/messages", {} },
      { 404, "not_found_error", "POST", "/v1/messages/batches", { headers = key } },
      { 405, "invalid_request_error", "GET", "/v1/messages", { headers = key } },
      { 413, "request_too_large", "POST", "/v1/messages?beta=true",
        { headers = key, body = ("x"):rep(1001) } } } do
      local answer, body = ask(case[3], case[4], case[5])
      t.eq({ answer.status, body.type, body.error.type }, { case[1], "error", case[2] })
    end
    local answer, body = ask("POST", "/v1/chat/completions", { headers = key,
      body = ("x"):rep(1001) })
    t.eq({ answer.status, body.error.param }, { 413, json.null })
    for _, method in ipairs { "GET", "HEAD" } do t.eq(ask(method, "/api/hello").status, 200) end
  end)
end)

test("keys, in the log by name only", function(t)
  local path = os.tmpname()
  local server = with_server(t, { keys = { alice = "sesame" }, log = path }, function(app, ask)
    wait_ready(app)
    local answer, body = ask("GET", "/v1/models")
    t.eq(answer.status, 401)
    t.eq(body.error.code, "missing_api_key")
    t.eq(body.error.type, "authentication_error")
    answer, body = ask("GET", "/v1/models", { headers = { authorization = "Bearer wrong" } })
    t.eq(answer.status, 401)
    t.eq(body.error.code, "invalid_api_key")
    t.eq(ask("GET", "/v1/models", { headers = { authorization = "Bearer sesame" } }).status, 200)
    t.eq(ask("GET", "/metrics", { headers = { ["x-api-key"] = "sesame" } }).status, 200)
    t.eq(ask("GET", "/metrics").status, 401)
    t.eq(ask("GET", "/health").status, 200)
    answer = ask("POST", "/v1/chat/completions", { headers = { authorization = "Bearer sesame" },
      body = chat("Hello!", { temperature = 0 }) })
    t.eq(answer.status, 200)
  end)
  server.on_stopped = t.expect(function()
    local f = assert(io.open(path))
    local log = f:read "a"
    f:close()
    os.remove(path)
    t.eq(log:find("sesame", 1, true), nil)
    local entry
    for line in log:gmatch "[^\n]+" do
      local e = assert(json.decode(line))
      if e.path == "/v1/chat/completions" then entry = e end
    end
    t.ok(entry, log)
    t.eq({ entry.key, entry.method, entry.status, entry.model, entry.peer },
      { "alice", "POST", 200, "moonlet", "127.0.0.1" })
    t.ok(entry.prompt_tokens > 0 and entry.completion_tokens > 0 and entry.cached_tokens >= 0,
      "tokens")
    t.ok(entry.ttft_ms > 0 and entry.ms >= entry.ttft_ms, "times")
    t.match(entry.time, "^%d+%-%d%d%-%d%dT%d%d:%d%d:%d%d%.%d%d%dZ$")
  end)
end)

test("disconnected clients and failed handlers are logged, and their tokens are charged",
  function(t)
  local path = os.tmpname()
  local server = with_server(t, { rate = { tokens = 12 }, log = path }, function(app, ask, places)
    wait_ready(app)
    app.log.note = function() end -- an error is expected
    app:route("GET", "/broken", function() error("a fault of ours", 0) end)
    t.eq(ask("GET", "/broken").status, 500)
    local ended, access = 0, app.log.access
    app.log.access = function(...)
      ended = ended + 1
      return access(...)
    end
    local function post(id, stop)
      local client, heard, before = uv.new_tcp(), 0, ended
      local body = chat("Hello!", { ignore_eos = true, max_tokens = 900, stream = stop == nil })
      client:connect("127.0.0.1", places[1].port, function()
        client:write(("POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"
            .. "x-request-id: %s\r\ncontent-length: %d\r\n\r\n%s")
          :format(id, #body, body))
        if stop then return client:shutdown() end
        client:read_start(function(_, bytes) heard = heard + #(bytes or "") end)
      end)
      while not stop and heard < 4096 do async.sleep(1) end -- about a dozen tokens
      if not stop then client:close() end
      while ended == before do async.sleep(1) end
      if stop then client:close() end
    end
    post "left"
    t.eq(ask("POST", "/v1/chat/completions", { body = chat "Hello!" }).status, 429)
    app.config.rate = nil
    post("closed", true)
  end)
  server.on_stopped = t.expect(function()
    local lines = {}
    for line in io.lines(path) do
      local e = assert(json.decode(line))
      if e.status then lines[e.path == "/broken" and "broken" or e.client_id or e.id] = e end
    end
    os.remove(path)
    t.eq(lines.broken and lines.broken.status, 500)
    t.eq({ lines.left.status, lines.left.error, lines.left.model },
      { 200, "the client disconnected", "moonlet" })
    t.ok(lines.left.completion_tokens > 0 and lines.left.completion_tokens < 900,
      lines.left.completion_tokens)
    t.eq({ lines.closed.status, lines.closed.error }, { 499, "the client disconnected" })
  end)
end)

test("temporary refusals have Retry-After; quoted text becomes UTF-8", function(t)
  local list = { { name = "a", path = MOONLET },
    { name = "b", path = MOONLET, options = { load = false } } }
  with_server(t, { list = list },
    function(app, ask)
      wait_ready(app)
      local given = json.encode { model = "b", prompt = "x" }
      local answer, body = ask("POST", "/v1/completions", { body = given })
      t.eq({ answer.status, body.error.code, answer.headers["retry-after"] },
        { 503, "model_not_loaded", "1" })
      answer, body = ask("POST", "/v1/chat/completions",
        { body = json.encode { tools = { { type = "a" .. ("é"):rep(40) } },
        messages = { { role = "user", content = "x" } } } })
      t.eq({ answer.status, body.error.param }, { 400, "tools[0].type" })
      answer = ask("POST", "/v1/completions",
        { body = "{}", headers = { origin = "http://\xE9.org" } })
      t.eq(answer.status, 403)
      answer, body = ask("POST", "/tokenize",
        { body = '{"content": "x"}', headers = { ["content-encoding"] = "br" } })
      t.eq(answer.status, 415)
      t.match(body.error.message, "gzip")
    end)
end)

test("rate limits: 429 with Retry-After and the numbers", function(t)
  local rate = { requests = 2, keys = { bob = { requests = 100, tokens = 10 } } }
  with_server(t, { keys = { alice = "a", bob = "b" }, rate = rate },
    function(app, ask)
      wait_ready(app)
      local function post(key)
        return ask("POST", "/v1/chat/completions", { headers = { ["x-api-key"] = key },
          body = chat("Hello!", { max_tokens = 4 }) })
      end
      local answer = post "a"
      t.eq(answer.status, 200)
      t.eq(answer.headers["x-ratelimit-limit-requests"], "2")
      t.eq(answer.headers["x-ratelimit-remaining-requests"], "1")
      t.eq(post("a").status, 200)
      local body
      answer, body = post "a"
      t.eq(answer.status, 429)
      t.eq(body.error.code, "rate_limit_exceeded")
      local after = tonumber(answer.headers["retry-after"])
      t.ok(after > 0 and after <= 30, answer.headers["retry-after"]) -- one request every 30 seconds
      -- costs nothing
      t.eq(ask("GET", "/v1/models", { headers = { ["x-api-key"] = "a" } }).status, 200)
      t.eq(post("b").status, 200)
      answer, body = post "b" -- its first request used more than 10 tokens, prompt included
      t.eq(answer.status, 429)
      t.match(body.error.message, "10 tokens per minute")
    end)
end)

test("Host, origins and CORS", function(t)
  with_server(t, { cors = { origins = { "https://app.example.org" } } }, function(app, ask)
    wait_ready(app)
    local answer, body = ask("GET", "/health", { headers = { host = "evil.example.org" } })
    t.eq(answer.status, 403)
    t.eq(body.error.code, "host_not_allowed")
    answer = ask("POST", "/v1/chat/completions",
      { headers = { origin = "https://evil.example.org" }, body = chat "x" })
    t.eq(answer.status, 403)
    t.eq(answer.headers["access-control-allow-origin"], nil)
    answer = ask("OPTIONS", "/v1/chat/completions",
      { headers = { origin = "https://app.example.org",
        ["access-control-request-method"] = "POST" } })
    t.eq(answer.status, 204)
    t.eq(answer.headers["access-control-allow-origin"], "https://app.example.org")
    t.match(answer.headers["access-control-allow-headers"], "authorization")
    answer = ask("OPTIONS", "/v1/chat/completions",
      { headers = { origin = "https://evil.example.org",
        ["access-control-request-method"] = "POST" } })
    t.eq(answer.status, 405)
    answer = ask("POST", "/v1/chat/completions", { headers = { origin = "https://app.example.org" },
      body = chat("Hello!", { max_tokens = 2 }) })
    t.eq(answer.status, 200)
    t.eq(answer.headers["access-control-allow-origin"], "https://app.example.org")
    answer = ask("GET", "/nothing", { headers = { origin = "https://app.example.org" } })
    t.eq(answer.headers["access-control-allow-origin"], "https://app.example.org")
  end)
end)

local function socket_path()
  return ("%s/perigee-%d-%d.sock"):format(uv.os_tmpdir(), uv.os_getpid(), uv.hrtime())
end

test("several models: by name, unloaded and loaded again on the Unix socket only", function(t)
  local socket = socket_path()
  local list = { { name = "a", path = MOONLET }, { name = "b", path = MOONLET } }
  with_server(t, { socket = socket, host = "127.0.0.1", list = list },
    function(app, ask, places)
      t.eq(places[2].address, socket)
      wait_ready(app)
      local function said(model)
        local given = chat("Hello!", { temperature = 0, model = model })
        local answer, body = ask("POST", "/v1/chat/completions", { body = given })
        return answer.status, body.model or body.error.code
      end
      t.eq({ said "a" }, { 200, "a" })
      t.eq({ said "b" }, { 200, "b" })
      t.eq({ said(nil) }, { 200, "a" })
      t.eq({ said "c" }, { 404, "model_not_found" })
      local answer, body = ask("POST", "/admin/models/b/unload")
      t.eq(answer.status, 403)
      t.eq(body.error.code, "unix_socket_only")
      answer, body = ask("POST", "/admin/models/b/unload", { socket = socket })
      t.eq(answer.status, 200)
      t.eq(body.state, "unloaded")
      t.eq({ said "b" }, { 503, "model_not_loaded" })
      t.eq({ said "a" }, { 200, "a" })
      t.eq(json.decode(ask("GET", "/v1/models").body).data[2].state, "unloaded")
      answer, body = ask("POST", "/admin/models/b/load", { socket = socket })
      t.eq(answer.status, 200, answer.body)
      t.eq(body.state, "ready")
      t.eq({ said "b" }, { 200, "b" })
      t.eq(ask("POST", "/admin/models/c/load", { socket = socket }).status, 404)
    end)
end)

test("pictures: modalities, metrics, unloaded and loaded again, limits", function(t)
  local socket = os.tmpname()
  os.remove(socket)
  local list = { { name = "a", path = MOONLET }, { name = "plain", path = "tests/golden/llama" } }
  with_server(t, { list = list, socket = socket, port = 0, limits = { pictures = 1 } },
    function(app, ask)
      wait_ready(app)
      local function look(model)
        local part = { type = "image_url", image_url = {
          url = pictures.uri(pictures.read(MOONLET .. "/images/red_circle.png")) } }
        return ask("POST", "/v1/chat/completions", { body = json.encode { model = model,
          messages = { { role = "user", content = { part, "What is in the picture?" } } } } })
      end
      local function metric(name)
        local all = ask("GET", "/metrics").body
        return tonumber(all:match("\n" .. name:gsub("[%-{}]", "%%%0") .. " ([^\n]+)"))
      end
      local _, models = ask("GET", "/v1/models")
      t.eq(models.data[1].input_modalities, { "text", "image", "video" })
      t.eq(models.data[2].input_modalities, { "text" })
      for round = 1, 2 do
        for _ = 1, 2 do
          local answer, body = look "a"
          t.eq({ answer.status, body.choices and body.choices[1].message.content },
            { 200, "I see a red circle." })
        end
        t.eq(metric 'perigee_pictures_total{kind="image",model="a"}', 2)
        t.eq(metric 'perigee_picture_cache_hits_total{model="a"}', 1)
        t.eq(metric 'perigee_picture_cache_misses_total{model="a"}', 1)
        t.ok(metric 'perigee_vision_seconds_total{model="a"}' > 0)
        t.eq(metric "perigee_picture_decoder_restarts_total", 0)
        if round == 1 then
          t.eq(ask("POST", "/admin/models/a/unload", { socket = socket }).status, 200)
          t.eq(app.models.by_name.a.pictures, nil)
          t.eq((look "a").status, 503)
          t.eq(ask("POST", "/admin/models/a/load", { socket = socket }).status, 200)
        end
      end
      local _, status = ask("GET", "/v1/status")
      t.eq({ status.models[1].pictures, status.models[2].pictures }, { true, false })
      local refused, body = look "plain"
      t.eq({ refused.status, body.error.param }, { 400, "messages[0].content[0].image_url" })
      t.match(body.error.message, "the model 'plain' takes no pictures")
    end)
end)

test("unloading waits for running sequences", function(t)
  local socket = socket_path()
  with_server(t,
    { socket = socket, drain_s = harness.LIMIT_MS / 1000,
      list = { { name = "a", path = MOONLET }, { name = "b", path = MOONLET } } },
    function(app)
      wait_ready(app)
      local answers = {}
      local function post(path, body)
        return http.request { socket = socket, target = path, method = "POST", body = body,
          timeout_ms = harness.LIMIT_MS }
      end
      async.all {
        function()
          answers.chat = post("/v1/chat/completions",
            chat("Count.", { model = "b", max_tokens = 120, ignore_eos = true }))
        end,
        function()
          while app.models:find("b").batch.alive == 0 do async.sleep(1) end
          answers.unload = post("/admin/models/b/unload", "")
        end,
      }
      t.eq(answers.unload.status, 200)
      t.eq(answers.chat.status, 200)
      t.eq(json.decode(answers.chat.body).usage.completion_tokens, 120)
    end)
end)

test("a memory budget that is too small is refused with both numbers", function(t)
  local list = { { name = "a", path = MOONLET }, { name = "b", path = "/nowhere" } }
  with_server(t, { memory = 2 << 20, list = list }, function(app, ask)
    wait_ready(app)
    t.eq(app:state(), "failed")
    local entry = app.models:list()[1]
    t.eq(entry.state, "failed")
    t.match(entry.error,
      "not enough memory: [%d.]+ MiB are needed %(.*%), but 2.0 MiB are the budget")
    t.match(app.models:list()[2].error, "/nowhere")
    local answer = ask("GET", "/health")
    t.eq(answer.status, 503)
  end)
end)

test("a memory budget is shared by the caches of all models", function(t)
  with_server(t, { memory = 40 << 20, sequences = 8, context = 8192,
    list = { { name = "a", path = MOONLET }, { name = "b", path = MOONLET } } }, function(app)
    wait_ready(app)
    local sum = 0
    for _, entry in ipairs(app.models:list()) do
      t.eq(entry.state, "ready", entry.error)
      sum = sum + entry.memory.weights + entry.memory.caches + entry.memory.activations
    end
    t.ok(sum <= 40 << 20 and sum > 30 << 20, sum)
    local a, b = app.models:list()[1].memory.tokens, app.models:list()[2].memory.tokens
    t.ok(math.abs(a - b) <= 64, a .. " and " .. b)
  end)
end)

test("stopping: new work is refused, running requests finish", function(t)
  local server = with_server(t, {}, function(app, ask)
    wait_ready(app)
    local long
    async.all {
      function()
        local body = chat("Count.", { max_tokens = 80, ignore_eos = true })
        long = select(2, ask("POST", "/v1/chat/completions", { body = body }))
      end,
      function()
        while app.working == 0 do async.sleep(1) end
        app:stop()
        local answer, body = ask("POST", "/v1/chat/completions", { body = chat "Hello!" })
        t.eq(answer.status, 503)
        t.eq(body.error.code, "draining")
        t.ok(answer.headers["retry-after"])
        answer, body = ask("GET", "/health")
        t.eq(answer.status, 503)
        t.eq(body.status, "draining")
      end,
    }
    t.eq(long.usage.completion_tokens, 80)
  end)
  server.on_stopped = t.expect(function() end)
end)

test("stopping does not wait for scripts that sleep", function(t)
  local site = sites.folder { ["hooks/slow.lua"] = [[
    local perigee = require "perigee"
    perigee.every(0.01, function() perigee.count "ticks" perigee.sleep(3600) end)
    return { request = function(req) if req.user == "late" then perigee.sleep(3600) end end,
      done = function() perigee.sleep(3600) end }]] }
  local app = with_server(t, { site = site, drain_s = 0.1 }, function(app, ask)
    wait_ready(app)
    local body = json.encode { messages = { { role = "user", content = "Hello!" } }, max_tokens = 2,
      user = "late" }
    async.run(function() pcall(ask, "POST", "/v1/chat/completions", { body = body }) end)
    t.eq(ask("POST", "/v1/chat/completions", { body = chat("Hello!", { max_tokens = 2 }) }).status,
      200)
    while app.working == 0 or not app.metrics:text():find("perigee_script_ticks", 1, true) do
      async.sleep(5)
    end
  end)
  app.on_stopped = t.expect(function() sites.remove(site) end)
end)

test("stopping twice ends running requests", function(t)
  local server = with_server(t, {}, function(app, ask)
    wait_ready(app)
    async.all {
      function()
        local ok = pcall(ask, "POST", "/v1/chat/completions",
          { body = chat("Count.", { max_tokens = 1000, ignore_eos = true }) })
        t.eq(ok, false)
      end,
      function()
        while app.working == 0 do async.sleep(1) end
        app:stop()
        app:stop()
      end,
    }
  end)
  server.on_stopped = t.expect(function() end)
end)

test("reloading: live keys change, the others are named, a bad file changes nothing", function(t)
  local path = os.tmpname()
  local function write(content)
    local f = assert(io.open(path, "w"))
    f:write(content)
    f:close()
  end
  write [[return { keys = { a = 'one' }, port = 0, log = false, cache_bytes = 0, sequences = 2,
    context = 256 }]]
  local app = assert(serve.new { config = config.merge(assert(config.read(path)), nil), file = path,
    models = { { name = "moonlet", path = MOONLET } } })
  local places = assert(app:start())
  async.run(function()
    wait_ready(app)
    local function status(key)
      return http.request { url = places[1].address .. "/v1/models",
        headers = { ["x-api-key"] = key } }.status
    end
    t.eq(status "one", 200)
    write [[return { keys = { a = 'two' }, port = 0, log = false, cache_bytes = 0, sequences = 3,
      context = 256, models = { x = 'y' } }]] -- models of the command line take precedence
    t.eq(app:reload(), { changed = { "keys" }, restart = { "sequences" } })
    t.eq(status "one", 401)
    t.eq(status "two", 200)
    write "return { keys = { a = 'three' }, default = 'other' }"
    t.eq({ app:reload() }, { nil, "default: there is no model 'other'" })
    write "return { keys = { a = 'three' }, aliases = { ['gpt-*'] = 'other' } }"
    t.eq({ app:reload() },
      { nil, "aliases: 'gpt-*' stands for 'other', but there is no such model" })
    write [[return { keys = { a = 'two' }, port = 0, log = false, cache_bytes = 0, context = 256,
      aliases = { ['gpt-*'] = 'moonlet' } }]]
    t.eq(app:reload().changed, { "aliases" })
    t.eq(http.request({ url = places[1].address .. "/v1/models/gpt-9",
      headers = { ["x-api-key"] = "two" } }).body:match '"id":"([^"]*)"', "moonlet")
    write "return { keys = { a = 'three' }, prot = 0 }"
    local ok, why = app:reload()
    t.eq(ok, nil)
    t.match(why, "unknown key 'prot'")
    t.eq(status "two", 200)
    os.remove(path)
    app:stop()
  end)
end)

test("reloading: an unknown policy keeps the current one, and the status shows it", function(t)
  local path = os.tmpname()
  local function write(content)
    local f = assert(io.open(path, "w"))
    f:write(content)
    f:close()
  end
  local rest = "port = 0, log = false, cache_bytes = 0, sequences = 2, context = 256, "
    .. "watch = false }"
  write("return { policy = 'lanes', " .. rest)
  local app = assert(serve.new { config = config.merge(assert(config.read(path)), nil), file = path,
    models = { { name = "moonlet", path = MOONLET } } })
  local places = assert(app:start())
  async.run(function()
    wait_ready(app)
    local function status()
      return json.decode(http.request { url = places[1].address .. "/v1/status" }.body)
    end
    t.eq(status().policy, "lanes")
    t.eq(status().scripts.version, 1)
    write("return { policy = 'laness', " .. rest)
    local ok, why = app:reload()
    t.eq(ok, nil)
    t.match(tostring(why), "laness")
    t.eq(status().policy, "lanes")
    t.eq(status().scripts.stale, true)
    t.match(status().scripts.error, "laness")
    write("return { policy = 'fair', " .. rest)
    local done
    done, why = app:reload()
    t.eq(done, { changed = { "policy" }, restart = {} }, tostring(why))
    t.eq(status().policy, "fair")
    t.eq(status().scripts.version, 2)
    t.eq(status().scripts.stale, false)
    write("for i = 1, 1e9 do i = i + 1 end return { policy = 'lanes', " .. rest)
    ok, why = app:reload()
    t.eq(ok, nil)
    t.match(tostring(why), "deadline exceeded")
    t.eq(status().policy, "fair")
    os.remove(path)
    app:stop()
  end)
end)

test("the gate comes before the body; small things of HTTP", function(t)
  with_server(t, { keys = { alice = "secret" }, proxies = { "127.0.0.1" }, log = os.tmpname() },
    function(app, ask, places)
      wait_ready(app)
      local function raw(text)
        local got, client = {}, uv.new_tcp()
        return async.await(function(resume)
          client:connect("127.0.0.1", places[1].port, function()
            client:write(text)
            client:read_start(function(_, bytes)
              got[#got + 1] = bytes
              if bytes then return end
              client:close()
              resume(table.concat(got))
            end)
          end)
        end)
      end
      local head = "POST %s HTTP/1.1\r\nhost: localhost\r\n%scontent-length: %d\r\n\r\nx"
      local key = "authorization: Bearer secret\r\n"
      t.match(raw(head:format("/v1/chat/completions", "", 32 << 20)), "^HTTP/1.1 401 ")
      t.match(raw(head:format("/v1/models", key, 32 << 20)), "^HTTP/1.1 405 ")
      t.match(raw(head:format("/nothing", key, 32 << 20)), "^HTTP/1.1 404 ")
      t.match(raw(head:format("/v1/chat/completions", key .. "origin: http://evil\r\n", 9)),
        "^HTTP/1.1 403 ")
      t.match(raw((head:gsub("POST", "DELETE"):format("/v1/requests/a", key, 1 << 20))),
        "^HTTP/1.1 413 ")
      t.eq(app.server:stats().body_bytes, 0)
      local star = raw "OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
      t.match(star, "^HTTP/1.1 204 ")
      t.match(star, "\r\nallow: GET, HEAD, POST")
      local answer = ask("POST", "/tokenize", { body = "{}", headers = { ["x-request-id"] = "mine",
        authorization = "Bearer secret", ["sec-fetch-site"] = "cross-site",
        ["x-forwarded-for"] = "6.6.6.6, 9.9.9.9" } })
      t.eq(answer.status, 403)
      t.eq(answer.headers["x-content-type-options"], "nosniff")
      t.eq(answer.headers["x-request-id"], "mine")
      local path = app.config.log
      while not io.open(path):read("a"):find("mine", 1, true) do async.sleep(5) end
      local line
      for one in io.lines(path) do line = one:find("mine", 1, true) and json.decode(one) or line end
      t.eq({ line.client_id, line.peer }, { "mine", "9.9.9.9" })
      t.match(line.id, "^req%-")
      os.remove(path)
    end)
end)

test("a key that takes every slot and fills its queue does not keep others waiting", function(t)
  for _, policy in ipairs { "fifo", "fair" } do
    with_server(t, { policy = policy, keys = { rude = "rrrrrr", late = "llllll" },
      queue = { requests = 20, sequences = 64 } }, function(app, ask)
        wait_ready(app)
        local function post(path, key, body)
          return ask("POST", path, { headers = { authorization = "Bearer " .. key },
            body = json.encode(body) })
        end
        local prompts = {}
        for i = 1, 24 do prompts[i] = "Tell me " .. i end
        local flood = { prompt = prompts, n = 2, max_tokens = 4000, ignore_eos = true }
        local rude = async.run(function() post("/v1/completions", "rrrrrr", flood) end)
        local batch = app.models:find().batch
        while batch:stats().running < 4 or batch.alive < 48 do async.sleep(1) end
        local answer = post("/v1/chat/completions", "llllll",
          { messages = { { role = "user", content = "Hello!" } }, max_tokens = 4 })
        t.eq(answer.status, 200, policy)
        t.ok(batch.alive > 40, batch.alive) -- the flood still goes on
        local again = post("/v1/completions", "rrrrrr", flood)
        t.eq({ again.status, again.body:match '"code":"(.-)"' }, { 429, "queue_full" })
        rude:cancel()
        app:stop()
        app:stop()
      end)
  end
end)

test("a server that rests collects its garbage", function(t)
  with_server(t, {}, function(app)
    wait_ready(app)
    local gone = setmetatable({ {} }, { __mode = "v" })
    app.server.counts.requests = app.server.counts.requests + 1000 -- as if it had worked
    local began = uv.hrtime()
    while gone[1] and uv.hrtime() - began < 10e9 do async.sleep(20) end
    t.eq(gone[1], nil)
  end)
end)

test("every route that reads a prompt is subject to rate limits", function(t)
  with_server(t, { rate = { requests = 2 } }, function(app, ask)
    wait_ready(app)
    local function post(path, body) return ask("POST", path, { body = body }).status end
    t.eq(post("/tokenize", '{"content":"a"}'), 200)
    t.eq(post("/detokenize", '{"tokens":[1]}'), 200)
    for _, path in ipairs { "/tokenize", "/detokenize", "/v1/chat/completions", "/v1/completions",
      "/v1/messages", "/v1/messages/count_tokens", "/v1/responses", "/v1/responses/input_tokens",
      "/v1/responses/compact" } do
      t.eq(post(path, "{}"), 429, path)
    end
  end)
end)
