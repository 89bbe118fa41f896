-- architectures: model architectures of a site, files models/NAME.lua as in scripts/models.
--
-- They win over the ones that ship, for models loaded from then on; a model in service keeps the
-- graph it was built with. A file runs in the sandbox and may require models.core.* and the
-- architectures that ship. Before a new version is used it builds the graph of every loaded model
-- of its types, so a mistake is found while the old version still serves.
local async = require "lib.async"
local facade = require "hooks.facade"
local models = require "models"
local perigee = require "perigee"
local plain = require "hooks.plain"
local sandbox = require "hooks.sandbox"
local text = require "lib.text"
local trial = require "hooks.trial"

-- CPU time of a build, which runs on the loop thread in turns of 5 ms: a tenth of the time in which
-- /health must answer. 36 layers of Qwen 3 take 20 ms; the limit only has to end a build that makes
-- ops for ever. Code between two ops that takes longer than sandbox.RELOAD_MS is stopped.
local architectures = { BUILD_MS = 5000 }
local TURN_NS = 5e6

local function is_core(name)
  return name:find "^models%.[%w_]+$" ~= nil or name:find "^models%.core%.[%w_]+$" ~= nil
end

local function at_path(path, why)
  local line = text.first_line(why)
  return line:sub(1, #path) == path and line or ("%s: %s"):format(path, line)
end

--- Calls a function of a site's architecture under a deadline; raises one line.
local function guarded(path, f, ...)
  local args = table.pack(...)
  local ok, result = perigee.guard(function() return f(table.unpack(args, 1, args.n)) end,
    { deadline_ms = sandbox.RELOAD_MS, memory = sandbox.MEMORY })
  if ok then return result end
  local stopped = result.code == "deadline" or result.code == "memory"
  error(stopped and at_path(path, result) or text.first_line(result), 0)
end

local function extras_of(path, f)
  return f and function(c) return guarded(path, f, c) end
end

--- A site's build. Every op may end the turn of its coroutine; then the loop turns.
local function build_of(path, f)
  return function(g, c)
    local loop_turns, began, spent, result = g.pause, 0, 0, nil
    local co = coroutine.create(function() result = f(g, c) end)
    g.pause = function()
      local over = perigee.sys.cpu_ns() - began > TURN_NS
      if over and coroutine.running() == co then coroutine.yield() end
    end
    repeat
      began = perigee.sys.cpu_ns()
      guarded(path, function()
        local ok, why = coroutine.resume(co)
        if not ok then error(why, 0) end
      end)
      spent = spent + perigee.sys.cpu_ns() - began
      if spent > architectures.BUILD_MS * 1e6 then
        error(("%s: build took longer than %d ms"):format(path, architectures.BUILD_MS), 0)
      end
      if loop_turns then loop_turns() end
    until coroutine.status(co) == "dead"
    g.pause = loop_turns
    return result
  end
end

--- Runs the source of an architecture. Returns it, with `path` and `source`, or nil and one line.
function architectures.read(path, source)
  local script = { name = path, path = path, host = trial.host(), timers = {}, loaded = true }
  local a, why = sandbox.run(source, { where = path, perigee = facade.new(script), core = is_core,
    find = function(other) return nil, ("an architecture cannot require '%s'"):format(other) end })
  if a ~= nil then a, why = plain.strip(a) end
  if a == nil and why then return nil, at_path(path, why) end
  local ok, wrong = models.check(a)
  if not ok then return nil, at_path(path, wrong) end
  return { names = a.names, build = build_of(path, a.build), extras = extras_of(path, a.extras),
    defaults = a.defaults, path = path, source = source }
end

--- Raises one line when the loaded models of these types cannot be built with the new version.
local function try(list, new, entries, pause)
  local types = {}
  for _, name in ipairs(new.names) do types[name] = true end
  for _, entry in ipairs(entries) do
    if entry.model and types[entry.model.model_type] then
      local built, why = models.build(entry.model.weights,
        { architectures = list, pause = async.breathe })
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
