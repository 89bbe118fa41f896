-- normalize: messages of every shape in the one form that a template can show, and nothing of them
-- lost.
local async = require "lib.async"
local perigee = require "perigee"
local normalize = require "chat.normalize"
local probe = require "chat.probe"
local templates = require "templates"
local test = require("harness").test
local json = perigee.json
-- with forced collection, one test is enough: this is Lua alone
local once = ... and function() end or test

--- What comes out, as JSON text; an error as its text.
local function go(given, options)
  local messages, err = normalize.messages(type(given) == "string"
    and assert(json.decode(given)) or given, options)
  return messages and json.encode(messages) or tostring(err)
end

--- A template, and what it can do.
local function able(source)
  local can = probe.of(assert(templates.compile(source)))
  assert(not can.error, can.error)
  return { can = can }
end

-- ---- without a template -------------------------------------------------------------------------

local SAME = {
  "[]",
  '[{"role": "user", "content": "a"}]',
  '[{"role": "assistant", "content": "first"}, {"role": "user", "content": "b"}]',
  '[{"role": "user", "content": "a", "zebra": [1, {"b": 2, "a": 1}], "apple": null}]',
  '[{"zeta": 1, "content": "order of keys", "role": "user", "alpha": 2}]',
  '[{"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", '
    .. '"image_url": {"url": "u"}}]}, '
    .. '{"role": "user", "content": "well?"}]',
  '[{"role": "user", "content": "a", "name": "eve"}, {"role": "user", "content": "b", "name": '
    .. '"bob"}]',
  '[{"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "function", '
    .. '"function": {"name": "f", '
    .. '"arguments": {}}}]}, {"role": "assistant", "content": "behind the call"}]',
  '[{"role": "tool", "content": "1", "tool_call_id": "a"}, {"role": "tool", "content": "2", '
    .. '"tool_call_id": "b"}]',
  '[{"role": "user", "content": "x"}, {"role": "system", "content": "late"}, {"role": "user", '
    .. '"content": "y"}]',
  '[{"role": "assistant", "content": "<think>done</think><tool_call>x</tool_call>"}]',
  '[{"role": "assistant", "content": "<think>no call"}]',
  '[{"role": "user", "content": "<think>mine <tool_call>"}]',
}

local CHANGED = {
  { "developer is system, and joins it", '[{"role": "developer", "content": "a"}, {"role": '
    .. '"system", "content": "b"}]',
    '[{"role": "system", "content": "a\\n\\nb"}]' },
  { "three in a row", '[{"role": "user", "content": "a"}, {"role": "user", "content": "b"}, '
    .. '{"role": "user", "content": "c"}]',
    '[{"role": "user", "content": "a\\n\\nb\\n\\nc"}]' },
  { "keys of the first stay", '[{"role": "user", "content": "a", "k": 1}, {"role": "user", '
    .. '"content": "b"}]',
    '[{"role": "user", "content": "a\\n\\nb", "k": 1}]' },
  { "text, then a call", '[{"role": "assistant", "content": "Wait."}, {"role": "assistant", '
    .. '"content": null, "tool_calls": '
    .. '[{"id": "1", "function": {"name": "f", "arguments": "{\\"b\\": 1, \\"a\\": 2}"}}]}]',
    '[{"role": "assistant", "content": "Wait.", "tool_calls": [{"id": "1", "function": {"name": '
      .. '"f", "arguments": '
      .. '{"b": 1, "a": 2}}}]}]' },
  { "calls in two messages", '[{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}, '
    .. '{"role": "assistant", '
    .. '"content": null, "tool_calls": [{"id": "2"}]}]',
    '[{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]}]' },
  { "nulls of the protocol go, a list of text is text",
    '[{"role": "assistant", "content": [{"type": "text", "text": "a", '
    .. '"image_url": null}, {"type": "text", "text": "b"}], "tool_calls": null, "name": null, '
      .. '"other": null}]',
    '[{"role": "assistant", "content": "a\\nb", "other": null}]' },
  { "other names of text", '[{"role": "user", "content": ["a", {"text": "b"}, {"type": '
    .. '"input_text", "text": "c"}]}, '
    .. '{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": '
      .. '"output_text", "text": "d"}]}]',
    '[{"role": "user", "content": "a\\nb\\nc"}, {"role": "assistant", "content": "no\\nd"}]' },
  { "the older protocol", '[{"role": "assistant", "content": null, "function_call": {"name": "f", '
    .. '"arguments": "{}"}}, '
    .. '{"role": "function", "name": "f", "content": "1"}]',
    '[{"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": '
      .. '{"name": "f", "arguments": '
      .. '{}}}]}, {"role": "tool", "name": "f", "content": "1"}]' },
  { "accounting lines",
    '[{"role": "system", "content": "X-Anthropic-Billing-Header: 7\\na\\nnot '
      .. 'x-anthropic-billing-header: 7"}]',
    '[{"role": "system", "content": "a\\nnot x-anthropic-billing-header: 7"}]' },
  { "open thinking before a call", '[{"role": "assistant", "content": "<think>hm '
    .. '<tool_call>c</tool_call>"}]',
    '[{"role": "assistant", "content": "<think>hm </think><tool_call>c</tool_call>"}]' },
  { "open thinking behind a call", '[{"role": "assistant", "content": "<tool_call>c</tool_call> '
    .. '<think>hm"}]',
    '[{"role": "assistant", "content": "<tool_call>c</tool_call> <think>hm</think>"}]' },
}

