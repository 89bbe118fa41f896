-- apiapp: moonlet behind the API on a port of the system's choice, for tests. It has no
-- configuration, keys or files, only what the API needs of an application (serve/init.lua).
--
--   apiapp.run(t, function(app) … app:ask("/v1/chat/completions", { … }) … end)   -- inside a task
--
-- Keys: a request with the header x-test-key has a key of this name. Scripts: options.hooks =
-- { { phase = function … } }.
local async = require "lib.async"
local chat = require "chat"
local harness = require "harness"
local Media = require "engine.media"
local http = require "http"
local metrics = require "serve.metrics"
local perigee = require "perigee"
local pictures = require "pipeline.pictures"
local errors = require "lib.errors"
local dialect = require "api.dialect"
local reload = require "hooks.reload"
local uv = require "luv"
local json = perigee.json

local apiapp = {}

local App = {}
App.__index = App

function App:route(method, path, handler) self.routes:on(method, path, handler) end

function App:refuse(response, err) -- luacheck: no self
  return dialect.send(response, err)
end

--- A request; gives status, the answer (decoded when it is JSON), headers. options: method,
--- headers, on_data.
function App:ask(path, body, options)
  options = options or {}
  local answer, err = http.request { host = "127.0.0.1", port = self.port, target = path,
    method = options.method or "POST",
    headers = options.headers, body = type(body) == "table"
      and json.encode(body) or body, on_data = options.on_data,
    timeout_ms = harness.LIMIT_MS }
  if not answer then error(err, 0) end
  local value = answer.body
  if value and (answer.headers["content-type"] or ""):find "json" then
    value = assert(json.decode(value))
  end
  return answer.status, value, answer.headers
end

--- The events of a stream: their data, decoded but for "[DONE]".
function App:events(path, body, options)
  body.stream = true
  local status, text, headers = self:ask(path, body, options)
  if status ~= 200 then return nil, text, status end
  local list = {}
  for line in text:gmatch "[^\n]+" do
    local data = line:match "^data: (.*)$"
    if data then list[#list + 1] = data == "[DONE]" and data or assert(json.decode(data)) end
  end
  return list, headers
end

--- From now on the model writes this text, marks and all, and ends; whatever grammar it has. nil:
--- it writes what it likes again.
function App:says(text)
  local entry = self.entry
  entry.batch.add = nil
  if not text then return end
  local ids = assert(entry.tok:encode(text .. "<|im_end|>"))
  entry.batch.add = function(batch, request)
    request.force, request.phases = ids, nil
    return getmetatable(batch).__index.add(batch, request)
  end
end

local function model_of(options)
  local model = assert(perigee.open("examples/moonlet", { threads = 2, context = options.context }))
  local batch = assert(model:batch { sequences = options.sequences or 16,
    cache_tokens = options.cache_tokens or 16384,
    cache_bytes = options.cache_bytes or 16 << 20 })
  assert(batch:start())
  local media = assert(Media.open(options.media or {}))
  local taken = assert(pictures.open(model, batch, { media = media,
    cache_bytes = options.feature_bytes }))
  return { name = "moonlet", media = media, pictures = taken,
    path = "examples/moonlet", model = model, tok = model:tokenizer(),
    batch = batch,
    words = assert(chat.open("examples/moonlet", { template = options.template })),
    context = batch.core.context, state = "ready" }
end

--- A version of scripts that are the given tables of hooks.
local function scripts_of(app, hooks)
  local scripts = assert(reload.open(app))
  for i, table_of in ipairs(hooks or {}) do
    local script = { name = "test" .. i, hooks = table_of, strikes = {}, self = {},
      struck = function(_, phase, record)
      app.struck[#app.struck + 1] = phase .. ": " .. record.last
    end }
    for phase in pairs(table_of) do
      scripts.now.phases[phase] = scripts.now.phases[phase] or {}
      table.insert(scripts.now.phases[phase], script)
    end
  end
  return scripts
end

local function new(options)
  local entry = model_of(options)
  local app = setmetatable({ config = { queue = { requests = 256, memory = 4.0 },
    limits = { values = 400000, pictures = options.pictures }, defaults = {},
    responses = options.responses,
    drain_s = 5 }, struck = {},
    notes = {}, draining = false, routes = http.router(), entry = entry, metrics = metrics.new() },
      App)
  app.log = { note = function(_, level, text) app.notes[#app.notes + 1] = level .. ": "
    .. text end }
  app.models = { find = function(_, name)
    if name == nil or name == "" or name == "moonlet" then return entry end
    return nil, errors.new { status = 404, code = "model_not_found",
      message = ("The model '%s' does not exist"):format(name) }
  end, list = function() return { entry } end }
  app.scripts = scripts_of(app, options.hooks)
  require "api" (app)
  app.server = http.server { limits = options.limits, handler = function(request, response)
    local name = request:header "x-test-key"
    request.key, request.log = name and { name = name } or nil, {}
    app.last_log = request.log
    local route, params = app.routes:match(request.method, request.raw_path)
    return route(request, response, params)
  end }
  app.port = assert(app.server:listen { host = "127.0.0.1", port = 0 }).port
  return app
end

--- Runs body(app) in a task; everything is closed afterwards. What was noted in the log fails the
--- test, unless options.noisy.
function apiapp.run(t, body, options)
  options = options or {}
  local app = new(options)
  uv.update_time() -- opening may have taken longer than a time limit
  async.run(function()
    local ok, err = xpcall(body, debug.traceback, app)
    if not ok then t.fail(tostring(err)) end
    if not options.noisy then
      t.eq(app.notes, {}, "log")
      t.eq(app.struck, {}, "strikes")
    end
    t.eq(app.scripts.now.users, 0, "requests on their way")
    app.server:drain { seconds = 1, done = function()
      app.entry.pictures:close()
      app.entry.media:close()
      app.entry.batch:close()
      app.entry.model:close()
    end }
  end)
end

--- Waits until f() is true.
function apiapp.wait_for(t, what, f)
  for _ = 1, harness.LIMIT_MS // 10 do
    if f() then return end
    async.sleep(10)
  end
  t.fail("never: " .. what)
end

return apiapp
