-- The arguments of calls: what the grammar of a format takes for a tool's schema, and that its
-- parser reads it back as what the schema means.
local parsers = require "parsers"
local perigee = require "perigee"
local json = perigee.json
local test = require("harness").test

local function tool_of(text)
  return { name = "tide", parameters = assert(json.decode(text)) }
end

--- The grammar of calls of one tool in a format; refuse: as of parsers/shape.lua.
local function grammar_of(format, tool, refuse)
  local b = assert(perigee.grammar.builder())
  local rules = assert(parsers.calls(b, format, {
    tools = { { name = tool.name, schema = tool.parameters } },
    known = parsers.known { tool }, refuse = refuse }))
  return assert(b:compile(rules.whole))
end

local function takes(g, text)
  local m <close> = assert(g:matcher())
  return assert(m:feed(text)) == #text and m.complete
end

local HERMES = '<tool_call>\n{"name": "tide", "arguments": %s}\n</tool_call>'

test("a keyword that cannot be followed does not set the others free", function(t)
  local tool = tool_of [[{"properties": {"tags": {"type": "array", "uniqueItems": true,
    "items": {"type": "string"}}, "n": {"type": "integer", "minimum": 0, "maximum": 5}},
    "required": ["n"]}]]
  local why
  local g <close> = grammar_of("hermes", tool, function(_, err) why = err end)
  t.eq(why.code, "unsupported")
  t.ok(takes(g, HERMES:format '{"tags": ["a", "a"], "n": 5}'))
  for _, text in ipairs { '{"expression": "17 minutes"}', '{"tags": ["a"]}', '{"n": 6}',
    '{"tags": [1], "n": 5}' } do
    t.eq(takes(g, HERMES:format(text)), false, text)
  end
end)

test("a name that a format cannot write is left out", function(t)
  local tool = tool_of [[{"type": "object", "properties": {"a b": {"type": "string"},
    "n": {"type": "integer"}}, "required": ["n"]}]]
  local g <close> = grammar_of("qwen3_xml", tool)
  local call = "<tool_call>\n<function=tide>\n<parameter=%s>\n%s\n</parameter>\n</function>\n"
    .. "</tool_call>"
  t.ok(takes(g, call:format("n", "5")))
  t.eq(takes(g, call:format("n", "x")), false)
end)

test("arguments are an object, also where the schema does not say so", function(t)
  local g <close> = grammar_of("hermes", tool_of [[{"properties": {"n": {"type": "integer"}}}]])
  t.ok(takes(g, HERMES:format '{"n": 5}'))
  for _, text in ipairs { "5", '"n"', "[]", '{"n": "5"}' } do
    t.eq(takes(g, HERMES:format(text)), false, text)
  end
end)

-- ---- strings that need no quotes ----------------------------------------------------------------

local XML = "<tool_call>\n<function=tide>\n<parameter=p>\n%s\n</parameter>\n</function>\n"
  .. "</tool_call>"

