-- reload: which scripts serve. Builds the next version next to the one that serves, swaps one
-- pointer between steps, and keeps the old one, with a message, when anything is wrong with the
-- new.
--
--   local scripts = reload.open(app)     -- app: config { site, hooks, policy, watch }, models, …
--   scripts:current()                    -- the version that serves: hooks/scripts.lua
--   scripts:reload()                     -- reads everything again; nil and why: the old one stays
--   scripts:rollback()                   -- back to the sources before the last swap
--   scripts:policy()                     -- for a batch that is started
--   scripts:status()                     -- plain data for /v1/status and /admin/scripts
--
-- Watched are the site's folders, the directories of the models (their chat_template.jinja), and
-- with --scripts the folders of policies and formats there. Loop thread only. A build inside a task
-- lets the loop turn between two scripts; the build that was started last wins.
--
-- State: a changed script starts with a copy of its state, passed through its own `state` function.
-- Requests in flight keep the old script but share the new state if the version is the same, so
-- nothing they count is lost.
local async = require "lib.async"
local client = require "http.client"
local perigee = require "perigee"
local phases = require "hooks.phases"
local sandbox = require "hooks.sandbox"
local scripts_of = require "hooks.scripts"
local site = require "hooks.site"
local text = require "lib.text"
local uv = require "luv"
local watch = require "hooks.watch"

local Reload = {}
Reload.__index = Reload

-- ---- the host of scripts ------------------------------------------------------------------------

-- Of the histograms that scripts make: seconds and counts of tokens both fall into some of them.
local BUCKETS = { 0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000,
  10000, 100000 }

local function models_of(app)
  local out = {}
  for i, entry in ipairs(app.models and app.models:list() or {}) do
    local stats = entry.batch and entry.batch.core:stats()
    out[i] = { name = entry.name, state = entry.state, context = entry.context,
      running = stats and stats.running or 0, waiting = stats and stats.waiting or 0 }
  end
  return out
end

--- What the server does for its scripts (hooks/facade.lua). `waits`: the set of tasks that wait for
--- it.
local function host_of(app, waits)
  local metrics = app.metrics
  local function noted(wait)
    return function(given)
      local task = async.current()
      waits[task] = true
      local result, why = wait(given)
      waits[task] = nil
      return result, why
    end
  end
  return {
    shared = {},
    log = function(level, said, fields)
      if app.log then app.log:note(level, said, fields) end
    end,
    observe = function(name, value, labels)
      if metrics then metrics:histogram(name, "Of a script.", BUCKETS):observe(value, labels) end
    end,
    count = function(name, n, labels)
      if metrics then metrics:counter(name, "Of a script."):add(n, labels) end
    end,
    models = function() return models_of(app) end,
    sleep = noted(async.sleep),
    request = noted(client.request),
  }
end

--- Reports a strike: the first one of a script's phase, and the one that switches it off.
local function struck(self, script, phase, record)
  local app = self.app
  if app.metrics then app.metrics.strikes:add(1, { script = script.name, phase = phase }) end
  local what = ("script %s: %s: %s"):format(script.name, phase, record.last)
  local told = script.told or {}
  script.told = told
  if record.off and told[phase] ~= "off" then
    self.host.log("error", what .. "; switched off until it is reloaded", { file = script.path })
  elseif not told[phase] then
    self.host.log("warning", what .. "; ignored for this call", { file = script.path })
  end
  told[phase] = record.off and "off" or told[phase] or "once"
end

-- ---- timers -------------------------------------------------------------------------------------

local function run_timer(script, timer)
  if timer.busy or phases.is_off(script, "every") then return end
  timer.busy = true
  async.run(function()
    local ok, why = phases.drive(script, "every", { ms = phases.TURN_MS }, timer.run, script.self)
    timer.busy = false
    if not ok then phases.strike(script, "every", why) end
  end)
end

local function start_timers(script)
  for _, timer in ipairs(script.timers) do
    if not timer.handle then
      local ms = math.max(1, math.floor(timer.seconds * 1000))
      timer.handle = uv.new_timer()
      timer.handle:start(ms, ms, function() run_timer(script, timer) end)
      timer.handle:unref()
    end
  end
