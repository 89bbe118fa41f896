-- cmd.serve without a server: what the options become, and what the terminal shows.
local app_of = require "serve"
local command = require "lib.command"
local perigee = require "perigee"
local serve = require "cmd.serve"
local signals = require "serve.signals"
local stderr = require "lib.stderr"
local test = require("harness").test

--- Runs the command with an application that is made up; returns what was given to it, the status,
--- the message, and what was written: { out, err, started, stopped }.
local function run(opts, entries, more)
  local seen = { out = {}, err = {}, fails = {} }
  local app = { keys = {}, places = { { address = "http://127.0.0.1:5", port = 5 } }, config = {},
    models = { list = function() return entries or {} end, find = function() return nil end,
      state = function() return "failed" end },
    scripts = { current = function() return { policy = { name = "fifo" }, version = 3 } end } }
  for k, v in pairs(more or {}) do app[k] = v end
  function app.start() return app.places end
  function app.stop() seen.stopped = true end
  local real, stdout = { app_of.new, signals.start, stderr.write, command.fail }, io.stdout
  app_of.new = function(o)
    seen.given = o
    return app
  end
  signals.start = function() seen.started = true end
  stderr.write = function(...) seen.err[#seen.err + 1] = table.concat { ... } end
  command.fail = function(status, what, why)
    seen.fails[#seen.fails + 1] = ("%d %s: %s"):format(status, what, why)
    return status
  end
  local out = { write = function(_, ...) seen.out[#seen.out + 1] = table.concat { ... } end,
    flush = function() end }
  io.stdout = out -- luacheck: ignore 122
  local ok, status, why = pcall(serve.run, opts)
  if ok and app.on_ready and seen.ready ~= false then
    ok, seen.late = pcall(app.on_ready, (more or {}).ready or 1)
  end
  app_of.new, signals.start, stderr.write, command.fail = table.unpack(real)
  io.stdout = stdout -- luacheck: ignore 122
  if not ok then error(status, 0) end
  seen.status, seen.why, seen.app = status, why, app
  return seen
end

local READY = { name = "one", state = "ready", context = 64, words = {},
  model = { config = { model_type = "moon" } },
  memory = { weights = 1 << 20, caches = 2 << 20, tokens = 99, activations = 1024 } }

test("options become the configuration", function(t)
  local seen = run({ host = "0.0.0.0", port = 1, socket = "s", sequences = 2, step_tokens = 3,
    context = 4, memory = 5, threads = 6, policy = "fair", site = "site", log = "l",
    cache_folder = "c", cache_bytes = 7, cache_disk_bytes = 8, drain_s = 9, kv_bits = "8",
    allow_host = { "h" }, cors = { "o" }, cache_per_key = "off", api_key = { "a=A", "B" } },
    { READY })
  local line = seen.given.line
  t.eq(line, { host = "0.0.0.0", port = 1, socket = "s", sequences = 2, step_tokens = 3,
    context = 4, memory = 5, threads = 6, policy = "fair", site = "site", log = "l",
    cache_folder = "c", cache_bytes = 7, cache_disk_bytes = 8, drain_s = 9, kv_bits = 8,
    hosts = { "h" }, cors = { origins = { "o" } }, cache_per_key = false,
    keys = { a = "A", key1 = "B" } })
  t.eq({ seen.given.config.kv_bits, seen.given.config.host, seen.given.config.keys },
    { 8, "0.0.0.0", { a = "A", key1 = "B" } })
  t.eq({ seen.status, seen.started, seen.out }, { 0, true, { "http://127.0.0.1:5\n" } })
  for given, want in pairs { on = true, auto = "auto" } do
    t.eq(run({ cache_per_key = given }, { READY }).given.line.cache_per_key, want)
  end
  t.eq(run({}, { READY }).given.line, {})
  t.eq(run({ no_log = true, log = "x" }, { READY }).given.line.log, false)
end)

test("models of the command line", function(t)
  local function models(...)
    local seen = run({ ... }, { READY })
    return seen.given and seen.given.models or { seen.status, seen.why }
  end
  t.eq(models("examples/moonlet", "two=examples/moonlet"), {
    { name = "moonlet", path = "examples/moonlet" }, { name = "two", path = "examples/moonlet" } })
  t.eq(models("examples/moonlet", "examples/moonlet"), { nil, "two models are named 'moonlet'" })
  t.eq(models "x=/nowhere", { nil, "/nowhere: no such model" })
  t.eq(models "/nowhere", { nil, "/nowhere: no such model" })
end)

test("mistakes", function(t)
  local function fails(opts, want, ...)
    local seen = run(opts, ...)
    t.eq(seen.fails[1] or seen.why, want)
  end
  fails({}, "2 serve: no model: give MODEL, or `models` in --config", {})
  fails({ api_key = { "a=" } },
    "2 serve: --api-key: no key after 'NAME=' (a key that ends in '=' needs a name: NAME=KEY)")
  fails({ port = -1 }, "2 serve: port must be between 0 and 65535, got -1")
  fails({ config = "/nowhere.lua" }, "1 serve: /nowhere.lua: No such file or directory")
  fails({ precision = "half" }, '2 serve: precision must be one of exact, fast, got "half"')
  fails({}, "1 serve: one: broken", { { name = "one", state = "failed", error = "broken" } },
    { ready = 0 })
  local seen = run({}, { { name = "one", state = "failed", error = "broken" } }, { ready = 0 })
  t.eq({ seen.stopped, seen.app.exit_status, seen.why() }, { true, 1, 1 })
  seen = run({}, { { name = "one", state = "unloaded" } }, { ready = 0,
    models = { list = function() return { { name = "one", state = "unloaded" } } end,
      find = function() end, state = function() return "ready" end } })
  t.eq({ seen.stopped, seen.why() }, { nil, 0 })
end)

test("what the terminal shows", function(t)
  local text = run({}, { READY }).err[1]
  t.eq(text, "perigee " .. perigee.version .. [[

  address   http://127.0.0.1:5
  model     one: moon, context 64
  memory    weights 1.0 MiB, caches 2.0 MiB (99 tokens), activations 1.0 KiB
  policy    fifo
  API keys  none: anyone may use this server
  scripts   version 3

  browser:   http://127.0.0.1:5/
  curl:      curl http://127.0.0.1:5/v1/chat/completions \
               -d '{"messages": [{"role": "user", "content": "Hello!"}]}'
  Python:    from openai import OpenAI
             client = OpenAI(base_url="http://127.0.0.1:5/v1", api_key="none")
             messages = [{"role": "user", "content": "Hello!"}]
             answer = client.chat.completions.create(model="one", messages=messages)
             print(answer.choices[0].message.content)

]])
  local bare = { name = "two", state = "ready", context = 5, model = { config = {} },
    memory = READY.memory }
  text = run({}, { bare, { name = "x", state = "failed", error = "why" },
    { name = "y", state = "unloaded" } }, { keys = { 1, 2 }, config = { site = "mine" },
    places = { { address = "/run/s" } } }).err[1]
  t.eq(text, "perigee " .. perigee.version .. [[

  address   /run/s
  model     two: ?, context 5, no chat template
  memory    weights 1.0 MiB, caches 2.0 MiB (99 tokens), activations 1.0 KiB
  model     x: failed: why
  model     y: unloaded
  policy    fifo
  API keys  2
  scripts   version 3 of mine
]])
  text = run({}, { READY }, { keys = { 1 } }).err[1]
  t.ok(text:find("completions -H 'authorization: Bearer KEY' \\", 1, true))
  t.ok(text:find('api_key="KEY"', 1, true))
end)
