-- Parsers: the cases of tests/parsers and of each format's file, whole, byte by byte and cut at
-- random; schemas of any shape; linear time.
local forced = ...
local harness = require "harness"
local args = require "parsers.args"
local checks = require "cmd.check.kinds"
local parsers = require "parsers"
local perigee = require "perigee"
local scan = require "parsers.scan"
local selftest = require "parsers.selftest"
local text = require "lib.text"
local uv = require "luv"

local json = perigee.json
local test = harness.test
local folder = debug.getinfo(1, "S").source:match "^@(.*)/lua/[^/]*$" .. "/parsers/"

--- A small generator of our own, so that a failure can be repeated.
local samples = require "samples"
local generator, cut = samples.generator, samples.cut

local KINDS = { "unfinished", "unknown", "analysis", "commentary" }

local function decoded(calls)
  local out = {}
  for i, call in ipairs(calls or {}) do
    local value, why = call[2], nil
    if type(value) == "string" then value, why = json.decode(value) end
    out[i] = { call[1], why and "not JSON: " .. call[2] or value }
  end
  return out
end

local function expected(case)
  local want = { content = case.content, reasoning = case.reasoning, calls = decoded(case.calls) }
  for _, kind in ipairs(KINDS) do want[kind] = case[kind] end
  return want
end

local function got(pieces, o)
  local shape = selftest.shape(parsers.parse(pieces, o))
  shape.calls = decoded(shape.calls)
  return shape
end

