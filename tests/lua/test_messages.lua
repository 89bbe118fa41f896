-- The Messages API: what its bodies become, how its answers and errors look, and that a
-- conversation is the same one through it and through chat completions.
local apiapp = require "apiapp"
local async = require "lib.async"
local harness = require "harness"
local perigee = require "perigee"
local phases = require "hooks.phases"
local pictures = require "picture_files"
local read = require "api.anthropic.read"
local sealed = require "api.sealed"
local text = require "lib.text"
local test = harness.test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_api does

local PATH, COUNT, CHAT = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"

local function user(words) return { role = "user", content = words } end

local function body_of(more)
  local body = { messages = { user "Hello!" }, max_tokens = 4 }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local APP = { config = { limits = {} } }

--- The req of a body.
local function req_of(more, headers)
  return read(assert(json.decode(json.encode(body_of(more)))), { headers = headers or {} }, APP)
end

--- A value without the tables of JSON, to be compared.
local function plain(value)
  if type(value) ~= "table" then return value end
  local out = {}
  for k, v in pairs(value) do out[k] = plain(v) end
  return out
end

local WEATHER = { name = "get_weather", description = "Get the weather in a city",
  input_schema = { type = "object", properties = { city = { type = "string" } },
    required = { "city" } } }

-- ---- reading ------------------------------------------------------------------------------------

local function messages_of(list, more)
  more = more or {}
  more.messages = list
  return plain(req_of(more).chat.messages)
end

test("system blocks are messages of their own, also between the others", function(t)
  t.eq(messages_of({ user "Hi", { role = "system", content = "Now." } }, { system = "Be kind." }),
    { { role = "system", content = "Be kind." },
      { role = "user", content = { { type = "text", text = "Hi" } } },
      { role = "system", content = "Now." } })
  t.eq(#messages_of({ user "Hi" }, { system = { { type = "text", text = "a" },
    { type = "text", text = "b", cache_control = { type = "ephemeral" } } } }), 3)
end)

test("results of tools come before what the user says", function(t)
  local list = messages_of { user "Hi",
    { role = "assistant", content = { { type = "thinking", thinking = "hm", signature = "" },
      { type = "redacted_thinking", data = "x" }, { type = "text", text = "I look." },
      { type = "server_tool_use", id = "s1", name = "web_search", input = json.object {} },
      { type = "web_search_tool_result", tool_use_id = "s1", content = json.array {} },
      { type = "mcp_tool_use", id = "s2", name = "m", input = json.object {} },
      { type = "tool_use", id = "t1", name = "f", input = json.object { { "a", 1 } } },
      { type = "tool_use", id = "t2", name = "g", input = json.object {} },
      { type = "text", text = "After." } } },
    user { { type = "text", text = "And now?" },
      { type = "tool_result", tool_use_id = "t1", content = "sunny" },
      { type = "tool_result", tool_use_id = "t2", is_error = true, content = {
        { type = "text", text = "no" }, { type = "tool_reference", tool_name = "h" } } },
      { type = "tool_result", tool_use_id = "t3" } } }
  local function call(id, name, arguments)
    return { id = id, type = "function", ["function"] = { name = name, arguments = arguments } }
  end
  local function said(words) return { type = "text", text = words } end
  t.eq({ table.unpack(list, 2) }, {
    { role = "assistant", content = { said "I look." }, reasoning_content = "hm",
      tool_calls = { call("t1", "f", { a = 1 }), call("t2", "g", {}) } },
    { role = "assistant", content = { said "After." } },
    { role = "tool", tool_call_id = "t1", content = { said "sunny" } },
    { role = "tool", tool_call_id = "t2",
      content = { said "no", said "Tool h is available now." } },
    { role = "tool", tool_call_id = "t3", content = { said "" } },
    { role = "user", content = { said "And now?" } } })
end)

