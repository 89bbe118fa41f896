-- chat.content: contents of messages are read, joined, mapped and shaped; nothing is lost.
local async = require "lib.async"
local content = require "chat.content"
local perigee = require "perigee"
local test = require("harness").test
local json = perigee.json

--- JSON text to values, as a request has them.
local function value(text) return (assert(json.decode(text))) end

local function show(v) return json.encode(v) end

local IMAGE = '{"type":"image_url","image_url":{"url":"x"}}'
local MARKED = '{"type":"text","text":"m","cache_control":{"type":"ephemeral"}}'

local function text(s) return ('{"type":"text","text":%s}'):format(json.encode(s)) end
local function list(...) return "[" .. table.concat({ ... }, ",") .. "]" end

-- Contents that are added in order (JSON texts), and what they are together.
local JOINS = {
  { { '"a"' }, '"a"' },
  { { '"a"', '"b"', '"c"' }, '"a\\n\\nb\\n\\nc"' },
  { { '""', "null" }, '""' },
  { { "null", '""' }, "null" },
  { { "[]", '"a"', "null", "[]" }, '"a"' },
  { { '"a"', list(text "b") }, list(text "a\n\nb") },
  { { '"a"', list(text "b", text "c") }, list(text "a\n\nb", text "c") },
  { { list(text "a"), '"b"' }, list(text "a\n\nb") },
  { { list(text "a", text "b"), '"c"' }, list(text "a", text "b\n\nc") },
  { { list(text "a"), list(text "b"), list(text "c") }, list(text "a\n\nb\n\nc") },
  { { list(IMAGE), '"a"' }, list(IMAGE, text "a") },
  { { list(IMAGE), '"a"', '"b"' }, list(IMAGE, text "a\n\nb") },
  { { '"a"', list(IMAGE) }, list(text "a", IMAGE) },
  { { '"a"', list(IMAGE), '"b"' }, list(text "a", IMAGE, text "b") },
  { { list(IMAGE), list(IMAGE) }, list(IMAGE, IMAGE) },
  { { list(text "a", IMAGE), list(IMAGE, text "b") }, list(text "a", IMAGE, IMAGE, text "b") },
  -- A part with more than its text stays one; the gap goes to the end of the text before it.
  { { '"a"', list(MARKED) }, list(text "a\n\n", MARKED) },
  { { list(text "a", text "b"), list(MARKED, IMAGE) },
    list(text "a", text "b\n\n", MARKED, IMAGE) },
  { { list(MARKED), '"b"' },
    list('{"type":"text","text":"m\\n\\n","cache_control":{"type":"ephemeral"}}', text "b") },
  { { list(MARKED), list(text "b", IMAGE) },
    list('{"type":"text","text":"m\\n\\n","cache_control":{"type":"ephemeral"}}', text "b",
      IMAGE) },
  { { list('{"type":"text","text":"n","cache_control":null}'), '"b"' }, list(text "n\n\nb") },
  -- Alone, a last text keeps what it has.
  { { list('{"type":"text","text":"n","cache_control":null}') },
    list '{"type":"text","text":"n","cache_control":null}' },
}

test("joined contents keep every part and every text", function(t)
  for _, case in ipairs(JOINS) do
    local all = content.joined()
    for _, one in ipairs(case[1]) do all:add(value(one)) end
    t.eq(show(all:value()), show(value(case[2])), table.concat(case[1], " + "))
  end
  t.eq(content.joined():value(), nil)
  t.eq(content.join("a", "b"), "a\n\nb")
  t.eq(content.join("a", "b", "-"), "a-b")
end)

test("parts are read under one name for text", function(t)
  for given, want in pairs {
    ["null"] = "null", ['"x"'] = '"x"', ["[]"] = "[]", ['["x"]'] = list(text "x"),
    ['[{"text":"x"}]'] = list(text "x"),
    ['[{"type":"input_text","text":"x"}]'] = list(text "x"),
    ['[{"type":"refusal","refusal":"no","n":1}]'] = '[{"type":"text","text":"no","n":1}]',
    [list(MARKED, IMAGE)] = list(MARKED, IMAGE),
  } do
    t.eq(show(content.read(value(given))), show(value(want)), given)
  end
  t.eq(content.read(nil), json.null)
end)

