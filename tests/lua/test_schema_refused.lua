-- What is not a schema, what cannot be enforced, what nothing fits, and what is too much; and the
-- converter against the standard's words on random schemas.
local cases = require "schema_cases"
local grammar = require "grammar"
local perigee = require "perigee"
local json = perigee.json
local oracle = require "schema_oracle"
local samples = require "samples"
local test = require("harness").test

test("what is not a schema", function(t)
  cases.refused(t, {
    { "3", "format", "must be an object, true or false, not a number" },
    { "null", "format", "not null" },
    { "[]", "format", "not an array" },
    { '{"type": "strin"}', "format", '"strin" is unknown' },
    { '{"type": "str\\nin"}', "format", [["str\nin" is unknown]] },
    { '{"type": []}', "format", "type has no types" },
    { '{"type": 3}', "format", "type must be" },
    { '{"enum": []}', "format", "enum has no values" },
    { '{"enum": 1}', "format", "enum must be an array" },
    { '{"properties": {"a": 3}}', "format", "/properties/a: a schema must be" },
    { '{"properties": []}', "format", "properties must be an object" },
    { '{"required": "a"}', "format", "required must be" },
    { '{"required": [1]}', "format", "required must be" },
    { '{"anyOf": []}', "format", "anyOf has no schemas" },
    { '{"allOf": [1]}', "format", "/allOf/0" },
    { '{"items": 3}', "format", "/items" },
    { '{"pattern": 5}', "format", "pattern must be a string" },
    { '{"pattern": "("}', "format", "pattern: byte 0" },
    { '{"type": "string", "maxLength": -1}', "format", "maxLength must be a count, not -1" },
    { '{"minItems": 1.5}', "format", "minItems must be a count, not 1.5" },
    { '{"minimum": "1"}', "format", "minimum must be a finite number" },
    { '{"multipleOf": 0}', "format", "multipleOf must be above 0" },
    { '{"uniqueItems": 1}', "format", "uniqueItems must be true or false" },
    { '{"dependentRequired": {"a": 1}}', "format", "dependentRequired" },
    { '{"$ref": 1}', "format", "$ref must be a string" },
    { '{"$ref": "#/nope"}', "format", "leads nowhere" },
    { '{"$ref": "#nope"}', "format", "leads nowhere" },
    { '{"$ref": "#"}', "format", "refers to itself" },
    { '{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}', "format",
      "/$defs/a: refers to itself" },
  })
end)

test("what cannot be enforced", function(t)
  cases.refused(t, {
    { '{"properties": {"a": {"uniqueItems": true}}}', "unsupported", "/properties/a: uniqueItems" },
    { '{"not": {"uniqueItems": true}}', "unsupported", "uniqueItems" },
    { '{"unevaluatedProperties": false, "anyOf": [{"properties": {"a": {}}}, {}]}', "unsupported",
      "unevaluatedProperties: depends on which alternative" },
    { '{"unevaluatedProperties": false, "if": {"minProperties": 1}, "else": {"properties":'
      .. ' {"a": {}}}}', "unsupported", "depends on which alternative" },
    { '{"unevaluatedItems": false, "contains": {"const": 1}}', "unsupported",
      "unevaluatedItems: depends on what contains finds" },
    { '{"unevaluatedProperties": false, "$ref": "#"}', "unsupported", "too deeply" },
    { '{"$dynamicRef": "#a"}', "unsupported", "$dynamicRef" },
    { '{"multipleOf": 0.123456}', "unsupported", "multipleOf 0.123456" },
    { '{"type": "integer", "multipleOf": 2147483647}', "unsupported", "multipleOf 2147483647" },
    { '{"pattern": "(a)\\\\1"}', "unsupported", "pattern" },
    { '{"$ref": "http://127.0.0.1:9/x.json"}', "unsupported", "nothing is fetched" },
    { '{"$ref": "file:///etc/passwd"}', "unsupported", "nothing is fetched" },
  })
end)

