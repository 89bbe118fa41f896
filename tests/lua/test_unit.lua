-- hooks.unit: scripts of a site, read one by one: what they are made of, and what is refused.
local test = require("harness").test
local unit = require "hooks.unit"

local function load(source, more)
  local o = { name = "x", path = "x.lua", kind = "hook", source = source, load_ms = 60000,
    folder = "site", read = function(path)
      return path == "site/lib/m.lua" and "return { n = 5 }" or nil
    end, struck = function() end, host = { real = true } }
  for k, v in pairs(more or {}) do o[k] = v end
  return unit.load(o)
end

test("what a script becomes", function(t)
  local u = assert(load [[
    local m = require "lib.m"
    return { config = { a = m.n, list = { 1 } }, params = { p = "integer", q = { "string", "d" } },
      admit = function(req, queue, self) end }]])
  t.eq({ u.name, u.path, u.kind, u.version, u.self.config, u.self.state, u.self.version,
    u.self.name, u.loaded, u.host },
    { "x", "x.lua", "hook", 1, { a = 5, list = { 1 } }, {}, 1, "x", true, { real = true } })
  t.eq({ u.sources["site/lib/m.lua"], type(u.hooks.admit), u.hooks.request },
    { "return { n = 5 }", "function" })
  t.eq({ unit.parameters(u, { p = 3 }), unit.parameters(u, { p = 3, q = "e" }) },
    { { p = 3, q = "d" }, { p = 3, q = "e" } })
  t.eq(select(2, unit.parameters(u, {})), "the script 'x' needs the parameter 'p' (integer)")
  t.eq(select(2, unit.parameters(u, { p = 1, r = 2 })):match "^[^,]*",
    "the script 'x' has no parameter 'r'")
  t.ok(not unit.parameters(u, { p = 1.5 }))
  t.eq(assert(load("return { version = 7 }")).version, 7)
  local p = assert(load("return function(step) step:fill() end", { kind = "policy" }))
  t.eq(type(p.hooks.schedule), "function")
  u = assert(load("return { config = { a = 1, b = true } }", { config = { a = 2 } }))
  t.eq(u.self.config, { a = 2, b = true })
  local function read(path) return path == "x.lua" and "return { config = { a = 1, b = true } }" end
  t.eq({ unit.same(u, read, { a = 2 }), unit.same(u, read, { a = 3 }), unit.same(u,
    function() return "other" end, { a = 2 }) }, { true, false, false })
end)

test("what is refused, in one line", function(t)
  for source, want in pairs {
    ["return 1"] = "x.lua: must return a table, got number",
    ["return { nam = 'x' }"] = "x.lua: unknown key 'nam', did you mean 'name'?",
    ["return { name = 'y' }"] = "x.lua: its name is 'y', but its file is x.lua",
    ["return { version = 1.5 }"] = "x.lua: 'version' must be an integer",
    ["return { version = 'a' }"] = "x.lua: 'version' must be a number, got string",
    ["return { schedule = function(step) end }"] =
      "x.lua: `schedule` is for policies: files of the folder policy",
    ["local M = {} function M:admit() end return M"] =
      "x.lua: 'admit' is written as a method; write function M.admit(req, queue, self)",
    ["return { params = { a = 'list' } }"] =
      "x.lua: params.a must be integer, number, string or boolean, got list",
    ["return { config = { a = print } }"] = "x.lua: config.a is a function",
    ["return { state = function() return 1 end }"] = "x.lua: state must return a table, got number",
    ["require '../x'"] = "x.lua:1: '../x' is not a valid name of a module",
  } do
    local none, why = load(source)
    t.eq(none, nil, source)
    t.ok(why:sub(1, #want) == want or why:find(want:gsub("^x.lua:1: ", ""), 1, true), why)
  end
  t.eq(select(2, load("return {}", { kind = "policy" })), "x.lua: a policy must have `schedule`")
  t.eq(select(2, load("return { config = { a = 1 } }", { config = { b = 1 } })):match "^[^,]*",
    "x.lua: has no setting 'b'")
  t.eq(select(2, load("return { config = { a = 1 } }", { config = { a = "x" } })),
    "x.lua: setting 'a' must be a number, got string")
end)

test("a new version takes over the state, as a copy", function(t)
  local former = { version = 2, self = { state = { n = { 1 } } } }
  local u = assert(load("return { version = 2 }", { former = former }))
  t.eq(u.self.state, { n = { 1 } })
  t.ok(u.self.state.n ~= former.self.state.n)
  u = assert(load("return { version = 3, state = function(old, v) return { old.n[1] + v } end }",
    { former = former }))
  t.eq(u.self.state, { 3 })
  t.eq(select(2, load("return {}", { former = former })),
    "x.lua: version 1 is older than 2, which serves")
  t.ok(load("return {}", { former = former, downgrade = true }))
  former.self.state.f = print
  t.eq(select(2, load("return { version = 2 }", { former = former })),
    "x.lua: the state is not plain data: state.f is a function")
  former.self.state = {}
  local inner = former.self.state
  for _ = 1, 63 do
    inner.a = {}
    inner = inner.a
  end
  t.ok(load("return { version = 2 }", { former = former }))
  inner.a = {}
  t.match(select(2, load("return { version = 2 }", { former = former })), "is nested too deep$")
end)
