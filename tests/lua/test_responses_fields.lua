-- What a client of the Responses API can send wrong is a 400 that names the field.
local apiapp = require "apiapp"
local errors = require "lib.errors"
local perigee = require "perigee"
local read = require "api.responses.read"
local test = require("harness").test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_responses does

local PATH = "/v1/responses"

local FUNCTION = { type = "function", name = "f" }

local WRONG = {
  { { input = 5 }, "input" }, { { input = json.object {} }, "input" }, { {}, "input" },
  { { input = json.array() }, "input" }, { { input = { 5 } }, "input[0]" },
  { { instructions = "Be kind." }, "input" }, { { instructions = "" }, "input" },
  { { temperature = "x" }, "temperature" }, { { top_p = 7 }, "top_p" },
  { { max_output_tokens = 0 }, "max_output_tokens" }, { { stream = 1 }, "stream" },
  { { store = "yes" }, "store" }, { { include = 5 }, "include" }, { { include = { 5 } },
    "include[0]" },
  { { instructions = {} }, "instructions" }, { { reasoning = 5 }, "reasoning" },
  { { reasoning = { effort = 5 } }, "reasoning.effort" }, { { text = 5 }, "text" },
  { { text = { format = 5 } }, "text.format" },
  { { text = { format = { type = "grammar" } } }, "text.format.type" },
  { { text = { format = { type = "json_schema", name = "x" } } }, "text.format.schema" },
  { { text = { format = { type = "json_schema", schema = 5 } } }, "text.format.schema" },
  { { truncation = "middle" }, "truncation" }, { { metadata = { a = 5 } }, "metadata.a" },
  { { metadata = 5 }, "metadata" }, { { user = 5 }, "user" }, { { model = 5 }, "model" },
  { { previous_response_id = 5 }, "previous_response_id" }, { { background = 5 }, "background" },
  { { conversation = "conv_1" }, "conversation" }, { { prompt = { id = "p" } }, "prompt" },
  { { top_logprobs = 30 }, "top_logprobs" },
  { { tools = 5 }, "tools" }, { { tools = { 5 } }, "tools[0]" },
  { { tools = { { name = "f" } } }, "tools[0].type" },
  { { tools = { { type = "function" } } }, "tools[0].name" },
  { { tools = { { type = "function", name = "a b" } } }, "tools[0].name" },
  { { tools = { { type = "function", name = "f", parameters = 5 } } }, "tools[0].parameters" },
  { { tools = { { type = "function", name = "f", description = 5 } } }, "tools[0].description" },
  { { tools = { { type = "custom", name = "f", format = 5 } } }, "tools[0].format" },
  { { tools = { { type = "namespace", name = "n", tools = { { type = "function" } } } } },
    "tools[0].tools[0].name" },
  { { tool_choice = "required" }, "tool_choice" },
  { { tools = { { type = "web_search" } }, tool_choice = "required" }, "tool_choice" },
  { { tools = { FUNCTION }, tool_choice = { type = "function", name = "g" } }, "tool_choice" },
  { { parallel_tool_calls = 5 }, "parallel_tool_calls" },
  { { chat_template_kwargs = { tools = 5 } }, "chat_template_kwargs" },
}

test("what is wrong is refused, and the field is named", function(t)
  apiapp.run(t, function(app)
    for _, case in ipairs(WRONG) do
      local body = { input = "Hello!", max_output_tokens = 1 }
      if case[2] == "input" then body.input = nil end
      for key, value in pairs(case[1]) do body[key] = value end
      for _, path in ipairs { PATH, PATH .. "/input_tokens" } do
        local status, answer = app:ask(path, body)
        t.eq({ status, answer.error and answer.error.param }, { 400, case[2] }, json.encode(body))
        t.eq(answer.error.type, "invalid_request_error")
        t.ok(answer.error.message:find(case[2], 1, true), answer.error.message)
      end
    end
    local status, answer = app:ask(PATH, { input = "x", model = "nobody" })
    t.eq({ status, answer.error.code }, { 404, "model_not_found" })
    t.eq((app:ask(PATH, { input = "x", instructions = "", max_output_tokens = 1 })), 200)
    t.eq((app:ask(PATH, { input = "x", tools = { { type = "web_search" }, { type = "mcp" } },
      text = { verbosity = "low" }, stream_options = json.object(), truncation = "auto",
      client_metadata = { a = 1 }, max_output_tokens = 1 })), 200)
  end)
end)

