-- What a client can send wrong is a 400 that names the field; what it may send does what it says.
local apiapp = require "apiapp"
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_api and test_api_life do

local CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

local function user(words) return { { role = "user", content = words } } end

local function chat(more)
  local body = { messages = user "Hello!", max_tokens = 4 }
  for key, value in pairs(more) do body[key] = value end
  return body
end

local function completion(more)
  local body = { prompt = "Hello", max_tokens = 4 }
  for key, value in pairs(more) do body[key] = value end
  return body
end

local tool = { type = "function", ["function"] = { name = "get_time",
  parameters = json.object {} } }
local function tools(list) return json.array(list) end
local function bias(key, value) return json.object { { key, value } } end
local function with(name, value) return { [name] = value } end

test("bodies with too many values are refused before they are made", function(t)
  apiapp.run(t, function(app)
    app.config.limits.values = 100
    for _, path in ipairs { CHAT, COMPLETIONS, "/tokenize", "/detokenize" } do
      local status, answer = app:ask(path, '{"x": [' .. ("1,"):rep(99) .. "1]}")
      t.eq({ status, answer.error.code }, { 413, "too_many_values" })
      t.eq(answer.error.message, "the request body is too large: 101 values in the first 160 of "
        .. "208 bytes, at most 100")
    end
  end)
end)

