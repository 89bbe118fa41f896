-- check: is this a conversation? The one check of messages, tools and tool_choice: the APIs use it
-- for what clients send, hooks/phases.lua for what a `normalize` hook returns, normalize.lua and
-- init.lua for what they render.
--
-- A refusal is raised: a perigee.Error "argument" whose field is the place as a path, such as
-- messages[2].content[0] (indexes from 0 on, as in JSON), and whose message begins with that path.
-- Unknown keys are left alone: they may mean something to the template.
--
-- A conversation has at most MOST messages, parts and calls: many loops here and in normalize.lua
-- go over all of them at once.
--
-- options.client: also what only a server demands of its clients: every message says something,
-- every call has a name, pictures and videos have a source, and no part is audio.
local async = require "lib.async"
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local check = {}

check.ROLES = { "system", "developer", "user", "assistant", "tool", "function" }

--- What a part of each type is. The text of a text part is under `field`.
check.PARTS = {
  text = { kind = "text", field = "text" }, input_text = { kind = "text", field = "text" },
  output_text = { kind = "text", field = "text" }, refusal = { kind = "text", field = "refusal" },
  image = { kind = "image" }, image_url = { kind = "image" }, input_image = { kind = "image" },
  video = { kind = "video" }, video_url = { kind = "video" }, input_video = { kind = "video" },
  audio = { kind = "audio" }, audio_url = { kind = "audio" }, input_audio = { kind = "audio" },
  thinking = { kind = "thinking" }, reasoning = { kind = "thinking" },
}

local is_role = {}
for _, role in ipairs(check.ROLES) do is_role[role] = true end

-- ---- values -------------------------------------------------------------------------------------

local function is_object(v) return v ~= nil and json.is_object(v) end
local function is_list(v) return v ~= nil and json.is_array(v) end
local function is_given(v) return v ~= nil and v ~= json.null end

--- The kind of a value, in JSON's terms: "a string", "an array", "null", …
local function kind_of(v)
  if v == nil then return "nothing" end
  if v == json.null then return "null" end
  if json.digits(v) then return "an integer beyond 64 bits" end
  if is_list(v) then return "an array" end
  if type(v) == "table" then return "an object" end
  return math.type(v) == "integer" and "an integer" or "a " .. type(v)
end
check.is_object, check.is_list, check.kind_of = is_object, is_list, kind_of

--- Raises a refusal about one field; the message begins with the field's name.
local function refuse(field, format, ...)
  error(perigee.error("argument", field .. " " .. format:format(...), { field = field }), 0)
end
check.refuse = refuse

--- Raises when a value is given and not a string.
local function optional_string(value, field)
  if is_given(value) and type(value) ~= "string" then
    refuse(field, "must be a string, got %s", kind_of(value))
  end
end

--- Raises unless a value is a string of 1 to `most` bytes.
local function required_string(value, field, most)
  if not is_given(value) then refuse(field, "is missing") end
  if type(value) ~= "string" then refuse(field, "must be a string, got %s", kind_of(value)) end
  if #value < 1 then refuse(field, "must not be empty") end
  if #value > most then refuse(field, "must have at most %d bytes, got %d", most, #value) end
  return value
end

-- ---- messages -----------------------------------------------------------------------------------

local SOME = 256 -- entries between two looks at the clock: less than a millisecond
-- Messages, parts and calls of a conversation, together; and tools: a loop over them takes a few
-- milliseconds at most.
local MOST = 10000
check.MOST = MOST

--- Adds the length of a list to those that a conversation has so far.
local function count(list, at, options)
  options.count = options.count + #list
  if options.count > MOST then
    refuse(at, "makes more than %d messages, parts and calls in one conversation", MOST)
  end
end

--- Keys of a part under which its picture or video is, as a URL or as { url = … }; base64: its
--- bytes, without the head of a data URI.
local SOURCES = { image = { "image_url", "image", "url", "base64" },
  video = { "video_url", "video", "frames", "url" } }

