-- Schemas with keywords that cannot be followed, relaxed: those are left out, everything else
-- holds, and nothing is refused that fits the schema.
local cases = require "schema_cases"
local json = require("perigee").json
local oracle = require "schema_oracle"
local samples = require "samples"
local test = require("harness").test

local RELAX = { relax = true }

test("what cannot be enforced is left out, and the rest holds", function(t)
  cases.check(t, {
    { '{"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": true,'
      .. ' "items": {"type": "string"}}, "n": {"type": "integer", "maximum": 5}},'
      .. ' "required": ["n"], "additionalProperties": false}',
      yes = { '{"tags":["a","a"],"n":1}', '{"n":5}' },
      no = { '{"x":1}', '{"tags":[1]', '{"tags":"a"', '{"n":6' }, open = { '{"tags":["a"]' } },
    { '{"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b"]}}',
      yes = { '["a","b"]' }, no = { '["a","a"' } },
    { '{"type": "string", "pattern": "(a)\\\\1", "maxLength": 3}', yes = { '"abc"' },
      no = { '"abcd', "1" } },
    { '{"type": "string", "minLength": 1e308}', yes = { '"a"' }, no = { "1" } },
    { '{"type": "number", "multipleOf": 0.123456, "minimum": 1}', yes = { "1.5" },
      no = { "0.5", '"' } },
    { '{"type": "object", "patternProperties": {"(a)\\\\1": {"type": "null"}},'
      .. ' "properties": {"b": {"type": "null"}}, "additionalProperties": false}',
      yes = { '{"b":null,"aa":1}' }, no = { '{"b":1' } },
    { '{"type": "object", "unevaluatedProperties": false, "anyOf": [{"properties": {"a": {}}},'
      .. ' {"required": ["b"]}]}', yes = { '{"b":1}', '{"a":1}' }, no = { "1" } },
    { '{"type": "object", "required": ["a"], "allOf": [{"$ref": "#/nope"}],'
      .. ' "unevaluatedProperties": false}', yes = { '{"a":1}', '{"a":1,"b":2}' },
      wrong = { '{"b":2}' } },
  }, RELAX)
end)

test("what is not a schema is left out", function(t)
  cases.check(t, {
    { '{"type": "object", "properties": {"a": {"type": "str"}, "b": 3, "c": {"$ref": "#/no"},'
      .. ' "d": {"type": "null"}}, "additionalProperties": false}',
      yes = { '{"a":1,"b":2,"c":3,"d":null}' }, no = { '{"d":1', '{"e"' } },
    { '{"$dynamicRef": "#a", "type": "null"}', yes = { "null" }, no = { "1" } },
    { '{"$schema": "http://json-schema.org/draft-07/schema", "type": "object", "properties":'
      .. ' {"a": {"$ref": "#/no"}}}', yes = { '{"a":1}' }, no = { "1" } },
  }, RELAX)
end)

test("what is left out refuses nothing under a negation", function(t)
  cases.check(t, {
    { '{"not": {"pattern": "(a)\\\\1"}}', yes = { '"b"', '"aa"' } },
    { '{"not": {"properties": {"a": {"pattern": "(a)\\\\1"}}, "required": ["a"]}}',
      yes = { '{"b":1}', '{"a":"b"}' } },
    { '{"type": "array", "not": {"uniqueItems": true}}', yes = { "[1,1]", "[1,2]" }, no = { "1" } },
    { '{"oneOf": [{"type": "string", "pattern": "(a)\\\\1"}, {"type": "string"}]}',
      yes = { '"b"' }, no = { "1" } },
    { '{"if": {"$dynamicRef": "#a"}, "then": {"type": "null"}, "else": {"type": "boolean"}}',
      yes = { "null", "true" }, no = { "1" } },
  }, RELAX)
end)

test("without it they are refused, and what nothing fits always is", function(t)
  cases.refused(t, {
    { '{"type": "string", "pattern": "(a)\\\\1"}', "unsupported", "pattern" },
    { '{"properties": {"b": 3}}', "format", "/properties/b" },
  })
  cases.refused(t, { { '{"type": "null", "enum": [1]}', "unsatisfiable", "no value fits" } }, RELAX)
end)

-- ---- random schemas -----------------------------------------------------------------------------

local ONE = { "items", "not", "if", "then", "else", "additionalProperties", "contains" }
local MANY = { "properties", "patternProperties", "allOf", "anyOf", "oneOf", "prefixItems" }

--- Adds the schemas inside of a schema to a list, itself included.
local function parts(schema, list)
  if not json.is_object(schema) then return list end
  list[#list + 1] = schema
  for _, keyword in ipairs(ONE) do parts(schema[keyword], list) end
  for _, keyword in ipairs(MANY) do
    for _, inner in pairs(schema[keyword] or {}) do parts(inner, list) end
  end
  return list
end

--- The schema as text, and the same with a keyword in one of its parts that cannot be followed.
local function spoilt(schema, r, keyword, value)
  local plain = json.encode(schema)
  local list = parts(schema, {})
  list[r(#list)][keyword] = value
  return plain, json.encode(schema)
end

test("of a random schema with such a keyword nothing is refused that may fit", function(t)
  local random = samples.generator(11)
  local r = samples.picker(random)
  local tried, wrong = 0, {}
  for i = 1, 200 do
    if i == 5 then t.unforced() end -- each collection would walk through all that is kept
    local plain, text = spoilt(oracle.schema(r), random, "$dynamicRef", "#a")
    local never = assert(json.decode((text:gsub('"$dynamicRef": "#a"', '"not": {}'))))
    local g = cases.read(text, RELAX)
    for _ = 1, g and 12 or 0 do
      local v = oracle.value(r, 2)
      for _, schema in ipairs { assert(json.decode(plain)), never } do
        local known, fits = pcall(oracle.fits, schema, v)
        if known and fits then
          tried = tried + 1
          if not cases.takes(g, v, r) then
            wrong[#wrong + 1] = { text, json.encode(v) }
          end
        end
      end
    end
    if g then g:close() end
  end
  t.eq(wrong, {})
  t.eq(tried > 500, true)
end)
