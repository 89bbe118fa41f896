-- sandbox: the environment of a site's scripts. It has what a script needs and nothing that reaches
-- the machine.
--
-- It has: the language, string, table, math, utf8, coroutine, clock, date and time of os, print (to
-- the log), load (of text, into the same environment), and require, which finds "perigee"
-- (facade.lua) and modules of the site's folder, each loaded once per script. It does not have: io,
-- debug, package, the rest of os, bytecode, C modules, perigee's own modules. Setting a global
-- raises, since it is nearly always a forgotten `local`.
--
-- This keeps mistakes from spreading; it is not a wall against an operator who means harm. What
-- would loop in C for long cannot: patterns, rep and the functions of table ask the watchdog
-- (lua/l_string.c, lua/l_table.c), sort gets a comparison in Lua, and what is linear in a text is
-- bounded by the memory of a call. __gc is refused, since hooks are off in finalizers.
local perigee = require "perigee"
local plain = require "hooks.plain"
local text = require "lib.text"

-- CPU time of loading one script: when the server starts, and while it serves. A reload runs in the
-- loop, so it must leave /health its 50 ms.
local sandbox = { LOAD_MS = 500, RELOAD_MS = 40, MEMORY = 64 << 20 }

-- Bytes of a source that load takes: compiling is C, and 256 KB take about 20 ms.
local MAX_LOAD = 256 << 10
local MAX_DATE = 1000 -- bytes of a format of os.date, where each conversion takes a microsecond

local function copy(library, but)
  local out = {}
  for name, value in pairs(library) do
    if not (but and but[name]) then out[name] = value end
  end
  return out
end

local NAMES = { "assert", "error", "ipairs", "next", "pairs", "pcall", "rawequal", "rawget",
  "rawlen", "rawset", "select", "tonumber", "tostring", "type", "xpcall", "_VERSION" }

local function is_less(a, b) return a < b end

--- table.sort whose comparison runs in Lua, where a deadline can stop it.
local function sort(list, compare)
  local is_c = type(compare) == "function" and debug.getinfo(compare, "S").what == "C"
  return table.sort(list, is_c and function(a, b) return (compare(a, b)) end or compare or is_less)
end

local function date(format, time)
  if type(format) == "string" and #format > MAX_DATE then
    error(("os.date: the format has %d bytes, the limit is %d"):format(#format, MAX_DATE), 2)
  end
  return os.date(format, time)
end

local function no_global(_, name)
  error(("'%s' would be a global; make it local"):format(tostring(name)), 2)
end

local function globals_of(options)
  local globals = {}
  for _, name in ipairs(NAMES) do globals[name] = _G[name] end
  globals.string, globals.table = copy(string, { dump = true }), copy(table)
  globals.utf8 = copy(utf8)
  globals.math, globals.coroutine = copy(math, { randomseed = true }), copy(coroutine)
  globals.table.sort = sort
  globals.os = { clock = os.clock, date = date, time = os.time, difftime = os.difftime }
  globals.setmetatable, globals.getmetatable = plain.setmetatable, plain.getmetatable
  globals.print = function(...)
    local parts = table.pack(...)
    for i = 1, parts.n do parts[i] = tostring(parts[i]) end
    options.perigee.log(table.concat(parts, "\t"))
  end
  return globals
end

--- The environment of one script. options: perigee (the facade); find = function(name) that returns
--- the source and the path of a module of the site, or nil and why; core = function(name): may this
--- module of perigee be required?
function sandbox.environment(options)
  local globals, loaded = globals_of(options), { perigee = options.perigee }
  local env = setmetatable({}, { __index = globals, __newindex = no_global, __metatable = false })
  globals._G = env
  function globals.load(source, name, mode, other)
    if type(source) == "function" then
      local parts = {}
      for part in source do
        if part == "" then break end
        parts[#parts + 1] = part
      end
      source = table.concat(parts)
    end
    if type(source) == "string" and #source > MAX_LOAD then
      return nil, ("load: the source has %d bytes, the limit is %d"):format(#source, MAX_LOAD)
    end
    if mode ~= nil and mode ~= "t" and mode ~= "bt" then return nil, "only text can be loaded" end
    return load(source, name or "=(load)", "t", other or env)
  end
  function globals.require(name)
    if type(name) ~= "string" then
      error(("require: expected a name, got %s"):format(type(name)), 2)
    end
    if loaded[name] ~= nil then return loaded[name] end
    if options.core and options.core(name) then return require(name) end
    local source, where = options.find(name)
    if not source then error(("require: %s"):format(where), 2) end
    local chunk, why = load(source, "@" .. where, "t", env)
    if not chunk then error(why, 0) end
    loaded[name] = true -- found by a module that requires this one in turn
    local value = chunk(name)
    loaded[name] = value == nil and true or value
    return loaded[name]
  end
  return env
end

--- Compiles and runs a script; returns its result, or nil and one line. options: as above, and
--- where (its name), deadline_ms.
function sandbox.run(source, options)
  local env = sandbox.environment(options)
  local chunk, why = load(source, "@" .. options.where, "t", env)
  if not chunk then return nil, why end
  local ok, value = perigee.guard(chunk,
    { deadline_ms = options.deadline_ms or sandbox.LOAD_MS, memory = sandbox.MEMORY })
  if not ok then
    local said = text.first_line(value)
    local stopped = value.code == "deadline" or value.code == "memory"
    return nil, stopped and ("%s: %s while it was loaded"):format(options.where, said) or said
  end
  return value
end

return sandbox
