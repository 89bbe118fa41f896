-- The gate of the server, part by part: hosts, origins, preflights, keys, rates; and idleness.
local gate = require "serve.gate"
local idle = require "serve.idle"
local keys = require "serve.keys"
local rates = require "serve.rate"
local async = require "lib.async"
local test = require("harness").test
local uv = require "luv"

--- A request with these headers.
local function request(headers, method, place)
  return { method = method or "GET", ["local"] = place,
    header = function(_, name) return headers[name] end }
end

--- "ok", or the status, code and message of a refusal.
local function told(err)
  if err == nil then return "ok" end
  return ("%d %s: %s"):format(err.status, err.code, err.message)
end

test("hosts", function(t)
  local function host(given, name, place)
    return told(gate.host(given, request({ host = name }, "GET", place)))
  end
  local here = { host = "127.0.0.1" }
  for _, name in ipairs { "localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:1", "127.9.9.9",
    "[::1]", "[::1]:80", "localhost." } do
    t.eq(host(here, name), "ok", name)
  end
  t.eq(host(here, "evil.example:80"), "403 host_not_allowed: host name 'evil.example' is not "
    .. "allowed (add it to `hosts` in the configuration)")
  t.match(host(here, nil), "^403 .*''")
  t.eq(host(here, "evil.example", "unix"), "ok")
  t.eq(host({ host = "127.0.0.1", hosts = { "Good.example" } }, "good.example.:80"), "ok")
  t.match(host({ host = "127.0.0.1", hosts = { "good.example" } }, "x.example"), "^403")
  t.eq(host({ host = "10.0.0.1" }, "any.example"), "ok") -- reachable by others, none are listed
  t.match(host({ host = "10.0.0.1", hosts = { "a" } }, "any.example"), "^403")
  t.match(host({ host = "10.0.0.1", hosts = { "a" } }, "127.0.0.2"), "^403")
  for _, name in ipairs { "10.0.0.1:80", "127.0.0.1", "localhost", "[::1]:80" } do
    t.eq(host({ host = "10.0.0.1", hosts = { "a" } }, name), "ok", name)
  end
  t.eq(host({ host = "fd00::A", hosts = { "a" } }, "[fd00::a]:80"), "ok")
  t.match(host({ host = "fd00::a", hosts = { "a" } }, "[fd00::b]:80"), "^403")
  t.eq(host({ host = "::", hosts = { "a" } }, "[::]:80"), "ok")
  for address, want in pairs { localhost = true, ["127.0.0.1"] = true, ["::1"] = true,
    ["127.1.2.3"] = true, LOCALHOST = true, ["0.0.0.0"] = false, ["10.0.0.1"] = false } do
    t.eq(gate.is_local(address), want, address)
  end
end)

test("origins", function(t)
  local config = { cors = { origins = { "https://a.example" } } }
  local function origin(headers, method, place, given)
    return told(gate.origin(given or config, request(headers, method or "POST", place)))
  end
  local foreign = { origin = "https://b.example", host = "here:80" }
  t.eq(origin(foreign), "403 origin_not_allowed: origin https://b.example is not allowed (add it to"
    .. " `cors` in the configuration)")
  for _, method in ipairs { "GET", "HEAD", "OPTIONS" } do t.eq(origin(foreign, method), "ok") end
  for _, method in ipairs { "PUT", "DELETE", "POST" } do
    t.match(origin(foreign, method), "^403")
  end
  t.eq(origin(foreign, "POST", "unix"), "ok")
  t.eq(origin { origin = "https://a.example" }, "ok")
  t.eq(origin(foreign, "POST", nil, { cors = { origins = { "*" } } }), "ok")
  t.match(origin(foreign, "POST", nil, {}), "^403")
  t.eq(origin { origin = "http://here:80", host = "here:80" }, "ok")
  t.eq(origin { origin = "https://here:80", host = "here:80" }, "ok")
  t.match(origin { origin = "http://here:81", host = "here:80" }, "^403")
  t.match(origin { origin = "null" }, "^403")
  t.match(origin { origin = "x" .. ("y"):rep(300) }, "origin x" .. ("y"):rep(199) .. " is not")
  local other = "403 origin_not_allowed: requests of other sites' pages are not allowed "
    .. "(Sec-Fetch-Site)"
  for site, want in pairs { ["same-origin"] = "ok", none = "ok", ["cross-site"] = other,
    ["same-site"] = other } do
    t.eq(origin { ["sec-fetch-site"] = site }, want, site)
  end
  t.eq(origin {}, "ok")
end)

