-- The parts of the Responses API by themselves: items to messages, tools to functions, free text
-- out of arguments, sealed text, and the store.
local async = require "lib.async"
local freeform = require "api.responses.freeform"
local items = require "api.responses.items"
local logprobs = require "api.responses.logprobs"
local perigee = require "perigee"
local sealed = require "api.sealed"
local stores = require "api.responses.store"
local test = require("harness").test
local tools = require "api.responses.tools"
local json = perigee.json

local function decoded(text) return assert(json.decode(text)) end

--- The messages of items, as plain data.
local function messages(list, more)
  local o = more or {}
  local reader = items.reader { offer = o.offer or tools.read(), find = o.find }
  reader:add(decoded(list), "input[%d]")
  return reader:finish(), reader
end

local function as_text(value) return json.encode(value, { compact = true }) end

--- An error that f raises: its field and its message.
local function refusal(f)
  local ok, err = pcall(f)
  if ok then return "nothing was refused" end
  return err.field, err.message
end

local CASES = {
  { "plain", '[{"role":"user","content":"Hi"},'
    .. '{"type":"message","role":"developer","content":"Be"}]',
    '[{"role":"user","content":"Hi"},{"role":"developer","content":"Be"}]' },
  { "an assistant's items are one message", [=[[
    {"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"Think."}],
     "content":null,"encrypted_content":null},
    {"type":"message","role":"assistant","id":"msg_1","status":"completed",
     "content":[{"type":"output_text","text":"I look.","annotations":[],"logprobs":[]}]},
    {"type":"function_call","call_id":"c1","name":"f","arguments":"{}","id":"fc_1"},
    {"type":"custom_tool_call","call_id":"c2","name":"g","input":"a\"b"},
    {"type":"function_call_output","call_id":"c1","output":"one"},
    {"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"2"}]}
    ]]=],
    [=[[{"role":"assistant","content":[{"type":"text","text":"I look."}],]=]
    .. [=["reasoning_content":"Think.","tool_calls":[]=]
    .. [=[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}},]=]
    .. [=[{"id":"c2","type":"function","function":{"name":"g",]=]
    .. [=["arguments":"{\"input\":\"a\\\"b\"}"}}]},]=]
    .. [=[{"role":"tool","tool_call_id":"c1","content":"one"},]=]
    .. [=[{"role":"tool","tool_call_id":"c2","content":[{"type":"text","text":"2"}]}]]=] },
  { "one text and one call", [=[[{"role":"assistant","content":"a"},
    {"type":"function_call","call_id":"c","name":"f","arguments":"{}"}]]=],
    [=[[{"role":"assistant","content":"a","tool_calls":[{"id":"c","type":"function",]=]
    .. [=["function":{"name":"f","arguments":"{}"}}]}]]=] },
  { "two texts of an assistant", '[{"role":"assistant","content":"a"},'
    .. '{"role":"assistant","content":"b"},{"role":"user","content":"c"}]',
    '[{"role":"assistant","content":"a\\n\\nb"},{"role":"user","content":"c"}]' },
  { "reasoning alone, and what nobody knows", '[{"role":"user","content":"a"},'
    .. '{"type":"reasoning","summary":[]},{"type":"web_search_call","id":"ws_1"},'
    .. '{"type":"reasoning","summary":[{"type":"summary_text","text":"x"}]},'
    .. '{"type":"compaction","encrypted_content":"of another server"},'
    .. '{"type":"item_reference","id":"rs_gone"},{"role":"user","content":"b"}]',
    '[{"role":"user","content":"a"},{"role":"user","content":"b"}]' },
  { "reasoning as content before a summary", '[{"type":"reasoning","summary":'
    .. '[{"type":"summary_text","text":"short"}],'
    .. '"content":[{"type":"reasoning_text","text":"long"}]},'
    .. '{"role":"assistant","content":"a"}]',
    '[{"role":"assistant","content":"a","reasoning_content":"long"}]' },
  { "a refusal", '[{"role":"assistant","content":[{"type":"refusal","refusal":"No."}]}]',
    '[{"role":"assistant","content":[{"type":"text","text":"No."}]}]' },
}

test("items become messages", function(t)
  for _, case in ipairs(CASES) do t.eq(as_text(messages(case[2])), case[3], case[1]) end
end)

