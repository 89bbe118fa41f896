-- serve: the application between HTTP and the models.
--
--   local app = assert(require("serve").new { config = merged, file = path, line = command line })
--   assert(app:start())                        -- listens, and loads the models in the background
--   app:stop()                                 -- drains and closes; a second call does not wait
--
-- A request passes the gate (Host, origin, key), the rate limits and then the handler of its route,
-- in its own task. Each part registers its routes with app:route. The parts share these fields of
-- `app`:
--
--   config    the merged configuration (serve/config); a reload changes live keys in place
--   models    serve/models        metrics   serve/metrics       log       serve/log
--   scripts   hooks/reload        routes    http.router()       draining  true while it stops
--   keys      the API keys, { name, key }                       started   seconds of uv.hrtime
--   accounts  tokens and requests by key and model (serve/status)
--
-- A handler puts facts for the access log into request.log: model, prompt_tokens,
-- completion_tokens, cached_tokens, ttft_ms, finish.
local admin = require "serve.admin"
local api = require "api"
local async = require "lib.async"
local model_files = require "serve.changed"
local config = require "serve.config"
local dialect = require "api.dialect"
local errors = require "lib.errors"
local gate = require "serve.gate"
local http = require "http"
local idle = require "serve.idle"
local LIMITS = require("http.server").LIMITS
local logs = require "serve.log"
local metrics = require "serve.metrics"
local models = require "serve.models"
local pages = require "serve.pages"
local peers = require "http.peer"
local perigee = require "perigee"
local rates = require "serve.rate"
local reload = require "hooks.reload"
local status = require "serve.status"
local text = require "lib.text"
local uv = require "luv"

local POLL_MS = 20 -- how often `stop` looks whether requests are still running
local CLOSE_S = 2 -- for the last bytes of responses
-- Bytes of a body that a route takes which does not compute: a few settings, or nothing at all. No
-- less than a read of a socket, since shorter bodies come with their head.
local SMALL_BODY, NO_BODY = 1 << 20, 64 << 10
local OWN_FILES = 64 -- files besides connections: models, logs, watches, the loop's own
local BODILESS = { GET = true, HEAD = true, DELETE = true, OPTIONS = true }

local App = {}
App.__index = App

-- ---- handling requests --------------------------------------------------------------------------

--- Sends a request error (lib/errors.lua) in the dialect of the request's path.
function App:refuse(response, err)
  if err.status == 429 or err.status == 503 then
    self.metrics.rejected:add(1, { reason = err.code })
  end
  return dialect.send(response, err)
end

--- Registers a handler(request, response, params). Options: auth = false (no API key needed),
--- unix_only (Unix socket only), cost (subject to rate limits, and refused while draining).
function App:route(method, path, handler, options)
  self.routes:on(method, path,
    { handler = handler, options = options or {}, path = path, method = method })
end

--- The checks before routing. Returns a refusal or nil.
local function check_origin(self, request)
  return gate.host(self.config, request) or gate.origin(self.config, request)
end

--- The checks of the route. Returns a refusal or nil; sets request.key.
local function check_route(self, request, response, options)
  local unix = request["local"] == "unix"
  if options.unix_only and not unix then
    return errors.new { status = 403, code = "unix_socket_only",
      message = "this is answered on the Unix socket only (--socket PATH)" }
  end
  if options.auth ~= false and #self.keys > 0 and not (unix and options.unix_only) then
    local key, refusal = gate.key(self.keys, request)
    if not key then return refusal end
    request.key = key
  end
  if not options.cost then return nil end
  if self.draining then
    return errors.new { status = 503, code = "draining", message = "this server is shutting down",
      retry_after = self.config.drain_s }
  end
  local who = { name = request.key and request.key.name, peer = request.peer }
  local _, refusal, headers = self.rate:take(who)
  for name, value in pairs(headers or {}) do response:set(name, value) end
  return refusal
end

--- There is no route for this path, or none for this method: the refusal.
local function no_route(request, response, allow)
  local where = request.path:sub(1, 200)
  if not allow then
    return errors.new { status = 404, code = "not_found",
      message = "there is nothing at " .. where }
  end
  response:set("allow", allow)
  return errors.new { status = 405, code = "method_not_allowed",
    message = ("%s takes %s, not %s"):format(where, allow, request.method) }
end

local function round(x) return math.floor(x * 1000 + 0.5) / 1000 end

