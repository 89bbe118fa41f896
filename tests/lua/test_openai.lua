-- api.openai without a server: bodies at their limits, and what answers, chunks, logprobs and
-- errors look like.
local chat = require "api.openai.chat"
local completions = require "api.openai.completions"
local errors = require "lib.errors"
local dialect = require "api.openai.errors"
local perigee = require "perigee"
local stream = require "api.openai.stream"
local test = require("harness").test
local json = perigee.json

-- ---- bodies -------------------------------------------------------------------------------------

--- The req of a body, or { message, field } of its refusal.
local function read(api, body)
  local ok, req = pcall(api.read, assert(json.decode(json.encode(body))), {})
  if ok then return req end
  return { req.message, req.field }
end

local function say(fields)
  local body = { model = "m", messages = { { role = "user", content = "Hi" } } }
  for key, value in pairs(fields) do body[key] = value end
  return read(chat, body)
end

local function complete(fields)
  local body = { model = "m", prompt = "Hi" }
  for key, value in pairs(fields) do body[key] = value end
  return read(completions, body)
end

test("fields of both endpoints", function(t)
  for _, ask in ipairs { say, complete } do
    local req = ask { stream = true, stream_options = { include_usage = true }, n = 2, user = "u",
      max_tokens = 5, min_tokens = 5, return_token_ids = true }
    t.eq({ req.stream, req.include_usage, req.n, req.user, req.sampling.max_tokens,
      req.sampling.min_tokens, req.return_ids, req.model }, { true, true, 2, "u", 5, 5, true,
      "m" })
    req = ask {}
    t.eq({ req.stream, req.include_usage, req.n, req.sampling.max_tokens, req.return_ids },
      { false, nil, 1 })
    t.eq(ask({ stream = true, stream_options = {} }).include_usage, nil)
    t.eq(ask({ stream = true, stream_options = { include_usage = false } }).include_usage, false)
    t.eq(ask { stream_options = {} },
      { "stream_options is only for requests with stream = true", "stream_options" })
    t.eq(ask { max_tokens = 5, min_tokens = 6 },
      { "min_tokens must be at most max_tokens, which is 5, got 6", "min_tokens" })
    t.eq(ask { response_format = { type = "json" } },
      { "response_format.type must be 'text', 'json_object' or 'json_schema', got 'json'",
        "response_format.type" })
    t.ok(ask({ response_format = { type = "text" } }).id)
    req = ask { perigee = { script = "s", a = 1, b = "x", c = json.null } }
    t.eq(req.attached, { { name = "s", params = { a = 1, b = "x" } } })
    t.eq(ask({ perigee = { script = json.null, a = 1 } }).attached, {})
    t.eq(#ask({ perigee = { script = ("x"):rep(64) } }).attached, 1)
    for _, name in ipairs { "", ("x"):rep(65) } do
      t.eq(ask({ perigee = { script = name } })[2], "perigee.script")
    end
    t.eq(ask { perigee = { script = "s", a = {} } },
      { "perigee.a must be a string, a number, true or false", "perigee.a" })
  end
  t.eq(say({ max_tokens = 5, max_completion_tokens = 7 }).sampling.max_tokens, 7)
end)

test("fields of a conversation", function(t)
  local req = say {}
  t.match(req.id, "^chatcmpl%-%x+$")
  t.eq({ req.api, req.chat.kwargs, req.media, req.sampling.top_logprobs },
    { "chat", {}, {} })
  t.eq(say({ logprobs = true }).sampling.top_logprobs, 0)
  t.eq(say({ logprobs = true, top_logprobs = 3 }).sampling.top_logprobs, 3)
  for _, wrong in ipairs { { top_logprobs = 3 }, { top_logprobs = 3, logprobs = false } } do
    t.eq(say(wrong)[1], "top_logprobs is only for requests with logprobs = true")
  end
  local function variables(fields) return say(fields).chat.kwargs end
  t.eq(variables { chat_template_kwargs = { a = 1 }, enable_thinking = true },
    { a = 1, enable_thinking = true })
  t.eq(variables { enable_thinking = false }, { enable_thinking = false })
  t.eq(variables { reasoning_effort = "high" }, { reasoning_effort = "high" })
  t.eq(variables { reasoning_effort = "none" },
    { reasoning_effort = "none", enable_thinking = false })
  t.eq(variables { reasoning_effort = "none", enable_thinking = true },
    { reasoning_effort = "none", enable_thinking = true })
  for _, key in ipairs { "messages", "tools", "add_generation_prompt", "continue_final_message" } do
    t.eq(say { chat_template_kwargs = { [key] = 1 } }, { ("chat_template_kwargs cannot set '%s', "
      .. "which is a field of the request"):format(key), "chat_template_kwargs" })
  end
  t.ok(say({ modalities = { "text" } }).id)
  t.eq(say { modalities = { "text", "audio" } },
    { "modalities[1] must be 'text': this server generates nothing else", "modalities[1]" })
  t.eq(say { continue_final_message = true, add_generation_prompt = true },
    { "add_generation_prompt and continue_final_message cannot both be true",
      "add_generation_prompt" })
  local last = { { role = "assistant", content = "So" } }
  t.eq(say({ continue_final_message = true, messages = last }).chat.add_generation_prompt, false)
  t.eq(say({ add_generation_prompt = true }).chat.add_generation_prompt, true)
end)

test("prompts and choices of a completion", function(t)
  local req = complete { echo = true, logprobs = 2, add_special_tokens = false }
  t.match(req.id, "^cmpl%-%x+$")
  t.eq({ req.api, req.prompt, req.prompts, req.echo, req.sampling.top_logprobs, req.add_special,
    req.best_of }, { "completions", "Hi", { "Hi" }, true, 2, false })
  t.eq(complete({ prompt = { "a", "b" } }).prompts, { "a", "b" })
  t.eq(#complete({ prompt = { 1, 2 } }).prompts, 1)
  t.eq(#complete({ prompt = { { 1, 2 }, { 3 } } }).prompts, 2)
  t.eq(complete({ n = 2, best_of = 3 }).best_of, 3)
  t.eq(complete({ n = 2, best_of = 2 }).best_of, nil)
  t.eq(complete({ n = 2, best_of = 2, stream = true }).best_of, nil)
  t.eq(complete { n = 2, best_of = 1 }, { "best_of must be at least n, which is 2, got 1",
    "best_of" })
  t.eq(complete { n = 2, best_of = 3, stream = true },
    { "best_of must be n, which is 2, to be streamed, got 3", "best_of" })
  for _, empty in ipairs { json.array {}, { json.array {} } } do
    t.match(complete({ prompt = empty })[1], "must not be empty")
  end
  t.eq(complete({ prompt = { true } })[2], "prompt[0]")
  local many = {}
  for i = 1, 128 do many[i] = "x" end
  t.eq({ #complete({ prompt = many, n = 4 }).prompts, complete({ prompt = "x", n = 2 }).n },
    { 128, 2 })
  t.eq(complete { prompt = many, n = 5 },
    { "n must leave at most 512 answers for 128 prompts, got 640", "n" })
  t.eq(complete { prompt = many, best_of = 5 },
    { "n must leave at most 512 answers for 128 prompts, got 640", "n" })
  many[129] = "x"
  t.eq(complete { prompt = many }, { "prompt must have at most 128 entries, got 129", "prompt" })
end)

test("kinds of fields, at their bounds", function(t)
  local schema = require "api.schema"
  local function biases(map) return json.decode(json.encode(map)) end
  local function value(kind, v, f)
    local ok, got = pcall(schema.value, kind, "x", v, f)
    return ok and got or got.message
  end
  for _, case in ipairs {
    { "number", 3, { to = 3 }, 3 }, { "number", 3.5, { to = 3 }, "x must be at most 3, got 3.5" },
    { "number", 1, { from = 1 }, 1 },
    { "number", 0.5, { from = 1 }, "x must be at least 1, got 0.5" },
    { "number", 1, { from = 1, open = true }, "x must be above 1, got 1" },
    { "number", 1.5, { from = 1, open = true }, 1.5 },
    { "number", 0, { from = 1, to = 2 }, "x must be between 1 and 2, got 0" },
    { "number", 1, { from = 1, to = 2, open = true }, "x must be above 1 and at most 2, got 1" },
    { "number", 2, { from = 1, to = 2, open = true }, 2 },
    { "number", 0 / 0, {}, "x must be a number, got " .. tostring(0 / 0) },
    { "number", math.huge, {}, "x must be finite, got inf" },
    { "number", -math.huge, {}, "x must be finite, got -inf" },
    { "number", "1", {}, "x must be a number, got a string" },
    { "integer", 2.0, {}, 2 }, { "integer", 2.5, {}, "x must be an integer, got 2.5" },
    { "integer", true, {}, "x must be an integer, got a boolean" },
    { "boolean", 1, {}, "x must be true or false, got an integer" },
    { "string", "", {}, "" }, { "string", "", { from = 1 }, "x must not be empty" },
    { "string", "ab", { to = 2 }, "ab" },
    { "string", "abc", { to = 2 }, "x must have at most 2 bytes, got 3" },
    { "array", json.array {}, { from = 1 }, "x must not be empty" },
    { "array", json.array { 1, 2, 3 }, { to = 2 }, "x must have at most 2 entries, got 3" },
    { "strings", json.array { "ab", "abc" }, { bytes = 2 },
      "x[1] must have at most 2 bytes, got 3" },
    { "strings", json.array { "" }, {}, "x[0] must not be empty" },
    { "ids", json.array { 0, 0x7fffffff }, {}, { 0, 0x7fffffff } },
    { "ids", json.array { 1.0 }, {}, { 1 } },
    { "ids", json.array { 0, -1 }, {}, "x[1] must be between 0 and 2147483647, got -1" },
    { "ids", json.array { 0x80000000 }, {},
      "x[0] must be between 0 and 2147483647, got 2147483648" },
    { "bias", biases { ["1234567"] = 2 }, { to = 2, most = 1 }, { [1234567] = 2 } },
    { "bias", biases { ["12345678"] = 2 }, { to = 2, most = 1 },
      "x must have token ids as keys, got '12345678'" },
    { "bias", biases { ["1"] = -2.5 }, { to = 2, most = 1 },
      "x[1] must be between -2 and 2, got -2.5" },
    { "bias", biases { ["1"] = 1, ["2"] = 1 }, { to = 2, most = 1 },
      "x must have at most 1 entries" },
    { "words", json.array { "ab", json.array { 1 } }, { all = 3 }, { "ab", { 1 } } },
    { "words", json.array { "abc", json.array { 1 } }, { all = 3 },
      "x must have at most 3 bytes and ids together, got 4" },
  } do
    t.eq(value(case[1], case[2], case[3]), case[4])
  end
  local found = {}
  for _, f in ipairs(schema.sampling { top_k = { from = -1, to = 9, name = "k" } }) do
    found[f[1]] = f
  end
  t.eq({ found.k.from, found.k.to, found.k.as, found.top_k, found.k.into },
    { -1, 9, "top_k", nil, "sampling" })
  for _, name in ipairs { "hold", "keep_logits", "no_cache", "salt", "n", "max_tokens",
    "top_logprobs" } do
    t.eq(found[name], nil)
  end
  t.eq(found.min_tokens.to, 0x7fffffff)
end)

-- ---- objects ------------------------------------------------------------------------------------

--- A tokenizer whose tokens are letters: 1 is "a", 2 is "é".
local tok = { bytes = function(_, id) return id == 2 and "é" or ("a"):rep(id) end,
  decode = function() return "decoded" end }

local function decoded(value) return json.decode(json.encode(value)) end

--- An entry of logprobs.
local function entry(id, logprob, offset, top)
  return { id = id, logprob = logprob, bytes = tok:bytes(id), offset = offset, top = top }
end

test("logprobs of a conversation", function(t)
  local out = { index = 1, tok = tok, calls = {}, content = "a", other = {},
    logprobs = { entry(1, -0.5, 0, { { id = 2, logprob = -1.0 } }), entry(2, -math.huge, 1) } }
  local choice = decoded(chat.shape.choice({ sampling = { top_logprobs = 1 } }, out))
  t.eq(choice.logprobs.content, { { token = "a", logprob = -0.5, bytes = { 97 },
    top_logprobs = { { token = "é", logprob = -1.0, bytes = { 195, 169 } } } },
    { token = "é", logprob = -9999.0, bytes = { 195, 169 }, top_logprobs = {} } })
  t.eq({ choice.index, choice.message.content, choice.message.role }, { 1, "a", "assistant" })
  for _, case in ipairs { { {}, out }, { { top_logprobs = 1 }, out, true } } do
    t.eq(decoded(chat.shape.choice({ sampling = case[1] }, case[2], case[3])).logprobs, json.null)
  end
  out.altered = true
  t.eq(decoded(chat.shape.choice({ sampling = { top_logprobs = 1 } }, out)).logprobs, json.null)
  -- Texts that are kept say the same.
  for _, tokenizer in ipairs { tok, false } do
    local kept, columns = { tok = tokenizer or nil }, { {} }
    for i, one in ipairs(out.logprobs) do columns[1][i] = chat.shape.columns({}, kept, one)[1] end
    local text = json.decode(chat.shape.logprobs_text({}, kept, columns))
    t.eq(text.content[2], choice.logprobs.content[2])
    if tokenizer then t.eq(text.content, choice.logprobs.content) end
  end
  t.eq(json.decode(chat.shape.logprobs_text({}, {}, {})).content, {})
end)

test("logprobs of a completion, after those of an echo", function(t)
  local req = { echo = true, sampling = { top_logprobs = 1 }, prompts = { "aé" },
    all_ids = { { 1, 2 } } }
  local out = { index = 0, tok = tok, content = "ab",
    logprobs = { entry(3, -0.5, 0, { { id = 2, logprob = -1.0 } }), entry(1, -0.25, 3) } }
  local want = { tokens = { "a", "é", "aaa", "a" },
    token_logprobs = { json.null, json.null, -0.5, -0.25 },
    top_logprobs = { json.null, json.null, { aaa = -0.5, ["é"] = -1.0 }, { a = -0.25 } },
    text_offset = { 0, 1, 2, 5 } }
  local choice = decoded(completions.shape.choice(req, out))
  t.eq({ choice.logprobs, choice.text }, { want, "aéab" })
  local columns = { {}, {}, {}, {} }
  for i, one in ipairs(out.logprobs) do
    for k, text in ipairs(completions.shape.columns(req, out, one)) do columns[k][i] = text end
  end
  for _ = 1, 2 do -- the echo's are written once
    t.eq(json.decode(completions.shape.logprobs_text(req, out, columns)), want)
  end
  local short = { echo = true, sampling = { top_logprobs = 1 }, prompts = { "a" },
    all_ids = { { 1 } } }
  t.eq(json.decode(completions.shape.logprobs_text(short, out, {})).tokens, { "a" })
  short.all_ids = { {} }
  t.eq(json.decode(completions.shape.logprobs_text({ echo = true, sampling = short.sampling,
    prompts = { "" }, all_ids = { {} } }, out, columns)).tokens, { "aaa", "a" })
  -- In a stream: the echo first, then chunks.
  local head = decoded(completions.shape.head(req, out))
  t.eq({ head.text, head.logprobs.tokens, head.logprobs.text_offset }, { "aé", { "a", "é" },
    { 0, 1 } })
  local delta = decoded(completions.shape.delta(req, out, { text = "x" }))
  t.eq({ delta.text, delta.logprobs }, { "x", json.null })
  t.eq(json.decode(completions.shape.logprobs_text(req, out, columns, true)),
    { tokens = { "aaa", "a" }, token_logprobs = { -0.5, -0.25 },
      top_logprobs = { { aaa = -0.5, ["é"] = -1.0 }, { a = -0.25 } }, text_offset = { 2, 5 } })
  t.eq(decoded(completions.shape.finish(req, out)).logprobs, json.null)
  -- Without an echo, or without logprobs.
  req.echo = nil
  t.eq(completions.shape.head(req, out), nil)
  choice = decoded(completions.shape.choice(req, out))
  t.eq({ choice.logprobs.text_offset, choice.text }, { { 0, 3 }, "ab" })
  t.eq(decoded(completions.shape.choice(req, out, true)).logprobs, json.null)
  out.altered = true
  t.eq(decoded(completions.shape.choice(req, out)).logprobs, json.null)
  local function echoed(prompt, tokenizer)
    req = { echo = true, sampling = {}, prompts = { "x", { 1, 2 } }, all_ids = { {}, { 1, 2 } } }
    local one = { index = 0, prompt = prompt, tok = tokenizer }
    local choice_ = decoded(completions.shape.head(req, one))
    return { choice_.text, choice_.logprobs }
  end
  t.eq({ echoed(nil, tok), echoed(2, tok), echoed(2) },
    { { "x", json.null }, { "decoded", json.null }, { "", json.null } })
end)

test("logprobs in a stream are text, made without objects", function(t)
  local sent, fresh = {}, {}
  local response = { sse = function()
    return { event = function(_, text) sent[#sent + 1] = text end }
  end }
  local out = { index = 0, tok = tok, calls = {}, other = {}, finish = "stop",
    take_logprobs = function() return fresh end }
  local face = stream.new({ id = "i", received = 1, model = "m", stream = true,
    sampling = { top_logprobs = 1 } }, response, chat.shape)
  local objects, real = 0, json.object
  t.patch(json, "object", function(...)
    objects = objects + 1
    return real(...)
  end)
  local function delta(text)
    fresh, objects = { entry(1, -0.5, 0, { { id = 2, logprob = -1.0 } }) }, 0
    face:delta(out, { { type = "text", text = text } })
    local choice = json.decode(sent[#sent]).choices[1]
    return { choice.delta.content, #choice.logprobs.content, choice.logprobs.content[1].token,
      choice.logprobs.content[1].top_logprobs[1].logprob, choice.finish_reason }
  end
  face:begin()
  local want = { "x", 1, "a", -1.0, json.null }
  t.eq(delta "x", want)
  for _ = 1, 3 do t.eq({ delta "x", objects }, { want, 0 }) end
  fresh = {}
  face:delta(out, { { type = "call", index = 1, id = "c", name = "f" } })
  local choice = json.decode(sent[#sent]).choices[1]
  t.eq({ choice.logprobs, choice.delta.tool_calls[1].id }, { json.null, "c" })
  fresh = { entry(2, -0.25, 1) }
  face:finish(out)
  choice = json.decode(sent[#sent]).choices[1]
  t.eq({ choice.finish_reason, choice.logprobs.content[1].token }, { "stop", "é" })
end)

test("messages of a whole answer", function(t)
  local function message(fields)
    local out = { index = 0, calls = {} }
    for key, value in pairs(fields) do out[key] = value end
    return decoded(chat.shape.choice({ sampling = {} }, out)).message
  end
  t.eq(message { content = "x", reasoning = "y" }, { role = "assistant", content = "x",
    refusal = json.null, reasoning_content = "y" })
  t.eq(message {}, { role = "assistant", content = "", refusal = json.null })
  t.eq(message { calls = { { id = "i", name = "f", arguments = "{}" } } }, { role = "assistant",
    content = json.null, refusal = json.null, tool_calls = { { id = "i", type = "function",
      ["function"] = { name = "f", arguments = "{}" } } } })
  local function delta(d)
    return decoded(chat.shape.delta({}, { index = 0 }, d)).delta
  end
  t.eq(delta { type = "reasoning", text = "x" }, { reasoning_content = "x" })
  t.eq(delta { type = "call", index = 2, id = "i", name = "f" }, { tool_calls = { { index = 1,
    id = "i", type = "function", ["function"] = { name = "f", arguments = "" } } } })
  t.eq(delta { type = "call", index = 1, arguments = "{" }, { tool_calls = { { index = 0,
    ["function"] = { arguments = "{" } } } })
end)

-- ---- the face -----------------------------------------------------------------------------------

--- A face, and what its client gets.
local function face_of(fields, shape)
  local got = {}
  local req = { id = "id", received = 7, model = "m", sampling = {} }
  for key, value in pairs(fields) do req[key] = value end
  local response = { request = { path = "/v1/chat/completions" }, sse = function(_, headers)
    got.headers = headers
    return { event = function(_, text)
      got[#got + 1] = text == "[DONE]" and text or json.decode(text)
    end, finish = function() got.finished = true end }
  end, send_parts = function(_, code, headers, parts)
    got.code, got.headers, got.body = code, headers, json.decode(table.concat(parts))
  end, send = function(_, code, headers, text)
    got.code, got.headers, got.body = code, headers, json.decode(text)
  end }
  return stream.new(req, response, shape or chat.shape), got
end

local USAGE = { prompt_tokens = 5, completion_tokens = 3, cached_tokens = 2,
  timings = { queue_ms = 1.5 } }

local function usage_of(object)
  return { object.usage.prompt_tokens, object.usage.completion_tokens, object.usage.total_tokens,
    object.usage.prompt_tokens_details.cached_tokens,
    object.usage.prompt_tokens_details.image_tokens, object.timings.queue_ms,
    object.timings.ttft_ms }
end

test("a whole answer", function(t)
  local face, got = face_of { return_ids = true }
  local function out(index, more)
    local one = { index = index, calls = {}, content = "x", finish = "stop", other = {},
      ids = { 1, 2 } }
    for key, value in pairs(more or {}) do one[key] = value end
    return one
  end
  face:begin()
  face:answer({ out(0), out(1, { altered = true, other = { { kind = "dropped", text = "f" } } }) },
    USAGE)
  local body = got.body
  t.eq({ got.code, got.headers["x-perigee-request"], body.id, body.object, body.created,
    body.model, #body.choices }, { 200, "id", "id", "chat.completion", 7, "m", 2 })
  t.eq({ body.choices[1].token_ids, body.choices[1].finish_reason, body.choices[1].other,
    body.choices[2].token_ids, body.choices[2].other }, { { 1, 2 }, "stop", nil, nil,
    { { kind = "dropped", text = "f" } } })
  t.eq(usage_of(body), { 5, 3, 8, 2, nil, 1.5, json.null })
  USAGE.image_tokens = 4
  face, got = face_of {}
  face:answer({ out(0) }, USAGE)
  t.eq({ got.body.choices[1].token_ids, usage_of(got.body)[5] }, { nil, 4 })
  USAGE.image_tokens = nil
  -- Logprobs that were kept as texts.
  face, got = face_of { sampling = { top_logprobs = 0 } }
  local columns = { face:columns({ tok = tok }, entry(1, -0.5, 0)) }
  face:answer({ out(0, { columns = print, written = { columns[1] } }) }, USAGE)
  t.eq(got.body.choices[1].logprobs.content[1].token, "a")
  face, got = face_of {}
  t.eq(face:columns({ tok = tok }, entry(1, -0.5, 0)), nil)
  face:fail(errors.new { status = 503, message = "no" })
  t.eq({ got.code, got.headers["retry-after"], got.body.error.message }, { 503, 1, "no" })
end)

test("a stream", function(t)
  local face, got = face_of { stream = true, include_usage = true, return_ids = true }
  local out = { index = 0, finish = "stop", other = {}, ids = { 4 } }
  face:begin()
  t.eq(got.headers["x-perigee-request"], "id")
  face:delta(out, { { type = "text", text = "a" }, { type = "text", text = "b" },
    { type = "reasoning", text = "c" }, { type = "call", index = 1, id = "i", name = "f" },
    { type = "call", index = 1, arguments = "{" }, { type = "call", index = 2, arguments = "[" } })
  face:finish(out)
  face:answer({}, USAGE)
  local deltas = {}
  for i = 1, 7 do deltas[i] = got[i].choices[1].delta end
  t.eq({ deltas[1], deltas[2], deltas[3], deltas[4], deltas[6].tool_calls[1].index,
    deltas[7].tool_calls[1].index, deltas[7].tool_calls[1]["function"].arguments },
    { { role = "assistant", content = "" }, { content = "a" }, { content = "b" },
      { reasoning_content = "c" }, 0, 1, "[" })
  t.eq({ got[8].choices[1].finish_reason, got[8].choices[1].token_ids, got[8].usage,
    #got[9].choices, got[10], #got, got.finished },
    { "stop", { 4 }, json.null, 0, "[DONE]", 10, true })
  t.eq(usage_of(got[9]), { 5, 3, 8, 2, nil, 1.5, json.null })
  -- An error in the middle.
  face, got = face_of { stream = true }
  face:begin()
  face:fail(errors.new { status = 500, code = "x", message = "broken" })
  t.eq({ got[1].error.message, got[1].error.type, got[1].choices[1].finish_reason, got[1].usage,
    got[2] }, { "broken", "server_error", "error", nil, "[DONE]" })
  -- Logprobs go with the next chunk, unless a hook changed what is sent.
  face, got = face_of { stream = true, sampling = { top_logprobs = 0 } }
  local taken = 0
  out.take_logprobs = function()
    taken = taken + 1
    return { entry(1, -0.5, 0) }
  end
  out.tok = tok
  face:begin()
  face:delta(out, { { type = "text", text = "a" } })
  t.eq(got[2].choices[1].logprobs.content[1].token, "a")
  out.altered = true
  face:finish(out)
  t.eq({ got[3].choices[1].logprobs, taken }, { json.null, 2 })
end)

-- ---- errors -------------------------------------------------------------------------------------

test("errors of the server are noted in the log, those of clients are not", function(t)
  for status, noted in pairs { [400] = 0, [499] = 0, [500] = 1, [503] = 1 } do
    local notes, refused = {}, nil
    local app = { config = { limits = { values = 1000 } }, log = { note = function(_, kind, said)
      notes[#notes + 1] = { kind, said }
    end }, refuse = function(_, _, err) refused = err end }
    local handle = require "api.answer"(app, function()
      error(errors.new { status = status, message = "it broke" }, 0)
    end)
    require("lib.async").run(function()
      handle({ path = "/x", body = "{}", headers = {}, header = function() end }, {})
    end)
    require("luv").run()
    t.eq({ refused.status, #notes }, { status, noted })
    if noted > 0 then t.eq(notes[1], { "error", "/x: it broke" }) end
  end
end)

test("types and codes of errors", function(t)
  for status, kind in pairs { [400] = "invalid_request_error", [401] = "authentication_error",
    [403] = "permission_error", [404] = "not_found_error", [409] = "conflict_error",
    [413] = "invalid_request_error", [429] = "rate_limit_error", [499] = "invalid_request_error",
    [500] = "server_error", [503] = "overloaded_error" } do
    local object = decoded(dialect.object { status = status, message = "m", code = "c" }).error
    t.eq({ object.type, object.message, object.param, object.code }, { kind, "m", json.null, "c" })
  end
  for code, want in pairs { argument = json.null, format = json.null, shape = json.null,
    unsupported = json.null, no_token = json.null, refused = json.null, unsatisfiable = json.null,
    limit = "context_length_exceeded", memory = "overloaded", queue_full = "queue_full" } do
    t.eq(decoded(dialect.object { status = 400, message = "m", code = code, field = "f" }).error,
      { message = "m", type = "invalid_request_error", param = "f", code = want })
  end
end)

-- ---- tokens -------------------------------------------------------------------------------------

test("/tokenize and /detokenize", function(t)
  local async = require "lib.async"
  local handlers, calls = {}, {}
  local letters = { size = 100, bytes = function(_, id) return string.char(id) end,
    encode = function(_, text, options)
      calls[#calls + 1] = options
      return { text:byte(1, -1) }
    end,
    decode = function(_, ids, options)
      calls[#calls + 1] = options
      return string.char(table.unpack(ids))
    end }
  local entry_of = { name = "m", tok = letters, context = 50,
    batch = { core = {}, room = function() return 0, 100 end } }
  local rendered
  local words = { prompt = function(_, o)
    rendered = o
    return { text = "abc" }
  end,
    encode = function(_, tokenizer, made) return tokenizer:encode(made.text, made), {} end }
  local app = { config = { limits = { values = 1000 } }, log = { note = error },
    models = { find = function() return entry_of end },
    scripts = { current = function()
      return { has = function() return false end, words = function() return words end }
    end },
    route = function(_, method, path, handler, options)
      t.eq({ method, options.cost }, { "POST", true })
      handlers[path] = handler
    end, refuse = function(_, response, err) response.err = err end }
  require("api.openai.tokens").routes(app)
  local function ask(path, body)
    local got
    async.run(function()
      local response = { send_parts = function(_, _, _, parts)
        got = json.decode(table.concat(parts))
      end }
      handlers[path]({ path = path, body = json.encode(body), headers = {},
        header = function(_, name)
          return name == "content-type" and "application/json" or nil
        end }, response)
      got = got or { response.err.status, response.err.message }
    end)
    require("luv").run()
    return got
  end
  local function tokenize(body)
    calls = {}
    return ask("/tokenize", body), calls[1] or {}
  end
  local got, options = tokenize { content = "ab" }
  t.eq({ got, options.add_special, options.max_ids }, { { tokens = { 97, 98 }, count = 2,
    max_model_len = 50 }, false, 1000 })
  for _, case in ipairs { { { prompt = "a" }, true },
    { { prompt = "a", add_special = false }, false },
    { { content = "a", add_special = true }, true },
    { { content = "a", add_special_tokens = true }, true },
    { { prompt = "a", add_special = true, add_special_tokens = false }, true } } do
    t.eq(select(2, tokenize(case[1])).add_special, case[2])
  end
  t.eq(select(2, tokenize { content = "a", parse_special = true }).parse_special, true)
  t.eq(tokenize({ content = "ab", return_token_strs = true }).token_strs, { "a", "b" })
  t.eq(tokenize({ content = "" }).count, 0)
  t.eq(tokenize({ messages = { { role = "user", content = "x" } } }).tokens, { 97, 98, 99 })
  t.eq(rendered.kwargs, {})
  tokenize { messages = { { role = "user", content = "x" } }, chat_template_kwargs = { a = 1 },
    add_generation_prompt = false, tools = json.array {} }
  t.eq({ rendered.kwargs, rendered.add_generation_prompt, rendered.tools }, { { a = 1 }, false })
  t.eq(tokenize {}, { 400, "content is missing; send content, prompt or messages" })
  t.match(tokenize({ messages = { { role = "user", content = "x" } }, tools = { 5 } })[2],
    "^tools%[0%]")
  t.match(tokenize({ messages = { { role = "nobody", content = "x" } } })[2], "^messages%[0%]")
  local many = {}
  for _, n in ipairs { 4096, 4097, 8193 } do
    app.config.limits.values = n
    many[1] = ("a"):rep(n)
    got = tokenize { content = many[1], return_token_strs = true }
    t.eq({ got.count, #got.tokens, #got.token_strs, got.tokens[n] }, { n, n, n, 97 })
  end
  calls = {}
  t.eq(ask("/detokenize", { tokens = { 97, 98 } }), { content = "ab", prompt = "ab" })
  t.eq(calls[1].skip_special, false)
  ask("/detokenize", { tokens = { 97 }, skip_special_tokens = true })
  t.eq(calls[2].skip_special, true)
  t.eq(ask("/detokenize", {}), { 400, "tokens is missing" })
  t.eq(ask("/detokenize", { tokens = { 99 } }).content, "c")
  t.eq(ask("/detokenize", { tokens = { 97, 100 } }),
    { 400, "tokens[1] must be at most 99, the last id of the vocabulary, got 100" })
  entry_of.tok = nil
  t.eq(ask("/detokenize", { tokens = { 97 } }), { 400, "model 'm' has no tokenizer" })
end)

test("the session of a request: a field, or a header of an agent", function(t)
  local function session(body, headers)
    body.messages = { { role = "user", content = "Hi" } }
    return chat.read(assert(json.decode(json.encode(body))), { headers = headers }).session
  end
  t.eq(session({}, {}), nil)
  t.eq(session({ prompt_cache_key = "a" }, { ["session-id"] = "b" }), "a")
  t.eq(session({}, { ["session-id"] = "b" }), "b")
  t.eq(session({}, { ["x-claude-code-session-id"] = "c" }), "c")
  t.eq(session({ prompt_cache_key = "" }, {}), nil)
  t.eq(#session({}, { ["x-session-id"] = ("x"):rep(500) }), 128)
end)
