-- hooks.phases and hooks.plain without a server: the answers that each phase allows, at their
-- limits; how answers are combined; and what a hook may do to a request.
local errors = require "lib.errors"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local harness = require "harness"
local uv = require "luv"

local TURN_MS = phases.TURN_MS

--- A test whose scripts may take as long as they need: what counts here is what they return.
local function test(name, body)
  harness.test(name, function(t)
    local before = uv.now()
    phases.TURN_MS = 60000
    repeat uv.update_time() until uv.now() ~= before -- the budget is of the next turn
    local ok, why = xpcall(body, debug.traceback, t)
    phases.TURN_MS = TURN_MS
    if not ok then error(why, 0) end
  end)
end

-- Arguments, milliseconds, waits, combination.
local PHASES = {
  request = { "req, self", 50, true, "first" },
  normalize = { "req, chat, self", 50, true, "replace" },
  template = { "req, chat, self", 50, nil, "first" },
  admit = { "req, queue, self", 5, nil, "merge" },
  generate = { "req, run, self", 50, true, "wrap" },
  schedule = { "step, self", 10 }, start = { "seq, params, self", 2 },
  logits = { "seq, logits, self", 2 }, token = { "seq, id, text, self", 2 },
  parse = { "req, deltas, self", 5, nil, "replace" },
  respond = { "req, delta, self", 5, nil, "map" },
  done = { "req, usage, self", 50, true, "each" },
}

test("phases, their deadlines and their combination", function(t)
  local got = {}
  for name, p in pairs(phases.list) do got[name] = { p.args, p.ms, p.waits, p.combine } end
  t.eq(got, PHASES)
  t.eq({ TURN_MS, phases.MEMORY, phases.SMALL_MEMORY }, { 30, 16 << 20, 8 << 20 })
end)

--- A script of one hook; what it is blamed for goes to script.blamed.
local function script(phase, f, more)
  local self = { hooks = { [phase] = f }, strikes = {}, self = {}, deadlines = { [phase] = 60000 } }
  function self.struck(_, _, record) self.blamed = record.last end
  for k, v in pairs(more or {}) do self[k] = v end
  return self
end

local function request(more)
  local req = { id = "r", api = "chat", path = "/x", n = 1, stream = false, sampling = {}, tag = {},
    ctx = {}, attached = {}, headers = {}, scripts = {}, received = 1, started = 1,
    attach = function() end }
  for k, v in pairs(more or {}) do req[k] = v end
  return req
end

--- What a phase makes of an answer: { it }, or why it was refused.
local function answered(phase, value)
  local s = script(phase, function() return value end, { is_format = true })
  local ok, answer = phases.call(s, phase, request())
  return ok and { answer } or s.blamed
end

local function many(n, value)
  local list = {}
  for i = 1, n do list[i] = value end
  return list
end

local function fields(n)
  local out = { type = "x" }
  for i = 2, n do out["f" .. i] = i end
  return out
end