-- endpoint, what is wrong, the field that the refusal names, a part of its message
local WRONG = {
  { CHAT, { temperature = -1 }, "temperature", "must be at least 0, got -1" },
  { CHAT, { temperature = "hot" }, "temperature", "must be a number, got a string" },
  { CHAT, { top_p = 0 }, "top_p", "must be above 0 and at most 1, got 0" },
  { CHAT, { top_p = 1.5 }, "top_p", "got 1.5" },
  { CHAT, { top_k = 1.5 }, "top_k", "must be an integer, got 1.5" },
  { CHAT, { top_k = -2 }, "top_k", "must be between -1 and 2147483647, got -2" },
  { CHAT, { min_p = 2 }, "min_p", "must be between 0 and 1, got 2" },
  { CHAT, { typical_p = 0 }, "typical_p", "got 0" },
  { CHAT, { xtc_probability = 7 }, "xtc_probability", "got 7" },
  { CHAT, { repetition_penalty = 0 }, "repetition_penalty", "must be above 0, got 0" },
  { CHAT, { presence_penalty = 3 }, "presence_penalty", "must be between -2 and 2, got 3" },
  { CHAT, { frequency_penalty = json.array {} }, "frequency_penalty",
    "must be a number, got an array" },
  { CHAT, { penalty_window = -1 }, "penalty_window", "got -1" },
  { CHAT, { max_tokens = 0 }, "max_tokens", "must be between 1 and 2147483647, got 0" },
  { CHAT, { max_completion_tokens = "many" }, "max_completion_tokens", "must be an integer" },
  { CHAT, { min_tokens = 9 }, "min_tokens", "must be at most max_tokens, which is 4, got 9" },
  { CHAT, { n = 0 }, "n", "got 0" },
  { CHAT, { n = 1000 }, "n", "must be between 1 and 128, got 1000" },
  { CHAT, { seed = 1.25 }, "seed", "must be an integer" },
  { CHAT, { seed = 1e300 }, "seed", "must be an integer" },
  { CHAT, { stop = 5 }, "stop", "must be an array, got an integer" },
  { CHAT, { stop = "" }, "stop[0]", "must not be empty" },
  { CHAT, { stop = { "x", 7 } }, "stop[1]", "must be a string, got an integer" },
  { CHAT, { stop_token_ids = { 1, -4 } }, "stop_token_ids[1]", "got -4" },
  { CHAT, { stop_token_ids = { 999999 } }, "stop_token_ids", "999999" },
  { CHAT, { logit_bias = bias("x", 1) }, "logit_bias", "must have token ids as keys, got 'x'" },
  { CHAT, { logit_bias = bias("5", 1000) }, "logit_bias[5]",
    "must be between -100 and 100, got 1000" },
  { CHAT, { logit_bias = bias("99999", 1) }, "logit_bias", "99999" },
  { CHAT, { logit_bias = bias("99999999", 1) }, "logit_bias",
    "must have token ids as keys, got '99999999'" },
  { CHAT, { logit_bias = bias(("9"):rep(9999), 1) }, "logit_bias",
    "keys, got '" .. ("9"):rep(64) .. "'" },
  { CHAT, { bad_words = { 5 } }, "bad_words[0]", "must be an array" },
  { CHAT, { bad_words = (function(list)
    for i = 1, 33 do list[i] = ("x"):rep(1000) end
    return list
  end) {} }, "bad_words", "must have at most 32768 bytes and ids together, got 33000" },
  { CHAT, { banned = { 999999 } }, "banned", "999999" },
  { CHAT, { ignore_eos = 1 }, "ignore_eos", "must be true or false, got an integer" },
  { CHAT, { stream = "yes" }, "stream", "must be true or false, got a string" },
  { CHAT, { stream_options = json.object {} }, "stream_options",
    "is only for requests with stream" },
  { CHAT, { stream = true, stream_options = bias("include_usage", 1) },
    "stream_options.include_usage", "must be true or false" },
  { CHAT, { logprobs = 3 }, "logprobs", "must be true or false" },
  { CHAT, { top_logprobs = 2 }, "top_logprobs", "is only for requests with logprobs = true" },
  { CHAT, { logprobs = true, top_logprobs = 21 }, "top_logprobs", "got 21" },
  { CHAT, { model = 7 }, "model", "must be a string" },
  { CHAT, { response_format = bias("type", "yaml") }, "response_format.type",
    "must be 'text', 'json_object' or 'json_schema', got 'yaml'" },
  { CHAT, { guided_regex = "a(" }, "guided_regex", "cannot be followed (invalid)" },
  { CHAT, { functions = json.array {} }, "functions", "send 'tools'" },
  { CHAT, { chat_template = "{{ messages }}" }, "chat_template", "cannot be sent" },
  { CHAT, { chat_template_kwargs = json.array { 1 } }, "chat_template_kwargs",
    "must be an object" },
  { CHAT, { chat_template_kwargs = bias("messages", 1) }, "chat_template_kwargs",
    "cannot set 'messages'" },
  { CHAT, { enable_thinking = "no" }, "enable_thinking", "must be true or false" },
  { CHAT, { modalities = { "audio" } }, "modalities[0]", "must be 'text'" },
  { CHAT, { messages = "Hello" }, "messages", "must be an array, got a string" },
  { CHAT, { messages = json.array {} }, "messages", "must not be empty" },
  { CHAT, { messages = json.null }, "messages", "is missing" },
  { CHAT, { messages = { 5 } }, "messages[0]", "must be an object, got an integer" },
  { CHAT, { messages = { { content = "x" } } }, "messages[0].role", "is missing" },
  { CHAT, { messages = { { role = 5, content = "x" } } }, "messages[0].role", "must be a string" },
  { CHAT, { messages = { { role = "user" } } }, "messages[0].content", "is missing" },
  { CHAT, { messages = { { role = "user", content = 5 } } }, "messages[0].content",
    "must be a string, an array of parts or null" },
  { CHAT, { messages = { { role = "user", content = { 5 } } } }, "messages[0].content[0]",
    "must be an object" },
  { CHAT, { messages = { { role = "user", content = { { type = "text" } } } } },
    "messages[0].content[0].text", "must be a string, got nothing" },
  { CHAT, { messages = { { role = "user", content = { { type = "smell" } } } } },
    "messages[0].content[0].type", "got 'smell'" },
  { CHAT, {
    messages = {
    { role = "user",
    content = { { type = "image_url", image_url = { url = "file:///etc/passwd" } } } } } },
    "messages[0].content[0].image_url", "a picture must be a data URI or an http(s) URL" },
  { CHAT, { messages = { { role = "user", content = { { type = "image_url" } } } } },
    "messages[0].content[0].image_url", "must have a URL, got nothing" },
  { CHAT, { messages = { { role = "user", content = { { type = "image_url",
    image_url = { url = 5 } } } } } }, "messages[0].content[0].image_url",
    "must be a URL, got an integer" },
  { CHAT, { messages = { { role = "user", content = { { type = "video_url",
    video_url = { url = { "data:,", 5 } } } } } } }, "messages[0].content[0].video_url[1]",
    "must be a URL, got an integer" },
  { CHAT, { messages = { { role = "user", content = { { type = "input_audio" } } } } },
    "messages[0].content[0]", "has no audio input" },
  { CHAT, { messages = { { role = "assistant", tool_calls = 5 } } }, "messages[0].tool_calls",
    "must be an array" },
  { CHAT, {
    messages = { { role = "assistant", tool_calls = { { ["function"] = { name = 5 } } } } } },
    "messages[0].tool_calls[0].function.name", "must be a string" },
  { CHAT, { messages = { { role = "stranger", content = "x" } } }, "messages[0].role",
    "got 'stranger'" },
  { CHAT, { tools = 5 }, "tools", "must be an array" },
  { CHAT, { tools = tools { { type = "function" } } }, "tools[0].function",
    "must be an object, got nothing" },
  { CHAT, { tools = tools { { type = "web" } } }, "tools[0].type",
    "must be 'function', got 'web'" },
  { CHAT, { tools = tools { { type = "function", ["function"] = { name = "a b" } } } },
    "tools[0].function.name", "got 'a b'" },
  { CHAT, { tools = tools { { type = "function", ["function"] = { name = "<|im_end|>" } } } },
    "tools[0].function.name",
    "letters" },
  { CHAT, { tool_choice = "never" }, "tool_choice", "got 'never'" },
  { CHAT, { tool_choice = "required" }, "tool_choice", "there are no tools" },
  { CHAT, { tools = tools { tool }, tool_choice = 5 }, "tool_choice", "got an integer" },
  { CHAT, { tools = tools { tool }, tool_choice = { type = "function",
    ["function"] = { name = "other" } } }, "tool_choice",
    "names the tool 'other'" },
  { CHAT, { continue_final_message = true, add_generation_prompt = true }, "add_generation_prompt",
    "cannot both" },
  { CHAT, { perigee = { script = 5 } }, "perigee.script", "must be a string" },
  { COMPLETIONS, { prompt = json.null }, "prompt", "is missing" },
  { COMPLETIONS, { prompt = 5 }, "prompt", "must be a string, token ids or an array of them" },
  { COMPLETIONS, { prompt = json.array {} }, "prompt", "must not be empty" },
  { COMPLETIONS, { prompt = { "x", 5 } }, "prompt[1]", "must be a string or token ids" },
  { COMPLETIONS, { prompt = { 1, "x" } }, "prompt[1]", "must be an integer" },
  { COMPLETIONS, { prompt = { { 1, 2 }, json.array {} } }, "prompt[1]", "must not be empty" },
  { COMPLETIONS, { prompt = { 99999 } }, "prompt", "99999" },
  { COMPLETIONS, { prompt = "" }, "prompt", "must not be empty" },
  { COMPLETIONS, { suffix = "end" }, "suffix", "not filled in" },
  { COMPLETIONS, { logprobs = 25 }, "logprobs", "got 25" },
  { COMPLETIONS, { prompt = { "a", "b", "c", "d", "e" }, n = 128 }, "n",
    "must leave at most 512 answers for 5 prompts, got 640" },
  { COMPLETIONS, { best_of = 2, n = 3 }, "best_of", "must be at least n, which is 3, got 2" },
  { COMPLETIONS, { best_of = 2, stream = true }, "best_of", "streamed" },
  { "/tokenize", with("prompt", json.null), "content", "is missing" },
  { "/tokenize", { content = 5 }, "content", "must be a string" },
  { "/detokenize", { prompt = "x" }, "tokens", "is missing" },
  { "/detokenize", { tokens = { 5, "x" } }, "tokens[1]", "must be an integer" },
  { "/detokenize", { tokens = { 5, 99999 } }, "tokens[1]", "must be at most 2" },
}

