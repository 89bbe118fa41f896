-- Parts of the server, tested without one: configuration, gate, rate limits, metrics, log.
local config = require "serve.config"
local gate = require "serve.gate"
local logs = require "serve.log"
local metrics = require "serve.metrics"
local models = require "serve.models"
local perigee = require "perigee"
local rates = require "serve.rate"
local harness = require "harness"
local text = require "lib.text"
local uv = require "luv"

local forced = ...
local test = harness.test

--- Tests that only count do not need forced collection.
local function long_test(name, body)
  if not forced then test(name, body) end
end

-- ---- configuration ------------------------------------------------------------------------------

local function refusal(t, given, want)
  local value, why = config.check(given)
  t.eq(value, nil)
  t.eq(why, want)
end

test("configuration: errors name the key", function(t)
  refusal(t, { prot = 1 }, "unknown key 'prot', did you mean 'port'?")
  refusal(t, { port = "80" }, "port must be an integer, got \"80\"")
  refusal(t, { port = 70000 }, "port must be between 0 and 65535, got 70000")
  refusal(t, { host = 1 }, "host must be a string, got 1")
  refusal(t, { kv_bits = 5 }, "kv_bits must be one of 32, 16, 8, 4, got 5")
  refusal(t, { kv_bits = 6 }, "kv_bits must be one of 32, 16, 8, 4, got 6")
  refusal(t, { memory = "lots" },
    'memory must be a number of bytes or a size such as "8G", got "lots"')
  refusal(t, { queue = { request = 3 } }, "queue: unknown key 'request', did you mean 'requests'?")
  refusal(t, { limits = { bodi = 3 } }, "limits: unknown key 'bodi', did you mean 'body'?")
  refusal(t, { limits = { body = 0 } }, "limits.body must be above 0 and at most 2^53, got 0")
  refusal(t, { limits = { values = "many" } }, "limits.values must be a number, got \"many\"")
  refusal(t, { rate = { keys = { alice = { tokens = "x" } } } },
    "rate.keys.alice.tokens must be an integer, got \"x\"")
  refusal(t, { rate = { requests = 0.5 } }, "rate.requests must be an integer, got 0.5")
  refusal(t, { cors = { origins = { 1 } } }, "cors.origins[1] must be a string, got 1")
  refusal(t, { cors = { origins = { a = "x" } } },
    "cors.origins must be a list, but has the key 'a'")
  refusal(t, { keys = { alice = "" } }, 'keys.alice must be a non-empty string, got ""')
  refusal(t, { keys = {} },
    "keys has no key (is an environment variable unset?); false serves everyone")
  refusal(t, { keys = true }, "keys must be a table of names and keys, or false")
  refusal(t, { cache_per_key = "yes" }, 'cache_per_key must be true, false or "auto", got "yes"')
  refusal(t, { keys = { alice = "a b" } },
    "keys.alice must not contain white space: it could not be sent in a header")
  refusal(t, { models = { m = { context = 4 } } }, "models.m has no path")
  refusal(t, { models = { m = { path = "x", sequences = 0 } } },
    "models.m.sequences must be between 1 and 65536, got 0")
  refusal(t, { defaults = { temprature = 1 } },
    "defaults: unknown key 'temprature', did you mean 'temperature'?")
  refusal(t, { defaults = { top_p = 2 } }, "defaults.top_p must be above 0 and at most 1, got 2")
  refusal(t, { defaults = { max_tokens = "x" } },
    "defaults.max_tokens must be an integer, got \"x\"")
  refusal(t, { log = true }, "log must be a path or false, got true")
end)

test("configuration: conversion, defaults, precedence of the command line", function(t)
  local checked = assert(config.check { memory = "2K", queue = { requests = 7 }, port = 1,
    models = { a = "x", { path = "y" } } })
  t.eq(checked.memory, 2048)
  t.eq(checked.models, { a = { path = "x" }, { path = "y" } })
  local c = config.merge(checked, { port = 2, keys = { a = "k" } })
  t.eq(c.port, 2)
  t.eq(c.queue, { requests = 7, memory = 4.0, sequences = 1024 })
  t.eq(c.host, "127.0.0.1")
  t.eq(c.keys, { a = "k" })
  t.eq(c.given.port, true)
  t.eq(c.given.host, false)
  c.keys.b = "x"
  t.eq(config.merge(nil, nil).keys, {}) -- defaults are not shared
  t.eq(config.merge({ limits = { body = 5 } }, nil).limits, { body = 5, values = 400000,
    text = 8 << 20, pictures = 128, picture_bytes = 32 << 20, picture_pixels = 50000000 })
  for name in pairs(require("http.server").LIMITS) do
    t.ok(config.check { limits = { [name] = 1 } }, name)
  end
end)