local function check_case(t, case, o)
  local random = generator(#case.text)
  local want = expected(case)
  local label = ("%s/%s: "):format(o.format or o.reasoning, case.name)
  t.eq(got(case.text, o), want, label .. "whole")
  t.eq(got(selftest.bytes(case.text), o), want, label .. "byte by byte")
  for _ = 1, 5 do t.eq(got(cut(case.text, random), o), want, label .. "cut at random") end
end

local request = assert(uv.fs_scandir(folder))
local files = {}
for name in function() return uv.fs_scandir_next(request) end do files[#files + 1] = name end
table.sort(files)

local function check_file(t, name)
  local file = assert(json.decode(assert(text.read_file(folder .. name))))
  for _, case in ipairs(file.cases) do
    check_case(t, case, { format = case.format or file.format or "none",
      reasoning = case.reasoning_format or file.reasoning, tools = file.tools,
      prompt_tail = case.prompt_tail })
  end
end

-- Parsers are pure Lua: one file is enough to run them under forced garbage collection.
if forced then
  test("cases of both.json", function(t) check_file(t, "both.json") end)
  return
end

for _, name in ipairs(files) do
  test("cases of " .. name, function(t) check_file(t, name) end)
end

test("every format has cases here and in its file", function(t)
  local have = {}
  for _, name in ipairs(files) do have[name] = true end
  for _, kind in ipairs { "tools", "reasoning" } do
    for _, name in ipairs(parsers.names(kind)) do
      if name ~= "none" then
        t.ok(have[(kind == "tools" and "" or "reasoning_") .. name .. ".json"], kind .. " " .. name)
      end
      local format = assert(parsers.find(kind, name))
      t.ok(selftest.run(format, { kind = kind, where = name }) > 0, name)
    end
  end
end)

test("self-tests fail where they should", function(t)
  local wrong = { name = "wrong", marks = {}, selftest = { { text = "a", content = "b" } } }
  local err = t.raises(function() selftest.run(wrong, { kind = "tools", where = "x.lua" }) end,
    'x.lua: case 1 (')
  t.match(tostring(err), 'got { content = "a" }, want { content = "b" }')
  t.raises(function() selftest.run({ name = "none" }, { kind = "tools", where = "y.lua" }) end,
    "has no self-test cases")
end)

test("check runs the cases of a parser's file", function(t)
  local limits = { deadline_ms = 5000 }
  local path = "scripts/parsers/tools/hermes.lua"
  local kind = checks.kind_of(path)
  t.eq(kind.name, "parser")
  t.match(kind.check(path, limits), "^%d+ cases passed, each whole and byte by byte$")
  local tmp = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-XXXXXX"))
  for _, name in ipairs { "/parsers", "/parsers/tools" } do
    assert(uv.fs_mkdir(tmp .. name, 448))
  end
  path = tmp .. "/parsers/tools/mine.lua"
  local file <close> = assert(io.open(path, "w"))
  file:write [[return { name = "mine", marks = {},
    selftest = { { text = "a", calls = { { "a", "{}" } } } } }]]
  file:flush()
  local ok, why = checks.kind_of(path).check(path, limits)
  for _, name in ipairs { "/parsers/tools/mine.lua", "/parsers/tools", "/parsers", "" } do
    os.remove(tmp .. name)
  end
  t.eq(ok, nil)
  t.match(tostring(why), "mine.lua: case 1 ")
end)

test("names, aliases and errors", function(t)
  t.eq(parsers.find("tools", "qwen3_coder").name, "qwen3_xml")
  t.eq(parsers.find("reasoning", "harmony").name, "gpt_oss")
  for _, kind in ipairs { "tools", "reasoning" } do
    local names, known = parsers.names(kind), {}
    t.eq(select(2, parsers.find(kind, "")):match "%(there are: (.*)%)$", table.concat(names, ", "))
    for _, name in ipairs(names) do known[parsers.find(kind, name)] = true end
    for name in uv.fs_scandir_next, assert(uv.fs_scandir(folder .. "../../scripts/parsers/"
      .. kind)) do
      t.ok(known[require(("parsers.%s.%s"):format(kind, name:match "^(.*)%.lua$"))], name)
    end
  end
  local _, why = parsers.find("tools", "hermess")
  t.match(why, "^unknown tool format 'hermess', did you mean 'hermes'%? %(there are: hermes, ")
  t.raises(function() parsers.new { format = "nope" } end, "unknown tool format 'nope'")
end)

test("detection from a template's text", function(t)
  local function detect(template) return table.concat({ parsers.detect(template) }, " ") end
  t.eq(detect "{{ '<tool_call>\\n' }}", "hermes none")
  t.eq(detect "<tool_call><function=x><parameter=y> </think>", "qwen3_xml qwen3")
  t.eq(detect "<|channel|>analysis<|message|>", "harmony gpt_oss")
  t.eq(detect "<｜Assistant｜></think><｜tool▁sep｜>", "deepseek_v31 deepseek_r1")
  t.eq(detect "<｜tool▁sep｜> ```json", "deepseek none")
  t.eq(detect "[TOOL_CALLS] [THINK]", "mistral mistral")
  t.eq(detect "<tool_call><arg_key><think>", "glm47 glm4")
  t.eq(detect "<seed:tool_call><function= <seed:think>", "seed_oss seed_oss")
  t.eq(detect "nothing", "auto none")
end)

test("round trip on moonlet: calls written by its template are read back unchanged", function(t)
  local source = assert(text.read_file "examples/moonlet/chat_template.jinja")
  local format, reasoning = parsers.detect(source)
  t.eq(format .. " " .. reasoning, "qwen3_xml qwen3")
  local tools = assert(json.decode [=[[
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object",
      "properties": {"at": {"type": "string"}, "days": {"type": "integer"},
        "deep": {"type": "boolean"}, "opts": {"type": "object"}, "list": {"type": "array"},
        "ratio": {"type": "number"}}}}},
    {"type": "function", "function": {"name": "ping"}}]]=])
  local calls = assert(json.decode [=[[
    {"name": "look", "arguments": {"at": "the \"moon\" <b>\n\n& 潮", "days": -3, "deep": false,
      "opts": {"a": {"b": [null, "x"]}}, "list": ["1", 2, true], "ratio": 0.5}},
    {"name": "ping", "arguments": {}},
    {"name": "look", "arguments": {"at": "42"}}]]=])
  local wrapped = json.array {}
  for i, call in ipairs(calls) do wrapped[i] = { type = "function", ["function"] = call } end
  local template = assert(require("templates").compile(source))
  local messages = json.array { { role = "user", content = "go" },
    { role = "assistant", content = "Wait.", tool_calls = wrapped } }
  local prompt = assert(template:render { tools = tools, messages = messages })
  local answer = prompt:match "<|im_start|>assistant\n(.*)<|im_end|>"
  for _, pieces in ipairs { { answer }, selftest.bytes(answer) } do
    local r = parsers.parse(pieces, { format = format, reasoning = reasoning, tools = tools,
      prompt_tail = "<|im_start|>assistant\n" })
    t.eq(r.content, "Wait.")
    t.eq(#r.calls, #calls)
    for i, call in ipairs(r.calls) do
      t.eq(call.name, calls[i].name)
      t.eq(assert(json.decode(call.arguments)), calls[i].arguments)
    end
  end
end)