test("CORS and preflights", function(t)
  local config = { cors = { origins = { "https://a.example" } } }
  local function asks(name, method, wanted)
    return request({ origin = name, ["access-control-request-method"] = wanted }, method)
  end
  local got = gate.cors(config, asks "https://a.example")
  t.eq({ got["access-control-allow-origin"], got.vary }, { "https://a.example", "Origin" })
  t.match(got["access-control-expose-headers"], "^x%-request%-id, retry%-after, ")
  t.eq(gate.cors({ cors = { origins = { "*" } } }, asks "https://b.example")
    ["access-control-allow-origin"], "*")
  t.eq(gate.cors(config, asks "https://b.example"), nil)
  t.eq(gate.cors(config, asks(nil)), nil)
  t.eq(gate.cors({}, asks "https://a.example"), nil)
  local answer = gate.preflight(config, asks("https://a.example", "OPTIONS", "POST"))
  t.eq({ answer["access-control-allow-methods"], answer["access-control-max-age"] },
    { "GET, POST, DELETE, OPTIONS", "600" })
  t.match(answer["access-control-allow-headers"], "^authorization, content%-type, x%-api%-key, ")
  config.cors.max_age, config.cors.headers = 5, { "a", "b" }
  answer = gate.preflight(config, asks("https://a.example", "OPTIONS", "POST"))
  t.eq({ answer["access-control-allow-headers"], answer["access-control-max-age"] },
    { "a, b", "5" })
  t.eq(gate.preflight(config, asks("https://a.example", "GET", "POST")), nil)
  t.eq(gate.preflight(config, asks("https://a.example", "OPTIONS")), nil)
  t.eq(gate.preflight(config, asks("https://b.example", "OPTIONS", "POST")), nil)
end)

test("keys of requests", function(t)
  local list = gate.keys { bob = "B", alice = "A", "C" }
  t.eq(list, { { name = "alice", key = "A" }, { name = "bob", key = "B" },
    { name = "key1", key = "C" } })
  local function key(headers)
    local found, err = gate.key(list, request(headers))
    return found and found.name or told(err)
  end
  t.eq(key { authorization = "Bearer A" }, "alice")
  t.eq(key { authorization = "bEARER   B  " }, "bob")
  t.eq(key { ["x-api-key"] = "C" }, "key1")
  t.eq(key { authorization = "Basic A", ["x-api-key"] = "B" }, "bob")
  t.eq(key {}, "401 missing_api_key: an API key is needed: 'Authorization: Bearer KEY' or "
    .. "'x-api-key: KEY'")
  for _, wrong in ipairs { "D", "AA", "a", "" } do
    t.eq(key { ["x-api-key"] = wrong }, "401 invalid_api_key: this API key is not known here")
  end
end)