local ARGUMENTS = { ["{}"] = "{}", ["null"] = "{}", ['""'] = "{}", ['" "'] = "{}",
  ['"{\\"n\\": 1.0}"'] = '{"n": 1.0}',
  ['"{\\"n\\": 123456789012345678901234567890}"'] = '{"n": 123456789012345678901234567890}',
  ['"[1]"'] = '{"value": [1]}', ['"7"'] = '{"value": 7}', ['"no json"'] = '{"value": "no json"}',
  ["[2]"] = '{"value": [2]}',
  ['"{\\"a\\": "'] = '{"value": "{\\"a\\": "}', ["12"] = '{"value": 12}' }

local WRONG = {
  { "5", "messages must be an array, got an integer" },
  { '{"role": "user"}', "messages must be an array, got an object" },
  { "[5]", "messages[0] must be an object, got an integer" },
  { "[{}]", "messages[0].role is missing" },
  { '[{"role": 7}]', "messages[0].role must be a string, got an integer" },
  { '[{"role": "user", "content": "a"}, {"role": "wizard"}]',
    "messages[1].role must be one of system, developer, user, assistant, tool, function, got "
      .. "'wizard'" },
  { '[{"role": "asistant"}]', "got 'asistant', did you mean 'assistant'?" },
  { '[{"role": "user", "content": 5}]',
    "messages[0].content must be a string, an array of parts or null, got an integer" },
  { '[{"role": "user", "content": {"type": "text"}}]', "got an object" },
  { '[{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "smell"}]}]',
    "messages[0].content[1].type must be a known type of part, got 'smell'" },
  { '[{"role": "user", "content": [{"type": 5}]}]',
    "messages[0].content[0].type must be a string, got an integer" },
  { '[{"role": "user", "content": [{"type": "text", "text": 5}]}]',
    "messages[0].content[0].text must be a string, got an integer" },
  { '[{"role": "user", "content": [{"type": "refusal", "text": "no"}]}]',
    "messages[0].content[0].refusal must be a string, got nothing" },
  { '[{"role": "user", "content": [[]]}]',
    "messages[0].content[0] must be an object, got an array" },
  { '[{"role": "assistant", "tool_calls": "f()"}]',
    "messages[0].tool_calls must be an array, got a string" },
  { '[{"role": "assistant", "tool_calls": [5]}]',
    "messages[0].tool_calls[0] must be an object, got an integer" },
  { '[{"role": "assistant", "tool_calls": [{"function": "f"}]}]',
    "messages[0].tool_calls[0].function must be an object, got a string" },
  { '[{"role": "user", "tool_calls": [{}]}]',
    "messages[0].tool_calls must be in a message of role assistant, got 'user'" },
  { '[{"role": "assistant", "function_call": []}]',
    "messages[0].function_call must be an object, got an array" },
}

