-- One conversation through three APIs: moonlet itself calls tools, prompts and prefixes are the
-- same, loops run side by side, streams break, and what is refused is said in each dialect.
local apiapp = require "apiapp"
local async = require "lib.async"
local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local json = perigee.json
local test = harness.test

if ... then return end -- once is enough: under forced collection test_api does

local NAME = "get_weather"

--- The two tools that moonlet was trained with, as an API has them: { fields before the name… },
--- the key of the schema. Keys are in the order in which clients send them.
local function tools(before, schema, wrap)
  local list = json.array()
  for i, what in ipairs { "weather", "time" } do
    local tool = json.object(before)
    tool.name = "get_" .. what
    tool.description = ("Get the %s in a city"):format(what)
    tool[schema] = assert(json.decode('{"type": "object", "properties": {"city": '
      .. '{"type": "string"}}, "required": ["city"]}'))
    list[i] = wrap and json.object { { "type", "function" }, { "function", tool } } or tool
  end
  return list
end

local RESULT = '{"city": "%s", "degrees": 21, "sky": "sunny"}'

-- ---- the three ----------------------------------------------------------------------------------
-- Each: path, body(turns, more), said(answer) -> text, calls { { id, name, city } }; usage(answer)
-- -> prompt tokens, cached ones, generated ones. A turn is { user = … }, { calls = …, text = … } or
-- { results = { [id] = … } }.

local apis = {}

apis.chat = { path = "/v1/chat/completions" }

