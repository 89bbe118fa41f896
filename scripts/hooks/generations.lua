-- generations: which scripts serve. Builds a new generation beside the old one, swaps one pointer between steps, keeps the old
-- one when anything is wrong with the new, and says so.
--
--   local scripts = generations.open(app)      -- app: config { site, hooks, policy, watch }, models, log, metrics
--   scripts:current()                          -- see hooks/generation.lua
--   scripts:reload()                           -- reads everything again: the generation that serves now, or nil and why not
--   scripts:rollback()                         -- back to the sources before the last swap
--   scripts:policy()                           -- for a batch that is started
--   scripts:status()                           -- plain data for /v1/status and /admin/scripts
--
-- What is watched: the site's folders, the directories of the models (their chat_template.jinja), and with --scripts the folders
-- of policies and formats there. Loop thread only. A build
-- that runs in a task lets others run between two scripts; the one that was begun last wins.
--
-- State: a script that was changed goes on with a copy of its state, through its own `state` function. Requests in flight
-- keep the old script, but count on in the new state as long as the version is the same, so nothing is lost.
local async = require "lib.async"
local client = require "http.client"
local generation = require "hooks.generation"
local perigee = require "perigee"
local phases = require "hooks.phases"
local site = require "hooks.site"
local text = require "lib.text"
local uv = require "luv"
local watch = require "hooks.watch"

local Generations = {}
Generations.__index = Generations

-- ---- the host of scripts ---------------------------------------------------------------------------------------------

local BUCKETS = { 0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000 }

local function models_of(app)
  local out = {}
  for i, entry in ipairs(app.models and app.models:list() or {}) do
    local stats = entry.batch and entry.batch.core:stats()
    out[i] = { name = entry.name, state = entry.state, context = entry.context, running = stats and stats.running or 0,
      waiting = stats and stats.waiting or 0 }
  end
  return out
end

--- What scripts may have done for them while they serve (hooks/facade.lua). `waits`: the tasks that wait for some of it, a set.
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

--- Tells about a strike: the first one of a script's phase, and the one that switches it off.
local function struck(self, script, phase, record)
  local app = self.app
  if app.metrics then app.metrics.strikes:add(1, { script = script.name, phase = phase }) end
  local what, told = ("script %s: %s: %s"):format(script.name, phase, record.text), script.told or {}
  script.told = told
  if record.off and told[phase] ~= "off" then
    self.host.log("error", what .. "; switched off until it is loaded again", { file = script.path })
  elseif not told[phase] then
    self.host.log("warning", what .. "; done without it", { file = script.path })
  end
  told[phase] = record.off and "off" or told[phase] or "once"
end

-- ---- timers --------------------------------------------------------------------------------------------------------

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

-- ---- swapping ------------------------------------------------------------------------------------------------------

local function entries_of(app)
  return app.models and app.models:list() or {}
end

--- Scripts of the old generation that the new one does not have stop acting by themselves; those that were replaced share
--- the state of their successors, where it has the same form.
local function hand_over(old, new)
  local kept = {}
  for _, script in ipairs(new.scripts) do kept[script] = true end
  for _, script in ipairs(old and old.scripts or {}) do
    if not kept[script] then
      stop_timers(script)
      local heir = script.kind == "policy" and new.policy or new.by_name[script.name]
      if heir and heir.name == script.name and heir.version == script.version then script.self.state = heir.self.state end
    end
  end
  for _, script in ipairs(new.scripts) do start_timers(script) end
end

local function swap(self, new)
  local old = self.now
  self.number = self.number + 1
  new.number, new.created = self.number, os.time()
  new.on_idle = function(gen)
    if gen ~= self.now then self.alive[gen] = nil end
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
    metrics.generation:set(self.number)
    metrics.stale:set(0)
  end
end

--- The new one is of no use: the old one stays, and everybody may know why.
local function keep(self, why)
  local known = self.error and self.error.text == why
  self.error = { text = why, time = os.time() }
  if self.app.metrics then self.app.metrics.stale:set(1) end
  if self.now and not known then
    self.host.log("error", ("scripts: generation %d is kept: %s"):format(self.number, why))
  end
  return nil, why
end

