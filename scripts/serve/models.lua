-- models: the models of a server, by name: loaded in the background, found, unloaded.
--
--   local models = require("serve.models").new { config =, log =, scripts = }
--   models:add { name = "moonlet", path = "examples/moonlet" }
--   models:load "moonlet"                     -- inside a task: true, or nil and why
--   local entry, err = models:find(name)      -- err: { status =, message =, code =, retry_after = }
--
-- An entry is { name, path, state, error, created, model, tok, batch, words, no_words, context, memory, timing }. Its state goes
-- unloaded -> loading -> ready, or failed; and back through unloading. Only a ready one has model, tok (nil where the model has
-- no tokenizer), batch (started, on the engine thread that all models share), words (nil without a chat template; no_words says
-- why), context, and memory = { weights, caches, activations } in bytes.
--
-- Loading is a task of short stages, so that the loop goes on between them. The stages that could take long, opening the
-- tokenizer and reading the weights' pages, run on helper threads.
--
-- Memory: config.memory is for all models together, weights and caches. What the weights of those that are still to be loaded
-- leave is shared equally by their caches; a model that takes less leaves the rest to the next.
local async = require "lib.async"
local memory = require "models.memory"
local modeldir = require "lib.modeldir"
local perigee = require "perigee"
local text = require "lib.text"
local model_of = require "models.model"
local uv = require "luv"

local RETRY_LOADING_S, POLL_MS = 5, 20

local Models = {}
Models.__index = Models

-- ---- finding -------------------------------------------------------------------------------------------------------

local function names_of(self)
  local names = {}
  for i, entry in ipairs(self.entries) do names[i] = entry.name end
  return table.concat(names, ", ")
end

local function refused(status, code, message, retry_after)
  return nil, { status = status, code = code, message = message, retry_after = retry_after }
end

--- The model of a request. Without a name, the default.
function Models:find(name)
  local entry
  if name == nil or name == "" then
    entry = self.by_name[self.config.default] or self.entries[1]
    if not entry then return refused(404, "model_not_found", "this server has no models") end
  else
    entry = self.by_name[name]
  end
  if not entry then
    return refused(404, "model_not_found", ("The model '%s' does not exist (there are: %s)"):format(name, names_of(self)))
  end
  if entry.state == "ready" then return entry end
  if entry.state == "loading" then
    return refused(503, "model_loading", ("the model '%s' is being loaded"):format(entry.name), RETRY_LOADING_S)
  end
  local why = entry.state == "failed" and (": " .. entry.error) or ""
  return refused(503, "model_not_loaded", ("the model '%s' is not loaded%s"):format(entry.name, why))
end

--- All entries, in their order.
function Models:list() return self.entries end

--- "loading" while one is on its way, else "ready" when one is, else "failed".
function Models:state()
  local seen = {}
  for _, entry in ipairs(self.entries) do seen[entry.state] = true end
  if seen.loading then return "loading" end
  return seen.ready and "ready" or next(seen) and "failed" or "ready"
end