--- Where the source of a picture or a video is: the table that has it, its key there, and the key
--- of the part, for error messages. nil if it has none.
function check.source(part)
  for _, name in ipairs(SOURCES[check.PARTS[part.type].kind] or {}) do
    local value = part[name]
    if is_object(value) then return value, value.url == nil and "frames" or "url", name end
    if is_given(value) then return part, name, name end
  end
end

--- Is it a long string, which comes as perigee.Bytes (api/body.lua)?
function check.is_long(v)
  return type(v) == "userdata" and v ~= json.null and not json.digits(v)
end

local function is_url(v) return type(v) == "string" or check.is_long(v) end

local function check_media(part, at, kind)
  if not SOURCES[kind] then
    refuse(at, "is of type '%s', but this server has no %s input", part.type, kind)
  end
  local holder, key, name = check.source(part)
  at = ("%s.%s"):format(at, name or SOURCES[kind][1])
  local source = holder and holder[key]
  if not is_given(source) then refuse(at, "must have a URL, got %s", kind_of(source)) end
  if is_url(source) then return end
  if kind == "image" or not is_list(source) then
    refuse(at, "must be a URL%s, got %s", kind == "video" and " or an array of those" or "",
      kind_of(source))
  end
  for i, frame in ipairs(source) do
    if not is_url(frame) then
      refuse(("%s[%d]"):format(at, i - 1), "must be a URL, got %s", kind_of(frame))
    end
  end
end

local function check_part(part, at, options)
  if type(part) == "string" then return end
  if not is_object(part) then refuse(at, "must be an object, got %s", kind_of(part)) end
  local name = part.type
  if name == nil and type(part.text) == "string" then name = "text" end
  if type(name) ~= "string" then
    refuse(at .. ".type", "must be a string, got %s", kind_of(name))
  end
  local known = check.PARTS[name]
  if not known then
    refuse(at .. ".type", "must be a known type of part, got '%s'", name:sub(1, 64))
  end
  if known.kind == "text" then
    local said = part[known.field]
    if type(said) ~= "string" then
      refuse(("%s.%s"):format(at, known.field), "must be a string, got %s", kind_of(said))
    end
  elseif options.client and known.kind ~= "thinking" then
    check_media(part, at, known.kind)
  end
end

local function check_content(content, at, options)
  if not is_given(content) or type(content) == "string" then return end
  if not is_list(content) then
    refuse(at, "must be a string, an array of parts or null, got %s", kind_of(content))
  end
  count(content, at, options)
  for i, part in ipairs(content) do
    if i % SOME == 0 then async.breathe() end
    check_part(part, ("%s[%d]"):format(at, i - 1), options)
  end
end

local function is_empty(t)
  local step, state, at = pairs(t)
  return step(state, at) == nil
end

local function check_call(call, at, options)
  if not is_object(call) then refuse(at, "must be an object, got %s", kind_of(call)) end
  local fn = call["function"]
  if fn ~= nil and not is_object(fn) then
    refuse(at .. ".function", "must be an object, got %s", kind_of(fn))
  end
  if not options.client then return end
  fn = fn or call
  required_string(fn.name, at .. ".function.name", 256)
  local arguments = fn.arguments
  if is_given(arguments) and type(arguments) ~= "string" and not is_object(arguments) then
    refuse(at .. ".function.arguments", "must be a string of JSON, got %s", kind_of(arguments))
  end
  optional_string(call.id, at .. ".id")
end

--- Returns whether there are any.
local function check_calls(calls, at, options)
  if not is_given(calls) or type(calls) == "table" and is_empty(calls) then return false end
  if not is_list(calls) then refuse(at, "must be an array, got %s", kind_of(calls)) end
  count(calls, at, options)
  for i, call in ipairs(calls) do
    if i % SOME == 0 then async.breathe() end
    check_call(call, ("%s[%d]"):format(at, i - 1), options)
  end
  return true
end