test("tools of other servers are left out, and so is a choice of one", function(t)
  local function chat(more) return req_of(more).chat end
  local search = { type = "web_search_20250305", name = "web_search" }
  local tools = { WEATHER, search, { name = "DeferredToolPlaceholder", defer_loading = true },
    { type = "custom", name = "g", strict = true } }
  local made = plain(chat { tools = tools }.tools)
  t.eq({ #made, made[1]["function"].parameters, made[2] }, { 2, plain(WEATHER.input_schema),
    { type = "function", ["function"] = { name = "g" } } })
  for given, want in pairs { auto = "auto", any = "required", none = "none" } do
    local made_chat = chat { tools = tools, tool_choice = { type = given } }
    t.eq({ made_chat.tool_choice, made_chat.parallel_tool_calls }, { want, true })
  end
  local one = req_of { tools = tools, tool_choice = { type = "tool", name = "g",
    disable_parallel_tool_use = true } }
  t.eq({ one.force_call, one.chat.parallel_tool_calls }, { { name = "g" }, false })
  for _, choice in ipairs { { type = "any" }, { type = "tool", name = "web_search" } } do
    local req = req_of { tools = { search }, tool_choice = choice }
    t.eq({ req.chat.tool_choice, req.chat.tools, req.force_call }, { "auto" })
  end
end)

test("thinking, effort, prefill, session", function(t)
  local function kwargs(more) return plain(req_of(more).chat.kwargs) end
  t.eq(kwargs {}, { enable_thinking = false })
  t.eq(kwargs { thinking = { type = "disabled" } }, { enable_thinking = false })
  t.eq(kwargs { thinking = { type = "adaptive", display = "omitted" } }, {})
  t.eq(kwargs { thinking = { type = "enabled", budget_tokens = 2000 } },
    { enable_thinking = true, thinking_budget = 2000 })
  t.eq(kwargs { output_config = { effort = "low" } },
    { enable_thinking = false, reasoning_effort = "low" })
  local function begun(last) return req_of { messages = { user "Hi", last } }.chat end
  local prefill = begun { role = "assistant", content = "I" }
  t.eq({ prefill.continue_final_message, prefill.add_generation_prompt }, { true, false })
  t.eq(begun({ role = "assistant", content = { { type = "tool_use", id = "a", name = "f" } } })
    .continue_final_message, nil)
  t.eq(begun({ role = "assistant", content = json.array {} }).continue_final_message, nil)
  local req = req_of({ metadata = { user_id = '{"session_id": "s1"}' } },
    { ["x-claude-code-session-id"] = "s2" })
  t.eq({ req.session, req.api, req.user }, { "s1", "messages", '{"session_id": "s1"}' })
  t.eq(req_of({}, { ["x-claude-code-session-id"] = "s2" }).session, "s2")
  t.eq(req_of({ metadata = { user_id = "me" } }).session, nil)
end)

