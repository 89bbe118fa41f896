-- Conversations that are too long, with truncation "auto": the oldest turns go, and no more than
-- must.
local apiapp = require "apiapp"
local errors = require "lib.errors"
local harness = require "harness"
local truncate = require "pipeline.truncate"
local test = harness.test

local function say(role, n, more)
  local message = { role = role, tokens = n }
  for key, value in pairs(more or {}) do message[key] = value end
  return message
end

--- The conversation that is left of one in a context of so many tokens, as the numbers of its
--- messages, or the error; and the number of tries.
local function left(messages, context, sampling, needs_room)
  for i, message in ipairs(messages) do message.at = i end
  local req = { chat = { messages = messages, tools = "kept" }, sampling = sampling or {},
    needs_room = needs_room }
  local entry = { context = context, batch = { room = function() return 0, context end } }
  local tries = 0
  local ok, made = pcall(truncate.fit, entry, req, function()
    tries = tries + 1
    local ids = {}
    for _, message in ipairs(req.chat.messages) do
      for _ = 1, message.tokens do ids[#ids + 1] = 0 end
    end
    if #ids >= context then
      error(errors.new { code = "context_length_exceeded", message = ("%d"):format(#ids) }, 0)
    end
    return { ids = ids }
  end)
  if not ok then return made.message, tries end
  local out, n = {}, 0
  for i, message in ipairs(req.chat.messages) do out[i], n = message.at, n + message.tokens end
  if #made.ids ~= n or req.chat.tools ~= "kept" then return "not the prompt's conversation" end
  return out, tries
end

test("the oldest turns go; system, the last question and the newest turn stay", function(t)
  local function talk()
    return { say("system", 10), say("user", 10), say("assistant", 10), say("user", 10),
      say("assistant", 10), say("tool", 10), say("tool", 10), say("assistant", 10) }
  end
  t.eq(left(talk(), 100), { 1, 2, 3, 4, 5, 6, 7, 8 })
  t.eq(left(talk(), 81), { 1, 2, 3, 4, 5, 6, 7, 8 }) -- just fits: as it is, with room for a token
  t.eq(left(talk(), 80), { 1, 3, 4, 5, 6, 7, 8 })
  t.eq(left(talk(), 70), { 1, 4, 5, 6, 7, 8 }) -- an eighth is left for the answer
  t.eq(left(talk(), 70, { max_tokens = 4 }), { 1, 4, 5, 6, 7, 8 })
  t.eq(left(talk(), 75, { max_tokens = 4 }), { 1, 3, 4, 5, 6, 7, 8 })
  t.eq(left(talk(), 60), { 1, 4, 8 }) -- a call goes with its results
  t.eq(left(talk(), 31), { 1, 4, 8 }) -- hardly any room, but all that may go is gone
  t.eq(left(talk(), 30), "80") -- the error of the whole
end)

test("room for an answer, where it is needed", function(t)
  local function talk()
    return { say("user", 30), say("assistant", 30), say("user", 30) }
  end
  t.eq(left(talk(), 100), { 1, 2, 3 })
  t.eq(left(talk(), 100, nil, true), { 2, 3 }) -- an eighth
  t.eq(left(talk(), 100, { max_tokens = 5 }, true), { 1, 2, 3 })
  t.eq(left({ say("user", 90) }, 100, nil, true), { 1 }) -- nothing may go
  t.eq(left({ say("user", 100) }, 100, nil, true), "100")
end)

test("a loop of an agent keeps its task; few tries are needed", function(t)
  local list = { say("developer", 5), say("user", 5) }
  for _ = 1, 1000 do
    list[#list + 1] = say("assistant", 5)
    list[#list + 1] = say("tool", 5)
  end
  local out, tries = left(list, 130)
  t.eq({ out[1], out[2], out[#out] }, { 1, 2, 2002 })
  t.eq(out[3] % 2, 1) -- a call, not a result without one
  t.eq(#out, 2 + 2 * 10)
  t.ok(tries <= 12)
end)

if ... then return end -- once is enough: under forced collection test_api does

test("through the API: auto is answered from what is left, disabled is refused", function(t)
  apiapp.run(t, function(app)
    local input = { { role = "system", content = "Always mention TAN15 policy." } }
    for _ = 1, 60 do
      input[#input + 1] = { role = "user", content = ("Count to ten. "):rep(4) }
      input[#input + 1] = { role = "assistant", content = ("1, 2, 3, 4, 5, 6, 7, "):rep(4) }
    end
    input[#input + 1] = { role = "user", content = "What is the capital of Japan?" }
    local body = { input = input, temperature = 0, max_output_tokens = 30 }
    local status, answer = app:ask("/v1/responses", body)
    t.eq({ status, answer.error.code }, { 400, "context_length_exceeded" })
    body.truncation = "auto"
    status, answer = app:ask("/v1/responses", body)
    t.eq({ status, answer.status, answer.truncation }, { 200, "completed", "auto" })
    t.ok(answer.usage.input_tokens <= 1023 and answer.usage.input_tokens > 512)
    t.match(answer.output[1].content[1].text, "TAN15")
    body.input = ("word "):rep(4000) -- one message alone is too long
    status, answer = app:ask("/v1/responses", body)
    t.eq({ status, answer.error.code }, { 400, "context_length_exceeded" })
  end, { context = 1024, cache_tokens = 8192 })
end)
