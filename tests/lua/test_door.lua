-- The guarded door: no script escapes its limits.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

local function loop() while true do end end

--- Runs fn under a deadline; it must be stopped soon after.
local function stops(t, fn, ms)
  local began = uv.hrtime()
  local err = t.fails("deadline", perigee.guard(fn, { deadline_ms = ms or 30 }))
  local took = (uv.hrtime() - began) / 1e6
  t.ok(took < 5000, ("stopped after %.0f ms"):format(took))
  return err
end

test("results are passed on, also none and nil", function(t)
  t.eq(table.pack(perigee.guard(function() return 1, nil, 3 end)), { true, 1, nil, 3, n = 4 })
  t.eq(table.pack(perigee.guard(function() end)), { true, n = 1 })
  t.eq(table.pack(perigee.guard(function() return 7 end, { deadline_ms = 1000 })),
    { true, 7, n = 2 })
end)

test("an error has code, message, traceback and value", function(t)
  local err = t.fails("error", perigee.guard(function() error "oops" end))
  t.match(err.message, "test_door.lua:%d+: oops$")
  t.match(err.traceback, "^stack traceback:\n")
  t.match(err.traceback, "test_door.lua")
  t.eq(tostring(err), err.message)
  t.eq("so: " .. err, "so: " .. err.message)
  t.eq(err.value, nil)
  local thrown = {}
  err = t.fails("error", perigee.guard(function() error(thrown) end))
  t.ok(rawequal(err.value, thrown))
  local _, again = perigee.guard(function() error(err) end)
  t.ok(rawequal(again, err), "an error that has its traceback is passed on")
end)

test("misuse raises and names the option", function(t)
  t.raises(function() perigee.guard(1) end, "function expected")
  t.raises(function() perigee.guard(print, { deadline = 1 }) end,
    "unknown option 'deadline', did you mean 'deadline_ms'?")
  t.raises(function() perigee.guard(print, { deadline_ms = "1" }) end,
    "'deadline_ms': number expected, got string")
  t.raises(function() perigee.guard(print, { deadline_ms = -1 }) end, "must be between 0 and 1e12")
  t.raises(function() perigee.guard(print, { memory = 1.5 }) end,
    "option 'memory': integer expected")
  t.raises(function() perigee.guard(print, { 1 }) end, "option names must be strings")
end)

test("a tight loop is stopped, and the traceback shows where", function(t)
  local err = stops(t, loop)
  t.match(err.traceback, "^stack traceback:\n\t[^\n]*test_door.lua:6: ")
end)

test("a loop of pcalls is stopped", function(t)
  stops(t, function() while true do pcall(loop) end end)
  stops(t, function() return pcall(loop) end)
  stops(t, function() return pcall(pcall, pcall, loop) end)
  stops(t, function() while true do xpcall(loop, loop) end end)
  stops(t, function() while true do xpcall(error, loop) end end)
  stops(t, function() repeat local ok = pcall(error) until ok end)
end)

test("a loop inside coroutines is stopped", function(t)
  stops(t, function() coroutine.resume(coroutine.create(loop)) end)
  stops(t, function() coroutine.wrap(loop)() end)
  stops(t, function() coroutine.wrap(function() coroutine.wrap(loop)() end)() end)
  stops(t, function()
    local step = coroutine.wrap(function() while true do coroutine.yield() end end)
    while true do step() end
  end)
  stops(t, function() while true do coroutine.resume(coroutine.create(loop)) end end)
  stops(t, function() while true do pcall(coroutine.wrap(function() pcall(loop) end)) end end)
end)

test("a loop in __close is stopped", function(t)
  local function closer() return setmetatable({}, { __close = loop }) end
  stops(t, function() local x <close> = closer() end) -- luacheck: ignore
  stops(t, function()
    local co = coroutine.create(function()
      local x <close> = closer() -- luacheck: ignore
      coroutine.yield()
    end)
    coroutine.resume(co)
    coroutine.close(co)
  end)
  stops(t, function()
    coroutine.wrap(function()
      local x <close> = closer() -- luacheck: ignore
      error "first"
    end)()
  end)
end)