-- what is wrong, what the message begins with
local WRONG = {
  { { messages = json.null }, "messages is missing" },
  { { messages = json.array {} }, "messages must not be empty" },
  { { messages = { 5 } }, "messages[0] must be an object, got an integer" },
  { { messages = { { role = "tool", content = "x" } } },
    "messages[0].role must be one of user, assistant, system, got 'tool'" },
  { { messages = { { content = "x" } } }, "messages[0].role must be a string, got nothing" },
  { { messages = { { role = "user" } } }, "messages[0].content must be a string or an array of "
    .. "blocks, got nothing" },
  { { messages = { user { 5 } } }, "messages[0].content[0] must be an object" },
  { { messages = { user { { text = "x" } } } }, "messages[0].content[0].type must be a string" },
  { { messages = { user { { type = "smell" } } } }, "messages[0].content[0].type must be a known" },
  { { messages = { user { { type = "tool_use" } } } },
    "messages[0].content[0].type must be a known type of block here, got 'tool_use'" },
  { { messages = { user { { type = "text" } } } }, "messages[0].content[0].text must be a string" },
  { { messages = { user { { type = "image" } } } }, "messages[0].content[0].source must be an" },
  { { messages = { user { { type = "image", source = { type = "file", file_id = "f" } } } } },
    "messages[0].content[0].source names a file, but files are not kept here" },
  { { messages = { user { { type = "image", source = { type = "base64" } } } } },
    "messages[0].content[0].source.data must be a string" },
  { { messages = { user { { type = "image", source = { type = "base64", data = "!" } } } } },
    "messages[0].content[0].source: " },
  { { messages = { user { { type = "tool_result", tool_use_id = "t", content = { { type = "image",
    source = { type = "url", url = "ftp://x" } } } } } } },
    "messages[0].content[0].content[0].source: a picture must be a data URI" },
  { { messages = { user { { type = "document", source = { type = "base64" } } } } },
    "messages[0].content[0].source.type must be 'text'" },
  { { messages = { user { { type = "tool_result" } } } },
    "messages[0].content[0].tool_use_id must be a string" },
  { { messages = { { role = "assistant", content = { { type = "image" } } } } },
    "messages[0].content[0].type must be a known" },
  { { messages = { { role = "assistant", content = { { type = "thinking" } } } } },
    "messages[0].content[0].thinking must be a string" },
  { { messages = { { role = "assistant", content = { { type = "tool_use", id = 5 } } } } },
    "messages[0].content[0].id must be a string" },
  { { messages = { { role = "assistant", content = { { type = "tool_use", id = "a" } } } } },
    "messages[0].content[0].name must be a string" },
  { { messages = { { role = "assistant", content = { { type = "tool_use", id = "a", name = "f",
    input = "x" } } } } }, "messages[0].content[0].input must be an object" },
  { { system = 5 }, "system must be a string or an array of blocks" },
  { { system = { { type = "image" } } }, "system[0].type must be a known" },
  { { tools = { { name = "a b" } } }, "tools[0].name must consist of letters" },
  { { tools = { json.object {} } }, "tools[0].name is missing" },
  { { tools = { { name = "f", input_schema = 5 } } }, "tools[0].input_schema must be an object" },
  { { tools = { { name = "f", description = 5 } } }, "tools[0].description must be a string" },
  { { tools = { { name = "f", type = 5 } } }, "tools[0].type must be a string" },
  { { tool_choice = "auto" }, "tool_choice must be an object" },
  { { tool_choice = { type = "some" } }, "tool_choice.type must be one of auto, any, tool, none" },
  { { tool_choice = { type = "any" } }, "tool_choice demands a call, but there are no tools" },
  { { tools = { WEATHER }, tool_choice = { type = "tool" } }, "tool_choice.name must be a string" },
  { { tools = { WEATHER }, tool_choice = { type = "tool", name = "g" } },
    "tool_choice names the tool 'g'" },
  { { tools = { WEATHER }, tool_choice = { type = "auto", disable_parallel_tool_use = 1 } },
    "tool_choice.disable_parallel_tool_use must be true or false" },
  { { thinking = true }, "thinking must be an object" },
  { { thinking = { type = "enabled", display = 5 } }, "thinking.display must be a string" },
  { { messages = { { role = "assistant", content = { { type = "thinking", thinking = "",
      signature = 5 } } } } }, "messages[0].content[0].signature must be a string" },
  { { thinking = { type = "deep" } }, "thinking.type must be one of enabled, adaptive, disabled" },
  { { thinking = { type = "enabled", budget_tokens = 0 } }, "thinking.budget_tokens must be" },
  { { output_config = { effort = 5 } }, "output_config.effort must be a string" },
  { { output_config = { format = { type = "json_schema" } } },
    "output_config.format.schema is missing" },
  { { max_tokens = 0 }, "max_tokens must be between 1 and" },
  { { temperature = "hot" }, "temperature must be a number" },
  { { top_p = 2 }, "top_p must be above 0 and at most 1" },
  { { stop_sequences = { 5 } }, "stop_sequences[0] must be a string" },
  { { stop_sequences = { "" } }, "stop_sequences[0] must not be empty" },
  { { stream = "yes" }, "stream must be true or false" },
  { { metadata = { user_id = 5 } }, "metadata.user_id must be a string" },
  { { mcp_servers = { json.object {} } }, "mcp_servers is not supported" },
  { { container = "c" }, "container is not supported" },
}

