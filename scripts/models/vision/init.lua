-- vision: finds the tower of a model and builds its graph.
--
--   local tower = vision.build(weights, parsed)   -- nil: the model has none
--
-- A tower is one file of this folder. It returns a table:
--
--   names      the model types whose tower it builds: values of model_type in config.json
--   roots      by the first word of the paths that it uses, where such tensors may be in a file:
--              { visual = { "visual", "model.visual" } }; more specific ones come first
--   build      function(g, c, whole): builds the graph with g from the vision part c and the whole
--              config; returns the features and the layout of a step: patch (floats), merge,
--              blocks, window, table, side (runtime/device/tower.h), and deepstack (values)
--   accepts    function(c): is it this kind of tower? (optional)
--   extras     patterns of names, after a root, of tensors that may stay unused (optional)
--   defaults   values of config keys that published configs leave out (optional)
--
-- Tower and text model are graphs of their own over the same weights. A model without any tensor of
-- its tower is a text model; if some are missing, that is an error.
local perigee = require "perigee"
local config = require "models.core.config"
local graph = require "models.core.graph"
local text = require "lib.text"

local vision = {}

--- Does the text of a file that cannot be loaded name this model type?
local function mentions(path, model_type)
  local source = perigee.sys.script(path) or ""
  return source:find(('"%s"'):format(model_type), 1, true) ~= nil
end

--- The tower of a model type; nil: there is none; nil and one line: its file cannot be loaded. Such
--- a file affects only models of the types it names.
local function find(model_type)
  local broken
  for _, path in ipairs((perigee.sys.scripts())) do
    local file = path:match "^models/vision/([%w_]+)%.lua$"
    if file and file ~= "init" then
      local ok, a = pcall(require, "models.vision." .. file)
      for _, name in ipairs(ok and a.names or {}) do
        if name == model_type then return a end
      end
      if not ok and mentions(path, model_type) then broken = text.first_line(a) end
    end
  end
  return nil, broken
end

local function starts(name, root) return name:sub(1, #root + 1) == root .. "." end

--- For each root of the tower, where this file has it; nil if it has none of them.
local function locate(a, names)
  local found, any = {}, false
  for root, places in pairs(a.roots) do
    found[root] = places[1]
    for i = #places, 1, -1 do
      for _, name in ipairs(names) do
        if starts(name, places[i]) then found[root], any = places[i], true end
      end
    end
  end
  return any and found or nil
end

--- Tensors of the tower that its graph does not use: it would be computed wrongly.
local function check_unused(g, a, found)
  for _, name in ipairs(g.c:unused()) do
    for _, root in pairs(found) do
      local rest = starts(name, root) and name:sub(#root + 2)
      local extra = rest and (rest:find "inv_freq$" or rest:find "position_ids$")
      for _, pattern in ipairs(a.extras or {}) do extra = extra or rest and rest:find(pattern) end
      if rest and not extra then
        error(("unused tensor %s: the vision tower '%s' does not know it"):format(name,
          a.names[1]), 0)
      end
    end
  end
end

--- Sizes that are computed with ^ are floats; a size that is not whole is an error.
local function whole_number(spec, key)
  local n = spec[key]
  if n == nil then return end
  spec[key] = math.tointeger(n)
    or error(("config: %s of the vision tower must be a whole number, got %s"):format(key, n), 0)
end

local function build(g, a, o)
  local features, spec = a.build(g, o.config, o.whole)
  for _, key in ipairs { "patch", "merge", "window", "side" } do whole_number(spec, key) end
  local deepstack = {}
  for j, v in ipairs(spec.deepstack or {}) do
    deepstack[j] = v:named(("deepstack.%d"):format(j - 1)).name
  end
  g:finish(features)
  check_unused(g, a, o.found)
  spec.deepstack = nil
  return { graph = g.c, builder = g, spec = spec, deepstack = deepstack, hidden = features:width(),
    merge = spec.merge }
end

--- The tower of opened weights by a parsed config: { graph =, builder =, spec =, deepstack = names,
--- hidden =, merge = }. Nil if the model has none, nil and one line if it is incomplete. options:
--- pause (a function that every op calls).
function vision.build(weights, parsed, options)
  local part = config.object(parsed.vision_config)
  if not part or parsed.gguf then return nil end
  local a, broken = find(parsed.model_type)
  if not a then return nil, broken end
  local c = config.new(part, a.defaults)
  if a.accepts and not a.accepts(c) then return nil end
  local found
  local g, failed = graph.new(weights, c, { spell = function(path, tensor)
    local root, rest = path:match "^([^.]*)(.*)$"
    return { (found[root] or root) .. rest .. (tensor == "" and "" or "." .. tensor) }
  end })
  if not g then return nil, failed end
  g.pause = options and options.pause
  found = locate(a, g.c:unused())
  if not found then
    g.c:close()
    return nil
  end
  local ok, made = pcall(build, g, a, { config = c, whole = config.new(parsed), found = found })
  if ok then return made end
  g.c:close()
  return nil, ("%s: %s"):format(weights.path or "model",
    config.unfit(c, made, ("vision tower '%s'"):format(a.names[1])))
end

return vision
