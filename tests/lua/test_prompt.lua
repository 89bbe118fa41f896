-- pipeline.prompt with a tokenizer that is made up here: what is refused by its bytes, which texts
-- are tokenized on a helper thread, and what the parsers get to see.
local async = require "lib.async"
local perigee = require "perigee"
local prompts = require "pipeline.prompt"
local test = require("harness").test
local uv = require "luv"

--- A tokenizer whose tokens are bytes. calls: { whether it was asked for a callback, options }.
local function tok_of(calls)
  local tok = {}
  function tok.encode(_, text, options, callback)
    calls[#calls + 1] = { callback ~= nil, options }
    if tok.fail then return nil, tok.fail end
    local ids = { text:byte(1, 5) }
    if not callback then return ids end
    local timer = uv.new_timer()
    timer:start(0, 0, function()
      timer:close()
      callback(ids)
    end)
    return true
  end
  function tok.decode(_, ids) return ("%d ids, the last is %d"):format(#ids, ids[#ids]) end
  return tok
end

--- A model with room for `most` tokens of a prompt, and the calls of its tokenizer.
local function entry_of(most)
  local calls = {}
  return { name = "m", context = most + 1, tok = tok_of(calls),
    batch = { core = {}, room = function() return 0, 1 << 40 end } }, calls
end

test("a text of up to 64 KiB is tokenized at once, a longer one on a helper thread", function(t)
  local entry, calls = entry_of(1 << 20)
  local done
  async.run(function()
    local limit = prompts.limit(entry, "prompt")
    t.eq({ limit.field, limit.most }, { "prompt", 1 << 20 })
    t.eq(prompts.encode(limit, ("a"):rep(64 << 10), { add_special = false }),
      { 97, 97, 97, 97, 97 })
    t.eq({ calls[1][1], calls[1][2].max_ids, calls[1][2].add_special, calls[1][2].stop },
      { false, 1 << 20, false })
    t.eq(#prompts.encode(limit, ("a"):rep((64 << 10) + 1), {}), 5)
    t.eq({ calls[2][1], calls[2][2].stop ~= nil }, { true, true })
    done = true
  end)
  uv.run()
  t.ok(done)
end)

test("texts that cannot fit are refused with the number of their tokens", function(t)
  local entry = entry_of(10)
  local function refused(why, field)
    if entry.tok then entry.tok.fail = why end
    local ok, err = pcall(prompts.plain, entry, "text", { field = field or "prompt" })
    t.eq(ok, false)
    return err
  end
  local function error_of(code, fields)
    local err = perigee.error(code, "the reason")
    for key, value in pairs(fields or {}) do err[key] = value end
    return err
  end
  t.match(refused(error_of("limit", { count = 20 })).message,
    "the prompt has 20 tokens and does not fit: .* context length is 11 tokens")
  t.match(refused(error_of("limit", { above = 20 }), "messages").message,
    "the conversation has at least 21 tokens and does not fit")
  local err = refused(error_of "cancelled")
  t.eq({ err.status, err.code, err.field }, { 409, "cancelled" })
  err = refused(error_of "format")
  t.eq({ err.status, err.message, err.field }, { 400, "the reason", "prompt" })
  entry.tok = nil
  err = refused()
  t.eq({ err.message, err.field }, { "the model 'm' has no tokenizer: send token ids to "
    .. "/v1/completions", "prompt" })
end)

test("a plain prompt is text or ids, and not empty", function(t)
  local entry, calls = entry_of(10)
  t.eq(prompts.plain(entry, { 4, 5 }, {}), { ids = { 4, 5 } })
  t.eq(prompts.plain(entry, "ab", { field = "prompt" }), { ids = { 97, 98 }, text = "ab" })
  prompts.plain(entry, "ab", { field = "prompt", add_special = true })
  prompts.plain(entry, "ab", { field = "prompt", add_special = false })
  t.eq({ calls[1][2].add_special, calls[2][2].add_special, calls[3][2].add_special },
    { true, true, false })
  local err = t.raises(function() prompts.plain(entry, "", { field = "prompt" }) end,
    "prompt must not be empty")
  t.eq(err.field, "prompt")
end)

-- ---- conversations ------------------------------------------------------------------------------

--- A request whose hooks answer with hooks[phase](), and the words of its model's template.
local function request_of(chat, hooks, words)
  return { chat = chat, scripts = {
    words = function(_, _, name) if name then return words[name] end return words end,
    has = function(_, phase) return hooks[phase] ~= nil end,
    wait = function(_, phase, _, value) return hooks[phase](value) end,
    call = function(_, phase, _, value) return hooks[phase](value) end } }
end

--- Words that render every conversation to this text.
local function words_of(text, seen)
  return { name = text,
    prompt = function(_, o)
      if seen then seen[#seen + 1] = o end
      if not text then return nil, "cannot be rendered" end
      return { text = text, tail = "tail of " .. text, media = { "part" } }
    end,
    encode = function(_, tok, made, callback)
      return tok:encode(made.text, made, callback), { 2, 3 }
    end }
end

test("the text of a conversation counts before it is rendered", function(t)
  local entry = entry_of(1) -- 32 bytes
  local function fits(chat)
    local ok, err = pcall(prompts.chat, request_of(chat, {}, words_of "ok"), entry, {})
    return ok and "fits" or err.message:match "^messages has (%d+) bytes" or err
  end
  local function said(role, given) return { messages = { { role = role, content = given } } } end
  local function call(bytes)
    return { ["function"] = { arguments = ("x"):rep(bytes) } }
  end
  for _, case in ipairs {
    { said("user", ("x"):rep(32)), "fits" }, { said("user", ("x"):rep(33)), "33" },
    { said("user", { { text = ("x"):rep(30) }, { text = "xx" } }), "fits" },
    { said("user", { { text = ("x"):rep(30) }, 5, { text = 5 }, {}, { text = "xxx" } }), "33" },
    { said("user"), "fits" }, { said("user", 5), "fits" },
    -- Reasoning of earlier answers may be left out.
    { said("assistant", ("x"):rep(8 * 33 - 1)), "fits" },
    { said("assistant", ("x"):rep(8 * 33)), "33" },
    -- Arguments may have escapes, descriptions may be shown in part.
    { { messages = { { role = "assistant", tool_calls = { call(8 * 33 - 1) } } } }, "fits" },
    { { messages = { { role = "assistant", tool_calls = { call(8 * 32), call(8), 5, {},
      { ["function"] = 5 }, { ["function"] = {} } } } } }, "33" },
    { { messages = {}, tools = { { ["function"] = { description = ("x"):rep(8 * 33 - 1) } } } },
      "fits" },
    { { messages = {}, tools = { { ["function"] = { description = ("x"):rep(8 * 33) } } } },
      "33" },
    { { messages = { { content = ("x"):rep(16) }, 5, { content = ("x"):rep(17) } } }, "33" },
    { {}, "fits" }, { { messages = 5, tools = 5 }, "fits" },
  } do
    t.eq(fits(case[1]), case[2])
  end
  local turns = 0
  t.patch(async, "breathe", function() turns = turns + 1 end)
  fits { messages = { {}, 5, { content = "x" } } }
  t.eq(turns, 3) -- one for each message
  -- What the template makes of it counts as well.
  local ok, err = pcall(prompts.chat, request_of(said("user", "x"), {}, words_of(("x"):rep(33))),
    entry, {})
  t.eq({ ok, err.message }, { false,
    "messages has 33 bytes; there is room for 1 tokens of at most 32 bytes each" })
end)

test("the prompt of a conversation", function(t)
  local entry, calls = entry_of(100)
  local seen = {}
  local words = words_of("rendered", seen)
  local chat = { messages = { {} }, tools = { 1 }, tool_choice = "auto",
    add_generation_prompt = true, continue_final_message = false, kwargs = { a = 1 }, other = 1 }
  local made = prompts.chat(request_of(chat, {}, words), entry, {})
  t.eq({ made.ids, made.boundaries, made.tail, made.words == words, made.parts },
    { { ("rende"):byte(1, 5) }, { 2, 3 }, "tail of rendered", true, { "part" } })
  chat.other = nil
  t.eq(seen[1], chat)
  t.eq(calls[1][2].max_ids, 100)
  local err = t.raises(function()
    prompts.chat(request_of(chat, {}, words_of(nil)), entry, {})
  end, "cannot be rendered")
  t.eq({ err.status, err.field }, { 400, "messages" })
  err = t.raises(function() prompts.chat(request_of(chat, {}, nil), entry, {}) end,
    "the model 'm' has no chat template: use /v1/completions")
  t.eq(err.field, "messages")
  t.raises(function()
    prompts.chat(request_of(chat, {}, words_of "long"), entry,
      { limit = { tok = entry.tok, field = "messages", most = 0 } })
  end, "messages has 4 bytes; there is room for 0 tokens")
end)

test("hooks may replace a conversation, its template or its text", function(t)
  local entry, calls = entry_of(1000)
  local other = words_of "other"
  local words = words_of "own"
  words.another = other
  local chat = { messages = { { content = "x" } } }
  local function made(hooks)
    local req = request_of(chat, hooks, words)
    local prompt = prompts.chat(req, entry, {})
    return { prompt.tail, prompt.words == words and "own" or prompt.words == other and "other",
      req.chat == chat, #prompt.ids }, prompt
  end
  t.eq(made { normalize = function() end }, { "tail of own", "own", true, 3 })
  t.eq(made { normalize = function() return { messages = {} } end },
    { "tail of own", "own", false, 3 })
  t.eq(made { template = function() end }, { "tail of own", "own", true, 3 })
  t.eq(made { template = function() return { template = "another" } end },
    { "tail of other", "other", true, 5 })
  t.eq(made { template = function() return { template = "unknown" } end },
    { "tail of own", "own", true, 3 })
  -- A text, whose special tokens count.
  calls[#calls + 1] = "mark"
  local text = ("y"):rep(100) .. ("z"):rep(200)
  t.eq(made { template = function() return text end }, { ("z"):rep(200), "own", true, 5 })
  t.eq(calls[#calls][2].add_special, false)
  t.eq(made { template = function() return "short" end }, { "short", "own", true, 5 })
  -- Ids, the last of which are decoded for the parsers.
  local function ids(n)
    local list = {}
    for i = 1, n do list[i] = i end
    return list
  end
  for _, case in ipairs { { 3, 3 }, { 65, 65 }, { 66, 65 }, { 500, 65 } } do
    t.eq(made { template = function() return ids(case[1]) end },
      { ("%d ids, the last is %d"):format(case[2], case[1]), "own", true, case[1] })
  end
  local picture = { type = "image_url", image_url = { url = "media:1" } }
  chat.messages = { { content = { picture } } }
  local _, prompt = made { template = function() return { 1 } end }
  t.eq(prompt.parts, { picture })
end)
