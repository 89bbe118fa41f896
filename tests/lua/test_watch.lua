-- hooks.site and hooks.watch: files of a site, and how changes of its folders are noticed, with a
-- clock and watches that are made up here.
local site = require "hooks.site"
local sites = require "sites"
local test = require("harness").test
local uv = require "luv"
local watch = require "hooks.watch"

-- ---- snapshots ----------------------------------------------------------------------------------

test("files of a site are read once, and up to a size", function(t)
  local folder = sites.folder { ["hooks/a.lua"] = "x", ["hooks/_b-1.2.lua"] = "",
    ["hooks/.c.lua"] = "", ["hooks/-d.lua"] = "", ["hooks/e.txt"] = "" }
  t.eq({ site.names(folder .. "/hooks", "lua"), site.names(folder .. "/none", "lua") },
    { { "_b-1.2", "a" }, {} })
  local snapshot, path = site.snapshot(folder), folder .. "/hooks/a.lua"
  t.eq({ snapshot.gone, snapshot:read(path), snapshot:read(folder .. "/none") }, { false, "x" })
  local most = site.MAX_FILE
  t.eq(most, 4 << 20)
  site.MAX_FILE = 3
  for size, fits in pairs { [3] = true, [4] = false } do
    local f = assert(io.open(path, "w"))
    f:write(("y"):rep(size))
    f:close()
    t.eq(snapshot:read(path), "x")
    local fresh = site.snapshot(folder)
    local ok, got = pcall(fresh.read, fresh, path)
    t.eq({ ok, got }, fits and { true, "yyy" }
      or { false, path .. ": must have at most 3 bytes, got 4" })
    t.eq(snapshot:equals(fresh), false)
  end
  site.MAX_FILE = most
  local sealed = site.snapshot(folder):seal()
  t.eq({ sealed:read(path), sealed:equals(snapshot), snapshot:equals(sealed) }, { nil, true, true })
  t.eq({ site.snapshot(nil).gone, site.snapshot(folder .. "/none").gone,
    site.snapshot(path).gone }, { false, true, true })
  t.eq(site.snapshot(folder):equals(site.snapshot(folder .. "/none")), false)
  sites.remove(folder)
end)

-- ---- watching -----------------------------------------------------------------------------------

