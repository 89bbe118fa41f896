-- lib: the registry of architectures, and loading a model: files -> config -> architecture -> graph.
local perigee = require "perigee"
local config = require "models.config"
local gguf = require "models.gguf"
local graph = require "models.graph"
local modeldir = require "lib.modeldir"

local lib = { config = config }

--- An architecture: { names = {model types}, build = function(g, c) return logits end, extras = function(c) return {…} end,
--- defaults = {…} }. extras: tensors that may stay unused, as Lua patterns of names without "model." before them. defaults:
--- what a config that lacks a key means.
function lib.architecture(a) return a end

--- Names a tensor may have: the module's path in the original's dialect comes first. "model.x" of a text model is
--- "model.language_model.x" or "language_model.model.x" where it is a part of a larger one.
local function spell(path, tensor)
  local tail = tensor == "" and "" or "." .. tensor
  local names = { path .. tail, "language_model." .. path .. tail }
  local rest = path:match "^model%.(.*)$"
  if rest then names[#names + 1] = "model.language_model." .. rest .. tail end
  return names
end

--- Tensors that may be there without being used by any text model; "model." before them does not count.
local known_extras = {
  "rotary_emb%.inv_freq$", "^mtp", "^visual%.", "^vision_", "^embed_vision%.", "^audio_tower%.", "^embed_audio%.",
  "^multi_modal_projector%.", "^mm_projector%.",
}

local function layer_number(name) return math.tointeger(tonumber(name:match "layers%.(%d+)%." or "")) end

--- Numbers of the layers behind the last that are blocks for the next token but one: those that the config counts, or that
--- have what only such a block has.
local function next_token_layers(unused, c)
  local set = {}
  local counted = c.num_nextn_predict_layers
  for i = 1, math.type(counted) == "integer" and counted or 0 do set[c.layers + i - 1] = true end
  for _, name in ipairs(unused) do
    local n = layer_number(name)
    if n and n >= c.layers and name:match "%.eh_proj%." then set[n] = true end
  end
  return set
end

local function is_extra(name, a, c)
  local bare = name:gsub("^language_model%.", ""):gsub("^model%.", "")
  for _, list in ipairs { known_extras, a.extras and a.extras(c) or {} } do
    for _, pattern in ipairs(list) do
      if bare:find(pattern) then return true end
    end
  end
  return false
end

local function check_unused(g, a, c)
  local unused = g.c:unused()
  local next_token = next_token_layers(unused, c)
  for _, name in ipairs(unused) do
    if name ~= "lm_head.weight" and name ~= "language_model.lm_head.weight" and not is_extra(name, a, c)
      and not next_token[layer_number(name)] then
      local n = layer_number(name)
      error(("unused tensor %s: %s"):format(name, n and n >= c.layers and ("the config says %d layers"):format(c.layers)
        or ("the architecture '%s' does not know it"):format(a.names[1])), 0)
    end
  end
end

--- Every architecture that ships, by model type: the scripts of this folder that have a `build`.
local function registry()
  local map, names = {}, {}
  for _, path in ipairs((perigee.sys.scripts())) do
    local file = path:match "^models/([%w_]+)%.lua$"
    local a = file and file ~= "lib" and require("models." .. file)
    for _, name in ipairs(a and a.build and a.names or {}) do
      map[name] = a
      names[#names + 1] = name
    end
  end
  table.sort(names)
  return map, names
end

local function open_config(weights)
  local metadata = modeldir.metadata(weights, 4096) -- lists by layer, yes; vocabularies, no
  if metadata["general.architecture"] then return gguf.config(metadata, weights) end
  return modeldir.config(weights.path)
end

--- Builds the graph of opened weights with a parsed config. Returns { weights =, graph =, builder =, config =,
--- architecture =, path = }, or nil and one line.
function lib.assemble(weights, parsed, path)
  local map, names = registry()
  if type(parsed.model_type) ~= "string" then return nil, ("%s: the config names no model_type"):format(path) end
  local a = map[parsed.model_type]
  if not a then
    return nil, ("%s: unknown architecture '%s' (known: %s)"):format(path, tostring(parsed.model_type), table.concat(names, ", "))
  end
  local c = config.new(parsed, a.defaults)
  local g = graph.new(weights, c, { spell = parsed.spell or spell })
  if parsed.gguf then gguf.adapt(g, parsed, a) end
  local ok, result = pcall(function()
    g:finish(a.build(g, c))
    check_unused(g, a, c)
  end)
  if not ok then return nil, ("%s: %s"):format(path, tostring(result)) end
  return { weights = weights, graph = g.c, builder = g, config = c, architecture = a, path = path }
end

--- The model of opened weights, with the config beside them or in them.
function lib.build(weights)
  local parsed, err = open_config(weights)
  if not parsed then return nil, err end
  return lib.assemble(weights, parsed, weights.path)
end

--- A model directory or file, opened and built.
function lib.load(path)
  local weights, why = perigee.weights.open(path)
  if not weights then return nil, why end
  return lib.build(weights)
end

return lib