--- Logs a finished request, charges its tokens and counts it.
local function finished(self, entry)
  local request = entry.request
  local facts = request and request.log or {}
  local key = request and request.key and request.key.name
  local tokens = (facts.prompt_tokens or 0) + (facts.completion_tokens or 0)
  if request then self.rate:charge({ name = key, peer = request.peer }, tokens) end
  status.account(self, key, facts)
  local route = request and request.route
  self.metrics.requests:add(1, { route = route and route.path or "none",
    method = route and entry.method or "other",
    status = entry.status or 0 })
  if route and route.options.cost then self.metrics.duration:observe(entry.ms / 1e3) end
  self.log:access { id = entry.id, client_id = request and request.client_id, key = key,
    peer = request and request.peer or entry.peer, method = entry.method,
    path = entry.path, status = entry.status, ms = entry.ms and round(entry.ms),
    bytes = entry.bytes, model = facts.model, prompt_tokens = facts.prompt_tokens,
    completion_tokens = facts.completion_tokens, cached_tokens = facts.cached_tokens,
    ttft_ms = facts.ttft_ms, finish = facts.finish,
    error = entry.message or entry.aborted and "the client disconnected" or nil }
end

--- Everything that can be said about a request without its body: { refusal = err } or { send =
--- headers of a 204 } or { route, params }.
local function inspect(self, request, response)
  request.peer = peers.client(request.peer, request:header "x-forwarded-for", self.trusts)
  for name, value in pairs(gate.cors(self.config, request) or {}) do response:set(name, value) end
  local refusal = check_origin(self, request)
  if refusal then return { refusal = refusal } end
  local preflight = gate.preflight(self.config, request)
  if preflight then return { send = preflight } end
  if request.method == "OPTIONS" and request.target == "*" then
    return { send = { allow = "GET, HEAD, POST, DELETE, OPTIONS" } }
  end
  local route, params, allow = self.routes:match(request.method, request.raw_path)
  if not route then return { refusal = no_route(request, response, allow) } end
  request.route = route
  refusal = check_route(self, request, response, route.options)
  if refusal then return { refusal = refusal } end
  request.owner = request.key and "key " .. request.key.name
    or peers.network(request.peer or "unix")
  return { route = route, params = params }
end

--- Bytes of the body that a route takes: those that cost something take what limits.body says.
local function body_limit(self, route)
  local most = self.server.limits.body
  if route.options.cost then return most end
  return math.min(most, BODILESS[route.method] and NO_BODY or SMALL_BODY)
end

--- http.server's gate: the body has not come yet.
local function before_body(self, request, response)
  local verdict = inspect(self, request, response)
  request.verdict = verdict
  if not verdict.route then return { stop = true } end
  return { body = body_limit(self, verdict.route), owner = request.owner }
end

local function pass(self, request, response)
  local verdict = request.verdict or inspect(self, request, response)
  if verdict.refusal then return self:refuse(response, verdict.refusal) end
  if verdict.send then return response:send(204, verdict.send, "") end
  local route = verdict.route
  if not route.options.cost then return route.handler(request, response, verdict.params) end
  self.working = self.working + 1
  local ok, why = pcall(route.handler, request, response, verdict.params)
  self.working = self.working - 1
  if not ok then error(why, 0) end
end

--- An entry of the HTTP server's log. If the handler still runs, the entry waits for it, because
--- the handler may add to request.log after the response. It may also come after the handler, if
--- that raised or the client left.
local function note_answer(self, entry)
  local request = entry.request
  if request and request.in_hand then request.entry = entry else finished(self, entry) end
end

local function answer(self, request, response)
  request.log, request.in_hand = {}, true
  local _ <close> = setmetatable({}, { __close = function() -- however it ends
    request.in_hand = false
    if request.entry then finished(self, request.entry) end
  end })
  return pass(self, request, response)
end

-- ---- state --------------------------------------------------------------------------------------

--- "ok", "loading", "failed" or "draining".
function App:state()
  if self.draining then return "draining" end
  local state = self.models:state()
  return state == "ready" and "ok" or state
end

--- Does the configuration fit the models? True, or nil and a message.
local function check_names(self, settings)
  local name = settings.default
  if name and not self.models.by_name[name] then
    return nil, ("default: there is no model '%s'"):format(name)
  end
  for alias, model in pairs(settings.aliases or {}) do
    if not self.models.by_name[model] then
      return nil, ("aliases: '%s' stands for '%s', but there is no such model"):format(alias, model)
    end
  end
  return true