--- Replaces the clock, timers and watches of uv; returns them and the way back. handles: those that
--- are open, by kind. A folder exists if it is in `there`, with the inode that is its value.
local function fake_uv(there)
  local fake = { now = 1000, timers = {}, events = {}, files = {} }
  local was = {}
  local function put(name, fn) was[name], uv[name] = uv[name], fn end
  put("now", function() return fake.now end)
  put("new_timer", function()
    local timer = {}
    function timer.start(_, after, again, fn) timer.at, timer.again, timer.fn = after, again, fn end
    function timer.stop() timer.fn = nil end
    function timer.is_active() return timer.fn ~= nil end
    function timer.unref() timer.is_unref = true end
    function timer.close() fake.timers[timer], timer.fn = nil, nil end
    fake.timers[timer] = true
    return timer
  end)
  put("new_fs_event", function()
    local event = {}
    function event.start(_, folder, _, fn)
      if fake.refuse then return nil end
      event.folder, event.fn = folder, fn
      return true
    end
    function event.unref() event.is_unref = true end
    function event.close() fake.events[event] = nil end
    fake.events[event] = true
    return event
  end)
  put("fs_stat", function(path)
    if not there[path] then return fake.files[path] end
    return { type = "directory", ino = there[path], size = 1, mtime = { sec = 1, nsec = 1 } }
  end)
  put("fs_scandir", function(folder) return there[folder] and { folder } or nil end)
  put("fs_scandir_next", function(request)
    local name = fake.names and fake.names[#request]
    request[#request + 1] = true
    return name
  end)
  function fake.folders()
    local list = {}
    for event in pairs(fake.events) do list[#list + 1] = event.folder end
    table.sort(list)
    return table.concat(list, " ")
  end
  function fake.change(folder, err)
    for event in pairs(fake.events) do
      if event.folder == folder then event.fn(err) end
    end
  end
  --- The timer that is set to this many milliseconds.
  function fake.timer(after)
    for timer in pairs(fake.timers) do
      if timer.fn and timer.at == after then return timer end
    end
  end
  function fake.fire(after)
    local timer = fake.timer(after)
    local fn = timer.fn
    if timer.again == 0 then timer.fn = nil end
    fn()
  end
  return fake, function()
    for name, fn in pairs(was) do uv[name] = fn end
  end
end

test("changes that come together are reported once", function(t)
  local there, told = { a = 1, b = 2 }, 0
  local fake, back = fake_uv(there)
  local ok, why = xpcall(function()
    local watcher = watch.open(function() return { "a", "b", "none" } end,
      function() told = told + 1 end)
    t.eq({ fake.folders(), next(fake.events).is_unref }, { "a b", true })
    fake.change "a"
    fake.change "b"
    local first = fake.timer(watch.DEBOUNCE_MS)
    t.eq({ told, first.is_unref, first.again }, { 0, true, 0 })
    fake.fire(watch.DEBOUNCE_MS)
    t.eq({ told, fake.timer(watch.DEBOUNCE_MS) }, { 1 })
    -- A change puts off the report, but not for ever: it comes with the last change before
    -- LATEST_MS.
    local began = fake.now
    local put_off
    for _, after in ipairs { 0, watch.LATEST_MS, watch.LATEST_MS + 1 } do
      fake.now = began + after
      local timer = fake.timer(watch.DEBOUNCE_MS)
      local fn = timer and timer.fn
      fake.change "a"
      put_off = fake.timer(watch.DEBOUNCE_MS).fn ~= fn
      t.eq(put_off, after <= watch.LATEST_MS)
    end
    fake.fire(watch.DEBOUNCE_MS)
    fake.change "a" -- a new beginning
    fake.now = fake.now + 1
    local fn = fake.timer(watch.DEBOUNCE_MS).fn
    fake.change "a"
    t.ok(fake.timer(watch.DEBOUNCE_MS).fn ~= fn)
    fake.fire(watch.DEBOUNCE_MS)
    t.eq(told, 3)
    watcher:close()
    t.eq({ next(fake.events), next(fake.timers) }, {})
  end, debug.traceback)
  back()
  t.ok(ok, why)
end)

test("folders that come, go and are replaced", function(t)
  local there, told = { a = 1, b = 2 }, 0
  local fake, back = fake_uv(there)
  local ok, why = xpcall(function()
    local watcher = watch.open(function() return { "a", "b", "c" } end,
      function() told = told + 1 end)
    there.c = 3
    watcher:refresh()
    t.eq({ fake.folders(), fake.timer(watch.POLL_MS) }, { "a b c" })
    local first = watcher.handles.b
    there.b = 7 -- another folder of the same name
    watcher:refresh()
    t.eq({ fake.folders(), watcher.handles.b ~= first }, { "a b c", true })
    there.b = nil
    watcher:refresh()
    t.eq({ fake.folders(), fake.timer(watch.POLL_MS).again, fake.timer(watch.POLL_MS).is_unref,
      watcher.handles.b }, { "a c", watch.POLL_MS, true })
    fake.fire(watch.POLL_MS) -- still gone
    t.eq({ fake.timer(watch.DEBOUNCE_MS), fake.timer(watch.POLL_MS) ~= nil }, { nil, true })
    there.b = 8
    fake.fire(watch.POLL_MS)
    t.eq(fake.timer(watch.POLL_MS), nil)
    fake.fire(watch.DEBOUNCE_MS)
    t.eq({ told, fake.folders() }, { 1, "a b c" })
    watcher:close()
    t.eq({ next(fake.events), next(fake.timers) }, {})
  end, debug.traceback)
  back()
  t.ok(ok, why)
end)

test("where the system cannot watch, folders are scanned", function(t)
  for _, how in ipairs { "asked for", "refused", "an error later" } do
    local there, told = { a = 1 }, 0
    local fake, back = fake_uv(there)
    local ok, why = xpcall(function()
      fake.refuse = how == "refused"
      fake.names = { "f" }
      local watcher = watch.open(function() return { "a", "none" } end,
        function() told = told + 1 end, { poll = how == "asked for" })
      if how == "an error later" then
        fake.change("a", "too many")
        fake.fire(watch.DEBOUNCE_MS)
        t.eq(told, 1)
        told = 0
      else
        t.eq(next(fake.events), nil)
      end
      t.eq({ fake.timer(watch.POLL_MS).again, fake.timer(watch.POLL_MS).is_unref },
        { watch.POLL_MS, true })
      fake.fire(watch.POLL_MS)
      t.eq(fake.timer(watch.DEBOUNCE_MS), nil) -- nothing has changed
      local stat = { size = 5, mtime = { sec = 1, nsec = 1 } }
      for _, change in ipairs { { "size", 6 }, { "mtime", { sec = 2, nsec = 1 } },
        { "mtime", { sec = 2, nsec = 2 } } } do
        fake.files["a/f"] = stat
        stat[change[1]] = change[2]
        fake.fire(watch.POLL_MS)
        t.ok(fake.timer(watch.DEBOUNCE_MS))
        fake.fire(watch.DEBOUNCE_MS)
        fake.fire(watch.POLL_MS)
        t.eq(fake.timer(watch.DEBOUNCE_MS), nil)
      end
      t.eq(told, 3)
      watcher:close()
      t.eq({ next(fake.events), next(fake.timers) }, {})
    end, debug.traceback)
    back()
    t.ok(ok, why)
  end
end)
