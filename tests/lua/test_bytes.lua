-- Long bytes outside of Lua's heap, and long JSON texts that are read by a job.
local async = require "lib.async"
local perigee = require "perigee"
local read_body = require "api.body"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

local forced = ...

local function bytes_of(text)
  local bytes = assert(perigee.bytes.new(#text))
  bytes:put(text)
  return bytes
end

test("bytes grow up to their size, and are cut as strings are", function(t)
  local b <close> = assert(perigee.bytes.new(10))
  b:put "hello"
  b:put("xx, woyy", 3, -3)
  t.eq({ #b, b:len(), b:text() }, { 9, 9, "hello, wo" })
  t.raises(function() b:put "rl" end, "9 bytes and 2 more do not fit in 10")
  local text = b:text()
  for i = -11, 11 do
    for j = -11, 11 do t.eq(b:sub(i, j), text:sub(i, j), i .. " " .. j) end
  end
  local s = b:slice(-2)
  t.eq({ s:text(), #s }, { "wo", 2 })
  t.raises(function() s:put "x" end, "a slice does not grow")
  b:close()
  t.eq(s:sub(1, 1), "w")
  t.raises(function() b:len() end, "closed")
end)

--- Reads a text by a job and builds it in steps; returns the value, or nil and the error; and the
--- number of steps.
local function read(text, options, ms)
  local tape, why
  json.read(bytes_of(text), options, function(...) tape, why = ... end)
  while not tape and not why do uv.run "once" end
  if not tape then return nil, why end
  local steps = 0
  while true do
    steps = steps + 1
    local done, value = tape:build(ms or 1000)
    if done == nil then return nil, value end
    if done then return value, nil, steps end
  end
end

local TEXTS = { "null", "true", "[]", "{}", '"x"', "-1.5e3", "12345678901234567890123",
  '{"a": [1, 2.0, {"b": [[], {}, null]}, "\\u00e9\\n"], "a": 2, "c\\u0041": {"": false}}',
  "[[[[[[1], 2], 3], 4], 5], 6]", '  {"x" : [ { "y" : 1 } , { "y" : 2 } ] } ' }

test("a text that a job reads is what decode makes of it", function(t)
  for _, text in ipairs(TEXTS) do
    for _, digits in ipairs { true, false } do
      local want = json.decode(text, { digits = digits })
      local got = read(text, { digits = digits })
      t.eq(json.encode(got), json.encode(want), text)
      t.eq({ type(got), math.type(got) }, { type(want), math.type(want) }, text)
    end
  end
  local object = read '{"z": 1, "a": 2, "z": 3}'
  object.new = 4
  t.eq(json.encode(object), '{"z": 3, "a": 2, "new": 4}')
end)

test("errors and limits are those of decode", function(t)
  for _, text in ipairs { "", "[1,", "{1}", '"\\ud800"', "[1] 2", ("["):rep(300), '"\xff"',
    '{"' .. ("k"):rep(70000) .. '": 1}' } do
    local _, want = json.decode(text)
    local _, err = read(text)
    t.eq({ err.code, err.message }, { want.code, want.message }, text:sub(1, 20))
  end
  for _, text in ipairs { "[1, 2, 3]", '{"a": "b"}', '["x", {"y": []}]' } do
    for most = 1, 40 do
      local _, want = json.decode(text, { max_values = most })
      local _, err = read(text, { max_values = most })
      t.eq(err and err.message, want and want.message, text .. most)
    end
  end
end)

test("keys and strings together have a limit, without slices", function(t)
  local long = ("p"):rep(70000)
  local text = ('{"key": ["12", "\\u0033"], "image": {"url": "%s"}}'):format(long)
  local slices = { "image.url" }
  for most, fits in pairs { [14] = true, [13] = false, [0] = false } do
    local got, err = read(text, { max_text = most, slices = slices })
    t.eq(got and got.key[2], fits and "3" or nil, most)
    if not fits then
      t.eq({ err.code, err.message }, { "limit", ("more than %d bytes of text"):format(most) })
    end
  end
  t.fails("limit", read(text, { max_text = 70000 }))
  t.ok(read(text, { max_text = 70014 }))
end)

test("a large value is built in slices of time", function(t)
  if forced then return end -- every allocation takes long there
  local list = {}
  for i = 1, 50000 do list[i] = { id = i, text = "entry " .. i } end
  local text = json.encode { list = list }
  local value, _, steps = read(text, nil, 0.2)
  t.ok(steps > 5, steps)
  t.eq(#value.list, 50000)
  t.eq({ value.list[50000].id, value.list[50000].text }, { 50000, "entry 50000" })
end)

test("long strings at chosen places are slices of the text", function(t)
  local long, short = ("QUJD"):rep(16384) .. "Q", ("QUJD"):rep(16384) -- 65,537 and 65,536 bytes
  local text = json.encode { messages = { { content = {
    { type = "image_url", image_url = { url = long } }, { image_url = { url = short } },
    { image_url = long }, { text = long }, { other = { url = long } },
    { image_url = { { url = long .. "\n" } } } } } }, url = long }
  local value = read(text, { slices = { "image_url.url", "content.image_url" } })
  local parts = value.messages[1].content
  t.eq({ type(parts[1].image_url.url), #parts[1].image_url.url }, { "userdata", 65537 })
  t.eq(parts[1].image_url.url:sub(1, 8), "QUJDQUJD")
  t.eq(parts[2].image_url.url, short)
  t.eq(parts[3].image_url:text(), long)
  t.eq({ parts[4].text, parts[5].other.url, value.url }, { long, long, long })
  t.eq(parts[6].image_url[1].url:sub(-2), "Q\n") -- it had an escape
  t.eq(json.encode(value.messages), json.encode(json.decode(text).messages))
  collectgarbage()
  t.eq(parts[1].image_url.url:sub(-5), "QUJDQ") -- the text is still there
end)

test("places of slices", function(t)
  local long = json.encode { a = { b = ("x"):rep(70000) } }
  local function places(n, of)
    local list = {}
    for i = 1, n do list[i] = i == n and of or "x.y" .. i end
    return list
  end
  t.eq(type(read(long, { slices = places(16, "a.b") }).a.b), "userdata")
  t.eq(type(read(long, { slices = places(16, "b.a") }).a.b), "string")
  t.raises(function() read(long, { slices = places(17, "a.b") }) end,
    "slices: at most 16 places, got 17")
  t.raises(function() read(long, { slices = places(2, ".b" .. ("c"):rep(62)) }) end,
    'slices[2] must be "PARENT.KEY"')
  local name = ("c"):rep(61)
  local deep = json.encode { a = { [name] = ("x"):rep(70000) } }
  t.eq(type(read(deep, { slices = { "a." .. name } }).a[name]), "userdata")
  t.eq(type(read('{"k": "' .. ("x"):rep(70000) .. '"}', { slices = { ".k" } }).k), "userdata")
  t.eq(type(read('["' .. ("x"):rep(70000) .. '"]', { slices = { "." } })[1]), "string")
  t.raises(function() read(long, { slices = 5 }) end, "'slices' must be a list of strings")
  t.raises(function() read(long, { slices = { {} } }) end, "string expected")
end)

test("a tape is built in one step while there is time, and else in steps of 64 notes", function(t)
  local function steps(numbers, ms)
    local got, _, count = read("[" .. ("7,"):rep(numbers - 1) .. "7]", nil, ms)
    t.eq(#got, numbers)
    return count
  end
  t.eq({ steps(62, 1e6), steps(63, 1e6), steps(5000, 1e6) }, { 1, 1, 1 })
  t.eq({ steps(62, 0), steps(63, 0), steps(126, 0), steps(127, 0) }, { 1, 2, 2, 3 })
end)

test("a tape is built once, and its memory is given back then", function(t)
  local tape
  json.read(bytes_of "[1, 2]", nil, function(got) tape = got end)
  while not tape do uv.run "once" end
  local before = select(2, perigee.live())
  local done, value = tape:build(1000)
  t.eq({ done, value }, { true, { 1, 2 } })
  t.ok(select(2, perigee.live()) < before)
  t.ok(rawequal(select(2, tape:build(0)), value))
  tape:close()
  local text = bytes_of "[1]"
  json.read(text, nil, t.expect(function() end))
  t.raises(function() text:put "x" end, "does not grow")
  local part = bytes_of("x[1]"):slice(2)
  t.raises(function() json.read(part, nil, print) end, "a slice cannot be read")
  t.raises(function() json.read(bytes_of "1", nil, 5) end, "function expected")
  t.raises(function() tape:build() end, "closed")
end)

test("ranges of bytes", function(t)
  t.raises(function() perigee.bytes.new(-1) end, "must not be negative")
  local none <close> = perigee.bytes.new(0)
  t.eq({ #none, none:text(), none:sub(1), none:slice(1):text() }, { 0, "", "", "" })
  none:put ""
  t.raises(function() none:put "x" end, "0 bytes and 1 more do not fit in 0")
  local b <close> = bytes_of "abcdef"
  local s <close> = b:slice(2, 5)
  t.eq({ s:text(), s:sub(2), s:sub(2, 3), s:slice(2):text(), s:slice(-2, -1):text() },
    { "bcde", "cde", "cd", "cde", "de" })
  local before = select(2, perigee.live())
  local grown <close> = perigee.bytes.new(1000)
  t.eq(select(2, perigee.live()), before)
  grown:put(("x"):rep(600))
  t.eq(select(2, perigee.live()), before + 600)
  t.raises(function() b:put(5, {}) end, "number expected")
end)

test("a job that is stopped ends", function(t)
  local stop = perigee.job.stop()
  stop:set()
  local _, err = read("[1, 2]", { stop = stop })
  t.eq(err.code, "cancelled")
  t.raises(function() read("1", { stop = 5 }) end, "'stop' must be a perigee.Stop")
  t.raises(function() json.read("[]", nil, print) end, "perigee.Bytes")
  t.raises(function() read("1", { slices = { "x" } }) end, "PARENT.KEY")
end)

test("the body of a request is read as text where text is meant", function(t)
  local long = ("word "):rep(20000)
  local text = json.encode { messages = { { role = "user", content = {
    { type = "text", text = long }, { type = "image_url", image_url = { url = long } } } } } }
  async.run(t.expect(function()
    local request = { body = bytes_of(text), header = function() end }
    local parts = read_body(request, { values = 1000, text = 100100 }).messages[1].content
    t.eq(parts[1].text, long)
    t.eq(type(parts[2].image_url.url), "userdata")
    t.eq(request.body, nil)
    local function try(sent, values, aborted, room)
      return pcall(read_body, { body = bytes_of(sent), header = function() end,
        aborted = aborted }, { values = values, text = room })
    end
    local ok, err = try(text .. "x", 1000)
    t.eq({ ok, err.status }, { false, 400 })
    t.match(err.message, "^the request body is not valid JSON: line 1, column %d+")
    ok, err = try(text, 10)
    t.eq({ ok, err.status, err.code }, { false, 413, "too_many_values" })
    ok, err = try(text, 1000, true)
    t.eq({ ok, err.code }, { false, "cancelled" })
    ok, err = try(text, 1000, false, 100000) -- the other strings have some bytes, too
    t.eq({ ok, err.status, err.code }, { false, 413, "too_much_text" })
    t.eq(err.message, "the request body is too large: more than 100000 bytes of text")
  end))
end)