end

--- The configuration from the file, read again, and the command line; nil and a message on failure.
local function read_again(self)
  local file, why
  if self.file then
    file, why = config.read(self.file, { deadline_ms = config.RELOAD_MS })
    if not file then return nil, why end
  end
  local merged, failed = config.resolve(file, self.line)
  if not merged then return nil, failed end
  if #self.keys > 0 and next(merged.keys) == nil then
    return nil, "keys: no key would be left, and everyone could use this server (to open it, "
      .. "restart it)"
  end
  if self.named_models then merged.models = nil end
  local ok, wrong = check_names(self, merged)
  if not ok then return nil, wrong end
  return merged
end

--- Reads configuration and scripts again. Returns { changed = names, restart = names }, or nil and
--- a message: then the old scripts stay in use, and if the configuration is at fault nothing
--- changes.
function App:reload()
  local merged, why = read_again(self)
  if not merged then
    self.log:note("error", "configuration kept: " .. why)
    return nil, why
  end
  local policy, hooks = self.config.policy, self.config.hooks
  local changed, restart = config.apply(self.config, merged)
  self.keys = gate.keys(self.config.keys)
  self.models:allow_urls(self.config.picture_urls)
  local reopened, failed = self.log:reopen()
  if not reopened then self.log:note("error", "log: " .. failed) end
  self.log:note("info", "configuration read",
    { changed = table.concat(changed, " "), restart = table.concat(restart, " ") })
  local built, broken = self.scripts:reload()
  if built then return { changed = changed, restart = restart } end
  self.config.policy, self.config.hooks = policy, hooks -- those of the scripts still in use
  return nil, broken
end

-- ---- start and stop -----------------------------------------------------------------------------

local function listen_tcp(self)
  local c = self.config
  local place, why = self.server:listen { host = c.host, port = c.port }
  if not place then
    if why.name == "EADDRINUSE" then
      return nil, ("port %d of %s is in use: choose another with --port N, or --port 0 for any "
        .. "free one"):format(c.port, c.host)
    end
    return nil, tostring(why)
  end
  local name = place.address:find(":", 1, true) and "[" .. place.address .. "]" or place.address
  return { address = ("http://%s:%d"):format(name, place.port), port = place.port }
end

