-- models: the models of a server by name: loads, finds and unloads them.
--
--   local models = require("serve.models").new { config =, log = }
--   models:add { name = "moonlet", path = "examples/moonlet" }
--   models:load "moonlet"                     -- inside a task: true, or nil and why
--   local entry, err = models:find(name)      -- err: a request error (lib/errors.lua)
--
--   unloaded ─► loading ─► ready ─► unloading ─► unloaded
--                  └─────► failed ──────────────────┘
--
-- "changed": unloaded because its files have changed (serve/changed.lua); loaded again when they
-- have settled.
--
-- An entry has name, path, state and error. When ready it also has created, model, tok (nil if the
-- model has no tokenizer), batch (started, on the engine thread that all models share), words (nil
-- without a chat template; no_words has the reason), pictures (nil if it takes none; no_pictures
-- has the reason, if that is not clear), context, timing, and memory = { weights, caches,
-- activations in bytes, tokens that the KV cache holds }.
--
-- Loading is a task of short stages, so that the loop is never blocked; opening the tokenizer and
-- reading the pages of the weights run on helper threads. One model loads at a time.
--
-- config.memory is for all models together, weights and caches. The part that the weights leave is
-- shared equally by the caches of the models still to be loaded; what one does not use goes to the
-- next.
local async = require "lib.async"
local chat = require "chat"
local errors = require "lib.errors"
local folder = require "lib.folder"
local memory = require "engine.memory"
local modeldir = require "lib.modeldir"
local model_of = require "engine.model"
local Media = require "engine.media"
local perigee = require "perigee"
local pictures = require "pipeline.pictures"
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

local RETRY_S, POLL_MS = 5, 20 -- Retry-After while loading; interval of waiting for sequences

local Models = {}
Models.__index = Models

-- ---- finding ------------------------------------------------------------------------------------

local function names_of(self)
  local names = {}
  for i, entry in ipairs(self.entries) do names[i] = entry.name end
  return table.concat(names, ", ")
end

local function refused(status, code, message, retry_after)
  return nil, errors.new { status = status, code = code, message = message,
    retry_after = retry_after }
end