once("without a template", function(t)
  for _, messages in ipairs(SAME) do t.eq(go(messages), messages) end
  for _, case in ipairs(CHANGED) do t.eq(go(case[2]), case[3], case[1]) end
  for given, want in pairs(ARGUMENTS) do
    local function call(arguments)
      return '[{"role": "assistant", "content": "", "tool_calls": [{"id": "x", "type": '
        .. '"function", "function": {"name": "f", '
        .. '"arguments": ' .. arguments .. "}}]}]"
    end
    t.eq(go(call(given)), call(want), given)
  end
  for _, case in ipairs(WRONG) do
    t.ok(go(case[1]):find(case[2], 1, true), ("%s: got %s, want %s"):format(case[1], go(case[1]),
      case[2]))
  end
end)

test("plain tables do, and nothing given is changed", function(t)
  local given = { { role = "developer", content = "a" }, { role = "user",
    content = { { type = "text", text = "b" } } },
    { role = "assistant",
      tool_calls = { { id = "1", ["function"] = { name = "f", arguments = { z = 1, a = 2 } } } } } }
  local want = '[{"role": "system", "content": "a"}, {"content": "b", "role": "user"}, {"role": '
    .. '"assistant", "tool_calls": '
    .. '[{"function": {"arguments": {"a": 2, "z": 1}, "name": "f"}, "id": "1"}], "content": null}]'
  t.eq(json.decode(go(given)), json.decode(want))
  t.eq(go(given), go(given))
  t.eq(given[1].role, "developer")
  t.eq(given[3].content, nil)
  local text = '[{"role": "user", "content": "a"}, {"role": "user", "content": "b", "tool_calls": '
    .. 'null}]'
  local value = json.decode(text)
  go(value)
  t.eq(json.encode(value), text)
  local deep = { role = "user", content = "x" }
  deep.self = deep
  t.match(go { deep }, "nested deeper than 100 levels")
  t.match(go { { role = "user", content = "x", [7] = 1 } }, "messages must have string keys, got 7")
  t.eq(go {}, "[]")
end)

once("long conversations let others have their turn", function(t)
  local n = 0
  t.patch(async, "breathe", function() n = n + 1 end)
  local function turns(...)
    n = 0
    local messages, err = normalize.messages { ... }
    t.ok(messages, tostring(err))
    return n
  end
  local user, assistant = { role = "user", content = "u" }, { role = "assistant", content = "a" }
  t.eq(turns(user), 4) -- checked, copied, read and shaped
  t.eq(turns(user, assistant, user, assistant), 16)
  local call = { name = "f", arguments = "{}" }
  t.eq(turns { role = "assistant", tool_calls = { call, call } } - turns(assistant), 4)
  -- The end of thinking is looked for in windows of 64 KiB, in both directions.
  local said = "<tool_call>" .. ("x"):rep(3 << 16)
  t.eq(turns { role = "assistant", content = said } - turns(assistant), 8)
end)

once("thinking is closed wherever a long text left it open", function(t)
  local call = "<tool_call>c</tool_call>"
  for _, at in ipairs { 0, 1, 65529, 65530, 65535, 65536, 65537, 131072 } do
    local before = ("x"):rep(at)
    for _, after in ipairs { 0, 1, 65520, 65536, 70000 } do
      local said = before .. "<think>" .. ("y"):rep(after)
      local got = assert(normalize.messages { { role = "assistant", content = said .. call } })
      t.ok(got[1].content == said .. "</think>" .. call, ("%d and %d bytes"):format(at, after))
      local closed = said .. "</think>" .. call
      got = assert(normalize.messages { { role = "assistant", content = closed } })
      t.ok(got[1].content == closed, ("closed, %d and %d bytes"):format(at, after))
    end
  end
end)