test("what is wrong is refused in its dialect, and the field is named", function(t)
  apiapp.run(t, function(app)
    for i, case in ipairs(WRONG) do
      local status, answer, headers = app:ask(PATH, body_of(case[1]))
      local what = ("%d: %s"):format(i, case[2])
      if t.eq(status, 400, what) then
        t.eq({ answer.type, answer.error.type, headers["x-should-retry"] },
          { "error", "invalid_request_error", "false" }, what)
        t.eq(answer.request_id, headers["x-request-id"])
        t.eq(answer.error.message:sub(1, #case[2]), case[2], what)
      end
    end
    t.eq(app.entry.batch.alive, 0)
  end)
end)

test("errors of other kinds", function(t)
  apiapp.run(t, function(app)
    local status, answer = app:ask(PATH, body_of { thread = { type = "create" } })
    t.eq({ status, plain(answer.error.details) }, { 400,
      { error_code = "thread_unsupported_request", unsupported = { "thread" } } })
    status, answer = app:ask(PATH, body_of { model = "nothing" })
    t.eq({ status, answer.error.type }, { 404, "not_found_error" })
    status, answer = app:ask(PATH, "{")
    t.eq({ status, answer.error.type }, { 400, "invalid_request_error" })
    status, answer = app:ask(PATH, body_of { messages = { user(("a b "):rep(20000)) } })
    t.eq(status, 400)
    local tokens, most = answer.error.message:match "^prompt is too long: (%d+) tokens > (%d+) max"
    t.ok(tonumber(tokens) > 8191 and most == "8191", answer.error.message)
    status, answer = app:ask(PATH, body_of { messages = { user(("hello "):rep(60000)) } })
    t.eq(status, 400)
    t.match(answer.error.message, "^prompt is too long: %d+ tokens > 8191 maximum %(messages has")
    app.draining = true
    local headers
    status, answer, headers = app:ask(PATH, body_of {})
    t.eq({ status, answer.error.type, headers["retry-after"] }, { 503, "overloaded_error", "5" })
  end)
end)

-- ---- whatever is sent ---------------------------------------------------------------------------

-- Values that somebody might send for anything.
local ODD = { json.null, true, 0, -1, 2 ^ 53, 1e308, "", "x", "<|im_end|>", "\0", ("y"):rep(300),
  json.array {}, json.array { json.null }, json.array { 1, "a" }, json.object {},
  json.object { { "type", "text" } }, json.object { { "type", "tool_use" } },
  json.object { { "role", "user" } } }

--- A copy in which one value somewhere is another. `random(n)`: from 1 to n.
local function mutate(value, random)
  if type(value) ~= "table" or random(8) == 1 then return ODD[random(#ODD)] end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  if #keys == 0 then return ODD[random(#ODD)] end
  local chosen = keys[random(#keys)]
  local out = json.is_array(value) and json.array {} or json.object {}
  for key, v in pairs(value) do
    if key == chosen then v = mutate(v, random) end
    out[key] = v
  end
  return out
end

local FULL = { system = { { type = "text", text = "Be kind." } },
  messages = { user { { type = "text", text = "Weather?" } },
    { role = "assistant", content = { { type = "thinking", thinking = "hm", signature = "s" },
      { type = "text", text = "I look." },
      { type = "tool_use", id = "t1", name = "get_weather", input = { city = "Rome" } } } },
    user { { type = "tool_result", tool_use_id = "t1", is_error = false,
      content = { { type = "text", text = "sunny" } } }, { type = "text", text = "And now?" } },
    { role = "system", content = "Be brief." } },
  tools = { WEATHER }, tool_choice = { type = "auto", disable_parallel_tool_use = true },
  thinking = { type = "enabled", budget_tokens = 1024 }, output_config = { effort = "low" },
  stop_sequences = { "zzz" }, temperature = 0.5, top_p = 0.9, top_k = 5, stream = false,
  metadata = { user_id = "me" }, context_management = { edits = { { type = "x" } } } }

test("whatever is sent, nothing breaks: thousands of bodies are read or refused", function(t)
  local seed = 4711
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    return seed // 65536 % n + 1
  end
  local full = assert(json.decode(json.encode(FULL)))
  local good, bad = 0, 0
  for _ = 1, 5000 do
    local body = mutate(full, random)
    if random(3) == 1 then body = mutate(body, random) end
    if json.is_object(body) then
      local sent = json.encode(body)
      local ok, err = pcall(read, assert(json.decode(sent)), { headers = {} }, APP)
      if ok then good = good + 1 else bad = bad + 1 end
      t.ok(ok or type(err) == "table" and err.field and err.code == "argument"
        and err.message:sub(1, #err.field) == err.field, ("%s: %s"):format(sent, tostring(err)))
    end
  end
  t.ok(good > 500 and bad > 1000, ("%d read, %d refused"):format(good, bad))
end)

test("what can be read is answered, or refused with words", function(t)
  local seed = 815
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    return seed // 65536 % n + 1
  end
  local full = assert(json.decode(json.encode(FULL)))
  apiapp.run(t, function(app)
    local seen = {}
    for _ = 1, 150 do
      local body = mutate(full, random)
      if json.is_object(body) then body.max_tokens = 1 end
      local status, answer = app:ask(PATH, json.encode(body))
      seen[status] = (seen[status] or 0) + 1
      if status ~= 200 and status ~= 404 then
        t.eq(status, 400, json.encode(body))
        t.ok(not answer.error.message:find "%.lua:%d", answer.error.message)
      end
    end
    t.ok(seen[200] > 30 and seen[400] > 30)
  end)
end)

-- ---- answers ------------------------------------------------------------------------------------

--- The events of a stream: { name, data decoded }, without pings.
local function events_of(t, said)
  local list = {}
  for block in said:gmatch "(.-)\n\n" do
    local name, data = block:match "^event: ([^\n]*)\ndata: (.*)$"
    if t.ok(name, block) and name ~= "ping" then
      local value = assert(json.decode(data))
      t.eq(value.type, name)
      list[#list + 1] = { name, value }
    end
  end
  return list
end

--- The message that a stream makes, as the vendor's clients put it together; fails where the order
--- is not kept.
local function joined(t, said)
  local message, open, at
  for i, event in ipairs(events_of(t, said)) do
    local name, d = table.unpack(event)
    if name == "message_start" then
      t.eq({ i, #d.message.content, d.message.stop_reason }, { 1, 0, json.null })
      message = d.message
    elseif name == "content_block_start" then
      t.eq({ open, d.index }, { nil, #message.content })
      open, at = d.content_block, d.index
      open.json = open.type == "tool_use" and "" or nil
      message.content[#message.content + 1] = open
    elseif name == "content_block_delta" then
      t.eq(d.index, at)
      local delta = d.delta
      if delta.type == "text_delta" then open.text = open.text .. delta.text end
      if delta.type == "thinking_delta" then open.thinking = open.thinking .. delta.thinking end
      if delta.type == "signature_delta" then open.signature = delta.signature end
      if delta.type == "input_json_delta" then open.json = open.json .. delta.partial_json end
    elseif name == "content_block_stop" then
      t.eq(d.index, at)
      if open.json then open.input = assert(json.decode(open.json == "" and "{}" or open.json)) end
      open.json, open, at = nil, nil, nil
    elseif name == "message_delta" then
      t.eq(open, nil)
      message.stop_reason, message.stop_sequence = d.delta.stop_reason, d.delta.stop_sequence
      message.usage = d.usage
    end
    message.ended = name == "message_stop"
  end
  t.eq(message.ended, true)
  message.ended = nil
  return message
end

--- Asks whole and streamed; returns both messages.
local function both(t, app, more)
  local status, whole = app:ask(PATH, body_of(more))
  t.eq(status, 200)
  more.stream = true
  local code, said, headers = app:ask(PATH, body_of(more))
  t.eq({ code, headers["content-type"] }, { 200, "text/event-stream; charset=utf-8" })
  return whole, joined(t, said)
end

--- What must not differ: all but the ids and what the cache had.
local function bare(message)
  local out = plain(message)
  out.id, out.usage = nil, { out = out.usage.output_tokens,
    prompt = out.usage.input_tokens + out.usage.cache_read_input_tokens }
  for _, block in ipairs(out.content) do
    block.id, block.signature = nil, block.signature and sealed.open(block.signature)
  end
  return out
end

test("a stream makes the whole answer: text, thinking, calls", function(t)
  local answer
  apiapp.run(t, function(app)
    for _, given in ipairs {
      { content = "Hi." }, { reasoning = "hm", content = "Hi." },
      { reasoning = "hm", calls = { { name = "f", arguments = '{"a": 1}' } },
        finish = "tool_calls" },
      { content = "So", calls = { { name = "f", arguments = "{}" }, { name = "g" } },
        finish = "tool_calls" }, {}, { reasoning = "hm", finish = "length" } } do
      answer = given
      local whole, streamed = both(t, app, {})
      t.eq(bare(streamed), bare(whole))
      t.eq({ whole.type, whole.role, whole.model, whole.stop_sequence },
        { "message", "assistant", "moonlet", json.null })
      t.match(whole.id, "^msg_%x+$")
      local n = 0
      if given.reasoning then
        n = n + 1
        t.eq({ whole.content[n].type, whole.content[n].thinking }, { "thinking", "hm" })
        t.eq(sealed.open(whole.content[n].signature), "hm")
      end
      if given.content then
        n = n + 1
        t.eq(plain(whole.content[n]), { type = "text", text = given.content })
      end
      t.eq(#whole.content, n + #(given.calls or {}))
      t.eq(whole.stop_reason, given.calls and "tool_use" or given.finish and "max_tokens"
        or "end_turn")
    end
  end, { hooks = { { generate = function() return answer end } } })
end)

test("thinking that is left out comes back in its signature; others are no obstacle", function(t)
  apiapp.run(t, function(app)
    local whole, streamed = both(t, app, { thinking = { type = "enabled", display = "omitted" } })
    for _, message in ipairs { whole, streamed } do
      t.eq({ message.content[1].type, message.content[1].thinking }, { "thinking", "" })
      t.eq(sealed.open(message.content[1].signature), "hm")
    end
    --- The reasoning of a turn that is sent back.
    local function thought(words, signature)
      return messages_of({ user "Hi", { role = "assistant", content = {
        { type = "thinking", thinking = words, signature = signature },
        { type = "text", text = "Hi." } } } })[2].reasoning_content
    end
    local signature = whole.content[1].signature
    t.eq({ thought("", signature), thought("hm", signature), thought("mine", signature) },
      { "hm", "hm", "mine" })
    local flipped = (signature:sub(9, 9) == "A" and "B" or "A")
    t.eq(thought("", signature:sub(1, 8) .. flipped .. signature:sub(10)), nil)
    t.eq({ thought("", ""), thought("", "EqQB"), thought("hm", ""), thought("hm", "EqQB") },
      { nil, nil, "hm", "hm" })
  end, { hooks = { { generate = function() return { reasoning = "hm", content = "Hi." } end } } })
end)

test("every stop reason", function(t)
  local finish
  apiapp.run(t, function(app)
    local function reason(more)
      local whole, streamed = both(t, app, more)
      t.eq(bare(streamed), bare(whole))
      return { whole.stop_reason, whole.stop_sequence }
    end
    local count = { user "Count from 1 to 10." }
    t.eq(reason { messages = count, temperature = 0, max_tokens = 100 }, { "end_turn", json.null })
    t.eq(reason { messages = count, temperature = 0, max_tokens = 100,
      stop_sequences = { "zzz", "7" } }, { "stop_sequence", "7" })
    t.eq(reason { messages = count, max_tokens = 2 }, { "max_tokens", json.null })
    t.eq(reason { messages = { user(("a b "):rep(200)) }, max_tokens = 32000, ignore_eos = true },
      { "model_context_window_exceeded", json.null })
    for given, want in pairs { cancel = "end_turn", content_filter = "refusal" } do
      finish = given
      t.eq(reason {}, { want, json.null })
    end
  end, { context = 512, hooks = { { generate = function(req, run)
    if finish then return { content = "x", finish = finish } end
    return run(req)
  end } } })
end)

test("moonlet calls tools; an answer goes on where an assistant began", function(t)
  apiapp.run(t, function(app)
    local question = { messages = { user "What is the weather in Paris?" }, tools = { WEATHER },
      temperature = 0, max_tokens = 100 }
    local whole, streamed = both(t, app, question)
    t.eq(bare(streamed), bare(whole))
    local call = whole.content[#whole.content]
    t.eq({ call.type, call.name, plain(call.input), whole.stop_reason },
      { "tool_use", "get_weather", { city = "Paris" }, "tool_use" })
    t.match(call.id, "^toolu_%x+$")
    question.stream, question.tool_choice = nil, { type = "tool", name = "get_weather" }
    question.messages = { user "Hello!" }
    local _, forced = app:ask(PATH, question)
    t.eq(forced.content[#forced.content].name, "get_weather")
    local _, begun = app:ask(PATH, { messages = { user "Count from 1 to 10.",
      { role = "assistant", content = "1, 2, 3, 4, 5," } }, temperature = 0, max_tokens = 50 })
    t.match(begun.content[1].text, "^ ?6, 7, 8")
  end)
end)

test("an error in the middle is an event, and nothing comes after it", function(t)
  apiapp.run(t, function(app)
    local all = json.array()
    for id = 0, 2303 do all[id + 1] = id end
    local _, said = app:ask(PATH, body_of { stream = true, banned = all })
    local list = events_of(t, said)
    t.eq({ #list, list[1][1], list[2][1], list[2][2].error.type },
      { 2, "message_start", "error", "invalid_request_error" })
    t.match(list[2][2].error.message, "leave no token")
    local status, answer = app:ask(PATH, body_of { banned = all })
    t.eq({ status, answer.error.type }, { 400, "invalid_request_error" })
  end)
end)

--- How often a text has another.
local function times(said, part)
  local n, at = 0, said:find(part, 1, true)
  while at do n, at = n + 1, said:find(part, at + 1, true) end
  return n
end

test("while nothing else is sent: pings, and for OpenAI's clients comments", function(t)
  local beat, said
  apiapp.run(t, function(app)
    local function ask(path, body, sign)
      beat, said = sign, ""
      app:ask(path, body, { on_data = function(data) said = said .. data end })
    end
    ask(PATH, body_of { stream = true }, 'event: ping\ndata: {"type": "ping"}\n\n')
    t.eq(joined(t, said).stop_reason, "end_turn")
    ask(CHAT, { messages = { user "Hi" }, stream = true }, ": \n\n")
    t.eq(said:sub(-14), "data: [DONE]\n\n")
    ask("/v1/responses", { input = "Hi", stream = true }, ": \n\n")
    t.match(said, "event: response.completed\ndata: [^\n]*\n\n$")
  end, { limits = { heartbeat_s = 0.05 }, hooks = { { generate = function(_, run)
    run(nil, { silent = true })
    phases.wait_for("sleep", function()
      while times(said, beat) < 2 do async.sleep(5) end
    end)
    return { content = "Hi." }
  end } } })
end)

test("a client that leaves frees its sequence", function(t)
  apiapp.run(t, function(app)
    local events = 0
    async.run(function()
      app:ask(PATH, body_of { stream = true, max_tokens = 5000, ignore_eos = true },
        { on_data = function()
        events = events + 1
        if events > 5 then return false end
      end })
    end)
    for _ = 1, harness.LIMIT_MS // 10 do
      if events > 5 and app.entry.batch.alive == 0 and app.scripts.now.users == 0 then return end
      async.sleep(10)
    end
    t.fail "its sequence stays"
  end)
end)

-- ---- one conversation ---------------------------------------------------------------------------

local answers = assert(json.decode(assert(text.read_file "examples/moonlet/answers.json")))

local function data_of(name) return pictures.uri(pictures.read("examples/moonlet/" .. name)) end

local function block_of(part)
  if part.type == "text" then return { type = "text", text = part.text } end
  local kind, data = data_of(part.image_url.url):match "^data:([^;]*);base64,(.*)$"
  return { type = "image", source = { type = "base64", media_type = kind, data = data } }
end

--- A conversation of chat completions as the Messages API has it, by hand.
local function translated(a)
  local body = { messages = {}, temperature = 0, max_tokens = 100 }
  for _, message in ipairs(a.messages) do
    local blocks = {}
    for i, part in ipairs(type(message.content) == "table" and message.content or {}) do
      blocks[i] = block_of(part)
    end
    local said = #blocks > 0 and blocks or message.content
    if message.role == "system" then
      local billing = "x-anthropic-billing-header: cc_version=1." .. #said
      body.system = { { type = "text", text = billing }, { type = "text", text = said } }
    elseif message.role == "tool" then
      table.insert(body.messages, user { { type = "tool_result",
        tool_use_id = message.tool_call_id or "c", content = said } })
    else
      if message.tool_calls then
        said = {}
        for i, call in ipairs(message.tool_calls) do
          local fn = call["function"]
          said[i] = { type = "tool_use", id = call.id or "c", name = fn.name,
            input = type(fn.arguments) == "string" and json.decode(fn.arguments) or fn.arguments }
        end
      end
      table.insert(body.messages, { role = message.role, content = said })
    end
  end
  for i, tool in ipairs(a.tools or {}) do
    local fn = tool["function"]
    body.tools = body.tools or {}
    body.tools[i] = { name = fn.name, description = fn.description, input_schema = fn.parameters }
  end
  if a.chat_template_kwargs and a.chat_template_kwargs.enable_thinking then
    body.thinking = { type = "enabled" }
  end
  return json.encode(body)
end

local function as_chat(a)
  local body = assert(json.decode(json.encode(json.object { { "messages", a.messages },
    { "temperature", 0 }, { "max_tokens", 100 } })))
  for _, message in ipairs(body.messages) do
    for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if part.image_url then part.image_url.url = data_of(part.image_url.url) end
    end
  end
  body.tools, body.chat_template_kwargs = a.tools, a.chat_template_kwargs
  return json.encode(body)
end

test("a conversation is the same prompt, tokens and prefix through both APIs", function(t)
  local step = harness.slow and 4 or 1
  apiapp.run(t, function(app)
    for i = 1, #answers, step do
      local a = answers[i]
      local _, first = app:ask(CHAT, as_chat(a))
      local status, second = app:ask(PATH, translated(a))
      if t.eq(status, 200, a.name) then
        local message, said, thought, called = first.choices[1].message, nil, nil, {}
        for _, block in ipairs(second.content) do
          said, thought = block.text or said, block.thinking or thought
          if block.input then called[#called + 1] = { block.name, plain(block.input) } end
        end
        local want = {}
        for k, call in ipairs(message.tool_calls or {}) do
          want[k] = { call["function"].name, plain(json.decode(call["function"].arguments)) }
        end
        t.eq({ said, thought, called }, { message.content ~= json.null and message.content or nil,
          message.reasoning_content, want }, a.name)
        local usage, before = second.usage, first.usage
        t.eq({ usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens },
          { before.prompt_tokens, before.completion_tokens }, a.name)
        t.eq(usage.input_tokens, 1, a.name .. ": all but one token come from the cache")
        local _, counted = app:ask(COUNT, translated(a))
        t.eq(counted.input_tokens, before.prompt_tokens, a.name)
      end
    end
  end)
end)

test("pictures in results of tools", function(t)
  apiapp.run(t, function(app)
    local kind, data = data_of("images/four.png"):match "^data:([^;]*);base64,(.*)$"
    local function ask(content)
      local status, answer = app:ask(COUNT, { messages = { user "Look.",
        { role = "assistant", content = { { type = "tool_use", id = "t", name = "f" } } },
        user { { type = "tool_result", tool_use_id = "t", content = content } } } })
      t.eq(status, 200)
      return answer.input_tokens
    end
    local picture = { type = "image", source = { type = "base64", media_type = kind, data = data } }
    t.ok(ask { picture, { type = "text", text = "a" } } > ask "a" + 4)
  end)
end)

test("hooks and policies see one kind of request, with its API and session", function(t)
  local seen = {}
  apiapp.run(t, function(app)
    app:ask(PATH, body_of { metadata = { user_id = '{"session_id": "s"}' } })
    app:ask(CHAT, { messages = { user "Hi" }, max_tokens = 1, prompt_cache_key = "s" })
    t.eq(seen, { { "messages", "messages", "s", "user" }, { "chat", "chat", "s", "user" } })
  end, { hooks = { { request = function(req)
    seen[#seen + 1] = { req.api }
  end, generate = function(req, run)
    local one = seen[#seen]
    one[2], one[3], one[4] = req.tag.api, req.tag.session, req.chat.messages[1].role
    return run(req)
  end } } })
end)

--- A loop of an agent: asks until no tool is called; returns all that was said.
local function loop(app, city)
  local body = { messages = { user(("What is the weather in %s?"):format(city)) },
    tools = { WEATHER }, temperature = 0, max_tokens = 60 }
  local said = {}
  for turn = 1, 3 do
    body.stream = turn % 2 == 0
    local _, answer = app:ask(PATH, body)
    if body.stream then answer = joined({ eq = function() end, ok = function(v) return v end },
      answer) end
    local results = {}
    for _, block in ipairs(answer.content) do
      said[#said + 1] = block.text or block.name .. json.encode(block.input)
      if block.type == "tool_use" then
        results[#results + 1] = { type = "tool_result", tool_use_id = block.id,
          content = "sunny in " .. city }
      end
    end
    if #results == 0 then break end
    table.insert(body.messages, { role = "assistant", content = answer.content })
    table.insert(body.messages, user(results))
  end
  return table.concat(said, "|")
end

test("30 loops of agents at once say what each says alone", function(t)
  local CITIES = { "Paris", "Rome", "Oslo", "Berlin", "Madrid", "Tokyo" }
  apiapp.run(t, function(app)
    local alone, tasks, got = {}, {}, {}
    for i, city in ipairs(CITIES) do alone[i] = loop(app, city) end
    t.match(alone[1], "get_weather.*Paris")
    for n = 1, 30 do tasks[n] = function() got[n] = loop(app, CITIES[n % #CITIES + 1]) end end
    async.all(tasks)
    for n = 1, 30 do t.eq(got[n], alone[n % #CITIES + 1]) end
  end)
end)