test("configuration: --print-config is a configuration with the defaults", function(t)
  local printed = config.print()
  local chunk = assert(load(printed))
  t.eq(config.merge(assert(config.check(chunk())), nil).port, 8080)
  for _, key in ipairs(config.keys) do
    t.ok(printed:find(key[1] .. " = ", 1, true), key[1])
  end
  -- settings without a default must be valid as well
  local uncommented = printed:gsub("\n  %-%- ([%w_]+ = )", "\n  %1")
  uv.os_setenv("ALICE_KEY", "secret")
  local all, why = config.check(assert(load(uncommented))())
  uv.os_unsetenv "ALICE_KEY"
  t.ok(all, why)
  for _, line in ipairs { "port = 8080", 'policy = "fifo"',
    "queue = { memory = 4.0, requests = 256, sequences = 1024 }" } do
    t.ok(printed:find("\n  " .. line .. ",\n", 1, true), line)
  end
end)

local function with_file(content, fn)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(content)
  f:close()
  fn(path)
  os.remove(path)
end

test("configuration: errors in a file name the file and the line", function(t)
  with_file("return {\n  port = = 1 }", function(path)
    local value, why = config.read(path)
    t.eq(value, nil)
    t.ok(why:find(path .. ":2:", 1, true), why)
  end)
  with_file("local x = nil\nreturn { port = x.y }", function(path)
    t.ok(select(2, config.read(path)):find(path .. ":2:", 1, true))
  end)
  with_file("return 5", function(path)
    t.eq(select(2, config.read(path)), path .. ": must return a table, got 5")
  end)
  with_file("while true do end", function(path)
    local before = config.RUN_MS
    config.RUN_MS = 20
    t.eq(select(2, config.read(path)), path .. ": deadline exceeded")
    config.RUN_MS = before
  end)
  with_file("return { sequences = 0 }", function(path)
    t.eq(select(2, config.read(path)), path .. ": sequences must be between 1 and 65536, got 0")
  end)
  t.match(select(2, config.read "/nowhere/x.lua"), "/nowhere/x.lua")
end)

test("configuration: a reload applies live keys and names the others", function(t)
  local current = config.merge({ port = 1, keys = { a = "1" }, sequences = 3 }, nil)
  local new = config.merge({ port = 2, keys = { a = "2" }, sequences = 3, drain_s = 5 }, nil)
  local changed, restart = config.apply(current, new)
  t.eq(changed, { "keys", "drain_s" })
  t.eq(restart, { "port" })
  t.eq(current.port, 1)
  t.eq(current.keys, { a = "2" })
  t.eq(current.drain_s, 5)
end)

test("models get their names from their paths", function(t)
  t.eq(models.name_of "examples/moonlet/", "moonlet")
  t.eq(models.name_of "/a/b/x.gguf", "x")
  t.eq(models.name_of "m", "m")
end)

-- ---- the gate -----------------------------------------------------------------------------------

local function request(headers, more)
  local r = { method = "GET", headers = headers, ["local"] = "tcp" }
  for k, v in pairs(more or {}) do r[k] = v end
  function r:header(name) return self.headers[name] end
  return r
end

test("Host: names that a local server accepts", function(t)
  local c = { host = "127.0.0.1", hosts = { "box.example.org" } }
  local function answers(conf, host) return gate.host(conf, request { host = host }) == nil end
  for _, host in ipairs { "localhost", "LocalHost:8080", "127.0.0.1:1", "127.0.0.2", "[::1]:80",
    "box.example.org:443", "Box.Example.Org." } do
    t.ok(answers(c, host), host)
  end
  for _, host in ipairs { "evil.example.org", "127.0.0.1.evil.org", "localhost.evil.org", "",
    "10.0.0.1", "[::2]", "[::1].evil.org", "localhost:x", "1270.0.0.1" } do
    t.eq(answers(c, host), false, host)
  end
  t.eq(gate.host(c, request { host = "evil.org" }).status, 403)
  t.eq(gate.host(c, request({ host = "evil.org" }, { ["local"] = "unix" })), nil)
  t.ok(answers({ host = "::1" }, "[::1]:80"))
  t.eq(answers({ host = "::1" }, ""), false)
  local open = { host = "0.0.0.0" }
  t.ok(answers(open, "anything.org"))
  open.hosts = { "only.org" }
  t.ok(answers(open, "only.org"))
  t.eq(answers(open, "anything.org"), false)
end)

