-- A conversation in the three dialects that the page's developer panel writes it in: one prompt and
-- one answer. The bodies are those of tests/clients/dialects.json; test_dialects.cjs there tests
-- that the page writes them.
local apiapp = require "apiapp"
local harness = require "harness"
local perigee = require "perigee"
local text = require "lib.text"
local test = harness.test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_api does

local cases = assert(json.decode(assert(text.read_file "tests/clients/dialects.json")))

--- What an answer says, and the tokens of its prompt, whatever dialect it is in.
local function heard() return { text = "", reasoning = "", calls = {} } end

local function add_call(said, name, arguments)
  if type(arguments) == "string" then arguments = assert(json.decode(arguments)) end
  table.insert(said.calls, { name, json.encode(arguments) })
end

local readers = {}

function readers.chat(answer)
  local said, message = heard(), answer.choices[1].message
  said.text = message.content ~= json.null and message.content or ""
  said.reasoning = message.reasoning_content or ""
  for _, call in ipairs(message.tool_calls or {}) do
    add_call(said, call["function"].name, call["function"].arguments)
  end
  said.prompt = answer.usage.prompt_tokens
  return said
end

function readers.messages(answer)
  local said = heard()
  for _, block in ipairs(answer.content) do
    said.text = said.text .. (block.text or "")
    said.reasoning = said.reasoning .. (block.thinking or "")
    if block.type == "tool_use" then add_call(said, block.name, block.input) end
  end
  said.prompt = answer.usage.input_tokens + answer.usage.cache_read_input_tokens
  return said
end

function readers.responses(answer)
  local said = heard()
  for _, item in ipairs(answer.output) do
    for _, part in ipairs(item.content or {}) do said.text = said.text .. part.text end
    for _, part in ipairs(item.summary or {}) do said.reasoning = said.reasoning .. part.text end
    if item.type == "function_call" then add_call(said, item.name, item.arguments) end
  end
  said.prompt = answer.usage.input_tokens
  return said
end

local PATHS = { chat = "/v1/chat/completions", messages = "/v1/messages",
  responses = "/v1/responses" }

local function ask(t, app, dialect, body)
  body.stream, body.stream_options = nil, nil
  local status, answer = app:ask(PATHS[dialect], body)
  t.eq(status, 200, json.encode(answer))
  return readers[dialect](answer)
end

test("the page's three dialects are one prompt and one answer", function(t)
  apiapp.run(t, function(app)
    for _, case in ipairs(cases) do
      local first = ask(t, app, "chat", case.chat)
      t.ok(first.text ~= "" or #first.calls > 0, case.name)
      for _, dialect in ipairs { "messages", "responses" } do
        t.ok(case[dialect] or case.refused[dialect], case.name)
        if case[dialect] then
          t.eq(ask(t, app, dialect, case[dialect]), first, case.name .. ": " .. dialect)
        end
      end
    end
  end)
end)