test("keys of files and variables", function(t)
  local function add(given)
    local list = {}
    local ok, why = keys.add(list, given, "W")
    return ok and { list[1].name, list[1].key } or why
  end
  t.eq(add "a=b", { "a", "b" })
  t.eq(add "a.b-c_1=d=e==", { "a.b-c_1", "d=e==" })
  t.eq(add "secret", { nil, "secret" })
  t.eq(add "a b=c", "W: a key must not contain white space")
  t.eq(add "a=b c", "W: a key must not contain white space")
  t.eq(add "", "W: the key is empty")
  local none = "W: no key after 'NAME=' (a key that ends in '=' needs a name: NAME=KEY)"
  t.eq({ add "a=", add "a==" }, { none, none })
  t.eq(keys.named { { key = "x" } }, { key = "x" })
  t.eq(keys.named { { key = "x" }, { key = "y" } }, { key1 = "x", key2 = "y" })
  t.eq(keys.named { { key = "x" }, { name = "key1", key = "y" }, { key = "z" } },
    { key2 = "x", key1 = "y", key3 = "z" })
  t.eq({ keys.named { { name = "a", key = "x" }, { name = "a", key = "y", where = "W" } } },
    { nil, "W: two keys are named 'a'" })
  local path = os.tmpname()
  local function file(text, mode)
    local f = assert(io.open(path, "w"))
    f:write(text)
    f:close()
    uv.fs_chmod(path, mode or 384)
    local got, why = keys.gather { api_key_file = path }
    return got or why:gsub(path:gsub("%p", "%%%0"), "FILE")
  end
  t.eq(file "# x\r\n a=b \n\n  c\n#d=e\n", { a = "b", key1 = "c" })
  t.eq(file "a=b\n\na=\n", "api_key_file: FILE:3: no key after 'NAME=' (a key that ends in '=' "
    .. "needs a name: NAME=KEY)")
  t.eq(file "# x\n", "api_key_file: FILE: there is no key in it")
  t.eq(file("a=b", 416), { a = "b" }) -- 0640
  for _, mode in ipairs { 384 | 1, 384 | 2, 384 | 4, 384 | 16 } do
    t.eq(file("a=b", mode), ("api_key_file: FILE: has mode %04o: others must not read or write a "
      .. "key file (chmod 600)"):format(mode))
  end
  t.eq(file("a=" .. ("x"):rep((1 << 20) - 2)).a and "taken", "taken")
  t.eq(file("a=" .. ("x"):rep((1 << 20) - 1)), "api_key_file: FILE: has more than 1048576 bytes")
  os.remove(path)
  t.eq(select(2, keys.gather { api_key_file = "/tmp" }), "api_key_file: /tmp: is not a file")
  t.match(select(2, keys.gather { api_key_file = "/nowhere" }), "^api_key_file: ENOENT")
  local stat, uid = uv.fs_fstat, uv.getuid
  local owner
  uv.getuid = function() return 1000 end
  uv.fs_fstat = function()
    return { type = "file", uid = owner, mode = 384 }
  end
  for id, want in pairs { [0] = "taken", [1000] = "taken", [1] = "refused", [1001] = "refused" } do
    owner = id
    local f = assert(io.open(path, "w"))
    f:write "a=b"
    f:close()
    local got, why = keys.gather { api_key_file = path }
    t.eq(got and "taken" or "refused", want)
    if why then
      t.match(why, ("belongs to user %d: a key file must belong to you or to root"):format(id))
    end
  end
  uv.fs_fstat, uv.getuid = stat, uid
  os.remove(path)
  uv.os_setenv(keys.VARIABLE, "a=1, b=2,\nc")
  t.eq(keys.gather { keys = { d = "3", "4" } },
    { a = "1", b = "2", key2 = "c", d = "3", key1 = "4" })
  uv.os_setenv(keys.VARIABLE, " ,")
  t.eq(select(2, keys.gather {}), "PERIGEE_API_KEY: there is no key in it")
  uv.os_unsetenv(keys.VARIABLE)
  t.eq(keys.gather {}, {})
end)