test("what is wrong is refused, and the field is named", function(t)
  apiapp.run(t, function(app)
    for i, case in ipairs(WRONG) do
      local body = case[1] == CHAT and chat(case[2]) or completion(case[2])
      local status, answer = app:ask(case[1], body)
      local what = ("%d: %s"):format(i, case[3])
      if t.eq(status, 400, what) then
        local e = answer.error
        t.eq({ e.type, e.param }, { "invalid_request_error", case[3] }, what)
        t.ok(e.message:find(case[4], 1, true), what .. ": " .. e.message)
      end
    end
    t.eq(app.entry.batch.alive, 0)
  end)
end)

test("bodies that are none", function(t)
  apiapp.run(t, function(app)
    for _, body in ipairs { "", "{", "[]", "5", '"x"', "null", '{"a":1}x', ("["):rep(100000),
      '{"messages": "\255"}' } do
      local status, answer = app:ask(CHAT, body)
      t.eq(status, 400, body:sub(1, 20))
      t.eq(answer.error.type, "invalid_request_error")
    end
    local status, answer = app:ask(CHAT, chat { model = "nothing" })
    t.eq({ status, answer.error.code }, { 404, "model_not_found" })
  end)
end)

test("harmless fields are left alone, null is the same as nothing", function(t)
  apiapp.run(t, function(app)
    local status, answer = app:ask(CHAT, chat { temperature = json.null, stop = json.null,
      tools = json.null, user = "me",
      metadata = {
        a = "b" }, store = true, service_tier = "auto", safety_identifier = "x",
        whatever = { 1, 2 },
      response_format = {
        type = "text" }, tool_choice = "auto", logit_bias = json.object {}, max_tokens = 3.0,
        top_k = -1 })
    t.eq(status, 200)
    t.eq(answer.usage.completion_tokens, 3)
    t.eq(answer.choices[1].finish_reason, "length")
  end)
end)