test("origins: pages of other sites", function(t)
  local c = { host = "127.0.0.1" }
  local function post(origin, conf)
    local headers = { origin = origin, host = "127.0.0.1:80" }
    return gate.origin(conf or c, request(headers, { method = "POST" }))
  end
  t.eq(post(nil), nil)
  t.eq(post "http://127.0.0.1:80", nil)
  t.eq(post("https://evil.org").status, 403)
  t.eq(post("null").status, 403)
  t.eq(post("http://127.0.0.1:81").status, 403)
  t.eq(gate.origin(c, request({ origin = "https://evil.org" }, { method = "GET" })), nil)
  local cors = { host = "127.0.0.1", cors = { origins = { "https://app.org" } } }
  t.eq(post("https://app.org", cors), nil)
  t.eq(post("https://app.org.evil.org", cors).status, 403)
  t.eq(gate.cors(cors, request { origin = "https://app.org" })["access-control-allow-origin"],
    "https://app.org")
  t.eq(gate.cors(cors, request { origin = "https://evil.org" }), nil)
  t.eq(gate.cors(cors, request {}), nil)
  t.eq(gate.cors({ cors = { origins = { "*" } } },
    request { origin = "https://x.org" })["access-control-allow-origin"], "*")
end)

test("keys: Bearer and x-api-key", function(t)
  local keys = gate.keys { alice = "secret-a", bob = "secret-b", "third" }
  t.eq(#keys, 3)
  local function who(headers)
    local key, refused = gate.key(keys, request(headers))
    return key and key.name, refused and refused.code
  end
  t.eq({ who { authorization = "Bearer secret-a" } }, { "alice" })
  t.eq({ who { authorization = "bearer  secret-b " } }, { "bob" })
  t.eq({ who { ["x-api-key"] = "third" } }, { "key1" })
  for _, wrong in ipairs { "Bearer secret-", "Bearer secret-aa", "Bearer SECRET-A",
    "Basic secret-a", "secret-a", "Bearer " } do
    local name, code = who { authorization = wrong }
    t.eq(name, nil, wrong)
    t.ok(code, wrong)
  end
  t.eq({ who {} }, { nil, "missing_api_key" })
end)

--- The keys of a configuration with this environment variable.
local function gather(given, variable)
  local before = os.getenv "PERIGEE_API_KEY"
  if variable then uv.os_setenv("PERIGEE_API_KEY", variable) end
  local found, why = config.resolve(given and assert(config.check(given)), nil)
  uv.os_unsetenv "PERIGEE_API_KEY"
  if before then uv.os_setenv("PERIGEE_API_KEY", before) end
  return found and found.keys, why
end

test("keys: an unset variable never opens the server", function(t)
  t.eq(gather { keys = false }, {})
  t.eq(gather(nil, "one"), { key = "one" })
  t.eq(gather(nil, "a=one,two\n b=three= "), { a = "one", key1 = "two", b = "three=" })
  t.eq(gather({ keys = { a = "x" } }, "b=y"), { a = "x", b = "y" })
  t.eq(gather({ keys = { "x" } }, "y"), { key1 = "x", key2 = "y" })
  t.eq({ gather(nil, "") }, { nil, "PERIGEE_API_KEY: there is no key in it" })
  t.eq({ gather(nil, " ,\n") }, { nil, "PERIGEE_API_KEY: there is no key in it" })
  t.eq({ gather(nil, "alice=") }, { nil, "PERIGEE_API_KEY: no key after 'NAME=' (a key that ends "
    .. "in '=' needs a name: NAME=KEY)" })
  t.eq({ gather(nil, "a b") }, { nil, "PERIGEE_API_KEY: a key must not contain white space" })
  t.eq({ gather({ keys = { a = "x" } }, "a=y") },
    { nil, "PERIGEE_API_KEY: two keys are named 'a'" })
end)

test("keys: a file, which strangers must not read", function(t)
  with_file("# staff\nalice=one\r\n\n  two\n#bob=three\n", function(path)
    uv.fs_chmod(path, 384) -- 0600
    t.eq(gather { api_key_file = path }, { alice = "one", key1 = "two" })
    t.eq(gather({ api_key_file = path, keys = { c = "four" } }, "five"),
      { alice = "one", c = "four", key1 = "two", key2 = "five" })
    for _, mode in ipairs { 420, 416 | 16, 436 } do -- 0644, 0660, 0664
      uv.fs_chmod(path, mode)
      local found, why = gather { api_key_file = path }
      t.eq(found, nil)
      t.match(why, ("has mode %04o: others must not read or write"):format(mode))
    end
    uv.fs_chmod(path, 416) -- 0640
    t.ok(gather { api_key_file = path })
  end)
  with_file("# nothing\n", function(path)
    uv.fs_chmod(path, 384)
    t.eq({ gather { api_key_file = path } },
      { nil, ("api_key_file: %s: there is no key in it"):format(path) })
  end)
  with_file("a=one\nbob=\n", function(path)
    uv.fs_chmod(path, 384)
    t.match(select(2, gather { api_key_file = path }), ":2: no key after 'NAME='")
  end)
  t.match(select(2, gather { api_key_file = "/nowhere" }), "api_key_file: .*/nowhere")
  t.match(select(2, gather { api_key_file = "/tmp" }), "is not a file")
end)

-- ---- rates --------------------------------------------------------------------------------------

test("rates: requests and tokens per minute", function(t)
  local now = 100.0
  local settings = { requests = 2, tokens = 60, keys = { big = { requests = 1000 } } }
  local rate = rates.new(function() return settings end, function() return now end)
  local alice = { name = "alice" }
  local ok, _, headers = rate:take(alice)
  t.ok(ok)
  t.eq(headers["x-ratelimit-limit-requests"], "2")
  t.eq(headers["x-ratelimit-remaining-requests"], "1")
  t.eq(headers["x-ratelimit-reset-requests"], "30.000s")
  t.ok(rate:take(alice))
  local _, refused, more = rate:take(alice)
  t.eq(refused.status, 429)
  t.near(refused.retry_after, 30, 1e-9)
  t.eq(more["x-ratelimit-remaining-requests"], "0")
  t.ok(rate:take { name = "bob" }, "others have buckets of their own")
  now = now + 30
  t.ok(rate:take(alice))
  t.eq((rate:take(alice)), nil)
  for _ = 1, 100 do t.ok(rate:take { name = "big" }) end
  rate:charge({ name = "big" }, 90) -- 30 below zero
  _, refused = rate:take { name = "big" }
  t.near(refused.retry_after, 31, 1e-9)
  now = now + 31
  t.ok(rate:take { name = "big" })
  settings = nil
  t.ok(rate:take(alice))
end)

long_test("rates: unused names are forgotten", function(t)
  local now = 0
  local rate = rates.new(function() return { requests = 60 } end, function() return now end)
  for i = 1, 5000 do
    now = now + 0.5
    t.ok(rate:take { peer = "10.0.0." .. i })
  end
  local n = 0
  for _ in pairs(rate.buckets) do n = n + 1 end
  t.ok(n < 1200, n)
end)

-- ---- metrics ------------------------------------------------------------------------------------

test("metrics: the exposition format", function(t)
  local m = metrics.new()
  m.requests:add(1, { route = "/x", status = 200 })
  m.requests:add(2, { status = 200, route = "/x" })
  m.running:set(3, { model = 'a"b\\c\nd' })
  local h = m:histogram("perigee_test_seconds", "A test.", { 0.5, 1, 2.5 })
  local observe = h:observer { model = "m" }
  for _, x in ipairs { 0.1, 0.6 } do h:observe(x, { model = "m" }) end
  for _, x in ipairs { 0.5, 9 } do observe(x) end
  m:collect(function() m.uptime:set(1.5) end)
  local out = m:text()
  local function has(line) t.ok(("\n" .. out):find("\n" .. line .. "\n", 1, true), line) end
  has 'perigee_http_requests_total{route="/x",status="200"} 3'
  has "# TYPE perigee_http_requests_total counter"
  has 'perigee_sequences_running{model="a\\"b\\\\c\\nd"} 3'
  has 'perigee_test_seconds_bucket{model="m",le="0.5"} 2'
  has 'perigee_test_seconds_bucket{model="m",le="1"} 3'
  has 'perigee_test_seconds_bucket{model="m",le="2.5"} 3'
  has 'perigee_test_seconds_bucket{model="m",le="+Inf"} 4'
  has 'perigee_test_seconds_count{model="m"} 4'
  has 'perigee_test_seconds_sum{model="m"} 10.2'
  has "perigee_uptime_seconds 1.5"
  for line in out:gmatch "[^\n]+" do
    t.ok(line:match "^perigee_[%w_]+{?.*}? [%d.e+-]+$" or line:match "^# HELP perigee_"
      or line:match "^# TYPE perigee_", line)
  end
  t.raises(function() m:counter("other_total", "x") end, "must begin with perigee_")
  t.raises(function() m:gauge("perigee_http_requests_total", "x") end, "is already a counter")
  t.eq(m:counter("perigee_mine_total", "x"), m:counter("perigee_mine_total", "x"))
end)

long_test("metrics: too many sets of labels are dropped and counted", function(t)
  local m = metrics.new()
  for i = 1, metrics.SERIES + 5 do m.answers:add(1, { model = i }) end
  t.eq(m.answers.count, metrics.SERIES)
  t.ok(m:text():find("perigee_metrics_dropped_total 5\n", 1, true))
end)

test("metrics: a collector that raises does no harm", function(t)
  local told
  local m = metrics.new { on_error = function(why) told = why end }
  m:collect(function() error("broken", 0) end)
  m:collect(function() m.uptime:set(1) end)
  t.match(m:text(), "perigee_uptime_seconds 1")
  t.eq(told, "broken")
end)

-- ---- log ----------------------------------------------------------------------------------------

test("log: a JSON object per line, across a rotation", function(t)
  local path = os.tmpname()
  local log = assert(logs.open(path))
  log:access { id = "r1", key = "alice", method = "GET", path = "/x\n\"y", status = 200, ms = 1.5,
    bytes = 3, time = 0.25 }
  for i = 1, 50 do log:access { id = "n" .. i, status = 200 } end
  os.rename(path, path .. ".1")
  assert(log:reopen())
  log:note("info", "something", { b = 2, a = "1" })
  log:close(t.expect(function()
    local old, new = {}, {}
    for line in text.lines(text.read_file(path .. ".1")) do
      old[#old + 1] = line ~= "" and line or nil
    end
    for line in text.lines(text.read_file(path)) do new[#new + 1] = line ~= "" and line or nil end
    t.eq(old[1], '{"time":"1970-01-01T00:00:00.250Z","id":"r1","key":"alice","method":"GET",'
      .. '"path":"/x\\n\\"y","status":200,"ms":1.5,"bytes":3}')
    t.eq(#old + #new, 52) -- queued lines go to the new file
    local last = assert(perigee.json.decode(new[#new]))
    t.eq(last.text, "something")
    t.eq(last.a, "1")
    os.remove(path)
    os.remove(path .. ".1")
  end))
end)

long_test("log: lines that cannot be written in time are dropped and counted", function(t)
  local path = os.tmpname()
  local log = assert(logs.open(path))
  for _ = 1, 6 do log:note("info", ("x"):rep(1 << 20)) end
  t.ok(log.dropped > 0, log.dropped)
  local dropped = log.dropped
  local timer = uv.new_timer()
  timer:start(1, 5, function()
    if log.busy then return end
    timer:close()
    log:note("info", "after")
    log:close(t.expect(function()
      t.ok(text.read_file(path):find(("%d log lines were dropped"):format(dropped), 1, true))
      os.remove(path)
    end))
  end)
end)

test("log: none, and a missing directory", function(t)
  local log = assert(logs.open(false))
  log:note("info", "x")
  log:close(t.expect(function() end))
  local none, why = logs.open "/nowhere/x.log"
  t.eq(none, nil)
  t.match(why, "/nowhere/x.log")
end)