test("a loop in a comparison, a metamethod or a replacement function is stopped", function(t)
  stops(t, function() table.sort({ 3, 2, 1 }, function() loop() end) end)
  stops(t, function() return setmetatable({}, { __index = loop }).x end)
  stops(t, function() return (("x"):gsub("x", loop)) end)
end)

test("a coroutine that was stopped stays dead", function(t)
  local co = coroutine.create(function()
    local x <close> = setmetatable({}, { __close = loop }) -- luacheck: ignore
    loop()
  end)
  stops(t, function() coroutine.resume(co) end)
  t.eq(coroutine.status(co), "dead")
  t.eq({ coroutine.close(co) }, { false, "stopped coroutine cannot be closed" })
end)

test("a coroutine that was stopped is collected", function(t)
  local weak = setmetatable({}, { __mode = "k" })
  stops(t, function()
    local co = coroutine.create(loop)
    weak[co] = true
    coroutine.resume(co)
  end)
  collectgarbage()
  collectgarbage()
  t.eq(next(weak), nil)
end)

test("xpcall behaves like Lua's", function(t)
  t.eq({ xpcall(function(...) return ... end, print, 1, nil, 3) }, { true, 1, nil, 3 })
  t.eq({ xpcall(error, function(e) return e .. "!" end, "x") }, { false, "x!" })
  t.eq({ xpcall(function() end, print) }, { true })
  t.raises(function() xpcall(print) end, "bad argument #2 to 'xpcall'")
  local co = coroutine.wrap(function()
    return xpcall(function(a)
      local b = coroutine.yield(a)
      error("e" .. b, 0)
    end, function(e) return "handled " .. e end, 1)
  end)
  t.eq(co(), 1)
  t.eq({ co(2) }, { false, "handled e2" })
  local function raise_in_close()
    local x <close> = setmetatable({}, { __close = error }) -- luacheck: ignore
  end
  t.eq((xpcall(raise_in_close, tostring)), false)
end)

test("a stop leaves no hook behind", function(t)
  local co = coroutine.create(function()
    coroutine.yield(1)
    return 2
  end)
  stops(t, function()
    coroutine.resume(co)
    loop()
  end)
  local made
  stops(t, function()
    made = coroutine.create(function(a, b) return a + b end)
    loop()
  end)
  t.eq({ coroutine.resume(co) }, { true, 2 })
  t.eq({ coroutine.resume(made, 1, 2) }, { true, 3 })
  local n = 0
  for _ = 1, 100000 do n = n + 1 end
  t.eq(n, 100000)
end)

test("nested: the inner deadline ends the inner call alone", function(t)
  local inner
  local ok, result = perigee.guard(function()
    inner = table.pack(perigee.guard(loop, { deadline_ms = 20 }))
    local n = 0
    for i = 1, 1000 do n = n + i end
    return n
  end, { deadline_ms = 10000 })
  t.eq({ ok, result }, { true, 500500 })
  t.fails("deadline", inner[1], inner[2])
end)

test("nested: the inner deadline never extends the outer", function(t)
  stops(t, function()
    while true do perigee.guard(loop, { deadline_ms = 60000 }) end
  end)
  stops(t, function()
    while true do perigee.guard(loop) end
  end)
end)

test("nested: an outer deadline is still watched after an inner stop", function(t)
  stops(t, function()
    perigee.guard(loop, { deadline_ms = 5 })
    loop()
  end, 60)
end)

test("only CPU time counts, not waiting", function(t)
  t.eq({ perigee.guard(function()
    uv.sleep(60)
    return "fine"
  end, { deadline_ms = 30 }) }, { true, "fine" })
end)