--- A copy of a value in which something is another: of any kind, gone, or null.
local function mutate(value, random)
  local others = { 5, -1.5, "x", true, json.null, json.array(), json.object(), "", ("y"):rep(70) }
  local copy = assert(json.decode(json.encode(value)))
  local node = copy
  for _ = 1, 1 + random(8) do
    local keys = {}
    for key in pairs(node) do keys[#keys + 1] = key end
    if #keys == 0 then break end
    table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
    local key = keys[random(#keys)]
    if type(node[key]) ~= "table" or node[key] == json.null or random(3) == 1 then
      node[key] = others[random(#others)]
      break
    end
    node = node[key]
  end
  return copy
end

test("whatever is sent, nothing breaks: 400 with a field, or an answer", function(t)
  local seed = 4711
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    return seed // 65536 % n + 1
  end
  local full = { instructions = "Be kind.", input = {
      { type = "message", role = "developer", content = "Be brief." },
      { role = "user", content = { { type = "input_text", text = "Time?" } } },
      { type = "reasoning", id = "rs_1", summary = { { type = "summary_text", text = "Hm." } },
        content = { { type = "reasoning_text", text = "Hm, hm." } }, encrypted_content = "x" },
      { type = "message", role = "assistant", id = "msg_1", status = "completed", content = {
        { type = "output_text", text = "I look.", annotations = json.array() } } },
      { type = "function_call", call_id = "c1", name = "f", arguments = "{}", namespace = "n" },
      { type = "custom_tool_call", call_id = "c2", name = "g", input = "x" },
      { type = "function_call_output", call_id = "c1", output = "noon" },
      { type = "custom_tool_call_output", call_id = "c2", output = { { type = "input_text",
        text = "noon" } } },
      { type = "item_reference", id = "rs_9" }, { role = "user", content = "And now?" } },
    tools = { { type = "function", name = "f", description = "Tells.", strict = true,
        parameters = { type = "object", properties = { city = { type = "string" } } } },
      { type = "custom", name = "g", format = { type = "grammar", syntax = "lark",
        definition = "start: /x+/" } },
      { type = "namespace", name = "n", tools = { { type = "function", name = "h" } } } },
    tool_choice = { type = "allowed_tools", mode = "auto", tools = { { type = "function",
      name = "f" } } }, parallel_tool_calls = true, temperature = 0.5, top_p = 0.9,
    reasoning = { effort = "low", summary = "auto" }, text = { format = { type = "text" } },
    include = { "reasoning.encrypted_content", "message.output_text.logprobs" },
    top_logprobs = 2, truncation = "auto", user = "u",
    metadata = { a = "b" }, store = true, service_tier = "auto", prompt_cache_key = "k" }
  apiapp.run(t, function(app)
    local seen, from = {}, { headers = {}, path = PATH }
    local function count(kind) seen[kind] = (seen[kind] or 0) + 1 end
    for i = 1, 4000 do
      local body = mutate(full, random)
      if i % 40 == 0 then -- all the way
        body.max_output_tokens, body.background = 1, nil
        local status = app:ask(PATH, json.encode(body))
        t.ok(status == 200 or status == 400 or status == 404, json.encode(body))
        count(status)
      end
      local ok, err = pcall(read, body, from, app)
      count(ok)
      if not ok then
        err = errors.from(err)
        t.ok(err.status < 500 and err.field, tostring(err) .. " " .. json.encode(body))
      end
    end
    t.ok(seen[200] > 20 and seen[400] > 20, "answers and refusals")
    t.ok(seen[true] > 1000 and seen[false] > 1000, "read and refused")
  end)
end)
