-- pipeline.serve on a batch, a model and hooks that are made up here: the whole way of a request,
-- what it leaves behind, and who gets to know when something fails.
local batches = require "fake_batch"
local errors = require "lib.errors"
local pipeline = require "pipeline"

local finish, task, test = batches.finish, batches.task, batches.test

--- Serves a request in a task whose scripts have these hooks. Returns a table that fills up: said
--- (to the client), notes (the log), result and err of pipeline.serve, the run, its batch, and how
--- often the scripts were retained and released.
local function serve(t, fields, o)
  o = o or {}
  local hooks = o.hooks or {}
  local seen = { said = {}, notes = {}, users = 0, done = {} }
  local scripts = { retain = function(self)
    seen.users = seen.users + 1
    return self
  end, release = function() seen.users = seen.users - 1 end,
    has = function(_, phase) return hooks[phase] ~= nil end,
    call = function(_, phase, ...) return hooks[phase](...) end,
    wait = function(_, phase, ...) return hooks[phase](...) end,
    attached = function() return o.attached, o.no_script end }
  if not o.no_script then o.attached = {} end
  local batch = batches.new()
  batch.alive, batch.sequences = 0, function() return {} end
  batch.stats = function() return { prefill_tokens = 0, decode_tokens = 0 } end
  local entry = { name = "m", batch = batch, model = { weights = { check = function(_, resume)
    resume(not o.damaged or nil, o.damaged)
  end } } }
  local app = { scripts = { current = function() return scripts end }, keys = {},
    config = { queue = { requests = 10, memory = 4.0 }, limits = {} },
    log = { note = function(_, level, text) table.insert(seen.notes, level .. ": " .. text) end },
    models = { find = function(_, name)
      if name == "bug" then error("a bug", 0) end
      if name == "none" then return nil, errors.new { status = 404, message = "no such model" } end
      return entry
    end } }
  local face = { streams = o.streams or false,
    begin = function() table.insert(seen.said, "begin") end,
    delta = function(_, out, deltas) table.insert(seen.said, out.index .. deltas[1].text) end,
    finish = function(_, out) table.insert(seen.said, out.index .. out.finish) end,
    answer = function(_, list, usage)
      local texts = {}
      for i, out in ipairs(list) do texts[i] = out.index .. (out.content or "") end
      table.insert(seen.said, "answer " .. table.concat(texts, " ") .. ", "
        .. usage.completion_tokens)
    end,
    fail = function(_, err) table.insert(seen.said, "fail " .. err.message) end }
  local req = pipeline.request({ id = "id-", model = "m", prompts = { { 1, 2 } }, api = "x" }, {})
  for key, value in pairs(fields) do req[key] = value end
  seen.req, seen.app, seen.batch = req, app, batch
  task(t, function()
    seen.result, seen.err = pipeline.serve(app, req, face, {})
    seen.over = true
  end)
  for _, run in pairs(app.live) do seen.run = run end
  return seen
end

--- Lets the n-th request of a batch answer with these texts and logprobs.
local function reply(seen, n, texts, logprobs)
  local request = seen.batch.given[n]
  for i, text in ipairs(texts) do
    request.on_token({ id = i, text = text, logprob = logprobs and logprobs[i] or -1.0 },
      request[i])
    finish(seen.batch, n, i, { finish = text == "error" and "error" or "stop",
      error = text == "error" and "it broke" or nil, cached_tokens = 1 })
  end
end

