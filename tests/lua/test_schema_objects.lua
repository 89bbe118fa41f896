-- Objects, schemas that apply together, references.
local cases = require "schema_cases"
local grammar = require "grammar"
local perigee = require "perigee"
local json = perigee.json
local test = require("harness").test

test("members come in the schema's order", function(t)
  cases.check(t, {
    { '{"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}},'
      .. ' "additionalProperties": false}',
      yes = { "{}", '{"b": 1}', '{"a": null}', '{"b": 1, "a": null}', '{"b":1,"a":null}',
        '{\n  "b": 1,\n  "a": null\n}' },
      no = { '{"a": null, ', '{"c', '{"b": null', '{"b": 1, "b', '{"b": 1,}' },
      open = { '{"b": 1, "' } },
    { '{"type": "object", "properties": {"a": {}}, "required": ["z", "a", "y"]}',
      yes = { '{"a": 1, "z": 2, "y": 3}', '{"a": 1, "y": 2, "x": 0, "z": 3, "w": 0}' },
      no = { '{"z', '{"a": 1, "z": 2}', '{"a": 1, "z": 2, "z"' } },
    { '{"allOf": [{"properties": {"z": {}}}], "properties": {"a": {}}, "type": "object",'
      .. ' "required": ["a", "z", "z"], "maxProperties": 2}', yes = { '{"z": 1, "a": 2}' },
      no = { '{"a', '{"z": 1}' } },
    { '{"properties": {"a": {}}, "allOf": [{"properties": {"z": {}}}], "type": "object"}',
      yes = { '{"a": 1, "z": 2, "b": 3}' }, no = { '{"z": 1, "a"' } },
    { '{"required": ["1", "2", "3", "4", "5", "6", "7"], "type": "object"}',
      yes = { '{"1":0,"2":0,"3":0,"4":0,"5":0,"6":0,"7":0,"8":0}' }, no = { '{"2', '{"1":0}' } },
  })
end)

