-- Values of one kind: types, numbers, strings, formats, lists of values, arrays.
local cases = require "schema_cases"
local json = require("perigee").json
local test = require("harness").test

test("types are told apart", function(t)
  cases.check(t, {
    { '{"type": "null"}', yes = { "null" }, no = { "nul1", "0", '""', " null" } },
    { '{"type": "boolean"}', yes = { "true", "false" }, open = { "tru" }, no = { "TRUE", "1" } },
    { '{"type": "integer"}', yes = { "0", "-7", "12", ("9"):rep(64) }, open = { "-" },
      no = { "1.5", "01", "-0", "1e3", ("9"):rep(65), "+1" } },
    { '{"type": "number"}', yes = { "0", "-0.5", "1e3", "2.5E-07", "10.250" },
      open = { "1.", "1e", "1e+" }, no = { ".5", "1.e3", "1e1234", "00", "Infinity" } },
    { '{"type": "string"}', yes = { '""', '"é\\n\\"\\\\"', '"😀"' }, open = { '"' },
      no = { '"\n"', '"\\x"', "'a'" } },
    { '{"type": ["integer", "null"]}', yes = { "1", "null" }, no = { "true", '"' } },
    { "true", yes = { "1", "[[]]", '{"a": {"b": [null, "x"]}}' }, no = { "]", '{"a" 1' } },
    { "{}", yes = { "null", "[1, 2]", "{}" } },
    { '{"type": "object"}', yes = { "{}", '{"a": 1, "a": 2}' }, no = { "[", '{a' } },
    { '{"type": "array"}', yes = { "[]", '[1, "a", {}]' }, no = { "[,", "[1 2" } },
  })
end)

test("keywords of other types do not matter, annotations neither", function(t)
  cases.check(t, {
    { '{"minLength": 3}', yes = { "1", "[]", '"abc"' }, no = { '"ab"' } },
    { '{"minimum": 3, "maxItems": 1}', yes = { '"a"', "3", "[2]" }, no = { "[2, 3" },
      wrong = { "2" } },
    { '{"type": "string", "format": "colour", "title": 3, "x-a": [], "nullable": true}',
      yes = { '"a"' }, no = { "null" } },
    { '{"then": false, "else": false}', yes = { "1" } },
    { '{"minContains": 3, "maxContains": 0}', yes = { "[]" } },
    { '{"$comment": "x", "default": 1, "examples": [2], "type": "null"}', yes = { "null" } },
  })
end)

-- ---- numbers ------------------------------------------------------------------------------------