test("what a content is", function(t)
  for given, want in pairs { -- is_empty, is_text, flat, parts
    ["null"] = { true, true, "null", "[]" },
    ['""'] = { true, true, '""', "[]" },
    ["[]"] = { true, true, '""', "[]" },
    ['"a"'] = { false, true, '"a"', list(text "a") },
    [list(text "a", text "b")] = { false, true, '"a\\nb"', list(text "a", text "b") },
    [list(text "a", IMAGE)] = { false, false, nil, list(text "a", IMAGE) },
  } do
    local v = value(given)
    t.eq({ content.is_empty(v), content.is_text(v), want[3] and show(content.flat(v)),
      show(content.parts(v)) }, { want[1], want[2], want[3], show(value(want[4])) }, given)
  end
  t.eq({ content.is_empty(nil), #content.parts(nil) }, { true, 0 })
  t.eq(content.map("a", string.upper), "A")
  t.eq(content.map(json.null, string.upper), json.null)
  t.eq(show(content.map(value(list(text "a", IMAGE)), string.upper)),
    show(value(list(text "A", IMAGE))))
end)

test("thinking is taken out", function(t)
  local out, thoughts = content.without_thinking(value(list(
    '{"type":"thinking","thinking":"one"}', text "a",
    '{"type":"thinking","thinking":[{"type":"text","text":"two"},1,{"text":2},{"text":"three"}]}',
    IMAGE, '{"type":"thinking","text":"four"}', '{"type":"thinking"}')))
  t.eq({ show(out), thoughts },
    { show(value(list(text "a", IMAGE))), "one\n\ntwo\nthree\n\nfour\n\n" })
  t.eq({ content.without_thinking "x" }, { "x" })
  t.eq(table.pack(content.without_thinking(value(list(text "a")))).n, 2)
  t.eq(select(2, content.without_thinking(value(list(text "a")))), nil)
  t.eq(#content.media { { content = "x" }, { content = value(list(text "a", IMAGE)) },
    { content = json.null }, { content = value(list(IMAGE)) } }, 2)
end)

--- content.shape, as JSON text or the message of its refusal.
local function shape(given, can, role)
  local ok, out = pcall(content.shape, { role = role or "user", content = value(given) }, can, "m")
  return ok and show(out) or out.message
end

test("a content takes the form that the template has a place for", function(t)
  local both, words = { strings = true, parts = true }, { strings = true }
  local two, picture = list(text "a", text "b"), list(text "a", IMAGE)
  local function same(text_value) return show(value(text_value)) end
  t.eq(shape('"a"', nil), '"a"')
  t.eq(shape(two, nil), '"a\\nb"')
  t.eq(shape(picture, nil), same(picture))
  t.eq(shape(two, words), '"a\\nb"')
  t.eq(shape(two, both), same(two))
  t.eq(shape(two, both, "system"), '"a\\nb"')
  t.eq(shape('"a"', both), '"a"')
  t.eq(shape('"a"', { parts = true }), same(list(text "a")))
  t.eq(shape(two, { parts = true }, "system"), same(two))
  local why = "m.content[1] is of type 'image_url', but the chat template has no place for image"
  t.eq(shape(picture, words), why)
  t.eq(shape(picture, both), why)
  t.eq(shape(picture, { strings = true, image = "any" }), why) -- no parts, so no pictures
  t.eq(shape(list '{"type":"thinking","thinking":"x"}', both),
    "m.content[0] is of type 'thinking', but the chat template has no place for thinking")
  for wanted, kind in pairs { any = "image_url", image_url = "image_url", image = "image" } do
    local can = { parts = true, image = wanted }
    t.eq(value(shape(picture, can))[2].type, kind, wanted)
    t.eq(value(shape(list '{"type":"input_image","image_url":"x"}', can))[1].type,
      wanted == "any" and "image" or wanted)
  end
end)

test("long contents let others have their turn", function(t)
  local long, objects = json.array {}, json.array {}
  for i = 1, 600 do long[i], objects[i] = "x", { n = i } end
  local parts = content.read(long)
  local n = 0
  t.patch(async, "breathe", function() n = n + 1 end)
  local function turns(f, ...)
    n = 0
    f(...)
    return n
  end
  local got = { turns(content.ordered, long), turns(content.ordered, objects),
    turns(content.read, long), turns(content.shape, { content = parts }, { parts = true }, "m"),
    turns(content.media, { {}, {}, {} }) }
  t.eq(got, { 2, 602, 2, 2, 3 })
end)

test("every object gets one order, and nesting is bounded", function(t)
  t.eq(show(content.ordered { b = 1, a = { d = 2, c = json.array { { z = 1, y = 2 } } } }),
    '{"a": {"c": [{"y": 2, "z": 1}], "d": 2}, "b": 1}')
  t.eq(show(content.ordered(value '{"b":1,"a":2}')), '{"b": 1, "a": 2}')
  local function nested(depth)
    local v = json.object()
    for i = 1, depth do v = i % 2 == 0 and json.array { v } or json.object { { "x", v } } end
    return v
  end
  t.ok(content.ordered(nested(100)))
  local err = t.raises(function() content.ordered(nested(101)) end, "deeper than 100 levels")
  t.eq(err.message, "messages must not be nested deeper than 100 levels")
  t.raises(function() content.ordered { a = { [true] = 1 } } end, "must have string keys, got true")
  local long = json.array {}
  for i = 1, 600 do long[i] = { n = i } end
  t.eq(#content.ordered(long), 600)
end)
