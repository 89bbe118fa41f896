-- A server with API keys: it never opens by a slip, and keys learn nothing of each other.
local async = require "lib.async"
local config = require "serve.config"
local harness = require "harness"
local http = require "http"
local perigee = require "perigee"
local serve = require "serve"
local sites = require "sites"
local uv = require "luv"
local json = perigee.json

local forced = ...
local function test(name, body)
  if not forced then harness.test(name, body) end
end

local function write(path, content)
  local f = assert(io.open(path, "w"))
  f:write(content)
  f:close()
end

--- Runs body(app, ask) in a task; ask(key, path, body) returns the status and the decoded answer.
local function with_server(t, options, body)
  local settings = options.settings or {}
  settings.port, settings.log, settings.context, settings.sequences = 0, false, 1024, 4
  local merged = config.merge(assert(config.check(settings)), nil)
  local app = assert(serve.new { config = merged, file = options.file,
    models = { { name = "moonlet", path = "examples/moonlet" } } })
  local places = assert(app:start())
  local function ask(key, path, content)
    local given = { method = content and "POST" or "GET", body = content and json.encode(content),
      headers = { ["x-api-key"] = key }, timeout_ms = harness.LIMIT_MS }
    if key == "socket" then
      given.socket, given.target = settings.socket, path
    else
      given.url = places[1].address .. path
    end
    local answer = assert(http.request(given))
    local is_json = answer.headers["content-type"] == "application/json"
    return answer.status, is_json and json.decode(answer.body) or answer.body
  end
  async.run(function()
    async.sleep(1)
    while app:state() == "loading" do async.sleep(5) end
    local ok, why = xpcall(body, debug.traceback, app, ask)
    if not ok then t.fail(why) end
    app:stop()
  end)
end

local TWO = { alice = "A", bob = "B" }