-- ---- streams ------------------------------------------------------------------------------------

local function types(list)
  local names = {}
  for i, e in ipairs(list) do names[i] = e.type .. ":" .. (e.text or e.name or "") end
  return table.concat(names, " ")
end

test("text is released as soon as it cannot be a mark", function(t)
  local p = parsers.new { format = "hermes", reasoning = "qwen3", prompt_tail = "" }
  t.eq(types(p:feed "a <too"), "content:a")
  t.eq(types(p:feed "l x "), "content: <tool x")
  t.eq(types(p:feed "y"), "content: y")
  t.eq(types(p:finish()), "")
end)

test("the name comes first, then the arguments as they arrive", function(t)
  local p = parsers.new { format = "hermes" }
  t.eq(types(p:feed '<tool_call>{"name": "f", "arguments": {"text": "ab'),
    'call:f arguments:{"text": "ab')
  t.eq(types(p:feed "c d"), "arguments:c d")
  t.eq(types(p:feed '"}}'), 'arguments:"} end:')
  p = parsers.new { format = "qwen3_xml",
    tools = { { name = "f", parameters = { properties = { x = { type = "string" } } } } } }
  t.eq(types(p:feed "<tool_call><function=f><parameter=x>a value that is lo"),
    'call:f arguments:{"x": "a value that is lo')
  t.eq(types(p:feed "ng</parameter>"), 'arguments:ng"')
  t.eq(types(p:feed "</function>"), "arguments:} end:")
end)

test("an incomplete character is held back", function(t)
  local p = parsers.new { format = "none" }
  t.eq(types(p:feed "a\xf0\x9f"), "content:a")
  t.eq(types(p:feed "\xa4"), "")
  t.eq(types(p:feed "\x94b"), "content:🤔b")
  t.eq(types(p:feed "\xe2"), "")
  t.eq(types(p:finish()), "content:\xe2")
end)

test("a call that turns out not to be one is dropped", function(t)
  local p = parsers.new { format = "hermes" }
  t.eq(types(p:feed '<tool_call>{"name": "f", "arguments": {"a": 1, ?'),
    'call:f arguments:{"a": 1,  drop: content:<tool_call>{"name": "f", "arguments": {"a": 1, ?')
  t.eq(types(p:finish()), "")
end)

-- ---- types --------------------------------------------------------------------------------------

local function tagged(value, schema)
  local defs = { text = { type = "string" }, loop = { ["$ref"] = "#/$defs/loop" },
    ["a/b"] = { type = "integer" } }
  local tools = { { name = "f", parameters = { ["$defs"] = defs, properties = { x = schema } } } }
  local r = parsers.parse("<function=f><parameter=x>" .. value .. "</parameter></function>",
    { format = "qwen3_xml", tools = tools })
  return r.calls[1].arguments
end

