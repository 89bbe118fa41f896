-- sandbox: where scripts of a site run. An environment that has what a script needs and nothing that reaches the machine.
--
-- There: the language, string, table, math, utf8, coroutine, clock, date and time of os, print (to the log), load (of text, into
-- the same environment), and require, which finds "perigee" (facade.lua) and modules of the site's folder, each loaded once per
-- script. Not there: io, debug, package, the rest of os, bytecode, C modules, perigee's own modules. Setting a global raises,
-- since it is a forgotten `local` in almost every case.
--
-- This keeps mistakes from spreading, it is no wall against an operator who means harm. One thing it cannot stop: a pattern
-- that backtracks for long inside one string.find never comes back to Lua, so no deadline ends it.
local perigee = require "perigee"
local text = require "lib.text"

local sandbox = { LOAD_MS = 500, MEMORY = 64 << 20 }

local function copy(library, but)
  local out = {}
  for name, value in pairs(library) do
    if not (but and but[name]) then out[name] = value end
  end
  return out
end

local WORDS = { "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget", "rawlen", "rawset", "select",
  "setmetatable", "tonumber", "tostring", "type", "xpcall", "_VERSION" }

--- Of tables only: the metatable of strings is everybody's.
local function table_metatable(value)
  if type(value) == "table" then return getmetatable(value) end
  return nil
end

local function no_global(_, name)
  error(("'%s' would be a global; make it local"):format(tostring(name)), 2)
end

local function words_of(options)
  local words = {}
  for _, name in ipairs(WORDS) do words[name] = _G[name] end
  words.string, words.table, words.utf8 = copy(string, { dump = true }), copy(table), copy(utf8)
  words.math, words.coroutine = copy(math, { randomseed = true }), copy(coroutine)
  words.os = { clock = os.clock, date = os.date, time = os.time, difftime = os.difftime }
  words.getmetatable = table_metatable
  words.print = function(...)
    local parts = table.pack(...)
    for i = 1, parts.n do parts[i] = tostring(parts[i]) end
    options.perigee.log(table.concat(parts, "\t"))
  end
  return words
end

--- The environment of one script. options: perigee (the facade), find = function(name) that gives the text and the name of a
--- module of the site, or nil and why; core: names of perigee's modules that may be required, or a function(name).
function sandbox.environment(options)
  local words, loaded = words_of(options), { perigee = options.perigee }
  local env = setmetatable({}, { __index = words, __newindex = no_global, __metatable = false })
  words._G = env
  function words.load(source, name, mode, other)
    if type(source) == "function" then
      local parts = {}
      for part in source do
        if part == "" then break end
        parts[#parts + 1] = part
      end
      source = table.concat(parts)
    end
    if mode ~= nil and mode ~= "t" and mode ~= "bt" then return nil, "only text can be loaded" end
    return load(source, name or "=(load)", "t", other or env)
  end
  function words.require(name)
    if type(name) ~= "string" then error(("require: a name expected, got %s"):format(type(name)), 2) end
    if loaded[name] ~= nil then return loaded[name] end
    if options.core and options.core(name) then return require(name) end
    local source, where = options.find(name)
    if not source then error(("require: %s"):format(where), 2) end
    local chunk, why = load(source, "@" .. where, "t", env)
    if not chunk then error(why, 0) end
    loaded[name] = true -- a circle finds this
    local value = chunk(name)
    loaded[name] = value == nil and true or value
    return loaded[name]
  end
  return env
end

--- Compiles a script and runs it; returns what it returns, or nil and one line. options: as above, and where (its name).
function sandbox.run(source, options)
  local env = sandbox.environment(options)
  local chunk, why = load(source, "@" .. options.where, "t", env)
  if not chunk then return nil, why end
  local ok, value = perigee.guard(chunk, { deadline_ms = options.deadline_ms or sandbox.LOAD_MS, memory = sandbox.MEMORY })
  if not ok then
    local said = text.first_line(value)
    local stopped = value.code == "deadline" or value.code == "memory"
    return nil, stopped and ("%s: %s while it was loaded"):format(options.where, said) or said
  end
  return value
end

return sandbox
