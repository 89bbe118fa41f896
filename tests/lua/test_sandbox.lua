-- sandbox: what the environment of a script has, and how its load and require behave.
local async = require "lib.async"
local lent = require "hooks.lent"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local sandbox = require "hooks.sandbox"
local sites = require "sites"
local test = require("harness").test

local forced = ...

--- Runs a script; `modules`: sources by name. Returns its result, or nil and why, and what it
--- printed.
local function run(source, modules, core)
  local printed = {}
  local value, why = sandbox.run(source, { where = "s.lua", core = core,
    perigee = { log = function(line) printed[#printed + 1] = line end },
    find = function(name)
      local found = modules and modules[name]
      if found then return found, name .. ".lua" end
      return nil, "there is no module '" .. name .. "'"
    end })
  return value, why, printed
end

local function names_of(expression)
  local list = run("local list = {} for name in pairs(" .. expression .. ") do "
    .. "list[#list + 1] = name end table.sort(list) return table.concat(list, ' ')")
  return list
end

test("the environment has these names and no others", function(t)
  for name, want in pairs {
    assert = "function", error = "function", getmetatable = "function", ipairs = "function",
    load = "function", next = "function", pairs = "function", pcall = "function",
    print = "function", rawequal = "function", rawget = "function", rawlen = "function",
    rawset = "function", require = "function", select = "function", setmetatable = "function",
    tonumber = "function", tostring = "function", type = "function", xpcall = "function",
    coroutine = "table", math = "table", os = "table", string = "table", table = "table",
    utf8 = "table", _G = "table", _VERSION = "string", collectgarbage = "nil", debug = "nil",
    dofile = "nil", io = "nil", loadfile = "nil", package = "nil", perigee = "nil", arg = "nil",
  } do
    t.eq(run("return type(" .. name .. ")"), want, name)
  end
  t.eq(run "return _G.string == string and _G._G == _G", true)
  t.eq(names_of "os", "clock date difftime time")
  t.eq(run "return string.dump", nil)
  t.eq(run "return math.randomseed", nil)
  t.eq(run "return getmetatable(_G)", nil)
  t.eq({ run "x = 1" }, { nil, "s.lua:1: 'x' would be a global; make it local", {} })
  t.eq({ run "_G.y = 1" }, { nil, "s.lua:1: 'y' would be a global; make it local", {} })
  t.eq({ run "string.upper = nil return 1" }, { 1, nil, {} })
  t.eq(type(string.upper), "function") -- the libraries are copies
  t.eq(select(3, run "print('a', 1, nil, true)"), { "a\t1\tnil\ttrue" })
  t.eq(run "local l = { 2, 3, 1 } table.sort(l, math.ult) return l[1] .. l[2] .. l[3]", "123")
  t.eq(run "local l = { 2, 3, 1 } table.sort(l) return l[1] .. l[2] .. l[3]", "123")
  t.eq(run "local l = { 2, 3, 1 } table.sort(l, function(a, b) return a > b end) return l[1]", 3)
end)

test("load takes text and functions, into the same environment", function(t)
  t.eq(run "return load('return 5')()", 5)
  t.eq(run "return load('return io')()", nil)
  t.eq(run "return load('return x', 'n', 't', { x = 3 })()", 3)
  t.eq(run "return load('return 1', 'n', 'bt')()", 1)
  t.eq(run "return select(2, load('return 1', 'n', 'b'))", "only text can be loaded")
  t.eq(run "return select(2, load('+'))", "(load):1: unexpected symbol near '+'")
  t.eq(run "return select(2, load('+', '=mine'))", "mine:1: unexpected symbol near '+'")
  local pieces = "local at, list = 0, { 'return', ' 1 +', ' 2', %s } "
    .. "return load(function() at = at + 1 return list[at] end)()"
  t.eq(run(pieces:format "nil"), 3)
  t.eq(run(pieces:format "'', '+ 4'"), 3) -- an empty piece is the end
  local filled = "local text, why = load('return 7' .. (' '):rep((256 << 10) - 8 + %d)) "
    .. "return text and text() or why"
  t.eq(run(filled:format(0)), 7)
  t.eq(run(filled:format(1)), "load: the source has 262145 bytes, the limit is 262144")
  local format = "return #os.date(('x'):rep(%d))"
  t.eq(run(format:format(1000)), 1000)
  t.eq(select(2, run(format:format(1001))),
    "s.lua:1: os.date: the format has 1001 bytes, the limit is 1000")
end)

test("require loads a module once, and ends where modules require each other", function(t)
  local modules = { one = "return { n = ... }", none = "", no = "return false",
    a = "local b = require 'b' return { b = b }", b = "return { a = require 'a' }",
    bad = "return +", io = "return io", deep = "error 'deep'" }
  t.eq(run("local one = require 'one' return one == require 'one' and one.n", modules), "one")
  t.eq(run("return require 'none'", modules), true)
  t.eq(run("return require 'no'", modules), false)
  t.eq(run("return require('a').b.a", modules), true)
  t.eq(run("return require 'io'", modules), true) -- the module, in the same environment
  t.eq({ run("require 'bad'", modules) }, { nil, "bad.lua:1: unexpected symbol near '+'", {} })
  t.eq({ run("require 'deep'", modules) }, { nil, "deep.lua:1: deep", {} })
  t.eq({ run("require 'x'", modules) }, { nil, "s.lua:1: require: there is no module 'x'", {} })
  t.eq({ run("require(5)", modules) }, { nil, "s.lua:1: require: expected a name, got number", {} })
  local function core(name) return name == "hooks.plain" end
  t.eq(run("return require 'hooks.plain'", modules, core), plain)
  t.eq(run("return require('one').n", modules, core), "one")
end)

test("statuses that a script may reject with", function(t)
  for status, fine in pairs { [399] = false, [400] = true, [599] = true, [600] = false,
    [404.5] = false } do
    t.eq(pcall(phases.reject, status, "no"), fine, tostring(status))
  end
  t.eq(pcall(phases.reject, 404.0, "no"), false)
  t.eq(phases.reject(429, "no", { retry_after = 0 }).retry_after, 0)
  t.raises(function() phases.reject(429, "no", { retry_after = -1 }) end, "a number of seconds")
  t.raises(function() phases.reject(429, "no", { retry_after = "1" }) end, "a number of seconds")
end)

test("tables of scripts: depth, size and cycles", function(t)
  local meta = {}
  plain.setmetatable({}, meta) -- from now on there are scripts with metatables
  local function nest(n)
    local value = plain.setmetatable({}, meta)
    for _ = 2, n do value = plain.setmetatable({ value }, meta) end
    return value
  end
  local inner = plain.strip(nest(256))
  t.eq(debug.getmetatable(inner), nil)
  for _ = 2, 256 do
    inner = inner[1]
    t.eq(debug.getmetatable(inner), nil)
  end
  t.eq({ plain.strip(nest(257)) }, { nil, "tables nested more than 256 deep" })
  local loop = {}
  loop[1] = loop
  t.eq({ plain.strip(loop) }, { nil, "a table that contains itself" })
  t.eq({ plain.strip { [{}] = 1 } }, { nil, "a table as a key" })
  local twice = {}
  t.eq({ plain.strip { twice, twice } }, { { {}, {} } })
end)

test("tokenizers lent to scripts take texts and ids up to a limit", function(t)
  local tok = { encode = function(_, text) return #text end,
    decode = function(_, ids) return #ids end }
  local vocab = lent.vocab(tok)
  t.eq(vocab:encode(("x"):rep(65536)), 65536)
  t.raises(function() vocab:encode(("x"):rep(65537)) end,
    "encode: the text has 65537 bytes, the limit is 65536")
  local ids = {}
  for i = 1, 65536 do ids[i] = i end
  t.eq(vocab:decode(ids), 65536)
  ids[65537] = 1
  t.raises(function() vocab:decode(ids) end, "decode: 65537 ids, the limit is 65536")
end)

test("what hooks may return and ask for, at its limits", function(t)
  local app <close> = sites.open({ ["hooks/mine.lua"] = [[return {
    admit = function(req)
      local tag = {}
      for i = 1, req.ctx.n do tag["k" .. i] = i end
      return tag
    end,
    generate = function(req, run) return run(req, { n = req.ctx.n }) end }]] }, { forced = forced })
  local scripts = app.scripts:current()
  local function request(n)
    return { headers = {}, ctx = { n = n }, tag = {}, body = {}, id = "x" }
  end
  t.eq(scripts:call("admit", request(64), {}).k64, 64)
  t.eq(scripts:call("admit", request(65), {}), nil)
  for i, n in ipairs { 1, 128, 0, 129, 1.5 } do -- the last three are refused
    local fine, asked = i <= 2, nil
    async.run(function()
      scripts:wait("generate", request(n), function(_, options)
        asked = asked or options and options.n or "own"
        return { text = "x" }
      end)
    end)
    t.eq(asked, fine and n or "own", tostring(n))
  end
end)