test("values are typed by the schema", function(t)
  t.eq(tagged("3", { type = "string" }), '{"x": "3"}')
  t.eq(tagged("3", { type = "integer" }), '{"x": 3}')
  t.eq(tagged("three", { type = "integer" }), '{"x": "three"}')
  t.eq(tagged("TRUE", { type = "boolean" }), '{"x": true}')
  t.eq(tagged("yes", { type = "boolean" }), '{"x": "yes"}')
  t.eq(tagged("null", { type = "string" }), '{"x": null}')
  t.eq(tagged("nullable", { type = "string" }), '{"x": "nullable"}')
  t.eq(tagged("007", { type = "number" }), '{"x": "007"}')
  t.eq(tagged("-1.5e3", { type = "number" }), '{"x": -1.5e3}')
  t.eq(tagged("3", { anyOf = { { type = "string" }, { type = "integer" } } }), '{"x": 3}')
  t.eq(tagged("[3]", { anyOf = { { type = "string" }, { type = "integer" } } }), '{"x": "[3]"}')
  t.eq(tagged("3", { type = { "string", "null" } }), '{"x": "3"}')
  t.eq(tagged("3", { ["$ref"] = "#/$defs/text" }), '{"x": "3"}')
  t.eq(tagged("3", { ["$ref"] = "#/$defs/loop" }), '{"x": "3"}')
  t.eq(tagged("1", { enum = { 1, 2 } }), '{"x": 1}')
  t.eq(tagged("1", { enum = { "1", "2" } }), '{"x": "1"}')
  t.eq(tagged("1", { const = 1 }), '{"x": 1}')
  t.eq(tagged("1", { type = "STRING" }), '{"x": "1"}')
  t.eq(tagged("1", { type = "str" }), '{"x": "1"}')
  t.eq(tagged("1", { type = "float" }), '{"x": 1}')
  t.eq(tagged("True", { type = "bool" }), '{"x": true}')
  t.eq(tagged("{}", { type = "dict" }), '{"x": {}}')
  t.eq(tagged("3", { ["$ref"] = "#/$defs/a~1b" }), '{"x": 3}')
  t.eq(tagged("3", { allOf = { { description = "a number" }, { type = "integer" } } }), '{"x": 3}')
  t.eq(tagged("{'a': (1)}", { type = "object" }), '{"x": "{\'a\': (1)}"}')
  t.eq(tagged("{'a': True, 'b': \"it's\",}", { type = "object" }),
    '{"x": {"a": true, "b": "it\'s"}}')
  t.eq(tagged("\n\na\n\n", { type = "string" }), '{"x": "\\na\\n"}')
  t.eq(tagged("\r\na\r\n", { type = "string" }), '{"x": "a"}')
  t.eq(tagged("", { type = "string" }), '{"x": ""}')
end)

test("JSON is repaired if its meaning is plain, otherwise it is not a call", function(t)
  local function arguments(s)
    local r = parsers.parse('<tool_call>{"name": "f", "arguments": ' .. s .. "}</tool_call>",
      { format = "hermes" })
    return r.calls[1] and r.calls[1].arguments
  end
  t.eq(arguments '{"a": [1, 2,],}', '{"a": [1, 2]}')
  t.eq(arguments '{"a": "x\ny\tz"}', '{"a": "x\\ny\\tz"}')
  t.eq(arguments '{"a": "\\d+ \\\' \\u00e9 \\ud83e\\udd14 \\ud83e \\u12"}',
    '{"a": "\\\\d+ \' \\u00e9 \\ud83e\\udd14 \\ufffd \\\\u12"}')
  t.eq(arguments "{'a': None, 'b': NaN}", '{"a": null, "b": "NaN"}')
  t.eq(arguments '"{\\"a\\": 1}"', '{"a": 1}')
  t.eq(arguments "null", "{}")
  for _, bad in ipairs { '{"a": }', '{"a" 1}', "{a: 1}", '{"a": 1 "b": 2}', '{"a": 01}', "{,}",
    ("["):rep(1000) } do
    t.eq(arguments(bad), nil, bad)
  end
end)

-- ---- the parts of a call ------------------------------------------------------------------------

local OBJECT = { "{", '"name"', ":", '"f"', ",", '"arguments"', ":", "{", '"a"', ":", "[", "1", ",",
  "2", "]", ",", '"b"', ":", '"c"', "}", "}" }