--- Listens on the configured places: a list of { address = "http://…" or path }, or nil and a
--- message. With a socket, a TCP port is opened only if host or port is set.
local function listen(self)
  local c, places = self.config, {}
  if c.given.port or c.given.host or not c.socket then
    local place, why = listen_tcp(self)
    if not place then return nil, why end
    places[1] = place
  end
  if c.socket then
    local place, why = self.server:listen { path = c.socket, mode = 384 } -- 0600
    if not place then return nil, tostring(why) end
    places[#places + 1] = place
  end
  return places
end

--- Logs an error raised for a request, or (nil) between requests.
local function note_fault(self, request, err)
  local about = request and { id = request.id, method = request.method, path = request.path } or nil
  self.log:note("error", tostring(err), about)
end

--- The most connections that the limit of open files leaves room for: that of the configuration, or
--- less, which is logged.
local function connections_of(self, wanted)
  local files = perigee.sys.raise_files() or wanted * 2
  local most = math.max(8, (files - OWN_FILES) * 8 // 9) -- a ninth is for those that are refused
  if wanted <= most then return wanted end
  self.log:note("warning", ("the limit of open files is %d: at most %d connections, not %d"):format(
    files, most, wanted))
  return most
end

local function new_server(self)
  local limits = {}
  for name, value in pairs(self.config.limits) do
    if LIMITS[name] then limits[name] = value end -- the others are for those who read the bodies
  end
  limits.connections = connections_of(self, limits.connections or LIMITS.connections)
  return http.server { name = "perigee", limits = limits,
    error_body = function(code, message, request)
      return dialect.body(errors.new { status = code, message = message }, request)
    end,
    handler = function(request, response) return answer(self, request, response) end,
    gate = function(request, response) return before_body(self, request, response) end,
    trusts = self.trusts,
    log = function(entry) note_answer(self, entry) end,
    on_error = function(request, err) note_fault(self, request, err) end }
end

-- Lua's collector works for what was allocated since its last step, at once, so a string of 8 MB or
-- a list that grows would make it walk the whole heap in one event. At the least speed, a unit of
-- work for 16 bytes, it takes up to 10 ms then; a cycle ends before the heap has doubled again,
-- because an object has a unit for every 16 bytes at most.
local PAUSE, STEP = 200, 1

--- Listens and starts loading. Returns the list of places, or nil and a message.
function App:start()
  collectgarbage("incremental", PAUSE, STEP)
  self.server = new_server(self)
  local places, why = listen(self)
  if not places then
    self.server:drain()
    return nil, why
  end
  self.places = places
  self.stop_ticker, self.stop_idle = status.start(self), idle.start(self)
  self.stop_changed = model_files.start(self)
  self.loading = async.run(function()
    local ready = self.models:load_all()
    if self.on_ready then self.on_ready(ready) end
  end)
  return places
end

--- Closes everything. done() is called when the log is written.
local function close(self, done)
  if self.loading then self.loading:cancel() end
  if self.stop_ticker then
    self.stop_ticker()
    self.stop_idle()
    self.stop_changed()
  end
  self.scripts:close()
  self.models:close()
  self.log:close(done)
end

--- Closes the connections, busy ones after `seconds` at the latest, then everything else.
local function shut(self, seconds)
  if self.shutting then return self.server:cut() end
  self.shutting = true
  self.server:drain { seconds = seconds,
    done = function() close(self, self.on_stopped or function() end) end }
end

--- Refuses new work and lets running requests finish, for at most config.drain_s. Meanwhile /health
--- reports "draining", so that load balancers notice. Then closes everything and calls
--- app.on_stopped. A second call stops at once.
function App:stop()
  if self.draining then return shut(self, 0) end
  self.draining = true
  async.run(function()
    local deadline = uv.hrtime() + self.config.drain_s * 1e9
    while self.working > 0 and not self.shutting and uv.hrtime() < deadline do
      async.sleep(POLL_MS)
    end
    if not self.shutting then shut(self, self.working > 0 and 0 or CLOSE_S) end
  end)
end

--- Adds the models of the command line, or of the configuration: first those in list form, then
--- those with names, sorted.
local function add_models(self, list)
  for _, given in ipairs(list or {}) do assert(self.models:add(given)) end
  local configured = self.config.models or {}
  local function add(name, options)
    return self.models:add { name = name, path = options.path, options = options }
  end
  for _, options in ipairs(configured) do
    local ok, why = add(models.name_of(options.path), options)
    if not ok then return nil, why end
  end
  for _, name in ipairs(text.sorted_keys(configured)) do
    if type(name) == "string" then
      local ok, why = add(name, configured[name])
      if not ok then return nil, why end
    end
  end
  return true
end

--- Options: config (merged); file (its path) and line (settings of the command line), for
--- reloading; models: a list of { name, path }. Returns nil and a message if the log or the scripts
--- cannot be opened.
local function new(options)
  local self = setmetatable({ config = options.config, file = options.file, line = options.line,
    draining = false, working = 0, accounts = {}, started = uv.hrtime() * 1e-9,
    routes = http.router() }, App)
  local log, why = logs.open(self.config.log)
  if not log then return nil, why end
  self.log = log
  self.metrics = metrics.new { on_error = function(err)
    log:note("error", "metrics: " .. tostring(err))
  end }
  self.keys = gate.keys(self.config.keys)
  function self.trusts(address)
    for _, proxy in ipairs(self.config.proxies or {}) do
      if proxy == address then return true end
    end
    return false
  end
  self.rate = rates.new(function() return self.config.rate end)
  self.models = models.new { config = self.config, log = log,
    policy = function() return self.scripts:policy() end,
    key_limit = function(sequences)
      if #self.keys < 2 then return nil end
      return self.config.sequences_per_key or math.max(1, sequences * 3 // 4)
    end,
    architectures = function() return self.scripts:current().architectures end }
  self.named_models = options.models and #options.models > 0 -- on the command line, which wins
  if self.named_models then self.config.models = nil end
  local ok, wrong = add_models(self, options.models)
  if ok then ok, wrong = check_names(self, self.config) end
  if not ok then return nil, wrong end
  self.scripts, wrong = reload.open(self)
  if not self.scripts then return nil, wrong end
  status.routes(self)
  pages.routes(self)
  models.routes(self)
  admin.routes(self)
  api(self)
  return self
end

return { new = new }