test("what a phase may return", function(t)
  local function refused(phase, value, got)
    t.match(answered(phase, value), "^returned " .. got .. "; ")
  end
  t.eq(answered("request", nil), {})
  t.eq(answered("request", phases.reject(429, "m", { retry_after = 2, code = "c", field = "f" }))[1]
    .message, "m")
  refused("request", {}, "another table")
  refused("request", "x", "string")
  t.eq(answered("template", "x"), { "x" })
  t.eq(answered("template", { template = "y", more = 1 }), { { template = "y" } })
  t.eq(answered("template", { 0, 5 }), { { 0, 5 } })
  for _, wrong in ipairs { "", "\xff", {}, { -1 }, { 1.5 }, { "a" } } do
    refused("template", wrong, type(wrong) == "table" and "another table" or "string")
  end
  t.eq(#answered("template", many(1 << 12, 1))[1], 1 << 12)
  t.eq(answered("admit", fields(64)), { fields(64) })
  refused("admit", fields(65), "another table")
  refused("admit", { a = {} }, "another table")
  refused("admit", { 1 }, "another table")
  t.ok(errors.is(answered("admit", phases.reject(400, "m"))[1]))
  t.eq(answered("parse", {}), { {} })
  t.eq(answered("parse", { { type = "a" } }), { { { type = "a" } } })
  refused("parse", { { type = 1 } }, "another table")
  refused("parse", { a = 1 }, "another table")
  refused("parse", { fields(65) }, "another table")
  t.eq(#answered("parse", many(1 << 14, { type = "a" }))[1], 1 << 14)
  refused("parse", many((1 << 14) + 1, { type = "a" }), "another table")
  t.eq(answered("respond", false), { false })
  t.eq(answered("respond", { type = "a" }), { { type = "a" } })
  t.eq(answered("respond", { { type = "a" }, { type = "b" } }),
    { { { type = "a" }, { type = "b" } } })
  refused("respond", true, "boolean")
  t.eq({ answered("token", "stop"), answered("token", "detach") }, { { "stop" }, { "detach" } })
  refused("token", "go", "string")
  refused("token", true, "boolean")
  t.eq(#answered("generate", many(128, { text = "x" }))[1], 128)
  t.match(answered("generate", many(129, {})),
    "^returned more than 128 outputs; an output expected")
  refused("generate", "x", "string")
  t.eq(answered("normalize", { messages = { { role = "user", content = "x" } } })[1].messages[1]
    .content, "x")
  refused("normalize", 1, "number")
  t.match(answered("normalize", { messages = {} }), "^returned a chat whose ")
end)

test("refusals", function(t)
  for _, status in ipairs { 400, 599 } do t.eq(phases.reject(status, "m").status, status) end
  for _, status in ipairs { 399, 600, 400.5, "400" } do
    t.raises(function() phases.reject(status, "m") end,
      "reject: status must be an integer between 400 and 599, got " .. tostring(status))
  end
  t.eq(phases.reject(400, 5, { retry_after = 0, code = 6, field = 7 }).message, "5")
  local err = phases.reject(400, "m", { retry_after = 0.5, code = 6, field = 7 })
  t.eq({ err.retry_after, err.code, err.field }, { 0.5, "6", "7" })
  for _, wrong in ipairs { -1, "x", true } do
    t.raises(function() phases.reject(400, "m", { retry_after = wrong }) end,
      "reject: retry_after must be a number of seconds, got " .. tostring(wrong))
  end
end)

test("a request is as the server needs it after every hook", function(t)
  local function after(change, more)
    local s, req = script("parse", change), request(more)
    phases.call(s, "parse", req, {})
    return s.blamed, req
  end
  for field, kind in pairs { id = 1, api = {}, path = false, n = "x", stream = 1, sampling = "x",
    tag = 1, ctx = 1, attached = 1, headers = "x", scripts = {}, attach = print, started = 2,
    received = 2 } do
    local before = request()
    local why, req = after(function(r) r[field] = kind end, before)
    t.match(why, ("left req.%s a %s that the server cannot use"):format(field, type(kind)))
    t.eq(req[field], before[field], field)
  end
  local kept = { chat = {}, prompts = {}, ids = {}, all_ids = {}, prompt_tokens = 1 }
  for field, value in pairs(kept) do
    local why, req = after(function(r) r[field] = nil end, { [field] = value })
    t.match(why, "left req." .. field .. " a nil")
    t.eq(req[field], value)
    t.eq((after(function() end)), nil) -- may be missing
  end
  for field, value in pairs { model = "m", key = "k", best_of = 2 } do
    t.eq((after(function(r) r[field] = nil end, { [field] = value })), nil, field)
  end
  for _, field in ipairs { "n", "best_of" } do
    for _, n in ipairs { 1, 128 } do
      local why, req = after(function(r) r[field] = n end, { best_of = 3 })
      t.eq({ why, req[field] }, { nil, n })
    end
    for _, n in ipairs { 0, 129, 1.5 } do
      local why, req = after(function(r) r[field] = n end, { best_of = 3, n = 3 })
      t.match(why, "left req." .. field .. " a number")
      t.eq(req[field], 3)
    end
  end
  -- Metatables of scripts do not stay, nor are they used.
  local why, req = after(function(r) plain.setmetatable(r, { __index = error, __gc = nil }) end)
  t.eq({ why, getmetatable(req) }, {})
  -- A hook that raises is cleaned up after as well.
  why, req = after(function(r)
    r.n = "x"
    error("broken", 0)
  end)
  t.eq({ why, req.n }, { "broken", 1 })
end)

test("answers of several scripts", function(t)
  local calls
  local function ask(phase, req, value, ...)
    local list = {}
    calls = {}
    for i, f in ipairs { ... } do
      list[i] = script(phase, function(...)
        calls[#calls + 1] = i
        return f(...)
      end, { self = { number = i } })
    end
    return phases.ask(phases.call, list, phase, req, value)
  end
  local function none() end
  local function fails() error "no" end
  t.eq(ask("template", request(), {}, none, fails, function() return "a" end,
    function() return "b" end), "a")
  t.eq(calls, { 1, 2, 3 })
  t.eq(ask("template", request(), {}, none, fails), nil)
  t.eq(ask("template", request(), {}, function(_, _, self) return "s" .. self.number end), "s1")
  local function add(name)
    return function(_, list)
      local out = table.move(list, 1, #list, 1, {})
      out[#out + 1] = { type = name }
      return out
    end
  end
  t.eq(ask("parse", request(), {}, add "a", fails, none, add "b"),
    { { type = "a" }, { type = "b" } })
  t.eq(ask("parse", request(), {}, none, fails), nil)
  local req = request()
  t.eq(ask("admit", req, {}, function() return { a = 1, b = 1 } end, fails,
    function(r) return { b = 2, c = r.tag.a } end), { a = 1, b = 2, c = 1 })
  t.eq(req.tag, { a = 1, b = 2, c = 1 })
  t.eq(ask("admit", request(), {}, none), nil)
  local refusal = ask("admit", request(), {}, function() return { a = 1 } end,
    function() return phases.reject(400, "m") end, fails)
  t.eq({ refusal.message, calls }, { "m", { 1, 2 } })
  local function double(_, d)
    local was = d.type
    d.type = "changed" -- a copy
    return { { type = was .. "1" }, { type = was .. "2" } }
  end
  local delta = { type = "x" }
  t.eq(ask("respond", request(), delta, double, fails, double),
    { { type = "x11" }, { type = "x12" }, { type = "x21" }, { type = "x22" } })
  t.eq({ delta.type, calls }, { "x", { 1, 2, 2, 3, 3 } })
  t.eq(ask("respond", request(), delta, function() return false end, double), {})
  t.eq(ask("respond", request(), delta, none, fails), nil)
  t.eq(ask("respond", request(), delta, function() return { type = "y" } end), { { type = "y" } })
end)

test("a phase of a script is switched off alone", function(t)
  local s = script("admit", function() error("no", 0) end)
  for _ = 1, 3 do t.eq((phases.call(s, "admit", request(), {})), false) end
  t.eq({ phases.is_off(s, "admit"), phases.is_off(s, "parse"), s.strikes.admit.total },
    { true, false, 3 })
  s.hooks.admit = function() return {} end
  t.eq((phases.call(s, "admit", request(), {})), false)
  s.strikes.admit:reset()
  t.eq({ phases.call(s, "admit", request(), {}) }, { true, {} })
  t.eq(phases.running, nil)
  t.raises(function() phases.wait_for("sleep", print) end, "sleep: only inside a hook")
  s.hooks.admit = function() phases.wait_for("sleep", print) end
  phases.call(s, "admit", request(), {})
  t.match(s.blamed, "sleep: `admit` cannot wait")
end)

test("wrappers of generation: options, silence, and those that are switched off", function(t)
  local seen
  local function ask(...)
    local list = {}
    for i, f in ipairs { ... } do list[i] = script("generate", f) end
    seen = {}
    return list, phases.ask(phases.wait, list, "generate", request(), function(_, options)
      seen[#seen + 1] = options or {}
      return { content = "made " .. #seen }
    end)
  end
  local function with(options)
    return function(req, run) return run(req, options) end
  end
  local _, got = ask(with { n = 2, sampling = { a = 1 } }, with { n = 3, silent = true })
  t.eq({ seen, got.content }, { { { n = 3, sampling = { a = 1 }, silent = true } }, "made 1" })
  ask(with { silent = true }, with { silent = false })
  t.eq(seen[1].silent, true) -- nothing inside makes it heard
  ask(with {}, with {})
  t.eq(seen, { {} })
  -- One that fails or returns nothing: the output of its last run that was not silent.
  _, got = ask(function(req, run)
    run(req)
    run(req, { silent = true })
  end)
  t.eq({ got.content, #seen }, { "made 1", 2 })
  _, got = ask(function() end)
  t.eq({ got.content, #seen }, { "made 1", 1 })
  for _, case in ipairs { { 5, "run: options are a number" },
    { { n = 0 }, "run: n must be an integer between 1 and " }, { { n = 1.5 }, "got 1.5" },
    { { sampling = 5 }, "run: sampling must be a table, got number" },
    { { chat = 5 }, "run: chat is number" } } do
    local list = ask(with(case[1]))
    t.ok(list[1].blamed:find(case[2], 1, true), list[1].blamed)
  end
  local list = ask(with { n = 1 })
  t.eq(list[1].blamed, nil)
  -- Switched off ones are passed over, wherever they are.
  for off = 1, 2 do
    local calls = {}
    list = {}
    for i = 1, 2 do
      list[i] = script("generate", function(req, run)
        calls[#calls + 1] = i
        return run(req)
      end)
    end
    for _ = 1, 3 do phases.strike(list[off], "generate", "x") end
    got = phases.ask(phases.wait, list, "generate", request(), function()
      return { content = "x" }
    end)
    t.eq({ calls, got.content }, { { 3 - off }, "x" })
  end
end)

-- ---- plain data ---------------------------------------------------------------------------------

test("lists and records at their limits", function(t)
  local function id(v) return v end
  t.eq(plain.list({ 1, 2 }, 2, id), { 1, 2 })
  t.eq({ plain.list({ 1, 2, 3 }, 2, id), plain.list("x", 2, id) }, {})
  t.eq(plain.list({ 1, 2 }, 2, function(v) return v == 1 and 1 or nil end), nil)
  t.eq(plain.record({ a = 1, b = "x" }, 2), { a = 1, b = "x" })
  t.eq({ plain.record({ a = 1, b = 2, c = 3 }, 2), plain.record({ 1 }, 2),
    plain.record({ a = print }, 2), plain.record("x", 2) }, {})
  t.eq(plain.record({ a = true }, 1), { a = true })
end)

test("metatables of scripts are removed, and depth and size are bounded", function(t)
  local function theirs(v) return plain.setmetatable(v, { __index = error, __len = error }) end
  local inner = theirs { 1 }
  local value = theirs { a = inner, b = inner }
  t.eq(plain.getmetatable(value) ~= nil, true)
  t.eq(plain.strip(value), value)
  t.eq({ getmetatable(value), getmetatable(inner) }, {})
  local one = theirs { a = theirs {} }
  plain.bare(one)
  t.eq({ getmetatable(one), getmetatable(one.a) ~= nil }, { nil, true })
  t.eq({ plain.getmetatable "x", plain.getmetatable(setmetatable({}, {})) }, {})
  t.raises(function() plain.setmetatable({}, { __gc = print }) end, "cannot have finalizers")
  t.raises(function() plain.setmetatable(setmetatable({}, {}), {}) end, "belongs to the server")
  local loop = {}
  loop.a = loop
  t.eq({ plain.strip(loop) }, { nil, "a table that contains itself" })
  t.eq({ plain.strip { [{}] = 1 } }, { nil, "a table as a key" })
  local function nested(n) return n == 0 and 1 or { nested(n - 1) } end
  t.ok(plain.strip(nested(256)))
  t.eq({ plain.strip(nested(257)) }, { nil, "tables nested more than 256 deep" })
  t.eq({ plain.DEPTH, plain.VALUES }, { 256, 1 << 20 })
  local values = plain.VALUES
  plain.VALUES = 10
  t.ok(plain.strip { 1, 2, 3, 4, 5, 6, 7, 8, { 9 } })
  t.eq({ plain.strip { 1, 2, 3, 4, 5, 6, 7, 8, 9, { 10 } } }, { nil, "more than 10 values" })
  plain.VALUES = values
end)