test("a reload does not remove the last key", function(t)
  local path = os.tmpname()
  local function settings(keys)
    return "return { port = 0, log = false, context = 1024, sequences = 4, keys = " .. keys .. " }"
  end
  write(path, settings "{ a = 'A' }")
  with_server(t, { settings = { keys = { a = "A" } }, file = path }, function(app, ask)
    local notes = {}
    app.log.note = function(_, level, text) notes[#notes + 1] = level .. ": " .. text end
    for _, none in ipairs { "{}", "{ a = os.getenv 'PERIGEE_UNSET' }", "false", "nil" } do
      write(path, settings(none))
      local ok, why = app:reload()
      t.eq(ok, nil, none)
      t.match(why, "key")
      t.match(notes[#notes], "^error: configuration kept: .*key")
      t.eq((ask(nil, "/v1/models")), 401)
      t.eq((ask("A", "/v1/models")), 200)
    end
    write(path, settings "{ b = 'B' }")
    t.eq(app:reload().changed, { "keys" })
    t.eq((ask("A", "/v1/models")), 401)
    os.remove(path)
  end)
end)

local function question(text)
  return { messages = { { role = "user", content = text } }, max_tokens = 1, temperature = 0 }
end

local function cached(ask, key, text)
  local status, answer = ask(key, "/v1/chat/completions", question(text))
  assert(status == 200, status)
  return answer.usage.prompt_tokens_details.cached_tokens
end

local LONG = "My password is hunter2 and my account number is 99887766, please remember it."

test("two keys share no cached prefix by default", function(t)
  with_server(t, { settings = { keys = TWO } }, function(app, ask)
    t.eq(cached(ask, "A", LONG), 0)
    t.ok(cached(ask, "A", LONG) > 10)
    t.eq(cached(ask, "B", LONG), 0)
    app.config.cache_per_key = false
    t.eq(cached(ask, "A", LONG .. LONG), 0)
    t.ok(cached(ask, "B", LONG .. LONG) > 10)
  end)
end)

test("one key caches as without keys", function(t)
  with_server(t, { settings = { keys = { alice = "A" } } }, function(app, ask)
    t.eq(cached(ask, "A", LONG), 0)
    app.config.keys = false
    app.keys = {}
    t.ok(cached(ask, nil, LONG) > 10)
  end)
end)

local LONGER = LONG:rep(12)

test("keys are apart in the cache on disk and in pinned prefixes", function(t)
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-keys-XXXXXX"))
  local settings = { keys = TWO, cache_folder = folder }
  with_server(t, { settings = settings }, function(app, ask)
    t.eq(cached(ask, "A", LONGER), 0)
    local batch = app.models:find().batch
    local words, tok = app.models:find().words, app.models:find().tok
    local ids = words:encode(tok, assert(words:prompt { messages = question(LONGER).messages }))
    local before, now = -1, 0
    while now == 0 or now > before do -- written while the engine is idle
      async.sleep(50)
      before, now = now, batch:stats().prefix.disk_writes
    end
    batch:pin(ids, { salt = require "lib.hash" "alice" })
    t.eq(cached(ask, "B", LONGER), 0)
    app.on_stopped = t.expect(function()
      with_server(t, { settings = { keys = TWO, cache_folder = folder } }, function(_, again)
        t.ok(cached(again, "A", LONGER) > 10)
        t.eq(cached(again, "B", LONGER .. "?"), 0)
        sites.remove(folder)
      end)
    end)
  end)
end)

test("the status shows a key its own counts, no texts of errors and no paths", function(t)
  local site = sites.folder { ["hooks/strict.lua"] = [[return { request = function(req)
    assert(tonumber(req.chat.messages[1].content), "no number: " .. req.chat.messages[1].content)
  end }]] }
  local socket = os.tmpname()
  os.remove(socket)
  local settings = { keys = TWO, site = site, watch = false, socket = socket, host = "127.0.0.1" }
  with_server(t, { settings = settings }, function(app, ask)
    app.log.note = function() end
    ask("A", "/v1/chat/completions", question "my PIN is 4711")
    ask("A", "/v1/chat/completions", question "5")
    local _, bob = ask("B", "/v1/status")
    local text = json.encode(bob)
    t.eq(text:find("4711", 1, true), nil)
    t.eq(text:find(site, 1, true), nil)
    t.eq(bob.scripts.scripts[1].strikes[1].total, 1)
    t.eq({ bob.memory, bob.connections, bob.keys }, {})
    local b = bob.models[1].batch
    t.eq({ b.finished, b.prefill_tokens, b.decode_tokens, b.cached_tokens, b.steps },
      { 0, 0, 0, 0 })
    local _, alice = ask("A", "/v1/status")
    local a = alice.models[1].batch
    t.eq({ a.finished, a.decode_tokens, a.running, a.waiting }, { 2, 2, 0, 0 })
    t.ok(a.prefill_tokens > 10)
    local status, all = ask("socket", "/admin/status")
    t.eq(status, 200)
    t.match(json.encode(all), "4711")
    t.eq(all.models[1].batch.finished, 2)
    t.eq((ask("A", "/admin/status")), 403)
    sites.remove(site)
  end)
end)

test("the metrics show a key its own counts", function(t)
  local socket = os.tmpname()
  os.remove(socket)
  local settings = { keys = { alice = "A", bob = "B", prometheus = "P" }, socket = socket,
    host = "127.0.0.1", metrics_key = "prometheus" }
  with_server(t, { settings = settings}, function(app, ask)
    ask("A", "/v1/chat/completions", question "hello")
    local function counted(key, path)
      local status, text = ask(key, path or "/metrics")
      t.eq(status, 200)
      return tonumber(text:match 'perigee_generated_tokens_total{model="moonlet"} (%d+)'), text
    end
    t.eq(counted "A", 1)
    local bob, text = counted "B"
    t.eq(bob, 0)
    for _, hidden in ipairs { "http_requests", "memory_bytes", "steps", "prefix_cache" } do
      t.eq(text:match("perigee_" .. hidden), nil, hidden)
    end
    t.match(text, 'perigee_sequences_running{model="moonlet"} 0')
    local all
    bob, all = counted "P"
    t.eq(bob, 1)
    t.match(all, "perigee_http_requests_total")
    t.eq(counted("socket", "/admin/metrics"), 1)
    t.eq((ask("A", "/admin/metrics")), 403)
    app.config.metrics_key = nil
    t.eq(counted "P", 0)
  end)
end)

test("a cache folder that others can write to is refused", function(t)
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-keys-XXXXXX"))
  local function state(mode, below)
    uv.fs_chmod(folder, mode)
    if below then uv.fs_mkdir(folder .. "/moonlet", 448) end
    if below then uv.fs_chmod(folder .. "/moonlet", below) end
    local app = assert(serve.new { models = { { name = "moonlet", path = "examples/moonlet" } },
      config = config.merge({ port = 0, log = false, context = 256, cache_folder = folder }, nil) })
    assert(app:start())
    local entry = app.models:list()[1]
    repeat async.sleep(1) until entry.state == "ready" or entry.state == "failed"
    local found = entry.error or entry.state
    app:stop()
    return found
  end
  async.run(function()
    t.match(state(511), "cache_folder: .* has mode 0777: others must not write to it") -- 0777
    t.match(state(448, 493), "has mode 0755: others must not read or write it") -- 0700, 0755
    t.eq(state(493, 448), "ready")
    sites.remove(folder)
  end)
end)

test("a key may fill three quarters of a batch while others wait", function(t)
  with_server(t, { settings = { keys = TWO } }, function(app)
    local limit = app.models.key_limit
    t.eq({ limit(1), limit(2), limit(3), limit(4), limit(64) }, { 1, 1, 2, 3, 48 })
    app.config.sequences_per_key = 5
    t.eq({ limit(1), limit(64) }, { 5, 5 })
  end)
  with_server(t, { settings = { keys = { alice = "A" } } }, function(app)
    t.eq(app.models.key_limit(64), nil)
  end)
end)