--- Adds one by name, not loaded yet. Options: context, kv_bits, … (those of the configuration, for this model).
--- Returns it, or nil and why.
function Models:add(given)
  if self.by_name[given.name] then return nil, ("there are two models of the name '%s'"):format(given.name) end
  local entry = { name = given.name, path = given.path, options = given.options or {}, state = "unloaded" }
  self.by_name[entry.name] = entry
  self.entries[#self.entries + 1] = entry
  return entry
end

-- ---- memory --------------------------------------------------------------------------------------------------------

local function weight_bytes(entry)
  if not entry.bytes then
    local weights = perigee.weights.open(entry.path)
    entry.bytes = weights and weights.bytes or 0 -- what cannot be opened is told when it is loaded
    if weights then weights:close() end
  end
  return entry.bytes
end

--- Bytes that an entry may take, with its weights; nil: as the batch thinks best (one model, no budget).
local function allowance(self, entry)
  local budget, taken, pending, weights = self.config.memory, 0, 0, 0
  for _, e in ipairs(self.entries) do
    if e.memory then
      taken = taken + e.memory.weights + e.memory.caches + e.memory.activations
    elseif e == entry or e.wanted then
      pending, weights = pending + 1, weights + weight_bytes(e)
    end
  end
  if not budget then
    if #self.entries == 1 then return nil end
    budget = taken + weights + perigee.sys.machine().memory_available // 2
  end
  return math.max(0, budget - taken - weights) // pending + weight_bytes(entry)
end

--- What a started batch takes.
local function memory_of(model, batch)
  local _, tokens = batch:room()
  local kv_bits = model.options.kv_bits or 32
  local plan <close> = assert(model.graph:plan())
  return { weights = model.weights.bytes, tokens = tokens,
    caches = memory.kv(model.graph, tokens, kv_bits) + batch.rows_limit * memory.state(model.graph),
    activations = memory.activations(plan, batch.core.step_tokens, { outputs = batch.rows_limit }) }
end

-- ---- loading -------------------------------------------------------------------------------------------------------

--- The tokenizer, opened on a helper thread; false when the model has none, nil and why when it is broken.
local function open_tokenizer(model)
  local facts = modeldir.facts(model.weights)
  if not facts.tokenizer then return false end
  local tok, why = perigee.tokenizer.open(model.path)
  if not tok then return nil, why end
  return tok
end

local function option(self, entry, name)
  if entry.options[name] ~= nil then return entry.options[name] end
  return self.config[name]
end

--- A started batch on the engine thread of the others.
local function open_batch(self, entry, model)
  local options = { rows = option(self, entry, "rows"), 
    policy = self.policy and self.policy(entry), report = function(line) self.log:note("warning", line, { model = entry.name }) end }
  for _, name in ipairs { "step_tokens", "cache_bytes", "cache_folder", "cache_disk_bytes" } do
    options[name] = option(self, entry, name)
  end
  local batch, why = model:batch(options)
  if not batch then return nil, why end
  batch.rows_limit = options.rows
  local ok, failed = batch:start()
  if not ok then
    batch:close()
    return nil, failed
  end
  return batch
end

--- Reads the weights into memory, a tensor at a time, as far as they fit.
local function preload(self, entry, model)
  local weights = model.weights
  if not self.config.preload or weights.bytes > perigee.sys.machine().memory_available then return end
  for i = 1, weights.count do
    if self.closing then return end
    entry.loaded_bytes = (entry.loaded_bytes or 0) + weights:touch(i)
    async.sleep(0)
  end
end

--- The stages, each of which may raise a line of text. Whatever was opened is in `entry` when it does.
local function stages(self, entry)
  local function must(value, why)
    if value == nil then error(tostring(why), 0) end
    async.sleep(0)
    return value
  end
  local began = uv.hrtime()
  local model = must(model_of.open(entry.path, { threads = option(self, entry, "threads"), context = option(self, entry, "context"),
    kv_bits = option(self, entry, "kv_bits"), memory = allowance(self, entry) }))
  entry.opening = model
  model.tok = must(open_tokenizer(model)) or nil
  preload(self, entry, model)
  local batch = must(open_batch(self, entry, model))
  entry.batch = batch
  local found, chat = pcall(require, "chat")
  if found then entry.words, entry.no_words = chat.open(entry.path) end
  async.sleep(0)
  entry.memory = memory_of(model, batch)
  entry.model, entry.tok, entry.context = model, model:tokenizer(), batch.core.context
  entry.timing = { load_s = (uv.hrtime() - began) * 1e-9 }
end

local function release(self, entry)
  local model = entry.model or entry.opening
  if self.first_batch == entry.batch then self.first_batch = nil end
  if entry.batch then entry.batch:close() end
  if model then model:close() end
  entry.batch, entry.model, entry.opening, entry.tok, entry.words, entry.memory = nil, nil, nil, nil, nil, nil
end

--- Loads a model; inside a task. True, or nil and why.
function Models:load(name)
  local entry = self.by_name[name]
  if not entry then return nil, ("there is no model '%s' (there are: %s)"):format(name, names_of(self)) end
  if entry.state == "ready" then return true end
  if entry.state == "loading" or entry.state == "unloading" then return nil, ("'%s' is %s"):format(name, entry.state) end
  entry.state, entry.error, entry.loaded_bytes, entry.wanted = "loading", nil, 0, true
  while self.busy do self.busy:wait() end -- one at a time: each must know what the others took
  self.busy = async.signal()
  local ok, why = pcall(stages, self, entry)
  local busy = self.busy
  self.busy = nil
  entry.opening, entry.wanted = ok and nil or entry.opening, nil
  if ok then
    self.first_batch = self.first_batch or entry.batch
    entry.state, entry.created = "ready", os.time()
    self.log:note("info", "model ready", { model = name, seconds = entry.timing.load_s, bytes = entry.memory.weights })
  else
    release(self, entry)
    entry.state, entry.error = "failed", tostring(why)
    self.log:note("error", ("model %s: %s"):format(name, tostring(why)), { model = name })
  end
  busy:set()
  if not ok then return nil, tostring(why) end
  return true
end

--- Loads every model that is not, one after the other; inside a task.
function Models:load_all()
  for _, entry in ipairs(self.entries) do
    if entry.state == "unloaded" then entry.wanted, entry.state = true, "loading" end
  end
  for _, entry in ipairs(self.entries) do
    if entry.wanted then
      entry.state = "unloaded"
      self:load(entry.name)
    end
  end
end

--- Waits for the rows of a model, at most so many seconds; then they are cancelled.
local function drain(entry, seconds)
  local deadline = uv.hrtime() + seconds * 1e9
  while entry.batch.alive > 0 and uv.hrtime() < deadline do async.sleep(POLL_MS) end
  for _, row in pairs(entry.batch.live) do row:cancel() end
  deadline = uv.hrtime() + 1e9
  while entry.batch.alive > 0 and uv.hrtime() < deadline do async.sleep(POLL_MS) end
end

--- Gives a model's memory back once its rows are done (after config.drain_s at the latest); inside a task.
function Models:unload(name)
  local entry = self.by_name[name]
  if not entry then return nil, ("there is no model '%s' (there are: %s)"):format(name, names_of(self)) end
  if entry.state == "unloaded" then return true end
  if entry.state == "failed" then
    entry.state = "unloaded"
    return true
  end
  if entry.state ~= "ready" then return nil, ("'%s' is %s"):format(name, entry.state) end
  entry.state = "unloading"
  drain(entry, self.config.drain_s)
  release(self, entry)
  entry.state = "unloaded"
  self.log:note("info", "model unloaded", { model = name })
  return true
end

--- At the end: everything at once.
function Models:close()
  self.closing = true
  for _, entry in ipairs(self.entries) do
    if entry.batch or entry.opening then release(self, entry) end
    entry.state = "unloaded"
  end
end

--- The name that a path gets when none was given.
local function name_of(path)
  local name = path:gsub("/+$", ""):match "([^/]+)$" or path
  return (name:gsub("%.gguf$", ""))
end

--- options: config, log, policy(entry) -> the policy of its batch.
local function new(options)
  return setmetatable({ config = options.config, log = options.log, policy = options.policy, entries = {}, by_name = {} }, Models)
end

return { new = new, name_of = name_of }
