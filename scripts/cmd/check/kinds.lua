-- kinds: the kinds of files that `perigee check` can check. A kind is
--   { name = "script", matches = function(path) … end, check = function(path, limits) … end }
-- where check returns a one-line summary, or nil and an error. The first kind that matches is used.
local perigee = require "perigee"
local script = require "lib.script"
local text = require "lib.text"

local checks = { kinds = {} }

--- Adds a kind in front of the others.
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

--- The cases of a self-test: a function, a list of functions or a table of named functions. Sorted,
--- so that the order is always the same.
local function cases_of(value)
  if type(value) == "function" then return { { name = "selftest", run = value } } end
  if type(value) ~= "table" then
    return nil, "selftest must be a function or a table, got " .. type(value)
  end
  local cases = {}
  for name, f in pairs(value) do
    if type(f) ~= "function" then
      return nil, ("case %s must be a function, got %s"):format(name, type(f))
    end
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

-- ---- hooks and policies -------------------------------------------------------------------------

local function counted(n)
  if n == 0 then return "has no self-test" end
  return ("%d %s passed"):format(n, n == 1 and "case" or "cases")
end

--- Loads a hook or policy as a server does: in the sandbox, with its self-test; a policy also has
--- to schedule two steps.
local function check_unit(path, kind, limits)
  local unit = require "hooks.unit"
  local source, why = text.read_file(path)
  if not source then return nil, why end
  local made
  made, why = unit.load { name = path:match "([^/]+)%.lua$", path = path, kind = kind,
    source = source, folder = text.dirname(text.dirname(path)), read = text.read_file,
    deadline_ms = limits.deadline_ms }
  if not made then return nil, why end
  if kind == "policy" then
    local steps = require("engine.policy_selftest").STEPS
    return ("a policy: %d steps are legal; %s"):format(steps, counted(made.cases))
  end
  local names = table.concat(text.sorted_keys(made.hooks), ", ")
  return ("hooks: %s; %s"):format(names, counted(made.cases))
end

--- "policy" or "hook" if the result of a script is one, in whatever folder it is; else nil.
local function serving_kind(result)
  if type(result) ~= "table" then return nil end
  if type(result.schedule) == "function" then return "policy" end
  for phase in pairs(require("hooks.phases").list) do
    if type(result[phase]) == "function" then return "hook" end
  end
end

-- ---- kinds --------------------------------------------------------------------------------------

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
      if not ok then
        local message = ("%s: case %s: %s"):format(path, case.name, err.message)
        return nil, perigee.error(err.code, message)
      end
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
    return counted(n) .. ", each whole and byte by byte"
  end,
}

-- All files of these folders, except the two modules in scripts/policy that are not policies.
checks.add {
  name = "hook or policy",
  matches = function(path)
    local folder, name = path:match "([^/]+)/([^/]+)%.lua$"
    return folder == "hooks" or folder == "policy" and name ~= "init" and name ~= "selftest"
  end,
  check = function(path, limits)
    return check_unit(path, path:match "policy/[^/]+$" and "policy" or "hook", limits)
  end,
}

checks.add {
  name = "schema or grammar",
  matches = function(path)
    return path:find "%.json$" ~= nil or path:find "%.gbnf$" ~= nil or path:find "%.lark$" ~= nil
  end,
  check = function(path) return require("cmd.check.grammars").check(path) end,
}

--- Does the architecture build a small Llama? Returns true; or false and what such a model lacks;
--- or nil and the mistake in its file.
local function try_architecture(a, path)
  local weights <close>, config = assert(require("cmd.bench.shapes").make("tiny", "bf16"))
  config.model_type = a.names[1]
  local options = { path = path, architectures = { a } }
  local built, why = require("models").assemble(weights, config, options)
  if built then
    built.graph:close()
    return true
  end
  why = why:sub(#path + 3)
  if why:sub(1, #path + 1) == path .. ":" then return nil, why end
  return false, why
end

checks.add {
  name = "architecture",
  matches = function(path)
    local name = path:match "models/([^/]+)%.lua$"
    return name ~= nil and name ~= "init"
  end,
  check = function(path)
    local source, why = text.read_file(path)
    if not source then return nil, why end
    local a, wrong = require("hooks.architectures").read(path, source)
    if not a then return nil, wrong end
    local built, lacks = try_architecture(a, path)
    if built == nil then return nil, lacks end
    return ("architecture of %s; %s"):format(table.concat(a.names, ", "),
      built and "builds a small Llama" or "not tried, its models are not like Llama: " .. lacks)
  end,
}

checks.add {
  name = "template",
  matches = function(path) return path:match "%.jinja2?$" ~= nil or path:match "%.j2$" ~= nil end,
  check = function(path, limits)
    local source, why = text.read_file(path)
    if not source then return nil, why end
    local n, can
    local ok, err = call(function() n, can = require("chat.selftest").run(source) end, limits)
    if not ok then return nil, err end
    return ("%s; can: %s"):format(n == 0 and "has no cases" or counted(n), can)
  end,
}

return checks
