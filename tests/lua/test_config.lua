-- serve.config: every setting: its default, its limits, whether it is live; and files at their
-- limits.
local config = require "serve.config"
local server = require "http.server"
local test = require("harness").test

-- name, default, live
local KEYS = {
  { "host", "127.0.0.1", false }, { "port", 8080, false }, { "socket", nil, false },
  { "hosts", nil, true }, { "proxies", nil, true }, { "models", nil, false },
  { "default", nil, true }, { "aliases", nil, true }, { "keys", {}, true },
  { "api_key_file", nil, true },
  { "metrics_key", nil, true }, { "cors", nil, true }, { "rate", nil, true },
  { "limits", { values = 400000, text = 8 << 20, pictures = 128, picture_bytes = 32 << 20,
    picture_pixels = 50000000 }, false },
  { "responses", { count = 4096, bytes = 64 << 20, seconds = 86400, disk_bytes = 1 << 30,
    disk_seconds = 2592000 }, false },
  { "picture_urls", nil, true }, { "picture_processes", nil, false },
  { "picture_cache_bytes", 256 << 20, false },
  { "queue", { requests = 256, memory = 4.0, sequences = 1024 }, true },
  { "sequences", 64, false }, { "sequences_per_key", nil, true }, { "step_tokens", 512, false },
  { "context", nil, false }, { "precision", "fast", false },
  { "device", "auto", false }, { "kv_bits", nil, false }, { "cache_bytes", nil, false },
  { "cache_folder", nil, false }, { "cache_disk_bytes", nil, false },
  { "cache_per_key", "auto", true }, { "memory", nil, false }, { "threads", nil, false },
  { "preload", true, false }, { "policy", "fifo", true }, { "hooks", nil, true },
  { "site", nil, false }, { "watch", true, false }, { "log", nil, false },
  { "drain_s", 30, true }, { "thinking_budgets", {}, true },
  { "tool_grammar", "frame", true }, { "fast_forward", true, true }, { "defaults", {}, true },
}

