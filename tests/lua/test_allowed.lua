-- tool_choice that allows some of the tools: moonlet calls these alone, and its prompt shows all.
local apiapp = require "apiapp"
local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local test = harness.test

if ... then return end -- it serves: forced collection is test_api's

local CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"

local EMPTY = assert(json.decode '{"type": "object", "properties": {}}')
local NAMES = { "tide", "tides", "now" }

--- A tool by its name, in chat's form, or flat.
local function tool(name, flat, parameters)
  local fn = { name = name, parameters = parameters }
  if not flat then return { type = "function", ["function"] = fn } end
  fn.type = "function"
  return fn
end

local function list_of(names, flat, parameters)
  local list = json.array()
  for i, name in ipairs(names) do list[i] = tool(name, flat, parameters) end
  return list
end

local function allowed(mode, names)
  return { type = "allowed_tools", allowed_tools = { mode = mode, tools = list_of(names) } }
end

--- A request in which the mark of a call is as likely as can be.
local function body_of(app, fields)
  local mark = app.entry.tok:id "<tool_call>"
  local body = { seed = 1, temperature = 1, parallel_tool_calls = false,
    logit_bias = json.object { { tostring(mark), 100 } },
    chat_template_kwargs = { enable_thinking = false } }
  for key, value in pairs(fields) do body[key] = value end
  return body
end

local function chat(app, fields)
  local body = body_of(app, fields)
  body.messages, body.max_tokens = { { role = "user", content = "Hello" } }, 60
  body.tools = list_of(NAMES, false, EMPTY)
  local status, answer = app:ask(CHAT, body)
  return status, answer, status == 200 and answer.choices[1]
end

--- The names that ask(seed) calls, sorted: not every answer ends in time.
local function called(ask)
  local seen = {}
  for seed = 1, 6 do
    for _, name in ipairs(ask(seed)) do seen[name] = true end
  end
  return text.sorted_keys(seen)
end

local function names_in(choice)
  local names = {}
  for i, call in ipairs(choice.message.tool_calls or {}) do names[i] = call["function"].name end
  return names
end

for _, config in ipairs { {}, { tool_grammar = "off" }, { tool_grammar = "schema" } } do
  local how = config.tool_grammar or "frame"
  test("chat calls only tools that are allowed, and the prompt stays: " .. how, function(t)
    apiapp.run(t, function(app)
      app.config.tool_grammar = config.tool_grammar
      local _, plain = chat(app, {})
      local function names(choice)
        return called(function(seed)
          local status, answer, made = chat(app, { seed = seed, tool_choice = choice })
          t.eq({ status, answer.usage.prompt_tokens }, { 200, plain.usage.prompt_tokens })
          t.ok(answer.usage.prompt_tokens_details.cached_tokens > 0, "the prefix is not found")
          return names_in(made)
        end)
      end
      for _, mode in ipairs { "auto", "required" } do
        for _, name in ipairs(NAMES) do t.eq(names(allowed(mode, { name })), { name }, mode) end
        local two = names(allowed(mode, { "tides", "now" }))
        t.ok(#two > 0 and two[1] ~= "tide", mode)
      end
      t.eq(names(allowed("auto", {})), {})
    end)
  end)
end

test("chat: what is allowed with mode auto need not be called", function(t)
  apiapp.run(t, function(app)
    local _, _, choice = chat(app, { logit_bias = json.object {},
      tool_choice = allowed("auto", { "now" }) })
    t.ok(#names_in(choice) == 0 and #choice.message.content > 0)
  end)
end)

test("a choice that is wrong is refused with its place", function(t)
  apiapp.run(t, function(app)
    local status, answer = chat(app, { tool_choice = allowed("auto", { "now", "gone" }) })
    t.eq({ status, answer.error.param },
      { 400, "tool_choice.allowed_tools.tools[1].function.name" })
    status, answer = chat(app, { tool_choice = allowed("always", { "now" }) })
    t.eq({ status, answer.error.param }, { 400, "tool_choice.allowed_tools.mode" })
  end)
end)

test("Responses calls only tools that are allowed, and the prompt stays", function(t)
  apiapp.run(t, function(app)
    local function ask(choice, seed)
      local body = body_of(app, { tool_choice = choice, seed = seed })
      body.input, body.max_output_tokens = "Hello", 60
      body.tools = list_of(NAMES, true, EMPTY)
      return app:ask(RESPONSES, body)
    end
    local _, plain = ask(nil)
    for _, mode in ipairs { "auto", "required" } do
      for _, name in ipairs(NAMES) do
        t.eq(called(function(seed)
          local _, answer = ask({ type = "allowed_tools", mode = mode,
            tools = list_of({ name }, true) }, seed)
          t.eq(answer.usage.input_tokens, plain.usage.input_tokens)
          t.ok(answer.usage.input_tokens_details.cached_tokens > 0, "the prefix is not found")
          local last = answer.output[#answer.output]
          return { last and last.name }
        end), { name }, mode)
      end
    end
    local status, answer = ask { type = "allowed_tools", mode = "auto",
      tools = list_of({ "gone" }, true) }
    t.eq({ status, answer.error.param }, { 400, "tool_choice.tools[0].name" })
  end)
end)

test("without marks, what looks like a call of another tool is text", function(t)
  local known = parsers.known(list_of(NAMES), { now = true })
  for format, form in pairs { llama = '{"name": "%s", "parameters": {}}',
    xlam = '[{"name": "%s", "arguments": {}}]', pythonic = "[%s()]" } do
    local function calls(name)
      return #parsers.parse(form:format(name), { format = format, known = known }).calls
    end
    t.eq({ calls "now", calls "tide" }, { 1, 0 }, format)
  end
end)