-- ---- for a template -----------------------------------------------------------------------------

local LOOP = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
local STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
  .. "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ "
    .. "raise_exception('turns') }}{% endif %}"
  .. "<{{ m.role }}>{{ m.content }}{% endfor %}"
local FIRST = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ "
  .. "raise_exception('late') }}{% endif %}"
  .. "<{{ m.role }}>{{ m.content }}{% endfor %}"
local PARTS = "{% for m in messages %}<{{ m.role }}>{% for p in m.content %}{% if p.type == "
  .. "'image' %}[picture]{% else %}"
  .. "{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
local function calling(body)
  return "{{ tools | tojson if tools }}{% for m in messages %}<{{ m.role }}>" .. body
    .. "{% endfor %}"
end
local ONE = calling("{% if m.tool_calls and m.tool_calls | length > 1 %}{{ raise_exception('one') "
  .. "}}{% endif %}"
  .. "{% if m.tool_calls %}{{ m.tool_calls[0].function.name }}{{ "
    .. "m.tool_calls[0].function.arguments | tojson }}"
  .. "{% else %}{{ m.content }}{% endif %}")
local PRINTS = calling("{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
  .. "{{ c.function.arguments }}{% endfor %}")
local NULL = calling("{% if m.content is none %}{% for c in m.tool_calls %}{{ "
  .. "c.function.arguments | tojson }}{% endfor %}"
  .. "{% else %}{{ m.content }}{% endif %}")
local NINE = calling("{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% if c.id | length "
  .. "!= 9 %}"
  .. "{{ raise_exception('nine') }}{% endif %}{{ c.function.arguments | tojson }}{% endfor %}{{ "
    .. "m.name }}")

once("system messages go where the template can show them", function(t)
  local late = '[{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}, '
    .. '{"role": "developer", "content": "s"}, '
    .. '{"role": "user", "content": "v"}]'
  t.eq(go(late, able(LOOP)), (late:gsub("developer", "system")))
  t.eq(go(late, able(FIRST)), '[{"role": "system", "content": "s"}, {"role": "user", "content": '
    .. '"u"}, {"role": "assistant", '
    .. '"content": "a"}, {"role": "user", "content": "v"}]')
  t.eq(go('[{"role": "system", "content": [{"type": "text", "text": "1"}]}, {"role": "user", '
    .. '"content": "u"}, {"role": "system", '
    .. '"content": "2"}]', able(FIRST)), '[{"role": "system", "content": "1\\n\\n2"}, {"role": '
      .. '"user", "content": "u"}]')
  t.eq(go(late, able(STRICT)), '[{"role": "user", "content": "s\\n\\nu"}, {"role": "assistant", '
    .. '"content": "a"}, '
    .. '{"role": "user", "content": "v"}]')
  t.eq(go('[{"role": "system", "content": "s"}]', able(STRICT)),
    '[{"role": "user", "content": "s"}]')
  t.eq(go('[{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}, '
    .. '{"role": "user", "content": "u"}]', able(STRICT)),
    '[{"role": "assistant", "content": "a"}, {"role": "user", "content": "s\\n\\nu"}]')
end)