--- Lists one after the other.
local function joined(...)
  local out = {}
  for _, list in ipairs { ... } do table.move(list, 1, #list, #out + 1, out) end
  return out
end

local ARGUMENTS = { "{", '"a"', ":", "[", "1", ",", "2", "]", ",", '"b"', ":", '"c"', "}" }
local KEYWORDS = { "(", "a", "=", "[", "1", ",", "2", "]", ",", "b", "=", '"c"', ")" }
local FUNCTION = { "<function=f", ">", "<parameter=a", ">[1, 2]</parameter>", "<parameter=b",
  ">c</parameter>", "</function>" }
local INVOKE = { '<invoke name="f', '">', '<parameter name="a', '">[1, 2]</parameter>',
  '<parameter name="b', '">c</parameter>', "</invoke>" }
local KEYS = { "<tool_call>", "f", "<arg_key>", "a", "</arg_key>",
  "<arg_value>[1, 2]</arg_value>", "<arg_key>", "b", "</arg_key>", "<arg_value>c</arg_value>",
  "</tool_call>" }

-- A format, and the parts of one call in it.
local SPACED = {
  { "hermes", { "<tool_call>" }, OBJECT, { "</tool_call>" } },
  { "hermes", { "<tool_call>", "[" }, OBJECT, { "]", "</tool_call>" } },
  { "qwen", { "<tool_call>" }, FUNCTION, { "</tool_call>" } },
  { "qwen", { "[Calling tool:", "f(" }, ARGUMENTS, { ")", "]" } },
  { "qwen3_xml", { "<tool_call>" }, FUNCTION, { "</tool_call>" } },
  { "qwen3_xml", { "<function=f>" }, ARGUMENTS, { "</function>" } },
  { "llama", { "<|python_tag|>" }, OBJECT },
  { "llama", OBJECT },
  { "mistral", { "[TOOL_CALLS]" }, OBJECT },
  { "mistral", { "[TOOL_CALLS]", "f", "[ARGS]" }, ARGUMENTS },
  { "mistral", { "[TOOL_CALLS]", "f" }, ARGUMENTS },
  { "deepseek", { "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" }, ARGUMENTS, { "<｜tool▁call▁end｜>" } },
  { "deepseek", { "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json" }, ARGUMENTS,
    { "```<｜tool▁call▁end｜>" } },
  { "deepseek_v31", { "<｜tool▁call▁begin｜>f<｜tool▁sep｜>" }, ARGUMENTS,
    { "<｜tool▁call▁end｜>" } },
  { "kimi", { "<|tool_call_begin|>", "functions.f:0", "<|tool_call_argument_begin|>" }, ARGUMENTS,
    { "<|tool_call_end|>" } },
  { "granite", { "<|tool_call|>" }, OBJECT },
  { "granite", { "<|tool_call|>", "[" }, OBJECT, { "]" } },
  { "nemotron", { "<TOOLCALL>", "[" }, OBJECT, { "]", "</TOOLCALL>" } },
  { "xlam", { "[" }, OBJECT, { "]" } },
  { "xlam", { "```json", "[" }, OBJECT, { "]", "```" } },
  { "functionary", { "<|from|>", "assistant", "<|recipient|>", "f", "<|content|>" }, ARGUMENTS,
    { "<|stop|>" } },
  { "glm47", KEYS }, { "auto", KEYS },
  { "poolside_v1", KEYS },
  { "gemma4", { "<|tool_call>", "call:f" }, { "{", "a", ":", "[", "1", ",", "2", "]", ",", "b", ":",
    '<|"|>c<|"|>', "}" }, { "<tool_call|>" } },
  { "gemma4", { "<|tool_call>", "call:f" }, KEYWORDS, { "<tool_call|>" } },
  { "gemma4", { "```tool_code", "f(" }, { table.unpack(KEYWORDS, 2) }, { "```" } },
  { "harmony", { "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" }, ARGUMENTS,
    { "<|call|>" } },
  { "minimax", { "<minimax:tool_call>" }, INVOKE, { "</minimax:tool_call>" } },
  { "seed_oss", { "<seed:tool_call>" }, FUNCTION, { "</seed:tool_call>" } },
  { "step3p5", { "<tool_call>" }, FUNCTION, { "</tool_call>" } },
  { "pythonic", { "[", "f(" }, { table.unpack(KEYWORDS, 2) }, { "]" } },
  { "pythonic", { "<|python_start|>", "[", "f(" }, { table.unpack(KEYWORDS, 2) },
    { "]", "<|python_end|>" } },
  { "pythonic", { "<|python_start|>", "[" }, OBJECT, { "]", "<|python_end|>" } },
  { "auto", { "<tool_call>" }, FUNCTION, { "</tool_call>" } },
  { "auto", { "<tool_call>" }, OBJECT, { "</tool_call>" } },
  { "auto", { "[" }, OBJECT, { "]" } },
  { "auto", { "[", "f(" }, ARGUMENTS, { ")]" } },
  { "auto", { "[", "f(" }, { table.unpack(KEYWORDS, 2) }, { "]" } },
  { "auto", { "<tool_calls>" }, OBJECT, { "</tool_calls>" } },
}

test("white space may stand between the parts of a call", function(t)
  local tools = { { name = "f", parameters = { properties = { a = { type = "array" } } } } }
  for _, case in ipairs(SPACED) do
    local parts = joined(table.unpack(case, 2))
    for _, gap in ipairs { "", " ", "\n\t" } do
      local text_of = table.concat(parts, gap)
      for _, pieces in ipairs { { text_of }, selftest.bytes(text_of) } do
        local r = parsers.parse(pieces, { format = case[1], tools = tools })
        local call = r.calls[1] or {}
        t.eq({ #r.calls, call.name, call.arguments and json.encode(json.decode(call.arguments)),
          r.content, #r.other }, { 1, "f", '{"a": [1, 2], "b": "c"}', nil, 0 },
          case[1] .. ": " .. text_of)
      end
    end
  end
end)

-- ---- anything as tools --------------------------------------------------------------------------

local HOSTILE = { "null", "3", '"x"', "{}", "[]", "[null]", "[1, \"a\", [], {}]",
  '[{"function": null}]', '[{"function": 3}]', '[{"function": {"name": 3}}]', '[{"name": "f"}]',
  '[{"name": "f", "parameters": 3}]', '[{"name": "f", "parameters": []}]',
  '[{"name": "f", "parameters": {"properties": 3}}]',
  '[{"name": "f", "parameters": {"properties": {"a": 3}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"type": 3}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"type": [[], {}, null]}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"anyOf": {"x": 1}}}}}]',
  '[{"name": "f", "parameters": {"properties":'
    .. ' {"a": {"anyOf": [3, {"$ref": "#/properties/a"}]}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"$ref": 3}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"$ref": "#/a/b/c"}, "b": {"enum": {}},'
    .. ' "c": {"const": null}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"enum": [null, {}, []]}}}}]',
  '[{"name": "f", "parameters": {"$ref": "#/$defs/a",'
    .. ' "$defs": {"a": {"$ref": "#"}, "b": {"$ref": "#/$defs/b"}}}}]',
  '[{"name": "f", "parameters": {"$ref": "#/$defs/b", "$defs": {"b": {"$ref": "#/$defs/b"}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"anyOf": ['
    .. ('{"anyOf": ['):rep(200) .. ("]}"):rep(200) .. ']}}}}]',
  '[{"name": "f", "parameters": {"properties": {"a": {"enum": ['
    .. ("1, "):rep(10000) .. '1]}}}}]' }

test("schemas of any shape never break a parser", function(t)
  local one = { qwen3_xml = "<function=f><parameter=a>1</parameter><parameter=zz>2</parameter>"
      .. "</function>",
    glm47 = "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>",
    gemma4 = "<|tool_call>call:f{a:1}<tool_call|>", pythonic = "[f(a=1)]",
    kimi = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>" }
  for _, source in ipairs(HOSTILE) do
    for format, markup in pairs(one) do
      local r = parsers.parse(markup, { format = format, tools = json.decode(source) })
      t.ok(#r.calls == 1 or r.content == markup, format .. " with " .. source)
    end
  end
  t.eq(args.tools(json.null).given, false)
end)

test("the parameters of a tool may be a reference", function(t)
  local tools = json.decode [=[[{"name": "f", "parameters": {"$ref": "#/$defs/args",
    "$defs": {"args": {"properties": {"a": {"$ref": "#/$defs/text"}}},
    "text": {"type": "string"}}}}]]=]
  local r = parsers.parse("<function=f><parameter=a>1</parameter></function>",
    { format = "qwen3_xml", tools = tools })
  t.eq(r.calls[1].arguments, '{"a": "1"}')
end)

-- ---- linear time --------------------------------------------------------------------------------

--- The number of VM instructions a parse takes, in thousands, coroutines included.
local function effort(pieces, o)
  local n, create = 0, coroutine.create
  local function count() n = n + 1 end
  coroutine.create = function(f) -- luacheck: ignore 122
    local thread = create(f)
    debug.sethook(thread, count, "", 100)
    return thread
  end
  debug.sethook(count, "", 100)
  local ok, err = pcall(parsers.parse, pieces, o)
  debug.sethook()
  coroutine.create = create -- luacheck: ignore 122
  assert(ok, err)
  return n
end

local HOSTILE_TEXT = { "<", "[", "<tool_call>", "<tool_call>{", "[a(", "<function=a>",
  '<tool_call>{"name": "a", "arguments": {"x": ', "`", "```json[", " ", "\n<", '{"', "<|channel|>",
  "<|tool_call>call:a{", "<｜tool▁call▁begin｜>", "<tool_call>f<arg_key>", "[TOOL_CALLS]a",
  "<|recipient|>a", '<invoke name="', "tool_code = f(", '{"name": "a", "arguments": {}};',
  "</think>", "<think>", "[TOOL_CALLS]a[ARGS]{}", "<tool_call>so ",
  "<function=a><parameter=b>c</function> ", "```\n[", "print(", "<|tool_call_start|>[",
  '{"function": ' }

test("twice the text is twice the work", function(t)
  for _, format in ipairs(parsers.names "tools") do
    for _, word in ipairs(HOSTILE_TEXT) do
      local n = 8192 // #word
      local o = { format = format, reasoning = "qwen3" }
      local once, twice = effort(word:rep(n), o), effort(word:rep(2 * n), o)
      t.ok(twice <= 2.3 * once + 60, ("%s of %q: %d, then %d"):format(format, word, once, twice))
      t.ok(twice <= 3 * n * #word, ("%s of %q: %d hundred instructions for %d bytes"):format(
        format, word, twice, 2 * n * #word))
    end
  end
end)

test("pieces cost no more than their bytes", function(t)
  local opened = '<tool_call>{"name": "f", "arguments": {"text": "'
  local function seconds(n)
    local pieces = selftest.bytes(opened .. ("x"):rep(n))
    local before = os.clock()
    local r = parsers.parse(pieces, { format = "hermes" })
    t.eq(#r.other[1].text, #opened + n)
    return os.clock() - before
  end
  seconds(1000)
  local small, large = seconds(20000), seconds(160000)
  t.ok(large < 24 * small, ("8 times the bytes took %.1f times as long"):format(large / small))
end)

test("of marks with a common prefix the longest counts", function(t)
  local found = {}
  local marks = scan.marks { "[", "[A]", "[AB]" }
  local s = scan.new(function(s)
    repeat
      local mark = s:upto(marks, function(piece) found[#found + 1] = "'" .. piece .. "'" end)
      found[#found + 1] = mark
    until not mark
  end, {})
  for c in ("x[A][AB][AC["):gmatch "." do s:feed(c) end
  s:finish()
  t.eq(table.concat(found, " "), "'x' [A] [AB] [ 'AC' [")
end)
