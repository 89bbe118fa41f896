-- status: the routes /health, /metrics, /v1/status, /admin/status, /admin/metrics and /v1/models.
--
-- A timer samples every batch once a second, for the tokens per second of the last WINDOW seconds
-- and the sizes of steps. Everything else is read on request.
local metrics = require "serve.metrics"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local TICK_MS, WINDOW = 1000, 5
local EXPOSITION = { ["content-type"] = "text/plain; version=0.0.4; charset=utf-8" }

local status = {}

-- ---- sampling -----------------------------------------------------------------------------------

--- The samples of a model; removed when it is unloaded.
local function seen_of(entry)
  entry.seen = entry.seen or { step = -1, ring = {}, speed = { prefill = 0.0, decode = 0.0 } }
  return entry.seen
end

--- Records the sizes of the steps since the last sample.
local function observe_steps(app, entry)
  local seen = seen_of(entry)
  for _, t in ipairs(entry.batch:trace(256)) do
    if t.at > seen.step then
      seen.step = t.at
      app.metrics.batch_sequences:observe(t.prefill + t.decode, { model = entry.name })
    end
  end
end

--- Tokens per second over the last WINDOW ticks.
local function observe_speed(entry, now)
  local stats, seen = entry.batch:stats(), seen_of(entry)
  local ring = seen.ring
  ring[#ring + 1] = { at = now, read = stats.prefill_tokens, written = stats.decode_tokens }
  if #ring > WINDOW + 1 then table.remove(ring, 1) end
  local first, last = ring[1], ring[#ring]
  local seconds = last.at - first.at
  if seconds <= 0 then return end
  seen.speed = { prefill = (last.read - first.read) / seconds,
    decode = (last.written - first.written) / seconds }
end

--- After a minute without sequences, memory that the caches do not use goes back to the system.
--- Sooner would cost the next request: taking 100 MB again takes about 0.1 s.
local function relax(entry, now)
  local seen = seen_of(entry)
  if entry.batch.alive > 0 or not seen.busy then
    seen.busy, seen.relaxed = now, false
  elseif not seen.relaxed and now - seen.busy > 60 then
    seen.relaxed = entry.batch.core:command "relax"
  end
end

local function tick(app)
  local now = uv.hrtime() * 1e-9
  for _, entry in ipairs(app.models:list()) do
    if entry.state == "ready" then
      observe_steps(app, entry)
      observe_speed(entry, now)
      relax(entry, now)
    end
  end
end

-- ---- metrics ------------------------------------------------------------------------------------

local function set_memory(app)
  local m = app.metrics.memory
  m:clear()
  local objects = select(2, perigee.live())
  m:set(math.tointeger(uv.resident_set_memory()), { what = "resident" })
  m:set((perigee.heap()), { what = "heap" })
  m:set(objects, { what = "objects" })
  for _, entry in ipairs(app.models:list()) do
    for _, what in ipairs(entry.memory and { "weights", "caches", "activations" } or {}) do
      m:set(entry.memory[what], { what = what, model = entry.name })
    end
  end
end

-- Metric family, field of batch:stats(); and the same for its prefix cache.
local counters = { { "prefill_tokens", "prefill_tokens" }, { "decode_tokens", "decode_tokens" },
  { "steps", "steps" }, { "preempted", "preempted" }, { "running", "running" },
  { "waiting", "waiting" } }
local prefix_counters = { { "cache_lookups", "lookups" }, { "cache_hits", "hits" },
  { "cache_evictions", "evictions" } }

local function set_batch(app, entry)
  local m, labels = app.metrics, { model = entry.name }
  local stats = entry.batch:stats()
  for _, c in ipairs(counters) do m[c[1]]:set(stats[c[2]], labels) end
  for _, c in ipairs(prefix_counters) do m[c[1]]:set(stats.prefix[c[2]], labels) end
  for _, part in ipairs { "schedule", "compute", "sample", "lua" } do
    m.step_seconds:set(stats[part], { model = entry.name, part = part })
  end
  m.cache_bytes:set(stats.prefix.bytes, { model = entry.name, place = "memory" })
  m.cache_bytes:set(stats.prefix.disk_bytes, { model = entry.name, place = "disk" })
  local free, all = entry.batch:room()
  m.cache_tokens:set(free, { model = entry.name, kind = "free" })
  m.cache_tokens:set(all, { model = entry.name, kind = "all" })
end

local function set_pictures(app, entry)
  local m, labels = app.metrics, { model = entry.name }
  local stats = entry.pictures:stats()
  for _, kind in ipairs { "image", "video" } do
    m.pictures:set(stats[kind], { model = entry.name, kind = kind })
  end
  m.tower_seconds:set(stats.tower_seconds, labels)
  m.feature_hits:set(stats.hits + stats.shared, labels)
  m.feature_misses:set(stats.misses, labels)
  m.feature_bytes:set(stats.bytes, labels)
end

local function set_decoder(app)
  local media = app.models.media
  if not media then return end
  local stats = media.decoder:stats()
  app.metrics.decoder_jobs:set(stats.jobs)
  app.metrics.decoder_restarts:set(stats.died + stats.late)
end

local function collect(app)
  local m = app.metrics
  m.uptime:set(uv.hrtime() * 1e-9 - app.started)
  m.draining:set(app.draining and 1 or 0)
  m.connections:set(app.server and app.server:stats().connections or 0)
  for _, family in ipairs { "models", "running", "waiting", "cache_bytes", "cache_tokens",
    "feature_bytes" } do
    m[family]:clear()
  end
  set_memory(app)
  set_decoder(app)
  for _, entry in ipairs(app.models:list()) do
    m.models:set(1, { model = entry.name, state = entry.state })
    if entry.state == "ready" then set_batch(app, entry) end
    if entry.pictures then set_pictures(app, entry) end
  end
end

--- Sequences of one key in a batch: running, waiting.
local function own_sequences(entry, key)
  local running, waiting = 0, 0
  for _, seq in ipairs(entry.batch:sequences()) do
    if type(seq.tag) == "table" and seq.tag.key == key then
      if seq.state == "waiting" then waiting = waiting + 1 else running = running + 1 end
    end
  end
  return running, waiting
end

--- What one key sees of the metrics of a server that it shares with others: its own counts (see
--- status.account), under the names of the totals.
local function own_metrics(app, key)
  local m = metrics.new()
  m.uptime:set(uv.hrtime() * 1e-9 - app.started)
  m.draining:set(app.draining and 1 or 0)
  for _, entry in ipairs(app.models:list()) do
    local labels = { model = entry.name }
    m.models:set(1, { model = entry.name, state = entry.state })
    local of = app.accounts[key] and app.accounts[key][entry.name] or {}
    m.prompt_tokens:set(of.prompt or 0, labels)
    m.generated_tokens:set(of.completion or 0, labels)
    m.cached_tokens:set(of.cached or 0, labels)
    if entry.state == "ready" then
      local running, waiting = own_sequences(entry, key)
      m.running:set(running, labels)
      m.waiting:set(waiting, labels)
    end
  end
  return m:text()
end

--- The metrics as seen by a key: all of them if there is but one, or it is config.metrics_key.
local function metrics_text(app, key)
  if not key or #app.keys < 2 or key == app.config.metrics_key then return app.metrics:text() end
  return own_metrics(app, key)
end

-- ---- JSON ---------------------------------------------------------------------------------------

--- What a request may send: text, and for a model with a vision tower pictures and perhaps videos.
local function modalities(entry)
  local list = json.array { "text" }
  if entry.pictures then
    list[2] = "image"
    if entry.pictures.processor.plan_video then list[3] = "video" end
  end
  return list
end

--- A model as the clients of all APIs read it: each vendor has names of its own for the same.
local function model_object(entry)
  local created, context = entry.created or 0, entry.context or json.null
  return json.object { { "id", entry.name }, { "object", "model" }, { "type", "model" },
    { "display_name", entry.name }, { "created", created },
    { "created_at", os.date("!%Y-%m-%dT%H:%M:%SZ", created) }, { "owned_by", "perigee" },
    { "max_model_len", context }, { "context_length", context }, { "max_input_tokens", context },
    { "max_tokens", context }, { "state", entry.state },
    { "input_modalities", modalities(entry) } }
end

local function model_list(entries)
  local data = json.array {}
  for i, entry in ipairs(entries) do data[i] = model_object(entry) end
  local first, last = data[1], data[#data]
  return json.object { { "object", "list" }, { "data", data }, { "has_more", false },
    { "first_id", first and first.id or json.null }, { "last_id", last and last.id or json.null } }
end

local function prefix_object(p)
  local object = json.object {}
  for _, name in ipairs { "bytes", "disk_bytes", "nodes", "snapshots", "lookups", "hits",
    "hit_tokens", "asked_tokens", "evictions", "disk_reads", "disk_writes", "disk_errors" } do
    object[name] = p[name]
  end
  return object
end

local function batch_object(entry)
  local stats, free, all = entry.batch:stats(), entry.batch:room()
  local speed = seen_of(entry).speed
  return json.object { { "running", stats.running }, { "waiting", stats.waiting },
    { "steps", stats.steps }, { "prefill_tokens", stats.prefill_tokens },
    { "decode_tokens", stats.decode_tokens }, { "cached_tokens", stats.cached_tokens },
    { "finished", stats.finished }, { "cancelled", stats.cancelled },
    { "failed", stats.failed }, { "preempted", stats.preempted },
    { "prefill_tokens_per_s", speed.prefill }, { "decode_tokens_per_s", speed.decode },
    { "cache_tokens", all }, { "cache_tokens_free", free },
    { "prefix_cache", prefix_object(stats.prefix) } }
end

--- What one key sees of a batch that it shares with others: its own sequences, and its own counts
--- (see status.account).
local function own_batch_object(app, entry, key)
  local running, waiting = own_sequences(entry, key)
  local of = app.accounts[key] and app.accounts[key][entry.name] or {}
  local prompt, cached = of.prompt or 0, of.cached or 0
  return json.object { { "running", running }, { "waiting", waiting },
    { "prefill_tokens", prompt - cached }, { "decode_tokens", of.completion or 0 },
    { "cached_tokens", cached }, { "finished", of.requests or 0 },
    { "prefix_cache", json.object { { "hit_tokens", cached }, { "asked_tokens", prompt } } } }
end

--- Counts a finished request for its key. facts: see serve/init.lua.
function status.account(app, key, facts)
  if not (key and facts.model) then return end
  local of_key = app.accounts[key] or {}
  app.accounts[key] = of_key
  local of = of_key[facts.model] or { requests = 0, prompt = 0, completion = 0, cached = 0 }
  of_key[facts.model] = of
  of.requests = of.requests + 1
  of.prompt = of.prompt + (facts.prompt_tokens or 0)
  of.completion = of.completion + (facts.completion_tokens or 0)
  of.cached = of.cached + (facts.cached_tokens or 0)
end

--- A message without the folders of its paths.
local function without_folders(message)
  return (message:gsub("/[^%s:'\"]*/", ""))
end

local function status_of_model(app, entry, view)
  local list = { { "id", entry.name }, { "state", entry.state } }
  local function put(name, value)
    if value ~= nil then list[#list + 1] = { name, value } end
  end
  if entry.error and not view.key then
    put("error", view.all and entry.error or without_folders(entry.error))
  end
  if entry.state == "loading" then put("loaded_bytes", entry.loaded_bytes) end
  if entry.state == "ready" then
    put("architecture", entry.model.config.model_type)
    put("context", entry.context)
    put("chat", entry.words ~= nil)
    put("pictures", entry.pictures ~= nil)
    put("load_seconds", entry.timing.load_s)
    put("memory",
      json.object { { "weights", entry.memory.weights }, { "caches", entry.memory.caches },
      { "activations", entry.memory.activations } })
    put("batch", view.shared and own_batch_object(app, entry, view.key) or batch_object(entry))
  end
  return json.object(list)
end

--- The scripts without texts of errors, which may quote the prompts of others, and without paths of
--- the machine. Only where there are no keys, why scripts could not be loaded is shown.
local function public_scripts(app, view)
  local scripts = app.scripts:status()
  for _, script in ipairs(scripts.scripts) do
    script.file = script.file and script.file:match "[^/]*$"
    for _, strike in ipairs(script.strikes) do strike.text = nil end
  end
  if scripts.error then
    scripts.error = view.key and "the newest scripts cannot be used, the log says why"
      or without_folders(scripts.error)
  end
  return scripts
end

--- The status as seen by: { all = true } the Unix socket, { key } a key, {} anyone without keys.
--- With several keys, one sees nothing of what the others do.
function status.object(app, view)
  local models = json.array {}
  view.shared = view.key and #app.keys > 1
  for i, entry in ipairs(app.models:list()) do models[i] = status_of_model(app, entry, view) end
  local list = { { "status", app:state() }, { "version", perigee.version },
    { "uptime_s", uv.hrtime() * 1e-9 - app.started }, { "draining", app.draining },
    { "policy", app.scripts:current().policy.name }, { "models", models },
    { "scripts", view.all and app.scripts:status() or public_scripts(app, view) } }
  if view.shared then return json.object(list) end
  local machine = perigee.sys.machine()
  list[#list + 1] = { "keys", #app.keys }
  list[#list + 1] = { "memory", json.object {
    { "resident", math.tointeger(uv.resident_set_memory()) }, { "scripts", (perigee.heap()) },
    { "available", machine.memory_available }, { "budget", app.config.memory or json.null } } }
  list[#list + 1] = { "connections", app.server and app.server:stats().connections or 0 }
  return json.object(list)
end

-- ---- routes -------------------------------------------------------------------------------------

local function health(app, response)
  local state = app:state()
  if state == "ok" then return response:json(200, json.object { { "status", "ok" } }) end
  local models = json.object {}
  for _, entry in ipairs(app.models:list()) do models[entry.name] = entry.state end
  response:send(503, { ["content-type"] = "application/json", ["retry-after"] = "5" },
    json.encode(json.object { { "status", state }, { "models", models } }))
end

function status.routes(app)
  app.metrics:collect(function() collect(app) end)
  app:route("GET", "/health", function(_, response) health(app, response) end, { auth = false })
  app:route("GET", "/metrics", function(request, response)
    response:send(200, EXPOSITION, metrics_text(app, request.key and request.key.name))
  end)
  app:route("GET", "/admin/metrics", function(_, response)
    response:send(200, EXPOSITION, app.metrics:text())
  end, { unix_only = true })
  app:route("GET", "/v1/status", function(request, response)
    response:json(200, status.object(app, { key = request.key and request.key.name }))
  end)
  app:route("GET", "/admin/status", function(_, response)
    response:json(200, status.object(app, { all = true }))
  end, { unix_only = true })
  app:route("GET", "/v1/models", function(_, response)
    response:json(200, model_list(app.models:list()))
  end)
  app:route("GET", "/v1/models/{id*}", function(_, response, params)
    for _, entry in ipairs(app.models:list()) do
      if entry.name == params.id then return response:json(200, model_object(entry)) end
    end
    local entry, err = app.models:find(params.id) -- by another name
    if entry then return response:json(200, model_object(entry)) end
    app:refuse(response, err)
  end)
end

--- Starts the timer; returns a function that stops it.
function status.start(app)
  local timer = uv.new_timer()
  timer:start(TICK_MS, TICK_MS, function() tick(app) end)
  timer:unref()
  return function() timer:close() end
end

return status