--- The name of the model that another name stands for (config.aliases): of the patterns that match
--- the longest, and of those the first of the alphabet.
local function alias_of(self, name)
  local best
  for _, pattern in ipairs(text.sorted_keys(self.config.aliases or {})) do
    if text.matches(pattern, name) and (not best or #pattern > #best) then best = pattern end
  end
  return best and self.config.aliases[best]
end

--- The model of a request; without a name, the default.
function Models:find(name)
  local entry
  if name == nil or name == "" then
    entry = self.by_name[self.config.default] or self.entries[1]
    if not entry then return refused(404, "model_not_found", "this server has no models") end
  else
    entry = self.by_name[name] or self.by_name[alias_of(self, name)]
  end
  if not entry then
    return refused(404, "model_not_found",
      ("The model '%s' does not exist (there are: %s)"):format(name, names_of(self)))
  end
  if entry.state == "ready" then return entry end
  if entry.state == "loading" then
    return refused(503, "model_loading", ("the model '%s' is being loaded"):format(entry.name),
      RETRY_S)
  end
  if entry.state == "changed" then
    return refused(503, "model_changed",
      ("the files of the model '%s' have changed, it will be loaded again"):format(entry.name),
      RETRY_S)
  end
  return refused(503, "model_not_loaded", ("the model '%s' is %s"):format(entry.name, entry.state))
end

--- All entries, in their order.
function Models:list() return self.entries end

--- "loading" while any model is loading; otherwise "ready" if one is, "loading" if one waits for
--- its files, or "failed" if one is.
function Models:state()
  local seen = {}
  for _, entry in ipairs(self.entries) do seen[entry.state] = true end
  if seen.loading or seen.changed and not seen.ready then return "loading" end
  return seen.failed and not seen.ready and "failed" or "ready"
end

--- Adds a model without loading it. given.options: its own settings, and load = false. Returns the
--- entry, or nil and a message.
function Models:add(given)
  if self.by_name[given.name] then
    return nil, ("two models have the name '%s'"):format(given.name)
  end
  local entry = { name = given.name, path = given.path, options = given.options or {},
    state = "unloaded" }
  self.by_name[entry.name] = entry
  self.entries[#self.entries + 1] = entry
  return entry
end

--- A setting of a model: its own or the general one.
local function setting(self, entry, name)
  if entry.options[name] ~= nil then return entry.options[name] end
  return self.config[name]
end

-- ---- memory -------------------------------------------------------------------------------------

--- Bytes of the weights, from the files' headers. Errors are reported when the model is loaded.
local function weight_bytes(entry)
  if not entry.bytes then
    local weights <close> = perigee.weights.open(entry.path)
    entry.bytes = weights and weights.bytes or 0
  end
  return entry.bytes
end

--- The bytes that a model may use, weights included; nil lets the batch decide (one model, no
--- budget).
local function allowance(self, entry)
  local budget, taken, pending, weights = self.config.memory, 0, 0, 0
  for _, e in ipairs(self.entries) do
    if e.memory then
      taken = taken + e.memory.weights + e.memory.caches + e.memory.activations
    elseif e == entry or e.state == "loading" then
      pending, weights = pending + 1, weights + weight_bytes(e)
    end
  end
  if not budget then
    if #self.entries == 1 then return nil end
    budget = taken + weights + perigee.sys.machine().memory_available // 2
  end
  local left = budget - taken - weights
  return math.max(0, (left > 0 and left // pending or left) + weight_bytes(entry))
end

--- Snapshots of recurrent states are not in KV blocks; they use the budget of the prefix cache.
--- With a memory budget they get at most a quarter of what the weights leave. Returns the budget of
--- the prefix cache, nil for the default, and the bytes to reserve for it.
local function snapshot_budget(self, entry, allowed)
  local asked = setting(self, entry, "cache_bytes")
  if not allowed or memory.state(entry.model.graph) == 0 then return asked, 0 end
  local left = (allowed - entry.model.weights.bytes) // 4
  local bytes = math.max(0, math.min(asked or memory.LEAST_PREFIX, left))
  return bytes, bytes
end

--- The budget for features of pictures, and the bytes to reserve for it: at most an eighth of what
--- the weights leave of a memory budget.
local function feature_budget(self, entry, allowed)
  if not entry.model.vision then return 0, 0 end
  local asked = setting(self, entry, "picture_cache_bytes")
  if not allowed then return asked, 0 end
  local bytes = math.max(0, math.min(asked, (allowed - entry.model.weights.bytes) // 8))
  return bytes, bytes
end

--- The memory of a started batch. reserved: bytes of caches outside of the batch.
local function memory_of(entry, sequences, reserved)
  local graph, _, tokens = entry.model.graph, entry.batch:room()
  local plan <close> = assert(graph:plan())
  local step = math.min(entry.batch.core.step_tokens, entry.batch.core.context)
  return { weights = entry.model.weights.bytes, tokens = tokens,
    caches = memory.kv(graph, tokens, memory.kv_bits(entry.model.options))
      + (sequences + 1) * memory.state(graph) + reserved,
    activations = memory.activations(plan, step, { outputs = sequences }) }
end

-- ---- loading ------------------------------------------------------------------------------------

--- Calls a function that takes a callback last, and waits for the callback. Returns its arguments,
--- or nil and a message if the function could not be started.
local function await_job(start, ...)
  local args = table.pack(...)
  return async.await(function(resume)
    args[args.n + 1] = resume
    local ok, why = start(table.unpack(args, 1, args.n + 1))
    if not ok then resume(nil, why) end
  end)
end

--- Opens the model's tokenizer, if it has one, on a helper thread. True, or nil and a message.
local function open_tokenizer(model)
  if not modeldir.facts(model.weights).tokenizer then return true end
  local tok, why = await_job(perigee.tokenizer.open, model.path)
  if not tok then return nil, why end
  model:take_tokenizer(tok)
  return true
end

--- Reads the weights into memory, if they fit, one tensor at a time on a helper thread. True, or
--- nil and a message.
local function preload(self, entry, model)
  local weights = model.weights
  if not self.config.preload or weights.bytes > perigee.sys.machine().memory_available then
    return true
  end
  for i = 1, weights.count do
    local bytes, why = await_job(weights.touch, weights, i)
    if not bytes then return nil, why end
    entry.loaded_bytes = entry.loaded_bytes + bytes
  end
  return true
end

--- The directory of a model's on-disk prefix cache, below config.cache_folder; created if missing.
local function cache_folder(self, entry)
  local base = self.config.cache_folder
  if not base then return nil end
  local name = entry.name:gsub("[^%w._-]", "_"):gsub("^%.", "_")
  return folder.private("cache_folder", base, name)
end

--- Any started batch; all share one engine thread.
local function running_batch(self)
  for _, e in ipairs(self.entries) do
    if e.batch then return e.batch end
  end
end

--- A batch on the engine thread of the others.
local function open_batch(self, entry, cache_bytes)
  local options = { share = running_batch(self), cache_bytes = cache_bytes,
    cache_folder = cache_folder(self, entry), cache_disk_bytes = self.config.cache_disk_bytes,
    policy = self.policy and self.policy(entry),
    key_limit = self.key_limit and function()
      return self.key_limit(setting(self, entry, "sequences"))
    end,
    report = function(line) self.log:note("warning", line, { model = entry.name }) end }
  for _, name in ipairs { "sequences", "step_tokens" } do
    options[name] = setting(self, entry, name)
  end
  local batch, why = entry.model:batch(options)
  if not batch then return nil, why end
  local ok, failed = batch:start()
  if ok then return batch end
  batch:close()
  return nil, failed
end

--- The decoder of pictures, which all models share; it is opened for the first that takes some.
local function media_of(self)
  if not self.media then
    local c = self.config
    self.media = assert(Media.open { children = c.picture_processes, urls = c.picture_urls,
      bytes = c.limits.picture_bytes, pixels = c.limits.picture_pixels })
  end
  return self.media
end

--- Hosts from which pictures may be fetched: config.picture_urls, which may change.
function Models:allow_urls(urls)
  if self.media then self.media.urls = urls end
end

--- Attaches the vision tower, if the model has one. A model whose processor cannot be opened still
--- answers texts.
local function open_pictures(self, entry, cache_bytes)
  if not entry.model.vision then return end
  local why
  entry.pictures, why = pictures.open(entry.model, entry.batch,
    { media = media_of(self), cache_bytes = cache_bytes })
  if entry.pictures then return end
  entry.no_pictures = why and tostring(why)
  self.log:note("warning", ("model %s takes no pictures: %s"):format(entry.name, tostring(why)),
    { model = entry.name })
end

--- All stages from the files to a started batch. Raises one line; whatever was opened before is in
--- `entry`.
local function load_stages(self, entry)
  local function must(value, why)
    if value == nil then error(tostring(why), 0) end
    async.sleep(0)
    return value
  end
  local began, o = uv.hrtime(), {}
  for _, name in ipairs { "threads", "context", "precision", "kv_bits", "device" } do
    o[name] = setting(self, entry, name)
  end
  o.architectures = self.architectures and self.architectures()
  local allowed = allowance(self, entry)
  local model = must(model_of.open(entry.path, o))
  entry.model = model
  must(open_tokenizer(model))
  must(preload(self, entry, model))
  local cache_bytes, snapshots = snapshot_budget(self, entry, allowed)
  local feature_bytes, reserved = feature_budget(self, entry, allowed)
  reserved = reserved + snapshots
  model.options.memory = allowed and allowed - reserved
  entry.batch = must(open_batch(self, entry, cache_bytes))
  open_pictures(self, entry, feature_bytes)
  entry.words, entry.no_words = chat.open(entry.path)
  async.sleep(0)
  entry.memory = memory_of(entry, setting(self, entry, "sequences"), reserved)
  entry.tok, entry.context = model:tokenizer(), entry.batch.core.context
  entry.timing = { load_s = (uv.hrtime() - began) // 1000000 / 1000 }
end

local function release(entry)
  if entry.pictures then entry.pictures:close() end
  if entry.batch then entry.batch:close() end
  if entry.model then entry.model:close() end
  for _, field in ipairs { "batch", "model", "tok", "words", "no_words", "pictures",
    "no_pictures", "memory", "seen", "bytes" } do
    entry[field] = nil
  end
end

--- Loads a model and logs the result.
local function load_now(self, entry)
  entry.loaded_bytes = 0
  local ok, why = pcall(load_stages, self, entry)
  if ok then
    entry.state, entry.created = "ready", os.time()
    self.log:note("info", "model ready",
      { model = entry.name, seconds = entry.timing.load_s, bytes = entry.memory.weights })
    return true
  end
  release(entry)
  entry.state, entry.error = "failed", tostring(why)
  self.log:note("error", ("model %s: %s"):format(entry.name, entry.error), { model = entry.name })
  return nil, entry.error
end

--- Loads one model at a time, because each must know what the others use.
local function load_in_turn(self, entry)
  while self.turn do self.turn:wait() end
  local turn = async.signal()
  self.turn = turn
  local ok, why = load_now(self, entry)
  self.turn = nil
  turn:set()
  return ok, why
end

--- Loads a model, inside a task. True, or nil and a message.
function Models:load(name)
  local entry = self.by_name[name]
  if not entry then
    return nil, ("there is no model '%s' (there are: %s)"):format(name, names_of(self))
  end
  if entry.state == "ready" then return true end
  if entry.state == "loading" or entry.state == "unloading" then
    return nil, ("'%s' is %s"):format(name, entry.state)
  end
  entry.state, entry.error = "loading", nil
  return load_in_turn(self, entry)
end

--- Loads every model that does not have load = false, inside a task. Returns how many succeeded.
function Models:load_all()
  local wanted, ready = {}, 0
  for _, entry in ipairs(self.entries) do
    if entry.options.load ~= false then
      entry.state = "loading"
      wanted[#wanted + 1] = entry
    end
  end
  for _, entry in ipairs(wanted) do
    if load_in_turn(self, entry) then ready = ready + 1 end
  end
  return ready
end

-- ---- unloading ----------------------------------------------------------------------------------

local function wait_for_sequences(entry, seconds)
  local deadline = uv.hrtime() + seconds * 1e9
  while entry.batch.alive > 0 and uv.hrtime() < deadline do async.sleep(POLL_MS) end
  return entry.batch.alive == 0
end

--- Unloads a model when its sequences are done, inside a task. After config.drain_s they are
--- cancelled. into: its state and error afterwards, where that is not "unloaded" and none.
function Models:unload(name, into)
  local entry = self.by_name[name]
  if not entry then
    return nil, ("there is no model '%s' (there are: %s)"):format(name, names_of(self))
  end
  if entry.state == "unloaded" then return true end
  if entry.state == "failed" or entry.state == "changed" then
    entry.state, entry.error = "unloaded", nil
    return true
  end
  if entry.state ~= "ready" then return nil, ("'%s' is %s"):format(name, entry.state) end
  entry.state = "unloading"
  if not wait_for_sequences(entry, self.config.drain_s) then
    for _, seq in pairs(entry.batch.live) do seq:cancel() end
    wait_for_sequences(entry, 1)
  end
  if entry.pictures then entry.pictures:close() end
  local batch = entry.batch
  entry.batch, entry.pictures = nil, nil
  async.await(function(resume)
    if not batch:retire(resume) then
      batch:close()
      resume()
    end
  end)
  release(entry)
  entry.state, entry.error = into and into.state or "unloaded", into and into.error
  self.log:note("info", "model unloaded", { model = name })
  return true
end

--- Unloads everything at shutdown, without waiting.
function Models:close()
  for _, entry in ipairs(self.entries) do
    release(entry)
    entry.state = "unloaded"
  end
  if self.media then self.media:close() end
  self.media = nil
end

-- ---- administration -----------------------------------------------------------------------------

local models = {}

--- POST /admin/models/{name}/load and …/unload, on the Unix socket. They respond when it is done.
function models.routes(app)
  local function change(verb)
    return function(_, response, params)
      local self = app.models
      if not self.by_name[params.name] then
        return app:refuse(response, select(2, self:find(params.name)))
      end
      local ok, why = self[verb](self, params.name)
      if not ok then
        return app:refuse(response,
          errors.new { status = 409, code = "model_" .. verb, message = why })
      end
      response:json(200,
        json.object { { "id", params.name }, { "state", self.by_name[params.name].state } })
    end
  end
  app:route("POST", "/admin/models/{name}/load", change "load", { unix_only = true })
  app:route("POST", "/admin/models/{name}/unload", change "unload", { unix_only = true })
end

--- The name of a model given by its path only.
function models.name_of(path)
  local name = path:gsub("/+$", ""):match "([^/]+)$" or path
  return (name:gsub("%.gguf$", ""))
end

--- options: config, log; policy(entry): the policy of its batch; architectures(): those of the
--- site; key_limit(sequences): how many sequences of one key run while others wait (or nil).
function models.new(options)
  return setmetatable({ config = options.config, log = options.log, policy = options.policy,
    key_limit = options.key_limit, architectures = options.architectures, entries = {},
    by_name = {} }, Models)
end

return models
