-- Scripts that serve, without a server: the sandbox, phases with deadlines and strikes, versions
-- that are built next to each other, state that survives, and all that can be wrong with a file.
local async = require "lib.async"
local breaker = require "lib.breaker"
local errors = require "lib.errors"
local phases = require "hooks.phases"
local sandbox = require "hooks.sandbox"
local sites = require "sites"
local harness = require "harness"
local test = harness.test
local trial = require "hooks.trial"
local uv = require "luv"

local forced = ...

local function site(files, options)
  options = options or {}
  options.forced = forced
  return sites.open(files, options)
end

local function hook(body) return { ["hooks/mine.lua"] = body } end

local function request(fields)
  local req = { headers = {}, ctx = {}, tag = {}, body = {}, id = "x" }
  for key, value in pairs(fields or {}) do req[key] = value end
  return req
end

-- ---- loading ------------------------------------------------------------------------------------

test("nothing is there: nothing is called", function(t)
  local app <close> = site {}
  local gen = app.scripts:current()
  t.eq(gen.version, 1)
  for phase in pairs(phases.list) do t.eq(gen:has(phase), phase == "schedule", phase) end
  t.eq(gen:call("admit", request(), {}), nil)
  t.eq(gen:wait("request", request()), nil)
  t.eq(gen:words { words = "its own", path = "nowhere" }, "its own")
end)

local refused = {
  { "return 5 +", "hooks/mine.lua:1:" },
  { "error 'no'", "no" },
  { "error { odd = true }", "mine.lua: table" },
  { "return 7", "mine.lua: must return a table, got number" },
  { "return { reqest = function() end }", "unknown key 'reqest', did you mean 'request'?" },
  { "return { request = 5 }", "'request' must be a function, got number" },
  { "return { schedule = function() end }", "`schedule` is for policies" },
  { "local M = {} function M:request(req) end return M", "write function M.request(req, self)" },
  { "local M = {} function M:token(seq, id) end return M",
    "write function M.token(seq, id, text, self)" },
  { "return { name = 'yours' }", "its name is 'yours', but its file is mine.lua" },
  { "return { version = 1.5 }", "'version' must be an integer" },
  { "return { config = { f = print } }", "config.f is a function" },
  { "return { params = { x = 'colour' } }", "params.x must be integer, number, string or boolean, "
    .. "got colour" },
  { "return { state = function() return 5 end }", "state must return a table, got number" },
  { "return { state = function() error 'bad' end }", "bad" },
  { "return { selftest = 5 }", "selftest must be a function or a table, got number" },
  { "return { selftest = { a = 5 } }", "case a must be a function, got number" },
  { "return { selftest = function() error 'wrong' end }", "case selftest: " },
  { "return { request = function() return 5 end, selftest = function(try) "
    .. "assert(try.request(try.req {}) == nil) end }",
    "assertion failed" },
  { "x = 5 return {}", "'x' would be a global" },
  { "require 'os' return {}", "the site has no module 'os'" },
  { "require '../../etc/passwd' return {}", "is not a valid name of a module" },
  { "io.open '/etc/passwd' return {}", "global 'io'" },
  { "os.execute 'true' return {}", "field 'execute'" },
  { "debug.getregistry() return {}", "global 'debug'" },
  { "getmetatable('').__index = nil return {}", "attempt to index a nil value" },
  { "assert(load(string.dump(function() end))) return {}", "field 'dump'" },
  { "assert(load('\\27Lua', 'x', 'b')) return {}", "only text can be loaded" },
  { "local perigee = require 'perigee' perigee.sleep(1) return {}", "sleep: only inside a hook" },
  { "local perigee = require 'perigee' perigee.every(0, print) return {}",
    "seconds must be between 0.01 and 86400, got 0" },
}

test("what is wrong with a script is told in one line that names it", function(t)
  for _, case in ipairs(refused) do
    local app <close> = site(hook(case[1]))
    t.eq(app.scripts, nil, case[1])
    if type(app.why) ~= "string" or not app.why:find(case[2], 1, true)
      or app.why:find("\n", 1, true) then
      t.fail(("%s: got %s, want %s in it"):format(case[1], tostring(app.why), case[2]))
    end
  end
end)