local function check_role(role, at)
  required_string(role, at, 64)
  if is_role[role] then return end
  refuse(at, "must be one of %s, got '%s'%s", table.concat(check.ROLES, ", "), role,
    text.suggestion(role, check.ROLES))
end

local function check_message(message, at, options)
  if not is_object(message) then refuse(at, "must be an object, got %s", kind_of(message)) end
  local role = message.role
  check_role(role, at .. ".role")
  check_content(message.content, at .. ".content", options)
  local called = check_calls(message.tool_calls, at .. ".tool_calls", options)
  local old = message.function_call
  if is_given(old) and not is_object(old) then
    refuse(at .. ".function_call", "must be an object, got %s", kind_of(old))
  end
  called = called or is_given(old)
  if called and role ~= "assistant" then
    refuse(at .. ".tool_calls", "must be in a message of role assistant, got '%s'", role)
  end
  if not options.client then return end
  for _, key in ipairs { "tool_call_id", "name", "reasoning_content" } do
    optional_string(message[key], ("%s.%s"):format(at, key))
  end
  if not is_given(message.content) and not called and role ~= "assistant" then
    refuse(at .. ".content", "is missing")
  end
end

--- Raises at the first thing that is wrong with a list of messages. A long one lets the loop turn.
function check.messages(list, options)
  if not is_given(list) then refuse("messages", "is missing") end
  if type(list) == "table" and is_empty(list) then return end
  if not is_list(list) then refuse("messages", "must be an array, got %s", kind_of(list)) end
  local o = { client = options and options.client, count = 0 }
  count(list, "messages", o)
  for i, message in ipairs(list) do
    async.breathe()
    check_message(message, ("messages[%d]"):format(i - 1), o)
  end
end

-- ---- tools --------------------------------------------------------------------------------------

--- The object of a tool or a call that has its name.
local function inner(tool)
  local fn = type(tool) == "table" and tool["function"]
  return type(fn) == "table" and fn or tool
end

--- Raises unless this can be the name of a tool; returns it.
function check.tool_name(value, field)
  local name = required_string(value, field, 128)
  if not name:find "^[%w_.%-]+$" then
    refuse(field, "must consist of letters, digits, _ . and -, got '%s'", name)
  end
  return name
end

--- A value as refusals quote it.
local function quoted(value)
  return type(value) == "string" and "'" .. value:sub(1, 64) .. "'" or kind_of(value)
end

--- The object of a tool of a client that has its name.
local function function_of(tool, at)
  if not is_object(tool) then refuse(at, "must be an object, got %s", kind_of(tool)) end
  if tool.type ~= "function" then
    refuse(at .. ".type", "must be 'function', got %s", quoted(tool.type))
  end
  local fn = tool["function"]
  if not is_object(fn) then
    refuse(at .. ".function", "must be an object, got %s", kind_of(fn))
  end
  return fn
end

local function check_tool(tool, at)
  local fn = function_of(tool, at)
  check.tool_name(fn.name, at .. ".function.name")
  optional_string(fn.description, at .. ".function.description")
  if is_given(fn.parameters) and not is_object(fn.parameters) then
    refuse(at .. ".function.parameters", "must be an object, got %s", kind_of(fn.parameters))
  end
  if is_given(fn.strict) and type(fn.strict) ~= "boolean" then
    refuse(at .. ".function.strict", "must be true or false, got %s", kind_of(fn.strict))
  end
end

--- Raises at the first thing that is wrong with a list of tools; nil is fine.
function check.tools(tools)
  if not is_given(tools) then return end
  if not is_list(tools) and not (type(tools) == "table" and is_empty(tools)) then
    refuse("tools", "must be an array, got %s", kind_of(tools))
  end
  if #tools > MOST then refuse("tools", "must have at most %d entries, got %d", MOST, #tools) end
  for i, tool in ipairs(tools) do check_tool(tool, ("tools[%d]"):format(i - 1)) end
end

