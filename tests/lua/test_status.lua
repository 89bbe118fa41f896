-- serve.status and serve.metrics: whole answers, from models that are made up here.
local metrics = require "serve.metrics"
local perigee = require "perigee"
local status = require "serve.status"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

local STATS = { running = 2, waiting = 3, steps = 5, prefill_tokens = 7, decode_tokens = 11,
  cached_tokens = 13, finished = 17, cancelled = 19, failed = 23, preempted = 29, schedule = 0.5,
  compute = 1.5, sample = 2.5, lua = 3.5,
  prefix = { bytes = 31, disk_bytes = 37, nodes = 41, snapshots = 43, lookups = 47, hits = 53,
    hit_tokens = 59, asked_tokens = 61, evictions = 67, disk_reads = 71, disk_writes = 73,
    disk_errors = 79, more = "not shown" } }

--- A batch without an engine.
local function batch_of()
  local batch = { alive = 0, commands = {}, steps = {}, seqs = {
    { tag = { key = "alice" }, state = "waiting" }, { tag = { key = "alice" }, state = "decode" },
    { tag = { key = "alice" }, state = "prefill" }, { tag = { key = "bob" }, state = "waiting" },
    { state = "decode" } } }
  batch.now = {}
  for k, v in pairs(STATS) do batch.now[k] = v end
  function batch.stats() return batch.now end
  function batch.room() return 83, 89 end
  function batch.sequences() return batch.seqs end
  function batch.trace(_, n) return n == 256 and batch.steps or error "256 steps" end
  batch.core = { command = function(_, name)
    batch.commands[#batch.commands + 1] = name
    return true
  end }
  return batch
end

local function ready()
  return { name = "one", state = "ready", created = 97, context = 101, batch = batch_of(),
    model = { config = { model_type = "moon" } }, words = {}, timing = { load_s = 0.25 },
    memory = { weights = 1, caches = 2, activations = 3 } }
end

--- An application with these models; routes has the handlers.
local function app_of(entries, more)
  local app = { metrics = metrics.new(), accounts = {}, keys = {}, config = {}, draining = false,
    started = uv.hrtime() * 1e-9, routes = {}, options = {}, refused = {},
    models = { list = function() return entries end,
      find = function(_, id) return nil, "no " .. id end },
    scripts = { current = function() return { policy = { name = "fifo" } } end,
      status = function()
        return { error = "/home/me/site/x.lua:1: broken", scripts = {
          { name = "h", file = "/home/me/site/h.lua", strikes = { { n = 1, text = "secret" } } },
          { name = "g", strikes = {} } } }
      end } }
  function app.state() return app.health or "ok" end
  function app.route(_, method, path, handler, options)
    app.routes[method .. " " .. path], app.options[path] = handler, options or {}
  end
  function app.refuse(_, _, err) app.refused[#app.refused + 1] = err end
  for k, v in pairs(more or {}) do app[k] = v end
  status.routes(app)
  return app
end

--- The answer of a route: code, body (decoded if it is JSON), headers.
local function ask(app, path, request, params)
  local code, body, headers
  local response = {}
  function response.json(_, n, value) code, body = n, (json.decode(json.encode(value))) end
  function response.send(_, n, h, text)
    code, headers = n, h
    body = h["content-type"] == "application/json" and (json.decode(text)) or text
  end
  app.routes["GET " .. path](request or {}, response, params)
  return code, body, headers
end

local BATCH = { running = 2, waiting = 3, steps = 5, prefill_tokens = 7, decode_tokens = 11,
  cached_tokens = 13, finished = 17, cancelled = 19, failed = 23, preempted = 29,
  prefill_tokens_per_s = 0.0, decode_tokens_per_s = 0.0, cache_tokens = 89,
  cache_tokens_free = 83,
  prefix_cache = { bytes = 31, disk_bytes = 37, nodes = 41, snapshots = 43, lookups = 47, hits = 53,
    hit_tokens = 59, asked_tokens = 61, evictions = 67, disk_reads = 71, disk_writes = 73,
    disk_errors = 79 } }

local function copy(v)
  if type(v) ~= "table" then return v end
  local out = {}
  for k, x in pairs(v) do out[k] = copy(x) end
  return out
end

test("the status of a model that is ready, loading or failed", function(t)
  local entries = { ready(),
    { name = "two", state = "loading", loaded_bytes = 103 },
    { name = "three", state = "failed", error = "/home/me/model: is broken" } }
  local app = app_of(entries)
  local code, body = ask(app, "/v1/status")
  t.eq(code, 200)
  local models = copy(body.models)
  t.eq(models, {
    { id = "one", state = "ready", architecture = "moon", context = 101, chat = true,
      pictures = false, load_seconds = 0.25,
      memory = { weights = 1, caches = 2, activations = 3 }, batch = BATCH },
    { id = "two", state = "loading", loaded_bytes = 103 },
    { id = "three", state = "failed", error = "model: is broken" } })
  t.eq({ body.status, body.version, body.draining, body.policy, body.keys, body.connections },
    { "ok", perigee.version, false, "fifo", 0, 0 })
  t.ok(body.uptime_s >= 0 and body.uptime_s < 60)
  t.ok(body.memory.resident > 0 and body.memory.scripts > 0 and body.memory.available > 0)
  t.eq(body.memory.budget, json.null)
  t.eq(copy(body.scripts), { error = "x.lua:1: broken", scripts = {
    { name = "h", file = "h.lua", strikes = { { n = 1 } } }, { name = "g", strikes = {} } } })
  code, body = ask(app, "/admin/status")
  t.eq(code, 200)
  t.eq(body.models[3].error, "/home/me/model: is broken")
  t.eq({ body.scripts.error, body.scripts.scripts[1].strikes[1].text },
    { "/home/me/site/x.lua:1: broken", "secret" })
end)

test("a key sees nothing of others", function(t)
  local entry = ready()
  local app = app_of({ entry, { name = "bad", state = "failed", error = "x" } },
    { keys = { 1, 2 } })
  status.account(app, "alice", { model = "one", prompt_tokens = 10, completion_tokens = 4,
    cached_tokens = 3 })
  status.account(app, "alice", { model = "one", prompt_tokens = 100 })
  status.account(app, "bob", { model = "one", prompt_tokens = 1000 })
  status.account(app, nil, { model = "one", prompt_tokens = 1 })
  status.account(app, "alice", {})
  local _, body = ask(app, "/v1/status", { key = { name = "alice" } })
  t.eq(copy(body.models[1].batch), { running = 2, waiting = 1, prefill_tokens = 107,
    decode_tokens = 4, cached_tokens = 3, finished = 2,
    prefix_cache = { hit_tokens = 3, asked_tokens = 110 } })
  t.eq(copy(body.models[2]), { id = "bad", state = "failed" })
  t.eq({ body.keys, body.memory, body.connections }, {})
  t.eq(body.scripts.error, "the newest scripts cannot be used, the log says why")
  _, body = ask(app, "/v1/status", { key = { name = "carol" } })
  t.eq(copy(body.models[1].batch), { running = 0, waiting = 0, prefill_tokens = 0,
    decode_tokens = 0, cached_tokens = 0, finished = 0,
    prefix_cache = { hit_tokens = 0, asked_tokens = 0 } })
  app.keys = { 1 } -- alone, it sees all
  _, body = ask(app, "/v1/status", { key = { name = "alice" } })
  t.eq({ copy(body.models[1].batch), body.keys }, { BATCH, 1 })

  app.keys = { 1, 2 }
  local code, text, headers = ask(app, "/metrics", { key = { name = "alice" } })
  t.eq({ code, headers["content-type"] },
    { 200, "text/plain; version=0.0.4; charset=utf-8" })
  local uptime = tonumber(text:match "\nperigee_uptime_seconds (%S+)\n")
  t.ok(uptime >= 0 and uptime < 60)
  local lines = {}
  for line in text:gmatch "[^\n]+" do
    if not line:find "^#" and not line:find "uptime" then lines[#lines + 1] = line end
  end
  t.eq(lines, { 'perigee_prompt_tokens_total{model="bad"} 0',
    'perigee_prompt_tokens_total{model="one"} 110',
    'perigee_generated_tokens_total{model="bad"} 0',
    'perigee_generated_tokens_total{model="one"} 4',
    'perigee_cached_prompt_tokens_total{model="bad"} 0',
    'perigee_cached_prompt_tokens_total{model="one"} 3',
    'perigee_sequences_running{model="one"} 2', 'perigee_sequences_waiting{model="one"} 1',
    'perigee_model_state{model="bad",state="failed"} 1',
    'perigee_model_state{model="one",state="ready"} 1', "perigee_draining 0" })
  app.config.metrics_key = "alice"
  t.ok(select(2, ask(app, "/metrics", { key = { name = "alice" } })):find("steps_total", 1, true))
  t.ok(not select(2, ask(app, "/metrics", { key = { name = "bob" } })):find("steps_total", 1, true))
  t.eq(app.options["/metrics"], {})
  t.eq({ app.options["/admin/metrics"], app.options["/admin/status"], app.options["/health"] },
    { { unix_only = true }, { unix_only = true }, { auth = false } })
end)

test("all metrics of a server", function(t)
  local entry = ready()
  entry.pictures = { processor = {}, stats = function()
    return { image = 2, video = 3, tower_seconds = 0.5, hits = 7, shared = 11, misses = 13,
      bytes = 17 }
  end }
  local app = app_of({ entry, { name = "two", state = "loading" } }, { draining = true,
    server = { stats = function() return { connections = 19 } end } })
  app.models.media = { decoder = { stats = function()
    return { jobs = 23, died = 29, late = 31 }
  end } }
  local code, text = ask(app, "/admin/metrics")
  t.eq(code, 200)
  local uptime = tonumber(text:match "\nperigee_uptime_seconds (%S+)\n")
  t.ok(uptime >= 0 and uptime < 60)
  local lines, memory = {}, {}
  for line in text:gmatch "[^\n]+" do
    if line:find "^perigee_memory_bytes" and not line:find "model=" then
      memory[#memory + 1] = line:match 'what="(%w+)"'
    elseif not line:find "^#" and not line:find "uptime" then
      lines[#lines + 1] = line:match "^perigee_(.*)$"
    end
  end
  t.eq(memory, { "heap", "objects", "resident" })
  t.eq(lines, { 'prefill_tokens_total{model="one"} 7', 'decode_tokens_total{model="one"} 11',
    'steps_total{model="one"} 5', 'step_seconds_total{model="one",part="compute"} 1.5',
    'step_seconds_total{model="one",part="lua"} 3.5',
    'step_seconds_total{model="one",part="sample"} 2.5',
    'step_seconds_total{model="one",part="schedule"} 0.5', 'sequences_running{model="one"} 2',
    'sequences_waiting{model="one"} 3', 'preemptions_total{model="one"} 29',
    'prefix_cache_lookups_total{model="one"} 47', 'prefix_cache_hits_total{model="one"} 53',
    'prefix_cache_evictions_total{model="one"} 67',
    'prefix_cache_bytes{model="one",place="disk"} 37',
    'prefix_cache_bytes{model="one",place="memory"} 31', 'cache_tokens{kind="all",model="one"} 89',
    'cache_tokens{kind="free",model="one"} 83', 'pictures_total{kind="image",model="one"} 2',
    'pictures_total{kind="video",model="one"} 3', 'vision_seconds_total{model="one"} 0.5',
    'picture_cache_hits_total{model="one"} 18', 'picture_cache_misses_total{model="one"} 13',
    'picture_cache_bytes{model="one"} 17', "picture_decoder_jobs_total 23",
    "picture_decoder_restarts_total 60", 'memory_bytes{model="one",what="activations"} 3',
    'memory_bytes{model="one",what="caches"} 2', 'memory_bytes{model="one",what="weights"} 1',
    'model_state{model="one",state="ready"} 1', 'model_state{model="two",state="loading"} 1',
    "http_connections 19", "draining 1" })
  entry.state, entry.pictures = "unloaded", nil -- nothing of it is left but counters
  code, text = ask(app, "/admin/metrics")
  t.eq(code, 200)
  for _, gone in ipairs { "sequences_running{", "cache_tokens{", "picture_cache_bytes{",
    'state="ready"' } do
    t.ok(not text:find(gone, 1, true), gone)
  end
end)

test("a timer samples speed and step sizes, and gives memory back", function(t)
  local entry = ready()
  local app = app_of { entry, { name = "two", state = "loading" } }
  local timer, every, tick, closed = {}, nil, nil, false
  function timer.start(_, first, again, fn) every, tick = { first, again }, fn end
  function timer.unref() end
  function timer.close() closed = true end
  local new_timer, hrtime, now = uv.new_timer, uv.hrtime, 1000
  uv.new_timer = function() return timer end -- luacheck: ignore 122
  uv.hrtime = function() return math.tointeger(now * 1000000000) end -- luacheck: ignore 122
  local ok, why = pcall(function()
    local stop = status.start(app)
    t.eq(every, { 1000, 1000 })
    local batch = entry.batch
    batch.steps = { { at = 0, prefill = 1, decode = 2 }, { at = 1, prefill = 0, decode = 1 } }
    tick()
    t.eq(entry.seen.speed, { prefill = 0.0, decode = 0.0 })
    for _ = 1, 7 do -- 3 tokens read and 2 written per second, then more
      now = now + 1
      batch.now = { prefill_tokens = batch.now.prefill_tokens + 3,
        decode_tokens = batch.now.decode_tokens + 2 }
      tick()
    end
    t.eq(entry.seen.speed, { prefill = 3.0, decode = 2.0 })
    now, batch.now = now + 1, { prefill_tokens = batch.now.prefill_tokens + 13,
      decode_tokens = batch.now.decode_tokens + 7 }
    tick()
    t.eq(entry.seen.speed, { prefill = 5.0, decode = 3.0 }) -- of the last five seconds
    t.eq(#entry.seen.ring, 6)
    t.match(app.metrics.batch_sequences.series['model="one"'].n .. "", "^2$") -- each step once
    t.eq(app.metrics.batch_sequences.series['model="one"'].sum, 4)
    t.eq(batch.commands, {})
    now = 1060
    tick()
    t.eq(batch.commands, {}) -- a minute exactly
    now = 1060.5
    tick()
    tick()
    t.eq(batch.commands, { "relax" }) -- once
    batch.alive = 1
    tick()
    batch.alive, now = 0, 1121
    tick()
    t.eq(#batch.commands, 2)
    stop()
    t.eq(closed, true)
  end)
  uv.new_timer, uv.hrtime = new_timer, hrtime -- luacheck: ignore 122
  if not ok then error(why, 0) end
end)

test("lists of models, and health", function(t)
  local seeing = ready()
  seeing.pictures = { processor = { plan_video = function() end } }
  local still = ready()
  still.name, still.pictures = "still", { processor = {} }
  local app = app_of { seeing, still, { name = "new", state = "unloaded" } }
  local code, body = ask(app, "/v1/models")
  local function model(id, context, more)
    local out = { id = id, object = "model", type = "model", display_name = id, created = 97,
      created_at = "1970-01-01T00:01:37Z", owned_by = "perigee", max_model_len = context,
      context_length = context, max_input_tokens = context, max_tokens = context, state = "ready" }
    for key, value in pairs(more) do out[key] = value end
    return out
  end
  t.eq({ code, copy(body) }, { 200, { object = "list", has_more = false, first_id = "one",
    last_id = "new", data = {
      model("one", 101, { input_modalities = { "text", "image", "video" } }),
      model("still", 101, { input_modalities = { "text", "image" } }),
      model("new", json.null, { created = 0, created_at = "1970-01-01T00:00:00Z",
        state = "unloaded", input_modalities = { "text" } }) } } })
  code, body = ask(app, "/v1/models/{id*}", {}, { id = "still" })
  t.eq({ code, body.id }, { 200, "still" })
  ask(app, "/v1/models/{id*}", {}, { id = "none" })
  t.eq(app.refused, { "no none" })
  app.models.find = function(_, id) return id == "alias" and still or nil end
  code, body = ask(app, "/v1/models/{id*}", {}, { id = "alias" })
  t.eq({ code, body.id }, { 200, "still" })
  t.eq({ ask(app, "/health") }, { 200, json.object { { "status", "ok" } } })
  app.health = "loading"
  local headers
  code, body, headers = ask(app, "/health")
  t.eq({ code, copy(body), headers["retry-after"] }, { 503,
    { status = "loading", models = { one = "ready", still = "ready", new = "unloaded" } }, "5" })
end)

-- Family, kind; histograms: of seconds or sizes.
local KINDS = { counter = "requests rejected answers prompt_tokens generated_tokens cached_tokens "
    .. "prefill_tokens decode_tokens steps step_seconds preempted cache_lookups cache_hits "
    .. "cache_evictions pictures tower_seconds feature_hits feature_misses decoder_jobs "
    .. "decoder_restarts strikes dropped",
  gauge = "running waiting cache_bytes cache_tokens feature_bytes memory models connections uptime "
    .. "draining stale scripts_version", histogram = "duration ttft inter_token queue_time "
    .. "batch_sequences" }

test("families of metrics and their buckets", function(t)
  local m, n = metrics.new(), 0
  for kind, names in pairs(KINDS) do
    for name in names:gmatch "%S+" do
      t.eq(m[name].kind, kind, name)
      n = n + 1
    end
  end
  t.eq({ n, #metrics.families, metrics.SERIES }, { #m.list, n, 1000 })
  local seconds = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
    120 }
  for _, name in ipairs { "duration", "ttft", "inter_token", "queue_time" } do
    t.eq(m[name].buckets, seconds)
  end
  t.eq(m:histogram("perigee_x", "x").buckets, seconds)
  t.eq(m.batch_sequences.buckets, { 1, 2, 4, 8, 16, 32, 64, 128, 256 })
  m.uptime:set(0 / 0)
  m.draining:set(math.huge)
  m.stale:set(-math.huge)
  m.steps:add()
  m.steps:add(2)
  m.waiting:add(-1)
  m.waiting:clear()
  local out = m:text()
  for _, line in ipairs { "perigee_uptime_seconds NaN", "perigee_draining +Inf",
    "perigee_script_stale -Inf", "perigee_steps_total 3" } do
    t.ok(out:find("\n" .. line .. "\n", 1, true), line)
  end
  t.ok(not out:find "sequences_waiting")
  t.raises(function() m:gauge("perigee_steps_total", "x") end,
    "perigee_steps_total is already a counter, it cannot be a gauge")
end)
