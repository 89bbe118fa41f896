-- hooks.facade and hooks.attach: what scripts may ask of their host, and scripts on sequences that
-- are made up here.
local attach = require "hooks.attach"
local facade = require "hooks.facade"
local perigee = require "perigee"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local test = require("harness").test

-- ---- what scripts may ask -----------------------------------------------------------------------

--- A script's own `perigee` and what its host was told.
local function host_of(more)
  local told = {}
  local function note(name)
    return function(...) told[#told + 1] = { name, ... } end
  end
  local script = { name = "mine", timers = {}, host = { log = note "log", observe = note "observe",
    count = note "count", sleep = note "sleep", models = function() return { "m" } end,
    request = function(options) return options end, shared = { a = 1 } } }
  for key, value in pairs(more or {}) do script[key] = value end
  return facade.new(script), told, script
end

test("logs, metrics and shared values of a script", function(t)
  local pe, told, script = host_of()
  pe.log("x", { a = 1 })
  pe.log(5)
  pe.metric("wait", 2.5, { kind = "a", n = 1, b = true })
  pe.count "seen"
  pe.count("seen", 3)
  t.eq(told, { { "log", "info", "mine: x", { a = 1 } }, { "log", "info", "mine: 5" },
    { "observe", "perigee_script_wait", 2.5, { kind = "a", n = 1, b = true } },
    { "count", "perigee_script_seen", 1 }, { "count", "perigee_script_seen", 3 } })
  for _, case in ipairs {
    { function() pe.metric("a b", 1) end, "metric: 'a b' is not a valid name" },
    { function() pe.metric(5, 1) end, "metric: expected a string, got number" },
    { function() pe.metric("a", "1") end, "metric: expected a number, got string" },
    { function() pe.count("a", {}) end, "count: expected a number, got table" },
    { function() pe.count("a", 1, 5) end, "metric: labels must be a table, got number" },
    { function() pe.count("a", 1, { [1] = "x" }) end, "'1' is not a valid name of a label" },
    { function() pe.count("a", 1, { le = "x" }) end, "'le' is not a valid name of a label" },
    { function() pe.count("a", 1, { ["x y"] = "x" }) end, "'x y' is not a valid name of a label" },
    { function() pe.count("a", 1, { x = {} }) end,
      "label 'x' must be a string, a number or a boolean, got table" },
    { function() pe.count("a", 1, { x = print }) end, "got function" },
  } do
    t.raises(case[1], case[2])
  end
  t.eq(#told, 5)
  t.eq({ pe.models(), pe.shared.a, pe.version, pe.json ~= perigee.json, pe.json.encode { 1 } },
    { { "m" }, 1, perigee.version, true, "[1]" })
  pe.shared.b = 2
  local seen = {}
  for key, value in pairs(pe.shared) do seen[key] = value end
  t.eq({ script.host.shared, seen, getmetatable(pe.shared) },
    { { a = 1, b = 2 }, { a = 1, b = 2 }, false })
  t.near(pe.now(), os.time(), 2)
end)

test("templates and timers of a script", function(t)
  local pe, _, script = host_of { templates = { "a", "b" } }
  t.eq(pe.template "b", { template = "b" })
  t.raises(function() pe.template "c" end, "template: the site has no templates/c.jinja")
  t.raises(function() pe.template(5) end, "template: expected a string, got number")
  t.eq(host_of().template "any", { template = "any" })
  local function run() end
  pe.every(0.01, run)
  pe.every(86400, run)
  t.eq(script.timers, { { seconds = 0.01, run = run }, { seconds = 86400, run = run } })
  for _, wrong in ipairs { 0.009, 0, -1, 86400.5, 0 / 0 } do
    t.raises(function() pe.every(wrong, run) end,
      "every: seconds must be between 0.01 and 86400, got ")
  end
  t.raises(function() pe.every(1, 5) end, "every: expected a function, got number")
  t.raises(function() pe.every("1", run) end, "every: expected a number, got string")
  script.loaded = true
  t.raises(function() pe.every(1, run) end, "every: can only be called while the script is loaded")
  t.eq(#script.timers, 2)
end)

test("scripts wait inside a hook that may", function(t)
  local pe, told, script = host_of()
  local function inside(fn) return phases.drive(script, "request", { ms = 5000 }, fn) end
  for _, seconds in ipairs { 0, 0.5, 86400 } do
    t.eq((inside(function() pe.sleep(seconds) end)), true)
  end
  t.eq(told, { { "sleep", 0 }, { "sleep", 500.0 }, { "sleep", 86400000 } })
  for _, wrong in ipairs { -0.001, 86400.5, 0 / 0 } do
    t.raises(function() pe.sleep(wrong) end, "sleep: seconds must be between 0 and 86400, got ")
  end
  t.raises(function() pe.sleep "1" end, "sleep: expected a number, got string")
  t.raises(function() pe.sleep(1) end, "sleep: only inside a hook")
  local ok, got = inside(function() return pe.http.request { url = "u", on_data = print } end)
  t.eq({ ok, got }, { true, { url = "u" } })
  script.host.request = function() error("first\nsecond", 0) end
  t.eq({ inside(function() return pe.http.request {} end) }, { true, nil, "first" })
  t.raises(function() pe.http.request "u" end, "http.request: expected a table, got string")
end)

test("the server's own objects keep their metatables, but for what scripts may set", function(t)
  local meta = { __index = {} }
  local function theirs(v) return plain.setmetatable(v, { __len = error }) end
  local inner, hidden = theirs {}, theirs {}
  local object = setmetatable({ ids = inner, parser = hidden }, meta)
  local array = setmetatable({ theirs {} }, {})
  local value = { object, array }
  t.eq(plain.strip(value), value)
  t.eq({ getmetatable(object) == meta, getmetatable(inner), getmetatable(hidden) ~= nil,
    getmetatable(array) ~= nil, getmetatable(array[1]) }, { true, nil, true, true })
end)

-- ---- scripts on sequences -----------------------------------------------------------------------

local tok = { size = 100 }

--- Watchers of a request with n sequences and these hooks.
local function watchers_of(hooks, request, o)
  local struck = {}
  local list = {}
  for i, one in ipairs(hooks) do
    list[i] = { params = { i }, script = { name = "s" .. i, hooks = one, strikes = {}, self = {},
      struck = function(_, phase, record) struck[#struck + 1] = phase .. ": " .. record.last end,
      deadlines = { start = 5000, token = 5000, logits = 5000 } } }
  end
  request.prompt = request.prompt or { 1, 2, 3 }
  o = o or { tok = tok, context = 10 }
  return attach.watch({ id = "r" }, list, request, o), struck
end

test("scripts that requests may name", function(t)
  local function resolve(list, name)
    local by_name = {}
    for _, script in ipairs(list) do by_name[script.name] = script end
    return select(2, attach.resolve({ list = list, by_name = by_name },
      { attached = { { name = name } } }))
  end
  local function script(name, phase) return { name = name, hooks = { [phase] = print } } end
  t.eq(resolve({ script("a", "request") }, "a"),
    "unknown script 'a' (requests may name: none)")
  t.eq(resolve({ script("a", "start"), script("b", "token"), script("c", "logits") }, "d"),
    "unknown script 'd' (requests may name: a, b, c)")
  t.eq(attach.resolve({}, {}), {})
end)

test("what start hooks do becomes part of the request, or of the sequences", function(t)
  local request = { n = 2, force = { 9 }, logit_bias = { [5] = 1.0 } }
  local params
  local watchers = watchers_of({ { start = function(seq, given)
    params = given
    seq:force { 7, 8 }
    seq:bias { [6] = 2.0 }
    return { count = 0 }
  end } }, request)
  t.eq({ #watchers, params, request.force, request.logit_bias, request.hold, request.watch,
    watchers[1].forced, watchers[1].items[1].seq.state.count, watchers[1].room },
    { 2, { 1 }, { 9, 7, 8 }, { [5] = 1.0, [6] = 2.0 }, nil, nil, {}, 0, 6 })
  -- Sequences that begin differently are held.
  local n = 0
  request = { n = 2 }
  watchers = watchers_of({ { start = function(seq)
    n = n + 1
    seq:force { n }
    seq:bias { [n] = 1.0 }
  end } }, request)
  t.eq({ request.hold, request.force, request.logit_bias, watchers[2].forced },
    { true, nil, { [1] = 1.0 }, { 2 } })
  local biased = {}
  for i, watcher in ipairs(watchers) do
    local seq = { bias = function(_, all) biased[i] = all end }
    watcher:join(seq)
    t.ok(seq.watcher == watcher and watcher.seq == seq)
  end
  t.eq(biased, { [2] = { [2] = 1.0 } }) -- the first's are the request's
  request = {}
  watchers = watchers_of({ { token = print }, { logits = print } }, request, { tok = tok })
  t.eq({ #watchers, request.watch, request.hold, request.force, request.logit_bias,
    watchers[1].vocabulary }, { 1, true, true, nil, nil, 100 })
  t.eq(watchers_of({}, {}, { tok = tok, vocabulary = 5 })[1].vocabulary, 5)
  -- A start hook that fails: the script is not called for this sequence.
  local called = false
  local struck
  watchers, struck = watchers_of({ { start = function() error "no" end,
    token = function() called = true end } }, {})
  t.eq({ watchers[1]:token({ id = 1, text = "x" }, {}), called, #struck }, { true, false, 1 })
end)

test("token hooks may stop the answer or leave it", function(t)
  local calls, answer = {}, {}
  local hooks = {}
  for i = 1, 2 do
    hooks[i] = { token = function(_, id, text)
      calls[#calls + 1] = ("%d:%d%s"):format(i, id, text)
      return answer[i]
    end }
  end
  local watcher = watchers_of(hooks, {})[1]
  local cancelled = 0
  local seq = { cancel = function() cancelled = cancelled + 1 end, finish = "cancel" }
  local function token(id)
    calls = {}
    local part = watcher:token({ id = id, text = "t" }, seq)
    return { part, calls }
  end
  t.eq(token(4), { true, { "1:4t", "2:4t" } })
  t.eq({ watcher:token({ text = "t" }, seq), #calls }, { true, 2 }) -- text without a token
  answer[2] = "detach"
  t.eq(token(5), { true, { "1:5t", "2:5t" } })
  t.eq(token(6), { true, { "1:6t" } })
  watcher:done(seq)
  t.eq(seq.finish, "cancel") -- somebody else cancelled it
  answer[1] = "stop"
  t.eq(token(7), { false, { "1:7t" } })
  t.eq(token(8), { false, {} })
  watcher:done(seq)
  t.eq({ seq.finish, cancelled }, { "stop", 1 })
  seq.finish = "length"
  watcher:done(seq)
  t.eq(seq.finish, "length")
  -- The others are not asked after a stop.
  answer = { "stop" }
  watcher = watchers_of(hooks, {})[1]
  t.eq(token(1), { false, { "1:1t" } })
end)

test("a held sequence goes on, whatever its hooks do", function(t)
  local hook
  local watcher, struck
  local function draw(sample, values)
    local all, got
    all, struck = watchers_of({ { logits = function(...) return hook(...) end } }, {})
    watcher, got = all[1], {}
    local closed = false
    local seq = { logits = function()
      return values ~= false and { close = function() closed = true end } or nil
    end, sample = function(_, how)
      got[#got + 1] = how
      return sample(how, #got)
    end }
    watcher.vocabulary = 100
    t.eq(watcher:token({ held = true }, seq), false)
    t.eq({ closed, watcher.holding, watcher.forced }, { values ~= false, nil, {} })
    return got
  end
  local function fine() return true end
  local lends = nil
  hook = function(seq, logits)
    lends = logits
    logits:ban { 4 }
    logits:bias { [5] = 1.5 }
    seq:force { 6, 7 }
  end
  t.eq(draw(fine), { { bias = { [5] = 1.5 }, banned = { 4 }, force = { 6, 7 } } })
  t.eq(#struck, 0)
  t.raises(function() return lends[0] end, "only while the hook runs")
  hook = function() end
  t.eq(draw(fine), { { bias = {}, banned = {} } })
  t.eq(draw(fine, false), { { bias = {}, banned = {} } })
  hook = function() error "no" end
  t.eq(#draw(fine), 1)
  t.eq(#struck, 1)
  -- The batch refuses what the hooks did: they are struck, and the sequence is sampled without it.
  hook = function(_, logits) logits:ban { 4 } end
  local got = draw(function(_, n) return n == 2 or nil, "no token is left" end)
  t.eq({ got[2], struck }, { {}, { "logits: no token is left" } })
  got = draw(function(_, n) return n == 2 or error("raised\nmore", 0) end)
  t.eq({ got[2], struck }, { {}, { "logits: raised" } })
end)