--- The name that an object tool_choice asks for.
local function named(choice)
  local fn = is_object(choice) and inner(choice)
  if not fn or type(fn.name) ~= "string" then
    refuse("tool_choice", 'must be "none", "auto", "required" or '
      .. '{"type": "function", "function": {"name": …}}, got %s', quoted(choice))
  end
  return fn.name
end

--- What limits calls to some of the tools: "auto" or "required", and a set of names. given: has
--- mode and tools, at this place; name_of(tool, at): the name of an entry and its place, nil if it
--- counts for nothing; is_known(name): is it among the tools?
function check.allowed(given, at, name_of, is_known)
  local mode, list, names = given.mode, given.tools, {}
  if mode ~= "auto" and mode ~= "required" then
    refuse(at .. ".mode", "must be 'auto' or 'required', got %s", quoted(mode))
  end
  at = at .. ".tools"
  if not is_list(list) then refuse(at, "must be an array, got %s", kind_of(list)) end
  if #list > MOST then refuse(at, "must have at most %d entries, got %d", MOST, #list) end
  for i, tool in ipairs(list) do
    local name, place = name_of(tool, ("%s[%d]"):format(at, i - 1))
    if name and not is_known(name) then
      refuse(place, "names the tool '%s', which is not among the tools", name:sub(1, 128))
    end
    if name then names[name] = true end
  end
  if mode == "required" and not next(names) then
    refuse(at, "allows no tool, but a call is demanded")
  end
  return mode, names
end

local function entry_name(tool, at)
  local place = at .. ".function.name"
  return required_string(function_of(tool, at).name, place, 128), place
end

--- check.choose of a choice that allows some of the tools.
local function choose_among(tools, choice)
  local given, at, known = choice.allowed_tools, "tool_choice.allowed_tools", {}
  if not is_object(given) then refuse(at, "must be an object, got %s", kind_of(given)) end
  for _, tool in ipairs(tools or {}) do
    local fn = inner(tool)
    if type(fn) == "table" and type(fn.name) == "string" then known[fn.name] = true end
  end
  local mode, names = check.allowed(given, at, entry_name, function(name) return known[name] end)
  local only = next(names)
  if mode == "auto" then return tools, nil, names end
  return tools, { name = next(names, only) == nil and only or nil }, names
end

--- What tool_choice asks for: the tools to offer (nil: none); when a call is demanded, { name = of
--- the tool, nil: any }; and a set of the names that may be called (nil: all).
function check.choose(tools, choice)
  if not is_given(tools) or type(tools) == "table" and is_empty(tools) then tools = nil end
  if tools ~= nil and not is_list(tools) then
    refuse("tools", "must be an array, got %s", kind_of(tools))
  end
  if not is_given(choice) or choice == "auto" then return tools end
  if choice == "none" then return nil end
  if is_object(choice) and choice.type == "allowed_tools" then
    return choose_among(tools, choice)
  end
  local name = choice ~= "required" and named(choice) or nil
  if not tools then refuse("tool_choice", "demands a call, but there are no tools") end
  if choice == "required" then
    return tools, { name = #tools == 1 and inner(tools[1]).name or nil }
  end
  for _, tool in ipairs(tools) do
    local fn = inner(tool)
    if type(fn) == "table" and fn.name == name then return tools, { name = name } end
  end
  refuse("tool_choice", "names the tool '%s', which is not among the tools", name:sub(1, 128))
end

-- ---- both ---------------------------------------------------------------------------------------

--- A whole conversation { messages, tools, kwargs } as a client could have sent it: true, or nil
--- and an error.
function check.chat(chat)
  local ok, why = pcall(function()
    check.messages(chat.messages, { client = true })
    if #chat.messages == 0 then refuse("messages", "must not be empty") end
    check.tools(chat.tools)
    if chat.kwargs ~= nil and not is_object(chat.kwargs) then
      refuse("kwargs", "must be an object, got %s", kind_of(chat.kwargs))
    end
  end)
  if ok then return true end
  return nil, why
end

return check
