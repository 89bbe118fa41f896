-- hooks.reload and hooks.scripts, without a server: which version serves, what is reported of it,
-- and which folders are watched.
local async = require "lib.async"
local perigee = require "perigee"
local sites = require "sites"
local test = require("harness").test
local uv = require "luv"

if ... then return end -- test_scripts loads scripts under forced collection

local open = sites.open

-- ---- versions -----------------------------------------------------------------------------------

test("a version serves until the next one is complete", function(t)
  local app <close> = open { ["hooks/mine.lua"] = "return {}" }
  local gauges = {}
  local function gauge(name)
    return { set = function(_, value) gauges[name] = value end }
  end
  app.metrics = { scripts_version = gauge "version", stale = gauge "stale" }
  local scripts = app.scripts
  t.eq({ scripts:rollback() }, { nil, "there is no earlier version of the scripts" })
  local first = scripts:current():retain():retain()
  app.write("hooks/mine.lua", "return { version = 2 }")
  local second = assert(scripts:reload())
  t.eq({ second == scripts:current(), second.version, gauges.version, gauges.stale },
    { true, 2, 2, 0 })
  t.match(app.notes[1], "^info: scripts: version 2, changed: mine$")
  -- The first is alive as long as a request uses it.
  local function alive()
    local list = {}
    for i, one in ipairs(scripts:status().alive) do list[i] = { one.version, one.requests } end
    return list
  end
  t.eq(alive(), { { 1, 2 }, { 2, 0 } })
  first:release()
  t.eq(alive(), { { 1, 1 }, { 2, 0 } })
  first:release()
  t.eq(alive(), { { 2, 0 } })
  second:retain():release()
  t.eq(alive(), { { 2, 0 } }) -- it serves
  assert(scripts:reload())
  t.eq({ alive(), app.notes[2] }, { { { 3, 0 } }, "info: scripts: version 3, nothing changed" })
  app.write("hooks/mine.lua", "return { version = 3 }")
  assert(scripts:reload())
  assert(scripts:rollback()) -- also to a lower version of a script
  t.eq({ scripts:status().version, scripts:current().by_name.mine.version }, { 5, 2 })
  -- A reason is reported once.
  app.write("hooks/mine.lua", "return 5")
  local notes = #app.notes
  for _ = 1, 2 do
    local none, why = scripts:reload()
    t.eq({ none, why == scripts:status().error, scripts:status().stale, gauges.stale,
      #app.notes - notes }, { nil, true, true, 1, 1 })
  end
  t.match(app.notes[#app.notes], "^error: scripts: keeping version 5: .*must return a table")
  app.write("hooks/mine.lua", "return 'x'")
  scripts:reload()
  t.eq(#app.notes - notes, 2)
  app.write("hooks/mine.lua", "return { version = 2 }")
  assert(scripts:reload())
  t.eq({ scripts:status().stale, scripts:status().error, gauges.stale }, { false, nil, 0 })
end)

test("timers of scripts that a reload keeps run on", function(t)
  local function every(seconds)
    return ("require 'perigee'.every(%d, function() end) return {}"):format(seconds)
  end
  local app <close> = open { ["hooks/tick.lua"] = every(3600), ["hooks/mine.lua"] = "return {}" }
  local function handle() return app.scripts:current().by_name.tick.timers[1].handle end
  local first = handle()
  app.write("hooks/mine.lua", "return { version = 2 }")
  assert(app.scripts:reload())
  t.eq({ handle() == first, first:is_closing() }, { true, false })
  app.write("hooks/tick.lua", every(1800))
  assert(app.scripts:reload())
  t.eq({ handle() == first, first:is_closing() }, { false, true })
end)

test("a reload inside a task lets the loop turn, the first load does not", function(t)
  local files = { ["hooks/a.lua"] = "return {}", ["hooks/b.lua"] = "return {}" }
  local began, loaded
  async.run(function()
    local app <close> = open(files)
    began = true
    loaded = app.scripts:reload() ~= nil
    t.eq(app.scripts:status().version, 2)
    -- The build that was started last wins.
    local one = async.run(function() return app.scripts:reload() end)
    local two = async.run(function() return app.scripts:reload() end)
    one:join()
    two:join()
    t.eq(app.scripts:status().version, 3)
  end)
  t.eq({ began, loaded }, { true })
  uv.run()
  t.eq(loaded, true)
end)

test("scripts may take longer to load at the start than in a server that answers", function(t)
  if os.getenv "SAN" then return end
  local slow = [[local began = os.clock()
    while os.clock() - began < 0.1 do end
    return {}]]
  local app <close> = open { ["hooks/mine.lua"] = slow }
  t.eq(app.why, nil)
  app.write("hooks/mine.lua", slow .. " -- changed")
  local none, why = app.scripts:reload()
  t.eq(none, nil)
  t.match(why, "deadline")
end)

test("what is known about scripts", function(t)
  local app <close> = open { ["hooks/mine.lua"] = [[return { version = 3,
      request = function() error "no" end, admit = function() error "nor this" end,
      template = function() error "no" end, parse = function() error "no" end,
      respond = function() error "no" end,
      token = function() end }]],
    ["templates/b.jinja"] = "{% for m in messages %}{{ m.content }}{% endfor %}",
    ["templates/a.jinja"] = "{% for m in messages %}{{ m.content }}{% endfor %}" }
  local struck = {}
  app.metrics = { strikes = { add = function(_, n, labels)
    struck[#struck + 1] = { n, labels.script, labels.phase }
  end } }
  local now = app.scripts:current()
  now:call("admit", { tag = {} }, {})
  async.run(function() now:wait("request", { headers = {}, ctx = {}, tag = {}, body = {} }) end)
  now:call("admit", { tag = {} }, {})
  for _, phase in ipairs { "template", "parse", "respond" } do now:call(phase, { tag = {} }, {}) end
  local status = app.scripts:status()
  local mine = status.scripts[1]
  t.eq({ mine.name, mine.kind, mine.version, mine.file, mine.phases }, { "mine", "hook", 3,
    app.folder .. "/hooks/mine.lua", perigee.json.array { "admit", "parse", "request", "respond",
      "template", "token" } })
  local strikes = {}
  for i, one in ipairs(mine.strikes) do strikes[i] = { one.phase, one.total, one.off } end
  t.eq(strikes, { { "admit", 2, false }, { "parse", 1, false }, { "request", 1, false },
    { "respond", 1, false }, { "template", 1, false } })
  t.match(mine.strikes[1].text, "nor this")
  t.eq({ struck[1], struck[2], #struck }, { { 1, "mine", "admit" }, { 1, "mine", "request" }, 6 })
  t.eq(#app.notes, 5) -- the first of each phase
  t.match(app.notes[1], "^warning: script mine: admit: .*; ignored for this call$")
  t.eq({ status.policy, status.scripts[2].name, status.scripts[2].kind, status.templates,
    status.stale }, { "fifo", "fifo", "policy", perigee.json.array { "a", "b" }, false })
  t.near(status.created, os.time(), 5)
end)

test("scripts see the models, and how much they have to do", function(t)
  local seen
  local app <close> = open({ ["hooks/mine.lua"] = [[local perigee = require "perigee"
    return { admit = function() return { list = perigee.json.encode(perigee.models()) } end }]] },
    { models = {} })
  app.models.list = function()
    return { { name = "a", state = "ready", context = 5, path = "nowhere",
      batch = { core = { stats = function() return { running = 2, waiting = 3 } end } } },
      { name = "b", state = "unloaded", path = "nowhere" } }
  end
  seen = perigee.json.decode(app.scripts:current():call("admit", { tag = {} }, {}).list)
  t.eq({ seen[1].name, seen[1].state, seen[1].context, seen[1].running, seen[1].waiting,
    seen[2].name, seen[2].running, seen[2].waiting }, { "a", "ready", 5, 2, 3, "b", 0, 0 })
end)

test("a policy that changes is given to the batches", function(t)
  local given = 0
  local app <close> = open({ ["policy/own.lua"] = "return function(step) step:fill() end" },
    { config = { policy = "own" }, models = {} })
  app.models.list = function()
    return { { name = "a", path = "nowhere", batch = { scheduler = { reload = function(_, policy)
      given = given + 1
      t.eq(type(policy.schedule), "function")
    end } } }, { name = "b", path = "nowhere" } }
  end
  app.write("hooks/mine.lua", "return {}")
  assert(app.scripts:reload())
  t.eq(given, 0)
  app.write("policy/own.lua", "return function(step) step:fill() end -- changed")
  assert(app.scripts:reload())
  local policy = app.scripts:policy()
  t.eq({ given, type(policy.schedule), policy.breaker.total }, { 1, "function", 0 })
  policy.breaker:strike "too slow"
  policy.struck(nil, nil, policy.breaker)
  t.match(app.notes[#app.notes], "^warning: script own: schedule: too slow; ignored")
  local known = app.scripts:status().scripts[2].strikes[1]
  t.eq({ known.phase, known.text, known.total }, { "schedule", "too slow", 1 })
  t.ok(app.scripts:policy().breaker == policy.breaker) -- of all batches
end)

test("a policy of the program's own folder is watched", function(t)
  local app <close> = open({}, { config = { watch = true } })
  local script, own = perigee.sys.script, nil
  perigee.sys.script = function(path) return path == "policy/fifo.lua" and own or script(path) end
  app.scripts.watcher.tell()
  t.eq(app.scripts:status().version, 1)
  own = script "policy/fifo.lua" .. "-- changed"
  app.scripts.watcher.tell()
  uv.run()
  perigee.sys.script = script
  t.eq({ app.scripts:status().version, app.scripts:status().error }, { 2 })
end)

test("which folders are watched", function(t)
  local app <close> = open({ ["hooks/mine.lua"] = "require 'deep.down.m' return {}",
    ["deep/down/m.lua"] = "return 1" },
    { config = { watch = true }, models = {} })
  app.models.list = function() return { { name = "m", path = "/models/m" } } end
  local list, count = app.scripts.watcher.list(), {}
  for _, folder in ipairs(list) do
    local at = #app.folder
    if folder:sub(1, at) == app.folder then folder = "SITE" .. folder:sub(at + 1) end
    count[folder] = (count[folder] or 0) + 1
  end
  local _, own = perigee.sys.scripts()
  if own then
    for _, below in ipairs { "policy", "parsers/tools", "parsers/reasoning" } do
      t.eq(count[own .. "/" .. below], 1)
      count[own .. "/" .. below] = nil
    end
  end
  t.eq(count, { SITE = 1, ["SITE/hooks"] = 1, ["SITE/models"] = 1, ["SITE/policy"] = 1,
    ["SITE/templates"] = 1, ["SITE/parsers"] = 1, ["SITE/parsers/tools"] = 1,
    ["SITE/parsers/reasoning"] = 1, ["SITE/deep/down"] = 1, ["/models/m"] = 1 })
  app.config.site = nil
  for _, folder in ipairs(app.scripts.watcher.list()) do
    t.ok(folder == "/models/m" or own and folder:sub(1, #own) == own, folder)
  end
end)

test("hooks that wait are cancelled when the scripts are closed", function(t)
  local app = open { ["hooks/mine.lua"] = [[local perigee = require "perigee"
    return { request = function() perigee.sleep(3600) end }]] }
  local over = false
  async.run(function()
    local _ <close> = setmetatable({}, { __close = function() over = true end })
    app.scripts:current():wait("request", { headers = {}, ctx = {}, tag = {}, body = {} })
  end)
  t.eq(over, false)
  getmetatable(app).__close()
  uv.run()
  t.eq(over, true)
end)

test("names of hooks and policies", function(t)
  local files = { ["hooks/mine.lua"] = "return { config = { a = 1 } }" }
  for _, case in ipairs {
    { { hooks = { "mine", "mine" } }, "hooks: 'mine' is named twice" },
    { { hooks = { 5 } }, "hooks: entries must be a name or { name, setting = value }, got number" },
    { { hooks = { { a = 2 } } }, "hooks: entries must be a name or { name, setting = value }, got "
      .. "table" },
    { { hooks = { "min" } }, "there is no hook 'min', did you mean 'mine'?" },
    { { hooks = { "../mine" } }, "hooks: '../mine' is not a valid name of a script" },
    { { policy = "fif" }, "there is no policy 'fif', did you mean 'fifo'? in the list: "
      .. "cache_first, fair, fifo, lanes" },
    { { policy = "init" }, "there is no policy 'init'" },
  } do
    local app <close> = open(files, { config = case[1] })
    t.eq({ app.scripts, (app.why or ""):sub(1, #case[2]) }, { nil, case[2] })
  end
  local app <close> = open(files, { config = { hooks = { { "mine", a = 2 } } } })
  t.eq(app.scripts:current().by_name.mine.self.config, { a = 2 })
  local other <close> = open({}, { config = { hooks = {} } })
  other.config.site, other.config.hooks = nil, { "mine" }
  local none, why = other.scripts:reload()
  t.eq({ none, why }, { nil, "there is no hook 'mine' in the configuration, which sets no site" })
end)

test("templates of models that change are used from then on", function(t)
  local chat = require "chat"
  local folder = sites.folder { ["chat_template.jinja"] =
    "{% for m in messages %}{{ m.content }}{% endfor %}1" }
  local entry = { name = "m", path = folder, words = assert(chat.open(folder)), state = "ready" }
  local app <close> = open({}, { models = { entry } })
  local scripts = app.scripts
  local function prompt()
    return scripts:current():words(entry):prompt { messages = {
      { role = "user", content = "Hi" } } }.text
  end
  t.ok(scripts:current():words(entry) == entry.words)
  local f = assert(io.open(folder .. "/chat_template.jinja", "w"))
  f:write "{% for m in messages %}{{ m.content }}{% endfor %}2"
  f:close()
  t.eq(assert(scripts:reload()).changed, { folder .. "/chat_template.jinja" })
  t.eq(prompt(), "Hi2")
  t.ok(scripts:current():words(entry) == scripts:current():words(entry)) -- opened once
  t.eq({ assert(scripts:reload()).changed, prompt() }, { {}, "Hi2" })
  local words, why = scripts:current():words(entry, "none")
  t.eq({ words, why }, { nil, "the site has no templates/none.jinja" })
  entry.words = assert(chat.open(folder)) -- the model was loaded again
  t.eq(prompt(), "Hi2")
  sites.remove(folder)
end)
