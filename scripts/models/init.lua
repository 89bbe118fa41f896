-- models: finds the architecture of a model and builds its graph.
--
--   local models = require "models"
--   local model = assert(models.load(path, { architectures = { … } }))
--
--   files ── config ───────────── architecture ── graph
--            core/config.lua      models/X.lua    core/graph.lua
--            core/gguf.lua
--
-- An architecture is one file of this folder. It returns a table:
--
--   names      the model types it builds: values of model_type in config.json
--   build      function(g, c): builds the graph with g from the config c; returns the logits
--   extras     function(c): patterns of names, without "model.", of tensors that may stay unused
--              (optional)
--   defaults   values of config keys that published configs leave out (optional)
--
-- A file that cannot be loaded affects only models of the types it names. Architectures that a
-- caller passes (a site's, hooks/architectures.lua) win over those that ship.
local perigee = require "perigee"
local config = require "models.core.config"
local gguf = require "models.core.gguf"
local graph = require "models.core.graph"
local modeldir = require "lib.modeldir"
local text = require "lib.text"

local models = {}

-- ---- tensor names -------------------------------------------------------------------------------

--- Possible names of a tensor; the original file's naming comes first. "model.x" of a text model is
--- "model.language_model.x" or "language_model.model.x" inside a larger model.
local function spell(path, tensor)
  local tail = tensor == "" and "" or "." .. tensor
  local names = { path .. tail, "language_model." .. path .. tail }
  local rest = path:match "^model%.(.*)$"
  if rest then names[#names + 1] = "model.language_model." .. rest .. tail end
  return names
end

--- Tensors that no text model uses, without "model.": rotary tables, blocks that predict several
--- tokens ahead, vision and audio towers.
local known_extras = {
  "rotary_emb%.inv_freq$", "^mtp", "^visual%.", "^vision_", "^embed_vision%.", "^audio_tower%.",
  "^embed_audio%.", "^multi_modal_projector%.", "^mm_projector%.",
}

local function layer_number(name)
  return math.tointeger(tonumber(name:match "layers%.(%d+)%." or ""))
end

--- Does layer n (from 0) predict the token after the next (MTP)? Such layers come after the last
--- one: counted by the config, or recognized by a tensor that only such a layer has. The count is
--- any number that a file has: nothing is done for each.
local function next_token_layers(unused, c)
  local set, counted = {}, c.num_nextn_predict_layers or 0
  for _, name in ipairs(unused) do
    local n = layer_number(name)
    if n and name:find("%.eh_proj%.") then set[n] = true end
  end
  return function(n) return n and n >= c.layers and (n - c.layers < counted or set[n]) end
end

--- patterns: lists of patterns of names, without "model.".
local function is_extra(name, patterns)
  if name == "lm_head.weight" or name == "language_model.lm_head.weight" then return true end
  local bare = name:gsub("^language_model%.", ""):gsub("^model%.", "")
  for _, list in ipairs(patterns) do
    for _, pattern in ipairs(list) do
      if bare:find(pattern) then return true end
    end
  end
  return false
end

--- A tensor that the graph does not use means that the model is computed wrongly: raises.
local function check_unused(g, a, c)
  local unused = g.c:unused()
  if #unused == 0 then return end
  local next_token = next_token_layers(unused, c)
  local patterns = { known_extras, a.extras and a.extras(c) or {} }
  for _, name in ipairs(unused) do
    local n = layer_number(name)
    if not is_extra(name, patterns) and not next_token(n) then
      local why = ("the architecture '%s' does not know it"):format(a.names[1])
      if n and n >= c.layers then why = ("the config says %d layers"):format(c.layers) end
      error(("unused tensor %s: %s"):format(name, why), 0)
    end
  end
end

-- ---- finding an architecture --------------------------------------------------------------------

local KEYS = { names = "table", build = "function", extras = "function", defaults = "table" }

--- Is this an architecture? True, or nil and what is wrong with it.
function models.check(a)
  if type(a) ~= "table" then return nil, ("returns a %s, not a table"):format(type(a)) end
  for key, kind in pairs(KEYS) do
    if a[key] ~= nil and type(a[key]) ~= kind then
      return nil, ("'%s' must be a %s, got %s"):format(key, kind, type(a[key]))
    end
  end
  if not a.build then return nil, "'build' is missing: function(g, c) that returns the logits" end
  if not a.names or #a.names == 0 then
    return nil, "'names' is missing: the model types that it builds"
  end
  for i, name in ipairs(a.names) do
    if type(name) ~= "string" then
      return nil, ("names[%d] must be a string, got %s"):format(i, type(name))
    end
  end
  return true
end

--- Loads models/FILE.lua; returns nil and one line when it is not a working architecture.
local function shipped(file)
  local ok, a = pcall(require, "models." .. file)
  if not ok then return nil, text.first_line(a) end
  local good, why = models.check(a)
  if not good then return nil, ("models/%s.lua: %s"):format(file, why) end
  return a
end

--- The model types that a broken file names, read from its text, and the name of the file.
local function names_in(file)
  local source = perigee.sys.script(("models/%s.lua"):format(file)) or ""
  local names = { file }
  for name in (source:match "%f[%w]names%s*=%s*(%b{})" or ""):gmatch "[\"']([^\"']+)[\"']" do
    names[#names + 1] = name
  end
  return names
end

--- Architectures that ship, by model type, and the errors of broken files, by model type.
local function registry()
  local map, broken = {}, {}
  for _, path in ipairs((perigee.sys.scripts())) do
    local file = path:match "^models/([%w_]+)%.lua$"
    if file and file ~= "init" then
      local a, why = shipped(file)
      for _, name in ipairs(a and a.names or names_in(file)) do
        if a then map[name] = a else broken[name] = why end
      end
    end
  end
  return map, broken
end

--- The architecture of a model type, or nil and why there is none. given: a list of architectures
--- that win over those that ship.
function models.find(model_type, given)
  local known = {}
  for _, a in ipairs(given or {}) do
    for _, name in ipairs(a.names) do
      if name == model_type then return a end
      known[name] = true
    end
  end
  local map, broken = registry()
  if map[model_type] then return map[model_type] end
  if broken[model_type] then return nil, broken[model_type] end
  for name in pairs(map) do known[name] = true end
  return nil, ("unknown architecture '%s' (known: %s)"):format(model_type,
    table.concat(text.sorted_keys(known), ", "))
end

-- ---- building -----------------------------------------------------------------------------------

local function open_config(weights)
  local metadata = modeldir.metadata(weights, 4096) -- lists by layer whole, vocabularies cut
  if metadata["general.architecture"] then return gguf.config(metadata, weights) end
  return modeldir.config(weights.path)
end

--- What a build raised, as one line. The author of a site's architecture wants to see the position
--- of an error of Lua's own.
local function unfit(why, a, c)
  if a.path then return text.first_line(why) end
  return config.unfit(c, why, ("architecture '%s'"):format(a.names[1]))
end

--- Builds the graph of opened weights by a parsed config. options: path (for messages),
--- architectures (see models.find), pause (a function that every op calls). Returns { weights =,
--- graph =, builder =, config =, parsed =, model_type =, path = }, or nil and one line.
function models.assemble(weights, parsed, options)
  local path = options and options.path or weights.path
  local model_type = parsed.model_type
  if type(model_type) ~= "string" then
    return nil, ("%s: the config has no model_type"):format(path)
  end
  local a, unknown = models.find(model_type, options and options.architectures)
  if not a then return nil, ("%s: %s"):format(path, unknown) end
  local c = config.new(parsed, a.defaults)
  local g, failed = graph.new(weights, c, { spell = parsed.spell or spell })
  if not g then return nil, ("%s: %s"):format(path, tostring(failed)) end
  g.pause = options and options.pause
  if parsed.gguf then gguf.adapt(g, parsed) end
  local ok, why = pcall(function()
    g:finish(a.build(g, c))
    check_unused(g, a, c)
    config.check(c, { "max_position_embeddings" }) -- of which the engine makes its context
  end)
  if not ok then
    g.c:close()
    return nil, ("%s: %s"):format(path, unfit(why, a, c))
  end
  return { weights = weights, graph = g.c, builder = g, config = c, parsed = parsed,
    model_type = model_type, path = path }
end

--- The model of opened weights, by the config next to them or in them. options: architectures,
--- pause.
function models.build(weights, options)
  local parsed, why = open_config(weights)
  if not parsed then return nil, why end
  options = options or {}
  return models.assemble(weights, parsed, { architectures = options.architectures,
    pause = options.pause })
end

--- Opens and builds a model directory or file. options: architectures, pause.
function models.load(path, options)
  local weights, why = perigee.weights.open(path)
  if not weights then return nil, why end
  local model
  model, why = models.build(weights, options)
  if not model then weights:close() end
  return model, why
end

return models