test("what nothing fits", function(t)
  cases.refused(t, {
    { "false", "unsatisfiable", "no value fits" },
    { '{"not": {}}', "unsatisfiable", "no value fits" },
    { '{"type": "string", "enum": [1]}', "unsatisfiable", "no value fits" },
    { '{"type": "integer", "minimum": 3, "maximum": 2}', "unsatisfiable", "no value fits" },
    { '{"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4}', "unsatisfiable", "" },
    { '{"type": "string", "minLength": 3, "maxLength": 2}', "unsatisfiable", "" },
    { '{"type": "string", "pattern": "^a", "allOf": [{"pattern": "^b"}]}', "unsatisfiable", "" },
    { '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}', "unsatisfiable",
      "" },
    { '{"type": "array", "items": false, "minItems": 1}', "unsatisfiable", "" },
    { '{"type": "array", "uniqueItems": true, "items": {"enum": [1, 2]}, "minItems": 3}',
      "unsatisfiable", "" },
    { '{"oneOf": [true, true]}', "unsatisfiable", "" },
    { '{"type": "object", "required": ["a"], "maxProperties": 0}', "unsatisfiable", "" },
    { '{"type": "object", "required": ["a"], "propertyNames": {"const": "b"}}', "unsatisfiable",
      "" },
  })
end)

--- `wrap` around a schema, n times.
local function nested(n, inner, before, after)
  return before:rep(n) .. inner .. after:rep(n)
end

test("what is too much", function(t)
  t.unforced() -- much is made
  local many, members, names = {}, {}, {}
  for i = 1, 20001 do
    many[i], members[i], names[i] = i, ('"%d": true'):format(i), tostring(i)
  end
  cases.refused(t, {
    { nested(150, "{}", '{"not":', "}"), "limit", "128" },
    { ('{"enum": %s}'):format(json.encode(many)), "limit", "20000" },
    { ('{"properties": {%s}}'):format(table.concat(members, ",")), "limit",
      "properties has more than 20000 names" },
    { ('{"required": %s}'):format(json.encode(names)), "limit",
      "required has more than 20000 names" },
    { '{"type": "string", "minLength": 1e308}', "limit", "minLength" },
    { '{"type": "string", "minLength": 2147483647}', "limit", "2147483647, at most 2147483646" },
    { '{"type": "array", "minItems": 99999999999}', "limit", "99999999999, at most" },
    { '{"type": "object", "minProperties": 1000000000}', "limit", "10000 states" },
    { '{"minimum": 1e500}', "format", "finite" },
    { ('{"minimum": 1%s}'):format(("0"):rep(400)), "limit", "401 digits, at most 400" },
    { ('{"type": "string", "pattern": "%s"}'):format(("a"):rep(70000)), "limit", "65536" },
  })
  cases.check(t, {
    { nested(40, '{"const": 1}', '{"required":["a"],"properties":{"a":', '},"type":"object"}'),
      yes = { nested(40, "1", '{"a":', "}") }, no = { nested(40, "2", '{"a":', "}") } },
  })
end)

test("numbers of as many digits as are read", function(t)
  local least = "1" .. ("0"):rep(399)
  cases.check(t, {
    { ('{"type": "integer", "minimum": %s}'):format(least), yes = { least, ("9"):rep(400) },
      open = { ("9"):rep(399) }, no = { least .. "0" } },
    { ('{"type": "integer", "minimum": -%s}'):format(least), yes = { ("9"):rep(400) },
      no = { ("9"):rep(401) } },
  })
end)

--- `text` with %d and %s for each number up to n, with commas between.
local function list_of(n, text)
  local parts = {}
  for i = 1, n do parts[i] = text:gsub("%%d", i):gsub("%%s", i + 1) end
  return table.concat(parts, ",")
end

