-- architectures: model architectures of a site, files models/NAME.lua as in scripts/models.
--
-- They win over the ones that ship, for models loaded from then on; a model in service keeps the
-- graph it was built with. A file runs in the sandbox and may require models.core.* and the
-- architectures that ship. Before a new version is used it builds the graph of every loaded model
-- of its types, so a mistake is found while the old version still serves.
local facade = require "hooks.facade"
local models = require "models"
local perigee = require "perigee"
local sandbox = require "hooks.sandbox"
local text = require "lib.text"
local trial = require "hooks.trial"

-- CPU time of one build, which runs on the loop thread. 36 layers of Qwen 3 take 20 ms; the limit
-- only has to end a loop that would stop the server for good.
local architectures = { BUILD_MS = 5000 }

local function is_core(name)
  return name:find "^models%.[%w_]+$" ~= nil or name:find "^models%.core%.[%w_]+$" ~= nil
end

local function at_path(path, why)
  local line = text.first_line(why)
  return line:sub(1, #path) == path and line or ("%s: %s"):format(path, line)
end

--- A function of a site's architecture with a deadline. Building happens on the loop thread.
local function guarded(path, f)
  return f and function(...)
    local args = table.pack(...)
    local ok, result = perigee.guard(function() return f(table.unpack(args, 1, args.n)) end,
      { deadline_ms = architectures.BUILD_MS })
    if ok then return result end
    local stopped = result.code == "deadline"
    error(stopped and at_path(path, result) or text.first_line(result), 0)
  end
end

--- Runs the source of an architecture. Returns it, with `path` and `source`, or nil and one line.
function architectures.read(path, source)
  local script = { name = path, path = path, host = trial.host(), timers = {}, loaded = true }
  local a, why = sandbox.run(source, { where = path, perigee = facade.new(script), core = is_core,
    find = function(other) return nil, ("an architecture cannot require '%s'"):format(other) end })
  if a == nil and why then return nil, at_path(path, why) end
  local ok, wrong = models.check(a)
  if not ok then return nil, at_path(path, wrong) end
  return { names = a.names, build = guarded(path, a.build), extras = guarded(path, a.extras),
    defaults = a.defaults, path = path, source = source }
end

--- Raises one line when the loaded models of these types cannot be built with the new version.
local function try(list, new, entries, pause)
  local types = {}
  for _, name in ipairs(new.names) do types[name] = true end
  for _, entry in ipairs(entries) do
    if entry.model and types[entry.model.model_type] then
      local built, why = models.build(entry.model.weights, { architectures = list })
      if not built then error(("%s: model '%s': %s"):format(new.path, entry.name, why), 0) end
      built.graph:close()
      pause()
    end
  end
end

--- The architectures of a site that is being loaded, a list for models.load. scripts: `snapshot`,
--- `former` (the version that serves) and `changed`. Raises one line.
function architectures.load(scripts, entries, pause)
  local former, list, owner, new = {}, {}, {}, {}
  local before = scripts.former and scripts.former.architectures or {}
  for _, a in ipairs(before) do former[a.path] = a end
  for _, name in ipairs(scripts.snapshot.names.models) do
    local path = ("%s/models/%s.lua"):format(scripts.snapshot.folder, name)
    local source = scripts.snapshot:read(path)
    local a = former[path]
    if not a or a.source ~= source then
      local why
      a, why = architectures.read(path, source)
      if not a then error(why, 0) end
      new[#new + 1] = a
      scripts.changed[#scripts.changed + 1] = "models/" .. name
    end
    for _, model_type in ipairs(a.names) do
      local other = owner[model_type]
      if other then
        error(("%s: '%s' is already built by %s"):format(path, model_type, other), 0)
      end
      owner[model_type] = path
    end
    list[#list + 1] = a
    pause()
  end
  for _, a in ipairs(new) do try(list, a, entries, pause) end
  return list
end

return architectures