once("roles take turns where they must, and contents have one kind", function(t)
  local two = '[{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", '
    .. '"name": "eve", "content": "b"}]'
  t.eq(go(two, able(STRICT)), '[{"role": "user", "content": "a\\n\\nb", "name": "eve"}]')
  t.eq(go(two, able(LOOP)), '[{"role": "user", "content": "a"}, {"role": "user", "name": "eve", '
    .. '"content": "b"}]')
  local seen = '[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}, '
    .. '{"type": "text", "text": "a"}]}, '
    .. '{"role": "assistant", "content": "b"}]'
  t.eq(go(seen, able(PARTS)), '[{"role": "user", "content": [{"type": "image", "image_url": '
    .. '{"url": "u"}}, {"type": "text", '
    .. '"text": "a"}]}, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}]')
  t.eq(go(seen, able(LOOP)), "messages[0].content[0] is of type 'image_url', but the chat "
    .. "template has no place for image")
  t.eq(go('[{"role": "user", "content": [{"type": "audio"}]}]', able(PARTS)),
    "messages[0].content[0] is of type 'audio', but the chat template has no place for audio")
  t.eq(go('[{"role": "user", "content": null}]', able(LOOP)), '[{"role": "user", "content": ""}]')
  t.eq(go('[{"role": "user", "content": null}]', able(PARTS)), '[{"role": "user", "content": []}]')
end)

local function called(content, arguments, ids)
  local calls, results = {}, {}
  for i, id in ipairs(ids or { "call_1", "call_2" }) do
    calls[i] = (
      '{"id": "%s", "type": "function", "function": {"name": "f%d", "arguments": %s}}'):format(id,
      i, arguments)
    table.insert(results, 1,
      (', {"role": "tool", "tool_call_id": "%s", "content": "r%d"}'):format(id, i))
  end
  return ('[{"role": "user", "content": "u"}, {"role": "assistant", "content": %s, "tool_calls": '
    .. '[%s]}%s]'):format(content,
    table.concat(calls, ", "), table.concat(results))
end