-- The most that a schema may have of something, how the schema is made, and what one more is
-- refused with.
local MOST = {
  { 128, function(n) return nested(n, "{}", '{"not":', "}") end,
    "limit", "schemas are nested more than 128 deep" },
  { 3, function(n) return ('{"allOf": [%s]}'):format(list_of(n, '{"contains": {"const": %d}}')) end,
    "unsupported", "contains: 4 conditions on one array, at most 3" },
  { 64, function(n)
    return ('{"uniqueItems": true, "items": {"enum": [%s]}}'):format(list_of(n, "%d"))
  end, "limit", "uniqueItems of 65 values, at most 64" },
  { 8, function(n)
    return ('{"patternProperties": {%s}}'):format(list_of(n, '"^%d": {"const": %d}'))
  end, "limit", "patternProperties has 9 patterns, at most 8" },
  { 4, function(n)
    return ('{"type": "object", "allOf": [%s]}'):format(list_of(n,
      '{"not": {"additionalProperties": {"const": %d}}}'))
  end, "unsupported", "a negation wants more than 4 kinds of properties" },
  { 60, function(n)
    return ('{"type": "object", "properties": {%s}, "additionalProperties": false}'):format(
      list_of(n, '"%d": {}'))
  end, "limit", "61 properties in any order, at most 60", { order = "any" } },
  { 254, function(n)
    return ('{"$ref": "#/$defs/1", "$defs": {%s, "%d": {}}}'):format(
      list_of(n, '"%d": {"$ref": "#/$defs/%s"}'), n + 1)
  end, "limit", "/$defs/256: more than 256 schemas refer to each other for one value" },
  { 30, function(n)
    return ('{"$ref": "#/$defs/1", "unevaluatedItems": false, "$defs": {%s, "%d": {}}}'):format(
      list_of(n, '"%d": {"$ref": "#/$defs/%s"}'), n + 1)
  end, "unsupported", "unevaluatedItems: schemas refer to each other too deeply" },
  { 49996, function(n) -- and four around them
    return ('{"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}, "x": [%s]}'):format(list_of(n, "{}"))
  end, "limit", "has more than 50000 values to search for $id and $anchor" },
  { 10, function(n) -- 2^10 and 2^11
    return ('{"type": "object", "allOf": [%s]}'):format(list_of(n,
      '{"anyOf": [{"required": ["a%d"]}, {"required": ["b%d"]}]}'))
  end, "limit", "conditions make more than 2000 forms of an object" },
  { 1000000, function(n) return ('{"type": "integer", "multipleOf": %d}'):format(n) end,
    "unsupported", "multipleOf 1000001 would need remainders of 1000001, at most 1000000" },
}

test("what is just not too much", function(t)
  t.unforced() -- much is made
  for _, case in ipairs(MOST) do
    local most, schema, code, message, options = table.unpack(case)
    local g, why = cases.read(schema(most), options)
    t.eq({ message, g ~= nil, why and tostring(why) }, { message, true })
    if g then g:close() end
    cases.refused(t, { { schema(most + 1), code, message } }, options)
  end
  for depth, code in pairs { [260] = false, [261] = "limit" } do -- deeper than JSON is read
    local value = json.array {}
    for _ = 3, depth do value = json.array { value } end
    local g, why = grammar.schema { const = value }
    t.eq({ depth, g ~= nil, why and why.code or false }, { depth, not code, code })
    if g then g:close() end
  end
end)

test("names without a schema come in any order, if they are few", function(t)
  cases.check(t, {
    { '{"type": "object", "required": ["a", "b", "c", "d", "e", "f"]}',
      yes = { '{"f":1,"e":1,"d":1,"c":1,"b":1,"a":1}', '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}' },
      no = { '{"a":1,"b":1,"c":1,"d":1,"e":1}' } },
    { '{"type": "object", "required": ["a", "b", "c", "d", "e", "f", "g"]}',
      yes = { '{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1}' }, no = { '{"g":1' } },
  })
end)

test("a conversion has a limit of steps", function(t)
  t.unforced() -- much is made
  local inner = json.array {}
  for _ = 1, 3 do -- 80 * 80 * 80 arrays, of which few are kept
    local outer = json.array {}
    for i = 1, 80 do outer[i] = inner end
    inner = outer
  end
  local why = t.fails("limit", grammar.schema { ["x-values"] = inner })
  t.match(why.message, "takes 400000 steps or more to convert, the limit is 400000")
end)

