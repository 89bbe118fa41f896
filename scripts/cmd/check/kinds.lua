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

-- ---- scripts that serve: hooks and policies ------------------------------------------------------------------------

local function counted(n)
  if n == 0 then return "has no self-test" end
  return ("%d %s passed"):format(n, n == 1 and "case" or "cases")
end

--- As a server would load it: in the sandbox, with its self-test; a policy also on two steps of its own.
local function check_unit(path, kind, limits)
  local unit = require "hooks.unit"
  local source, why = text.read_file(path)
  if not source then return nil, why end
  local made
  made, why = unit.load { name = path:match "([^/]+)%.lua$", path = path, kind = kind, source = source,
    folder = text.dirname(text.dirname(path)), read = text.read_file, deadline_ms = limits.deadline_ms }
  if not made then return nil, why end
  if kind == "policy" then
    return ("a policy: %d steps are legal; %s"):format(require("engine.policy_selftest").STEPS, counted(made.cases))
  end
  return ("hooks: %s; %s"):format(table.concat(text.sorted_keys(made.hooks), ", "), counted(made.cases))
end

--- "policy" or "hook" when a script returns what serves, wherever it lies; else nil.
local function serving_kind(result)
  if type(result) ~= "table" then return nil end
  if type(result.schedule) == "function" then return "policy" end
  for phase in pairs(require("hooks.phases").list) do
    if type(result[phase]) == "function" then return "hook" end
  end
end

-- ---- kinds ---------------------------------------------------------------------------------------------------------

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
    local serving = serving_kind(result)
    if serving then return check_unit(path, serving, limits) end
    local selftest = selftest_of(result)
    if selftest == nil then return "compiles and runs, has no self-test" end
    local cases, bad = cases_of(selftest)
    if not cases then return nil, path .. ": " .. bad end
    for _, case in ipairs(cases) do
      ok, err = call(case.run, limits)
      if not ok then return nil, perigee.error(err.code, ("%s: case %s: %s"):format(path, case.name, err.message)) end
    end
    return counted(#cases)
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

--- Files of these folders, but for perigee's own modules beside its policies.
checks.add {
  name = "hook or policy",
  matches = function(path)
    local folder, name = path:match "([^/]+)/([^/]+)%.lua$"
    return folder == "hooks" or folder == "policy" and name ~= "init" and name ~= "selftest"
  end,
  check = function(path, limits) return check_unit(path, path:match "policy/[^/]+$" and "policy" or "hook", limits) end,
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