test("pictures keep their place, also in the output of a call", function(t)
  local list, reader = messages [=[[{"role":"user","content":[{"type":"input_text","text":"a"},
    {"type":"input_image","image_url":"data:x","detail":"auto"}]},
    {"type":"function_call_output","call_id":"c","output":[{"type":"input_image",
     "image_url":"data:y"}]}]]=]
  t.eq(reader.places[list[1].content[2]], "input[0].content[1].image_url")
  t.eq(reader.places[list[2].content[1]], "input[1].output[0].image_url")
  t.eq(list[1].content[2].image_url.url, "data:x")
end)

local WRONG = {
  { '[5]', "input[0]" }, { '[{"type":5}]', "input[0].type" }, { '[{"role":7}]', "input[0].role" },
  { '[{}]', "input[0].role" }, { '[{"role":"tool","content":"x"}]', "input[0].role" },
  { '[{"role":"user"}]', "input[0].content" }, { '[{"role":"user","content":{}}]',
    "input[0].content" },
  { '[{"role":"user","content":[7]}]', "input[0].content[0]" },
  { '[{"role":"user","content":[{"type":"input_text"}]}]', "input[0].content[0].text" },
  { '[{"role":"user","content":[{"type":"input_text","text":1}]}]', "input[0].content[0].text" },
  { '[{"role":"user","content":[{"type":"input_file","file_data":"x"}]}]',
    "input[0].content[0].type" },
  { '[{"role":"user","content":[{"type":"input_image","file_id":"x"}]}]',
    "input[0].content[0].file_id" },
  { '[{"role":"user","content":[{"type":"input_image","image_url":7}]}]',
    "input[0].content[0].image_url" },
  { '[{"type":"function_call","name":"f","arguments":"{}"}]', "input[0].call_id" },
  { '[{"type":"function_call","call_id":"c","arguments":"{}"}]', "input[0].name" },
  { '[{"type":"function_call","call_id":"c","name":"f","arguments":{}}]', "input[0].arguments" },
  { '[{"type":"custom_tool_call","call_id":"c","name":"f"}]', "input[0].input" },
  { '[{"type":"function_call_output","call_id":"c"}]', "input[0].output" },
  { '[{"type":"function_call_output","output":"x"}]', "input[0].call_id" },
  { '[{"type":"reasoning","summary":"x"}]', "input[0].summary" },
  { '[{"type":"reasoning","summary":[{"text":7}]}]', "input[0].summary[0].text" },
  { '[{"type":"reasoning","summary":[],"encrypted_content":7}]', "input[0].encrypted_content" },
  { '[{"type":"item_reference"}]', "input[0].id" },
  { '[{"type":"item_reference","id":"msg_gone"}]', "input[0].id" },
  { '[{"id":"msg_gone"}]', "input[0].id" }, { '[{"id":"m","content":"x"}]', "input[0].role" },
  { '[{"type":5,"role":"user","content":"x"}]', "input[0].type" },
}

test("what is wrong with an item is refused with its place", function(t)
  for _, case in ipairs(WRONG) do
    t.eq((refusal(function() messages(case[1]) end)), case[2], case[1])
  end
end)

test("tools: flat, custom, in a namespace; the rest is left out", function(t)
  local offer = tools.read(decoded [=[[{"type":"function","name":"f","description":"does",
    "parameters":{"type":"object"},"strict":true},
    {"type":"web_search"}, {"type":"custom","name":"patch","description":"edits",
     "format":{"type":"grammar","syntax":"lark","definition":"start: X"}},
    {"type":"namespace","name":"team","tools":[{"type":"function","name":"close"},
     {"type":"function","name":"f"},{"type":"namespace","name":"deeper","tools":[]}]}]]=])
  t.eq(as_text(offer.tools), [=[[{"type":"function","function":{"name":"f","description":"does",]=]
    .. [=["parameters":{"type":"object"}}},{"type":"function","function":{"name":"patch",]=]
    .. [=["description":"edits\nThe input follows this grammar (lark):\nstart: X",]=]
    .. [=["parameters":{"type":"object","properties":{"input":{"type":"string"}},]=]
    .. [=["required":["input"]}}},{"type":"function","function":{"name":"close"}},]=]
    .. [=[{"type":"function","function":{"name":"team.f"}}]]=])
  t.eq(offer.of["team.f"], { name = "f", namespace = "team" })
  t.eq({ offer:name "f", offer:name("f", "team"), offer:name("x", "team") }, { "f", "team.f", "x" })
end)

