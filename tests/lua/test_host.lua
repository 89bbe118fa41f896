-- The host: modules, text-only chunks, errors as values, the machine.
local perigee = require "perigee"
local test = require("harness").test

test("modules exist, and only text chunks are loaded", function(t)
  t.ok(require("cjson").encode)
  t.ok(require("luv").hrtime)
  t.raises(function() require "no.such.module" end, "no script 'no/such/module.lua'")
  local binary = string.dump(function() return 1 end)
  t.eq(load(binary), nil)
  t.eq(load(binary, "x", "bt"), nil)
  t.raises(function() load(binary, "x", "b") end, "only text chunks")
  t.eq(load("return ...", "x", "t", {})(5), 5)
  t.eq(load("return x", "x", nil, { x = 3 })(), 3)
  t.eq(load("return print", "x")(), print)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(binary)
  f:close()
  t.eq(loadfile(path), nil)
  t.raises(function() dofile(path) end, "attempt to load a binary chunk")
  os.remove(path)
  t.eq(package.loadlib, nil)
  t.eq(#package.searchers, 3)
end)

test("embedded scripts can be listed and read", function(t)
  local names = perigee.sys.scripts()
  local found = {}
  for _, name in ipairs(names) do found[name] = true end
  for _, name in ipairs { "main.lua", "cmd/run.lua", "repl/init.lua", "meta/perigee.lua" } do
    t.ok(found[name], name)
  end
  t.match(perigee.sys.script "main.lua", "^%-%- main")
  t.eq(perigee.sys.script "nothing.lua", nil)
end)

test("errors are values with code and message", function(t)
  local err = perigee.error("io", "a: b")
  t.eq({ err.code, err.message, tostring(err) }, { "io", "a: b", "a: b" })
  t.raises(function() perigee.error("io") end, "bad argument #2")
end)

test("the machine and the versions", function(t)
  local m = perigee.sys.machine()
  t.ok(m.cores >= 1 and m.cores_online >= 1)
  t.ok(m.page_size >= 4096)
  t.ok(m.memory > 0 and m.memory_available <= m.memory)
  t.ok(#m.features >= 1, "no instruction sets found")
  t.match(perigee.sys.versions().lua, "^Lua 5%.4%.")
  local used, cap = perigee.heap()
  t.ok(used > 0 and (cap == 0 or used < cap))
end)

test("CPU time grows while computing, not while waiting", function(t)
  local before = perigee.sys.cpu_ns()
  require("luv").sleep(50)
  local waited = perigee.sys.cpu_ns() - before
  local n = 0
  for i = 1, 300000 do n = n + i end
  t.ok(n > 0)
  local worked = perigee.sys.cpu_ns() - before - waited
  t.ok(worked > 0)
  t.ok(waited < 40e6, ("%d ns of CPU time in 50 ms of sleep"):format(waited))
end)

test("width of a text", function(t)
  t.eq(perigee.sys.width "", 0)
  t.eq(perigee.sys.width "abc", 3)
  t.eq(perigee.sys.width "é", 1)
  t.eq(perigee.sys.width "e\u{301}", 1)
  t.eq(perigee.sys.width "漢字", 4)
  t.eq(perigee.sys.width "a\xffb", 3)
  t.eq(perigee.sys.width "\0\1", 2)
end)

test("comparison in constant time, and the limit of open files", function(t)
  local equal = perigee.sys.equal
  t.eq({ equal("", ""), equal("a", "a"), equal("key\0x", "key\0x"),
    equal(("x"):rep(300), ("x"):rep(300)) },
    { true, true, true, true })
  t.eq({ equal("", "a"), equal("a", ""), equal("a", "b"), equal("ab", "aba"), equal("abab", "ab"),
    equal("key\0x", "key\0y") },
    { false, false, false, false, false, false })
  t.raises(function() equal("a") end, "string expected")
  local files = assert(perigee.sys.raise_files())
  t.eq(files >= 1, true)
  t.eq(perigee.sys.raise_files(), files)
  t.eq(perigee.sys.machine().open_files, files)
end)
