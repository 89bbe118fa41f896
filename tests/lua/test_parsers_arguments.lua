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