--- Roles, and what each message says, in short.
local function short(given, options)
  local out = {}
  for _, m in ipairs(json.decode(go(given, options))) do
    local calls = {}
    for i, c in ipairs(m.tool_calls or {}) do
      calls[i] = c.id .. "=" .. json.encode(c["function"].arguments)
    end
    out[#out + 1] = m.role:sub(1, 1) .. ":" .. (m.content == json.null and "null" or m.content)
      .. table.concat(calls, ",")
      .. (m.tool_call_id or "")
  end
  return table.concat(out, " | ")
end

once("calls are given as the template shows them", function(t)
  local object, as_text = '{"a": 1}', '"{\\"a\\": 1}"'
  local quoted = '"{\\"a\\": 1}"'
  t.eq(short(called('"x"', as_text), able(ONE)),
    'u:u | a:x | a:call_1={"a": 1} | t:r1call_1 | a:nullcall_2={"a": 1} | t:r2call_2')
  t.eq(short(called("null", object), able(PRINTS)), "u:u | a:nullcall_1=" .. quoted .. ",call_2="
    .. quoted
    .. " | t:r2call_2 | t:r1call_1")
  t.eq(short(called('""', object, { "call_1" }), able(NULL)),
    'u:u | a:nullcall_1={"a": 1} | t:r1call_1')
  t.eq(short(called('"x"', object, { "call_1" }), able(NULL)),
    'u:u | a:x | a:nullcall_1={"a": 1} | t:r1call_1')
  local nine = json.decode(go(called('"x"', object), able(NINE)))
  local ids = { nine[2].tool_calls[1].id, nine[2].tool_calls[2].id }
  t.match(ids[1], "^%w%w%w%w%w%w%w%w%w$")
  t.ok(ids[1] ~= ids[2], "two ids stay two")
  t.eq({ nine[3].tool_call_id, nine[4].tool_call_id, nine[3].name, nine[4].name },
    { ids[2], ids[1], "f2", "f1" })
end)

once("arguments stay text or objects where the template takes both", function(t)
  local both = able(calling("{{ m.content or '' }}{% for c in m.tool_calls or [] %}{% set a = "
    .. "c.function.arguments %}{{ a if a is string else a | tojson }}{% endfor %}"))
  t.eq(both.can.arguments, "any")
  t.eq(short(called('"x"', '"{\\"a\\": 1}"', { "1" }), both),
    'u:u | a:x1="{\\"a\\": 1}" | t:r11')
  t.eq(short(called('"x"', '{"a": 1}', { "1" }), both), 'u:u | a:x1={"a": 1} | t:r11')
end)

once("results follow their calls, and those of no call come last", function(t)
  local function result(id, said)
    return (', {"role": "tool", "tool_call_id": "%s", "content": "%s"}'):format(id, said)
  end
  local function call(id) return ('{"id": "%s", "function": {"name": "%s"}}'):format(id, id) end
  local given = '[{"role": "user", "content": "u"}, {"role": "assistant", "content": "x", '
    .. '"tool_calls": [' .. call "1" .. ", " .. call "2" .. "]}" .. result("8", "lost")
    .. result("2", "second") .. result("9", "more") .. result("1", "first")
    .. ', {"role": "assistant", "content": "y"}]'
  local function said(text)
    local out = {}
    for word in text:gmatch "\\n(%a+)\\n</tool_response>" do out[#out + 1] = word end
    return table.concat(out, " ")
  end
  t.eq(said(go(given, able(LOOP))), "first second lost more") -- written as text
  t.eq(short(given, able(ONE)), "u:u | a:x | a:1={} | t:first1 | a:null2={} | t:second2 | "
    .. "t:lost8 | t:more9 | a:y")
end)

once("short ids are kept, stay apart and stay the same", function(t)
  local function shortened(...)
    local out, list = {}, json.decode(go(called('"x"', "{}", { ... }), able(NINE)))
    for i, call in ipairs(list[2].tool_calls) do out[i] = call.id end
    for i = 1, #out do t.eq(list[3 + #out - i].tool_call_id, out[i], "the result's id") end
    return out
  end
  local function distinct(...)
    local seen, ids = {}, shortened(...)
    for _, id in ipairs(ids) do
      t.match(id, "^%w%w%w%w%w%w%w%w%w$")
      t.eq(seen[id], nil, "two ids became one")
      seen[id] = true
    end
    return ids
  end
  t.eq(shortened("abcdefghi", "Zz0000000"), { "abcdefghi", "Zz0000000" })
  local made = distinct("call_1", "abcdefgh", "abcdefghij", "abc-efghi")
  t.eq(distinct("call_1", "abcdefgh"), { made[1], made[2] })
  -- These have one hash; and an id may already be what another would become.
  local same = distinct("call_ac-", "call_aek", "call_ac6", "call_aep")
  t.eq(distinct(same[1], "call_ac-", "call_aek")[1], same[1])
  t.eq(distinct(same[2], same[1], "call_ac-", "call_aek")[2], same[1])
  t.eq(#same, 4)
end)

once("reasoning is where the template reads it", function(t)
  local given = '[{"role": "user", "content": "u"}, {"role": "assistant", "reasoning": "why", '
    .. '"content": "a"}]'
  local reads = able("{% for m in messages %}{{ m.role }}{{ m.thinking }}{{ m.content }}"
    .. "{% endfor %}")
  t.eq(go(given, reads), '[{"role": "user", "content": "u"}, {"role": "assistant", "content": '
    .. '"a", "thinking": "why"}]')
  t.eq(go(given, able(LOOP)), given)
  local parts = '[{"role": "assistant", "content": [{"type": "thinking", "thinking": [{"type": '
    .. '"text", "text": "why"}]}, '
    .. '{"type": "text", "text": "a"}]}]'
  t.eq(go(parts, reads), '[{"role": "assistant", "content": "a", "thinking": "why"}]')
  t.eq(go(parts, able(LOOP)), '[{"role": "assistant", "content": "a", "reasoning_content": "why"}]')
end)

-- ---- anything at all ----------------------------------------------------------------------------

local generator = require("samples").generator

local WORDS = { "user", "assistant", "system", "developer", "tool", "function", "text",
  "image_url", "thinking", "", "x",
  "<think>", "<tool_call>", "{\"a\": [1, 2]}", "null", "x-anthropic-billing-header:", "\n",
    "\xF0\x9F\x8C\x99" }
local KEYS = { "role", "content", "tool_calls", "tool_call_id", "name", "type", "text", "function",
  "arguments", "id",
  "reasoning_content", "function_call", "image_url", "other" }

local function anything(random, depth)
  local kind = random(depth > 3 and 5 or 9)
  if kind <= 2 then return WORDS[random(#WORDS)] end
  if kind == 3 then return random(2) == 1 and random(1000) or random(1000) / 7 end
  if kind == 4 then return random(2) == 1 end
  if kind == 5 then return json.null end
  if kind <= 7 then
    local list = json.array {}
    for i = 1, random(4) - 1 do list[i] = anything(random, depth + 1) end
    return list
  end
  local object = json.object()
  for _ = 1, random(5) - 1 do object[KEYS[random(#KEYS)]] = anything(random, depth + 1) end
  return object
end

--- Mostly sound messages, so that some come far.
local function message(random)
  if random(12) == 1 then return anything(random, 0) end
  local said = random(3) == 1 and anything(random, 1) or WORDS[random(#WORDS)]
  local m = json.object { { "role", WORDS[random(6)] }, { "content", said } }
  if random(3) == 1 and m.role == "assistant" then
    local calls = json.array {}
    for i = 1, random(3) do
      calls[i] = json.object { { "id", WORDS[random(#WORDS)] },
        { "function", json.object { { "name", "f" },
        { "arguments", anything(random, 1) } } } }
    end
    m.tool_calls = calls
  end
  if random(4) == 1 then m[KEYS[random(#KEYS)]] = anything(random, 1) end
  return m
end

--- Every id of a call and of a result.
local function ids_in(messages)
  local out = {}
  local function put(kind, id) out[#out + 1] = kind .. (id == nil and "null" or json.encode(id)) end
  for _, m in ipairs(messages) do
    for _, c in ipairs(json.is_array(m.tool_calls) and m.tool_calls or {}) do put("call ", c.id) end
    if json.is_object(m.function_call) then put("call ") end
    if m.role == "tool" or m.role == "function" then put("result ", m.tool_call_id) end
  end
  table.sort(out)
  return table.concat(out, ", ")
end

once("hostile messages are errors or messages, and no id is lost", function(t)
  local abilities = { {}, able(LOOP), able(STRICT), able(FIRST), able(PARTS), able(ONE),
    able(PRINTS), able(NULL), able(NINE) }
  local random = generator(tonumber(os.getenv "PERIGEE_FUZZ_SEED" or 7))
  local good = 0
  for round = 1, tonumber(os.getenv "PERIGEE_FUZZ_ROUNDS" or 600) do
    local given = json.array {}
    for i = 1, random(5) - 1 do given[i] = message(random) end
    if random(30) == 1 then given = anything(random, 0) end
    local before = json.encode(given)
    local options = abilities[random(#abilities)]
    local ok, out, err = pcall(normalize.messages, given, options)
    if not ok or not out and type(err) ~= "table" then
      return t.fail(("round %d: %s for %s"):format(round, tostring(out), before))
    end
    t.eq(json.encode(given), before, "what was given stays")
    if out then
      good = good + 1
      t.eq(type(json.encode(out)), "string")
      local native = not options.can or options.can.calls and not options.can.short_ids
      if native then t.eq(ids_in(out), ids_in(given), "ids") end
    end
  end
  t.ok(good > 50, ("%d were messages"):format(good))
end)

once("long conversations take linear time, however their messages are joined", function(t)
  local function many(n, item)
    return json.decode("[" .. (item .. ","):rep(n - 1) .. item .. "]")
  end
  local text = ("x"):rep(2000) -- joined one by one, these would be 16 GB of copies
  local n = 4000
  local plain = able("{% for m in messages %}{{ m.content }}{% endfor %}").can
  local strict = { can = setmetatable({ alternate = true }, { __index = plain }) }
  local said = ('"content": "%s"'):format(text)
  local part = ('"content": [{"type": "text", "text": "%s"}]'):format(text)
  local whole = #text * n + 2 * (n - 1)
  for _, o in ipairs { strict, {} } do
    local out = normalize.messages(many(n, '{"role": "user", ' .. said .. "}"), o)
    t.eq({ #out, #out[1].content }, { 1, whole })
  end
  local parts = normalize.messages(many(n, '{"role": "user", ' .. part .. "}"), strict)[1].content
  t.eq(type(parts) == "string" and #parts or #parts[1].text, whole)
  local thinks = '{"role": "assistant", "content": "", "reasoning_content": "%s"}'
  local reasoned = normalize.messages(many(n, thinks:format(text) .. "," .. thinks:format "b"),
    strict)
  t.eq({ #reasoned, #reasoned[1].reasoning_content }, { 1, whole + 3 * n })
  local thoughts = many(1, '{"role": "assistant", "content": ' ..
    json.encode(many(n, '{"type": "thinking", "thinking": "' .. text .. '"}')) .. "}")
  t.eq(#normalize.messages(thoughts, strict)[1].reasoning_content, whole)
  local calls = '{"role": "assistant", "content": null, "tool_calls": [{"id": "a", "function": '
    .. '{"name": "f"}}]}'
  t.eq(#normalize.messages(many(n, calls), {})[1].tool_calls, n)
end)

once("arguments of a call have a bound", function(t)
  local big = json.array { json.object { { "role", "assistant" }, { "content", "" },
    { "tool_calls", json.array { json.object {
    { "id", "a" },
      { "function",
      json.object { { "name", "f" }, { "arguments", "[" .. ("1,"):rep(100000)
      .. "1]" } } } } } } } }
  t.match(go(big), "messages has a call whose arguments are too large: 100001 values in the first "
    .. "%d+ of 200003 bytes, at most 100000")
end)

-- ---- pictures of results ------------------------------------------------------------------------

local SHOW = "{% macro show(c, seen) %}{% if c is string %}{{ c }}{% else %}{% for p in c or [] %}"
  .. "{% if p.type == 'image' %}{{ '<img>' if seen }}{% else %}{{ p.text }}{% endif %}{% endfor %}"
  .. "{% endif %}{% endmacro %}{% for m in messages %}{{ m.role }}:{{ show(m.content, %s) }}"
  .. "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %};{% endfor %}"

once("pictures of results come after them where a template has no other place", function(t)
  local given = '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "", '
    .. '"tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {}}}, '
    .. '{"id": "2", "function": {"name": "f", "arguments": {}}}]}, '
    .. '{"role": "tool", "tool_call_id": "1", "content": [{"type": "image", "image": "u"}, '
    .. '{"type": "text", "text": "b"}]}, {"role": "tool", "tool_call_id": "2", "content": "c"}, '
    .. '{"role": "user", "content": "d"}]'
  for place, want in pairs {
    ["true"] = "tool:<img>b;tool:c;user:d;",
    ["m.role == 'user'"] = "tool:(The picture is in the next message.)\nb;tool:c;user:<img>;"
      .. "user:d;",
  } do
    local template = assert(templates.compile((SHOW:gsub("%%s", function() return place end))))
    local can = probe.of(template)
    t.eq({ can.image, can.result_image }, { "image", place == "true" }, place)
    local messages = assert(normalize.messages(assert(json.decode(given)), { can = can }))
    local text = assert(template:render({ messages = messages }, { now = 0 }))
    t.eq(text:match ";(tool.*)$", want, place)
  end
end)
