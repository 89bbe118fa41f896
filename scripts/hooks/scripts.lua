-- scripts: one loaded version of the site's scripts: hooks, the policy, templates, parsers.
--
-- A version is built next to the one that serves and never changes afterwards; it is built whole or
-- not at all. Requests retain the version they start with (req.scripts) until they end, so a reload
-- never changes the rules of an answer half-way. Only `admit` and `schedule`, which weigh all
-- requests against each other, are asked of the current one (hooks/reload.lua).
--
--   scripts:has(phase)              does any script have a hook for it? Costs nothing
--   scripts:call(phase, req, …)     phases that return at once; scripts:wait(phase, req, …): phases
--                                   that may wait, inside a task. Returns the combined answer; nil:
--                                   none, do what is built in
--   scripts:words(entry, name)      the chat words of a model with this version's templates and
--                                   parsers; name: with that template
--   scripts:attached(req)           the scripts that the request names for its sequences
--   scripts.watch(…)                puts these there (hooks/attach.lua)
local architectures = require "hooks.architectures"
local attach = require "hooks.attach"
local breaker = require "lib.breaker"
local cases = require "chat.selftest"
local chat = require "chat"
local formats = require "hooks.formats"
local perigee = require "perigee"
local phases = require "hooks.phases"
local sandbox = require "hooks.sandbox"
local text = require "lib.text"
local unit = require "hooks.unit"

local Scripts = { attached = attach.resolve, watch = attach.watch }
Scripts.__index = Scripts

-- ---- calling ------------------------------------------------------------------------------------

function Scripts:has(phase) return self.phases[phase] ~= nil end

function Scripts:call(phase, req, ...)
  local scripts = self.phases[phase]
  if scripts then return phases.ask(phases.call, scripts, phase, req, ...) end
end

function Scripts:wait(phase, req, ...)
  local scripts = self.phases[phase]
  if scripts then return phases.ask(phases.wait, scripts, phase, req, ...) end
end

function Scripts:retain()
  self.users = self.users + 1
  return self
end

function Scripts:release()
  self.users = self.users - 1
  if self.users == 0 and self.on_idle then self.on_idle(self) end
end

--- The policy, as batches take it.
function Scripts:schedule()
  local script = self.policy
  return { schedule = script.hooks.schedule, self = script.self,
    breaker = script.strikes.schedule or breaker.new(), struck = function(_, _, record)
      script.strikes.schedule = record
      script.struck(script, "schedule", record)
    end }
end

-- ---- words --------------------------------------------------------------------------------------

--- The template that the site has for a model, or nil.
local function override(self, entry)
  return self.templates[entry.name] or self.templates.default
end

local function open_words(self, entry, template)
  local source = template and template.source or self.model_templates[entry.path]
  local words, why = chat.open(entry.path, { template = source or nil })
  if not words then return nil, why end
  return formats.apply(words, self.formats)
end

--- Does nothing here concern the model? Then its words are those it was loaded with.
local function is_plain(self, entry)
  return not override(self, entry) and not self.model_templates[entry.path]
    and not formats.concern(self.formats, entry.words)
end

--- The words of a model; `name`: with that template of the site. nil and why when there are none.
function Scripts:words(entry, name)
  local known = self.cache[entry]
  if not known or known.base ~= entry.words then
    known = { base = entry.words }
    self.cache[entry] = known
  end
  local key = name or 1
  if not known[key] then
    local template, words, why
    if name then template = self.templates[name] else template = override(self, entry) end
    if name and not template then
      why = ("the site has no templates/%s.jinja"):format(name)
    elseif not name and is_plain(self, entry) then
      words, why = entry.words, entry.no_words
    else
      words, why = open_words(self, entry, template)
    end
    known[key] = { words = words, why = why }
  end
  return known[key].words, known[key].why
end

-- ---- building -----------------------------------------------------------------------------------

local function fail(format, ...) error(format:format(...), 0) end

--- "name" or { "name", setting = value, … } -> name, settings
local function named(item, what)
  if type(item) == "string" then return item, nil end
  if type(item) ~= "table" or type(item[1]) ~= "string" then
    fail("%s: entries must be a name or { name, setting = value }, got %s", what, type(item))
  end
  local settings = {}
  for key, value in pairs(item) do
    if key ~= 1 then settings[key] = value end
  end
  return item[1], settings
end

local function missing(what, name, list, where)
  fail("there is no %s '%s'%s in %s", what, name, text.suggestion(name, list), where)
end

local function find_former(self, kind, name)
  local former = self.former
  if not former then return nil end
  if kind == "policy" then
    local policy = former.policy
    return policy and policy.name == name and policy or nil
  end
  return former.by_name[name]
end

