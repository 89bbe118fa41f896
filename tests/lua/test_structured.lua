-- Structured output over HTTP: moonlet's answers have the form that a request asks for, alone and
-- among others, streamed and whole, after reasoning, and as calls in every format.
local apiapp = require "apiapp"
local async = require "lib.async"
local grammar = require "grammar"
local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local json = perigee.json

local test = harness.test

if ... then return end -- it serves: forced collection is test_api's

local CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
local RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

local function schema(text) return assert(json.decode(text)) end

local function with(body, fields)
  for key, value in pairs(fields) do body[key] = value end
  return body
end

--- A request without reasoning, so that an answer is short.
local function chat(fields)
  return with({ messages = { { role = "user", content = "Hello" } }, max_tokens = 200, seed = 1,
    chat_template_kwargs = { enable_thinking = false } }, fields)
end

local PERSON = schema [[{"type": "object", "properties": {"name": {"type": "string",
  "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
  "required": ["name", "age"], "additionalProperties": false}]]

local function format(given, strict)
  return { type = "json_schema",
    json_schema = { name = "answer", schema = given, strict = strict } }
end

local function fits(given, text)
  local g <close> = assert(grammar.schema(given, { order = "free" }))
  local m <close> = assert(g:matcher())
  return m:feed(text) == #text and m.complete
end

local function asked(t, app, path, body)
  local status, answer = app:ask(path, body)
  t.eq(status, 200, json.encode(body))
  return answer
end

-- ---- fields -------------------------------------------------------------------------------------

test("every API has fields for the form of an answer", function(t)
  apiapp.run(t, function(app)
    local turn = 0
    local function says(fields, check)
      turn = turn + 1
      if harness.slow and turn % 5 ~= 0 then return end -- one field of five
      local choice = asked(t, app, CHAT, chat(fields)).choices[1]
      t.ok(check(choice.message.content), json.encode(fields) .. choice.message.content)
      t.eq(choice.finish_reason, "stop", json.encode(fields))
    end
    local function person(text) return fits(PERSON, text) end
    local function number(text) return text:find "^%d%d%-%d%d$" ~= nil end
    local function color(text) return text == "red" or text == "green" end
    says({ response_format = format(PERSON) }, person)
    says({ guided_json = PERSON }, person)
    says({ guided_json = json.encode(PERSON) }, person)
    says({ json_schema = PERSON }, person)
    says({ json_schema = json.encode(PERSON) }, person)
    says({ response_format = { type = "json_object", schema = PERSON } }, person)
    says({ structured_outputs = { json = PERSON } }, person)
    says({ structured_outputs = { json = json.encode(PERSON) } }, person)
    says({ structured_outputs = { json = PERSON, disable_any_whitespace = true } },
      function(text) return fits(PERSON, text) and text:find '^{"name":".*","age":%d+}$' end)
    says({ guided_regex = "[0-9]{2}-[0-9]{2}" }, number)
    says({ structured_outputs = { regex = "[0-9]{2}-[0-9]{2}" } }, number)
    says({ guided_choice = { "red", "green" } }, color)
    says({ structured_outputs = { choice = { "red", "green" } } }, color)
    says({ grammar = 'root ::= "red" | "green"' }, color)
    says({ guided_grammar = 'start: "red" | "green"' }, color)
    says({ structured_outputs = { grammar = 'start: "red" | "green"' } }, color)
    says({ structured_outputs = { json_object = true }, max_tokens = 4000 }, json.decode)
    says({ response_format = { type = "json_object" }, max_tokens = 4000,
      structured_outputs = { json_object = false } }, json.decode)
    local long = "123456789012345678901234567890" -- more digits than a double has
    local const = ('{"const": %s}'):format(long)
    says({ guided_json = const }, function(text) return text == long end)
    says({ guided_json = json.decode(const, { digits = true }) },
      function(text) return text == long end)
    local plain = asked(t, app, COMPLETIONS, { prompt = "The color is", seed = 1,
      guided_choice = { "red", "green" } })
    t.ok(color(plain.choices[1].text), plain.choices[1].text)
    local answer = asked(t, app, RESPONSES, { input = "Hello", max_output_tokens = 200, seed = 1,
      chat_template_kwargs = { enable_thinking = false },
      text = { format = { type = "json_schema", name = "p", schema = PERSON } } })
    t.ok(person(answer.output[1].content[1].text), json.encode(answer.output))
    t.eq(answer.text.format.schema, PERSON)
    for _, where in ipairs { { output_config = { format = { type = "json_schema",
      schema = PERSON } } }, { output_format = { type = "json_schema", schema = PERSON } } } do
      answer = asked(t, app, MESSAGES, with({ messages = { { role = "user", content = "Hello" } },
        max_tokens = 200, seed = 1 }, where))
      t.ok(person(answer.content[1].text), json.encode(answer.content))
    end
    for _, fields in ipairs { { structured_outputs = { choice = { "red" } } },
      { guided_choice = { "red" } }, { guided_regex = "red" }, { guided_json = { const = "red" } },
      { guided_grammar = 'start: "red"' }, { grammar = 'root ::= "red"' },
      { json_schema = { const = "red" } } } do
      local what = json.encode(fields)
      answer = asked(t, app, RESPONSES, with({ input = "Hello", seed = 1,
        chat_template_kwargs = { enable_thinking = false } }, fields))
      t.match(answer.output[1].content[1].text, '^"?red"?$', what)
      answer = asked(t, app, MESSAGES, with({ messages = { { role = "user", content = "Hello" } },
        max_tokens = 20, seed = 1 }, fields))
      t.match(answer.content[1].text, '^"?red"?$', what)
    end
  end)
end)

local REFUSED = {
  { { response_format = format(PERSON), guided_regex = "a" }, "guided_regex",
    "and response_format.json_schema.schema are both given" },
  { { structured_outputs = { regex = "a", choice = { "b" } } }, "structured_outputs.choice",
    "and structured_outputs.regex are both given" },
  { { structured_outputs = { structural_tag = "x" } }, "structured_outputs.structural_tag",
    "is not supported" },
  { { structured_outputs = { regex = "a", whitespace_pattern = " " } },
    "structured_outputs.whitespace_pattern", "is not supported" },
  { { structured_outputs = { json = PERSON, disable_additional_properties = true } },
    "structured_outputs.disable_additional_properties", "is not supported" },
  { { structured_outputs = { json = PERSON, disable_any_whitespace = 1 } },
    "structured_outputs.disable_any_whitespace", "must be true or false" },
  { { structured_outputs = json.object { { "jsno", PERSON } } }, "structured_outputs",
    "must have one of json, regex" },
  { { structured_outputs = { json_object = "yes" } }, "structured_outputs.json_object",
    "must be true or false" },
  { { structured_outputs = { regex = 5 } }, "structured_outputs.regex", "must be a string" },
  { { structured_outputs = { choice = json.array {} } }, "structured_outputs.choice",
    "must not be empty" },
  { { structured_outputs = { grammar = "root ::= other" } }, "structured_outputs.grammar", "other",
    "grammar_invalid" },
  { { response_format = { type = "json_object", schema = 5 } }, "response_format.schema",
    "must be a JSON schema" },
  { { response_format = { type = "structural_tag" } }, "response_format.type",
    "got 'structural_tag'" },
  { { response_format = { type = "json_schema" } }, "response_format.json_schema", "is missing" },
  { { response_format = format(json.null) }, "response_format.json_schema.schema", "is missing" },
  { { response_format = format(schema '{"properties": {"a": {"maxLength": -1}}}') },
    "response_format.json_schema.schema", "(invalid): /properties/a: maxLength",
    "grammar_invalid" },
  { { response_format = format(schema '{"type": "string", "enum": [1]}') },
    "response_format.json_schema.schema", "(unsatisfiable)", "grammar_unsatisfiable" },
  { { response_format = format(schema '{"type": "object"}', true) },
    "response_format.json_schema.schema", "additionalProperties", "grammar_invalid" },
  { { guided_regex = "(a" }, "guided_regex", "(invalid)", "grammar_invalid" },
  { { guided_regex = "(a)\\1" }, "guided_regex", "(unsupported)", "grammar_unsupported" },
  { { guided_choice = { "a", 5 } }, "guided_choice[1]", "must be a string" },
  { { guided_json = "{" }, "guided_json", "is not valid JSON" },
  { { guided_json = 5 }, "guided_json", "must be a JSON schema" },
  { { grammar = "root ::= other" }, "grammar", "other", "grammar_invalid" },
  { { guided_whitespace_pattern = " " }, "guided_whitespace_pattern", "is not supported" },
  { { guided_grammar = "start: other" }, "guided_grammar", "other", "grammar_invalid" },
  { { grammar = 'root ::= "a"', grammar_lazy = true }, "grammar_lazy", "is not supported" },
  { { json_schema = json.array {} }, "json_schema", "must be a JSON schema" },
  { { json_schema = PERSON, grammar = 'root ::= "a"' }, "json_schema", "are both given" },
  { { fast_forward = 1 }, "fast_forward", "must be true or false" },
}

test("what cannot be followed is refused, with the field and the place in it", function(t)
  apiapp.run(t, function(app)
    for i, case in ipairs(REFUSED) do
      local fields, param, message, code = table.unpack(case, 1, 4)
      local status, answer = app:ask(CHAT, chat(fields))
      t.eq(status, 400, i)
      t.eq(answer.error.param, param, i)
      t.ok(answer.error.message:find(message, 1, true), i .. ": " .. answer.error.message)
      t.eq(answer.error.code, code or json.null, i)
      status, answer = app:ask(RESPONSES, with({ input = "Hello" }, fields))
      t.eq({ status, answer.error.param }, { 400, param }, i)
      status, answer = app:ask(MESSAGES, with({ max_tokens = 9,
        messages = { { role = "user", content = "Hello" } } }, fields))
      t.eq(status, 400, i)
      t.ok(answer.error.message:find(param, 1, true), i .. ": " .. answer.error.message)
    end
    local status, answer = app:ask(RESPONSES, { input = "Hello", guided_regex = "a",
      text = { format = { type = "json_object" } } })
    t.eq({ status, answer.error.param }, { 400, "text.format" })
  end)
end)

-- ---- alone and among others ---------------------------------------------------------------------

local KINDS = { '{"type": "array", "items": {"type": "boolean"}, "maxItems": 3}',
  '{"type": "string", "maxLength": 8}', '{"type": "integer", "minimum": 0, "maximum": 99}' }

--- A schema of its own for each request: i properties, some of them arrays.
local function numbered(i)
  local properties, required = json.object {}, json.array {}
  for k = 1, i % 5 + 1 do
    local name = ("p%d_%d"):format(i, k)
    required[k] = name
    properties[name] = schema(KINDS[k % #KINDS + 1])
  end
  return json.object { { "type", "object" }, { "properties", properties },
    { "required", required }, { "additionalProperties", false } }
end

local function streamed_text(t, app, body)
  local events, why = app:events(CHAT, body)
  t.ok(events, why)
  local parts, finish = {}, nil
  for _, event in ipairs(events) do
    local choice = type(event) == "table" and event.choices[1]
    if choice then
      parts[#parts + 1] = choice.delta.content
      finish = choice.finish_reason ~= json.null and choice.finish_reason or finish
    end
  end
  return table.concat(parts), finish
end

test("thirty streams at once, each by its own schema, say what each says alone", function(t)
  apiapp.run(t, function(app)
    local function ask(i)
      return chat { seed = i, temperature = 1, max_tokens = 800,
        response_format = format(numbered(i)) }
    end
    local alone, tasks = {}, {}
    for i = 1, harness.slow and 3 or 30 do
      alone[i] = asked(t, app, CHAT, ask(i)).choices[1].message.content
      t.ok(fits(numbered(i), alone[i]), alone[i])
      tasks[i] = function()
        local text, finish = streamed_text(t, app, ask(i))
        t.eq({ text, finish }, { alone[i], "stop" }, i)
      end
    end
    async.all(tasks)
  end, { sequences = 32 })
end)

test("n choices, logprobs and stop strings go on beside a form", function(t)
  apiapp.run(t, function(app)
    local answer = asked(t, app, CHAT, chat { n = 3, temperature = 1, max_tokens = 800,
      logprobs = true, top_logprobs = 2, response_format = format(PERSON) })
    for _, choice in ipairs(answer.choices) do
      t.ok(fits(PERSON, choice.message.content), choice.message.content)
      local said = {}
      for i, token in ipairs(choice.logprobs.content) do said[i] = token.token end
      t.eq(table.concat(said), choice.message.content)
    end
    answer = asked(t, app, CHAT, chat { stop = { '"age"' }, response_format = format(PERSON) })
    t.match(answer.choices[1].message.content, '^{.*"name".*, *\n* *$')
    answer = asked(t, app, CHAT, chat { max_tokens = 3, response_format = format(PERSON) })
    t.eq(answer.choices[1].finish_reason, "length")
  end)
end)

test("text that must come is counted, and can be left to the model", function(t)
  apiapp.run(t, function(app)
    local long = { guided_choice = { ("abc "):rep(20) } }
    local answer = asked(t, app, CHAT, chat(long))
    local forced = answer.usage.completion_tokens_details.forced_tokens
    t.ok(forced and forced > 10, json.encode(answer.usage))
    t.eq(answer.timings.forced_tokens, forced)
    t.eq(answer.choices[1].message.content, ("abc "):rep(20))
    long.fast_forward = false
    answer = asked(t, app, CHAT, chat(long))
    t.eq(answer.usage.completion_tokens_details.forced_tokens, nil)
    t.eq(answer.choices[1].message.content, ("abc "):rep(20))
    app.config.fast_forward, long.fast_forward = false, nil
    t.eq(asked(t, app, CHAT, chat(long)).usage.completion_tokens_details.forced_tokens, nil)
    long.fast_forward = true
    t.eq(asked(t, app, CHAT, chat(long)).usage.completion_tokens_details.forced_tokens, forced)
    app.config.fast_forward = true
    for wanted, count in pairs { [true] = forced, [false] = false } do
      long.fast_forward = wanted
      answer = asked(t, app, RESPONSES, with({ input = "Hello",
        chat_template_kwargs = { enable_thinking = false } }, long))
      t.eq(answer.usage.output_tokens_details.forced_tokens or false, count)
      answer = asked(t, app, MESSAGES, with({ max_tokens = 200,
        messages = { { role = "user", content = "Hello" } } }, long))
      t.eq(answer.usage.forced_tokens or false, count)
    end
  end)
end)

-- ---- reasoning ----------------------------------------------------------------------------------

-- Templates without a switch for reasoning; the second opens the block.
local BARE = [[{#- <think></think> -#}
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}<|im_start|>assistant
]]
local OPENED = BARE .. "<think>\n"

test("reasoning is free, and the answer after it is not", function(t)
  apiapp.run(t, function(app)
    local thought = 0
    for seed = 1, 6 do
      local answer = asked(t, app, CHAT, chat { seed = seed, max_tokens = 1000,
        thinking_token_budget = 30, chat_template_kwargs = json.object {},
        response_format = format(PERSON) })
      local message = answer.choices[1].message
      t.ok(fits(PERSON, message.content), message.content)
      if message.reasoning_content then thought = thought + 1 end
    end
    t.ok(thought > 0, "it never thinks")
  end, { template = BARE })
end)

test("reasoning is free before a text of GBNF or Lark, too", function(t)
  apiapp.run(t, function(app)
    for _, text in ipairs { 'root ::= "red" | "green"', 'start: "red" | "green"' } do
      local thought = 0
      for seed = 1, 6 do
        local message = asked(t, app, CHAT, chat { seed = seed, max_tokens = 1000,
          thinking_token_budget = 30, chat_template_kwargs = json.object {},
          guided_grammar = text }).choices[1].message
        t.ok(message.content == "red" or message.content == "green", message.content)
        if message.reasoning_content then thought = thought + 1 end
      end
      t.ok(thought > 0, "it never thinks")
    end
  end, { template = BARE })
end)

test("where a template switches reasoning off, there is none", function(t)
  local switch = BARE .. "{% if enable_thinking %}<think>\n{% endif %}"
  local other = BARE .. "{% if thinking %}<think>\n{% endif %}"
  local on = BARE .. "{% if enable_thinking is defined and not enable_thinking %} {% endif %}"
  local nothing = json.object {}
  local cases = { { switch, nothing, false }, { switch, { enable_thinking = true }, true },
    { other, nothing, false }, { other, { thinking = true }, true },
    { other, { enable_thinking = true }, true }, { on, nothing, true },
    { on, { enable_thinking = false }, false } }
  for i = 1, #cases, harness.slow and 5 or 1 do
    local template, kwargs, may_think = table.unpack(cases[i])
    apiapp.run(t, function(app)
      local thinks = false
      for seed = 1, 6 do
        local message = asked(t, app, CHAT, chat { seed = seed, max_tokens = 1000,
          thinking_token_budget = 10, chat_template_kwargs = kwargs,
          response_format = format(PERSON) }).choices[1].message
        t.ok(fits(PERSON, message.content), message.content)
        thinks = thinks or message.reasoning_content ~= nil
      end
      t.eq(thinks, may_think, template .. json.encode(kwargs))
    end, { template = template })
  end
end)

test("a block of reasoning that the prompt has opened ends first", function(t)
  apiapp.run(t, function(app)
    for seed = 1, 3 do
      local message = asked(t, app, CHAT, chat { seed = seed, max_tokens = 1000,
        thinking_token_budget = 20, response_format = format(PERSON) }).choices[1].message
      t.ok(message.reasoning_content, "it does not think")
      t.ok(fits(PERSON, message.content), message.content)
    end
  end, { template = OPENED })
end)

-- ---- calls --------------------------------------------------------------------------------------

local TIDE = schema [[{"type": "object", "properties": {"port": {"type": "string", "minLength": 1,
  "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
  "required": ["port", "days"], "additionalProperties": false}]]
local NOW = schema '{"type": "object", "properties": {}, "additionalProperties": false}'

local function tools(strict)
  return json.array { { type = "function", ["function"] = { name = "tide", parameters = TIDE,
    strict = strict } }, { type = "function", ["function"] = { name = "now", parameters = NOW } } }
end

--- Texts by which a template shows its format (parsers.detect).
local FORMATS = { hermes = "<tool_call>", qwen3_xml = "<tool_call><function=", llama =
  "<|python_tag|>", mistral = "[TOOL_CALLS]", deepseek = "<｜tool▁sep｜>```json", deepseek_v31 =
  "<｜tool▁sep｜>", kimi = "<|tool_call_argument_begin|>", granite = "<|tool_call|>", nemotron =
  "<TOOLCALL>", functionary = "<|recipient|>", glm47 = "<arg_key>", poolside_v1 =
  "<arg_key></assistant>", gemma4 = "<|tool_call>", harmony = "<|channel|><|message|>", minimax =
  "<minimax:tool_call>", seed_oss = "<seed:tool_call>", pythonic = "<|python_start|>", auto = "" }

--- A template that shows a format, and tools.
local function template_of(shown)
  return ("{#- %s -#}"):format(shown) .. [[
{% if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}]]
end

local function check_calls(t, choice, least, most, what)
  local calls = choice.message.tool_calls or {}
  t.ok(#calls >= least and #calls <= most, ("%s: %d calls"):format(what, #calls))
  t.eq(choice.finish_reason, "tool_calls", what)
  for _, call in ipairs(calls) do
    local fn = call["function"]
    local given = fn.name == "tide" and TIDE or NOW
    t.ok(fits(given, json.encode(assert(json.decode(fn.arguments)))), what .. fn.arguments)
  end
  return calls
end

for name, shown in pairs(FORMATS) do
  test("a call is made when it is demanded: " .. name, function(t)
    apiapp.run(t, function(app)
      t.eq(assert(app.models:find()).words.formats.tools, name)
      for seed = 1, 2 do
        local fields = { seed = seed, temperature = 1, tools = tools(), max_tokens = 400,
          tool_choice = "required", parallel_tool_calls = false }
        check_calls(t, asked(t, app, CHAT, chat(fields)).choices[1], 1, 1, name)
        fields.tool_choice = { type = "function", ["function"] = { name = "tide" } }
        local calls = check_calls(t, asked(t, app, CHAT, chat(fields)).choices[1], 1, 1, name)
        t.eq(calls[1]["function"].name, "tide")
      end
    end, { template = template_of(shown) })
  end)
end

-- ---- custom tools -------------------------------------------------------------------------------

local PATCH = 'start: "*** Begin" LF line~1..3 "*** End"\n'
  .. 'line: ("+" | "-") /.{0,8}/ LF\n%import common.LF\n'

local function custom(syntax, definition)
  return json.array { { type = "custom", name = "patch", format = { type = "grammar",
    syntax = syntax, definition = definition } } }
end

local function custom_request(fields)
  return with({ input = "Change it", max_output_tokens = 300, seed = 1, temperature = 1,
    chat_template_kwargs = { enable_thinking = false }, parallel_tool_calls = false }, fields)
end

for _, name in ipairs { "hermes", "qwen3_xml", "gemma4", "pythonic", "glm47" } do
  test("a custom tool's text follows its grammar: " .. name, function(t)
    apiapp.run(t, function(app)
      local lark <close> = assert(perigee.grammar.lark(PATCH))
      local regex <close> = assert(perigee.grammar.regex "[a-f]{3,9}\nend")
      for whole, list in pairs { [lark] = custom("lark", PATCH),
        [regex] = custom("regex", "[a-f]{3,9}\\nend") } do
        local output = asked(t, app, RESPONSES, custom_request { tools = list,
          tool_choice = { type = "custom", name = "patch" } }).output
        local item = output[#output]
        t.eq({ item.type, item.name }, { "custom_tool_call", "patch" })
        local m <close> = assert(whole:matcher())
        t.ok(m:feed(item.input) == #item.input and m.complete, item.input)
      end
    end, { template = template_of(FORMATS[name]) })
  end)
end

test("a custom tool's grammar holds for a call that the model makes by itself", function(t)
  apiapp.run(t, function(app)
    local mark = app.entry.tok:id "<tool_call>"
    local output = asked(t, app, RESPONSES, custom_request { tools = custom("regex", "[xy]{4}"),
      logit_bias = json.object { { tostring(mark), 100 } } }).output
    t.match(output[#output].input, "^[xy][xy][xy][xy]$")
  end)
end)

test("a custom tool's grammar that cannot be followed is refused with its place", function(t)
  apiapp.run(t, function(app)
    for _, case in ipairs { { "lark", "start: X", "tools[0].format" },
      { "lark", "%import other.X\nstart: X", "tools[0].format" },
      { "regex", "(", "tools[0].format" }, { "regex", "(a)\\1", "tools[0].format" },
      { "lark", "start: /[^\\s\\S]/", "tools[0].format" },
      { "ebnf", "start: X", "tools[0].format.syntax" },
      { "regex", ("a"):rep(65537), "tools[0].format.definition" } } do
      local status, answer = app:ask(RESPONSES, custom_request { tools = custom(case[1], case[2]) })
      t.eq({ status, answer.error.param }, { 400, case[3] }, case[1] .. case[2]:sub(1, 40))
    end
  end)
end)

test("tools of a free answer: a call is one, strict ones by their schema", function(t)
  apiapp.run(t, function(app)
    local mark = app.entry.tok:id "<tool_call>"
    local fields = { tools = tools(), logit_bias = json.object { { tostring(mark), 100 } },
      max_tokens = 300, temperature = 1, parallel_tool_calls = false }
    for seed = 1, 3 do
      fields.seed = seed
      local choice = asked(t, app, CHAT, chat(fields)).choices[1]
      if choice.finish_reason == "tool_calls" then
        local fn = choice.message.tool_calls[1]["function"]
        t.ok(fn.name == "tide" or fn.name == "now", fn.name)
        t.ok(json.is_object(assert(json.decode(fn.arguments))), fn.arguments)
      else
        t.eq(choice.finish_reason, "length")
      end
    end
    fields.tools = json.array { tools(true)[1] }
    for seed = 1, 3 do
      fields.seed = seed
      check_calls(t, asked(t, app, CHAT, chat(fields)).choices[1], 1, 1, "strict")
    end
    fields.tool_choice = "none"
    local said = asked(t, app, CHAT, chat(fields)).choices[1].message
    t.eq(said.tool_calls, nil)
    t.ok(not (said.content or ""):find("<tool_call>", 1, true), said.content)
  end)
end)

test("a schema that cannot be followed is refused only if its tool is strict", function(t)
  apiapp.run(t, function(app)
    local function ask(strict)
      local list = tools(strict)
      list[1]["function"].parameters = schema '{"properties": {"a": {"pattern": "("}}}'
      return app:ask(CHAT, chat { tools = list, max_tokens = 5 })
    end
    local status, answer = ask(true)
    t.eq({ status, answer.error.param, answer.error.code },
      { 400, "tools[0].function.parameters", "grammar_invalid" })
    t.ok(answer.error.message:find("/properties/a", 1, true), answer.error.message)
    t.eq(ask(false), 200)
    t.eq(ask(nil), 200)
  end)
end)

test("a form and tools: the answer is one or the other", function(t)
  apiapp.run(t, function(app)
    for seed = 1, 3 do
      local choice = asked(t, app, CHAT, chat { seed = seed, temperature = 1, tools = tools(),
        max_tokens = 800, response_format = format(PERSON) }).choices[1]
      if choice.finish_reason == "tool_calls" then
        check_calls(t, choice, 1, 9, "either")
      else
        t.ok(fits(PERSON, choice.message.content), choice.message.content)
      end
    end
  end)
end)

test("a call that is demanded has no other form, but that of text may stand beside it", function(t)
  local hook = { request = function(req)
    if req.user == "hook" then req.grammar = { choice = { "yes" } } end
  end }
  apiapp.run(t, function(app)
    local function ask(fields)
      return app:ask(CHAT, chat(with({ tools = tools(), tool_choice = "required",
        max_tokens = 400 }, fields)))
    end
    for _, case in ipairs { { "guided_json", PERSON }, { "guided_choice", { "yes" } },
      { "guided_regex", "yes" }, { "guided_grammar", 'start: "yes"' }, { "json_schema", PERSON },
      { "grammar", 'root ::= "yes"' }, { "structured_outputs", { regex = "yes" } },
      { "user", "hook" } } do
      local status, answer = ask { [case[1]] = case[2] }
      t.eq(status, 400, case[1])
      t.match(answer.error.message, "and tool_choice demand two forms", case[1])
    end
    local status, answer = ask { response_format = format(PERSON) }
    t.eq({ status, answer.choices[1].finish_reason }, { 200, "tool_calls" })
    status = app:ask(RESPONSES, custom_request { tools = custom("regex", "[xy]{4}"),
      tool_choice = { type = "custom", name = "patch" },
      text = { format = { type = "json_object" } } })
    t.eq(status, 200)
  end, { hooks = { hook } })
end)

-- ---- hooks --------------------------------------------------------------------------------------

test("a hook sets the form, or replaces it", function(t)
  local forms = { one = { choice = { "yes" } }, two = { regex = "no+" }, bad = { regex = "(" },
    none = {}, text = "x", typed = { regex = 5 }, mixed = { choice = { "a", 5 } },
    object = { choice = json.object { { "a", "b" } } } }
  local hook = { request = function(req) req.grammar = forms[req.user] end }
  apiapp.run(t, function(app)
    local function ask(user)
      return app:ask(CHAT, chat { user = user, guided_choice = { "maybe" } })
    end
    local _, answer = ask "one"
    t.eq(answer.choices[1].message.content, "yes")
    _, answer = ask "two"
    t.match(answer.choices[1].message.content, "^no+$")
    for _, user in ipairs { "bad", "none", "text", "typed", "mixed", "object" } do
      local status, refused = ask(user)
      t.eq({ status, refused.error.param }, { 400, "grammar" }, user)
    end
  end, { hooks = { hook } })
end)

test("forms that differ only in the order of members are two grammars", function(t)
  local hook = { request = function(req) req.grammar = { schema = PERSON, order = req.user } end }
  apiapp.run(t, function(app)
    for _, order in ipairs { "schema", "any", "any" } do
      asked(t, app, CHAT, chat { user = order })
    end
    t.eq(app.grammars.count, 2)
  end, { hooks = { hook } })
end)

test("every format but those that share a template is tried", function(t)
  local shared = { none = true, qwen = true, step3p5 = true, xlam = true }
  for _, name in ipairs(parsers.names "tools") do
    t.eq(FORMATS[name] ~= nil, not shared[name], name)
  end
end)
