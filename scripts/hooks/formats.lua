-- formats: parsers of a site: formats of tool calls and reasoning that perigee does not know, or
-- that the site wants parsed differently.
--
-- A format is a file like those in scripts/parsers/tools; it may require the same modules. It is
-- used for models whose template contains all strings of its `detect`, and for those whose own
-- format has the same name. It must bring self-test cases, which run whole and split at every byte.
--
-- While it serves, a site's parser is under the deadline of the phase `parse`. If it fails, the
-- rest of that answer becomes content.
local perigee = require "perigee"
local facade = require "hooks.facade"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local sandbox = require "hooks.sandbox"
local selftest = require "parsers.selftest"
local site = require "hooks.site"
local text = require "lib.text"
local trial = require "hooks.trial"

local formats = {}

local KINDS = { "tools", "reasoning" }

local function is_core(name)
  return name == "parsers" or name:find "^parsers%.[%w_]+$" ~= nil
    or name:find "^parsers%.%a+%.[%w_]+$" ~= nil
end

-- ---- loading ------------------------------------------------------------------------------------

--- Loads one and runs its cases; raises one line.
local function load(scripts, kind, name, path)
  local source = scripts.snapshot:read(path)
  local former = scripts.former and scripts.former.formats[kind][name]
  if former and former.source == source and not next(former.unit.strikes) then return former end
  local script = { name = name, path = path, host = trial.host(), timers = {}, loaded = true,
    strikes = {}, is_format = true, struck = scripts.struck, deadlines = scripts.deadlines }
  local function find(other) return nil, ("parsers cannot require '%s'"):format(other) end
  local format, why = sandbox.run(source, { where = path, perigee = facade.new(script),
    core = is_core, find = find, deadline_ms = scripts.load_ms })
  if format ~= nil then format, why = plain.strip(format) end
  if format == nil and why then error(why, 0) end
  local ok, err = perigee.guard(function() selftest.run(format, { kind = kind, where = path }) end,
    { deadline_ms = scripts.load_ms or sandbox.LOAD_MS, memory = sandbox.MEMORY })
  if not ok then error(text.first_line(err), 0) end
  format.name = format.name or name
  script.host, script.version = scripts.host, 1
  script.hooks = { parse = function(parser, verb, piece) return parser[verb](parser, piece) end }
  scripts.changed[#scripts.changed + 1] = name
  return { name = name, source = source, format = format, unit = script, path = path }
end

--- Formats in the folder of --scripts that have changed since the start: name -> path. The others
--- are loaded as modules already.
local function changed_ones(scripts, kind)
  local out, _, own = {}, perigee.sys.scripts()
  if not own then return out end
  local folder = ("%s/parsers/%s"):format(own, kind)
  for _, name in ipairs(site.names(folder, "lua")) do
    local path = folder .. "/" .. name .. ".lua"
    local source = scripts.snapshot:read(path)
    scripts.first[path] = scripts.first[path] or source
    if source ~= scripts.first[path] then out[name] = path end
  end
  return out
end

--- { tools = { [name] = … }, reasoning = { … } } of a version of the scripts that is being built.
function formats.load(scripts, pause)
  local all = {}
  for _, kind in ipairs(KINDS) do
    local paths = changed_ones(scripts, kind)
    for _, name in ipairs(scripts.snapshot.names["parsers/" .. kind]) do
      paths[name] = ("%s/parsers/%s/%s.lua"):format(scripts.snapshot.folder, kind, name)
    end
    all[kind] = {}
    for _, name in ipairs(text.sorted_keys(paths)) do
      all[kind][name] = load(scripts, kind, name, paths[name])
      pause()
    end
  end
  return all
end

-- ---- which models -------------------------------------------------------------------------------

local function shows(template, texts)
  for _, part in ipairs(texts) do
    if not template:find(part, 1, true) then return false end
  end
  return #texts > 0
end

--- The site's format of a kind for a template, or nil.
local function choose(list, template, own)
  for _, name in ipairs(text.sorted_keys(list)) do
    if shows(template, list[name].format.detect or {}) then return list[name] end
  end
  return list[own]
end

--- The formats that replace the words' own, by kind; nil when there is none.
local function chosen(all, words)
  if not next(all.tools) and not next(all.reasoning) then return nil end
  local out
  local template = words:template(true)
  for _, kind in ipairs(KINDS) do
    local own = words.formats[kind]
    local found = template and next(all[kind])
      and choose(all[kind], template.source, type(own) == "table" and own.name or own)
    if found then
      out = out or {}
      out[kind] = found
    end
  end
  return out
end

function formats.concern(all, words)
  return words ~= nil and chosen(all, words) ~= nil
end

-- ---- parsing ------------------------------------------------------------------------------------

local Guarded = {}
Guarded.__index = Guarded

local function ask(self, verb, piece)
  if not self.broken then
    for _, used in ipairs(self.used) do
      if phases.is_off(used.unit, "parse") then self.broken = true end
    end
  end
  if not self.broken then
    local ok, events = phases.call(self.used[1].unit, "parse", self.inner, verb, piece)
    if ok then return events end
    self.broken = true
  end
  return piece and piece ~= "" and { { type = "content", text = piece } } or {}
end

function Guarded:feed(piece) return ask(self, "feed", piece) end
function Guarded:finish() return ask(self, "finish") end
function Guarded:thinking() return not self.broken and self.inner:thinking() end

--- Words with the site's formats in place of their own, if any of these is for them.
function formats.apply(words, all)
  local found = chosen(all, words)
  if not found then return words end
  local used, mine = {}, {}
  for kind, name in pairs(words.formats) do
    mine[kind] = found[kind] and found[kind].format or name
    if found[kind] then used[#used + 1] = found[kind] end
  end
  local derived = setmetatable({ formats = mine }, { __index = words })
  function derived:parser(options)
    for _, one in ipairs(used) do
      if phases.is_off(one.unit, "parse") then return words:parser(options) end
    end
    return setmetatable({ inner = words.parser(self, options), used = used }, Guarded)
  end
  return derived
end

return formats
