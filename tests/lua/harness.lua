-- harness: tests in Lua.
--
--   local test = require("harness").test
--   test("a name", function(t)
--     t.eq(got, want)            -- deep; a failure prints both values, and the test continues
--     t.raises(function() … end, "part of the message")
--     t.fails("not_found", f())  -- f returned nil and an error with this code; returns the error
--     timer:start(1, 0, t.expect(function() … end))   -- once; t.expect(f, n): n times
--     t.patch(uv, "new_poll", f) -- until the test has ended, however it ends
--   end)
--
-- After the body the loop runs until it has nothing left to do, then the collector. No uv handle,
-- C object, allocation of C or descriptor may be left after that; those that a thread still holds
-- have SETTLE_MS to go. In forced mode a full collection
-- runs at every allocation, which finds values that C uses without keeping a reference.
local async = require "lib.async"
local perigee = require "perigee"
local pretty = require "ui.pretty"
local scheduler = require "engine.scheduler"
local uv = require "luv"

-- Only a test that hangs takes this long; a sanitizer on a busy machine is slow.
local STOP = os.getenv "PERIGEE_TEST_STOP"
local LOOP_MS = os.getenv "SAN" and 300000 or 60000
local FORCED_S, SAMPLE = 0.3, 500 -- see force_collection
local FORCED_POLICY_MS = 10000 -- a collection at every allocation counts as the policy's time

local harness = {}

--- The thread sanitizer takes thirty times as long. A test that would take more than LOOP_MS then
--- asks fewer answers of the same threads.
harness.slow = (os.getenv "SAN" or ""):find "thread" ~= nil

harness.SETTLE_MS = 2000 -- a thread that ends closes its descriptors far sooner

--- How long one request or process of a test may take: less than the loop, so that a failure names
--- it.
harness.LIMIT_MS = LOOP_MS - 5000

local registered = {}