test("names of all kinds", function(t)
  cases.check(t, {
    { [[{"type": "object", "properties": {"": {"const": 1}, "a\"b": {"const": 2},
      "ä\n": {"const": 3}, "a\\": {"const": 4}, "$ref": {"const": 5}},
      "additionalProperties": false}]],
      yes = { [[{"": 1, "a\"b": 2, "ä\n": 3, "a\\": 4, "$ref": 5}]] }, no = { [[{"a"]] } },
    { '{"type": "object", "properties": {"name": {"type": "string"}, "named": {"type": "null"}},'
      .. ' "additionalProperties": {"type": "boolean"}}',
      yes = { '{"name": "x", "named": null}', '{"names": true, "na": false}', '{"named2": true}' },
      no = { '{"name": true', '{"names": 1', '{"na": true, "name"' } },
  })
end)

test("patterns and names", function(t)
  cases.check(t, {
    { '{"type": "object", "patternProperties": {"a": {"minimum": 1}, "b": {"maximum": 5}},'
      .. ' "additionalProperties": false}',
      yes = { '{"a": 9}', '{"b": 0}', '{"ab": 3}' },
      wrong = { '{"a": 0}', '{"ab": 9}', '{"ab": 0}' },
      no = { '{"c"' } },
    { '{"type": "object", "properties": {"ab": {"type": "integer"}}, "patternProperties":'
      .. ' {"^a": {"minimum": 3}}, "additionalProperties": {"type": "null"}}',
      yes = { '{"ab": 3}', '{"ac": "x"}', '{"x": null}' },
      no = { '{"ab": 2}', '{"x": 1', '{"ab": "' } },
    { '{"type": "object", "propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2}}',
      yes = { "{}", '{"a": 1, "bc": 2}' }, no = { '{"A', '{"abc' } },
    { '{"type": "object", "propertyNames": {"enum": ["a"]}, "properties": {"b": {}}}',
      yes = { '{"a": 1}' }, no = { '{"b' } },
    { '{"type": "object", "propertyNames": false}', yes = { "{}" }, no = { '{"' } },
  })
end)

test("numbers of members", function(t)
  cases.check(t, {
    { '{"type": "object", "minProperties": 2, "maxProperties": 3}',
      yes = { '{"a":1,"b":2}', '{"a":1,"b":2,"c":3}' },
      no = { "{}", '{"a":1}', '{"a":1,"b":2,"c":3,' } },
    { '{"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "maxProperties": 1,'
      .. ' "additionalProperties": false}', yes = { "{}", '{"c": 1}' }, no = { '{"a": 1,' } },
    { '{"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2,'
      .. ' "additionalProperties": false}', yes = { '{"a": 1, "c": 1}', '{"b": 1, "c": 1}' },
      no = { '{"c"', '{"b": 1}' } },
    { '{"type": "object", "required": ["a"], "maxProperties": 1}', yes = { '{"a": 1}' },
      no = { '{"b', '{"a": 1,' } },
  })
end)

test("dependencies", function(t)
  cases.check(t, {
    { '{"dependentRequired": {"a": ["b"]}, "type": "object"}',
      yes = { "{}", '{"b": 1}', '{"a": 1, "b": 2}', '{"b": 1, "a": 2}', '{"c": 1}' },
      no = { '{"a": 1}' } },
    { '{"dependencies": {"a": ["b"], "c": {"maxProperties": 1}}, "type": "object"}',
      yes = { '{"a": 1, "b": 2}', '{"c": 1}' }, no = { '{"c": 1, ', '{"a": 1}' } },
    { '{"properties": {"a": {"type": "integer"}, "b": {}}, "dependentSchemas": {"a": {"properties":'
      .. ' {"b": {"type": "null"}}, "required": ["b"]}}, "additionalProperties": false}',
      yes = { '{"a": 1, "b": null}', '{"b": 3}', "{}" }, no = { '{"a": 1}', '{"a": 1, "b": 3' } },
  })
end)

test("schemas that apply together", function(t)
  cases.check(t, {
    { '{"allOf": [{"properties": {"a": {"minimum": 2}}}, {"properties": {"a": {"maximum": 4},'
      .. ' "b": {}}, "required": ["a"]}], "type": "object"}',
      yes = { '{"a": 3}', '{"a": 3, "b": 1, "c": 1}' }, wrong = { '{"a": 1}', '{"a": 5}', "{}" } },
    { '{"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": {"b":'
      .. ' {}}}],'
      .. ' "type": "object"}', yes = { '{"a": 1}', "{}" }, no = { '{"b' } },
    { '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "anyOf":'
      .. ' [{"required": ["b"]}, {"properties": {"c": {"const": 1}}, "required": ["c"]}]}',
      yes = { '{"a": 1, "b": 2}', '{"a": 1, "c": 1}', '{"a": 1, "b": 2, "c": 3}' },
      no = { '{"a": 1}', '{"b', '{"a": 1, "c": 2}' } },
    { '{"oneOf": [{"type": "integer"}, {"minimum": 2}]}', yes = { "1", "2.5", "-4" },
      wrong = { "3", "1.5" } },
    { '{"type": "object", "oneOf": [{"required": ["a", "b"]}, {"required": ["a", "c"]}]}',
      yes = { '{"a": 1, "b": 2}', '{"a": 1, "c": 2}' },
      no = { '{"a": 1, "b": 1, "c": 1}', '{"b": 1}' } },
    { '{"not": {"type": ["string", "array"]}}', yes = { "1", "{}", "1e5" }, no = { '"', "[" } },
    { '{"type": "string", "not": {"enum": ["a", "b"]}}', yes = { '"c"', '"ab"', '""' },
      no = { '"a"', '"b"' } },
    { '{"type": "number", "not": {"type": "integer"}}', yes = { "1.5" }, wrong = { "1", "1.0" } },
    { '{"type": "number", "not": {"const": 1}}', yes = { "1.5", "10", "1.01" },
      wrong = { "1", "1.00" } },
    { '{"type": "object", "not": {"properties": {"a": {"type": "string"}}}}', yes = { '{"a": 1}' },
      no = { "{}", '{"a": "', '{"b": 1}' } },
    { '{"type": "object", "not": {"additionalProperties": {"type": "null"}}}',
      yes = { '{"a": 1}', '{"a": null, "b": 0, "c": null}' }, no = { "{}", '{"a": null}' } },
    { '{"type": "object", "properties": {"c": {}}, "additionalProperties": false, "allOf": [{"not":'
      .. ' {"additionalProperties": {"const": 0}}}, {"not": {"patternProperties":'
      .. ' {"c$": {"type": "boolean"}}}}]}', yes = { '{"c": 1}' },
      no = { "{}", '{"c": t', '{"c": 0}' } },
    { '{"type": "object", "not": {"patternProperties": {"^x": {}}, "additionalProperties":'
      .. ' {"type": "null"}}}', yes = { '{"a": 1}', '{"x": 1, "a": 2}' },
      no = { '{"x": 1}', '{"a": null}' } },
    { '{"type": "array", "not": {"items": {"type": "integer"}}}', yes = { '["a"]', '[1, "a", 2]' },
      no = { "[]", "[1]" } },
    { '{"not": {"not": {"type": "null"}}}', yes = { "null" }, no = { "1" } },
    { '{"type": "object", "required": ["a"], "maxProperties": 1, "allOf": [{"required": ["a"]}]}',
      yes = { '{"a": 1}' }, no = { "{}", '{"a": 1,', '{"b": 1' } },
    { '{"type": "object", "not": {"const": {"a": 1}}}',
      yes = { "{}", '{"a": 2}', '{"a": 1, "b": 2}',
      '{"b": 1}' }, no = { '{"a": 1}' } },
    { '{"properties": {"k": {"enum": ["a", "b"]}, "n": {}}, "required": ["k", "n"],'
      .. ' "if": {"properties": {"k": {"const": "a"}}}, "then": {"properties": {"n": {"type":'
      .. ' "integer"}}},'
      .. ' "else": {"properties": {"n": {"type": "null"}}}, "type": "object"}',
      yes = { '{"k": "a", "n": 1}', '{"k": "b", "n": null}' },
      no = { '{"k": "a", "n": n', '{"k": "b", "n": 1' } },
    { '{"if": {"type": "integer"}, "else": {"type": "null"}}', yes = { "1", "null" },
      no = { '"' } },
    { '{"if": true, "then": {"type": "null"}, "else": true}', yes = { "null" }, no = { "1" } },
    { '{"not": {"if": {"type": "integer"}, "else": {"type": "null"}}}', yes = { '"a"', "1.5" },
      no = { "null" }, wrong = { "1" } },
    { '{"not": {"if": {"type": "integer"}, "then": {"minimum": 5}}}', yes = { "4" },
      no = { "5", "null" } },
  })
end)

test("what no schema that applies has evaluated", function(t)
  cases.check(t, {
    { '{"$defs": {"x": {"properties": {"a": {"type": "null"}}}}, "$ref": "#/$defs/x", "allOf":'
      .. ' [{"properties": {"b": {}}, "patternProperties": {"^x": {}}}], "properties": {"c": {}},'
      .. ' "type": "object", "unevaluatedProperties": false}',
      yes = { "{}", '{"a": null, "c": 1, "x1": 0}', '{"b": 1}' }, no = { '{"d', '{"a": 1' } },
    { '{"allOf": [{"additionalProperties": {"type": "null"}}], "unevaluatedProperties": false}',
      yes = { '{"d": null}', "1" }, no = { '{"d": 1' } },
    { '{"properties": {"a": {}}, "unevaluatedProperties": {"type": "null"}, "anyOf": [{"required":'
      .. ' ["a"]}, {"minProperties": 2}]}', yes = { '{"a": 1}', '{"b": null, "c": null}' },
      no = { '{"b": 1', '{"b": null}' } },
    { '{"allOf": [{"unevaluatedProperties": false}], "properties": {"a": {}}, "type": "object"}',
      yes = { "{}" }, no = { '{"a' } },
    { '{"prefixItems": [{"type": "null"}], "allOf": [{"prefixItems": [true, {"const": 1}]}],'
      .. ' "unevaluatedItems": false, "type": "array"}', yes = { "[]", "[null]", "[null, 1]" },
      no = { "[1", "[null, 2", "[null, 1," } },
    { '{"items": {"const": 1}, "unevaluatedItems": false}', yes = { "[1, 1]" }, no = { "[2" } },
    { '{"unevaluatedProperties": {}, "unevaluatedItems": true}', yes = { "[1]", '{"a": 1}' } },
    { '{"allOf": [{"unevaluatedProperties": {"type": "null"}, "unevaluatedItems": {"const": 1}}],'
      .. ' "unevaluatedProperties": false, "unevaluatedItems": false}',
      yes = { '{"a": null}', "[1, 1]" }, no = { '{"a": 1', "[2" } },
  })
end)

test("a tagged union", function(t)
  local parts = {}
  for i = 1, 40 do
    parts[i] = ('{"type": "object", "properties": {"kind": {"const": "k%d"}, "v": {"const": %d}},'
      .. ' "required": ["kind", "v"], "additionalProperties": false}'):format(i, i)
  end
  for _, keyword in ipairs { "anyOf", "oneOf" } do
    cases.check(t, {
      { ('{"%s": [%s]}'):format(keyword, table.concat(parts, ",")),
        yes = { '{"kind": "k1", "v": 1}', '{"kind": "k40", "v": 40}' },
        no = { '{"kind": "k1", "v": 2', '{"kind": "k41', '{"v' } },
    })
  end
end)

test("references", function(t)
  cases.check(t, {
    { '{"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"v": {"type":'
      .. ' "integer"}, "next": {"$ref": "#/$defs/n"}}, "required": ["v", "next"],'
      .. ' "additionalProperties": false}]}}, "$ref": "#/$defs/n"}',
      yes = { "null", '{"v": 1, "next": {"v": 2, "next": null}}' }, no = { '{"v": 1}', "1" } },
    { '{"definitions": {"a~b": {"const": 1}, "c/d": {"const": 2}, "e%f": {"const": 3}},'
      .. ' "prefixItems":'
      .. ' [{"$ref": "#/definitions/a~0b"}, {"$ref": "#/definitions/c~1d"}, {"$ref":'
      .. ' "#/definitions/e%25f"}], "items": false, "minItems": 3, "type": "array"}',
      yes = { "[1, 2, 3]" }, no = { "[2" } },
    { '{"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "type":'
      .. ' "object"}',
      yes = { '{"b": 1}' }, no = { '{"b": "' } },
    { '{"$defs": {"x": {"$anchor": "here", "type": "null"}}, "$ref": "#here"}', yes = { "null" },
      no = { "1" } },
    { '{"$defs": {"x": {"$id": "#old", "type": "null"}}, "$ref": "#old"}', yes = { "null" } },
    { '{"$defs": {"default": {"properties": {"enum": {"$anchor": "here", "type": "null"}}}},'
      .. ' "$ref": "#here"}', yes = { "null" }, no = { "1" } },
    { '{"$defs": {"properties": {"const": {"$anchor": "here", "type": "array"}}, "x": {"$anchor":'
      .. ' "here", "type": "null"}}, "$ref": "#here"}', yes = { "null" }, no = { "[" } },
    { '{"$id": "http://h/root", "$defs": {"x": {"$id": "sub/x", "$defs": {"y": {"type": "null"}},'
      .. ' "$ref": "#/$defs/y"}}, "$ref": "sub/x"}', yes = { "null" }, no = { "1" } },
    { '{"$id": "urn:a:b", "$defs": {"x": {"type": "null"}}, "$ref": "urn:a:b#/$defs/x"}',
      yes = { "null" } },
    { '{"$id": "http://h/a/b", "$defs": {"x": {"$id": "/c/./d/../e", "type": "null"}},'
      .. ' "$ref": "../c/e"}', yes = { "null" } },
    { '{"$id": "http://h/a/", "$defs": {"x": {"$id": "b/", "$defs": {"y": {"$id": "c", "type":'
      .. ' "null"}}}}, "$ref": "b/c"}', yes = { "null" } },
    { '{"$id": "http://h/a/b/c", "$defs": {"x": {"$id": "..", "$defs": {"y": {"$id": "d", "type":'
      .. ' "null"}}}}, "$ref": "http://h/a/d"}', yes = { "null" } },
    { '{"$defs": {"a": {"type": "array"}}, "$ref": "#/$defs/a", "maxItems": 1}', yes = { "[1]" },
      no = { "[1, " } },
    { '{"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": {"type":'
      .. ' "array"}},'
      .. ' "$ref": "#/definitions/a", "maxItems": 1}', yes = { "[1, 2]" }, no = { "1" } },
    { '{"properties": {"$ref": {"type": "string"}}, "type": "object"}', yes = { '{"$ref": "x"}' },
      no = { '{"$ref": 1' } },
    { '{"enum": [{"$ref": "#"}]}', yes = { '{"$ref": "#"}' } },
    { '{"$defs": {"t": {"type": "object", "properties": {"l": {"$ref": "#/$defs/t"}, "r": {"$ref":'
      .. ' "#/$defs/t"}}, "additionalProperties": false}}, "allOf": [{"$ref": "#/$defs/t"},'
      .. ' {"required": ["l"]}]}', yes = { '{"l": {}}', '{"l": {"r": {}}, "r": {}}' },
      no = { "{}", '{"r' } },
  })
end)

test("white space", function(t)
  local schema = '{"type": "array", "items": {"type": "object", "required": ["a"]}}'
  local lines = '[\n\t{\r\n  "a": 1\n}\n]'
  cases.check(t, { { schema, yes = { "[]", '[{"a":1}]', '[ { "a" : 1 } ]', lines },
    no = { " [", "[]\n", '[  {', "[\n\n", "[\n" .. (" "):rep(65) } } })
  cases.check(t, { { schema, yes = { '[{"a":1}]', lines, "[ \n\n\t]" },
    no = { "[" .. (" "):rep(257), " [" } } }, { whitespace = "any" })
  cases.check(t, { { schema, yes = { '[{"a":1},{"a":2}]' }, no = { "[ ", '[{"a": ', "[\n" } } },
    { whitespace = "compact" })
end)

test("any order", function(t)
  cases.check(t, {
    { '{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}},'
      .. ' "required": ["b"], "additionalProperties": {"type": "null"}}',
      yes = { '{"b": 2}', '{"c": 3, "b": 2, "a": 1}', '{"x": null, "b": 2, "y": null, "a": 1}' },
      no = { "{}", '{"a": 1}', '{"b": 2, "b"', '{"a": 2', '{"x": 1' } },
    { '{"type": "object", "properties": {"a": {"type": "object"}}}',
      yes = { "{}", '{"x": {"y": {}}}' } },
  }, { order = "any" })
end)

test("any order where that can be enforced", function(t)
  local two = '{"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}},'
    .. ' "required": ["a", "b"], "additionalProperties": false'
  cases.check(t, {
    { two .. "}", yes = { '{"a": 1, "b": 2}', '{"b": 2, "a": 1}' }, no = { '{"b": 2}' } },
    { two .. ', "maxProperties": 2}', yes = { '{"a": 1, "b": 2}' }, no = { '{"b"' } },
  }, { order = "free" })
end)

test("strict takes what OpenAI takes", function(t)
  cases.check(t, {
    { '{"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}},'
      .. ' "required": ["a"], "additionalProperties": false}', yes = { '{"a": null}' } },
  }, { strict = true })
  cases.refused(t, {
    { '{"type": "object", "properties": {"a": {}}, "required": ["a"]}',
      "format", "additionalProperties" },
    { '{"type": "object", "properties": {"a": {}}, "additionalProperties": false}', "format",
      '"a" must be required' },
    { '{"type": "array"}', "format", "must be object" },
    { '{"type": "object", "properties": {"a": {"allOf": [{}]}}, "required": ["a"],'
      .. ' "additionalProperties": false}', "format", "/properties/a: allOf" },
  }, { strict = true })
end)

test("a schema inside another grammar", function(t)
  local b = assert(perigee.grammar.builder())
  local one = assert(grammar.rule(b, json.decode '{"type": "array", "maxItems": 1}'))
  local two = assert(grammar.rule(b, json.decode '{"const": 2}', { whitespace = "compact" }))
  local root = assert(b:rule "root")
  b:define(root, { { b:text "<", one, b:text "|", two, b:text ">" } })
  local g <close> = assert(b:compile(root))
  t.eq({ cases.verdict(g, "<[ 1]|2>"), cases.verdict(g, "<[]|3>"), cases.verdict(g, "<[]") },
    { "yes", "no", "open" })
  t.fails("unsatisfiable", grammar.rule(assert(perigee.grammar.builder()), false))
end)