--- The value of p that the parser reads in a call, as JSON.
local function read_back(t, tool, text)
  local r = parsers.parse(text, { format = "qwen3_xml", tools = { tool }, reasoning = "none" })
  t.eq(#r.calls, 1, text)
  return json.encode(assert(json.decode(r.calls[1].arguments)).p)
end

--- Texts, each as everything that it may look like.
local TEXTS = { ".env", "./src", "2024-01-01.log", "2024-01-01", "-la", "+1", "007", "1.5.2", "1e5",
  "5", "-5", "0.5", "1.0", " 5 ", "true", "True", "TRUE", "false", "null", "None", "none", "NaN",
  "'a'", '"a"', "[x", "[1]", '["a"]', "{y", '{"a": 1}', "{}", "", " ", "nothing" }

--- Schemas of p, and how each text is read if not as a string.
local MIXED = {
  { '{"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}',
    { ['["a"]'] = '["a"]' } },
  { '{"type": ["string", "integer"]}', { ["5"] = "5", ["-5"] = "-5" } },
  { '{"type": ["string", "integer"], "format": "date"}', { ["5"] = "5", ["-5"] = "-5" } },
  { '{"type": ["string", "number", "null"]}', { ["5"] = "5", ["-5"] = "-5", ["0.5"] = "0.5",
    ["1.0"] = "1.0", ["1e5"] = "100000.0", null = "null" } },
  { '{"type": ["string", "boolean"]}', { ["true"] = "true", ["false"] = "false" } },
  { '{"type": ["string", "object"]}', { ['{"a": 1}'] = '{"a": 1}', ["{}"] = "{}" } },
}

--- Texts that are read as something that the schema does not have, and texts that begin like what
--- they might be.
local REFUSED = { { "[x", "[1]" }, { "0.5", "1.0", "1e5", " 5 " }, {}, { "None", " 5 " },
  { "True", "TRUE" }, { "{y" } }

test("a string or something else is read as what the grammar means", function(t)
  for i, case in ipairs(MIXED) do
    local tool = tool_of(('{"type": "object", "properties": {"p": %s}}'):format(case[1]))
    local g <close> = grammar_of("qwen3_xml", tool)
    local refused = {}
    for _, text in ipairs(REFUSED[i]) do refused[text] = true end
    for _, text in ipairs(TEXTS) do
      local call, what = XML:format(text), ("%s %q"):format(case[1], text)
      if case[2][text] then
        t.eq({ takes(g, call), read_back(t, tool, call) }, { true, case[2][text] }, what)
      elseif text == "null" or refused[text] then
        t.eq(takes(g, call), false, what)
      elseif i == 3 then
        t.eq(takes(g, call), text == "2024-01-01", what)
      else
        t.eq({ takes(g, call), read_back(t, tool, call) }, { true, json.encode(text) }, what)
      end
    end
  end
end)

-- ---- where arguments are declared ---------------------------------------------------------------

test("arguments that branches and references declare have their types", function(t)
  for _, text in ipairs {
    '{"allOf": [{"type": "object", "properties": {"p": {"type": "integer"}}, "required": ["p"]}]}',
    '{"$defs": {"P": {"properties": {"p": {"type": "integer"}}, "required": ["p"]}},'
      .. ' "properties": {"q": {}}, "allOf": [{}, {"$ref": "#/$defs/P"}]}',
    '{"properties": {"p": {"description": "a port"}}, "allOf": [{"properties": {"p": {"type":'
      .. ' "integer"}}, "required": ["p"]}]}',
    '{"type": "object", "anyOf": [{"properties": {"p": {"type": "integer"}}, "required": ["p"]}]}',
    '{"type": "object", "oneOf": [{"properties": {"p": {"type": "integer"}}, "required": ["p"]}]}',
    '{"type": "object", "if": true, "then": {"properties": {"p": {"type": "integer"}},'
      .. ' "required": ["p"]}}',
    '{"type": "object", "if": false, "else": {"properties": {"p": {"type": "integer"}},'
      .. ' "required": ["p"]}}' } do
    local tool = tool_of(text)
    local g <close> = grammar_of("qwen3_xml", tool, function(_, err) error(tostring(err), 0) end)
    local call = XML:format "5"
    t.eq({ takes(g, call), read_back(t, tool, call) }, { true, "5" }, text)
    t.eq(takes(g, XML:format "x"), false, text)
  end
end)

test("a schema that refers to itself declares nothing, and that ends", function(t)
  local tool = tool_of '{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}'
  t.eq(read_back(t, tool, XML:format "5"), '"5"')
end)

test("a tool that a format cannot call by its schema is called with any arguments", function(t)
  local tool = tool_of [[{"type": "object", "additionalProperties": {"type": "integer"},
    "required": ["p"]}]]
  local why
  local g <close> = grammar_of("qwen3_xml", tool, function(_, err) why = err end)
  t.eq(why.code, "unsatisfiable")
  t.ok(takes(g, XML:format "5"))
end)

test("words without repetition are spelled as the format does", function(t)
  local tool = tool_of [[{"type": "object", "properties": {"p": {"type": "array",
    "uniqueItems": true, "items": {"enum": [true, false, null, 1, "a"]}}}}]]
  local g <close> = grammar_of("pythonic", tool)
  t.ok(takes(g, '[tide(p=[True, None, "a", False, 1])]'))
  for _, text in ipairs { "[True, True]", "[true]", "[None, 1, None]" } do
    t.eq(takes(g, ("[tide(p=%s)]"):format(text)), false, text)
  end
end)
