-- chat.check: what is a conversation, and the words of every refusal.
local async = require "lib.async"
local check = require "chat.check"
local perigee = require "perigee"
local sorted_keys = require("lib.text").sorted_keys
local test = require("harness").test
local json = perigee.json

local function value(text) return (assert(json.decode(text, { digits = true }))) end

--- The message of the refusal (which begins with its field), or nil.
local function refusal(t, f, ...)
  local ok, why = pcall(f, ...)
  if ok then return nil end
  t.eq({ why.code, why.message:sub(1, #why.field) }, { "argument", why.field })
  return why.message
end

local LONG = ("n"):rep(129)

-- One tool as JSON text, and its refusal.
local TOOLS = {
  { '{"type": "function", "function": {"name": "f"}}' },
  { '{"type": "function", "function": {"name": "f", "description": "d", "parameters": {}}}' },
  { '{"type": "function", "function": {"name": "f", "description": null, "parameters": null}}' },
  { '{"type": "function", "function": {"name": "a-b_c.9"}}' },
  { '{"type": "function", "function": {"name": "' .. LONG:sub(2) .. '"}}' },
  { '{"type": "function", "function": {"name": "' .. LONG .. '"}}',
    "tools[1].function.name must have at most 128 bytes, got 129" },
  { "5", "tools[1] must be an object, got an integer" },
  { '{"function": {"name": "f"}}', "tools[1].type must be 'function', got nothing" },
  { '{"type": "web", "function": {"name": "f"}}', "tools[1].type must be 'function', got 'web'" },
  { '{"type": "' .. LONG .. '"}', "tools[1].type must be 'function', got '" .. LONG:sub(1, 64)
    .. "'" },
  { '{"type": 1.5}', "tools[1].type must be 'function', got a number" },
  { '{"type": "function"}', "tools[1].function must be an object, got nothing" },
  { '{"type": "function", "function": []}', "tools[1].function must be an object, got an array" },
  { '{"type": "function", "function": {}}', "tools[1].function.name is missing" },
  { '{"type": "function", "function": {"name": null}}', "tools[1].function.name is missing" },
  { '{"type": "function", "function": {"name": true}}',
    "tools[1].function.name must be a string, got a boolean" },
  { '{"type": "function", "function": {"name": ""}}', "tools[1].function.name must not be empty" },
  { '{"type": "function", "function": {"name": "a b"}}',
    "tools[1].function.name must consist of letters, digits, _ . and -, got 'a b'" },
  { '{"type": "function", "function": {"name": "f", "description": 7}}',
    "tools[1].function.description must be a string, got an integer" },
  { '{"type": "function", "function": {"name": "f", "parameters": "x"}}',
    "tools[1].function.parameters must be an object, got a string" },
}

test("tools", function(t)
  local first = '{"type": "function", "function": {"name": "first"}}'
  for _, case in ipairs(TOOLS) do
    t.eq(refusal(t, check.tools, value("[" .. first .. "," .. case[1] .. "]")), case[2], case[1])
  end
  for given, want in pairs { ["null"] = false, ["[]"] = false, ["{}"] = false,
    ['{"a": 1}'] = "tools must be an array, got an object",
    ['"f"'] = "tools must be an array, got a string" } do
    t.eq(refusal(t, check.tools, value(given)), want or nil, given)
  end
  t.eq(refusal(t, check.tools, nil), nil)
end)

local F = '{"type": "function", "function": {"name": "f"}}'
local G = '{"name": "g"}'

--- What a choice asks for, in short: the names of the tools offered, and the one demanded.
local function chosen(t, tools, choice)
  local out
  local why = refusal(t, function()
    local offered, call, allowed = check.choose(tools, choice)
    out = offered and #offered .. (call and " " .. (call.name or "any") or "") or "none"
    if allowed then out = out .. " of " .. table.concat(sorted_keys(allowed), "+") end
  end)
  return why or out
end

-- tools, tool_choice, and what that asks for.
local CHOICES = {
  { nil, nil, "none" }, { "null", "null", "none" }, { "[]", '"auto"', "none" },
  { "{}", nil, "none" }, { "[" .. F .. "]", nil, "1" }, { "[" .. F .. "]", "null", "1" },
  { "[" .. F .. "]", '"auto"', "1" }, { "[" .. F .. "]", '"none"', "none" },
  { "[" .. F .. "]", '"required"', "1 f" }, { "[" .. G .. "]", '"required"', "1 g" },
  { "[" .. F .. "," .. G .. "]", '"required"', "2 any" },
  { "[" .. F .. "," .. G .. "]", F, "2 f" }, { "[" .. F .. "," .. G .. "]", G, "2 g" },
  { "5", nil, "tools must be an array, got an integer" },
  { "[]", '"required"', "tool_choice demands a call, but there are no tools" },
  { nil, F, "tool_choice demands a call, but there are no tools" },
  { "[5," .. F .. "]", G, "tool_choice names the tool 'g', which is not among the tools" },
  { "[" .. F .. "]", '{"name": "' .. LONG .. '"}', "tool_choice names the tool '"
    .. LONG:sub(2) .. "', which is not among the tools" },
}
for given, shown in pairs { ['"any"'] = "'any'", ["5"] = "an integer", ["{}"] = "an object",
  ['{"function": {}}'] = "an object", ['{"function": {"name": 5}}'] = "an object",
  ['["f"]'] = "an array", ['"' .. LONG .. '"'] = "'" .. LONG:sub(1, 64) .. "'" } do
  table.insert(CHOICES, { "[" .. F .. "]", given, 'tool_choice must be "none", "auto", "required" '
    .. 'or {"type": "function", "function": {"name": …}}, got ' .. shown })
end

--- tool_choice that allows some tools, the rest of a refusal after its place.
local function allows(mode, names)
  return ('{"type": "allowed_tools", "allowed_tools": {"mode": %s, "tools": %s}}'):format(mode,
    names)
end
local AMONG, H = "tool_choice.allowed_tools", '{"type": "function", "function": {"name": "h"}}'
for _, case in ipairs {
  { allows('"auto"', "[" .. F .. "]"), "3 of f" },
  { allows('"required"', "[" .. F .. "]"), "3 f of f" },
  { allows('"required"', "[" .. F .. "," .. H .. "," .. F .. "]"), "3 any of f+h" },
  { allows('"auto"', "[]"), "3 of " },
  { allows('"required"', "[]"), AMONG .. ".tools allows no tool, but a call is demanded" },
  { allows('"never"', "[]"), AMONG .. ".mode must be 'auto' or 'required', got 'never'" },
  { allows("null", "[]"), AMONG .. ".mode must be 'auto' or 'required', got null" },
  { allows('"auto"', "null"), AMONG .. ".tools must be an array, got null" },
  { allows('"auto"', "[" .. F .. ",5]"), AMONG .. ".tools[1] must be an object, got an integer" },
  { allows('"auto"', '[{"type": "custom"}]'),
    AMONG .. ".tools[0].type must be 'function', got 'custom'" },
  { allows('"auto"', '[{"type": "function", "name": "f"}]'),
    AMONG .. ".tools[0].function must be an object, got nothing" },
  { allows('"auto"', '[{"type": "function", "function": {"name": 5}}]'),
    AMONG .. ".tools[0].function.name must be a string, got an integer" },
  { allows('"auto"', '[{"type": "function", "function": {"name": "x"}}]'),
    AMONG .. ".tools[0].function.name names the tool 'x', which is not among the tools" },
  { '{"type": "allowed_tools"}', AMONG .. " must be an object, got nothing" },
  { '{"type": "allowed_tools", "allowed_tools": []}', AMONG .. " must be an object, got an array" },
} do
  table.insert(CHOICES, { "[" .. F .. "," .. G .. "," .. H .. "]", case[1], case[2] })
end

test("tool_choice", function(t)
  for _, case in ipairs(CHOICES) do
    local tools, choice, want = table.unpack(case, 1, 3)
    t.eq(chosen(t, tools and value(tools), choice and value(choice)), want,
      ("%s of %s"):format(choice, tools))
  end
end)

-- A message of a client as JSON text, and its refusal.
local CLIENT = {
  { '{"role": "user", "content": ""}' }, { '{"role": "assistant"}' },
  { '{"role": "assistant", "content": null}' },
  { '{"role": "user"}', ".content is missing" },
  { '{"role": "tool", "content": null}', ".content is missing" },
  { '{"role": "' .. LONG:sub(1, 65) .. '", "content": "x"}',
    ".role must have at most 64 bytes, got 65" },
  { '{"role": "", "content": "x"}', ".role must not be empty" },
  { '{"role": "user", "content": "x", "name": 5}', ".name must be a string, got an integer" },
  { '{"role": "tool", "content": "x", "tool_call_id": []}',
    ".tool_call_id must be a string, got an array" },
  { '{"role": "assistant", "content": "x", "reasoning_content": 123456789012345678901234567890}',
    ".reasoning_content must be a string, got an integer beyond 64 bits" },
  { '{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}' },
  { '{"role": "assistant", "tool_calls": [{"name": "f", "arguments": {}, "id": "i"}]}' },
  { '{"role": "assistant", "tool_calls": [{}]}', ".tool_calls[0].function.name is missing" },
  { '{"role": "assistant", "tool_calls": [{"name": "' .. LONG .. LONG:sub(3) .. '"}]}' },
  { '{"role": "assistant", "tool_calls": [{"name": "' .. LONG .. LONG:sub(2) .. '"}]}',
    ".tool_calls[0].function.name must have at most 256 bytes, got 257" },
  { '{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}',
    ".tool_calls[0].function.arguments must be a string of JSON, got an array" },
  { '{"role": "assistant", "tool_calls": [{"name": "f", "id": 7}]}',
    ".tool_calls[0].id must be a string, got an integer" },
  { '{"role": "assistant", "tool_calls": {}}' },
  { '{"role": "assistant", "function_call": {"name": "f"}}' },
  { '{"role": "user", "content": "x", "function_call": {"name": "f"}}',
    ".tool_calls must be in a message of role assistant, got 'user'" },
}

-- A part of a client's message, and its refusal.
local PARTS = {
  { '"text"' }, { '{"text": "x"}' }, { '{"type": "thinking"}' },
  { '{"type": "' .. LONG .. '"}', ".type must be a known type of part, got '" .. LONG:sub(1, 64)
    .. "'" },
  { '{"type": "input_audio"}', " is of type 'input_audio', but this server has no audio input" },
  { '{"type": "image_url", "image_url": "u"}' },
  { '{"type": "image_url", "image_url": {"url": "u"}}' },
  { '{"type": "image", "image": "u"}' }, { '{"type": "image", "url": "u"}' },
  { '{"type": "image"}', ".image_url must have a URL, got nothing" },
  { '{"type": "image", "image": null, "url": "u"}' },
  { '{"type": "image", "image": {}}', ".image must have a URL, got nothing" },
  { '{"type": "image", "image": {"url": null}}', ".image must have a URL, got null" },
  { '{"type": "image", "image": 5}', ".image must be a URL, got an integer" },
  { '{"type": "image", "image": ["u"]}', ".image must be a URL, got an array" },
  { '{"type": "video_url", "video_url": {"url": "u"}}' },
  { '{"type": "video", "video": ["u", "v"]}' }, { '{"type": "video", "frames": ["u"]}' },
  { '{"type": "video", "video": {"frames": ["u"]}}' },
  { '{"type": "video", "video": 5}', ".video must be a URL or an array of those, got an integer" },
  { '{"type": "video", "frames": ["u", 5]}', ".frames[1] must be a URL, got an integer" },
  { '{"type": "video"}', ".video_url must have a URL, got nothing" },
}

test("messages of clients", function(t)
  local function wrong(message)
    return refusal(t, check.messages, value('[{"role": "user", "content": "x"},' .. message .. "]"),
      { client = true })
  end
  for _, case in ipairs(CLIENT) do
    t.eq(wrong(case[1]), case[2] and "messages[1]" .. case[2], case[1])
  end
  for _, case in ipairs(PARTS) do
    t.eq(wrong('{"role": "user", "content": ["x", ' .. case[1] .. "]}"),
      case[2] and "messages[1].content[1]" .. case[2], case[1])
  end
  t.eq(refusal(t, check.messages, nil), "messages is missing")
  t.eq(refusal(t, check.messages, json.null), "messages is missing")
  t.eq(refusal(t, check.messages, {}), nil)
end)

test("whole conversations", function(t)
  local hello = '"messages": [{"role": "user", "content": "x"}]'
  for given, want in pairs {
    ["{" .. hello .. "}"] = true, ["{" .. hello .. ', "kwargs": {"a": 1}}'] = true,
    ["{" .. hello .. ', "tools": [' .. F .. "]}"] = true,
    ["{}"] = "messages is missing", ['{"messages": []}'] = "messages must not be empty",
    ['{"messages": [{"role": "user"}]}'] = "messages[0].content is missing",
    ["{" .. hello .. ', "tools": 5}'] = "tools must be an array, got an integer",
    ["{" .. hello .. ', "kwargs": []}'] = "kwargs must be an object, got an array",
  } do
    local ok, why = check.chat(value(given))
    t.eq(ok or why.message, want, given)
  end
end)

test("long lists let others have their turn", function(t)
  local parts, calls, messages = json.array {}, json.array {}, json.array {}
  for i = 1, 600 do
    parts[i], calls[i] = "x", json.object { { "name", "f" } }
    messages[i] = json.object { { "role", "user" }, { "content", "x" } }
  end
  local n = 0
  t.patch(async, "breathe", function() n = n + 1 end)
  local function turns(list)
    n = 0
    check.messages(list)
    return n
  end
  local got = { turns(messages),
    turns(json.array { json.object { { "role", "user" }, { "content", parts } } }),
    turns(json.array { json.object { { "role", "assistant" }, { "tool_calls", calls } } }) }
  t.eq(got, { 600, 3, 3 })
end)

test("messages, parts, calls and tools have a limit", function(t)
  local function list(n, item)
    local out = json.array {}
    for i = 1, n do out[i] = item end
    return out
  end
  local function user(parts) return json.object { { "role", "user" }, { "content", parts } } end
  local function caller(calls)
    return json.object { { "role", "assistant" }, { "tool_calls", calls } }
  end
  local most, call = check.MOST, json.object { { "name", "f" } }
  local said = "makes more than 10000 messages, parts and calls in one conversation"
  local cases = { -- the longest list, and the refusal of one that is longer by one
    { function(n) return list(n, user "x") end, most, "messages " },
    { function(n) return json.array { user(list(n, "x")) } end, most - 1, "messages[0].content " },
    { function(n) return list(n, user(list(1, "x"))) end, most // 2, "messages[4999].content " },
    { function(n) return json.array { user "x", caller(list(n, call)) } end, most - 2,
      "messages[1].tool_calls " },
  }
  for _, case in ipairs(cases) do
    local make, n, at = table.unpack(case)
    t.eq(refusal(t, check.messages, make(n)), nil, at)
    t.eq(refusal(t, check.messages, make(n + 1)), at .. said)
  end
  local tool = value '{"type": "function", "function": {"name": "f"}}'
  t.eq(refusal(t, check.tools, list(most, tool)), nil)
  t.eq(refusal(t, check.tools, list(most + 1, tool)),
    "tools must have at most 10000 entries, got 10001")
end)