test("a request is answered, and nothing of it is left", function(t)
  local seen = serve(t, { n = 2 })
  t.eq({ seen.app.live[seen.req.id] == seen.run, seen.users, seen.said }, { true, 1, { "begin" } })
  t.eq({ seen.req.tag, seen.req.ids, seen.req.all_ids, seen.req.prompt_tokens },
    { { model = "m", api = "x" }, { 1, 2 }, { { 1, 2 } }, 2 })
  reply(seen, 1, { "x", "y" })
  t.eq({ seen.said, seen.result, seen.err, seen.users, next(seen.app.live), seen.notes,
    seen.app.held_answers }, { { "begin", "answer 0x 1y, 2" }, true, nil, 0, nil, {}, 0 })
  t.eq({ seen.run.log.finish, seen.run.log.completion_tokens }, { "stop", 2 })
  seen = serve(t, { prompts = { { 1, 2 }, { 3 } } })
  t.eq({ seen.req.prompt_tokens, seen.req.ids, #seen.req.all_ids }, { 3, { 1, 2 }, 2 })
  reply(seen, 1, { "x" })
  reply(seen, 2, { "y" })
  t.eq(seen.said, { "begin", "answer 0x 1y, 2" })
end)

test("the best answers of each prompt", function(t)
  local seen = serve(t, { n = 1, best_of = 3, prompts = { { 1 }, { 2 } } })
  reply(seen, 1, { "a", "b", "c" }, { -2.0, -1.0, -3.0 })
  reply(seen, 2, { "d", "e", "f" }, { -2.0, -2.5, -0.5 })
  t.eq(seen.said, { "begin", "answer 0b 1f, 6" }) -- all that was generated counts
  seen = serve(t, { n = 2, best_of = 3 })
  reply(seen, 1, { "a", "b", "c" }, { -2.0, -1.0, -1.0 })
  t.eq(seen.said, { "begin", "answer 0b 1c, 3" })
end)

test("refusals before anything was sent are returned, faults are noted", function(t)
  local function refused(fields, o)
    local seen = serve(t, fields, o)
    t.eq({ seen.over, seen.result, next(seen.app.live), seen.users, seen.said },
      { true, nil, nil, 0, {} })
    return seen.err, seen
  end
  local err, seen = refused { model = "none" }
  t.eq({ err.status, seen.notes }, { 404, {} })
  err, seen = refused { model = "bug" }
  t.eq({ err.status, seen.notes }, { 500, { "error: " .. seen.req.id .. ": a bug" } })
  err = refused({}, { no_script = "no such script" })
  t.eq({ err.status, err.field, err.message }, { 400, "perigee", "no such script" })
  for _, phase in ipairs { "request", "admit" } do
    err = refused({}, { hooks = { [phase] = function()
      return errors.new { status = 418, message = phase }
    end } })
    t.eq({ err.status, err.message }, { 418, phase })
  end
  local long = {}
  for i = 1, 81 do long[i] = 1 end
  err = refused { prompts = { { 1 }, long } }
  t.eq({ err.status, err.code, err.field }, { 400, "context_length_exceeded", "prompt" })
end)

test("what `admit` says becomes the tag", function(t)
  local seen = serve(t, { key = "k" }, { hooks = { admit = function(_, queue)
    return { lane = "l" .. queue.running, key = "forged" }
  end } })
  t.eq(seen.req.tag, { lane = "l0", key = "k", model = "m", api = "x" })
  reply(seen, 1, { "x" })
end)

test("failures while an answer is on its way", function(t)
  local seen = serve(t, {})
  reply(seen, 1, { "error" })
  t.eq({ seen.said, seen.result, seen.run.log.finish },
    { { "begin", "fail it broke" }, true, "error" })
  seen = serve(t, {}, { damaged = "the weights were overwritten" })
  reply(seen, 1, { "x" })
  t.eq({ seen.said, seen.result }, { { "begin", "fail the weights were overwritten" }, true })
  seen = serve(t, {})
  pipeline.gone(seen.app, seen.req.id)
  reply(seen, 1, { "x" })
  t.eq({ seen.said, seen.result }, { { "begin" }, true })
  local usage
  seen = serve(t, {}, { hooks = { done = function(_, given) usage = given end } })
  reply(seen, 1, { "x" })
  t.eq({ usage.completion_tokens, seen.users }, { 1, 0 })
end)

test("what hooks make of the answers", function(t)
  local function answers(generate, o, replies)
    o = o or {}
    o.hooks = o.hooks or {}
    o.hooks.generate = generate
    local seen = serve(t, { n = o.n }, o)
    for i = 1, replies or 1 do reply(seen, i, o.n == 2 and { "x", "y" } or { "x" }) end
    return seen.said, seen.notes
  end
  t.eq(answers(function(req, run) return run(req) end), { "begin", "answer 0x, 1" })
  t.eq(answers(function(req, run)
    local made = run(req)
    return { content = made.content .. "!" }
  end), { "begin", "answer 0x!, 1" })
  t.eq(answers(function(req, run)
    t.eq(#run(req), 2) -- several: a list
    return nil
  end, { n = 2 }), { "begin", "answer 0x 1y, 2" })
  t.eq(answers(function(req, run)
    t.eq(#run(req, { n = 1 }), 1) -- asked for by number: a list as well
  end), { "begin", "answer 0x, 1" })
  local said, notes = answers(function(req, run)
    run(req)
    return 5
  end)
  t.eq({ said, #notes }, { { "begin", "answer 0x, 1" }, 1 })
  t.match(notes[1], "`generate` returned a number; it is ignored")
  t.eq(answers(function() return { content = "made" } end, nil, 0), { "begin", "answer 0made, 0" })
  t.eq(answers(function() end), { "begin", "answer 0x, 1" })
  -- A stream: what was sent cannot be replaced.
  said, notes = answers(function(req, run)
    run(req)
    return { content = "other" }
  end, { streams = true })
  t.eq({ said, #notes }, { { "begin", "0x", "0stop", "answer 0x, 1" }, 1 })
  t.match(notes[1], "something other than what was streamed")
  t.eq(answers(function() return { content = "made" } end, { streams = true }, 0),
    { "begin", "0made", "0stop", "answer 0made, 0" })
  -- `respond` may withhold everything.
  local seen = serve(t, {}, { hooks = { respond = function() return {} end } })
  reply(seen, 1, { "x" })
  t.eq(seen.said, { "begin", "fail the answer was withheld" })
  seen = serve(t, { n = 2 }, { hooks = { respond = function(_, d)
    if d.choice == 0 then return {} end
  end } })
  reply(seen, 1, { "x", "y" })
  t.eq(seen.said, { "begin", "answer 1y, 2" })
end)