test("a script that never comes back from loading, or takes all memory, is stopped", function(t)
  if forced then return end
  local load_ms, trial_ms = sandbox.LOAD_MS, trial.DEADLINE_MS
  sandbox.LOAD_MS, trial.DEADLINE_MS = 250, 100
  for source, why in pairs {
    ["while true do end"] = "deadline exceeded while it was loaded",
    ["return { selftest = function() while true do end end }"] = "deadline exceeded",
    ["return { state = function() while true do end end }"] = "deadline exceeded",
    -- the stack or the memory, whichever ends first
    ["local function f() return 1 + f() end f()"] = "mine.lua",
    ["local s, t = ('x'):rep(1 << 20), {} for i = 1, 1000 do t[i] = s .. i end return {}"] =
      "not enough memory",
  } do
    local app <close> = site(hook(source))
    if type(app.why) ~= "string" or not app.why:find(why, 1, true) then
      t.fail(("%s: got %s, want %s in it"):format(source, tostring(app.why), why))
    end
  end
  sandbox.LOAD_MS, trial.DEADLINE_MS = load_ms, trial_ms
end)

test("settings, modules of the site, and the order of the list", function(t)
  local app <close> = site({
    ["hooks/b.lua"] = [[return { config = { word = 'b' },
      request = function(req, self) req.ctx[#req.ctx + 1] = self.config.word end }]],
    ["hooks/a.lua"] = "local m = require 'lib.words' return { request = function(req) "
      .. "req.ctx[#req.ctx + 1] = m.word end }",
    ["lib/words.lua"] = "return { word = 'from a module' }",
  })
  local function order()
    local req = request()
    async.run(function() app.scripts:current():wait("request", req) end)
    return table.concat(req.ctx, ", ")
  end
  t.eq(order(), "from a module, b")
  app.config.hooks = { { "b", word = "set" }, "a" }
  assert(app.scripts:reload())
  t.eq(order(), "set, from a module")
  for _, case in ipairs {
    { { "c" }, "there is no hook 'c'" },
    { { "a", "a" }, "named twice" },
    { { { "b", wird = "x" } }, "has no setting 'wird', did you mean 'word'?" },
    { { { "b", word = 5 } }, "setting 'word' must be a string, got number" },
    { { "../a" }, "is not a valid name of a script" },
  } do
    app.config.hooks = case[1]
    local gen, why = app.scripts:reload()
    t.eq(gen, nil)
    if not why:find(case[2], 1, true) then
      t.fail(("got %s, want %s in it"):format(why, case[2]))
    end
  end
  t.eq(order(), "set, from a module")
end)

test("the policy is found in the site, then among those that ship", function(t)
  local app <close> = site({ ["policy/mine.lua"] = "return function(step) step:fill() end" })
  t.eq(app.scripts:current().policy.name, "fifo")
  app.config.policy = { "lanes", patience_s = 5 }
  t.eq(assert(app.scripts:reload()).policy.self.config.patience_s, 5)
  t.ok(app.scripts:current():has "admit")
  app.config.policy = "mine"
  t.eq(assert(app.scripts:reload()).policy.path, app.folder .. "/policy/mine.lua")
  app.write("policy/fifo.lua", "return { version = 9, schedule = function(step) step:fill() end }")
  app.config.policy = "fifo"
  t.eq(assert(app.scripts:reload()).policy.version, 9)
  for name, why in pairs { lane = "did you mean 'lanes'?", init = "there is no policy 'init'",
    ["../x"] = "is not a valid name of a script" } do
    app.config.policy = name
    local gen, said = app.scripts:reload()
    t.eq(gen, nil)
    if not said:find(why, 1, true) then t.fail(("got %s, want %s in it"):format(said, why)) end
  end
end)

-- ---- answers and strikes ------------------------------------------------------------------------

test("what several scripts answer together", function(t)
  local app <close> = site {
    ["hooks/a.lua"] = [[local perigee = require "perigee"
      return {
        request = function(req) if req.bad then return perigee.reject(403, "a says no",
          { code = "no" }) end end,
        admit = function(req) return { lane = "a", seen = req.tag.seen } end,
        respond = function(_, d) d.text = d.text .. "a" return d end,
        template = function(req) return req.text end,
        generate = function(req, run)
          local output = run(req, { silent = true })
          output.text = "<" .. output.text .. ">"
          return output
        end,
      }]],
    ["hooks/b.lua"] = [[local perigee = require "perigee"
      return {
        request = function() return perigee.reject(429, "b says no", { retry_after = 3 }) end,
        admit = function(req) if req.full then return perigee.reject(503,
          "full") end return { size = req.tag.lane .. "!" } end,
        respond = function(_, d)
          if d.text == "xa" then return false end
          if d.text == "ya" then return { d, { type = "text", text = "b" } } end
          d.text = "changed without saying so"
        end,
        template = function() return { 1, 2 } end,
        generate = function(req, run) perigee.sleep(0.001) local o = run(req) o.text = "["
          .. o.text .. "]" return o end,
      }]],
  }
  local gen = app.scripts:current()
  local got = {}
  async.run(function()
    got.first, got.second = gen:wait("request", request { bad = true }),
      gen:wait("request", request())
    local options
    got.output = gen:wait("generate", request(), function(_, o)
      options = o
      async.sleep(1)
      return { text = "x" }
    end)
    got.options = options
    t.eq({ errors.is(got.first), errors.is { status = 403 } }, { true, false })
    t.eq({ got.first.status, got.first.message, got.first.code }, { 403, "a says no", "no" })
    t.eq({ got.second.status, got.second.retry_after }, { 429, 3 })
    t.eq(got.output.text, "<[x]>")
    t.eq(got.options.silent, true)
    got.done = true
  end)
  local req = request()
  t.eq(gen:call("admit", req, {}), { lane = "a", size = "a!" })
  t.eq(req.tag, { lane = "a", size = "a!" })
  t.eq(errors.is(gen:call("admit", request { full = true }, {})), true)
  local function respond(text)
    return gen:call("respond", request(), { type = "text", text = text })
  end
  t.eq(respond "z", { { type = "text", text = "za" } })
  t.eq(respond "x", {})
  t.eq(respond "y", { { type = "text", text = "ya" }, { type = "text", text = "b" } })
  t.eq(gen:call("template", request { text = "hello" }, {}), "hello")
  t.eq(gen:call("template", request(), {}), { 1, 2 })
  uv.run()
  t.eq(got.done, true)
  t.eq(app.notes, {})
end)

local misbehaving = {
  { "raises", "error 'no'" }, { "raises a table", "error { x = 1 }" },
    { "raises nil", "error(nil)" },
  { "raises what cannot be said", "error(setmetatable({}, { __tostring = function() error 'twice' "
    .. "end }))" },
  { "runs for ever", "while true do end" }, { "catches for ever",
    "while true do pcall(function() while true do end end) end" },
  { "hides in a coroutine", "coroutine.wrap(function() while true do end end)()" },
  { "recurses", "local function f() return 1 + f() end return f()" },
  { "eats memory", "local t = {} while true do t[#t + 1] = ('x'):rep(1 << 20) .. #t end" },
  { "yields", "coroutine.yield(5)" }, { "sleeps", "require('perigee').sleep(1)" },
    { "answers nonsense", "return 5" },
}

test("a hook that misbehaves is done without, reported once and switched off", function(t)
  if forced then return end
  for _, case in ipairs(misbehaving) do
    for _, phase in ipairs { "admit", "request" } do
      if not (phase == "request" and case[1] == "sleeps") then
        local app <close> = site({
          ["hooks/mine.lua"] = ("local n = 0 return { %s = function() n = n + 1 %s end }"):format(
            phase, case[2]),
          ["hooks/z.lua"] = ("return { %s = function() return require('perigee').reject(429, 'z') "
            .. "end }"):format(phase),
        }, { deadlines = { admit = 8, request = 8 } })
        local what = case[1] .. " in " .. phase
        local gen, finished = app.scripts:current(), false
        async.run(function()
          for _ = 1, 5 do
            local answer
            if phase == "admit" then answer = gen:call(phase, request(),
              {}) else answer = gen:wait(phase, request()) end
            t.eq(answer and answer.status, 429, what)
            async.sleep(1) -- another turn of the loop
          end
          finished = true
        end)
        uv.run()
        t.eq(finished, true, what)
        local status = app.scripts:status().scripts[1].strikes[1]
        t.eq({ status.phase, status.total, status.off }, { phase, 3, true }, what)
        t.eq(#app.notes, 2, what)
        t.match(app.notes[1], "^warning: script mine: " .. phase)
        t.match(app.notes[2], "switched off until it is reloaded")
        assert(app.scripts:reload())
        t.eq(app.scripts:status().scripts[1].strikes, {}, "after a reload")
      end
    end
  end
end)

test("strikes that lie far apart do not switch off", function(t)
  local app <close> = site(hook "return { admit = function() error 'now and then' end }")
  local window = breaker.WINDOW_S
  breaker.WINDOW_S = 0
  for _ = 1, 5 do app.scripts:current():call("admit", request(), {}) end
  breaker.WINDOW_S = window
  local strike = app.scripts:status().scripts[1].strikes[1]
  t.eq({ strike.total, strike.off }, { 5, false })
end)

test("a generate script that fails leaves the answer as it would have been", function(t)
  for _, case in ipairs {
    { "error 'early'", { "x", 1 } }, { "run(req) error 'late'", { "x", 1 } },
    { "run(req, { silent = true }) error 'after a silent one'", { "x", 2 } },
      { "run(req)", { "x", 1 } },
    { "run(req) run(req)", { "x", 1 } }, { "return 5", { "x", 1 } },
  } do
    local app <close> = site(
      hook(("return { generate = function(req, run) %s end }"):format(case[1])))
    local runs, output = 0, nil
    async.run(function()
      output = app.scripts:current():wait("generate", request(), function()
        runs = runs + 1
        return { text = "x" }
      end)
    end)
    t.eq({ output and output.text, runs }, case[2], case[1])
  end
  local app <close> = site(hook "return { generate = function(req, run) return run(req) end }")
  local caught
  async.run(function()
    local ok, why = pcall(function()
      app.scripts:current():wait("generate", request(), function() error("the generator's own",
        0) end)
    end)
    caught = not ok and why
  end)
  t.eq(caught, "the generator's own")
  t.eq(app.scripts:status().scripts[1].strikes, {})
end)

test("a generate script cannot run a request that the server cannot use", function(t)
  local app <close> = site(hook [[
    return { generate = function(req, run) req.n = "x" return run(req) end }]])
  local seen = {}
  async.run(function()
    app.scripts:current():wait("generate", request { n = 2 }, function(req)
      seen[#seen + 1] = req.n
      return { text = "x" }
    end)
  end)
  t.eq(seen, { 2 })
  t.match(app.notes[1], "left req.n a string that the server cannot use")
end)

-- ---- reloading ----------------------------------------------------------------------------------

test("requests keep the scripts they started with; a broken one never serves", function(t)
  local app <close> = site(hook "return { template = function() return 'one' end }")
  local scripts = app.scripts
  local first = scripts:current():retain()
  app.write("hooks/mine.lua", "return { template = function() return 'two' end }")
  local second = assert(scripts:reload())
  t.eq(second.version, 2)
  t.eq(first:call("template", request(), {}), "one")
  t.eq(scripts:current():call("template", request(), {}), "two")
  t.eq(#scripts:status().alive, 2)
  first:release()
  t.eq(#scripts:status().alive, 1)
  app.write("hooks/mine.lua", "return { template = function()")
  local none, why = scripts:reload()
  t.eq(none, nil)
  t.match(why, "mine.lua:1:")
  scripts:reload()
  t.eq(scripts:current(), second)
  local status = scripts:status()
  t.eq({ status.stale, status.version, status.error }, { true, 2, why })
  local reported = 0
  for _, note in ipairs(app.notes) do
    if note:find("^error") then reported = reported + 1 end
  end
  t.eq(reported, 1, "reported once")
  local back = assert(scripts:rollback())
  t.eq(back:call("template", request(), {}), "one")
  t.eq(scripts:status().stale, false)
  t.eq(assert(scripts:rollback()):call("template", request(), {}), "two")
end)

local counter = [[return { version = %d,
  state = function(old, from) %s end,
  done = function(_, n, self)
    self.state.sum = (self.state.sum or 0) + n
    self.state.list = { self.state.sum }
  end,
  template = function(_, _, self)
    return ("%%s from %%s"):format(self.state.sum, self.state.from)
  end }]]

test("state survives, migrates on a copy, and is not lost to requests in flight", function(t)
  local app <close> = site(hook(counter:format(1, "return old or {}")))
  local function add(gen, n) async.run(function() gen:wait("done", request(), n) end) end
  local function sum() return app.scripts:current():call("template", request(), {}) end
  local first = app.scripts:current():retain()
  add(first, 5)
  app.write("hooks/mine.lua", counter:format(1, "local same = old return same or {}"))
  assert(app.scripts:reload())
  add(first, 2) -- of the old version, in flight
  t.eq(sum(), "7 from nil")
  app.write("hooks/mine.lua", counter:format(2, "old.sum = -1 old.list[1] = 'gone' error 'cannot'"))
  t.eq(app.scripts:reload(), nil)
  t.eq(sum(), "7 from nil")
  app.write("hooks/mine.lua", counter:format(2, "return { sum = old.sum * 10, from = from }"))
  assert(app.scripts:reload())
  t.eq(sum(), "70 from 1")
  add(first, 1) -- another version: its own state
  t.eq(sum(), "70 from 1")
  app.write("hooks/mine.lua", counter:format(1, "return {}"))
  local _, why = app.scripts:reload()
  t.match(why, "version 1 is older than 2")
  first:release()
end)

test("unchanged scripts stay as they are when another one changes", function(t)
  local app <close> = site { ["hooks/a.lua"] = "return {}",
    ["hooks/b.lua"] = "require 'm' return {}", ["m.lua"] = "return 1" }
  local before = app.scripts:current()
  app.write("hooks/a.lua", "return { version = 2 }")
  local after = assert(app.scripts:reload())
  t.eq(after.changed, { "a" })
  t.ok(after.by_name.b == before.by_name.b)
  app.write("m.lua", "return 2")
  t.eq(assert(app.scripts:reload()).changed, { "b" })
end)

test("folders are watched, also those that come later", function(t)
  local app <close> = site(hook "return {}", { config = { watch = true } })
  local deadline = uv.hrtime() + harness.LIMIT_MS * 1e6
  local function until_version(n)
    while app.scripts:current().version < n and not app.scripts.error and uv.hrtime() < deadline do
      uv.run "once"
    end
    return app.scripts:current().version
  end
  local keep_running = uv.new_timer()
  keep_running:start(0, 20, function() end)
  app.write("hooks/mine.lua", "return { version = 2 }")
  t.eq(until_version(2), 2)
  app.write("policy/own.lua", "return function(step) step:fill() end")
  t.eq(until_version(3), 3)
  app.write("hooks/mine.lua", "return {{")
  while not app.scripts.error and uv.hrtime() < deadline do uv.run "once" end
  t.eq(app.scripts:status().stale, true)
  keep_running:close()
end)

test("a folder that vanishes takes no scripts with it, and is seen when it is back", function(t)
  local watch = require "hooks.watch"
  local poll_ms = watch.POLL_MS
  watch.POLL_MS = 20
  local app = site(hook "return {}", { config = { watch = true } })
  async.run(function()
    local function version(n)
      while app.scripts:status().version < n do async.sleep(5) end
      return app.scripts:current()
    end
    local folder = app.folder
    assert(uv.fs_rename(folder, folder .. ".away"))
    while not app.scripts:status().stale do async.sleep(5) end
    t.eq(app.scripts:status().error, folder .. ": no such folder")
    t.ok(app.scripts:current().by_name.mine, "it serves")
    async.sleep(3 * watch.DEBOUNCE_MS) -- nothing watches any more
    assert(uv.fs_rename(folder .. ".away", folder))
    app.write("hooks/mine.lua", "return { version = 2 }")
    t.eq(version(2).by_name.mine.version, 2)
    t.eq(app.scripts:status().stale, false)
    uv.fs_unlink(folder .. "/hooks/mine.lua")
    uv.fs_mkdir(folder .. "/hooks/mine.lua", 448)
    while not app.scripts:status().stale do async.sleep(5) end
    t.eq(app.scripts:status().error, folder .. "/hooks/mine.lua: is a directory, not a file")
    uv.fs_rmdir(folder .. "/hooks/mine.lua")
    app.write("hooks/mine.lua", "return { version = 3 }")
    t.eq(version(3).by_name.mine.version, 3)
    watch.POLL_MS = poll_ms
    getmetatable(app).__close()
  end)
end)

test("where folders cannot be watched they are looked at", function(t)
  local watch = require "hooks.watch"
  local app <close> = site(hook "return {}")
  local told, poll_ms = 0, watch.POLL_MS
  watch.POLL_MS = 20
  local watcher = watch.open(function() return { app.folder .. "/hooks" } end,
    function() told = told + 1 end, { poll = true })
  app.write("hooks/other.lua", "return {}")
  local keep_running, deadline = uv.new_timer(), uv.hrtime() + 5e9
  keep_running:start(0, 10, function() end)
  while told == 0 and uv.hrtime() < deadline do uv.run "once" end
  t.eq(told, 1)
  watcher:close()
  keep_running:close()
  watch.POLL_MS = poll_ms
end)

test("a folder keeps its watch until another takes its place", function(t)
  local app <close> = site(hook "return {}")
  local folder = app.folder .. "/hooks"
  local watcher = require("hooks.watch").open(function() return { folder } end, function() end)
  local first = watcher.handles[folder]
  t.ok(first)
  watcher:refresh()
  t.ok(watcher.handles[folder] == first)
  assert(os.rename(folder, app.folder .. "/old"))
  assert(uv.fs_mkdir(folder, 493))
  watcher:refresh()
  t.ok(watcher.handles[folder] and watcher.handles[folder] ~= first)
  watcher:close()
end)

test("timers of scripts run while they serve", function(t)
  local app <close> = site(hook [[local perigee = require "perigee"
    perigee.every(0.01, function(self)
      perigee.sleep(0.001)
      self.state.n = (self.state.n or 0) + 1
    end)
    return { template = function(_, _, self) return tostring(self.state.n or 0) end }]])
  local keep_running, deadline = uv.new_timer(), uv.hrtime() + 5e9
  keep_running:start(0, 5, function() end)
  local function count() return tonumber(app.scripts:current():call("template", request(), {})) end
  while count() < 2 and uv.hrtime() < deadline do uv.run "once" end
  t.ok(count() >= 2, "ticks")
  local old = app.scripts:current().by_name.mine
  app.write("hooks/mine.lua", "return {}")
  assert(app.scripts:reload())
  t.eq(old.timers[1].handle, nil)
  while old.timers[1].busy and uv.hrtime() < deadline do uv.run "once" end
  keep_running:close()
end)

-- ---- templates and parsers ----------------------------------------------------------------------

test("templates and parsers of the site are checked, and used by the models they concern",
  function(t)
  local chat = require "chat"
  local app <close> = site {}
  local entry = { name = "moonlet", path = "examples/moonlet",
    words = assert(chat.open "examples/moonlet"), state = "ready" }
  app.models = { list = function() return { entry } end }
  local scripts = app.scripts
  local plain = scripts:current():words(entry)
  t.ok(plain == entry.words)
  app.write("templates/moonlet.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}!")
  local gen = assert(scripts:reload())
  local function prompt(version, name)
    return version:words(entry, name):prompt { messages = {
      { role = "user", content = "Hi" } } }.text
  end
  t.eq(prompt(gen), "Hi!")
  app.write("templates/other.jinja", "<{% for m in messages %}{{ m.content }}{% endfor %}>")
  local third = assert(scripts:reload())
  t.eq(prompt(third, "other"), "<Hi>")
  t.eq(prompt(third), "Hi!")
  t.eq(third:words(entry, "nothing"), nil)
  for _, bad in ipairs { "{% for x in %}", "never shows it",
    "{# perigee-test: {} => \"other\" #}{{ messages[0].content }}" } do
    app.write("templates/moonlet.jinja", bad)
    local none, why = scripts:reload()
    t.eq(none, nil, bad)
    t.match(why, "templates/moonlet%.jinja: ")
  end
  t.eq(prompt(scripts:current()), "Hi!")
  sites.remove(app.folder .. "/templates")
  local f = assert(io.open "examples/parsers/tools/arrows.lua")
  app.write("parsers/tools/arrows.lua", f:read "a")
  f:close()
  app.write("templates/moonlet.jinja", [[{% if tools %}Call: ->name()<-{{
    tools[0].function.name }}{% endif %}{%
    for m in messages %}{{ m.content }}{%
    for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{%
    endfor %}{% endfor %}]])
  assert(scripts:reload())
  local words = scripts:current():words(entry)
  local tools = { { type = "function", ["function"] = { name = "weather" } } }
  local parser, events = words:parser { tools = tools }, {}
  for _, piece in ipairs { "Sure. -", '>weather({"city"', ': "Oslo"})<', "-" } do
    for _, event in ipairs(parser:feed(piece)) do events[#events + 1] = event end
  end
  for _, event in ipairs(parser:finish()) do events[#events + 1] = event end
  local seen = {}
  for _, event in ipairs(events) do
    seen[#seen + 1] = event.type .. ":" .. (event.text or event.name or "")
  end
  t.eq(table.concat(seen, " "):gsub("%s+arguments:", ""),
    'content:Sure. call:weather{"city": "Oslo"} end:')
  app.write("parsers/tools/arrows.lua", "return { name = 'arrows', marks = {}, selftest = { { "
    .. "text = 'a', content = 'b' } } }")
  local none, why = scripts:reload()
  t.eq(none, nil)
  t.match(why, "parsers/tools/arrows%.lua: case 1")
end)

test("a parser of the site that fails leaves the rest as content", function(t)
  if forced then return end
  local chat = require "chat"
  local app <close> = site { ["parsers/tools/mine.lua"] = [[local perigee = require "perigee"
    return { name = "mine",
    detect = { "<tool_call>" },
    marks = { ["!"] = function(s) if s:take "!" then perigee.log "two" while true do end end end },
    selftest = { { text = "a!b", content = "a!b" } } }]] }
  local entry = { name = "moonlet", path = "examples/moonlet",
    words = assert(chat.open "examples/moonlet"), state = "ready" }
  local words = app.scripts:current():words(entry)
  app.scripts.now.formats.tools.mine.unit.deadlines = { parse = 20 }
  local tools = { { type = "function", ["function"] = { name = "weather" } } }
  for _ = 1, 4 do
    local parser, text = words:parser { tools = tools }, ""
    for _, piece in ipairs { "fine ", "so far!! ", "and on" } do
      for _, event in ipairs(parser:feed(piece)) do text = text .. (event.text or "") end
    end
    for _, event in ipairs(parser:finish()) do text = text .. (event.text or "") end
    t.match(text, "and on$")
    uv.sleep(2)
    uv.update_time()
  end
  t.match(app.notes[1], "mine: two$") -- its self-test is not heard
  t.match(app.notes[2], "script mine: parse: deadline")
end)