test("rates: buckets fill evenly, and say how full they are", function(t)
  local now, settings = 0, { requests = 6, tokens = 60 }
  local rate = rates.new(function() return settings end, function() return now end)
  local bob = { name = "bob" }
  local function take(who)
    local ok, err, headers = rate:take(who or bob)
    return ok and headers or told(err), err and err.retry_after
  end
  t.eq(take(), { ["x-ratelimit-limit-requests"] = "6", ["x-ratelimit-remaining-requests"] = "5",
    ["x-ratelimit-reset-requests"] = "10.000s", ["x-ratelimit-limit-tokens"] = "60",
    ["x-ratelimit-remaining-tokens"] = "60", ["x-ratelimit-reset-tokens"] = "0.000s" })
  for _ = 1, 5 do take() end
  t.eq({ take() }, { "429 rate_limit_exceeded: rate limit of 6 requests per minute exceeded, "
    .. "try again in 10.0 s", 10.0 })
  now = 9
  t.match((take()), "try again in 1.0 s")
  now = 10
  t.eq(type(take()), "table") -- exactly one
  now = 1000
  rate:charge(bob, 60)
  t.eq({ take() }, { "429 rate_limit_exceeded: rate limit of 60 tokens per minute exceeded, "
    .. "try again in 1.0 s", 1.0 })
  now = 1001
  t.eq(take()["x-ratelimit-remaining-tokens"], "1")
  rate:charge(bob, 100)
  t.match((take()), "try again in 100.0 s")
  rate:charge(bob, 0)
  rate:charge(bob, -5)
  t.match((take()), "try again in 100.0 s")
  settings = { requests = 6, keys = { bob = { requests = 0 } } }
  t.eq({ take() }, { "429 rate_limit_exceeded: rate limit of 0 requests per minute exceeded, "
    .. "try again in 86400.0 s", 86400 })
  t.eq(take { name = "carol" }["x-ratelimit-limit-requests"], "6")
  t.eq(take { peer = "10.0.0.1" }["x-ratelimit-remaining-requests"], "5")
  t.eq(take { peer = "10.0.0.1" }["x-ratelimit-remaining-requests"], "4")
  t.eq(take { peer = "10.0.0.2" }["x-ratelimit-remaining-requests"], "5")
  settings = nil
  t.eq({ rate:take(bob) }, { true })
  rate:charge(bob, 5)
end)

test("idleness: garbage is collected once after work, and after a rest", function(t)
  local entry = { state = "ready", batch = { alive = 0 } }
  local app = { working = 0, server = { held = 0,
    counts = { requests = 0, refused = 0, accepted = 0 } },
    models = { list = function() return { entry } end } }
  local every, tick, closed
  local timer = { start = function(_, a, b, fn) every, tick = { a, b }, fn end,
    unref = function() end, close = function() closed = true end }
  local new_timer, collect, n = uv.new_timer, idle.collect, 0
  uv.new_timer = function() return timer end -- luacheck: ignore 122
  local stop = idle.start(app)
  uv.new_timer = new_timer -- luacheck: ignore 122
  idle.collect = function() n = n + 1 end
  local function ticks(count)
    local before = n
    for _ = 1, count do tick() end
    return n - before
  end
  collectgarbage "stop" -- the heap must not grow by itself
  t.eq(every, { 1000, 1000 })
  t.eq({ ticks(1), ticks(1), ticks(3) }, { 0, 1, 0 }) -- a server that starts has worked
  local function work(change, back)
    change()
    local busy = ticks(3)
    if back then back() end
    return { busy, ticks(1), ticks(1), ticks(2) }
  end
  local counts = app.server.counts
  for _, case in ipairs {
    { function() app.working = 1 end, function() app.working = 0 end },
    { function() app.server.held = 1 end, function() app.server.held = 0 end },
    { function() entry.batch.alive = 1 end, function() entry.batch.alive = 0 end },
    { function() entry.state = "loading" end, function() entry.state = "ready" end },
    { function() entry.state = "unloading" end, function() entry.state = "ready" end } } do
    t.eq(work(case[1], case[2]), { 0, 0, 1, 0 })
  end
  counts.requests = counts.requests + 40 -- a few small ones
  t.eq(ticks(4), 0)
  for _, kind in ipairs { "requests", "refused", "accepted" } do
    counts[kind] = counts[kind] + 41
    t.eq({ ticks(1), ticks(1), ticks(1), ticks(3) }, { 0, 0, 1, 0 }, kind)
  end
  collectgarbage "restart"
  stop()
  t.eq(closed, true)
  idle.collect = collect
  async.run(t.expect(function() idle.collect() end))
end)
