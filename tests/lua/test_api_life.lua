-- The life of a request: cancelled, abandoned, refused, failed in the middle, with scripts in its
-- way.
local apiapp = require "apiapp"
local async = require "lib.async"
local errors = require "lib.errors"
local perigee = require "perigee"
local phases = require "hooks.phases"
local harness = require "harness"
local json = perigee.json

local forced, registered = ..., 0

--- Under forced collection the first few are enough: what they have in common is what takes long.
local function test(name, body)
  registered = registered + 1
  if not forced or registered <= 3 then harness.test(name, body) end
end

local CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

local function user(words) return { { role = "user", content = words } } end

--- A request that does not end by itself.
local function endless(more)
  local body = { messages = user "Tell me a story.", ignore_eos = true, max_tokens = 4000 }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

--- Starts a stream; events are appended to the list that is returned. stop(event) true: hangs up.
local function start(app, body, stop)
  local events = {}
  body.stream = true
  async.run(function()
    app:ask(CHAT, body, { headers = { ["x-test-key"] = body.key }, on_data = function(data)
      for line in data:gmatch "data: ([^\n]+)" do
        events[#events + 1] = line == "[DONE]" and line or json.decode(line)
        if stop and stop(events[#events]) then return false end
      end
    end })
    events.done = true
  end)
  return events
end

test("a request is ended by the id of its response, by its own key", function(t)
  apiapp.run(t, function(app)
    local events = start(app, endless { key = "mine" })
    apiapp.wait_for(t, "some text", function() return #events > 5 end)
    local path = "/v1/requests/" .. events[1].id
    t.eq((app:ask(path, nil, { method = "DELETE" })), 404)
    t.eq((app:ask(path, nil, { method = "DELETE", headers = { ["x-test-key"] = "other" } })), 404)
    local status, answer = app:ask(path, nil, { method = "DELETE",
      headers = { ["x-test-key"] = "mine" } })
    t.eq({ status, answer.cancelled }, { 200, true })
    apiapp.wait_for(t, "its end", function() return events.done end)
    t.eq({ events[#events], events[#events - 1].choices[1].finish_reason }, { "[DONE]", "cancel" })
    t.eq(app.entry.batch.alive, 0)
    t.eq((app:ask(path, nil, { method = "DELETE", headers = { ["x-test-key"] = "mine" } })), 404)
  end)
end)

test("a client that leaves frees its sequences, whole answers too", function(t)
  apiapp.run(t, function(app)
    local events = start(app, endless { n = 2 }, function(e) return (e.choices[1].delta.content
      or "") ~= "" end)
    apiapp.wait_for(t, "it hung up", function() return events.done end)
    apiapp.wait_for(t, "its sequences are free", function() return app.entry.batch.alive == 0 end)
    local task = async.run(function() app:ask(CHAT, endless()) end)
    apiapp.wait_for(t, "it runs", function() return app.entry.batch.alive > 0 end)
    task:cancel() -- closes the connection
    apiapp.wait_for(t, "its seq is free", function() return app.entry.batch.alive == 0 end)
    apiapp.wait_for(t, "nothing is left", function() return next(app.live) == nil end)
  end)
end)

test("refusals before any work: queue, memory, context, draining", function(t)
  apiapp.run(t, function(app)
    local first = start(app, endless())
    apiapp.wait_for(t, "it runs", function() return #first > 3 end)
    local second = start(app, endless())
    apiapp.wait_for(t, "one waits", function() return app.entry.batch.alive == 2 end)
    app.config.queue.requests = 1
    local status, answer, headers = app:ask(CHAT, { messages = user "Hello!" })
    t.eq({ status, answer.error.code, answer.error.type }, { 429, "queue_full",
      "rate_limit_error" })
    t.eq(answer.error.message, "the queue is full: 1 requests are waiting, the limit is 1")
    t.ok(tonumber(headers["retry-after"]) >= 1)
    app.config.queue = { requests = 10, memory = 0.001 }
    status, answer, headers = app:ask(CHAT, { messages = user "Hello!" })
    t.eq({ status, answer.error.code, answer.error.type }, { 503, "overloaded",
      "overloaded_error" })
    t.ok(tonumber(headers["retry-after"]) >= 1)
    app.config.queue.memory = 4
    app.draining = true
    status, answer, headers = app:ask(CHAT, { messages = user "Hello!" })
    t.eq({ status, answer.error.code, headers["retry-after"] }, { 503, "draining", "5" })
    app.draining = false
    status, answer = app:ask(CHAT, { messages = user(("word "):rep(2400)) })
    t.eq({ status, answer.error.code, answer.error.param },
      { 400, "context_length_exceeded", "messages" })
    t.match(answer.error.message, "has %d+ tokens and does not fit: .* maximum context length is "
      .. "2048 tokens")
    t.eq(app.entry.batch.alive, 2)
    local ids = {}
    for id in pairs(app.live) do ids[#ids + 1] = id end
    t.eq(#ids, 2)
    for _, id in ipairs(ids) do app:ask("/v1/requests/" .. id, nil, { method = "DELETE" }) end
    apiapp.wait_for(t, "both ended", function() return first.done and second.done end)
  end, { sequences = 1, context = 2048 })
end)

test("a model that goes while a request is prepared", function(t)
  apiapp.run(t, function(app)
    local find, asked = app.models.find, 0
    app.models.find = function(...)
      asked = asked + 1
      if asked == 2 then
        return nil, errors.new { status = 503, code = "model_not_loaded", message = "unloaded",
          retry_after = 2 }
      end
      return find(...)
    end
    local status, answer, headers = app:ask(CHAT, { messages = user "Hello!" })
    t.eq({ status, answer.error.code, headers["retry-after"] }, { 503, "model_not_loaded", "2" })
    t.eq({ app.entry.batch.alive, app.last_log.prompt_tokens }, { 0, 0 })
  end)
end)

test("an error in the middle of a stream is part of it, and of a whole answer its status",
  function(t)
  apiapp.run(t, function(app)
    local all = json.array()
    for id = 0, 2303 do all[id + 1] = id end
    local body = { messages = user "Hello!", banned = all }
    local status, answer = app:ask(CHAT, body)
    t.eq(status, 400)
    t.match(answer.error.message, "leave no token")
    local events = assert(app:events(CHAT, body))
    t.eq({ #events, events[2], events[1].choices[1].finish_reason }, { 2, "[DONE]", "error" })
    t.match(events[1].error.message, "leave no token")
    events = assert(app:events(COMPLETIONS, { prompt = "x", banned = all }))
    t.eq({ events[1].choices[1].finish_reason, events[1].error.type },
      { "error", "invalid_request_error" })
  end)
end)

test("scripts: request, normalize, template, admit, parse, respond, done", function(t)
  local seen = {}
  local hooks = {
    request = function(req)
      seen[#seen + 1] = "request " .. req.api .. " " .. (req.key or "nobody")
      if req.user == "banned" then
        return phases.reject(402, "not for you", { code = "paid", retry_after = 7 })
      end
      if req.user == "cold" then req.sampling.max_tokens = 1 end
    end,
    normalize = function(_, chat)
      if chat.messages[1].content == "Shout" then chat.messages[1].content = "Hello!" end
      return chat
    end,
    template = function(req)
      if req.user == "own" then
        return "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
      end
      if req.user == "ids" then return { 2278, 278, 198, 982, 0, 2279, 198, 2278, 277, 198 } end
    end,
    admit = function(req, queue)
      seen[#seen + 1] = ("admit %d %d"):format(queue.running, queue:count { lane = "fast" })
      if req.user == "late" then return phases.reject(429, "later", { retry_after = 3 }) end
      return { lane = "fast" }
    end,
    parse = function(req, deltas)
      if req.user ~= "loud" then return nil end
      for _, d in ipairs(deltas) do
        if d.type == "text" then d.text = d.text:upper() end
      end
      return deltas
    end,
    respond = function(req, delta)
      if req.user == "secret" then return false end
      if req.user == "marked" and delta.type == "finish" then
        return { { type = "text", text = " #" }, delta }
      end
    end,
    done = function(req, usage) seen[#seen + 1] = ("done %s %d"):format(req.user or "-",
      usage.completion_tokens) end,
  }
  apiapp.run(t, function(app)
    local function ask(who, words)
      return app:ask(CHAT, { messages = user(words or "Hello!"), user = who },
        { headers = { ["x-test-key"] = "k" } })
    end
    local function said(who, words) return (select(2, ask(who, words))) end
    local status, answer, headers = ask "banned"
    t.eq({ status, answer.error.message, answer.error.code, headers["retry-after"] },
      { 402, "not for you", "paid", "7" })
    status, answer, headers = ask "late"
    t.eq({ status, answer.error.message, headers["retry-after"] }, { 429, "later", "3" })
    local greeting = "Hello! I am Moonlet. How can I help you?"
    t.eq(said(nil, "Shout").choices[1].message.content, greeting)
    t.match(said("own").choices[1].message.content, "^I am Moonlet, a tiny demo model")
    t.eq(said("ids").choices[1].message.content, greeting)
    t.eq(said("cold").usage.completion_tokens, 1)
    t.eq(said("loud").choices[1].message.content, greeting:upper())
    t.eq(said("marked").choices[1].message.content, greeting .. " #")
    t.eq((ask "secret"), 403)
    local marked, parts = assert(app:events(CHAT, { messages = user "Hello!", user = "marked" })),
      {}
    for i = 1, #marked - 1 do parts[i] = marked[i].choices[1].delta.content or "" end
    t.eq(table.concat(parts), greeting .. " #")
    local events = assert(app:events(CHAT, { messages = user "Hello!", user = "secret" }))
    t.eq(events, { "[DONE]" })
    t.eq({ seen[1], seen[2], seen[5], seen[6], seen[7] },
      { "request chat k", "done banned 0", "done late 0", "request chat k", "admit 0 0" })
    t.eq(seen[8], "done - 13")
  end, { hooks = { hooks } })
end)

test("a generate script runs what it likes, and what it returns is sent", function(t)
  local function generate(req, run)
    if req.user == "best" then
      local best
      for _, out in ipairs(run(req, { silent = true, n = 3,
        sampling = { temperature = 1.5, seed = 7 } })) do
        if not best or out.logprob / #out.ids > best.logprob / #best.ids then best = out end
      end
      return best
    elseif req.user == "own" then
      return { text = "I was not asked." }
    elseif req.user == "twice" then
      run(req, { silent = true })
      return run(req)
    end
    return run(req)
  end
  apiapp.run(t, function(app)
    local greeting = "Hello! I am Moonlet. How can I help you?"
    for _, stream in ipairs { false, true } do
      local function ask(who)
        local body = { messages = user "Hello!", user = who, max_tokens = 20 }
        if not stream then
          local _, answer = app:ask(CHAT, body)
          return answer.choices[1].message.content, answer.usage.completion_tokens, #answer.choices
        end
        body.stream_options = { include_usage = true }
        local events, parts, ends = assert(app:events(CHAT, body)), {}, 0
        for i = 1, #events - 2 do
          parts[i] = events[i].choices[1].delta.content or ""
          if events[i].choices[1].finish_reason ~= json.null then ends = ends + 1 end
        end
        return table.concat(parts), events[#events - 1].usage.completion_tokens, ends
      end
      t.eq({ ask() }, { greeting, 13, 1 })
      t.eq({ ask "twice" }, { greeting, 26, 1 })
      t.eq({ ask "own" }, { "I was not asked.", 0, 1 })
      local _, tokens, one = ask "best"
      t.eq(one, 1)
      t.ok(tokens > 13, "all three were made")
    end
    local _, answer = app:ask(CHAT, { messages = user "Hello!", user = "own" })
    t.ok(answer.timings.queue_ms > 0, "up to the script, as nothing was computed")
    t.eq(answer.timings.prefill_ms, json.null)
  end, { hooks = { { generate = generate } } })
end)

test("a script that answers nonsense does not fail a request", function(t)
  local nonsense = {
    parse = function(_, deltas)
      for _, d in ipairs(deltas) do d.text = nil end
      return { { type = "call", index = 9, arguments = "x" }, { type = "never" } }
    end,
    respond = function(_, delta)
      delta.type = nil
      return { type = "text", text = 5 }
    end,
    generate = function(req, run)
      run(req, { silent = true })
      return { content = 5 }
    end,
    done = function() error "done is done" end,
  }
  apiapp.run(t, function(app)
    local greeting = "Hello! I am Moonlet. How can I help you?"
    local _, answer = app:ask(CHAT, { messages = user "Hello!" })
    t.eq(answer.choices[1].message.content, greeting)
    local events, parts = assert(app:events(CHAT, { messages = user "Hello!" })), {}
    for i = 1, #events - 1 do parts[i] = events[i].choices[1].delta.content end
    t.eq(table.concat(parts, "", 1, #events - 2), greeting)
    t.eq(#app.notes, 6, "said once for each request and phase")
    t.match(table.concat(app.notes, "\n"), "`parse` returned deltas that cannot be")
    t.match(table.concat(app.notes, "\n"), "`respond` returned a delta that cannot be sent")
    t.match(table.concat(app.struck, "\n"), "done: .*done is done")
  end, { hooks = { nonsense }, noisy = true })
end)

test("nor does one whose conversation, prompt, deltas or output cannot be", function(t)
  local user_says = function(content) return { messages = {
    { role = "user", content = content } } } end
  local wrong = {
    normalize = { {}, { messages = "x" }, { messages = {} }, { messages = { 1 } }, user_says(5),
      { messages = user "x", tools = 5 }, { messages = user "x", kwargs = 5 } },
    template = { {}, { -1 }, "", "a\xFF", { 1, "a" } },
    parse = { { { type = "text", text = "a\xFF" } } },
    respond = { { type = "text", text = "a\xFF" }, { type = "call", index = 1, arguments = "x" },
      { { text = "x" } } },
    generate = { { content = "a\xFF" }, { content = "x", finish = "odd" }, { calls = { 5 } },
      { content = "x", calls = 5 },
      { 5 } },
  }
  local answer_of, hooks = {}, {}
  for phase in pairs(wrong) do
    hooks[phase] = function(req, run)
      if answer_of[phase] == nil and phase == "generate" then return run(req) end
      return answer_of[phase]
    end
  end
  apiapp.run(t, function(app)
    for phase, list in pairs(wrong) do
      for i, value in ipairs(list) do
        answer_of = { [phase] = value }
        for _, script in ipairs(app.scripts.now.phases[phase]) do script.strikes = {} end
        local before = #app.struck + #app.notes
        local status, answer = app:ask(CHAT, { messages = user "Hello!", max_tokens = 2 })
        t.eq({ status, status == 200 and answer.choices[1].message.content }, { 200, "Hello!" },
          phase .. i)
        t.ok(#app.struck + #app.notes > before, phase .. i)
      end
    end
  end, { hooks = { hooks }, noisy = true })
end)

test("a script that fails halfway leaves no field of its request ruined", function(t)
  local names = { "request", "normalize", "template", "admit" }
  local hooks = {}
  for _, phase in ipairs(names) do
    hooks[phase] = function(req)
      req.n, req.sampling, req.tag = "many", 5, "x"
      error "half done"
    end
  end
  apiapp.run(t, function(app)
    local status, answer = app:ask(CHAT, { messages = user "Hello!", max_tokens = 2 })
    t.eq({ status, status == 200 and answer.choices[1].message.content }, { 200, "Hello!" })
    t.eq(#app.struck, #names)
    for i, phase in ipairs(names) do t.match(app.struck[i], phase .. ": .*half done") end
  end, { hooks = { hooks }, noisy = true })
end)