end

local function stop_timers(script)
  for _, timer in ipairs(script.timers) do
    if timer.handle then
      timer.handle:close()
      timer.handle = nil
    end
  end
end

-- ---- swapping -----------------------------------------------------------------------------------

local function entries_of(app)
  return app.models and app.models:list() or {}
end

--- Stops the timers of scripts that the new version does not have. Scripts that were replaced share
--- the state of their successors, if that has the same version.
local function hand_over(old, new)
  local kept = {}
  for _, script in ipairs(new.list) do kept[script] = true end
  for _, script in ipairs(old and old.list or {}) do
    if not kept[script] then
      stop_timers(script)
      local heir = script.kind == "policy" and new.policy or new.by_name[script.name]
      if heir and heir.name == script.name and heir.version == script.version then
        script.self.state = heir.self.state
      end
    end
  end
  for _, script in ipairs(new.list) do start_timers(script) end
end

local function swap(self, new)
  local old = self.now
  self.version = self.version + 1
  new.version, new.created = self.version, os.time()
  new.on_idle = function(idle)
    if idle ~= self.now then self.alive[idle] = nil end
  end
  self.now, self.alive[new] = new, true
  if old and old.users == 0 then self.alive[old] = nil end
  hand_over(old, new)
  if old and old.policy ~= new.policy then
    for _, entry in ipairs(entries_of(self.app)) do
      if entry.batch then entry.batch.scheduler:reload(new:schedule()) end
    end
  end
  self.before = old and old.snapshot
  self.error = nil
  local metrics = self.app.metrics
  if metrics then
    metrics.scripts_version:set(self.version)
    metrics.stale:set(0)
  end
end

--- The new version cannot be used: the old one stays, and the reason is reported.
local function keep(self, why)
  local known = self.error and self.error.text == why
  self.error = { text = why, time = os.time() }
  if self.app.metrics then self.app.metrics.stale:set(1) end
  if self.now and not known then
    self.host.log("error", ("scripts: keeping version %d: %s"):format(self.version, why))
  end
  return nil, why
end

-- ---- building -----------------------------------------------------------------------------------

local function pause()
  if async.current() then async.sleep(0) end
end

local function no_pause() end

--- Builds and swaps. options: snapshot, downgrade.
local function renew(self, options)
  self.ticket = self.ticket + 1
  local ticket, started = self.ticket, uv.hrtime()
  local config = self.app.config
  self.tried = options.snapshot
  if options.snapshot.gone then return keep(self, config.site .. ": no such folder") end
  local new, why = scripts_of.build { snapshot = options.snapshot, hooks = config.hooks,
    policy = config.policy, entries = entries_of(self.app), former = self.now, host = self.host,
    struck = self.struck, downgrade = options.downgrade, deadlines = self.deadlines,
    load_ms = self.now and sandbox.RELOAD_MS or nil, pause = self.now and pause or no_pause }
  if ticket ~= self.ticket then return self.now end -- a newer build was started meanwhile
  if not new then return keep(self, why) end
  new.snapshot:seal()
  swap(self, new)
  if self.version > 1 then
    local changed = #new.changed > 0 and "changed: " .. table.concat(new.changed, ", ")
    self.host.log("info", ("scripts: version %d, %s"):format(self.version,
      changed or "nothing changed"), { ms = math.floor((uv.hrtime() - started) * 1e-6) })
  end
  if self.watcher then self.watcher:refresh() end
  return new
end

--- Reads everything again and forgets strikes. Returns the version that serves now, or nil and why
--- the old one was kept.
function Reload:reload()
  return renew(self, { snapshot = site.snapshot(self.app.config.site) })
end

--- Back to the sources before the last swap, from memory: the files do not matter.
function Reload:rollback()
  if not self.before then return nil, "there is no earlier version of the scripts" end
  return renew(self, { snapshot = self.before, downgrade = true })
end

--- Builds a new version if anything has changed since the last try.
local function look_again(self)
  local snapshot = site.snapshot(self.app.config.site)
  for path in pairs(self.tried.files) do
    if path:find "^policy/" then
      snapshot.files[path] = perigee.sys.script(path)
    else
      pcall(snapshot.read, snapshot, path)
    end
  end
  if snapshot:equals(self.tried) then return end
  async.run(function() renew(self, { snapshot = site.snapshot(self.app.config.site) }) end)
