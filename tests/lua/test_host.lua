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

test("modules and files are text, found in order", function(t)
  local folder = assert(require("luv").fs_mkdtemp(os.tmpname():gsub("[^/]*$", "") .. "XXXXXX"))
  local function put(name, source)
    local f <close> = assert(io.open(folder .. "/" .. name, "wb"))
    f:write(source)
    return folder .. "/" .. name
  end
  local path = package.path
  package.path = folder .. "/?.lua"
  local mine = put("test_host_mine.lua", "return { ... }")
  t.eq(require "test_host_mine", { "test_host_mine", mine })
  package.loaded.test_host_mine = nil
  put("test_host_wrong.lua", "x = = 1")
  t.raises(function() require "test_host_wrong" end, "test_host_wrong.lua:1:")
  t.raises(function() require "test_host_none" end, "no file '" .. folder .. "/test_host_none.lua'")
  package.path = path
  t.eq(package.cpath, "")
  for module, file in pairs { ["ui.files"] = "ui/files.lua", ["repl"] = "repl/init.lua" } do
    local loaded = package.loaded[module]
    package.loaded[module] = nil
    t.eq(select(2, require(module)), file)
    package.loaded[module] = loaded
  end
  local source = put("x.lua", "local a, b = ... return 1, nil, a, b")
  t.eq(table.pack(dofile(source)), { 1, nil, nil, nil, n = 4 })
  t.eq(table.pack(loadfile(source)(5, 6)), { 1, nil, 5, 6, n = 4 })
  t.eq(loadfile(put("y.lua", "return z"), "t", { z = 3 })(), 3)
  t.eq(loadfile(put("z.lua", "return z"), nil, { z = 4 })(), 4)
  t.raises(function() loadfile(source, "b") end, "only text chunks")
  t.raises(function() loadfile(source, {}) end, "string expected")
  t.raises(function() dofile(folder .. "/none.lua") end, "none.lua")
  t.raises(function() dofile() end, "string expected")
  t.eq({ load("x ="), 1 }, { nil, 1 })
  t.match(select(2, load("x =", "=here")), "^here:1:")
  for _, name in ipairs { "test_host_mine.lua", "test_host_wrong.lua", "x.lua", "y.lua",
    "z.lua" } do
    os.remove(folder .. "/" .. name)
  end
  os.remove(folder)
  for _, name in ipairs { "new_thread", "thread_equal", "thread_self", "thread_join", "new_work",
    "queue_work", "new_sem", "loop_close" } do
    t.eq(require("luv")[name], nil, name)
  end
  t.ok(rawequal(require "uv", require "luv"))
end)

test("sockets of processes that have ended", function(t)
  local uv = require "luv"
  local path = os.tmpname()
  t.raises(function() perigee.sys.is_refused(("x"):rep(108)) end,
    "socket path of 108 bytes is too long: at most 107")
  t.eq({ perigee.sys.is_refused(("x"):rep(107)), perigee.sys.is_refused(path .. ".none") },
    { false, false })
  os.remove(path)
  local server = uv.new_pipe(false)
  assert(server:bind(path))
  server:listen(8, print)
  t.eq(perigee.sys.is_refused(path), false)
  local kept = path .. ".kept"
  assert(uv.fs_link(path, kept))
  server:close()
  uv.run "nowait"
  t.eq(perigee.sys.is_refused(kept), true)
  os.remove(kept)
  os.remove(path)
end)

test("errors are values with code and message", function(t)
  local err = perigee.error("io", "a: b")
  t.eq({ err.code, err.message, tostring(err) }, { "io", "a: b", "a: b" })
  t.raises(function() perigee.error("io") end, "bad argument #2")
  t.raises(function() perigee.error(nil, "x") end, "bad argument #1")
  t.eq(err.field, nil)
  t.eq(perigee.error("io", "m", { field = "f" }).field, "f")
  t.raises(function() perigee.error("io", "m", { feild = "f" }) end, "did you mean 'field'?")
  t.raises(function() perigee.error("io", "m", "f") end, "table expected, got string")
  t.eq({ "x" .. err, err .. "x", err .. 5, err .. err }, { "xa: b", "a: bx", "a: b5", "a: ba: b" })
  t.eq(tostring(setmetatable({}, getmetatable(err))), "perigee.Error")
end)

test("the machine and the versions", function(t)
  local m = perigee.sys.machine()
  t.ok(m.cores >= 1 and m.cores_online >= 1)
  t.ok(m.page_size >= 4096)
  t.ok(m.memory > 0 and m.memory_available <= m.memory)
  t.ok(#m.features >= 1, "no instruction sets found")
  for _, name in ipairs { "system", "cpu" } do t.ok(#m[name] > 0, name) end
  t.ok(m.cores_online >= m.cores or m.cores >= 1)
  t.eq({ m.memory_limit >= 0, m.open_files > 0, m.locked_memory >= 0 }, { true, true, true })
  t.eq(m.page_size & (m.page_size - 1), 0)
  local v = perigee.sys.versions()
  t.match(v.lua, "^Lua 5%.4%.")
  for _, name in ipairs { "libuv", "utf8proc", "xxhash", "libwebp", "zstd" } do
    t.match(v[name], "^%d+%.%d+%.%d+", name)
  end
  t.match(v.zlib, "^%d+%.%d+") -- its 1.3 has no third number
  t.match(v.pcre2, "^%d+%.%d+ ")
  t.eq({ type(v.pcre2_jit), #v.compiler > 4 }, { "boolean", true })
  t.match(v.libwebp, "^[0-2]%.%d%d?%.%d+$")
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
  t.eq({ perigee.sys.width " ", perigee.sys.width "\31", perigee.sys.width "\127",
    perigee.sys.width "~", perigee.sys.width "\u{200b}" }, { 1, 1, 1, 1, 0 })
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
