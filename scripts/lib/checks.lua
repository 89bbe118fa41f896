-- checks: what `perigee check` knows how to check. A kind is
--   { name = "script", matches = function(path) … end, check = function(path, limits) … end }
-- where check returns a one-line summary, or nil and an error. The first kind that matches a file takes it.
local perigee = require "perigee"
local script = require "lib.script"
local text = require "lib.text"

local checks = { kinds = {} }

--- Adds a kind before those that are there.
function checks.add(kind)
  table.insert(checks.kinds, 1, kind)
end

--- The kind for a file, or nil.
function checks.kind_of(path)
  for _, kind in ipairs(checks.kinds) do
    if kind.matches(path) then return kind end
  end
end

local function call(f, limits)
  local ok, err = perigee.guard(f, limits)
  if ok then return true end
  return nil, err
end

--- Cases: a function, a list of functions, or a table of named functions. Sorted, so that they run in one order.
local function cases_of(value)
  if type(value) == "function" then return { { name = "selftest", run = value } } end
  if type(value) ~= "table" then return nil, "selftest is a " .. type(value) .. ", not a function or a table" end
  local cases = {}
  for name, f in pairs(value) do
    if type(f) ~= "function" then return nil, ("case %s is a %s, not a function"):format(name, type(f)) end
    cases[#cases + 1] = { name = tostring(name), run = f }
  end
  table.sort(cases, function(a, b)
    local x, y = tonumber(a.name), tonumber(b.name)
    if x and y then return x < y end
    return a.name < b.name
  end)
  return cases
end

local function selftest_of(result)
  if type(result) == "function" then return result end
  if type(result) ~= "table" then return nil end
  if result.selftest ~= nil then return result.selftest end
  for _, f in ipairs(result) do
    if type(f) ~= "function" then return nil end
  end
  return result[1] and result or nil
end

--- A table that schedules; of files in a folder `policy`, a function, too.
local function is_policy(path, result)
  if type(result) == "table" then return type(result.schedule) == "function" end
  return type(result) == "function" and path:match "policy/[^/]+%.lua$" ~= nil
end

checks.add {
  name = "script",
  matches = function(path) return path:match "%.lua$" ~= nil end,
  check = function(path, limits)
    local chunk, why = script.load(path)
    if not chunk then return nil, why end
    script.set_path(path)
    local result
    local ok, err = call(function() result = chunk() end, limits)
    if not ok then return nil, err end
    local said = ""
    if is_policy(path, result) then
      ok, err = call(function() require("policy.selftest").run(result, limits) end, limits)
      if not ok then return nil, err end
      said = ("a policy: %d steps are legal; "):format(require("policy.selftest").STEPS)
      if type(result) == "function" then return said .. "has no self-test" end
    end
    local selftest = selftest_of(result)
    if selftest == nil then return said .. "compiles and runs, has no self-test" end
    local cases, bad = cases_of(selftest)
    if not cases then return nil, path .. ": " .. bad end
    for _, case in ipairs(cases) do
      ok, err = call(case.run, limits)
      if not ok then return nil, perigee.error(err.code, ("%s: case %s: %s"):format(path, case.name, err.text)) end
    end
    return ("%s%d %s passed"):format(said, #cases, #cases == 1 and "case" or "cases")
  end,
}

checks.add {
  name = "parser",
  matches = function(path)
    local kind = path:match "parsers/(%a+)/[^/]+%.lua$"
    return kind == "tools" or kind == "reasoning"
  end,
  check = function(path, limits)
    local chunk, why = script.load(path)
    if not chunk then return nil, why end
    local selftest = require "parsers.selftest"
    local n
    local ok, err = call(function()
      n = selftest.run(chunk(), { kind = path:match "parsers/(%a+)/[^/]+$", where = path })
    end, limits)
    if not ok then return nil, err end
    return ("%d %s passed, each whole and byte by byte"):format(n, n == 1 and "case" or "cases")
  end,
}

checks.add {
  name = "template",
  matches = function(path) return path:match "%.jinja2?$" ~= nil or path:match "%.j2$" ~= nil end,
  check = function(path, limits)
    local source, why = text.read_file(path)
    if not source then return nil, why end
    local n, can
    local ok, err = call(function() n, can = require("templates.selftest").run(source) end, limits)
    if not ok then return nil, err end
    local passed = n == 0 and "has no cases" or ("%d %s passed"):format(n, n == 1 and "case" or "cases")
    return ("%s; can: %s"):format(passed, can)
  end,
}

return checks
