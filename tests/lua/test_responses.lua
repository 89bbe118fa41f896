-- The Responses API over a real socket, with moonlet: the same answers as chat
-- completions give, as items and events; and what is kept.
local apiapp = require "apiapp"
local async = require "lib.async"
local harness = require "harness"
local perigee = require "perigee"
local pictures = require "picture_files"
local text = require "lib.text"
local json = perigee.json

local forced, registered = ..., 0

--- Under forced collection the first few are enough: what they have in common is what takes long.
local function test(name, body)
  registered = registered + 1
  if not forced or registered <= 3 then harness.test(name, body) end
end

local few = forced or os.getenv "SAN"
local PATH, CHAT = "/v1/responses", "/v1/chat/completions"

local answers = {}
for _, a in ipairs(assert(json.decode(assert(text.read_file "examples/moonlet/answers.json")))) do
  if #a.grids == 0 and a.margin > 0.05 then answers[#answers + 1] = a end
end

-- ---- translating what chat completions take -----------------------------------------------------

--- The messages of a conversation as items.
local function items_of(messages)
  local list = json.array()
  for _, m in ipairs(messages) do
    if m.role == "tool" then
      list[#list + 1] = { type = "function_call_output", call_id = m.tool_call_id or "c",
        output = m.content }
    elseif m.content and m.content ~= json.null and m.content ~= "" then
      list[#list + 1] = { role = m.role, content = m.content }
    end
    for _, call in ipairs(m.tool_calls or {}) do
      local fn = call["function"] or call
      list[#list + 1] = { type = "function_call", call_id = call.id or "c", name = fn.name,
        arguments = type(fn.arguments) == "string" and fn.arguments or json.encode(fn.arguments) }
    end
  end
  return list
end

local function tools_of(tools)
  if not tools then return nil end
  local list = json.array()
  for i, tool in ipairs(tools) do
    local flat = json.object { { "type", "function" } }
    for key, value in pairs(tool["function"]) do flat[key] = value end
    list[i] = flat
  end
  return list
end

local function request_of(a, more)
  local body = { input = items_of(a.messages), tools = tools_of(a.tools), temperature = 0,
    max_output_tokens = 400, chat_template_kwargs = a.chat_template_kwargs }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local function chat_of(a)
  return { messages = a.messages, tools = a.tools, temperature = 0, max_tokens = 400,
    chat_template_kwargs = a.chat_template_kwargs }
end

--- What a response says: { content, reasoning, calls }.
local function meaning(response)
  local r = { content = "", reasoning = "", calls = {} }
  for _, item in ipairs(response.output) do
    if item.type == "message" then r.content = r.content .. item.content[1].text end
    if item.type == "reasoning" then r.reasoning = r.reasoning .. item.summary[1].text end
    if item.type == "function_call" then
      r.calls[#r.calls + 1] = { name = item.name, arguments = item.arguments }
    end
  end
  return r
end

local function chat_meaning(answer)
  local message = answer.choices[1].message
  local r = { content = message.content ~= json.null and message.content or "",
    reasoning = message.reasoning_content or "", calls = {} }
  for i, call in ipairs(message.tool_calls or {}) do
    r.calls[i] = { name = call["function"].name, arguments = call["function"].arguments }
  end
  return r
end

-- ---- events -------------------------------------------------------------------------------------

local DELTAS = { ["response.output_text.delta"] = "text", ["response.function_call_arguments.delta"]
  = "arguments", ["response.custom_tool_call_input.delta"] = "input",
  ["response.reasoning_summary_text.delta"] = "text" }

--- The text of an item.
local function text_of(item)
  return item.arguments or item.input or (item.content or item.summary)[1].text
end

--- Checks the rules of a stream; returns its last response and the kinds of its events.
local function sound(t, events)
  local kinds, open, at, said, done = {}, nil, -1, {}, {}
  for i, e in ipairs(events) do
    kinds[i] = e.type:match "^response%.(.*)$"
    t.eq(e.sequence_number, i - 1, "number")
    if e.response then t.eq(e.response.id, events[1].response.id) end
    if e.type == "response.output_item.added" then
      t.eq({ open, e.output_index }, { nil, at + 1 }, "one item at a time")
      open, at, said = e.item, e.output_index, {}
    elseif e.type == "response.output_item.done" then
      t.eq({ e.item.id, e.output_index }, { open.id, at })
      t.eq(table.concat(said), text_of(e.item), "deltas and their sum")
      done[#done + 1], open = e.item, nil
    elseif e.item_id then
      t.eq({ e.item_id, e.output_index }, { open.id, at })
      if DELTAS[e.type] then said[#said + 1] = e.delta end
    end
  end
  t.eq({ kinds[1], kinds[2], open }, { "created", "in_progress" })
  local last = events[#events].response
  t.eq(json.encode(last.output), json.encode(json.array(done)), "output of the last event")
  return last, kinds
end



--- A request that does not end by itself.
local function endless(more)
  local body = { input = "Tell me a story.", ignore_eos = true, max_output_tokens = 4000 }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local function by(key) return { ["x-test-key"] = key } end

-- ---- answers ------------------------------------------------------------------------------------

test("the same prompts, tokens and answers as chat completions, whole and streamed", function(t)
  apiapp.run(t, function(app)
    local some, n = few and table.move(answers, 1, 3, 1, {}) or answers, 0
    for _, a in ipairs(some) do
      local _, chat = app:ask(CHAT, chat_of(a))
      local status, whole = app:ask(PATH, request_of(a))
      t.eq(status, 200, a.name)
      t.eq({ whole.object, whole.status, whole.model }, { "response", "completed", "moonlet" })
      t.eq(meaning(whole), chat_meaning(chat), a.name)
      t.eq({ whole.usage.input_tokens, whole.usage.output_tokens, whole.usage.total_tokens },
        { #a.prompt_ids, #a.ids, #a.prompt_ids + #a.ids }, a.name)
      local streamed = sound(t, assert(app:events(PATH, request_of(a))))
      t.eq(meaning(streamed), meaning(whole), a.name)
      t.ok(streamed.usage.input_tokens_details.cached_tokens > 0, a.name)
      local _, counted = app:ask(PATH .. "/input_tokens", request_of(a))
      t.eq({ counted.object, counted.input_tokens }, { "response.input_tokens", #a.prompt_ids })
      n = n + 1
    end
    t.ok(n >= 3)
  end)
end)

local PARIS = { reasoning = "I need it.", content = "I look.", calls = {
  { id = "call_1", name = "get_weather", arguments = '{"city": "Paris"}' },
  { id = "call_2", name = "patch", arguments = '{"input": "*** Begin\\n"}' },
  { id = "call_3", name = "close", arguments = "{}" } }, finish = "tool_calls" }

local OFFERED = { { type = "function", name = "get_weather", parameters = json.object {} },
  { type = "custom", name = "patch" }, { type = "web_search" },
  { type = "namespace", name = "team", tools = { { type = "function", name = "close" } } } }

test("items and events: reasoning, text, a call, a custom call, one of a namespace", function(t)
  apiapp.run(t, function(app)
    local body = { input = "x", tools = OFFERED, include = { "reasoning.encrypted_content" },
      metadata = { a = "b" }, user = "u", service_tier = "flex", reasoning = { effort = "low" } }
    local last, kinds = sound(t, assert(app:events(PATH, body)))
    t.eq(kinds, { "created", "in_progress",
      "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
      "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
      "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
      "content_part.done", "output_item.done",
      "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
      "output_item.done",
      "output_item.added", "custom_tool_call_input.delta", "custom_tool_call_input.done",
      "output_item.done",
      "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
      "output_item.done", "completed" })
    body.stream = nil
    local _, whole = app:ask(PATH, body)
    for _, r in ipairs { last, whole } do
      local o = r.output
      t.eq({ o[1].type, o[2].type, o[3].type, o[4].type, o[5].type }, { "reasoning", "message",
        "function_call", "custom_tool_call", "function_call" })
      t.eq({ o[3].call_id, o[3].arguments, o[3].status },
        { "call_1", '{"city": "Paris"}', "completed" })
      t.eq({ o[4].name, o[4].input, o[4].call_id }, { "patch", "*** Begin\n", "call_2" })
      t.eq({ o[5].name, o[5].namespace }, { "close", "team" })
      t.match(o[1].encrypted_content, "^[%w+/=]+$")
      t.eq({ r.metadata.a, r.user, r.service_tier, r.reasoning.effort, r.store, #r.tools },
        { "b", "u", "flex", "low", true, 4 })
    end
    local list = json.array(whole.output) -- comes back as it was sent
    list[#list + 1] = { type = "function_call_output", call_id = "call_1", output = "sunny" }
    local _, counted = app:ask(PATH .. "/input_tokens", { input = list, tools = OFFERED })
    t.ok(counted.input_tokens > 0)
  end, { hooks = { { generate = function() return PARIS end } } })
end)

test("an answer that ends early, fails, or says nothing", function(t)
  apiapp.run(t, function(app)
    local last, kinds = sound(t, assert(app:events(PATH, { input = "Hello!",
      max_output_tokens = 3 })))
    t.eq({ kinds[#kinds], last.status, last.incomplete_details.reason, last.output[1].status },
      { "incomplete", "incomplete", "max_output_tokens", "incomplete" })
    local all = json.array()
    for id = 0, 2303 do all[id + 1] = id end
    local status, answer = app:ask(PATH, { input = "Hello!", banned = all })
    t.eq(status, 400)
    t.match(answer.error.message, "leave no token")
    last, kinds = sound(t, assert(app:events(PATH, { input = "Hello!", banned = all })))
    t.eq({ kinds[#kinds], last.status }, { "failed", "failed" })
    t.match(last.error.message, "leave no token")
    local long = ("word "):rep(9000)
    status, answer = app:ask(PATH, { input = long })
    t.eq({ status, answer.error.code, answer.error.param },
      { 400, "context_length_exceeded", "input" })
    last, kinds = sound(t, assert(app:events(PATH, { input = long })))
    t.eq({ #kinds, kinds[3], last.error.code }, { 3, "failed", "context_length_exceeded" })
    local silent = sound(t, assert(app:events(PATH, { input = "x", user = "silent" })))
    t.eq({ silent.status, #silent.output, silent.output[1].content[1].text },
      { "completed", 1, "" })
  end, { hooks = { { generate = function(req, run)
    if req.user == "silent" then return { text = "" } end
    return run(req)
  end } } })
end)

test("a call that is cut off is incomplete", function(t)
  apiapp.run(t, function(app)
    local cut = 0
    for _, a in ipairs(answers) do
      if a.name == "tool_weather" then
        for most = 12, #a.ids - 3 do
          local last = sound(t, assert(app:events(PATH, request_of(a,
            { max_output_tokens = most }))))
          t.eq(last.status, "incomplete")
          for _, item in ipairs(last.output) do
            cut = cut + (item.status == "incomplete" and 1 or 0)
            if item.status == "completed" then t.ok(json.decode(item.arguments)) end
          end
        end
      end
    end
    t.ok(cut > 3, "calls that were cut off")
  end)
end)

test("logprobs count as memory of the answer", function(t)
  apiapp.run(t, function(app)
    local body = { input = "What is 48 + 37?", temperature = 0, top_logprobs = 3,
      include = { "message.output_text.logprobs" } }
    t.eq((app:ask(PATH, body)), 200)
    local others = (512 << 20) - 100 -- those of one token have more
    app.held_answers = others
    local status, answer = app:ask(PATH, body)
    t.eq({ status, answer.error.code }, { 503, "answer_too_large" })
    t.eq(app.held_answers, others)
    app.held_answers = 0
  end)
end)

--- What chat completions say about the tokens of an answer, as this API has it.
local function chat_logprobs(app, more)
  local _, answer = app:ask(CHAT, { messages = { { role = "user", content = "What is 48 + 37?" } },
    temperature = 0, logprobs = true, top_logprobs = 3, chat_template_kwargs = more })
  return answer.choices[1].logprobs.content, answer.choices[1].message
end

test("logprobs of the text, whole, in deltas and at the end; not of the reasoning", function(t)
  apiapp.run(t, function(app)
    for _, thinks in ipairs { false, true } do
      local kwargs = { enable_thinking = thinks }
      local all, message = chat_logprobs(app, kwargs)
      local body = { input = "What is 48 + 37?", temperature = 0, chat_template_kwargs = kwargs,
        top_logprobs = 3, include = { "message.output_text.logprobs" } }
      local status, whole = app:ask(PATH, body)
      t.eq(status, 200, json.encode(whole))
      local part = whole.output[#whole.output].content[1]
      t.eq({ part.text, whole.top_logprobs }, { message.content, 3 })
      local bytes = {}
      for i, entry in ipairs(part.logprobs) do
        bytes[i] = entry.token
        t.eq(entry, all[#all - #part.logprobs + i])
        t.eq(#entry.top_logprobs, 3)
      end
      t.eq(table.concat(bytes), message.content)
      local streamed, last = json.array(), nil
      for _, event in ipairs(app:events(PATH, body)) do
        if event.type == "response.output_text.delta" then
          table.move(event.logprobs, 1, #event.logprobs, #streamed + 1, streamed)
        elseif event.type == "response.output_text.done" then
          t.eq(event.logprobs, part.logprobs)
        elseif event.type == "response.content_part.done" then
          t.eq(event.part.logprobs, part.logprobs)
        end
        last = event
      end
      t.eq(streamed, part.logprobs)
      local response = last.response
      t.eq(response.output[#response.output].content[1].logprobs, part.logprobs)
      local _, fetched = app:ask(PATH .. "/" .. response.id, nil, { method = "GET" })
      t.eq(fetched.output, response.output)
      body.top_logprobs, body.stream = nil, nil
      _, whole = app:ask(PATH, body)
      t.eq(whole.output[#whole.output].content[1].logprobs[1].top_logprobs, json.array())
      body.include, body.top_logprobs = nil, 0
      _, whole = app:ask(PATH, body)
      t.eq(whole.output[#whole.output].content[1].logprobs, json.array())
    end
  end)
end)

test("reasoning comes back: sealed or as a summary, the same prompt", function(t)
  apiapp.run(t, function(app)
    local a
    for _, one in ipairs(answers) do a = one.name == "think_sum" and one or a end
    local _, first = app:ask(PATH, request_of(a, { store = false,
      include = { "reasoning.encrypted_content" } }))
    t.eq(first.output[1].type, "reasoning")
    local function tokens(reasoning)
      local input = items_of(a.messages)
      input[#input + 1] = reasoning
      input[#input + 1] = first.output[2]
      local _, counted = app:ask(PATH .. "/input_tokens", { input = input })
      return counted.input_tokens
    end
    local sealed = first.output[1].encrypted_content
    local with = tokens(first.output[1])
    t.eq(tokens { type = "reasoning", summary = json.array(), content = json.null,
      encrypted_content = sealed }, with)
    local _, chat = app:ask("/tokenize", { messages = { a.messages[1], { role = "assistant",
      content = first.output[2].content[1].text,
      reasoning_content = first.output[1].summary[1].text } } })
    t.eq(chat.count, with, "as chat completions have it")
    local flipped = (sealed:sub(9, 9) == "A" and "B" or "A")
    local without = tokens { type = "reasoning", summary = json.array(),
      encrypted_content = sealed:sub(1, 8) .. flipped .. sealed:sub(10) }
    t.eq(without, tokens { type = "web_search_call" }, "changed: as if absent")
  end)
end)

-- ---- what is kept -------------------------------------------------------------------------------

test("a conversation goes on from its last response, for its own key", function(t)
  apiapp.run(t, function(app)
    local _, first = app:ask(PATH, { input = "My name is Chris.", instructions = "Be kind.",
      temperature = 0 }, { headers = by "mine" })
    local second = { previous_response_id = first.id, input = "What is my name?",
      temperature = 0, max_output_tokens = 30 }
    local _, answer = app:ask(PATH, second, { headers = by "mine" })
    t.eq({ answer.status, answer.previous_response_id, answer.instructions },
      { "completed", first.id, json.null })
    local _, chat = app:ask(CHAT, { temperature = 0, max_tokens = 30, messages = {
      { role = "user", content = "My name is Chris." },
      { role = "assistant", content = meaning(first).content },
      { role = "user", content = "What is my name?" } } })
    t.eq(meaning(answer), chat_meaning(chat))
    t.eq(answer.usage.input_tokens, chat.usage.prompt_tokens, "instructions are not inherited")
    local _, third = app:ask(PATH, { previous_response_id = answer.id, input = "And mine?",
      max_output_tokens = 1 }, { headers = by "mine" })
    t.ok(third.usage.input_tokens > answer.usage.input_tokens, "a chain of two")
    for _, key in ipairs { "other", "" } do
      local status, err = app:ask(PATH, second, { headers = key ~= "" and by(key) or nil })
      t.eq({ status, err.error.code, err.error.param, err.error.type },
        { 404, "previous_response_not_found", "previous_response_id", "invalid_request_error" })
      t.eq(err.error.message, ("Previous response with id '%s' not found."):format(first.id))
      t.eq((app:ask(PATH .. "/" .. first.id, nil, { method = "GET", headers = by(key) })), 404)
    end
    local _, unkept = app:ask(PATH, { input = "x", store = false, max_output_tokens = 1 })
    t.eq((app:ask(PATH .. "/" .. unkept.id, nil, { method = "GET" })), 404)
    local reference = { { role = "user", content = "Hello!" },
      { type = "item_reference", id = first.output[1].id }, { role = "user", content = "Again" } }
    local status, err = app:ask(PATH, { input = reference, max_output_tokens = 1 })
    t.eq({ status, err.error.param }, { 404, "input[1].id" })
    t.eq((app:ask(PATH, { input = reference, max_output_tokens = 1 },
      { headers = by "mine" })), 200)
  end)
end)

test("a response is fetched, listed and deleted", function(t)
  apiapp.run(t, function(app)
    local _, made = app:ask(PATH, { input = { { role = "user", content = "one" },
      { role = "assistant", content = "two" }, { role = "user", content = { { type = "input_text",
      text = "three" } } } }, max_output_tokens = 2 })
    local path = PATH .. "/" .. made.id
    local status, kept = app:ask(path, nil, { method = "GET" })
    t.eq({ status, json.encode(kept) }, { 200, json.encode(made) })
    local function list(query)
      local code, page = app:ask(path .. "/input_items" .. query, nil, { method = "GET" })
      local said = {}
      for i, item in ipairs(page.data or {}) do said[i] = item.content[1].text end
      return code, table.concat(said, " "), page
    end
    local code, said, page = list "?order=asc&limit=2"
    t.eq({ code, said, page.has_more, page.object }, { 200, "one two", true, "list" })
    local _, rest, last = list("?order=asc&limit=2&after=" .. page.last_id)
    t.eq({ rest, last.has_more }, { "three", false })
    t.eq(select(3, list "?limit=3").has_more, false)
    t.eq(select(2, list ""), "three two one")
    t.eq(page.data[2].content[1].type, "output_text")
    for _, query in ipairs { "?limit=0", "?limit=x", "?order=up", "?after=nobody" } do
      t.eq((list(query)), 400, query)
    end
    t.eq((app:ask(path .. "?stream=true", nil, { method = "GET" })), 400)
    t.eq((app:ask(path .. "/cancel", "")), 400)
    local _, gone = app:ask(path, nil, { method = "DELETE" })
    t.eq({ gone.id, gone.deleted }, { made.id, true })
    t.eq((app:ask(path, nil, { method = "GET" })), 404)
    t.eq((app:ask(path, nil, { method = "DELETE" })), 404)
    local code426, err = app:ask(PATH, nil, { method = "GET", headers = { upgrade = "websocket",
      connection = "Upgrade" } })
    t.eq({ code426, err.error.code }, { 426, "websocket_unsupported" })
  end)
end)

test("long pictures are kept with a response, and shown again by the next one", function(t)
  apiapp.run(t, function(app)
    local uri = pictures.uri(pictures.plain(224, 224, 255, 0, 0))
    local input = { { role = "user", content = { { type = "input_text", text = "What is it?" },
      { type = "input_image", image_url = uri } } } }
    local _, first = app:ask(PATH, { input = input, max_output_tokens = 4 })
    t.ok(first.usage.input_tokens > 40, "the picture's tokens")
    local _, page = app:ask(PATH .. "/" .. first.id .. "/input_items", nil, { method = "GET" })
    t.ok(page.data[1].content[2].image_url == uri)
    local _, next_one = app:ask(PATH, { previous_response_id = first.id, input = "And now?",
      max_output_tokens = 4 })
    t.ok(next_one.usage.input_tokens > first.usage.input_tokens)
    app:says "A picture."
    local _, small = app:ask(PATH .. "/compact", { input = input })
    app:says(nil)
    t.ok(small.output[1].content[2].image_url == uri)
    input[2] = { type = "function_call", call_id = "c", name = "look", arguments = "{}" }
    input[3] = { type = "function_call_output", call_id = "c", output = { { type = "input_image",
      image_url = uri } } }
    local status, two = app:ask(PATH, { input = input, max_output_tokens = 4 })
    t.eq({ status, two.status }, { 200, "incomplete" })
    local code, err = app:ask(PATH, { input = { { role = "user", content = { { type =
      "input_image", image_url = "data:image/png;base64,@@" } } } } })
    t.eq({ code, err.error.param }, { 400, "input[0].content[0].image_url" })
  end)
end)

test("a conversation is compacted, and goes on from what came of it", function(t)
  apiapp.run(t, function(app)
    local _, first = app:ask(PATH, { input = "My name is Chris.", max_output_tokens = 20 })
    app:says "Chris said hello."
    local status, small = app:ask(PATH .. "/compact", { previous_response_id = first.id,
      input = "Hello!", tools = { { type = "function", name = "f" } } })
    t.eq({ status, small.object, #small.output }, { 200, "response.compaction", 3 })
    t.eq({ small.output[1].role, small.output[1].content[1].text, small.output[2].content[1].text,
      small.output[3].type }, { "user", "My name is Chris.", "Hello!", "compaction" })
    t.ok(small.usage.output_tokens > 3)
    local function tokens(input)
      return (select(2, app:ask(PATH .. "/input_tokens", { input = input }))).input_tokens
    end
    local with = tokens(small.output)
    t.ok(with > tokens { small.output[1], small.output[2] }, "the summary is in the prompt")
    local next_one = json.array(small.output)
    next_one[4] = { role = "user", content = "Go on." }
    t.eq((app:ask(PATH, { input = next_one, max_output_tokens = 1 })), 200)
    -- A summary is text, whatever form and stream the answers of the conversation have.
    local other
    status, other = app:ask(PATH .. "/compact", { previous_response_id = first.id, stream = true,
      input = "Hello!", text = { format = { type = "json_object" } } })
    t.eq({ status, other.object, tokens(other.output) }, { 200, "response.compaction", with })
    local code, err = app:ask(PATH .. "/compact", { input = 5 })
    t.eq({ code, err.error.param }, { 400, "input" })
  end)
end)

test("in the background: queued, fetched when it is done, cancelled", function(t)
  apiapp.run(t, function(app)
    local _, queued = app:ask(PATH, { input = "Hello!", background = true, temperature = 0 })
    t.eq({ queued.status, queued.background, #queued.output }, { "queued", true, 0 })
    local now
    apiapp.wait_for(t, "its answer", function()
      now = select(2, app:ask(PATH .. "/" .. queued.id, nil, { method = "GET" }))
      return now.status == "completed"
    end)
    t.eq(meaning(now).content, "Hello! I am Moonlet. How can I help you?")
    local _, long = app:ask(PATH, endless { background = true }, { headers = by "mine" })
    local path = PATH .. "/" .. long.id
    apiapp.wait_for(t, "it runs", function() return app.entry.batch.alive == 1 end)
    t.eq((app:ask(path .. "/cancel", "")), 404, "of another key")
    local status, ended = app:ask(path .. "/cancel", "", { headers = by "mine" })
    t.eq({ status, ended.status }, { 200, "cancelled" })
    t.eq(app.entry.batch.alive, 0)
    t.eq((app:ask(path .. "/cancel", "", { headers = by "mine" })), 200, "again")
    local _, wrong = app:ask(PATH, { input = ("word "):rep(9000), background = true })
    apiapp.wait_for(t, "its failure", function()
      now = select(2, app:ask(PATH .. "/" .. wrong.id, nil, { method = "GET" }))
      return now.status == "failed"
    end)
    t.eq(now.error.code, "context_length_exceeded")
    local code, err = app:ask(PATH, { input = "x", background = true, store = false })
    t.eq({ code, err.error.param }, { 400, "store" })
  end)
end)

test("30 tool loops at once are the same as one by one", function(t)
  local a, result
  for _, one in ipairs(answers) do
    a = one.name == "tool_weather" and one or a
    result = one.name == "tool_result" and one or result
  end
  apiapp.run(t, function(app)
    local function loop(i)
      local ask = function(body)
        if i % 2 == 0 then return (sound(t, assert(app:events(PATH, body)))) end
        return (select(2, app:ask(PATH, body)))
      end
      local first = ask(request_of(a, { store = i % 3 > 0 }))
      local output = { type = "function_call_output", call_id = first.output[1].call_id,
        output = result.messages[3].content }
      local body = request_of(a, { input = { output }, previous_response_id = first.id })
      if i % 3 == 0 then -- without state
        body.previous_response_id, body.input = nil, items_of(a.messages)
        table.insert(body.input, first.output[1])
        table.insert(body.input, output)
      end
      local last = ask(body)
      return { meaning(first), meaning(last), last.usage.input_tokens }
    end
    local alone = loop(1)
    t.eq(alone[2].content, result.text)
    local work = {}
    for i = 1, few and 6 or 30 do work[i] = function() return loop(i) end end
    for i, r in ipairs(async.all(work)) do t.eq(r, alone, "loop " .. i) end
  end)
end)

test("a stream that broke is asked for again without one", function(t)
  apiapp.run(t, function(app)
    local body = { input = "Hello!", temperature = 0 }
    local _, want = app:ask(PATH, body)
    for most = 1, 6 do
      local seen = 0
      body.stream = true
      app:ask(PATH, body, { on_data = function() seen = seen + 1; return seen < most end })
      body.stream = nil
      local status, again = app:ask(PATH, body)
      t.eq({ status, meaning(again) }, { 200, meaning(want) })
    end
    apiapp.wait_for(t, "nothing is left", function() return next(app.live) == nil end)
  end)
end)

test("a client that leaves ends its response, unless it runs in the background", function(t)
  apiapp.run(t, function(app)
    local function leave(body)
      local id
      body.stream = true
      app:ask(PATH, body, { on_data = function(data)
        id = id or data:match '"id":"(resp_%w+)"'
        return not data:find("output_text.delta", 1, true)
      end })
      return id
    end
    local id = leave(endless())
    apiapp.wait_for(t, "its sequence is free", function() return app.entry.batch.alive == 0 end)
    t.eq((app:ask(PATH .. "/" .. id, nil, { method = "GET" })), 404)
    id = leave { input = "Tell me a story.", ignore_eos = true, max_output_tokens = 60,
      background = true }
    local now
    apiapp.wait_for(t, "its end", function()
      now = select(2, app:ask(PATH .. "/" .. id, nil, { method = "GET" }))
      return now.status == "incomplete"
    end)
    t.eq(now.usage.output_tokens, 60)
    apiapp.wait_for(t, "nothing is left", function() return next(app.live) == nil end)
  end)
end)