--- Registers a test of the file being loaded.
function harness.test(name, body)
  registered[#registered + 1] = { name = name, body = body }
end

-- ---- comparing ----------------------------------------------------------------------------------

--- Stricter than lib/text.same: 1 and 1.0 differ, NaN equals itself, tables may have cycles.
local function same(a, b, seen)
  if math.type(a) ~= math.type(b) or type(a) ~= type(b) then return false end
  if rawequal(a, b) then return true end
  if type(a) == "number" then return a == b or a ~= a and b ~= b end
  if type(a) ~= "table" then return a == b end
  if seen[a] == b then return true end
  seen[a] = b
  for k, v in pairs(a) do
    if not same(v, b[k], seen) then return false end
  end
  for k in pairs(b) do
    if a[k] == nil then return false end
  end
  return true
end

local function show(v)
  return pretty.format(v, { width = 100, items = 40, string = 400 })
end

-- ---- one test -----------------------------------------------------------------------------------

local SKIP = {}

--- The object passed to a test.
local function new_context(case)
  local t = { failures = {}, expected = {}, patches = {} }

  local function fail(message)
    local level = 1
    repeat -- the nearest line outside this file
      level = level + 1
      local info = debug.getinfo(level, "Sl")
      if info and info.currentline > 0 and not info.short_src:match "harness%.lua$" then
        message = ("%s:%d: %s"):format(info.short_src, info.currentline, message)
        break
      end
    until not info
    t.failures[#t.failures + 1] = message
    return false
  end
  function t.fail(message) return fail(message) end

  local function about(what) return what and what .. ": " or "" end

  function t.eq(got, want, what)
    if same(got, want, {}) then return true end
    return fail(("%sgot %s\n      want %s"):format(about(what), show(got), show(want)))
  end
  function t.near(got, want, tolerance, what)
    if type(got) == "number" and math.abs(got - want) <= tolerance then return true end
    return fail(("%sgot %s, want %s within %g"):format(about(what), show(got), show(want),
      tolerance))
  end
  function t.ok(value, what)
    return value and true or fail(("%sgot %s, want a true value"):format(about(what), show(value)))
  end
  function t.match(got, pattern, what)
    if type(got) == "string" and got:find(pattern) then return true end
    return fail(("%sgot %s\n      want a match of %s"):format(about(what), show(got),
      show(pattern)))
  end
  --- fn must raise an error whose text contains `part`; returns the error.
  function t.raises(fn, part)
    local ok, err = pcall(fn)
    if ok then return fail(("nothing raised, want %s"):format(show(part))) end
    if not tostring(err):find(part or "", 1, true) then
      fail(("raised %s\n      want %s in it"):format(show(tostring(err)), show(part)))
    end
    return err
  end
  --- Checks results that must be nil and an error with this code.
  function t.fails(code, value, err)
    if value ~= nil or type(err) ~= "table" then
      return fail(("got %s, %s; want nil and an error with code %s"):format(show(value), show(err),
        show(code)))
    end
    t.eq(err.code, code, tostring(err))
    return err
  end
  --- A callback that must be called exactly n times; its own errors fail the test.
  function t.expect(fn, n)
    local entry = { want = n or 1, got = 0, line = debug.getinfo(2, "l").currentline }
    t.expected[#t.expected + 1] = entry
    return function(...)
      entry.got = entry.got + 1
      local results = table.pack(xpcall(fn, debug.traceback, ...))
      if not results[1] then return fail("callback: " .. tostring(results[2])) end
      return table.unpack(results, 2, results.n)
    end
  end
  --- Replaces object[key], around __newindex, until the test has ended.
  function t.patch(object, key, value)
    t.patches[#t.patches + 1] = { object, key, rawget(object, key) }
    rawset(object, key, value)
  end
  --- Tasks that are woken run at once for the rest of the test, however long this turn of the loop
  --- has taken on a slow machine.
  function t.at_once() t.patch(async, "is_over", function() return false end) end
  --- Ends forced collection for the rest of the test. Without its hook alone, which makes it rarer
  --- with time, every allocation would collect.
  function t.unforced()
    debug.sethook()
    collectgarbage("incremental", 200, 100, 13)
  end
  function t.skip(why)
    t.skipped = why
    error(SKIP, 0)
  end
  t.name = case.name
  return t
end

--- Runs the loop until it is done; a test that waits forever is stopped.
local function run_loop(t)
  local limit = uv.new_timer()
  limit:start(LOOP_MS, 0, function()
    t.fail(("the loop was still running after %d ms"):format(LOOP_MS))
    uv.stop()
  end)
  limit:unref()
  uv.run()
  limit:close()
  uv.run "nowait"
end

local function check_handles(t)
  uv.walk(function(handle)
    if handle:is_closing() then return end
    t.fail("leaked handle: " .. tostring(handle))
    handle:close()
  end)
  uv.run "nowait"
end

-- Opened once in a process, by the first server and the first watch, and kept.
local KEPT = { ["/dev/null"] = true, ["anon_inode:inotify"] = true }

--- The descriptors that are open, and how many, where the system lists them: "4 -> /dev/null".
local function descriptors()
  local open, n, list = {}, 0, uv.fs_scandir "/proc/self/fd"
  for name in function() return list and uv.fs_scandir_next(list) end do
    local place = uv.fs_readlink("/proc/self/fd/" .. name)
    if place and not KEPT[place] then
      open[name .. " -> " .. place] = true
      n = n + 1
    end
  end
  return open, n
end

--- What a test may not leave behind.
local function resources()
  local objects, _, allocations = perigee.live()
  local open, n = descriptors()
  return { objects = objects, allocations = allocations, descriptors = n, open = open }
end

local function check_objects(t, before, now)
  local objects = 0
  for class, n in pairs(now.objects) do
    local more = n - (before.objects[class] or 0)
    if more > 0 then t.fail(("leaked: %d %s"):format(more, class)) end
    objects = objects + math.max(more, 0)
  end
  return objects == 0
end

--- The descriptors that were not open before.
local function opened(before, now)
  local list = {}
  for place in pairs(now.open) do
    if not before.open[place] then list[#list + 1] = place end
  end
  table.sort(list)
  return table.concat(list, ", ")
end

local function check_resources(t, before)
  local now, till = resources(), uv.hrtime() + harness.SETTLE_MS * 1e6
  if not check_objects(t, before, now) then return end -- the others belong to the objects
  local function is_left(kind) return now[kind] > before[kind] end
  while (is_left "allocations" or is_left "descriptors") and uv.hrtime() < till do
    uv.sleep(1)
    now = resources()
  end
  if is_left "allocations" then
    t.fail(("leaked: %d allocations"):format(now.allocations - before.allocations))
  end
  if is_left "descriptors" then
    t.fail(("leaked: %d descriptors: %s"):format(now.descriptors - before.descriptors,
      opened(before, now)))
  end
end

local function check_expected(t)
  for _, e in ipairs(t.expected) do
    if e.got ~= e.want then
      t.fail(("line %d: called %d times, want %d"):format(e.line, e.got, e.want))
    end
  end
end

--- Runs a full collection at every allocation, in C as well: a pause of 1 % and an unlimited step.
--- A test that takes longer than FORCED_S continues with one in SAMPLE.
local function force_collection()
  local began, n = os.clock(), 0
  local function all()
    collectgarbage("incremental", 1, 1000, 100)
    collectgarbage() -- ends the pause that the old setting had started
  end
  all()
  debug.sethook(function()
    if os.clock() - began < FORCED_S then return end
    n = n + 1
    if n % SAMPLE == 0 then
      all()
    elseif n % SAMPLE == 1 then
      collectgarbage("incremental", 200, 100, 13)
    end
  end, "", 20)
end

local function run_body(case, t, forced)
  if forced then force_collection() end
  local ok, err = xpcall(case.body, function(e)
    return e == SKIP and e or debug.traceback(tostring(e), 2)
  end, t)
  debug.sethook()
  collectgarbage("incremental", 200, 100, 13)
  if not ok and err ~= SKIP then t.failures[#t.failures + 1] = err end
end

--- Undoes t.patch, the last one first.
local function restore(t)
  for i = #t.patches, 1, -1 do rawset(table.unpack(t.patches[i], 1, 3)) end
end

--- Runs one case; returns "passed", "failed" or "skipped", and the context.
function harness.run_case(case, forced)
  collectgarbage()
  local before, t = resources(), new_context(case)
  if forced then t.patch(scheduler, "DEADLINE_MS", FORCED_POLICY_MS) end
  run_body(case, t, forced)
  run_loop(t)
  restore(t)
  check_expected(t)
  check_handles(t)
  collectgarbage()
  collectgarbage() -- for objects that finalizers released
  check_resources(t, before)
  if #t.failures > 0 then return "failed", t end
  return t.skipped and "skipped" or "passed", t
end

-- ---- files --------------------------------------------------------------------------------------

--- Runs the tests of a file. options: filter (part of a test's name), forced, counts (added to).
function harness.run_file(path, options)
  registered = {}
  local chunk = assert(loadfile(path))
  chunk(options.forced)
  local label = path:match "([^/]*)%.lua$" .. (options.forced and " (forced collection)" or "")
  for _, case in ipairs(registered) do
    if not options.filter or case.name:find(options.filter, 1, true) then
      local outcome, t = harness.run_case(case, options.forced)
      options.counts[outcome] = options.counts[outcome] + 1
      if outcome == "failed" then
        for _, message in ipairs(t.failures) do print("    " .. message) end
        print(("FAIL %s/%s"):format(label, case.name))
        if STOP then os.exit(1) end
      elseif outcome == "skipped" then
        print(("skip %s/%s: %s"):format(label, case.name, t.skipped))
      end
    end
  end
end

return harness
