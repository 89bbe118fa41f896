-- What the fields of a request do: probabilities, choices, stops, tools, thinking, prompts of every
-- kind, caches.
local apiapp = require "apiapp"
local perigee = require "perigee"
local text = require "lib.text"
local test = require("harness").test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_api and test_api_life do

local CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

local named = {}
for _, a in ipairs(assert(json.decode(assert(text.read_file "examples/moonlet/answers.json")))) do
  named[a.name] = a
end

local function ask_of(name, more)
  local a = named[name]
  local body = { messages = a.messages, tools = a.tools,
    chat_template_kwargs = a.chat_template_kwargs }
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

local function content(answer) return answer.choices[1].message.content end

test("probabilities: tokens, bytes, alternatives; in a stream the same", function(t)
  apiapp.run(t, function(app)
    local _, answer = app:ask(CHAT, ask_of("emoji", { logprobs = true, top_logprobs = 2 }))
    local list = answer.choices[1].logprobs.content
    local bytes = {}
    for _, entry in ipairs(list) do
      for _, b in ipairs(entry.bytes) do bytes[#bytes + 1] = string.char(b) end
      t.eq(#entry.top_logprobs, 2)
      t.eq(entry.top_logprobs[1].token, entry.token)
      t.eq(entry.top_logprobs[1].logprob, entry.logprob)
      t.ok(entry.logprob <= 0 and entry.logprob > -1, "greedy and sure")
    end
    t.eq(table.concat(bytes), named.emoji.text)
    local events = assert(app:events(CHAT, ask_of("emoji", { logprobs = true, top_logprobs = 2 })))
    local streamed = {}
    for i = 1, #events - 1 do
      local logprobs = events[i].choices[1].logprobs
      for _, entry in ipairs(logprobs ~= json.null and logprobs.content or {}) do
        streamed[#streamed + 1] = entry
      end
    end
    t.eq(json.encode(json.array(streamed)), json.encode(list))
    _, answer = app:ask(CHAT, ask_of("count", { logprobs = true, stop = ", 5" }))
    local tokens = {}
    for i, entry in ipairs(answer.choices[1].logprobs.content) do tokens[i] = entry.token end
    t.eq(table.concat(tokens), "1, 2, 3, 4", "nothing of the stop string")
  end)
end)

test("choices, seeds, limits and stops", function(t)
  apiapp.run(t, function(app)
    local wild = { temperature = 1.5, seed = 7, max_tokens = 12 }
    local _, many = app:ask(CHAT,
      ask_of("hello", { n = 3, temperature = 1.5, seed = 7, max_tokens = 12 }))
    t.eq(#many.choices, 3)
    local total = 0
    for i = 0, 2 do
      wild.seed = 7 + i
      local _, alone = app:ask(CHAT, ask_of("hello", wild))
      t.eq(many.choices[i + 1].index, i)
      t.eq(content { choices = { many.choices[i + 1] } }, content(alone), "choice " .. i)
      total = total + alone.usage.completion_tokens
    end
    t.eq(many.usage.completion_tokens, total)
    local events = assert(
      app:events(CHAT, ask_of("hello", { n = 3, temperature = 1.5, seed = 7, max_tokens = 12 })))
    local texts, ends = { "", "", "" }, 0
    for i = 1, #events - 1 do
      local c = events[i].choices[1]
      texts[c.index + 1] = texts[c.index + 1] .. (c.delta.content or "")
      if c.finish_reason ~= json.null then ends = ends + 1 end
    end
    t.eq({ ends, table.unpack(texts) }, { 3, many.choices[1].message.content,
      many.choices[2].message.content,
      many.choices[3].message.content })
    local _, stopped = app:ask(CHAT, ask_of("count", { stop = { "nothing", ", 5" } }))
    t.eq({ content(stopped), stopped.choices[1].finish_reason }, { "1, 2, 3, 4", "stop" })
    local _, cut = app:ask(CHAT, ask_of("count", { max_completion_tokens = 4, max_tokens = 90 }))
    t.eq({ cut.usage.completion_tokens, cut.choices[1].finish_reason }, { 4, "length" })
    local _, far = app:ask(CHAT, ask_of("count", { max_tokens = 1000000 }))
    t.eq({ content(far), far.choices[1].finish_reason }, { named.count.text, "stop" })
    local _, biased = app:ask(CHAT,
      ask_of("hello", { logit_bias = json.object { { "982", -100 } }, max_tokens = 6 }))
    t.ok(not content(biased):find("Hello", 1, true), content(biased))
    local _, ids = app:ask(CHAT, ask_of("hello", { stop_token_ids = { 939 } }))
    t.eq(content(ids), "Hello! I am")
    t.ok(app.last_log.ttft_ms > 0)
    t.eq({ app.last_log.model, app.last_log.prompt_tokens, app.last_log.finish },
      { "moonlet", 10, "stop" })
  end)
end)

test("tools: none, required, by name, one at a time, cut off", function(t)
  apiapp.run(t, function(app)
    local function ask(name, more)
      local _, answer = app:ask(CHAT, ask_of(name, more))
      return answer.choices[1]
    end
    t.eq(ask("tool_weather", { tool_choice = "none", max_tokens = 30 }).message.tool_calls, nil)
    local call = ask("tool_weather", { tool_choice = "required" }).message.tool_calls[1]
    t.eq({ call["function"].name, call["function"].arguments },
      { "get_weather", '{"city": "Paris"}' })
    local choice = { type = "function", ["function"] = { name = "get_time" } }
    local forced = ask("tool_weather", { tool_choice = choice, max_tokens = 60 })
    t.eq({ forced.message.tool_calls[1]["function"].name, forced.finish_reason },
      { "get_time", "tool_calls" })
    local _, twice = app:ask(CHAT,
      ask_of("tool_weather", { tool_choice = choice, max_tokens = 60, n = 2 }))
    for i = 1, 2 do t.eq(twice.choices[i].message.tool_calls[1]["function"].name, "get_time") end
    local one = ask("tool_two", { parallel_tool_calls = false })
    t.eq({ #one.message.tool_calls, one.finish_reason,
      one.message.tool_calls[1]["function"].arguments },
      { 1, "tool_calls", '{"city": "Oslo"}' })
    local cut = ask("tool_weather", { max_tokens = 6 })
    t.eq({ cut.finish_reason, cut.message.tool_calls, cut.other[1].kind },
      { "length", nil, "unfinished" })
    t.match(cut.other[1].text, "^<tool_call>\n<function=get_weather>")
    local events = assert(app:events(CHAT, ask_of("tool_two")))
    local first = events[2].choices[1].delta.tool_calls[1]
    t.eq({ first.index, first.type, first["function"].name, first["function"].arguments },
      { 0, "function", "get_weather", "" })
    t.match(first.id, "^call_%x+$")
    local last = events[#events - 1].choices[1]
    t.eq({ last.finish_reason, last.other }, { "tool_calls", nil })
  end)
end)

test("thinking, and a message that is continued", function(t)
  apiapp.run(t, function(app)
    local thought, said = named.think_sum.text:match "^(.*)\n</think>\n\n(.*)$"
    for _, how in ipairs { { chat_template_kwargs = { enable_thinking = true } },
      { enable_thinking = true } } do
      how.messages = named.think_sum.messages
      local _, answer = app:ask(CHAT, how)
      t.eq({ answer.choices[1].message.reasoning_content, content(answer) }, { thought, said })
    end
    local _, plain = app:ask(CHAT, { messages = named.think_sum.messages, enable_thinking = false })
    t.eq(plain.choices[1].message.reasoning_content, nil)
    local messages = { { role = "user", content = "Hello!" },
      { role = "assistant", content = "Hello! I am" } }
    local _, more = app:ask(CHAT, { messages = messages, continue_final_message = true })
    t.eq(content(more), " Moonlet. How can I help you?")
  end)
end)

test("completions: texts, ids, lists, echo, probabilities, the best of several", function(t)
  apiapp.run(t, function(app)
    local a, b = named.capital, named.sum
    local function ask(more)
      more.max_tokens = more.max_tokens or 20
      local status, answer = app:ask(COMPLETIONS, more)
      t.eq(status, 200)
      return answer
    end
    t.eq(ask({ prompt = a.prompt }).choices[1].text, a.text)
    t.eq(ask({ prompt = a.prompt_ids }).choices[1].text, a.text)
    t.eq(ask({ prompt = a.prompt_ids }).object, "text_completion")
    local both = ask { prompt = { a.prompt, b.prompt }, n = 2 }
    local texts = {}
    for i, c in ipairs(both.choices) do texts[i] = c.index .. c.text end
    t.eq(texts, { "0" .. a.text, "1" .. a.text, "2" .. b.text, "3" .. b.text })
    t.eq(both.usage.prompt_tokens, #a.prompt_ids + #b.prompt_ids)
    both = ask { prompt = { a.prompt_ids, b.prompt_ids } }
    t.eq({ both.choices[1].text, both.choices[2].text }, { a.text, b.text })
    local echo = ask { prompt = a.prompt, echo = true, logprobs = 2 }
    t.eq(echo.choices[1].text, a.prompt .. a.text)
    local l = echo.choices[1].logprobs
    t.eq({ #l.tokens, #l.token_logprobs, #l.top_logprobs, #l.text_offset },
      { #a.prompt_ids + #a.ids - 1, #l.tokens, #l.tokens,
      #l.tokens })
    t.eq({ l.token_logprobs[1], table.concat(l.tokens), l.text_offset[#a.prompt_ids + 1] },
      { json.null, a.prompt .. a.text, #a.prompt })
    local events = assert(app:events(COMPLETIONS, { prompt = a.prompt, echo = true,
      max_tokens = 20 }))
    local joined = {}
    for i = 1, #events - 1 do joined[i] = events[i].choices[1].text end
    t.eq(table.concat(joined), a.prompt .. a.text)
    local ids = ask { prompt = a.prompt, return_token_ids = true }
    t.eq(json.encode(ids.choices[1].token_ids), json.encode(a.ids))
    local best = ask { prompt = "Once upon", best_of = 4, temperature = 1.2, seed = 3,
      max_tokens = 8 }
    t.eq({ #best.choices, best.choices[1].logprobs, best.choices[1].index }, { 1, json.null, 0 })
    local each = ask { prompt = "Once upon", n = 4, temperature = 1.2, seed = 3, max_tokens = 8,
      logprobs = 0 }
    local top, chosen = -math.huge, nil
    for _, c in ipairs(each.choices) do
      local sum = 0
      for _, x in ipairs(c.logprobs.token_logprobs) do sum = sum + x end
      if sum / #c.logprobs.tokens > top then top, chosen = sum / #c.logprobs.tokens, c.text end
    end
    t.eq(best.choices[1].text, chosen)
    t.eq(ask({ prompt = a.prompt, max_tokens = 0, echo = true }).choices[1].text, a.prompt)
  end)
end)

test("what was read once is not read again; keys can be kept apart", function(t)
  apiapp.run(t, function(app)
    local body = {
      messages = {
      { role = "user", content = ("What is the capital of Spain? "):rep(20) } }, max_tokens = 2 }
    local function cached(key)
      local _, answer = app:ask(CHAT, body, { headers = { ["x-test-key"] = key } })
      return answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens
    end
    t.eq(cached "a", 0)
    local hit, prompt = cached "a"
    t.eq(hit, prompt - 1)
    t.eq(cached "b", prompt - 1)
    app.config.cache_per_key = true
    t.eq({ cached "a", (cached "b") }, { 0, 0 })
    t.eq({ (cached "a"), (cached "b") }, { prompt - 1, prompt - 1 })
  end)
end)

test("tokenize and detokenize", function(t)
  apiapp.run(t, function(app)
    local a = named.hello
    local _, answer = app:ask("/tokenize", { content = a.prompt, return_token_strs = true })
    t.eq({ json.encode(answer.tokens), answer.count }, { json.encode(a.prompt_ids), #a.prompt_ids })
    t.eq(table.concat(answer.token_strs), a.prompt)
    _, answer = app:ask("/tokenize", { prompt = a.prompt })
    t.eq(json.encode(answer.tokens), json.encode(a.prompt_ids))
    _, answer = app:ask("/tokenize", { messages = a.messages })
    t.eq(json.encode(answer.tokens), json.encode(a.prompt_ids))
    _, answer = app:ask("/tokenize", { content = "<|im_start|>", parse_special = false })
    t.ok(answer.count > 1, answer.count)
    _, answer = app:ask("/detokenize", { tokens = a.prompt_ids })
    t.eq({ answer.content, answer.prompt }, { a.prompt, a.prompt })
    _, answer = app:ask("/detokenize", { tokens = json.array {} })
    t.eq(answer.content, "")
  end)
end)

test("a long prompt is tokenized beside the loop, and refused with its numbers", function(t)
  apiapp.run(t, function(app)
    local words = ("word "):rep(20000)
    local status, answer = app:ask(CHAT, { messages = { { role = "user", content = words } } })
    t.eq({ status, answer.error.code }, { 400, "context_length_exceeded" })
    t.match(answer.error.message, "has at least 8192 tokens .*8192 tokens")
    status, answer = app:ask(COMPLETIONS, { prompt = words })
    t.eq({ status, answer.error.param }, { 400, "prompt" })
    local _, counted = app:ask("/tokenize", { content = words })
    t.eq(counted.count, #app.entry.tok:encode(words))
  end)
end)

test("a demanded call begins with tokens as the tokenizer cuts them", function(t)
  local opening = require "pipeline.opening"
  local tok = assert(perigee.tokenizer.open "examples/moonlet")
  local function ids_of(texts, name)
    local list = {}
    for i in ipairs(texts) do list[i] = { ["function"] = { name = "f" .. i } } end
    local words = { opening = function(_, wanted) return wanted and texts[tonumber(wanted:sub(2))]
      or "[" end }
    return opening.ids({ force_call = { name = name }, chat = { tools = list } }, { tok = tok },
      { words = words })
  end
  for _, text_of in ipairs { '<tool_call>\n{"name": "get_time", "arguments": ',
    "<tool_call>\n<function=get_time>\n",
    "[get_time(" } do
    local ids = ids_of({ text_of }, "f1")
    for _, rest in ipairs { '{"city": "Rome"}', "<parameter=city>", '"x"', "city=5" } do
      local whole = tok:encode(text_of .. rest)
      t.eq(ids, table.move(whole, 1, #ids, 1, {}), text_of .. rest)
    end
    t.ok(#text_of - #tok:decode(ids) <= 2, "nearly all of it: " .. tok:decode(ids))
  end
  local both = ids_of { "<function=get_time>\n", "<function=get_weather>\n" }
  t.eq(tok:decode(both), "<function=get")
  t.eq(tok:decode(ids_of { "apple", "<pear" }), "[", "nothing in common: what begins any call")
  t.eq(opening.ids({}, { tok = tok }, {}), nil)
  local ok, err = pcall(opening.ids,
    { force_call = {}, chat = { tools = { { ["function"] = { name = "f" } } } } }, { tok = tok },
    { words = { opening = function() end } })
  t.eq({ ok, err.status, err.field }, { false, 400, "tool_choice" })
  tok:close()
end)

test("an answer may fill the context, however many tokens were asked for", function(t)
  apiapp.run(t, function(app)
    local status, answer = app:ask(CHAT,
      { messages = { { role = "user", content = "Hello!" } }, max_tokens = 1000000,
      ignore_eos = true })
    t.eq({ status, answer.usage and answer.usage.total_tokens }, { 200, 128 })
    t.eq(answer.choices[1].finish_reason, "length")
  end, { context = 128 })
end)

test("no effort in reasoning means no thinking, unless the request says so", function(t)
  local seen
  local function template(req) seen = req.chat.kwargs end
  apiapp.run(t, function(app)
    local function thinking(more)
      more.messages, more.max_tokens, seen = { { role = "user", content = "Hello!" } }, 1, nil
      t.eq((app:ask(CHAT, more)), 200)
      return { seen.reasoning_effort, tostring(seen.enable_thinking) }
    end
    t.eq(thinking { reasoning_effort = "none" }, { "none", "false" })
    t.eq(thinking { reasoning_effort = "low" }, { "low", "nil" })
    t.eq(thinking { reasoning_effort = "none", enable_thinking = true }, { "none", "true" })
    t.eq(thinking { reasoning_effort = "none",
      chat_template_kwargs = { enable_thinking = true } }, { "none", "true" })
  end, { hooks = { { template = template } } })
end)