--- Thousandths as a decimal, with or without zeros at its end.
local function spelled(n, zeros)
  local text = ("%s%d.%03d"):format(n < 0 and "-" or "", math.abs(n) // 1000, math.abs(n) % 1000)
  return zeros and text or (text:gsub("%.?0+$", ""))
end

local BOUNDS = { -20500, -1001, -1000, -999, -1, 0, 1, 250, 999, 1000, 1999, 2000, 10000, 19990 }

--- Numbers around each bound, and some far away.
local function around()
  local list = { -123456, 123456, 9500, 99000, -99001 }
  for _, b in ipairs(BOUNDS) do
    for d = -2, 2 do list[#list + 1] = b + d end
    list[#list + 1], list[#list + 2] = b + 100, b - 1000
  end
  return list
end

test("bounds of numbers are those of arithmetic", function(t)
  local numbers, wrong = around(), {}
  for i = 1, #BOUNDS do
    for j = i, math.min(#BOUNDS, i + 5) do
      local low, high = BOUNDS[i], BOUNDS[j]
      local open = (i + j) % 2 == 1
      local text = ('{"type": "number", "%s": %s, "%s": %s}'):format(
        open and "exclusiveMinimum" or "minimum", spelled(low),
        open and "exclusiveMaximum" or "maximum", spelled(high))
      local g, why = cases.read(text)
      for _, n in ipairs(g and numbers or {}) do
        local inside = n >= low and n <= high
        if open then inside = n > low and n < high end
        for _, zeros in ipairs { false, true } do
          local got = cases.verdict(g, spelled(n, zeros))
          if (got == "yes") ~= inside then wrong[#wrong + 1] = text .. " " .. spelled(n, zeros) end
        end
      end
      if not g and not (open and low == high) then wrong[#wrong + 1] = text .. tostring(why) end
      if g then g:close() end
    end
  end
  t.eq(wrong, {})
end)

test("bounds of integers are those of arithmetic", function(t)
  local wrong = {}
  for _, range in ipairs { { -12, 7 }, { 0, 9 }, { 10, 99 }, { 95, 1203 }, { -100, -99 },
    { 5, 5 } } do
    local g <close> = assert(cases.read(('{"type": "integer", "minimum": %d, "maximum": %d}')
      :format(range[1], range[2])))
    for n = -130, 1300 do
      local inside = n >= range[1] and n <= range[2]
      if (cases.verdict(g, tostring(n)) == "yes") ~= inside then wrong[#wrong + 1] = n end
    end
  end
  t.eq(wrong, {})
end)

test("multiples are those of arithmetic, in eighths and thousandths", function(t)
  local wrong = {}
  for _, step in ipairs { 2000, 3000, 7000, 12000, 500, 1500, 100, 250, 2500, 1200, 750, 10, 300,
    1750, 12500 } do
    local g <close> = assert(cases.read(('{"type": "number", "multipleOf": %s}'):format(
      spelled(step))))
    for k = 0, 400 do
      local n = k * 250 + (k % 3 == 0 and 50 or 0)
      for _, one in ipairs { n, -n } do
        local got = cases.verdict(g, spelled(one))
        if (got == "yes") ~= (one % step == 0) then wrong[#wrong + 1] = { step, spelled(one) } end
      end
    end
  end
  t.eq(wrong, {})
  cases.check(t, {
    { '{"type": "number", "multipleOf": 0.3}', yes = { "0.3", "2.1", "3", "-1.20" },
      no = { "1.11", "1.1", "0.31" } },
    { '{"type": "integer", "multipleOf": 0.5}', yes = { "3", "-1" }, no = { "1.5" } },
    { '{"type": "integer", "multipleOf": 999983}', yes = { "999983", "0", "1999966" },
      wrong = { "999984" } },
    { '{"type": "integer", "multipleOf": 5000}', yes = { "1" .. ("0"):rep(63) },
      no = { "1" .. ("0"):rep(64), ("1"):rep(62) }, open = { ("1"):rep(60) } },
    { '{"type": "integer", "multipleOf": 1e-8}', yes = { "12391239123" } },
  })
end)

test("numbers keep all their digits", function(t)
  cases.check(t, {
    { '{"maximum": 18446744073709551615}', yes = { "18446744073709551615", "18446744073709551614" },
      wrong = { "18446744073709551616" } },
    { '{"minimum": 9007199254740993}', yes = { "9007199254740993" },
      wrong = { "9007199254740992" } },
    { '{"const": 0.1}', yes = { "0.1" }, wrong = { "0.10000000000000001" } },
    { '{"exclusiveMaximum": 1e30}', yes = { ("9"):rep(30) }, wrong = { "1" .. ("0"):rep(30) } },
    { '{"maximum": 1.7976931348623157e308, "type": "number"}', yes = { ("1"):rep(309) } },
    { '{"type": "object", "properties": {"default": {"const": 1e-30}, "examples": {"minimum":'
      .. ' 1e-30}, "example": {"multipleOf": 1e-30}}}',
      yes = { ('{"default": 0.%s1, "examples": 1, "example": 1}'):format(("0"):rep(29)) } },
    { '{"default": {"minimum": 1e-30}, "$ref": "#/default"}', yes = { "1" }, wrong = { "0" } },
    { '{"const": {"default": 1e-30}}', yes = { ('{"default": 0.%s1}'):format(("0"):rep(29)) } },
    { '{"minimum": 5, "exclusiveMinimum": true, "type": "integer"}', yes = { "6" },
      wrong = { "5" } },
  })
end)

-- ---- strings ------------------------------------------------------------------------------------

test("lengths count characters of the value", function(t)
  cases.check(t, {
    { '{"type": "string", "minLength": 2, "maxLength": 3}',
      yes = { '"ab"', '"😀é"', '"\\n\\"x"', '"\\u0001\\t"' }, no = { '"a"', '"abcd', '""' } },
    { '{"type": "string", "maxLength": 0}', yes = { '""' }, no = { '"a' } },
    { '{"type": "string", "maxLength": 2.0}', yes = { '"ab"' }, no = { '"abc' } },
    { '{"type": "string", "maxLength": 1e20, "minLength": 1}', yes = { '"a"' }, no = { '""' } },
  })
end)

test("patterns search, and go with lengths and lists", function(t)
  cases.check(t, {
    { '{"type": "string", "pattern": "b+"}', yes = { '"b"', '"abbc"' }, no = { '"ac"' } },
    { '{"type": "string", "pattern": "^a", "maxLength": 2}', yes = { '"a"', '"ax"' },
      no = { '"ba', '"abc' } },
    { '{"pattern": "^a", "enum": ["ab", "b", "a\\"", 1]}', yes = { '"ab"', '"a\\""', "1" },
      no = { '"b' } },
    { '{"type": "string", "pattern": "^\\"\\\\\\\\$"}', yes = { '"\\"\\\\"' }, no = { '"a' } },
    { '{"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}',
      yes = { '"ab"', '"bxa"' }, no = { '"aa"' } },
  })
end)

local FORMATS = {
  date = { { "2024-02-29", "1999-12-31", "2000-02-29" },
    { "2023-02-29", "1900-02-29", "2024-04-31", "2024-13-01", "2024-1-1", "24-01-01" } },
  time = { { "10:05:00Z", "23:59:60Z", "00:00:00.5+23:59", "11:22:60-01:00" },
    { "24:00:00Z", "10:05", "10:05:00", "10:60:00Z", "10:05:61Z", "22:59:60Z" } },
  ["date-time"] = { { "2024-02-29T10:05:00Z", "1990-12-31t15:59:60.1-08:00" },
    { "2024-02-30T10:05:00Z", "2024-02-29 10:05:00Z", "2024-02-29T10:05:00" } },
  duration = { { "P1D", "PT36H", "P3W", "P1Y2M3DT4H5M6S", "P1YT1S" },
    { "P", "PT", "P1YT", "P1D2H", "P1W2D", "PT1H2S", "1D" } },
  email = { { "a@b", "first.last+tag@example.com", '"a b"@c.d', "a@[127.0.0.1]" },
    { "a", "@b", ".a@b", "a..b@c", "a@-b", "a@b..c", "a b@c" } },
  hostname = { { "a", "example.com", "x-1.y", ("a"):rep(63), ("abcdefg."):rep(31) .. "abcde" },
    { "-a", "a-", "a..b", "a_b", ("a"):rep(64), "a.b.", ("abcdefg."):rep(31) .. "abcdef" } },
  ipv4 = { { "0.0.0.0", "255.255.255.255", "127.0.0.1" },
    { "256.1.1.1", "1.2.3", "01.2.3.4", "1.2.3.4.5" } },
  ipv6 = { { "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1::8", "::ffff:1.2.3.4", "1:2:3:4:5:6:7::" },
    { ":::", "1::2::3", "12345::", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9", "1:2:3:4:5:6:7:1.2.3.4",
      "::1.2.3.256" } },
  uuid = { { "123e4567-E89B-12d3-a456-426614174000" },
    { "123e4567e89b12d3a456426614174000", "g23e4567-e89b-12d3-a456-426614174000" } },
  uri = { { "https://user@example.com:80/a/b?c=d#e", "mailto:a@b.c", "urn:x:y", "http://[::1]/" },
    { "//x/y", "no uri", "a b:c", "http://a/%zz", "http://a/<>" } },
  ["uri-reference"] = { { "/a/b", "../x?y", "#f", "", "http://a" }, { "a b", "%g0" } },
  iri = { { "http://ƒøø.ßår/?∂éœ=π" }, { "a b", "//x" } },
  ["json-pointer"] = { { "", "/a~0b/~1", "/" }, { "a", "/~2" } },
  ["relative-json-pointer"] = { { "0", "12/a", "1#" }, { "/a", "01", "-1" } },
}

test("formats", function(t)
  for name, texts in pairs(FORMATS) do
    local case = { ('{"type": "string", "format": "%s"}'):format(name), yes = {}, no = {} }
    for i, want in ipairs { "yes", "no" } do
      for _, text in ipairs(texts[i]) do table.insert(case[want], json.encode(text)) end
    end
    cases.check(t, { case })
  end
  cases.check(t, { { '{"type": "object", "properties": {"b": {"pattern": "format date"}, "a":'
    .. ' {"type": "string", "format": "date"}}}',
    yes = { '{"b": "format date", "a": "2024-01-01"}' }, no = { '{"a": "f' } } })
end)

-- ---- lists of values ----------------------------------------------------------------------------

test("const and enum", function(t)
  cases.check(t, {
    { '{"const": {"b": [1, null], "a": "x"}}', yes = { '{"b": [1, null], "a": "x"}',
      '{\n  "b": [\n    1,\n    null\n  ],\n  "a": "x"\n}' },
      no = { '{"a', '{"b": [1]', '{"b": [1, null], "a": "x", ' } },
    { '{"const": -2.0}', yes = { "-2" }, wrong = { "2", "-2.5" } },
    { '{"const": []}', yes = { "[]" }, no = { "[1", "{}" } },
    { '{"enum": [1, "1", null, [1], {"a": 1}, 10, true]}',
      yes = { "1", '"1"', "null", "[1]", '{"a": 1}', "10", "true" },
      no = { "false", "[1, ", '{"a": 2', '"a', "{}" }, wrong = { "100", "0" } },
    { '{"enum": ["a", "b", 3], "type": "string"}', yes = { '"a"' }, no = { "3" } },
    { '{"const": 1.0, "type": "integer"}', yes = { "1" }, wrong = { "2" } },
    { '{"enum": [1, 2], "const": 2}', yes = { "2" }, wrong = { "1" } },
    { '{"const": "a\\u0000b"}', yes = { '"a\\u0000b"' } },
    { '{"anyOf": [{"const": "a", "title": "A"}, {"enum": ["b", 3]}]}', yes = { '"a"', '"b"', "3" },
      no = { '"c' } },
    { '{"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}', yes = { '"a"', '"b"' } },
    { '{"oneOf": [{"const": "a"}, {"const": "b"}, {"const": "a"}]}', yes = { '"b"' },
      no = { '"a' } },
  })
end)

test("long texts, which are made in pieces of 16 KiB", function(t)
  t.unforced() -- much is made
  local parts = {}
  for i = 1, 8000 do parts[i] = ("%05d"):format(i) end
  local all = table.concat(parts)
  for _, size in ipairs { 16384, 16385, 32768, 40000 } do
    local text = all:sub(1, size)
    local say, no = ('"%s"'):format(text), { ('"%s"'):format(text:sub(16385)),
      ('"%s"'):format(text:sub(1, 16383)), ('"%s0'):format(text), ('"%s'):format(text:sub(2)) }
    cases.check(t, {
      { ('{"const": "%s"}'):format(text), yes = { say }, no = no },
      { ('{"enum": ["%s", "b"]}'):format(text), yes = { say, '"b"' }, no = no },
    })
  end
  for i = 1, 8000 do parts[i] = ('"%s"'):format(parts[i]) end -- 40000 bytes
  cases.check(t, { { ('{"enum": [%s]}'):format(table.concat(parts, ",")),
    yes = { '"00001"', '"03276"', '"03277"', '"08000"' }, no = { '"00000', '"08001' } } })
end)

-- ---- arrays -------------------------------------------------------------------------------------

test("elements and their number", function(t)
  cases.check(t, {
    { '{"type": "array", "items": {"type": "integer"}}', yes = { "[]", "[1]", "[1, 2]", "[1,\n2]" },
      no = { "[1, ]", '["', "[1,, " } },
    { '{"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}',
      yes = { "[true, true]", "[true,false,true]" }, no = { "[]", "[true]",
      "[true, true, true," } },
    { '{"type": "array", "minItems": 1000, "maxItems": 1001, "items": {"const": 1}}',
      yes = { "[1" .. (",1"):rep(999) .. "]", "[1" .. (",1"):rep(1000) .. "]" },
      no = { "[1" .. (",1"):rep(998) .. "]", "[1" .. (",1"):rep(1001) } },
    { '{"type": "array", "maxItems": 0}', yes = { "[]" }, no = { "[1" } },
    { '{"type": "array", "items": false}', yes = { "[]" }, no = { "[1" } },
    { '{"prefixItems": [{"type": "string"}, {"type": "null"}], "items": {"type": "integer"}}',
      yes = { "[]", '["a"]', '["a", null, 1, 2]', "5" },
      no = { "[1", '["a", 1', '["a", null, "' } },
    { '{"items": [{"type": "string"}], "additionalItems": false}', yes = { "[]", '["a"]' },
      no = { '["a", ' } },
    { '{"items": {"type": "null"}, "additionalItems": false}', yes = { "[null, null]" } },
    { '{"prefixItems": [true, false, true], "type": "array"}', yes = { "[]", "[1]" },
      no = { "[1, " } },
    { '{"prefixItems": [{"type": "null"}], "minItems": 3, "type": "array"}',
      yes = { "[null, 1, 2]" }, no = { "[null]", "[null, 1]" } },
    { '{"type": "array", "maxItems": 1000000000000000000000}', yes = { "[1, 2]" } },
  })
end)

test("contains counts", function(t)
  cases.check(t, {
    { '{"type": "array", "contains": {"const": 5}}', yes = { "[5]", "[1, 5, 5]" },
      no = { "[]", "[1]", '["5"]' } },
    { '{"type": "array", "contains": {"minimum": 5}, "minContains": 2, "maxContains": 2,'
      .. ' "items": {"type": "integer"}}', yes = { "[5, 6]", "[1, 5, 1, 7, 2]" },
      no = { "[5]", "[5, 6, 7]", "[1, 2]" } },
    { '{"type": "array", "contains": {"type": "null"}, "minContains": 0, "maxContains": 1}',
      yes = { "[]", "[1]", "[null]", "[1, null, 2]" }, no = { "[null, null" } },
    { '{"type": "array", "contains": {"type": "null"}, "minContains": 0}', yes = { "[]", "[1]" } },
    { '{"type": "array", "contains": {"type": "null"}, "maxItems": 2}', yes = { "[1, null]" },
      no = { "[1, 1", "[]" } },
    { '{"type": "array", "allOf": [{"contains": {"const": 1}}, {"contains": {"const": 2}}]}',
      yes = { "[1, 2]", "[2, 3, 1]" }, no = { "[1]", "[2, 2]" } },
    { '{"contains": false}', yes = { "1" }, no = { "[" } },
    -- An element that is not of `items`: the first ones are not counted.
    { '{"type": "array", "not": {"prefixItems": [{}, {}], "items": {"type": "null"}}}',
      yes = { "[1, 2, 3]", "[1, 2, null, 3]", "[null, null, 3]" },
      no = { "[]", "[1]", "[1, 2]", "[1, 2, null]" } },
    { '{"type": "array", "not": {"prefixItems": [{}], "items": {"type": "null"}},'
      .. ' "contains": {"const": 5}}', yes = { "[5, 1]", "[1, 5]" },
      no = { "[5]", "[5, null]", "[1, 2]" } },
  })
end)

test("unique elements of a list of values", function(t)
  cases.check(t, {
    { '{"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", 3]}}',
      yes = { "[]", '["a"]', '["b", 3, "a"]' }, no = { '["a", "a', '["a", "b", 3,' } },
    { '{"type": "array", "uniqueItems": true, "items": {"type": "boolean"}, "minItems": 2}',
      yes = { "[true, false]", "[false, true]" }, no = { "[true]", "[true, t", "[]" } },
    { '{"type": "array", "uniqueItems": true, "maxItems": 1}', yes = { "[]", "[1]" },
      no = { "[1," } },
    { '{"type": "array", "uniqueItems": false}', yes = { "[1, 1]" } },
    { '{"type": "array", "uniqueItems": true, "maxItems": 2, "items": {"enum": [1, 2, 3, 1]}}',
      yes = { "[2, 1]" }, no = { "[1, 2,", "[1, 1" } },
    { '{"type": "array", "uniqueItems": true, "items": {"anyOf": [{"enum": ["a", "b"]},'
      .. ' {"const": "c"}, {"type": "null"}]}}', yes = { '["a", "c", null, "b"]' },
      no = { '["a", "a', '["c", "c', "[null, n", '["a", "c", null, "b",' } },
    { '{"type": "array", "uniqueItems": true, "items": {"$ref": "#/$defs/x"}, "$defs": {"x":'
      .. ' {"allOf": [{"minimum": 2}, {"oneOf": [{"const": 1}, {"enum": [2, 3]}]}]}}}',
      yes = { "[3, 2]" }, no = { "[1", "[2, 2", "[2, 3," } },
  })
  local values = {}
  for i = 1, 64 do values[i] = i + 99 end
  local text = json.encode(values)
  cases.check(t, {
    { ('{"type": "array", "uniqueItems": true, "items": {"enum": %s}}'):format(text),
      yes = { text }, no = { "[100, 163, 163", (text:gsub("%]", ", 100")) } },
  })
end)