end

local function folders_of(self)
  local folder, out, seen = self.app.config.site, {}, {}
  local function put(path)
    if not seen[path] then out[#out + 1], seen[path] = path, true end
  end
  if folder then
    put(folder)
    put(folder .. "/parsers")
    for below in pairs(site.folders) do put(folder .. "/" .. below) end
    for path in pairs(self.tried.files) do -- modules may be in any folder
      if path:sub(1, #folder + 1) == folder .. "/" then put(text.dirname(path)) end
    end
  end
  local _, own = perigee.sys.scripts()
  for _, below in ipairs(own and { "policy", "parsers/tools", "parsers/reasoning" } or {}) do
    put(own .. "/" .. below)
  end
  for _, entry in ipairs(entries_of(self.app)) do put(entry.path) end
  return out
end

-- ---- state --------------------------------------------------------------------------------------

function Reload:current() return self.now end

function Reload:policy() return self.now:schedule() end

local function script_status(script)
  local phase_names, strikes = {}, {}
  for phase in pairs(script.hooks) do phase_names[#phase_names + 1] = phase end
  table.sort(phase_names)
  for phase, record in pairs(script.strikes) do
    strikes[#strikes + 1] = { phase = phase, total = record.total, text = record.last,
      off = record.off }
  end
  table.sort(strikes, function(a, b) return a.phase < b.phase end)
  return { name = script.name, kind = script.kind, version = script.version, file = script.path,
    phases = phase_names, strikes = strikes }
end

--- Plain data: version, created, policy, scripts, templates, parsers, models (types of the site's
--- architectures), alive (versions that requests still use), stale and error (why the newest
--- sources do not serve).
function Reload:status()
  local json = perigee.json
  local now = self.now
  local scripts, alive, formats, types = json.array {}, json.array {}, json.array {}, {}
  for i, script in ipairs(now.list) do
    local status = script_status(script)
    status.phases, status.strikes = json.array(status.phases), json.array(status.strikes)
    scripts[i] = status
  end
  for one in pairs(self.alive) do
    alive[#alive + 1] = { version = one.version, requests = one.users }
  end
  table.sort(alive, function(a, b) return a.version < b.version end)
  for _, kind in ipairs { "tools", "reasoning" } do
    for _, name in ipairs(text.sorted_keys(now.formats[kind])) do
      formats[#formats + 1] = kind .. "/" .. name
    end
  end
  for _, a in ipairs(now.architectures) do
    for _, name in ipairs(a.names) do types[name] = true end
  end
  return { version = now.version, created = now.created, policy = now.policy.name,
    scripts = scripts, alive = alive, templates = json.array(text.sorted_keys(now.templates)),
    parsers = formats, models = json.array(text.sorted_keys(types)), stale = self.error ~= nil,
    error = self.error and self.error.text }
end

--- Stops everything that scripts do by themselves; hooks that wait are cancelled.
function Reload:close()
  if self.watcher then self.watcher:close() end
  self.watcher = nil
  for task in pairs(self.waits) do task:cancel() end
  for one in pairs(self.alive) do
    for _, script in ipairs(one.list) do stop_timers(script) end
  end
end

-- ---- opening ------------------------------------------------------------------------------------

local reload = {}

--- app: config (site, hooks, policy, watch), and optionally models, log, metrics, deadlines (other
--- ones, by phase). Returns nil and one line when the scripts cannot be loaded.
function reload.open(app)
  local waits = setmetatable({}, { __mode = "k" })
  local self = setmetatable({ app = app, version = 0, ticket = 0, alive = {}, waits = waits,
    host = host_of(app, waits), deadlines = app.deadlines }, Reload)
  self.struck = function(script, phase, record) struck(self, script, phase, record) end
  local first, why = self:reload()
  if not first then return nil, why end
  if app.config.watch then
    self.watcher = watch.open(function() return folders_of(self) end,
      function() look_again(self) end)
  end
  return self
end

return reload
