-- pipeline.run and pipeline.sequences on a batch that is made up here: the states of a run, what is
-- sent and when, what a sequence is sampled with, and what is counted.
local async = require "lib.async"
local batches = require "fake_batch"
local constraint = require "pipeline.constraint"
local errors = require "lib.errors"
local pipeline = require "pipeline"
local runs = require "pipeline.run"

local finish, task, test = batches.finish, batches.task, batches.test

-- ---- a run --------------------------------------------------------------------------------------

--- A run of a request with these fields. run.said lists what the client was sent, run.notes the
--- log.
local function run_of(fields, more)
  local said, notes = {}, {}
  local hooks = more and more.hooks or {}
  local req = { id = "id", sampling = {}, n = 1, tag = { key = "k" }, model = "asked", started = 0,
    scripts = { has = function(_, phase) return hooks[phase] ~= nil end,
      call = function(_, phase, _, value) return hooks[phase](value) end } }
  for key, value in pairs(fields or {}) do req[key] = value end
  local entry = { name = "m", batch = batches.new(), model = { stops = {} } }
  local app = { config = { queue = {}, limits = {} }, keys = {},
    log = { note = function(_, level, text) notes[#notes + 1] = level .. ": " .. text end },
    models = { find = function(_, name)
      if name == "none" then return nil, errors.new { status = 404, message = "no such model" } end
      return entry
    end } }
  local face = { streams = true }
  function face.begin(_, of) said[#said + 1] = of == req and "begin" or "begin of another" end
  function face.delta(_, out, deltas)
    said[#said + 1] = ("delta %d:"):format(out.index)
    for _, d in ipairs(deltas) do said[#said] = said[#said] .. " " .. (d.text or d.name) end
  end
  function face.finish(_, out) said[#said + 1] = ("finish %d: %s"):format(out.index, out.finish) end
  for key, value in pairs(more and more.app or {}) do app[key] = value end
  local run = runs.new(app, req, face, more or {})
  run.said, run.notes, run.batch, run.attached, run.prompts = said, notes, entry.batch, {},
    { { ids = { 1, 2, 3 } } }
  return run
end

-- ---- states -------------------------------------------------------------------------------------

test("ids of responses are random", function(t)
  local seen = {}
  for _ = 1, 20 do
    local name = runs.random_name()
    t.match(name, "^" .. ("%x"):rep(24) .. "$")
    t.eq(seen[name], nil)
    seen[name] = true
  end
end)

test("a run begins once and ends where it is", function(t)
  local run = run_of()
  t.eq({ run.state, run.log, run.client }, { "preparing", {} })
  run:begin()
  run:begin()
  t.eq({ run.state, run.said }, { "answering", { "begin" } })
  run:cancel()
  t.eq({ run.state, run.cancelled, run.gone, run.error }, { "answering", true })
  run:cancel "gone"
  t.eq({ run.state, run.gone }, { "ended", true })
  run:begin()
  t.eq({ run.state, run.said }, { "ended", { "begin" } })
  run = run_of()
  run:cancel "gone"
  t.eq({ run.state, run.gone }, { "preparing", true })
  local log, client = {}, {}
  run = run_of({}, { log = log, client = client })
  t.ok(rawequal(run.log, log) and rawequal(run.client, client))
end)

test("cancelling ends sequences and what is waited for", function(t)
  local run, ended = run_of(), {}
  for i = 1, 2 do
    run.sequences[{ cancel = function() ended[#ended + 1] = "sequence" end }] = i
  end
  run.stop = function() ended[#ended + 1] = "task" end
  run:cancel()
  t.eq(ended, { "task", "sequence", "sequence" })
end)

test("the first error counts", function(t)
  local run = run_of()
  local first, second = errors.new { message = "a" }, errors.new { message = "b" }
  run:abort(first)
  t.eq({ run.state, run.cancelled, run.error == first }, { "preparing", true, true })
  run:abort(second)
  t.eq(run.error, first)
  run = run_of()
  run:begin()
  run:fail(first)
  t.eq({ run.state, run.error == first, run.notes }, { "ended", true, { "error: id: a" } })
  run = run_of()
  run:fail "oops"
  t.eq({ run.error.status, run.error.code, run.notes }, { 500, "internal_error",
    { "error: id: oops" } })
end)

test("impossible answers of hooks are reported once for each phase", function(t)
  local run = run_of()
  run:warn("parse", "x")
  run:warn("parse", "y")
  run:warn("respond", "z")
  t.eq(run.notes, { "warning: id: `parse` returned x; it is ignored",
    "warning: id: `respond` returned z; it is ignored" })
end)

test("answers that are kept have a limit each, and one together", function(t)
  local MIB = 1 << 20
  local run = run_of()
  run:hold(MIB)
  run:hold(127 * MIB)
  t.eq({ run.error, run.app.held_answers, run.held }, { nil, 128 * MIB, 128 * MIB })
  run:hold(1)
  t.eq({ run.error.status, run.error.code, run.cancelled }, { 503, "answer_too_large", true })
  t.match(run.error.message, "its logprobs take 128 MiB")
  local first = run.error
  run:hold(MIB)
  t.eq(run.error, first)
  run:let_go()
  t.eq({ run.held, run.app.held_answers }, { 0, 0 })
  run:let_go()
  t.eq(run.app.held_answers, 0)
  run = run_of()
  run.app.held_answers = 500 * MIB
  run:hold(12 * MIB)
  t.eq(run.error, nil)
  run:hold(1)
  t.eq(run.error.code, "answer_too_large")
  run:let_go()
  t.eq(run.app.held_answers, 500 * MIB)
  run = run_of()
  run:let_go()
  t.eq(run.app.held_answers, 0)
end)

-- ---- sending ------------------------------------------------------------------------------------

test("deltas are sent of streamed outputs, while the answer is on its way", function(t)
  local run = run_of()
  local out, silent = { index = 0, live = true, finish = "stop" }, { index = 1, finish = "stop" }
  local deltas = { { type = "text", text = "a" } }
  local function both()
    run:send(out, deltas)
    run:send(silent, deltas)
    run:finish(silent)
    run:finish(out)
  end
  both() -- it has not begun
  run:begin()
  both()
  run:send(out, {})
  run:abort(errors.new { message = "x" })
  both()
  t.eq(run.said, { "begin", "delta 0: a", "finish 0: stop" })
end)

test("respond hooks see deltas and the end", function(t)
  local answer
  local run = run_of({}, { hooks = { respond = function(d) return answer(d) end } })
  local out = { index = 0, live = true, finish = "stop" }
  run:begin()
  answer = function() return {} end
  run:send(out, { { type = "text", text = "a" } })
  run:finish(out)
  t.eq(run.said, { "begin" })
  answer = function(d)
    return { { type = "text", text = d.finish or d.text .. "!" }, d.finish and d or nil }
  end
  run:send(out, { { type = "text", text = "a" } })
  run:finish(out)
  t.eq(run.said, { "begin", "delta 0: a!", "delta 0: stop", "finish 0: stop" })
end)

-- ---- generating ---------------------------------------------------------------------------------

test("the model of a request is found by its name", function(t)
  local made = {}
  local run = run_of({}, { app = { metrics = { inter_token = { observer = function(_, labels)
    made[#made + 1] = labels.model
    return function() end
  end } } } })
  run:find_model()
  local labels = run.labels
  t.eq({ run.req.model, labels, type(run.gap) }, { "m", { model = "m" }, "function" })
  run:find_model()
  t.ok(rawequal(run.labels, labels))
  t.eq(made, { "m" })
  run.req.model = "none"
  t.eq(t.raises(function() run:find_model() end, "no such model").status, 404)
  run = run_of()
  run:find_model()
  t.eq(run.gap, nil)
end)

test("what a sequence is sampled with", function(t)
  local hash = require "lib.hash"
  local function sampling(o)
    local run = run_of({ sampling = o.sampling, key = o.key, best_of = o.best_of },
      { app = { config = { defaults = o.defaults, cache_per_key = o.apart, limits = {} },
        keys = o.keys or {} } })
    task(t, function()
      run:generate(o.options or {})
    end)
    for i = #run.batch.given[1], 1, -1 do finish(run.batch, 1, i) end
    return run.batch.given[1]
  end
  local given = sampling { defaults = { top_p = 0.1, top_k = 5, min_p = 0.1 },
    sampling = { top_k = 6, min_p = 0.2, seed = 7 }, options = { sampling = { min_p = 0.3 } } }
  t.eq({ given.top_p, given.top_k, given.min_p, given.seed, given.top_logprobs, given.salt,
    given.tag, given.n }, { 0.1, 6, 0.3, 7, nil, nil, { key = "k" }, 1 })
  given = sampling { sampling = { top_k = -1 } }
  t.eq({ given.top_k, math.type(given.seed), given.seed >= 0 }, { 0, "integer", true })
  t.ok(sampling {}.seed ~= given.seed)
  -- Logprobs that only the server needs.
  t.eq(sampling({ options = { logprobs = true } }).top_logprobs, 0)
  t.eq(sampling({ options = { logprobs = true }, sampling = { top_logprobs = 3 } }).top_logprobs, 3)
  t.eq(sampling({ best_of = 2 }).top_logprobs, 0)
  -- How many.
  t.eq({ sampling({ best_of = 3 }).n, sampling({ options = { n = 2 } }).n }, { 3, 2 })
  -- Prefixes are shared by everyone, or by the requests of a key.
  for _, case in ipairs { { false, { 1, 2 }, "k", nil }, { true, {}, "k", hash "k" },
    { true, {}, nil, nil }, { "auto", { 1 }, "k", nil }, { "auto", { 1, 2 }, "k", hash "k" },
    { "auto", { 1, 2 }, nil, nil } } do
    t.eq(sampling({ apart = case[1], keys = case[2], key = case[3] }).salt, case[4])
  end
end)

test("all prompts of a request are answered, one group at a time is streamed", function(t)
  local run = run_of { n = 2 }
  run.prompts = { { ids = { 1 } }, { ids = { 2 } } }
  local batch, results = run.batch, {}
  task(t, function()
    results[1] = run:generate {}
    t.eq({ run.last == results[1], #run.outputs }, { true, 4 })
    t.eq({ next(run.sequences), batch.ledger[11], batch.ledger[22] }, {})
    results[2] = run:generate { silent = true }
    t.eq({ run.last == results[1], #run.outputs }, { true, 8 })
    results[3] = run:generate { n = 1 }
    t.eq({ run.last == results[3], #run.outputs }, { true, 10 })
  end)
  t.eq(#batch.given, 2)
  t.eq(run.said, { "begin" })
  t.eq({ batch.ledger[11], batch.ledger[12], batch.ledger[21] }, { 1 + 2 * 256, 0, 1 + 2 * 256 })
  t.eq({ batch.given[1].prompt, batch.given[2].prompt }, { { 1 }, { 2 } })
  for n = 1, 2 do
    for i = 1, 2 do
      t.eq(results[1], nil)
      finish(batch, n, i)
    end
  end
  t.eq(run.said, { "begin", "finish 0: stop", "finish 1: stop", "finish 2: stop",
    "finish 3: stop" })
  for i, out in ipairs(results[1]) do
    t.eq({ out.index, out.prompt, out.live }, { i - 1, (i + 1) // 2, true })
  end
  local timer = require("luv").new_timer()
  timer:start(5, 5, function()
    for n, request in ipairs(batch.given) do
      for i, seq in ipairs(request) do
        if not seq.finish then finish(batch, n, i) end
      end
    end
    if #results == 3 then timer:close() end
  end)
  require("luv").run()
  t.eq({ #results[2], results[2][1].live, results[3][1].live }, { 4, false, false })
  t.eq(#run.said, 5)
end)

test("a refusal ends all sequences of the request", function(t)
  local run, why = run_of { n = 2 }, nil
  run.prompts = { { ids = { 1 } }, { ids = { 2 } } }
  run.batch.refuse = "no room"
  task(t, function()
    local ok, err = pcall(run.generate, run, {})
    t.eq({ ok, err.message, run.state }, { false, "no room", "preparing" })
    run = run_of { n = 2 }
    run.prompts = { { ids = { 1 } }, { ids = { 2 } } }
    local add = run.batch.add
    run.batch.add = function(...) -- the second prompt is refused
      local a, b = add(...)
      run.batch.refuse = "no room"
      return a, b
    end
    ok, why = pcall(run.generate, run, {})
    t.eq(ok, false)
  end)
  t.eq(why, nil)
  t.eq(run.batch.cancelled[2] and #run.batch.cancelled, 2)
  finish(run.batch, 1, 1, { finish = "cancel" })
  t.eq(why, nil)
  finish(run.batch, 1, 2, { finish = "cancel" })
  t.eq({ why.message, run.said }, { "no room", {} })
  t.eq(run.batch.ledger.answer, 256) -- answers that were cut short teach nothing
end)

test("a cancelled request does not generate", function(t)
  local run = run_of()
  run:cancel()
  local err = t.raises(function() run:generate {} end, "the request was cancelled")
  t.eq({ err.status, err.code, #run.batch.given }, { 409, "cancelled", 0 })
  -- Cancelled while it waits for something.
  run = run_of()
  run.entry = nil
  local find = run.app.models.find
  run.app.models.find = function(...)
    run:cancel()
    return find(...)
  end
  err = t.raises(function() run:generate {} end, "the request was cancelled")
  t.eq({ err.status, #run.batch.given, run.said }, { 409, 0, {} })
end)

test("a model that goes while a schema is converted is missed", function(t)
  local run, prepare = run_of(), constraint.prepare
  constraint.prepare = function() run.req.model = "none" end
  local ok, err = pcall(run.generate, run, {})
  constraint.prepare = prepare
  t.eq({ ok, err.status, err.message }, { false, 404, "no such model" })
  t.eq({ #run.batch.given, run.said }, { 0, {} })
end)

-- ---- sequences ----------------------------------------------------------------------------------

test("times, text and errors of a sequence reach its run", function(t)
  local gaps, counted = {}, {}
  local run = run_of({}, { app = { metrics = {
    inter_token = { observer = function() return function(s) gaps[#gaps + 1] = s end end },
    answers = { add = function(_, n, labels)
      counted[#counted + 1] = { n, labels.model, labels.reason }
    end } } } })
  task(t, function() run:generate {} end)
  local request = run.batch.given[1]
  local seq = request[1]
  seq.granted_at = 2000000000
  request.on_token({ id = 4, text = "a" }, seq)
  local first = run.first_at
  t.eq({ run.granted_at, #gaps, first == run.last_at }, { 2.0, 0, true })
  request.on_token({ text = "b" }, seq) -- text that was held back: no token, no time
  t.eq({ #gaps, run.last_at == first }, { 0, true })
  seq.granted_at = 5
  request.on_token({ id = 5, text = "" }, seq)
  t.eq({ #gaps, run.first_at == first, run.granted_at }, { 1, true, 2.0 })
  t.ok(gaps[1] >= 0 and gaps[1] < 60 and run.last_at - first == gaps[1])
  finish(run.batch, 1, 1)
  t.eq(run.said, { "begin", "delta 0: a", "delta 0: b", "finish 0: stop" })
  t.eq(counted, { { 1, "m", "stop" } })
  t.near(run.batch.ledger.answer, 0.9 * 256 + 0.1 * 5, 1e-9)
  -- No grant was seen.
  run = run_of()
  task(t, function() run:generate {} end)
  run.batch.given[1].on_token({ id = 4, text = "a" }, run.batch.given[1][1])
  t.eq({ run.granted_at, run.first_at ~= nil }, { nil, true })
  -- The end of a sequence that failed is not sent: the request's error is.
  finish(run.batch, 1, 1, { finish = "error" })
  t.eq(run.said, { "begin", "delta 0: a" })
end)

test("an error in a callback ends its own run", function(t)
  for _, callback in ipairs { "token", "done" } do
    local run, why = run_of(), nil
    task(t, function()
      local _
      _, why = pcall(run.generate, run, {})
    end)
    local seq = run.batch.given[1][1]
    seq.watcher = { token = function() error("boom", 0) end,
      done = callback == "done" and function() error("boom", 0) end or function() end }
    if callback == "token" then run.batch.given[1].on_token({ id = 1, text = "x" }, seq) end
    t.eq(run.batch.cancelled, callback == "token" and { 11 } or {})
    finish(run.batch, 1, 1, { finish = "cancel" })
    t.eq({ why.status, run.notes }, { 500, { "error: id: boom" } })
  end
end)

test("a watcher may keep a token back", function(t)
  local run = run_of()
  task(t, function() run:generate {} end)
  local seq, request, done = run.batch.given[1][1], run.batch.given[1], 0
  local pass = false
  seq.watcher = { token = function() return pass end, done = function() done = done + 1 end }
  request.on_token({ id = 1, text = "x" }, seq)
  pass = true
  request.on_token({ id = 1, text = "y" }, seq)
  finish(run.batch, 1, 1)
  t.eq({ run.said, done }, { { "begin", "delta 0: y", "finish 0: stop" }, 1 })
end)

test("an answer that needs one call ends with it", function(t)
  local run = run_of { chat = { tools = {}, parallel_tool_calls = false } }
  local fed
  run.prompts[1].words = { marks = function() return {} end, opening = function() end,
    reasons = function() end, call_marks = function() end,
    parser = function() return { feed = function() return fed end,
      finish = function() return {} end } end }
  task(t, function() run:generate {} end)
  local seq, request = run.batch.given[1][1], run.batch.given[1]
  fed = { { type = "call", index = 1, name = "f" }, { type = "end", index = 1 } }
  request.on_token({ id = 1, text = "x" }, seq)
  request.on_token({ id = 1, text = "x" }, seq)
  t.eq(run.batch.cancelled, { 11 })
  finish(run.batch, 1, 1, { finish = "cancel" })
  t.eq(run.said, { "begin", "delta 0: f", "finish 0: tool_calls" })
end)

test("what is kept of logprobs", function(t)
  local function kept(streams, hooks, columns)
    local run = run_of({ sampling = { top_logprobs = 1 } }, { hooks = hooks })
    run.face.streams = streams
    run.face.columns = columns and function(_, out, entry) return { out.index .. entry.id } end
    run.prompts[1].words, run.entry = nil, nil
    run.app.models.find = function() return { name = "m", batch = run.batch } end
    async.run(function() run:generate { silent = not streams } end)
    local seq = run.batch.given[1][1]
    run.batch.given[1].on_token({ id = 4, text = "a", logprob = -1 }, seq)
    local out = seq.output
    local fresh, held = #out:take_logprobs(), run.held
    finish(run.batch, 1, 1)
    return { fresh, #out.logprobs, out.written[1] and out.written[1][1], held }
  end
  local function hook() end
  t.eq(kept(true, {}), { 1, 0, nil, 0 }) -- sent with the chunk, and forgotten
  t.eq(kept(true, { generate = hook }), { 1, 1, nil, 1024 })
  t.eq(kept(false, {}, true), { 0, 0, "04", 50 })
  t.eq(kept(false, {}), { 1, 1, nil, 1024 })
  t.eq(kept(false, { generate = hook }, true), { 1, 1, nil, 1024 })
  t.eq(kept(false, { respond = hook }, true), { 1, 1, nil, 1024 })
end)

test("scripts that were attached watch the sequences", function(t)
  local run, joined = run_of({ n = 2 }), {}
  run.attached = { {} }
  run.req.scripts.watch = function(req, attached, request, about)
    t.ok(req == run.req and attached == run.attached and request.n == 2)
    t.eq({ about.vocabulary, about.context }, { 9, 100 })
    local list = {}
    for i = 1, 2 do
      list[i] = { join = function(_, seq) joined[i] = seq.id end }
    end
    return list
  end
  task(t, function() run:generate {} end)
  t.eq(joined, { 11, 12 })
end)

-- ---- requests -----------------------------------------------------------------------------------

test("a request is completed with what HTTP knows of it", function(t)
  local given = { path = "/v1/x", headers = { a = "b" }, peer = "::1", started = 5,
    key = { name = "k" } }
  local req = pipeline.request({ id = "cmpl-" }, given)
  t.match(req.id, "^cmpl%-" .. ("%x"):rep(24) .. "$")
  t.eq({ req.path, req.headers, req.peer, req.key, req.started, req.n, req.sampling, req.ctx,
    req.tag, req.attached }, { "/v1/x", { a = "b" }, "::1", "k", 5, 1, {}, {}, {}, {} })
  t.near(req.received, os.time(), 2)
  req = pipeline.request({ id = "", n = 3, sampling = { top_k = 1 } }, {})
  t.eq({ req.n, req.sampling, req.key, req.started > 0 }, { 3, { top_k = 1 }, nil, true })
  req:attach "a"
  req:attach("b", { x = 1 })
  t.eq(req.attached, { { name = "a", params = {} }, { name = "b", params = { x = 1 } } })
  t.raises(function() req:attach(5) end, "attach: expected the name of a script, got number")
  t.raises(function() req:attach() end, "attach: expected the name of a script, got nil")
  t.eq(#req.attached, 2)
end)

test("a request is cancelled by its id and key", function(t)
  local run = run_of { key = "k" }
  local app = { live = { id = run } }
  t.eq({ pipeline.cancel(app, "other", "k"), pipeline.cancel(app, "id", "x"),
    pipeline.cancel(app, "id"), run.cancelled }, { false, false, false })
  t.eq({ pipeline.cancel(app, "id", "k"), run.cancelled, run.gone }, { true, true })
  pipeline.gone(app, "other")
  t.eq(run.gone, nil)
  pipeline.gone(app, "id")
  t.eq(run.gone, true)
  t.eq({ pipeline.cancel({}, "id"), pipeline.gone({}, "id") }, { false })
end)
