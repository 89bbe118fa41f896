-- The OpenAI API over a real socket, with moonlet behind it: what is asked is answered as the
-- reference does, alone, together and streamed.
local apiapp = require "apiapp"
local async = require "lib.async"
local perigee = require "perigee"
local text = require "lib.text"
local test = require("harness").test
local json = perigee.json
local few = ... or os.getenv "SAN"

local CHAT = "/v1/chat/completions"

local answers = {}
for _, a in ipairs(assert(json.decode(assert(text.read_file "examples/moonlet/answers.json")))) do
  if #a.grids == 0 and a.margin > 0.05 then answers[#answers + 1] = a end
end

local function request_of(a, more)
  local body = json.object { { "messages", a.messages }, { "temperature", 0 },
    { "max_tokens", 400 } }
  if a.tools then body.tools = a.tools end
  if a.chat_template_kwargs then body.chat_template_kwargs = a.chat_template_kwargs end
  for key, value in pairs(more or {}) do body[key] = value end
  return body
end

--- What a stream says, joined: { content, reasoning, calls, finish, usage, ids of calls }.
local function joined(t, events)
  local r = { content = "", reasoning = "", calls = {}, logprobs = {} }
  t.eq(events[#events], "[DONE]")
  for i = 1, #events - 1 do
    local choice = events[i].choices[1]
    if events[i].usage and events[i].usage ~= json.null then r.usage = events[i].usage end
    if choice then
      local d = choice.delta
      r.content = r.content .. (d.content or "")
      r.reasoning = r.reasoning .. (d.reasoning_content or "")
      for _, call in ipairs(d.tool_calls or {}) do
        if call.id then
          t.eq(call.index, #r.calls, "index of a new call")
          r.calls[#r.calls + 1] = { name = call["function"].name, arguments = "" }
        end
        local now = r.calls[call.index + 1]
        now.arguments = now.arguments .. call["function"].arguments
      end
      if choice.logprobs ~= json.null then
        for _, entry in ipairs(choice.logprobs.content) do
          r.logprobs[#r.logprobs + 1] = entry.token
        end
      end
      if choice.finish_reason ~= json.null then r.finish = choice.finish_reason end
    end
  end
  return r
end

local function whole(answer)
  local message = answer.choices[1].message
  local r = { content = message.content ~= json.null and message.content or "",
    reasoning = message.reasoning_content or "",
    calls = {}, finish = answer.choices[1].finish_reason, logprobs = {} }
  for i, call in ipairs(message.tool_calls or {}) do
    r.calls[i] = { name = call["function"].name, arguments = call["function"].arguments }
  end
  return r
end

--- What moonlet's raw answer means.
local function expected(a)
  local r = require("parsers").parse(a.text, { format = a.tools and "qwen3_xml" or "none",
    reasoning = "qwen3", tools = a.tools,
    prompt_tail = a.prompt:sub(-200) })
  return { content = r.content or "", reasoning = r.reasoning or "", calls = r.calls, logprobs = {},
    finish = #r.calls > 0 and "tool_calls" or a.finish }
end

test("answers are the reference's: one by one, streamed, and all at once", function(t)
  apiapp.run(t, function(app)
    local some = few and table.move(answers, 1, 3, 1, {}) or answers
    local work = {}
    for i, a in ipairs(some) do
      local status, answer = app:ask(CHAT, request_of(a))
      t.eq(status, 200, a.name)
      t.eq(whole(answer), expected(a), a.name)
      t.eq(answer.usage.prompt_tokens, #a.prompt_ids, a.name)
      t.eq(answer.usage.completion_tokens, #a.ids, a.name)
      work[i] = function()
        local streamed = i % 2 == 0
        if not streamed then
          local _, again = app:ask(CHAT, request_of(a))
          return whole(again)
        end
        return joined(t, assert(app:events(CHAT, request_of(a))))
      end
    end
    for i, r in ipairs(async.all(work)) do
      r.usage = nil
      t.eq(r, expected(some[i]), "together: " .. some[i].name)
    end
    t.ok(#some >= 3)
  end)
end)
