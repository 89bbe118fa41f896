-- unit: one script of a site with the modules it requires: read, run, checked, tested, given its
-- state.
--
-- A script returns a table: version, config (defaults), state, params, selftest, and functions
-- named after phases (hooks/phases.lua). The `unit` made of it lives until a version of the scripts
-- without it serves and its last request is done:
--
--   name, path, version, kind ("hook" or "policy")
--   hooks        its functions by phase
--   self         the last argument of each: { name, version, config, state }
--   strikes      breakers by phase (lib/breaker.lua); struck(unit, phase, breaker) is called on
--                each strike
--   sources      { [path] = text } of all files it was made of
--   timers       those of perigee.every
--
-- State is plain data: it is copied when a new version of the script takes it over, so that a
-- migration that fails leaves the old one as it was.
local facade = require "hooks.facade"
local perigee = require "perigee"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local sandbox = require "hooks.sandbox"
local text = require "lib.text"
local trial = require "hooks.trial"

local unit = {}

-- ---- definitions --------------------------------------------------------------------------------

local KEYS = { name = "string", version = "number", config = "table", state = "function",
  params = "table", selftest = "any" }
local names = text.sorted_keys(KEYS)
for phase in pairs(phases.list) do
  KEYS[phase] = "function"
  names[#names + 1] = phase
end
table.sort(names)

--- Hooks get `self` last. One written with a colon would get the request as its `self`.
local function check_hook(phase, f)
  if debug.getlocal(f, 1) ~= "self" then return true end
  return nil, ("'%s' is written as a method; write function M.%s(%s)"):format(phase, phase,
    phases.list[phase].args)
end

local PARAMS = { integer = true, number = true, string = true, boolean = true }

local function check_key(key, value)
  local kind = KEYS[key]
  if not kind then
    return nil, ("unknown key '%s'%s"):format(tostring(key), text.suggestion(key, names))
  end
  if kind ~= "any" and type(value) ~= kind then
    return nil, ("'%s' must be a %s, got %s"):format(key, kind, type(value))
  end
  if phases.list[key] then return check_hook(key, value) end
  return true
end

local function check(definition, o)
  if type(definition) ~= "table" then
    return nil, ("must return a table, got %s"):format(type(definition))
  end
  for _, key in ipairs(text.sorted_keys(definition)) do
    local ok, why = check_key(key, definition[key])
    if not ok then return nil, why end
  end
  if definition.name and definition.name ~= o.name then
    return nil, ("its name is '%s', but its file is %s.lua"):format(definition.name, o.name)
  end
  if math.type(definition.version or 1) ~= "integer" then
    return nil, "'version' must be an integer"
  end
  if o.kind == "policy" and not definition.schedule then
    return nil, "a policy must have `schedule`"
  end
  if o.kind == "hook" and definition.schedule then
    return nil, "`schedule` is for policies: files of the folder policy"
  end
  for name, kind in pairs(definition.params or {}) do
    if not PARAMS[type(kind) == "table" and kind[1] or kind] then
      return nil, ("params.%s must be integer, number, string or boolean, got %s"):format(
        tostring(name), tostring(kind))
    end
  end
  return true
end

-- ---- plain data ---------------------------------------------------------------------------------

local DEPTH = 64

--- A deep copy; nil and the place of a value that is not plain data.
local function copy(value, where, depth)
  local kind = type(value)
  if kind == "function" or kind == "userdata" or kind == "thread" then
    return nil, ("%s is a %s"):format(where, kind)
  end
  if kind ~= "table" then return value end
  if depth == 0 then return nil, where .. " is nested too deep" end
  local out = {}
  for k, v in next, value do -- raw: a metatable of the script must not run here
    local field, why = copy(v, ("%s.%s"):format(where, tostring(k)), depth - 1)
    if why then return nil, why end
    out[k] = field
  end
  return out
end

--- The script's config: its defaults, changed by the server's configuration.
local function configure(defaults, given)
  local config, why = copy(defaults or {}, "config", DEPTH)
  if not config then return nil, why end
  for key, value in pairs(given or {}) do
    local default = config[key]
    if default == nil then
      return nil, ("has no setting '%s'%s"):format(tostring(key),
        text.suggestion(key, text.sorted_keys(config)))
    end
    if type(default) ~= type(value) then
      return nil, ("setting '%s' must be a %s, got %s"):format(key, type(default), type(value))
    end
    config[key] = copy(value, key, DEPTH)
  end
  return config
end

-- ---- state --------------------------------------------------------------------------------------

--- The state that the script starts with: empty, or that of its former version, passed through its
--- own `state` function.
local function migrate(definition, former, limits)
  local old, why
  if former then
    local ok
    ok, old, why = perigee.guard(function() return copy(former.self.state, "state", DEPTH) end,
      limits)
    if not ok then old, why = nil, text.first_line(old) end
    if why then return nil, "the state is not plain data: " .. why end
  end
  if not definition.state then return old or {} end
  local version = former and former.version
  local ok, state = perigee.guard(function() return definition.state(old, version) end, limits)
  if not ok then return nil, "state: " .. text.first_line(state) end
  if type(state) ~= "table" then
    return nil, ("state must return a table, got %s"):format(type(state))
  end
  return state
end

-- ---- loading ------------------------------------------------------------------------------------

local function hooks_of(definition)
  local hooks = {}
  for phase in pairs(phases.list) do hooks[phase] = definition[phase] end
  return hooks
end

--- The name of a module as a path below the site's folder; nil when it could lead elsewhere.
local function module_path(name)
  if name:find "^[%w_%-]+$" or name:find "^[%w_%-][%w_%-.]*$" and not name:find("..", 1, true) then
    return (name:gsub("%.", "/")) .. ".lua"
  end
end

--- Finds modules in the site's folder and notes their sources.
local function finder(self, o)
  return function(name)
    local path = module_path(name)
    if not path then return nil, ("'%s' is not a valid name of a module"):format(name) end
    local where = o.folder and o.folder .. "/" .. path
    local source = where and o.read(where)
    if not source then
      return nil, ("the site has no module '%s' (scripts may also require perigee)"):format(name)
    end
    self.sources[where] = source
    return source, where
  end
end

--- options: name, path, kind, source, folder (of the site), read = function(path) that returns a
--- text or nil, config (overrides), former (the unit whose state it takes over), host (see
--- facade.lua), struck, downgrade (a lower version is accepted), deadline_ms (of a self-test case),
--- templates (names of the site's; nil: not known). Returns the unit, or nil and one line that
--- begins with the path.
function unit.load(o)
  local self = { name = o.name, path = o.path, kind = o.kind, strikes = {}, struck = o.struck,
    timers = {}, sources = { [o.path] = o.source }, given = o.config, templates = o.templates,
    trial_ms = o.deadline_ms or o.load_ms }
  local limits = { deadline_ms = o.load_ms or sandbox.LOAD_MS, memory = sandbox.MEMORY }
  local function failed(why)
    local line = text.first_line(why)
    return nil, line:sub(1, #o.path) == o.path and line or ("%s: %s"):format(o.path, line)
  end
  self.host = trial.host()
  local definition, why = sandbox.run(o.source, { where = o.path, perigee = facade.new(self),
    find = finder(self, o), deadline_ms = o.load_ms })
  self.loaded = true
  if definition == nil and why then return failed(why) end
  local ok, stripped, odd = perigee.guard(function() return plain.strip(definition) end, limits)
  if not ok or odd then return failed(odd and "returns " .. odd or stripped) end
  if o.kind == "policy" and type(definition) == "function" then
    definition = { schedule = definition }
  end
  ok, why = check(definition, o)
  if not ok then return failed(why) end
  self.hooks, self.params = hooks_of(definition), definition.params or {}
  self.version = definition.version or 1
  local serves = o.former and o.former.version
  if serves and self.version < serves and not o.downgrade then
    return failed(("version %d is older than %d, which serves"):format(self.version, serves))
  end
  local config
  config, why = configure(definition.config, o.config)
  if not config then return failed(why) end
  ok, why = trial.run(self, definition, config)
  if not ok then return failed(why) end
  self.cases = ok
  local state
  state, why = migrate(definition, o.former, limits)
  if not state then return failed(why) end
  self.self = { name = self.name, version = self.version, config = config, state = state }
  self.host = o.host
  return self
end

--- Was it made of the same sources and settings?
function unit.same(a, read, config)
  for path, source in pairs(a.sources) do
    if read(path) ~= source then return false end
  end
  return text.same(a.given or {}, config or {})
end

-- ---- parameters of requests ---------------------------------------------------------------------

local function fits(value, kind)
  if kind == "integer" then return math.type(value) == "integer" end
  return type(value) == kind
end

--- Checks the parameters of a request that names the script; nil and one line.
function unit.parameters(self, given)
  local out = {}
  for name in pairs(given or {}) do
    if self.params[name] == nil then
      return nil, ("the script '%s' has no parameter '%s'%s"):format(self.name, tostring(name),
        text.suggestion(name, text.sorted_keys(self.params)))
    end
  end
  for name, kind in pairs(self.params) do
    local value, default = given and given[name], nil
    if type(kind) == "table" then kind, default = kind[1], kind[2] end
    if value == nil then value = default end
    if value == nil then
      return nil, ("the script '%s' needs the parameter '%s' (%s)"):format(self.name, name, kind)
    end
    if not fits(value, kind) then
      return nil, ("parameter '%s' of the script '%s' must be of type %s, got %s"):format(name,
        self.name, kind, tostring(value))
    end
    out[name] = value
  end
  return out
end

return unit