-- ---- building ------------------------------------------------------------------------------------------------------

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
  local new, why = generation.build { snapshot = options.snapshot, hooks = config.hooks, policy = config.policy,
    entries = entries_of(self.app), former = self.now, host = self.host, struck = self.struck, downgrade = options.downgrade,
    deadlines = self.deadlines, pause = self.now and pause or no_pause }
  if ticket ~= self.ticket then return self.now end -- a newer one was begun meanwhile
  if not new then return keep(self, why) end
  new.snapshot:seal()
  swap(self, new)
  if self.number > 1 then
    self.host.log("info", ("scripts: generation %d, %s"):format(self.number,
      #new.changed > 0 and "changed: " .. table.concat(new.changed, ", ") or "nothing changed"),
      { ms = math.floor((uv.hrtime() - started) * 1e-6) })
  end
  if self.watcher then self.watcher:refresh() end
  return new
end

--- Reads everything again and forgets strikes. The generation that serves now, or nil and why the old one was kept.
function Generations:reload()
  return renew(self, { snapshot = site.snapshot(self.app.config.site) })
end

--- Back to the sources before the last swap; from memory, whatever the files hold now.
function Generations:rollback()
  if not self.before then return nil, "there is no generation to go back to" end
  return renew(self, { snapshot = self.before, downgrade = true })
end

--- Did anything change since the last try? Then it is built.
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
    for path in pairs(self.tried.files) do -- modules lie where they like
      if path:sub(1, #folder + 1) == folder .. "/" then put(text.dirname(path)) end
    end
  end
  local _, own = perigee.sys.scripts()
  for _, below in ipairs(own and { "policy", "parsers/tools", "parsers/reasoning" } or {}) do put(own .. "/" .. below) end
  for _, entry in ipairs(entries_of(self.app)) do put(entry.path) end
  return out
end

-- ---- asking --------------------------------------------------------------------------------------------------------

function Generations:current() return self.now end

function Generations:policy() return self.now:schedule() end

local function script_status(script)
  local phase_names, strikes = {}, {}
  for phase in pairs(script.hooks) do phase_names[#phase_names + 1] = phase end
  table.sort(phase_names)
  for phase, record in pairs(script.strikes) do
    strikes[#strikes + 1] = { phase = phase, total = record.total, text = record.text, off = record.off == true }
  end
  table.sort(strikes, function(a, b) return a.phase < b.phase end)
  return { name = script.name, kind = script.kind, version = script.version, file = script.path, phases = phase_names,
    strikes = strikes }
end

--- Plain data: generation, created, policy, scripts, templates, parsers, models (types of the site's architectures), alive (generations that requests still use), stale and
--- error (why the newest sources do not serve).
function Generations:status()
  local json = perigee.json
  local now = self.now
  local scripts, alive, formats, types = json.array {}, json.array {}, json.array {}, {}
  for i, script in ipairs(now.scripts) do
    local status = script_status(script)
    status.phases, status.strikes = json.array(status.phases), json.array(status.strikes)
    scripts[i] = status
  end
  for gen in pairs(self.alive) do alive[#alive + 1] = { generation = gen.number, requests = gen.users } end
  table.sort(alive, function(a, b) return a.generation < b.generation end)
  for _, kind in ipairs { "tools", "reasoning" } do
    for _, name in ipairs(text.sorted_keys(now.formats[kind])) do formats[#formats + 1] = kind .. "/" .. name end
  end
  for _, a in ipairs(now.architectures) do
    for _, name in ipairs(a.names) do types[name] = true end
  end
  return { generation = now.number, created = now.created, policy = now.policy.name, scripts = scripts, alive = alive,
    templates = json.array(text.sorted_keys(now.templates)), parsers = formats, models = json.array(text.sorted_keys(types)), stale = self.error ~= nil,
    error = self.error and self.error.text }
end

--- Nothing of a script is done from here on: what waits is given up.
function Generations:close()
  if self.watcher then self.watcher:close() end
  self.watcher = nil
  for task in pairs(self.waits) do task:cancel() end
  for gen in pairs(self.alive) do
    for _, script in ipairs(gen.scripts) do stop_timers(script) end
  end
end

-- ---- opening -------------------------------------------------------------------------------------------------------

local generations = {}

--- app: config (site, hooks, policy, watch), and where there are such: models, log, metrics, deadlines (other ones, by phase).
--- Returns nil and one line when the scripts cannot be loaded.
function generations.open(app)
  local waits = setmetatable({}, { __mode = "k" })
  local self = setmetatable({ app = app, number = 0, ticket = 0, alive = {}, waits = waits, host = host_of(app, waits),
    deadlines = app.deadlines }, Generations)
  self.struck = function(script, phase, record) struck(self, script, phase, record) end
  local first, why = self:reload()
  if not first then return nil, why end
  if app.config.watch then self.watcher = watch.open(function() return folders_of(self) end, function() look_again(self) end) end
  return self
end

return generations
