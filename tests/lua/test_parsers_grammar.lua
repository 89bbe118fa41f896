-- Parsers: what the grammar of a format allows, its parser reads back: random sentences of every
-- page, as calls of the tools that were offered, with arguments that the schemas accept.
if ... then return end -- pure Lua over handles that are closed at once

local grammar = require "grammar"
local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local json = perigee.json

local test = harness.test

local function schema(text) return assert(json.decode(text)) end

-- Strings with bounds, choices and patterns, numbers, words, mixed types, arrays and objects;
-- required ones, ones that are not, and additional ones.
local SCHEMAS = {
  tide = schema [[{"type": "object", "properties": {
    "port": {"type": "string", "minLength": 1, "maxLength": 6},
    "kind": {"enum": ["high", "low"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 30},
    "metric": {"type": "boolean"}}, "required": ["port", "days"], "additionalProperties": false}]],
  log = schema [[{"type": "object", "properties": {
    "text": {"type": ["string", "null"], "maxLength": 4},
    "level": {"type": ["string", "integer"], "maxLength": 3, "maximum": 9},
    "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
    "at": {"type": "object", "properties": {"x": {"type": "number", "maximum": 9},
      "ok": {"type": ["boolean", "null"]}}, "required": ["x"], "additionalProperties": false},
    "code": {"type": "string", "pattern": "^[a-z]{2}$"}},
    "required": ["code"], "additionalProperties": false}]],
}
local NAMES = { "tide", "log" }

local LIST, SHAPES = {}, {}
for i, name in ipairs(NAMES) do
  LIST[i] = { name = name, parameters = SCHEMAS[name] }
  SHAPES[i] = { name = name, schema = SCHEMAS[name] }
end

local tok = assert(perigee.tokenizer.open "examples/moonlet")
local END = assert(tok:id "<|im_end|>")

--- Ids of added tokens by their text, as the pipeline has them.
local added = {}
for _, id in ipairs(tok:added()) do added[tok:token(id)] = id end

--- Tokens with which things end: drawn every other time, so that sentences do.
local CLOSING = {}
for _, text in ipairs { '"', "}", "]", ")", "<", "/", ">", ",", "\n", "`" } do
  for _, id in ipairs(assert(tok:encode(text, { add_special = false }))) do
    CLOSING[#CLOSING + 1] = id
  end
end

local function draw(m, count, turn, random)
  if turn % 2 == 1 then
    local there = {}
    for _, id in ipairs(CLOSING) do
      if m:allows(id) then there[#there + 1] = id end
    end
    if #there > 0 then return there[random(#there)] end
  end
  return m:nth(random(count))
end

local function random_from(seed)
  local state = seed * 0x9E3779B97F4A7C15 + 1
  return function(n)
    state = state ~ (state << 13)
    state = state ~ (state >> 7)
    state = state ~ (state << 17)
    return (state >> 11) % n + 1
  end
end

local STEPS, SEEDS = 600, 10

--- Ends of raw texts, which chance alone would not write.
local ENDS = { "\n</parameter>\n", "</parameter>\n", "</arg_value>\n", '<|"|>' }

--- Now and then, ends a raw text if that can be; returns how.
local function close(m, random)
  if random(6) > 1 then return nil end
  local text = ENDS[random(#ENDS)]
  return assert(m:feed(text)) == #text and text or nil
end

--- A random sentence of a grammar; nil if it did not end.
local function sentence(g, tokens, seed)
  local m <close> = assert(g:matcher(tokens))
  local random, parts = random_from(seed), {}
  for turn = 1, STEPS do
    parts[#parts + 1] = close(m, random)
    local count = assert(m:mask())
    if m.complete and (count == 1 or random(4) == 1) then return table.concat(parts) end
    local id = draw(m, count, turn, random)
    if id == END then return table.concat(parts) end
    assert(m:take(id), "the mask has a token that is refused")
    parts[#parts + 1] = tok:bytes(id)
  end
end

--- The grammar of whole answers in a format. template: a text that the model's template shows.
local function grammar_of(format, template, o)
  local b = assert(perigee.grammar.builder())
  local rules = assert(parsers.calls(b, format, { tools = o.tools or SHAPES, template = template,
    token = function(text) return o.tokens and added[text] end, parallel = o.parallel,
    known = parsers.known(o.list or LIST), refuse = function(_, err) error(tostring(err), 0) end }))
  return assert(b:compile(rules.whole)), rules
end

local function fits(name, arguments, given)
  local g <close> = assert(grammar.schema(given or SCHEMAS[name], { order = "free" }))
  local m <close> = assert(g:matcher())
  local text = json.encode(assert(json.decode(arguments)))
  return m:feed(text) == #text and m.complete
end

--- Parses a sentence and checks what was read; returns the number of calls.
local function check(t, format, text, o)
  local r = parsers.parse(text, { format = format, tools = LIST, reasoning = "none" })
  local what = ("%s: %q"):format(format, text)
  t.eq({ r.content, r.other }, { nil, {} }, what)
  t.ok(#r.calls >= 1 and (o.parallel or #r.calls == 1), what)
  for _, call in ipairs(r.calls) do
    t.ok(SCHEMAS[call.name], what)
    if o.fits then t.ok(fits(call.name, call.arguments), what .. " is " .. call.arguments) end
  end
  return #r.calls
end

--- Each format, and those whose shape depends on the template.
local KINDS = { { "mistral", "[ARGS]" }, { "nemotron", "<TOOLCALL>" },
  { "llama", "<|python_tag|>" },
  { "functionary", "<|recipient|>" }, { "pythonic", "<|python_start|>" },
  { "pythonic", "<|tool_list_start|>" } }
for _, name in ipairs(parsers.names "tools") do
  if name ~= "none" then KINDS[#KINDS + 1] = { name } end
end


-- Lines with marks of formats in them, and line ends where some formats have their own.
local PATCH = [[
start: "*** Begin" LF line+ "*** End" LF?
line: ("+" | "-" | "</" | "\"") /.{0,4}/ LF
%import common.LF
]]
local CUSTOM = { { name = "patch", parameters = schema [[{"type": "object",
  "properties": {"input": {"type": "string"}}, "required": ["input"]}]] } }

--- Parses the call of a custom tool: its text.
local function text_of(t, format, sentence_)
  local r = parsers.parse(sentence_, { format = format, tools = CUSTOM, reasoning = "none" })
  local what = ("%s: %q"):format(format, sentence_)
  t.eq({ #r.calls, r.content, r.other }, { 1, nil, {} }, what)
  local arguments = assert(json.decode(r.calls[1].arguments))
  t.eq({ r.calls[1].name, type(arguments.input) }, { "patch", "string" }, what)
  return arguments.input
end

local function fits_whole(g, text)
  local m <close> = assert(g:matcher())
  return m:feed(text) == #text and m.complete
end

-- Trees that refer to themselves in every way that a $ref can.
local TREES = {}
for ref, more in pairs { ["#"] = "", ["#/$defs/tree"] = [["$defs": {"tree": {"$ref": "#"}},]],
  ["#top"] = [["$anchor": "top",]], ["urn:tree"] = [["$id": "urn:tree",]] } do
  for _, inner in ipairs { '{"$ref": "%s"}', '{"anyOf": [{"$ref": "%s"}, {"type": "null"}]}' } do
    TREES[#TREES + 1] = schema(([[{%s "type": "object", "properties": {
      "name": {"type": "string", "maxLength": 3}, "next": %s},
      "required": ["name"], "additionalProperties": false}]]):format(more, inner:format(ref)))
  end
end

--- Calls of a tool whose schema is a tree, beside another tool, up to one with a tree inside of
--- another: how many there are, and how many trees inside.
local function trees_of(t, kind, tree, tokens)
  local format, count, inside = kind[1], 0, 0
  local list = { { name = "tree", parameters = tree }, LIST[1] }
  local g <close> = grammar_of(format, kind[2], { list = list,
    tools = { { name = "tree", schema = tree }, SHAPES[1] } })
  for seed = 1, 10 * SEEDS do
    if inside > 0 then break end
    local text = sentence(g, tokens, seed)
    local r = text and parsers.parse(text, { format = format, tools = list, reasoning = "none" })
    local call = r and r.calls[1]
    if call and call.name == "tree" then
      t.ok(fits("tree", call.arguments, tree), ("%s: %q"):format(format, text))
      count, inside = count + 1, inside + select(2, call.arguments:gsub('"name"', "")) - 1
    end
  end
  return count, inside
end

-- Schemas of two branches that give a parameter different types.
local BRANCHES = {}
for keyword, inner in pairs { anyOf = "%s", oneOf = '{"allOf": [%s]}' } do
  BRANCHES[#BRANCHES + 1] = schema(([[{"%s": [%s, %s]}]]):format(keyword,
    inner:format [[{"type": "object", "properties": {"kind": {"const": "name"},
      "value": {"type": "string", "pattern": "^[a-z]{1,3}$"}}, "required": ["kind", "value"],
      "additionalProperties": false}]],
    inner:format [[{"type": "object", "properties": {"kind": {"const": "count"},
      "value": {"type": "integer", "maximum": 99}, "exact": {"type": "boolean"}},
      "required": ["kind", "value", "exact"], "additionalProperties": false}]]))
end
BRANCHES[#BRANCHES + 1] = schema [[{"type": "object", "properties": {
  "kind": {"enum": ["name", "count"]}, "value": true, "exact": true},
  "required": ["kind", "value"], "additionalProperties": false,
  "if": {"properties": {"kind": {"const": "name"}}},
  "then": {"properties": {"value": {"type": "string", "pattern": "^[a-z]{1,3}$"}}},
  "else": {"properties": {"value": {"type": "integer", "maximum": 99},
    "exact": {"type": "boolean"}}, "required": ["exact"]}}]]

--- Random calls of a tool with such a schema: how many took each branch.
local function branches_of(t, kind, given, tokens)
  local format, seen = kind[1], { name = 0, count = 0 }
  local list = { { name = "put", parameters = given } }
  local g <close> = grammar_of(format, kind[2], { list = list,
    tools = { { name = "put", schema = given } } })
  for seed = 1, 10 * SEEDS do
    if seen.name > 0 and seen.count > 0 then break end
    local text = sentence(g, tokens, seed)
    local r = text and parsers.parse(text, { format = format, tools = list, reasoning = "none" })
    if r then
      local what = ("%s: %q"):format(format, text)
      t.eq(#r.calls, 1, what)
      t.ok(fits("put", r.calls[1].arguments, given), what)
      local branch = assert(json.decode(r.calls[1].arguments)).kind
      seen[branch] = seen[branch] + 1
    end
  end
  return seen
end

do -- what the first use of a tokenizer or a class of characters keeps is not a leak
  local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
  local g <close> = grammar_of("hermes", nil, {})
  sentence(g, tokens, 1)
end

for _, kind in ipairs(KINDS) do
  local format, template = kind[1], kind[2]
  test(("sentences of %s are calls%s"):format(format, template and " with " .. template or ""),
    function(t)
      local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
      for _, o in ipairs { { parallel = true, fits = true }, { fits = true, tokens = true } } do
        local g <close> = grammar_of(format, template, o)
        local ended, most = 0, 0
        for seed = 1, SEEDS do
          local text = sentence(g, tokens, seed)
          if text then
            ended, most = ended + 1, math.max(most, check(t, format, text, o))
          end
        end
        t.ok(ended >= SEEDS // 2, ("%s: only %d sentences end"):format(format, ended))
        t.ok(not o.parallel or most > 1, format .. ": never two calls")
      end
    end)

  test(("%s calls a tool whose schema refers to itself%s"):format(format,
    template and " with " .. template or ""), function(t)
      local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
      for _, tree in ipairs(TREES) do
        local count, inside = trees_of(t, kind, tree, tokens)
        t.ok(count > 0 and inside > 0, ("%s: %d calls, %d trees inside: %s"):format(format, count,
          inside, json.encode(tree)))
      end
    end)

  test(("%s calls a tool whose schema has branches%s"):format(format,
    template and " with " .. template or ""), function(t)
      local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
      for _, given in ipairs(BRANCHES) do
        local seen = branches_of(t, kind, given, tokens)
        t.ok(seen.name > 0 and seen.count > 0, ("%s: %d and %d calls of the branches of %s"):format(
          format, seen.name, seen.count, json.encode(given)))
      end
    end)

  test(("any arguments of %s are read%s"):format(format, template and " with " .. template or ""),
    function(t)
      local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
      local o = { parallel = true, tools = { { name = "tide" }, { name = "log" } } }
      local g <close> = grammar_of(format, template, o)
      local ended = 0
      for seed = 1, SEEDS do
        local text = sentence(g, tokens, seed)
        if text then
          ended = ended + 1
          check(t, format, text, o)
        end
      end
      t.ok(ended >= SEEDS // 3, ("%s: only %d sentences end"):format(format, ended))
    end)

  test(("a custom tool of %s gets a text of its grammar%s"):format(format,
    template and " with " .. template or ""), function(t)
      local tokens <close> = assert(perigee.grammar.tokens(tok, { END }))
      local lark <close> = assert(perigee.grammar.lark(PATCH))
      local regex <close> = assert(perigee.grammar.regex "[a-d\"<\\n]{2,9}")
      for whole, text in pairs { [lark] = { lark = PATCH },
        [regex] = { regex = "[a-d\"<\\n]{2,9}" } } do
        local g <close> = grammar_of(format, template, { list = CUSTOM,
          tools = { { name = "patch", text = text } } })
        local ended = 0
        for seed = 1, SEEDS do
          local said = sentence(g, tokens, seed)
          if said then
            ended = ended + 1
            t.ok(fits_whole(whole, text_of(t, format, said)), ("%s: %q"):format(format, said))
          end
        end
        t.ok(ended >= SEEDS // 3, ("%s: only %d sentences end"):format(format, ended))
      end
    end)
end

test("a custom tool's grammar that refers to itself is followed only in JSON", function(t)
  local o = { list = CUSTOM,
    tools = { { name = "patch", text = { lark = 'start: "(" start? ")"' } } } }
  local g <close> = grammar_of("hermes", nil, o)
  local call = '<tool_call>\n{"name": "patch", "arguments": {"input": "%s"}}\n</tool_call>'
  t.ok(fits_whole(g, call:format "(())"))
  t.eq(fits_whole(g, call:format "(()"), false)
  t.match(t.raises(function() grammar_of("qwen3_xml", nil, o) end), "not regular")
end)

test("a tool without arguments that end is refused, or takes any", function(t)
  local endless = schema [[{"type": "object", "properties": {"v": {"type": "null"},
    "next": {"$ref": "#"}}, "required": ["v", "next"]}]]
  local inside = schema [[{"type": "object", "properties": {"v": {"type": "null"},
    "list": {"type": "array", "items": {"$ref": "#/$defs/e"}}, "one": {"$ref": "#/$defs/e"}},
    "$defs": {"e": {"type": "object", "properties": {"next": {"type": "array", "minItems": 1,
      "items": {"$ref": "#/$defs/e"}}}, "required": ["next"]}}}]]
  for _, format in ipairs { "hermes", "qwen3_xml", "glm47", "gemma4", "pythonic" } do
    local o = { list = { { name = "tree", parameters = endless } },
      tools = { { name = "tree", schema = endless }, SHAPES[1] } }
    t.match(t.raises(function() grammar_of(format, nil, o) end), "no value that fits has an end")
  end
  local g <close> = grammar_of("hermes", nil, { tools = { { name = "tree", schema = inside } } })
  local function taken(arguments)
    local m <close> = assert(g:matcher())
    local text = '<tool_call>\n{"name": "tree", "arguments": ' .. arguments
    return assert(m:feed(text)) == #text
  end
  t.ok(taken '{"v": null, "list": []}')
  t.eq({ taken '{"list": [{', taken '{"one"' }, { false, false })
end)

test("every format but none has a grammar", function(t)
  for _, name in ipairs(parsers.names "tools") do
    t.eq(assert(parsers.find("tools", name)).grammar ~= nil, name ~= "none", name)
  end
end)

test("arguments are those that a tool declares, unless its schema says more of names", function(t)
  local function takes(parameters, arguments)
    local g <close> = grammar_of("hermes", nil, { tools = { { name = "tide",
      schema = schema(parameters) } } })
    local m <close> = assert(g:matcher())
    local text = ('<tool_call>\n{"name": "tide", "arguments": %s}\n</tool_call>'):format(arguments)
    return assert(m:feed(text)) == #text
  end
  local HAS = '"type": "object", "properties": {"port": {"enum": ["a"]}}'
  t.ok(takes("{" .. HAS .. "}", '{"port": "a"}'))
  t.eq(takes("{" .. HAS .. "}", '{"port": "a", "other": 1}'), false)
  for _, more in ipairs { '"additionalProperties": true', '"additionalProperties": {}',
    '"patternProperties": {"^o": true}', '"allOf": [{"properties": {"other": true}}]',
    '"required": ["other"]', '"minProperties": 2', '"unevaluatedProperties": true' } do
    t.ok(takes(("{%s, %s}"):format(HAS, more), '{"port": "a", "other": 1}'), more)
  end
  t.ok(takes('{"type": "object"}', '{"other": 1}'), "nothing is declared")
end)