function apis.chat.body(turns)
  local body = { messages = {}, temperature = 0, max_tokens = 60,
    tools = tools({}, "parameters", true) }
  local list = body.messages
  for _, turn in ipairs(turns) do
    if turn.user then list[#list + 1] = { role = "user", content = turn.user } end
    if turn.calls then
      local calls = {}
      for i, call in ipairs(turn.calls) do
        calls[i] = { id = call.id, type = "function", ["function"] = { name = call.name,
          arguments = json.encode { city = call.city } } }
      end
      list[#list + 1] = { role = "assistant", content = "", tool_calls = calls }
    end
    for _, result in ipairs(turn.results or {}) do
      list[#list + 1] = { role = "tool", tool_call_id = result.id, content = result.text }
    end
  end
  return body
end

function apis.chat.said(answer)
  local message, calls = answer.choices[1].message, {}
  for i, call in ipairs(message.tool_calls or {}) do
    calls[i] = { id = call.id, name = call["function"].name,
      city = json.decode(call["function"].arguments).city }
  end
  return message.content ~= json.null and message.content or "", calls
end

function apis.chat.usage(answer)
  local u = answer.usage
  return u.prompt_tokens, u.prompt_tokens_details.cached_tokens, u.completion_tokens
end

apis.messages = { path = "/v1/messages" }

function apis.messages.body(turns)
  local body = { messages = {}, temperature = 0, max_tokens = 60,
    tools = tools({}, "input_schema") }
  local list = body.messages
  for _, turn in ipairs(turns) do
    if turn.user then list[#list + 1] = { role = "user", content = turn.user } end
    local blocks = {}
    for i, call in ipairs(turn.calls or {}) do
      blocks[i] = { type = "tool_use", id = call.id, name = call.name,
        input = { city = call.city } }
    end
    if turn.calls then list[#list + 1] = { role = "assistant", content = blocks } end
    blocks = {}
    for i, result in ipairs(turn.results or {}) do
      blocks[i] = { type = "tool_result", tool_use_id = result.id, content = result.text }
    end
    if turn.results then list[#list + 1] = { role = "user", content = blocks } end
  end
  return body
end

function apis.messages.said(answer)
  local text, calls = "", {}
  for _, block in ipairs(answer.content) do
    text = text .. (block.text or "")
    if block.type == "tool_use" then
      calls[#calls + 1] = { id = block.id, name = block.name, city = block.input.city }
    end
  end
  return text, calls
end

function apis.messages.usage(answer)
  local u = answer.usage
  return u.input_tokens + u.cache_read_input_tokens, u.cache_read_input_tokens, u.output_tokens
end

apis.responses = { path = "/v1/responses" }

function apis.responses.body(turns)
  local body = { input = {}, temperature = 0, max_output_tokens = 60, store = false,
    tools = tools({ { "type", "function" } }, "parameters") }
  local list = body.input
  for _, turn in ipairs(turns) do
    if turn.user then list[#list + 1] = { role = "user", content = turn.user } end
    for _, call in ipairs(turn.calls or {}) do
      list[#list + 1] = { type = "function_call", call_id = call.id, name = call.name,
        arguments = json.encode { city = call.city } }
    end
    for _, result in ipairs(turn.results or {}) do
      list[#list + 1] = { type = "function_call_output", call_id = result.id, output = result.text }
    end
  end
  return body
end

function apis.responses.said(answer)
  local text, calls = "", {}
  for _, item in ipairs(answer.output) do
    if item.type == "message" then text = text .. item.content[1].text end
    if item.type == "function_call" then
      calls[#calls + 1] = { id = item.call_id, name = item.name,
        city = json.decode(item.arguments).city }
    end
  end
  return text, calls
end

function apis.responses.usage(answer)
  local u = answer.usage
  return u.input_tokens, u.input_tokens_details.cached_tokens, u.output_tokens
end

local ORDER = { "chat", "messages", "responses" }

local function ask(t, app, api, turns)
  local status, answer = app:ask(api.path, api.body(turns))
  t.eq(status, 200, json.encode(answer))
  return answer
end

-- ---- loops --------------------------------------------------------------------------------------

--- A loop of an agent: asks until no tool is called; returns what was said and the usage of each
--- turn.
local function loop(t, app, api, city, question)
  local turns, log, used = { { user = question or ("What is the weather in %s?"):format(city) } },
    {}, {}
  for _ = 1, 4 do
    local answer = ask(t, app, api, turns)
    local text, calls = api.said(answer)
    used[#used + 1] = { api.usage(answer) }
    log[#log + 1] = text
    if #calls == 0 then break end
    local results = {}
    for i, call in ipairs(calls) do
      log[#log + 1] = ("%s(%s)"):format(call.name, call.city)
      results[i] = { id = call.id, text = RESULT:format(call.city) }
    end
    turns[#turns + 1] = { calls = calls }
    turns[#turns + 1] = { results = results }
  end
  return table.concat(log, "|"), used
end

test("moonlet calls get_weather by itself, and answers the same through all three", function(t)
  apiapp.run(t, function(app)
    local first, before
    for i, name in ipairs(ORDER) do
      local said, used = loop(t, app, apis[name], "Paris")
      t.match(said, "^|get_weather%(Paris%)|In Paris it is 21 degrees and sunny%.$")
      first, before = first or said, before or used
      t.eq(said, first, name)
      t.eq(#used, 2)
      for k, turn in ipairs(used) do
        t.eq({ turn[1], turn[3] }, { before[k][1], before[k][3] }, name .. ": tokens")
        if i > 1 then t.eq(turn[2], turn[1] - 1, name .. ": all but one from the prefix cache") end
      end
    end
  end)
end)

test("two calls at once, the same through all three", function(t)
  apiapp.run(t, function(app)
    local first
    for _, name in ipairs(ORDER) do
      local said = loop(t, app, apis[name], nil, "Compare the weather in Oslo and Lima?")
      t.match(said, "get_weather%(Oslo%)|get_weather%(Lima%)")
      first = first or said
      t.eq(said, first, name)
    end
  end)
end)

test("30 loops at once, ten through each API, say what each says alone", function(t)
  local CITIES = { "Paris", "Rome", "Oslo", "Berlin", "Madrid" }
  apiapp.run(t, function(app)
    local alone, tasks, got = {}, {}, {}
    for i, city in ipairs(CITIES) do alone[i] = loop(t, app, apis.chat, city) end
    for n = 1, 30 do
      local api, city = apis[ORDER[n % 3 + 1]], n % #CITIES + 1
      tasks[n] = function() got[n] = loop(t, app, api, CITIES[city]) end
    end
    async.all(tasks)
    for n = 1, 30 do t.eq(got[n], alone[n % #CITIES + 1]) end
  end)
end)

test("a stream that broke in the middle is asked for again without one", function(t)
  apiapp.run(t, function(app)
    for _, name in ipairs(ORDER) do
      local api, events = apis[name], 0
      local turns = { { user = "What is the weather in Rome?" } }
      local body = api.body(turns)
      body.stream = true
      pcall(app.ask, app, api.path, body, { on_data = function()
        events = events + 1
        if events > 2 then return false end
      end })
      t.ok(events > 2, name)
      local _, calls = api.said(ask(t, app, api, turns))
      t.eq({ calls[1].name, calls[1].city }, { NAME, "Rome" }, name)
    end
    for _ = 1, harness.LIMIT_MS // 10 do
      if app.entry.batch.alive == 0 and app.scripts.now.users == 0 then return end
      async.sleep(10)
    end
    t.fail "a sequence stays"
  end)
end)

-- ---- refusals -----------------------------------------------------------------------------------

test("a full context, a shutdown and WebSocket are answered in the words of each", function(t)
  apiapp.run(t, function(app)
    local long = { { user = ("word "):rep(2000) } }
    local status, chat = app:ask(apis.chat.path, apis.chat.body(long))
    t.eq({ status, chat.error.code, chat.error.param },
      { 400, "context_length_exceeded", "messages" })
    t.match(chat.error.message, "this model's maximum context length is 1024 tokens")
    local messages
    status, messages = app:ask(apis.messages.path, apis.messages.body(long))
    t.eq({ status, messages.type, messages.error.type }, { 400, "error", "invalid_request_error" })
    t.match(messages.error.message, "^prompt is too long: %d+ tokens > 1023 maximum")
    local responses
    status, responses = app:ask(apis.responses.path, apis.responses.body(long))
    t.eq({ status, responses.error.code, responses.error.param },
      { 400, "context_length_exceeded", "input" })
    app.draining = true
    for _, name in ipairs(ORDER) do
      local code, answer, headers = app:ask(apis[name].path, apis[name].body { { user = "Hi" } })
      t.eq({ code, headers["retry-after"] }, { 503, "5" }, name)
      t.eq(answer.error.type, "overloaded_error", name)
    end
    local code, _, headers = app:ask(apis.responses.path, nil, { method = "GET",
      headers = { upgrade = "websocket", connection = "upgrade" } })
    t.eq({ code, headers.allow }, { 426, "POST" })
  end, { context = 1024, cache_tokens = 4096 })
end)

-- ---- many tools ---------------------------------------------------------------------------------

test("the definitions of many tools are read once, however many choices there are", function(t)
  local read = 0
  local known = parsers.known
  t.patch(parsers, "known", function(...)
    read = read + 1
    return known(...)
  end)
  apiapp.run(t, function(app)
    local body = apis.chat.body { { user = "What is the weather in Paris?" } }
    for i = 1, 99 do
      table.insert(body.tools, 1, { type = "function", ["function"] = { name = "tool_" .. i } })
    end
    body.n = 4
    local status, answer = app:ask(apis.chat.path, body)
    t.eq({ status, read, #answer.choices }, { 200, 1, 4 })
  end)
end)