-- Values that somebody might send for anything.
local ODD = { json.null, true, false, 0, 1, -1, 2 ^ 53, -0.5, 1e308, "", "x", "<|im_end|>", "\0",
  "é\u{10FFFF}", ("y"):rep(300),
  json.array {}, json.array { json.null }, json.array { 1, "a" },
    json.array { json.array { json.array {} } }, json.object {},
  json.object { { "type", "function" } }, json.object { { "", json.object {} } },
    json.object { { "role", "user" } } }

--- A copy in which one value somewhere is another. `random(n)`: from 1 to n.
local function mutate(value, random)
  if type(value) ~= "table" or random(6) == 1 then return ODD[random(#ODD)] end
  local keys = {}
  for key in pairs(value) do keys[#keys + 1] = key end
  if #keys == 0 then return ODD[random(#ODD)] end
  local chosen = keys[random(#keys)]
  if json.is_array(value) then
    local out = json.array {}
    for i, v in ipairs(value) do out[i] = i == chosen and mutate(v, random) or v end
    return out
  end
  local out = json.object {}
  for key, v in pairs(value) do out[key] = key == chosen and mutate(v, random) or v end
  return out
end

test("whatever is sent, nothing breaks: 400 or an answer", function(t)
  local seed = 12345
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    return seed // 65536 % n + 1
  end
  local call = { id = "c1", type = "function", ["function"] = { name = "get_time",
    arguments = '{"city": "Rome"}' } }
  local full = assert(json.decode(json.encode {
    messages = { { role = "system", content = "Be kind." },
      { role = "user", content = { { type = "text", text = "Time?" } } },
      { role = "assistant", content = json.null, tool_calls = { call } },
      { role = "tool", tool_call_id = "c1", content = "noon" }, { role = "user",
        content = "And now?" } },
    tools = { { type = "function", ["function"] = { name = "get_time", description = "Tells it.",
      parameters = {
      type = "object", properties = { city = { type = "string",
        enum = { "Rome", "Oslo" } } }, required = { "city" } } } } },
    tool_choice = "auto", parallel_tool_calls = true, temperature = 0.5, top_p = 0.9, top_k = 5,
    min_p = 0.01, seed = 3, n = 1,
    stop = { "zzz" }, logit_bias = { ["5"] = 1 }, bad_words = {
      "moo" }, logprobs = true, top_logprobs = 1,
    chat_template_kwargs = {
      enable_thinking = false }, stream_options = json.null, user = "u", metadata = { a = "b" },
    perigee = { budget = 3 }, presence_penalty = 0.1, penalty_window = 8, response_format = {
      type = "text" } }))
  local plain = assert(json.decode(json.encode { prompt = { "a", { 5, 6 } }, echo = true,
    logprobs = 1, best_of = 2, n = 1,
    stop_token_ids = {
      7 }, repetition_penalty = 1.1, add_special_tokens = true, ignore_eos = false,
      min_tokens = 0 }))
  apiapp.run(t, function(app)
    local seen = {}
    for i = 1, 400 do
      local path, body = CHAT, mutate(full, random)
      if i % 4 == 0 then path, body = COMPLETIONS, mutate(plain, random) end
      if json.is_object(body) then body.max_tokens = 1 end
      local status, answer = app:ask(path, json.encode(body))
      seen[status] = (seen[status] or 0) + 1
      if status ~= 200 and status ~= 404 then
        t.eq(status, 400, json.encode(body))
        t.ok(answer.error.message ~= "" and not answer.error.message:find("%.lua:%d"),
          answer.error.message)
      end
    end
    t.ok(seen[200] > 50 and seen[400] > 50,
      json.encode(json.object { { "200", seen[200] }, { "400", seen[400] } }))
  end)
end)

test("what cannot fit is refused by its bytes, or by its tokens, before anything is made of it",
  function(t)
  apiapp.run(t, function(app)
    local function message(path, body)
      local status, answer = app:ask(path, body)
      t.eq({ status, answer.error and answer.error.code }, { 400, "context_length_exceeded" })
      return answer.error.message
    end
    local long = ("hello "):rep(50000)
    local too_long = " has 300000 bytes; there is room for 8191 tokens of at most 32 bytes each"
    t.eq(message(CHAT, { messages = user(long) }), "messages" .. too_long)
    t.eq(message(CHAT, { messages = user { { type = "text", text = long } } }),
      "messages" .. too_long)
    t.eq(message(COMPLETIONS, { prompt = long }), "prompt" .. too_long)
    -- on the loop, and beside it
    for _, words in ipairs { ("a b "):rep(10000), ("a b "):rep(50000) } do
      t.match(message(CHAT, { messages = user(words) }),
        "the conversation has [%a ]*%d+ tokens and does not fit: .* length is 8192 tokens")
      t.match(message(COMPLETIONS, { prompt = words }),
        "the prompt has [%a ]*%d+ tokens and does not fit: .* length is 8192 tokens")
    end
    -- more than the model reads can be counted
    local status, answer = app:ask("/tokenize", { content = ("a b "):rep(10000) })
    t.eq({ status, answer.count > 8192 }, { 200, true })
    app.config.limits.values = 100
    for _, body in ipairs { { content = ("a "):rep(120) }, { messages = user(("a "):rep(120)) } } do
      status, answer = app:ask("/tokenize", body)
      t.eq({ status, answer.error.code }, { 413, "too_many_values" })
      t.match(answer.error.message, "has %d+ tokens, at most 100 are listed")
    end
  end)
end)

test("while a request that makes much work is read, the loop turns", function(t)
  apiapp.run(t, function(app)
    local list = {}
    for i = 1, 1500 do
      list[2 * i - 1] = { role = "user", content = "hi" }
      list[2 * i] = { role = "assistant", content = "ho" }
    end
    local body, turns = json.encode { messages = list }, 0
    local counter = uv.new_prepare()
    counter:start(function() turns = turns + 1 end)
    local status = app:ask(CHAT, body)
    local before = turns
    app:ask(CHAT, "{}")
    counter:close()
    t.eq(status, 400)
    t.ok(before > 2 * (turns - before), ("%d turns, and %d for a small one"):format(before,
      turns - before))
  end)
end)