--- A script of this version: the former version's if nothing has changed, else a new one.
local function load(self, o)
  local former = find_former(self, o.kind, o.name)
  local function read(path) return path == o.path and o.source or self.snapshot:read(path) end
  if former and not next(former.strikes) and former.path == o.path
    and unit.same(former, read, o.config) then
    return former
  end
  local made, why = unit.load { name = o.name, path = o.path, kind = o.kind, source = o.source,
    folder = self.snapshot.folder, read = read, config = o.config, former = former,
    host = self.host, struck = self.struck, downgrade = self.downgrade,
    templates = self.snapshot.names.templates, load_ms = self.load_ms }
  if not made then error(why, 0) end
  made.deadlines = self.deadlines
  self.changed[#self.changed + 1] = o.name
  return made
end

local function source_of(self, below, name)
  if not name:find "^[%w_][%w_%-.]*$" then
    fail("%s: '%s' is not a valid name of a script", below, name)
  end
  local path = ("%s/%s/%s.lua"):format(self.snapshot.folder, below, name)
  return self.snapshot:read(path), path
end

local function load_hooks(self, wanted, pause)
  local there = self.snapshot.names.hooks
  for _, item in ipairs(wanted or there) do
    local name, settings = named(item, "hooks")
    if self.by_name[name] then fail("hooks: '%s' is named twice", name) end
    local source, path
    if self.snapshot.folder then source, path = source_of(self, "hooks", name) end
    if not source then
      missing("hook", name, there, path or "the configuration, which sets no site")
    end
    local script = load(self, { name = name, path = path, kind = "hook", source = source,
      config = settings })
    self.list[#self.list + 1], self.by_name[name] = script, script
    pause()
  end
end

local SHIPPED = { "cache_first", "fair", "fifo", "lanes" }

local function load_policy(self, wanted, pause)
  local name, settings = named(wanted or "fifo", "policy")
  local source, path
  if self.snapshot.folder then source, path = source_of(self, "policy", name) end
  if not source and name:find "^[%w_]+$" and name ~= "init" then
    path = ("policy/%s.lua"):format(name)
    source = self.snapshot.files[path] or perigee.sys.script(path)
    self.snapshot.files[path] = source
  end
  if not source then
    local list = table.move(SHIPPED, 1, #SHIPPED, 1, {})
    for _, own in ipairs(self.snapshot.names.policy) do list[#list + 1] = own end
    missing("policy", name, list, "the list: " .. table.concat(list, ", "))
  end
  self.policy = load(self, { name = name, path = path, kind = "policy", source = source,
    config = settings })
  self.list[#self.list + 1] = self.policy
  pause()
end

--- Raises one line unless the template compiles, shows a user's message and passes its cases.
local function check_template(source, path, ms)
  local ok, err = perigee.guard(function() cases.run(source) end,
    { deadline_ms = ms or sandbox.LOAD_MS })
  if not ok then fail("%s: %s", path, text.first_line(err)) end
end

local function load_templates(self, pause)
  for _, name in ipairs(self.snapshot.names.templates) do
    local path = ("%s/templates/%s.jinja"):format(self.snapshot.folder, name)
    local source = self.snapshot:read(path)
    check_template(source, path, self.load_ms)
    self.templates[name] = { source = source, path = path }
    local was = self.former and self.former.templates[name]
    if not was or was.source ~= source then
      self.changed[#self.changed + 1] = name .. ".jinja"
    end
    pause()
  end
end

--- Templates in the models' own directories that have changed since the first version.
local function load_model_templates(self, entries, pause)
  local former = self.former
  for _, entry in ipairs(entries) do
    local path = entry.path .. "/chat_template.jinja"
    local source, before = self.snapshot:read(path), former and former.snapshot.files[path]
    self.model_templates[entry.path] = former and former.model_templates[entry.path]
    if source and before and source ~= before then
      check_template(source, path, self.load_ms)
      self.model_templates[entry.path] = source
      self.changed[#self.changed + 1] = path
      pause()
    end
  end
end

--- Opens the words of the loaded models, so that errors in them are found now.
local function try_words(self, entries, pause)
  for _, entry in ipairs(entries) do
    if entry.words and not is_plain(self, entry) then
      local words, why = self:words(entry)
      if not words then fail("model '%s': %s", entry.name, tostring(why)) end
      pause()
    end
  end
end

local function index(self)
  for _, script in ipairs(self.list) do
    for phase in pairs(script.hooks) do
      self.phases[phase] = self.phases[phase] or {}
      table.insert(self.phases[phase], script)
    end
  end
end

--- Builds one, or returns nil and one line. options: snapshot (hooks/site.lua), hooks and policy
--- (of the configuration), entries (the models), former (the version before), host, struck,
--- downgrade (scripts of a lower version are accepted), deadlines (other ones, by phase), load_ms
--- (CPU time to load one), pause: called between scripts.
local function build(o)
  local self = setmetatable({ snapshot = o.snapshot, former = o.former, host = o.host,
    struck = o.struck, load_ms = o.load_ms, deadlines = o.deadlines, downgrade = o.downgrade,
    list = {}, by_name = {}, phases = {},
    templates = {}, model_templates = {}, changed = {}, users = 0,
    first = o.former and o.former.first or {}, cache = setmetatable({}, { __mode = "k" }) },
    Scripts)
  local ok, why = pcall(function()
    load_hooks(self, o.hooks, o.pause)
    load_policy(self, o.policy, o.pause)
    self.formats = formats.load(self, o.pause)
    load_templates(self, o.pause)
    load_model_templates(self, o.entries, o.pause)
    try_words(self, o.entries, o.pause)
    self.architectures = architectures.load(self, o.entries, o.pause)
  end)
  if not ok then return nil, text.first_line(why) end
  index(self)
  self.former = nil
  return self
end

return { build = build }
