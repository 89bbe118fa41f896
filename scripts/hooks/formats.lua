-- formats: parsers of a site: tool and reasoning formats that perigee does not know, or knows otherwise.
--
-- A format is a page as in scripts/parsers/tools; it may require the modules that those do. Which models use it: those whose
-- template has all texts of its `detect`, and those whose own format has the same name. It must bring self-test cases, which run
-- whole and split at every byte.
--
-- What a site's parser does while it serves is under the deadline of the phase `parse`. One that fails leaves the rest of
-- that answer as content.
local perigee = require "perigee"
local facade = require "hooks.facade"
local phases = require "hooks.phases"
local sandbox = require "hooks.sandbox"
local selftest = require "parsers.selftest"
local site = require "hooks.site"
local text = require "lib.text"
local trial = require "hooks.trial"

local formats = {}

local KINDS = { "tools", "reasoning" }

local function is_core(name)
  return name == "parsers" or name:find "^parsers%.[%w_]+$" ~= nil or name:find "^parsers%.%a+%.[%w_]+$" ~= nil
end

-- ---- loading -------------------------------------------------------------------------------------------------------

--- Runs one and its cases; raises one line.
local function load(gen, kind, name, path)
  local source = gen.snapshot:read(path)
  local former = gen.former and gen.former.formats[kind][name]
  if former and former.source == source and not next(former.unit.strikes) then return former end
  local script = { name = name, path = path, host = trial.host(), timers = {}, loaded = true, strikes = {}, struck = gen.struck,
    deadlines = gen.deadlines }
  local format, why = sandbox.run(source, { where = path, perigee = facade.new(script), core = is_core,
    find = function(other) return nil, ("there is no module '%s' for parsers"):format(other) end })
  if format == nil and why then error(why, 0) end
  local ok, err = perigee.guard(function() selftest.run(format, { kind = kind, where = path }) end,
    { deadline_ms = sandbox.LOAD_MS, memory = sandbox.MEMORY })
  if not ok then error(text.first_line(err), 0) end
  format.name = format.name or name
  script.host, script.version = gen.host, 1
  script.hooks = { parse = function(parser, verb, piece) return parser[verb](parser, piece) end }
  gen.changed[#gen.changed + 1] = name
  return { name = name, source = source, format = format, unit = script, path = path }
end

--- Formats of a folder given by --scripts that have changed since the start: name -> path. Those that have not are loaded as
--- modules already.
local function changed_ones(gen, kind)
  local out, _, own = {}, perigee.sys.scripts()
  if not own then return out end
  local folder = ("%s/parsers/%s"):format(own, kind)
  for _, name in ipairs(site.names(folder, "lua")) do
    local path = folder .. "/" .. name .. ".lua"
    local source = gen.snapshot:read(path)
    gen.first[path] = gen.first[path] or source
    if source ~= gen.first[path] then out[name] = path end
  end
  return out
end

--- { tools = { [name] = … }, reasoning = { … } } of a generation that is being built.
function formats.load(gen, pause)
  local all = {}
  for _, kind in ipairs(KINDS) do
    local paths = changed_ones(gen, kind)
    for _, name in ipairs(gen.snapshot.names["parsers/" .. kind]) do
      paths[name] = ("%s/parsers/%s/%s.lua"):format(gen.snapshot.folder, kind, name)
    end
    all[kind] = {}
    for _, name in ipairs(text.sorted_keys(paths)) do
      all[kind][name] = load(gen, kind, name, paths[name])
      pause()
    end
  end
  return all
end

-- ---- which models --------------------------------------------------------------------------------------------------

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

--- The formats that are used instead of the words' own, by kind; nil when there is none.
local function chosen(all, words)
  if not next(all.tools) and not next(all.reasoning) then return nil end
  local out
  local template = words:template(true)
  for _, kind in ipairs(KINDS) do
    local own = words.formats[kind]
    local found = template and next(all[kind]) and choose(all[kind], template.source, type(own) == "table" and own.name or own)
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

-- ---- parsing -------------------------------------------------------------------------------------------------------

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

--- Words with the site's formats in place of their own, where they concern them.
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