test("every setting has its default, and may change while serving or not", function(t)
  t.eq(#config.keys, #KEYS)
  for i, want in ipairs(KEYS) do
    local key = config.keys[i]
    t.eq({ key[1], key.default, key.live == true }, want)
  end
  t.eq({ config.RUN_MS, config.RELOAD_MS }, { 2000, 40 })
end)

test("the limits of HTTP are those that the documentation names", function(t)
  t.eq(server.LIMITS, { head = 32 << 10, headers = 100, target = 8 << 10, body = 32 << 20,
    bodies = 256 << 20, bodies_each = 128 << 20, header_s = 10, body_s = 30, body_rate = 16 << 10,
    idle_s = 75, requests = 100000, connections = 4096, peer_connections = 2048, write_s = 60,
    low_water = 64 << 10, queue = 8 << 20, unsent = 256 << 20, write_rate = 256, heartbeat_s = 15,
    linger_s = 2 })
end)

--- A table with one value at a path such as "queue.requests".
local function at(path, value)
  local out = value
  for name in path:reverse():gmatch "[^.]+" do out = { [name:reverse()] = out } end
  return out
end

-- The least and the largest value of numbers.
local LARGE = 1 << 40
local RANGES = {
  { "port", 0, 65535 }, { "cors.max_age", 0, 86400 }, { "rate.requests", 0, 1000000000 },
  { "rate.tokens", 0, LARGE }, { "rate.keys.a.requests", 0, 1000000000 },
  { "rate.keys.a.tokens", 0, LARGE }, { "limits.pictures", 0, 1 << 20 },
  { "limits.picture_pixels", 1, 1 << 30 }, { "picture_processes", 1, 64 },
  { "queue.requests", 0, LARGE }, { "queue.sequences", 1, LARGE }, { "sequences", 1, 65536 },
  { "sequences_per_key", 1, 65536 }, { "step_tokens", 1, 1 << 20 }, { "context", 1, LARGE },
  { "threads", 1, 4096 }, { "defaults.max_tokens", 1, 0x7fffffff },
}

test("numbers at their limits", function(t)
  for _, range in ipairs(RANGES) do
    local path, least, most = table.unpack(range)
    for _, n in ipairs { least, most, most + 0.0 } do t.ok(config.check(at(path, n)), path) end
    for _, n in ipairs { least - 1, most + 1 } do
      t.eq(select(2, config.check(at(path, n))),
        ("%s must be between %d and %d, got %d"):format(path, least, most, n))
    end
    t.eq(select(2, config.check(at(path, least + 0.5))),
      ("%s must be an integer, got %s"):format(path, least + 0.5))
  end
  for path, most in pairs { drain_s = 86400, ["queue.memory"] = 1e6 } do
    for _, n in ipairs { 0, most, 0.5 } do t.ok(config.check(at(path, n)), path) end
    for _, n in ipairs { -0.5, most + 0.5 } do
      t.eq(select(2, config.check(at(path, n))),
        ("%s must be between 0 and %s, got %s"):format(path, most, n))
    end
    t.eq(select(2, config.check(at(path, 0 / 0))),
      ("%s must be a number, got %s"):format(path, 0 / 0))
  end
  for path in pairs { ["limits.values"] = 1, ["limits.body"] = 1 } do
    for _, n in ipairs { 0.1, 1 << 53 } do t.ok(config.check(at(path, n)), path) end
    t.match(select(2, config.check(at(path, 2.0 ^ 54))), "above 0 and at most 2%^53")
  end
  for _, path in ipairs { "memory", "cache_bytes", "cache_disk_bytes", "picture_cache_bytes",
    "limits.picture_bytes" } do
    for _, n in ipairs { 0, 1, "1K" } do t.ok(config.check(at(path, n)), path) end
    t.match(select(2, config.check(at(path, -1))), "number of bytes or a size")
  end
  for _, bits in ipairs { 32, 16, 8, 4 } do
    t.ok(config.check { kv_bits = bits, models = { a = { path = "x", kv_bits = bits } } })
  end
end)

test("settings of a model", function(t)
  for key, range in pairs { sequences = { 1, 65536 }, step_tokens = { 1, 1 << 20 },
    context = { 1, LARGE }, threads = { 1, 4096 } } do
    for _, n in ipairs(range) do
      t.ok(config.check { models = { m = { path = "x", [key] = n } } }, key)
    end
    for _, n in ipairs { range[1] - 1, range[2] + 1 } do
      t.eq(select(2, config.check { models = { m = { path = "x", [key] = n } } }),
        ("models.m.%s must be between %d and %d, got %d"):format(key, range[1], range[2], n))
    end
  end
  t.eq(config.check { models = { m = { path = "x", load = false, cache_bytes = "1K",
    picture_cache_bytes = 0 } } }.models.m,
    { path = "x", load = false, cache_bytes = 1024, picture_cache_bytes = 0 })
  t.eq(select(2, config.check { models = "x" }),
    'models must be a table of names and paths, got "x"')
  t.eq(select(2, config.check { models = { m = 1 } }), "models.m must be a table, got 1")
end)

test("kinds of values", function(t)
  local function refused(given, want) t.eq(select(2, config.check(given)), want) end
  refused({ keys = { a = 1 } }, "keys.a must be a non-empty string, got 1")
  t.eq(config.check { keys = false }.keys, {})
  t.eq(config.check { log = false }.log, false)
  refused({ log = "" }, 'log must be a path or false, got ""')
  for _, v in ipairs { true, false, "auto" } do
    t.eq(config.check { cache_per_key = v }.cache_per_key, v)
  end
  refused({ aliases = "x" }, 'aliases must be a table of names and models, got "x"')
  refused({ aliases = { "x" } }, 'aliases[1] must be the name of a model, got "x"')
  refused({ aliases = { x = 1 } }, 'aliases["x"] must be the name of a model, got 1')
  refused({ hosts = "x" }, 'hosts must be a list of strings, got "x"')
  refused({ hosts = {}, hooks = 1 }, "hooks must be a table, got 1")
  refused({ policy = {} }, "policy must be a name, or a table of a name and settings")
  refused({ policy = { 1 } }, "policy must be a name, or a table of a name and settings")
  t.eq(config.check { policy = { "lanes", patience_s = 1 } }.policy, { "lanes", patience_s = 1 })
  refused({ watch = 1 }, "watch must be a boolean, got 1")
  refused({ cors = {}, queue = 1 }, "queue must be a table, got 1")
  refused({ host = "x", site = {} }, "site must be a string, got a table")
  refused({ picture_urls = { private = "x" } }, 'picture_urls.private must be a boolean, got "x"')
  refused({ host = false }, "host must be a string, got false")
  refused({ kv_bits = "a\nb" }, [[kv_bits must be one of 32, 16, 8, 4, got "a\nb"]])
  refused({ ["a\nb"] = 1 }, [[unknown key 'a\10b']])
end)

test("messages are cut after 300 bytes", function(t)
  local function message(n) return select(2, config.check { kv_bits = ("x"):rep(n) }) end
  local whole = #message(1) - 1
  t.eq(#message(300 - whole), 300)
  t.eq(message(300 - whole):sub(-1), '"')
  t.eq(message(301 - whole):sub(-4), "x…")
  t.eq(#message(301 - whole), 303)
  t.eq(#message(5000), 303)
end)

--- The settings of a file with this text.
local function read(source, options)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(source)
  f:close()
  local got, why = config.read(path, options or { deadline_ms = 60000 })
  os.remove(path)
  return got, why and why:gsub(path:gsub("%p", "%%%0"), "FILE")
end

test("files at their limits", function(t)
  local function nested(n) return ("{ a = "):rep(n) .. "1" .. (" }"):rep(n) end
  t.ok(read("return { hooks = " .. nested(32) .. " }"))
  t.eq(select(2, read("return { hooks = " .. nested(33) .. " }")),
    "FILE: hooks is nested more than 32 deep")
  local many = "local l = {} for i = 1, %d do l[i] = 'x' end return { hosts = l }"
  t.eq(#assert(read(many:format(100000))).hosts, 100000)
  t.eq(select(2, read(many:format(100001))), "FILE: hosts has more than 100000 values")
  t.match(select(2, read("local a = {} for i = 1, 60000 do a[i] = 'x' end " -- both together
    .. "return { hosts = a, proxies = a }")), "has more than 100000 values")
  t.eq(select(2, read "return { hooks = { [1.5] = 1 } }"),
    "FILE: hooks has a key that is neither a string nor an integer, but a number")
  t.eq(select(2, read "return { 1 }"), "FILE: unknown key of type number")
  t.eq(select(2, read "return { prot = 1 }"), "FILE: unknown key 'prot', did you mean 'port'?")
  t.eq(select(2, read("while true do end", { deadline_ms = 5 })), "FILE: deadline exceeded")
  t.eq(assert(read "return setmetatable({ port = 1 }, { __index = error })").port, 1)
end)

test("a file's globals are its own", function(t)
  local before = { error, string.format }
  t.eq(assert(read "error, port, string.format = {}, 7, nil return { port = _G.port }").port, 7)
  t.eq({ error, string.format }, before)
  t.eq(rawget(_G, "port"), nil)
end)

test("printing: comments are wrapped at 100 columns", function(t)
  local longest, live = 0, 0
  for line in config.print():gmatch "[^\n]+" do
    longest = math.max(longest, line:match "^  %-%- %u" and utf8.len(line) or 0)
    live = live + select(2, line:gsub("%(live%)", ""))
  end
  t.ok(longest > 90 and longest <= 100, tostring(longest))
  t.ok(live >= 14)
  local flat = config.print():gsub("\n  %-%- ", " ")
  for _, key in ipairs(config.keys) do t.ok(flat:find(key.help, 1, true), key[1]) end
  for _, line in ipairs { 'host = "127.0.0.1"', "-- keys = { alice = os.getenv \"ALICE_KEY\" }",
    "preload = true", "-- defaults = { temperature = 0.7, max_tokens = 1024 }", "drain_s = 30",
    "limits = { values = 400000, text = 8388608, body = 33554432, connections = 4096, "
      .. 'pictures = 128, picture_bytes = "32M", picture_pixels = 50000000 }',
    '-- socket = "/run/perigee.sock"' } do
    t.ok(config.print():find("\n  " .. line .. ",\n", 1, true), line)
  end
end)
