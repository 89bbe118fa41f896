-- Any bytes as a configuration file: settings the server can use, or an error of one line that
-- names the file and what is wrong; never an error raised. Settings that pass are merged, gathered,
-- applied to others and written as the server does it.
local config = require "serve.config"
local driver = require "driver"
local text = require "lib.text"
local uv = require "luv"

local PATH = ("%s/perigee-fuzz-%d.lua"):format(uv.os_tmpdir(), uv.os_getpid())

-- A configuration runs with the whole standard library: a mutation must not be able to do harm.
local function forbidden() error "not in a fuzzer" end
for _, name in ipairs { "execute", "exit", "rename", "setlocale", "tmpname" } do
  os[name] = forbidden -- luacheck: ignore 122
end
local remove, open = os.remove, io.open
os.remove, io.popen = forbidden, forbidden -- luacheck: ignore 122
io.output, io.input = forbidden, forbidden -- luacheck: ignore 122
function io.open(path, mode) -- luacheck: ignore 122
  if mode and mode:find "[wa+]" and path ~= PATH then forbidden() end
  return open(path, mode)
end
io.read, io.lines = forbidden, forbidden -- luacheck: ignore 122

-- ---- generated files ----------------------------------------------------------------------------

local NAMES, INNER = {}, { "path", "load", "context", "requests", "tokens", "keys", "memory",
  "origins", "headers", "max_age", "values", "body", "temperature", "top_k", "logit_bias", "n" }
for i, key in ipairs(config.keys) do NAMES[i] = key[1] end

local SCALARS = { "nil", "true", "false", "0", "1", "-1", "0.5", "0/0", "1/0", "-1/0", "2^53",
  "1e300", "math.maxinteger", "math.mininteger", '""', '"a"', '"a\\nb"', '"8G"', '"99999999T"',
  '"auto"', '"moonlet"', '"\\0"', '"\\xff"', "print", "io.stdout", "coroutine.create(print)",
  '("x"):rep(1e6)', '"32"', "32", "8", "{}" }
local TABLES = { "setmetatable({}, { __index = function() error 'index' end })",
  "setmetatable({ 1 }, { __pairs = function() error 'pairs' end })",
  "setmetatable({ 'a' }, { __tostring = function() error { } end })",
  "setmetatable({}, { __len = function() return 1e9 end })",
  "setmetatable({}, { __pairs = function() return function() return 1, 'x' end end })",
  "(function() local t = { 'a' } t.t = t return t end)()",
  "{ [1.5] = 'a' }", "{ [true] = 'b' }", "{ [{}] = 'c' }", "{ [print] = 'd' }", "{ [-1] = 'e' }",
  "{ ['a\\nb'] = 'f' }", "{ 'a', 'b' }", "{ a = 'b', c = 'd' }", "{ { 'a' } }",
  "{ { path = 'a' } }",
  "setmetatable({}, { __name = 'x\\ny', __metatable = 1 })" }

local function value(r, depth)
  local kind = r:below(10)
  if kind <= 6 or depth == 0 then return r:pick(SCALARS) end
  if kind <= 8 then return r:pick(TABLES) end
  local parts = {}
  for i = 1, r:below(3) do
    local name = r:pick(r:below(4) == 1 and NAMES or INNER)
    parts[i] = (r:below(4) == 1 and "" or name .. " = ") .. value(r, depth - 1)
  end
  return "{ " .. table.concat(parts, ", ") .. " }"
end

local function generate(r)
  local lines = { "return {" }
  for _ = 1, r:below(3) do
    local name = r:pick(NAMES)
    if r:below(12) == 1 then
      name = r:pick { "prot", "[1]", "[true]", "['a\\nb']", "[{}]", "[2.5]" }
    end
    lines[#lines + 1] = ("  %s = %s,"):format(name, value(r, 3))
  end
  lines[#lines + 1] = "}"
  if r:below(16) == 1 then return "return " .. value(r, 3) end
  return table.concat(lines, "\n")
end

-- ---- the target ---------------------------------------------------------------------------------

local defaults = config.merge()

local function check_error(why, file)
  if type(why) ~= "string" then error(("the error is a %s"):format(type(why))) end
  if why:find "[\n\r]" then error(("an error of several lines: %q"):format(why)) end
  if #why > 2000 then error(("an error of %d bytes"):format(#why)) end
  if why:find "stack traceback" then error "a traceback" end
  if file and not why:find(PATH, 1, true) then error(("does not name the file: %q"):format(why)) end
end

--- A setting that is wrong is named: it has been read, so the message begins with one.
local function check_named(given, why)
  why = why:sub(#PATH + 3)
  if why == "deadline exceeded" or why == "not enough memory" then return end
  if why:find("must return a table", 1, true) or why:find("unknown key", 1, true) then return end
  for name in pairs(given) do
    if type(name) == "string" and why:sub(1, #name) == name then return end
  end
  error(("names no setting: %q"):format(why))
end

local function run(input)
  driver.write_file(PATH, input)
  local given, why = config.read(PATH)
  if not given then
    check_error(why, true)
    -- Globals of its own: a mutated file that assigns `error` must not change the fuzzer's.
    local chunk = load(input, "=config", "t", setmetatable({}, { __index = _G }))
    local ok, result = pcall(chunk or error)
    if ok and type(result) == "table" and debug.getmetatable(result) == nil then
      check_named(result, why)
    end
    return
  end
  local merged, wrong = config.resolve(given, nil)
  if not merged then return check_error(wrong) end
  if type(merged.port) ~= "number" or type(merged.host) ~= "string" then error "not complete" end
  local current = text.copy(defaults)
  config.apply(current, merged)
  config.apply(current, merged)
  config.apply(current, defaults)
end

config.RUN_MS = 500 -- a loop in a mutated file must not take the fuzzer's time

driver.main {
  name = "config", most = 4096, generate = generate,
  dictionary = { table.unpack(NAMES) },
  run = run,
  close = function() remove(PATH) end,
}