test("deep recursion is an error", function(t)
  debug.sethook() -- a collection at each of 200000 levels would take minutes
  local function deep(n) return 1 + deep(n + 1) end
  local err = t.fails("error", perigee.guard(function() return deep(1) end))
  t.match(err.message, "stack overflow")
  local function nest(n) return perigee.guard(function() return nest(n + 1) end) end
  t.ok(select("#", nest(1)) > 0)
end)

test("memory: a huge string, a growing string, a growing table", function(t)
  local limits = { memory = 8 << 20 }
  t.fails("memory", perigee.guard(function() return ("x"):rep(1 << 30) end, limits))
  t.fails("memory", perigee.guard(function()
    local s = "x"
    while true do s = s .. s end
  end, limits))
  t.fails("memory", perigee.guard(function()
    local list = {}
    for i = 1, math.huge do list[i] = i end
    return list
  end, limits))
  t.eq({ perigee.guard(function() return #("x"):rep(1 << 20) end, limits) }, { true, 1 << 20 })
  local used = perigee.heap()
  collectgarbage()
  t.ok(perigee.heap() <= used)
end)

test("memory: a call that takes too much is stopped without a collection", function(t)
  debug.sethook() -- the runner collects at every line
  collectgarbage()
  collectgarbage "stop"
  local weak = setmetatable({ {} }, { __mode = "v" })
  local err = t.fails("memory", perigee.guard(function()
    local s = "x"
    while true do s = s .. s end
  end, { memory = 8 << 20 }))
  t.match(err.traceback, "test_door")
  local list, n = {}, 0
  t.fails("memory", perigee.guard(function()
    while true do list[#list + 1] = {} end
  end, { memory = 1 << 20 }))
  t.ok(weak[1] ~= nil, "nothing was collected")
  local function deep()
    n = n + 1
    return 1 + deep()
  end
  t.fails("memory", perigee.guard(deep, { memory = 1 << 30 }))
  t.ok(n < 100000, ("%d calls"):format(n))
  n = 0
  t.fails("memory", perigee.guard(function() coroutine.wrap(deep)() end, { memory = 1 << 30 }))
  t.ok(n < 100000, ("%d calls in a coroutine"):format(n))
  collectgarbage "restart"
end)

test("memory: an inner call cannot have more than the outer", function(t)
  local inner
  perigee.guard(function()
    inner = table.pack(perigee.guard(function() return ("x"):rep(64 << 20) end,
      { memory = 1 << 30 }))
  end, { memory = 8 << 20 })
  t.fails("memory", inner[1], inner[2])
  t.eq({ perigee.guard(function() return #("x"):rep(16 << 20) end) }, { true, 16 << 20 })
end)

test("an interrupt stops the nearest call that asked for it", function(t)
  local inner
  local ok, err = perigee.guard(function()
    inner = table.pack(perigee.guard(function()
      uv.kill(uv.os_getpid(), "sigint")
      loop()
    end, { deadline_ms = 60000 }))
    return "not reached"
  end, { interruptible = true })
  t.fails("interrupt", ok, err)
  t.ok(inner == nil or inner[1] == nil)
  t.fails("interrupt", perigee.guard(function()
    uv.kill(uv.os_getpid(), "sigint")
    coroutine.wrap(loop)()
  end, { interruptible = true }))
end)

test("an interrupt that came too late for its call does not stop the next one", function(t)
  for _ = 1, 3 do
    perigee.guard(function() uv.kill(uv.os_getpid(), "sigint") end, { interruptible = true })
    t.eq({ perigee.guard(function()
      local stop = uv.hrtime() + 60e6 -- three looks
      repeat local now = uv.hrtime() until now > stop
      return "done"
    end, { interruptible = true }) }, { true, "done" })
  end
end)

test("coroutines behave like Lua's", function(t)
  local co = coroutine.create(function(a, b)
    local c = coroutine.yield(a + b)
    error("e" .. c, 0)
  end)
  t.eq({ coroutine.resume(co, 1, 2) }, { true, 3 })
  t.eq({ coroutine.resume(co, 4) }, { false, "e4" })
  t.eq({ coroutine.resume(co) }, { false, "cannot resume dead coroutine" })
  t.eq({ coroutine.resume(coroutine.running()) },
    { false, "cannot resume non-suspended coroutine" })
  t.eq(coroutine.status(co), "dead")
  t.raises(function() coroutine.resume(1) end, "thread expected")
  t.raises(function() coroutine.wrap(1) end, "function expected")
  t.raises(function() coroutine.wrap(function() error "inside" end)() end, "inside")
  local thrown = {}
  local ok, err = pcall(coroutine.wrap(function() error(thrown) end))
  t.ok(not ok and rawequal(err, thrown))
  local values = {}
  local function count() for i = 1, 3 do coroutine.yield(i) end end
  for v in coroutine.wrap(count) do values[#values + 1] = v end
  t.eq(values, { 1, 2, 3 })
end)

test("more values than a stack holds are refused by resume", function(t)
  t.unforced() -- nothing here is collected
  local function many(n) return table.unpack({}, 1, n) end
  local co = coroutine.create(function() return many(600000) end)
  t.eq(select("#", coroutine.resume(co)), 600001)
  co = coroutine.create(function() return many(600000) end)
  local function full(...) -- luacheck: ignore
    return table.pack(coroutine.resume(co)) -- half of the stack is taken
  end
  t.eq(full(many(500000)), { false, "too many results to resume", n = 2 })
  co = coroutine.create(function(...) -- luacheck: ignore
    coroutine.yield()
    return "end"
  end)
  t.eq({ coroutine.resume(co, many(600000)) }, { true })
  t.eq({ coroutine.resume(co, many(600000)) }, { false, "too many arguments to resume" })
  t.eq({ coroutine.resume(co) }, { true, "end" })
  t.raises(function()
    local function inside(...) -- luacheck: ignore
      return (coroutine.wrap(function() return many(600000) end)())
    end
    return inside(many(500000))
  end, "too many results to resume")
end)

test("coroutine.close closes variables and returns their errors", function(t)
  local closed
  local function with(f)
    local co = coroutine.create(function()
      local x <close> = setmetatable({}, { __close = f }) -- luacheck: ignore
      coroutine.yield()
    end)
    coroutine.resume(co)
    return co
  end
  t.eq({ coroutine.close(with(function() closed = true end)) }, { true })
  t.eq(closed, true)
  t.eq({ coroutine.close(with(function() error("bad", 0) end)) }, { false, "bad" })
  t.eq({ coroutine.close(coroutine.create(print)) }, { true })
  t.raises(function() coroutine.close(coroutine.running()) end, "cannot close a running coroutine")
  local outer
  outer = coroutine.create(function()
    local inner = coroutine.wrap(function() coroutine.close(outer) end)
    inner()
  end)
  local ok, err = coroutine.resume(outer)
  t.eq(ok, false)
  t.match(err, "cannot close a normal coroutine")
end)

test("random mixtures of nested coroutines and calls under tiny deadlines", function(t)
  local stopped = 0
  local function busy(depth)
    while true do
      local kind = math.random(4)
      if depth > 5 or kind == 1 then
        for _ = 1, 100 do pcall(error) end
      elseif kind == 2 then
        pcall(coroutine.wrap(busy), depth + 1)
      elseif kind == 3 then
        coroutine.resume(coroutine.create(busy), depth + 1)
      else
        local held = {}
        for i = 1, 50 do held[i] = coroutine.create(busy) end
        perigee.guard(function() busy(depth + 1, held) end, { deadline_ms = 0.2 })
      end
    end
  end
  for _ = 1, 60 do
    local ok, err = perigee.guard(function() busy(1) end, { deadline_ms = 1 })
    if not ok and err.code == "deadline" then stopped = stopped + 1 end
  end
  t.eq(stopped, 60)
end)