test("references that double stay small", function(t)
  local parts = {}
  for i = 0, 59 do
    parts[i + 1] = ('"d%d": {"allOf": [{"$ref": "#/$defs/d%d"}, {"$ref": "#/$defs/d%d"}]}')
      :format(i, i + 1, i + 1)
  end
  cases.check(t, { { ('{"$defs": {%s, "d60": {"type": "null"}}, "$ref": "#/$defs/d0"}'):format(
    table.concat(parts, ", ")), yes = { "null" }, no = { "1" } } })
end)

test("a conversion pauses, and can be given up", function(t)
  local members = {}
  for i = 1, 300 do members[i] = ('"p%d": {"type": "integer", "minimum": %d}'):format(i, i) end
  local schema = json.decode(('{"properties": {%s}}'):format(table.concat(members, ",")))
  local pauses = 0
  local work = coroutine.wrap(function()
    local g = grammar.schema(schema, { pause = coroutine.yield })
    return g and "done"
  end)
  local result
  repeat
    result, pauses = work(), pauses + 1
  until result
  t.eq({ result, pauses > 10 }, { "done", true })
  local seen = {}
  t.raises(function()
    grammar.schema(schema, { pause = function() seen[1] = true error "gone" end })
  end, "gone")
  t.eq(seen, { true })
end)

test("a builder that has reached its limit says so", function(t)
  local b = assert(perigee.grammar.builder { terms = 200 })
  t.fails("limit", grammar.rule(b, json.decode '{"type": "number", "minimum": 0.125}'))
  t.fails("limit", grammar.rule(b, json.decode '{"type": "null"}'))
end)

test("options are checked", function(t)
  t.raises(function() grammar.schema({}, { whitespace = "none" }) end, "whitespace")
  t.raises(function() grammar.schema({}, { order = "alphabet" }) end, "order")
end)

-- ---- against the standard's words ---------------------------------------------------------------

test("random schemas mean what the standard says", function(t)
  local random = samples.generator(7)
  local r = samples.picker(random)
  local made, wrong = 0, {}
  for i = 1, 250 do
    if i == 5 then t.unforced() end -- each collection would walk through all that is kept
    local schema = oracle.schema(r)
    local g, why = grammar.schema(schema)
    if g then
      made = made + 1
      for _ = 1, 12 do
        local v = oracle.value(r, 2)
        local known, fits = pcall(oracle.fits, schema, v)
        if known and fits ~= cases.takes(g, v, r) then
          wrong[#wrong + 1] = { json.encode(schema), json.encode(v), fits }
        end
      end
      g:close()
    elseif why.code == "unsatisfiable" then
      for _ = 1, 12 do
        local v = oracle.value(r, 2)
        local known, fits = pcall(oracle.fits, schema, v)
        if known and fits then wrong[#wrong + 1] = { json.encode(schema), json.encode(v) } end
      end
    end
  end
  t.eq(wrong, {})
  t.eq(made > 150, true)
end)

test("the shared cases", function(t)
  local file = io.open "../shared/cases/structured/schemas.json"
  if not file then return t.skip "../shared/cases/structured is not there: 0 cases" end
  t.unforced() -- each collection would walk through all cases
  local all = assert(json.decode(file:read "a", { digits = true, max_values = 1 << 30 })).cases
  file:close()
  local wrong, hard, done = {}, 0, 0
  local fits = { accept = { yes = true }, prefix = { open = true }, dead = { no = true },
    reject = { no = true, open = true }, runaway = { no = true } }
  for _, case in ipairs(all) do
    local g, why = grammar.schema(case.schema)
    if case.may_refuse then hard, done = hard + 1, done + (g and 1 or 0) end
    if not g and not case.may_refuse and not case.unsatisfiable then
      wrong[#wrong + 1] = { case.name, tostring(why) }
    end
    for _, text in ipairs(g and case.texts or {}) do
      local got = cases.verdict(g, text[1])
      if text[2] ~= "either" and not fits[text[2]][got] then
        wrong[#wrong + 1] = { case.name, text[1]:sub(1, 80), text[2], got }
      end
    end
    if g then g:close() end
  end
  t.eq(wrong, {})
  t.eq({ #all > 300, done >= 0.6 * hard }, { true, true })
end)