test("tools have a limit, also in a namespace", function(t)
  local inner = json.array {}
  local list = json.array { json.object { { "type", "function" }, { "name", "f" } },
    json.object { { "type", "namespace" }, { "name", "n" }, { "tools", inner } } }
  for i = 1, 1023 do
    inner[i] = json.object { { "type", "function" }, { "name", "g" .. i } }
  end
  t.eq(#tools.read(list).tools, 1024)
  inner[1024] = json.object { { "type", "function" }, { "name", "one_more" } }
  local err = t.raises(function() tools.read(list) end, "must have at most 1024 entries, got more")
  t.eq({ err.status, err.field }, { 400, "tools" })
end)

test("tool_choice in all its forms", function(t)
  local list = decoded [=[[{"type":"function","name":"f"},{"type":"custom","name":"g"},
    {"type":"namespace","name":"n","tools":[{"type":"function","name":"f"}]}]]=]
  local function choose(text)
    local offer = tools.read(list, decoded(text))
    local names = {}
    for i, tool in ipairs(offer.tools) do names[i] = tool["function"].name end
    return as_text(offer.choice), table.concat(names, " ")
  end
  t.eq({ choose '"required"' }, { '"required"', "f g n.f" })
  t.eq({ choose '{"type":"custom","name":"g"}' },
    { '{"type":"function","function":{"name":"g"}}', "f g n.f" })
  t.eq({ choose '{"type":"function","name":"f","namespace":"n"}' },
    { '{"type":"function","function":{"name":"n.f"}}', "f g n.f" })
  t.eq({ choose '{"type":"web_search_preview"}' }, { '"auto"', "f g n.f" })
  local allowed = '{"type":"allowed_tools","mode":"required",'
    .. '"tools":[{"type":"custom","name":"g"}]}'
  t.eq({ choose(allowed) }, { '{"type":"allowed_tools","allowed_tools":{"mode":"required",'
    .. '"tools":[{"type":"function","function":{"name":"g"}}]}}', "f g n.f" })
  t.match(choose '{"type":"allowed_tools","mode":"auto","tools":[{"type":"web_search"}]}',
    '"mode":"auto","tools":%[%]')
  for text, field in pairs { ['"never"'] = "tool_choice", ["5"] = "tool_choice",
    ['{"type":"function"}'] = "tool_choice.name",
    ['{"type":"allowed_tools","mode":"x","tools":[]}'] = "tool_choice.mode",
    ['{"type":"allowed_tools","mode":"auto","tools":[1]}'] = "tool_choice.tools[0]",
    ['{"type":"allowed_tools","mode":"auto"}'] = "tool_choice.tools",
    ['{"type":"allowed_tools","mode":"required","tools":[]}'] = "tool_choice.tools",
    ['{"type":"allowed_tools","mode":"auto","tools":[{"type":"function"}]}'] =
      "tool_choice.tools[0].name",
    ['{"type":"allowed_tools","mode":"auto","tools":[{"type":"custom","name":"x"}]}'] =
      "tool_choice.tools[0].name" } do
    t.eq((refusal(function() choose(text) end)), field, text)
  end
end)

test("free text comes out of arguments, however they are cut", function(t)
  local said = 'a "quoted" \\ line\n\tand \u{1F680} \u{e9} end'
  for _, raw in ipairs { freeform.arguments(said), '{ "input" : '
    .. json.encode(said):gsub("\u{1F680}", "\\ud83d\\ude80") .. ' , "more": 1}',
    json.encode(json.object { { "patch", said } }) } do
    for size = 1, #raw do
      local call, got = freeform.new(), {}
      for at = 1, #raw, size do got[#got + 1] = call:feed(raw:sub(at, at + size - 1)) end
      local rest, all = call:finish()
      t.eq(table.concat(got) .. rest, said)
      t.eq(all, said)
    end
  end
  local call = freeform.new()
  call:feed '{"x": 1, "y": 2}'
  t.eq({ call:finish() }, { '{"x": 1, "y": 2}', '{"x": 1, "y": 2}' }, "as it is")
  call = freeform.new()
  t.eq(call:feed '{"input": "cut o', "cut o")
  t.eq({ call:finish() }, { "", "cut o" }, "cut off")
end)

test("sealed text opens as it was, and nothing else does", function(t)
  local text = ("thought "):rep(50)
  local closed = sealed.close(text)
  t.eq(sealed.open(closed), text)
  t.ok(closed ~= sealed.close(text), "never the same twice")
  t.ok(not closed:find "thought")
  for _, other in ipairs { "", "x", "c29tZXRoaW5n", closed:sub(1, -5), closed:sub(2),
    "A" .. closed:sub(2) ~= closed and "A" .. closed:sub(2) or "B" .. closed:sub(2), "\0\255" } do
    t.eq(sealed.open(other), nil)
  end
  local list = messages('[{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"'
    .. closed .. '"},{"role":"assistant","content":"a"}]')
  t.eq(list[1].reasoning_content, text)
end)

local function entry(id, more)
  local e = { id = id, object = '{"id":"' .. id .. '"}', input = {}, output = {} }
  for key, value in pairs(more or {}) do e[key] = value end
  return e
end

local function item(id, size)
  return ('{"id":"%s","type":"message","role":"user","content":"%s"}'):format(id,
    ("x"):rep(size or 1))
end

test("logprobs belong to the text that their tokens made", function(t)
  local function taken(list, ...)
    local tokens, out = logprobs.new(), {}
    for _, bytes in ipairs(list) do tokens:add(bytes, "<" .. bytes .. ">") end
    for i, piece in ipairs { ... } do out[i] = table.concat(tokens:take(piece, i == 1)) end
    return out
  end
  t.eq(taken({ "Hel", "lo", " you" }, "Hel", "lo you"), { "<Hel>", "<lo>< you>" })
  t.eq(taken({ "</think>", "\n\n", "think", " on" }, "think", " on"), { "<think>", "< on>" })
  t.eq(taken({ "Hello", "." }, "Hel", "lo."), { "<Hello>", "<.>" }) -- a token is shown once
  t.eq(taken({ "a", " <", "b" }, "a", " <b"), { "<a>", "< <><b>" })
  t.eq(taken({ "a", "[x]", "b" }, "a\nb", "c"), { "<a><[x]><b>", "" }) -- not as it was written
  t.eq(taken({ "f(", "1)", "c" }, "", "c"), { "<f(><1)><c>", "" })
end)

test("the store: each key its own, chains, and items by id", function(t)
  async.run(function()
    local store = stores.new()
    store:put("a", entry("r1", { input = { item "i1" }, output = { item "o1" } }), true)
    store:put("a", entry("r2", { previous = "r1", input = { item "i2" } }), true)
    t.eq({ store:get("b", "r1"), store:get(nil, "r1"), store:item("b", "i1") }, {})
    local list = store:conversation("a", "r2")
    local ids = {}
    for i, one in ipairs(list) do ids[i] = one.id end
    t.eq(ids, { "i1", "o1", "i2" })
    t.eq({ store:conversation("b", "r2") }, { nil, "r2", false })
    store:put("a", entry("r3", { previous = "r2" }))
    t.eq({ store:conversation("a", "r3") }, { nil, "r3", true })
    t.eq(store:item("a", "o1").id, "o1")
    t.eq({ store:delete("b", "r1"), store:delete("a", "r1"), store:delete("a", "r1") },
      { false, true, false })
    t.eq({ store:conversation("a", "r2") }, { nil, "r1", false })
    t.eq(store:item("a", "o1"), nil)
  end)
end)

test("the store is bounded: by count, by bytes, by age; a chain in use stays", function(t)
  async.run(function()
    local store = stores.new { count = 3, bytes = 1 << 20, seconds = 1000 }
    store:put("a", entry "r1", true)
    store:put("a", entry("r2", { previous = "r1" }), true)
    store:put("a", entry "r3", true)
    t.ok(store:conversation("a", "r2"))
    store:put("a", entry "r4", true)
    t.eq({ store:get("a", "r3") == nil, store:get("a", "r1") ~= nil }, { true, true })
    store:put("b", entry "r5", true)
    t.ok(store:get("a", "r4"), "another key pushes nothing out")
    store = stores.new { count = 100, bytes = 10000, seconds = 1000 }
    for i = 1, 20 do store:put(nil, entry("r" .. i, { input = { item("i" .. i, 2000) } }), true) end
    local left = 0
    for i = 1, 20 do left = left + (store:get(nil, "r" .. i) and 1 or 0) end
    t.eq({ left, store:item(nil, "i1"), store:item(nil, "i20").id }, { 3, nil, "i20" })
    store:put(nil, entry("large", { input = { item("i", 20000) } }), true)
    t.eq(store:get(nil, "large"), nil, "more than all that is kept")
    store = stores.new { count = 100, bytes = 10000, seconds = 0 }
    store:put(nil, entry "r1", true)
    async.sleep(2)
    t.eq(store:get(nil, "r1"), nil, "too old")
  end)
end)
