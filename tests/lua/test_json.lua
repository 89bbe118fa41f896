-- JSON in Lua: order, integers, empty containers, null, and the output of Python's json.dumps.
local perigee = require "perigee"
local json = perigee.json
local test = require("harness").test

local forced = ... -- then every allocation is slow

local function keys(object)
  local list = {}
  for k in pairs(object) do list[#list + 1] = k end
  return table.concat(list, " ")
end

test("objects keep the order of their keys", function(t)
  local v = json.decode '{"z": 1, "a": 2, "m": {"y": 1, "b": 2}, "a": 3}'
  t.eq(keys(v), "z a m")
  t.eq(keys(v.m), "y b")
  t.eq(v.a, 3)
  v.new = true
  v.z = nil
  t.eq(keys(v), "a m new")
  v.z = 1 -- added again at the end, as in Python
  t.eq(keys(v), "a m new z")
  t.eq(json.encode(v), '{"a": 3, "m": {"y": 1, "b": 2}, "new": true, "z": 1}')
  t.raises(function() v[1] = 2 end, "keys of a JSON object must be strings")
end)

test("numbers keep their kind", function(t)
  local v = json.decode("[16, 16.0, 9007199254740993, -9223372036854775808, "
    .. "9223372036854775808, 1e2, NaN, -Infinity]")
  t.eq(math.type(v[1]), "integer")
  t.eq(math.type(v[2]), "float")
  t.eq(v[3], 9007199254740993)
  t.eq(v[4], math.mininteger)
  t.eq(math.type(v[5]), "float")
  t.eq(v[7] ~= v[7], true)
  t.eq(json.encode(v), "[16, 16.0, 9007199254740993, -9223372036854775808, "
    .. "9.223372036854776e+18, 100.0, NaN, -Infinity]")
end)

test("empty containers and null survive a round trip", function(t)
  local text = '{"a": [], "o": {}, "n": null, "l": [null, []], "s": ""}'
  local v = json.decode(text)
  t.eq(json.encode(v), text)
  t.eq(v.n, json.null)
  t.eq(json.is_array(v.a), true)
  t.eq(json.is_array(v.o), false)
  t.eq(json.is_object(v.o), true)
  t.eq(json.is_object(v.s), false)
  t.eq(json.encode(json.array()), "[]")
  t.eq(json.encode {}, "{}")
  t.eq(json.decode "null", json.null)
end)

test("strings hold everything except invalid UTF-8", function(t)
  t.eq(json.decode [["\u0000\ud83c\udf19\n\/"]], "\0🌙\n/")
  t.eq(json.encode "\0🌙\n\"\\\127é", [["\u0000🌙\n\"\\]] .. "\127é\"")
  t.eq(json.encode("é🌙\127", { ascii = true }), [["\u00e9\ud83c\udf19\u007f"]])
  local _, err = json.decode [["\ud800"]]
  t.eq(tostring(err), "line 1, column 4: lone surrogate \\ud800")
  t.raises(function() json.encode "\xff" end, "not UTF-8 at byte 1")
end)

test("options like Python's", function(t)
  local v = json.object { { "b", { 1, 2 } }, { "a", json.object { { "x", json.array() } } } }
  t.eq(json.encode(v, { compact = true }), '{"b":[1,2],"a":{"x":[]}}')
  t.eq(json.encode(v, { sort_keys = true }), '{"a": {"x": []}, "b": [1, 2]}')
  t.eq(json.encode(v, { indent = 2 }),
    '{\n  "b": [\n    1,\n    2\n  ],\n  "a": {\n    "x": []\n  }\n}')
  t.eq(json.encode(v, { item_separator = "; ", key_separator = " = " }),
    '{"b" = [1; 2]; "a" = {"x" = []}}')
  t.raises(function() json.encode(v, { indnet = 1 }) end, "indent")
end)

test("plain tables are written in a fixed order", function(t)
  t.eq(json.encode { b = 1, a = 2, c = { 1, "x", false } },
    '{"a": 2, "b": 1, "c": [1, "x", false]}')
  t.raises(function() json.encode { 1, x = 2 } end, "cannot encode a table with the key")
  t.raises(function() json.encode { [2] = 1 } end, "cannot encode a table with the key")
  t.raises(function() json.encode(print) end, "cannot encode a function")
  local cycle = {}
  cycle[1] = cycle
  t.raises(function() json.encode(cycle) end, "nested deeper than 200 levels")
end)

test("errors have a position", function(t)
  local value, err = json.decode '{"a":\n  tru}'
  t.eq(value, nil)
  t.eq(err.code, "format")
  t.eq(err.message, "line 2, column 3: expected a value, got 't'")
  t.eq(select(2, json.decode(("["):rep(300))).message,
    "line 1, column 201: nested deeper than 200 levels")
  t.eq(select(2, json.decode("[[[]]]", { max_depth = 2 })).message,
    "line 1, column 3: nested deeper than 2 levels")
  t.eq(json.decode("[1]", { max_size = 3 })[1], 1)
  t.eq(t.fails("limit", json.decode("[1] ", { max_size = 3 })).message,
    "text of 4 bytes is too long: at most 3")
  t.eq(json.decode('{"a": [1, 2], "b": {}}', { max_values = 42 }).a[2], 2)
  t.eq(t.fails("limit", json.decode('{"a": [1, 2], "b": {}}', { max_values = 41 })).message,
    "42 values in the first 20 of 22 bytes, at most 41")
  t.eq(select(2, json.decode('{"' .. ("k"):rep(65537) .. '": 1}')).message,
    "line 1, column 65542: key of 65537 bytes is too long: at most 65536")
  t.eq(json.decode('["x", null]', { max_values = 13 })[1], "x")
  t.fails("limit", json.decode('["x", null]', { max_values = 12 }))
  t.raises(function() json.decode("1", { max_values = 0 }) end, "max_values")
end)

test("objects built key by key keep their order, also when keys are removed", function(t)
  local object, want = json.object(), {}
  for i = 1, 40 do
    object["k" .. i] = i
    if i % 3 == 0 then object["k" .. i - 1] = nil end
    if i % 6 == 0 then object["k" .. i - 1] = -i end
  end
  local seen = {}
  for key, value in pairs(object) do
    seen[#seen + 1] = key .. "=" .. value
    t.eq(want[key], nil, "once")
    want[key] = true
  end
  t.eq(table.concat(seen, " ", 1, 8), "k1=1 k3=3 k4=4 k6=6 k5=-6 k7=7 k9=9 k10=10")
  t.eq(#seen, 33)
  local many = json.object() -- takes minutes if each key is compared with all others
  local count, n = forced and 100 or 200000, 0
  for i = 1, count do many["k" .. i] = i end
  for _ in pairs(many) do n = n + 1 end
  t.eq(n, count)
end)

test("integers beyond 64 bits keep their digits when asked", function(t)
  local text = '{"a": 18446744073709551615, "b": [-9223372036854775809, 1e30, 7]}'
  local v = json.decode(text, { digits = true })
  t.eq(json.encode(v), '{"a": 18446744073709551615, "b": [-9223372036854775809, 1e+30, 7]}')
  t.eq(json.digits(v.a), "18446744073709551615")
  t.eq(tostring(v.b[1]), "-9223372036854775809")
  t.eq(v.a == json.decode("18446744073709551615", { digits = true }), true)
  t.eq(v.a == v.b[1], false)
  t.eq(json.digits(v.b[2]), nil)
  t.eq(math.type(v.b[3]), "integer")
  t.eq(math.type(json.decode(text).a), "float")
end)

test("arguments", function(t)
  for _, name in ipairs { "encode", "is_array", "is_object", "digits" } do
    t.raises(function() json[name]() end, "(value expected)")
  end
  t.eq({ json.is_array(nil), json.is_object(5), json.digits "x" }, { false, false })
  t.eq({ json.is_array { 1 }, json.is_array { 1, x = 2 }, json.is_array { 1, nil, 3 },
    json.is_array {}, json.is_object {} }, { true, false, false, false, true })
  t.raises(function() json.decode "1" [1] = 1 end, "index")
  t.raises(function() json.decode(5, 5) end, "table expected, got number")
  t.raises(function() json.array(5) end, "table expected, got number")
  t.raises(function() json.object(5) end, "table expected, got number")
  for _, wrong in ipairs { { { 1, 2 } }, { { "a", 1 }, 5 }, { "x" } } do
    t.raises(function() json.object(wrong) end, "a list of {key, value} pairs expected")
  end
  local marked = {}
  t.ok(rawequal(json.array(marked), marked))
  t.eq({ json.encode(marked), select("#", json.array({}, 2)) }, { "[]", 1 })
  t.eq(json.encode(json.object { { "a", 1 }, { "b", nil }, { "a", 2 } }), '{"a": 2}')
end)

test("forms of every value", function(t)
  local bytes = assert(perigee.bytes.new(8))
  bytes:put 'b"'
  for want, v in pairs { ["null"] = json.null, ["true"] = true, ["false"] = false, ["-7"] = -7,
    ["0.5"] = 0.5, ['"x"'] = "x", ['"b\\""'] = bytes, ["[]"] = json.array(), ["{}"] = {},
    [tostring(math.mininteger)] = math.mininteger } do
    t.eq(json.encode(v), want)
  end
  t.eq(json.encode(nil), "null")
  bytes:close()
  t.raises(function() json.encode(bytes) end, "cannot encode a userdata")
  t.eq(json.encode({ 1, { a = 2 } }, { indent = 0 }), '[\n1,\n{\n"a": 2\n}\n]')
  t.eq(json.encode({ {}, json.array() }, { indent = 3 }), "[\n   {},\n   []\n]")
  t.eq(json.encode({ 1, { a = 2 } }, { indent = 1, compact = true }), '[\n 1,\n {\n  "a":2\n }\n]')
  t.eq(json.encode({ a = 1, b = 2 }, { item_separator = "", key_separator = "" }), '{"a"1"b"2}')
end)

test("a key that is set again after it was removed, in short and long objects", function(t)
  for _, n in ipairs { 14, 15, 16, 17, 18 } do
    local object, want = json.object(), {}
    for i = 1, n do object["k" .. i] = i end
    object.k2, object.k5 = nil, nil
    object.k5 = 50
    object.new = 1
    object.k2 = 20
    object.k5 = 51
    for i = 1, n do
      if i ~= 2 and i ~= 5 then want[#want + 1] = "k" .. i end
    end
    t.eq(keys(object), table.concat(want, " ") .. " k5 new k2", n)
    object.none = nil
    t.eq(#json.encode(object, { compact = true }) > 0, true)
    for _ = 1, 3 do -- again and again
      object.new = nil
      object.new = 2
    end
    t.eq(keys(object), table.concat(want, " ") .. " k5 k2 new", n)
  end
end)
