-- normalize: messages of any client in the one form that a template can show without losing
-- anything.
--
--   local messages, err = normalize.messages(given,
--     { can = probe.of(template), tools = …, tool_choice = … })
--
-- The steps, in order; the last three need to know what the template can do and are skipped without
-- `can`:
--   - the messages are checked (check.lua). Unknown keys stay, in their order; keys of the protocol
--     that are null are dropped.
--   - developer becomes system; the older function and function_call become tool and tool_calls
--   - lines `x-anthropic-billing-header: …`, which change with every request, are removed from
--     system text: they would defeat the prefix cache
--   - reasoning that an assistant left open is closed before a call that it wrote as text
--     (<tool_call>)
--   - consecutive messages of one role are joined by a blank line. Calls stay after the text; tool
--     results, messages with different keys, and lists of parts stay separate (lists are also
--     joined when the template demands alternating roles)
--   - arguments become objects or JSON text, as the template wants
--   - what the template cannot show takes another form: tools and calls as text (fallback.lua), a
--     system message in the first user's, a late one moved to the front, parallel calls one by one,
--     text next to a call in a message before it, pictures of results in a user's after them
--   - reasoning goes under the key that the template reads; whether earlier turns show it is up to
--     the template
--   - contents become text or lists of parts; a part that the template has no place for is an error
--
-- Messages may be JSON or plain Lua tables. They are not changed. Time and memory are linear in
-- their size; inside a task a long conversation lets the loop turn.
local async = require "lib.async"
local calls = require "chat.calls"
local check = require "chat.check"
local content = require "chat.content"
local fallback = require "chat.fallback"
local perigee = require "perigee"
local json = perigee.json

local normalize = {}

local RENAMED = { developer = "system", ["function"] = "tool" }
local OPTIONAL = { "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning",
  "thinking", "refusal", "function_call", "audio" }
local REASONING = { "reasoning_content", "reasoning", "thinking" }

local is_reasoning = {}
for _, key in ipairs(REASONING) do is_reasoning[key] = true end

-- ---- one message --------------------------------------------------------------------------------

--- A system text without the lines that a client adds for its accounting.
local function without_billing(said)
  if not said:lower():find("x-anthropic-billing-header:", 1, true) then return said end
  local lines = {}
  for line in (said .. "\n"):gmatch "([^\n]*)\n" do
    if line:sub(1, 27):lower() ~= "x-anthropic-billing-header:" then lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n")
end

local WINDOW = 64 << 10 -- bytes that are searched at a time; below a millisecond

--- The last position of a plain text, 0 when there is none. Searches from the end, so that a text
--- full of it takes no longer than any other.
local function last_place(said, part)
  local stop = #said
  while stop > 0 do
    local from = math.max(1, stop - WINDOW + 1)
    local window, at, found = said:sub(from, stop + #part - 1), 0, nil
    repeat
      at = window:find(part, at + 1, true)
      found = at or found
    until not at
    if found then return from + found - 1 end
    stop = from - 1
    async.breathe()
  end
  return 0
end

--- Closes reasoning that was left open in a text with a call: before the call, or at the end.
local function close_thinking(said)
  if not said:find("<tool_call>", 1, true) then return said end
  local open = last_place(said, "<think>")
  if open <= last_place(said, "</think>") then return said end
  local at = said:find("<tool_call>", open, true) or #said + 1
  return said:sub(1, at - 1) .. "</think>" .. said:sub(at)
end

--- The single call of the older protocol.
local function legacy_call(message)
  local call = message.function_call
  if call == nil then return end
  message.function_call = nil
  message.tool_calls = message.tool_calls or json.array {}
  table.insert(message.tool_calls, json.object { { "type", "function" }, { "function", call } })
end

local EDITS = { system = without_billing, assistant = close_thinking }

local function read_message(given)
  local message = content.ordered(given)
  for _, key in ipairs(OPTIONAL) do
    if message[key] == json.null then message[key] = nil end
  end
  if message.tool_calls and #message.tool_calls == 0 then message.tool_calls = nil end
  legacy_call(message)
  message.role = RENAMED[message.role] or message.role
  local edit = EDITS[message.role]
  message.content = content.read(message.content)
  if edit then message.content = content.map(message.content, edit) end
  return message
end

local function read(given)
  check.messages(given)
  local list = {}
  for i, message in ipairs(given) do
    async.breathe()
    list[i] = read_message(message)
  end
  return list
end

-- ---- merging ------------------------------------------------------------------------------------

local OWN = { role = true, content = true, tool_calls = true }

--- Does b have a key that a lacks, or another value for one?
local function differ(a, b)
  for key, value in pairs(b) do
    if not OWN[key] and value ~= json.null and a[key] ~= value then return true end
  end
  return false
end

--- Can b be joined to a without losing anything?
local function joins(a, b)
  if a.role ~= b.role or a.role == "tool" or differ(a, b) then return false end
  if b.tool_calls and content.is_empty(b.content) then
    return type(a.content) == "string" or a.tool_calls ~= nil
  end
  if a.tool_calls then return false end -- the text would come before the calls
  return type(a.content) == "string" and type(b.content) == "string"
end

--- Joins b to a in any case; where both have a value, a's comes first. said: key -> a's value there
--- while it grows (content.joined).
local function join(a, b, said)
  local function add(key, value)
    said[key] = said[key] or content.joined():add(a[key])
    said[key]:add(value)
  end
  add("content", b.content)
  if b.tool_calls then
    a.tool_calls = a.tool_calls or json.array {}
    table.move(b.tool_calls, 1, #b.tool_calls, #a.tool_calls + 1, a.tool_calls)
  end
  for key, value in pairs(b) do
    if not OWN[key] then
      local both = type(a[key]) == "string" and type(value) == "string"
      if both and is_reasoning[key] and (said[key] or a[key] ~= value) then
        add(key, value)
      elseif a[key] == nil then
        a[key] = value
      end
    end
  end
end

--- Joins consecutive messages of one role. must(role): also those that cannot be joined without a
--- loss.
local function merge(list, must)
  local out, said = {}, {}
  local function close()
    for key, joined in pairs(said) do out[#out][key] = joined:value() end
    said = {}
  end
  for _, message in ipairs(list) do
    local last = out[#out]
    local same = last and last.role == message.role and message.role ~= "tool"
    if same and (must(message.role) or joins(last, message)) then
      join(last, message, said)
    else
      close()
      out[#out + 1] = message
    end
  end
  close()
  return out
end

-- ---- what a template cannot show ----------------------------------------------------------------

--- Are there calls or results?
local function has_calls(list)
  local called, answered = false, false
  for _, message in ipairs(list) do
    called = called or message.tool_calls ~= nil
    answered = answered or message.role == "tool"
  end
  return called, answered
end

--- Writes tools, calls and results as text for a template that does not know them.
local function without_tools(list, can, o)
  local called, answered = has_calls(list)
  local declare = o.tools and not can.tools
  if declare or called and not can.calls or answered and not can.results then
    list = fallback.write(calls.in_order(list))
  end
  if declare then list = fallback.declare(list, o.tools, o.tool_choice) end
  return list
end

--- Moves all system messages to the front.
local function hoist(list)
  local first, rest = {}, {}
  for _, message in ipairs(list) do
    table.insert(message.role == "system" and first or rest, message)
  end
  return table.move(rest, 1, #rest, #first + 1, first)
end

--- Moves the system's text into the first user's message.
local function fold_system(list)
  local system, rest, user = content.joined(), {}, nil
  for _, message in ipairs(list) do
    if message.role == "system" then
      system:add(message.content)
    else
      rest[#rest + 1] = message
      user = user or message.role == "user" and message or nil
    end
  end
  local said = system:value()
  if content.is_empty(said) then return rest end
  if user then
    user.content = content.join(said, user.content)
  else
    table.insert(rest, 1, json.object { { "role", "user" }, { "content", said } })
  end
  return rest
end

--- Puts reasoning, also that of thinking parts, under the key that the template reads.
local function place_reasoning(message, can)
  if message.role ~= "assistant" then return end
  local rest, said = content.without_thinking(message.content)
  message.content = rest
  for _, key in ipairs(REASONING) do
    local other = key ~= can.reasoning and type(message[key]) == "string"
    if other and (can.reasoning or said) then
      said = said and message[key] .. "\n\n" .. said or message[key]
      message[key] = nil
    end
  end
  local key = can.reasoning or REASONING[1]
  if said and message[key] == nil then message[key] = said end
end

local function fit(list, can, o)
  list = without_tools(list, can, o)
  if not can.system then
    list = fold_system(list)
  elseif not can.system_late then
    list = hoist(list)
  end
  if can.results and not can.result_image then list = calls.pictures_after(list) end
  list = merge(list, function(role)
    return can.alternate or role == "system" and not can.system_late
  end)
  for _, message in ipairs(list) do place_reasoning(message, can) end
  if not can.parallel then list = calls.one_by_one(list) end
  if can.calls then list = calls.beside(list, can) end
  if can.result_name then calls.name_results(list) end
  if can.short_ids then calls.shorten_ids(list) end
  return list
end

-- ---- all steps ----------------------------------------------------------------------------------

local function run(given, o)
  local can, list = o.can, read(given)
  if can then
    list = fit(list, can, o)
  else
    list = merge(list, function() return false end)
  end
  for i, message in ipairs(list) do
    async.breathe()
    calls.shape_arguments(message, can)
    local null = message.content == json.null and (not can or message.tool_calls ~= nil)
    if not null then
      message.content = content.shape(message, can, ("messages[%d]"):format(i - 1))
    end
    if message.content == json.null and not null then
      message.content = can.strings and "" or json.array {}
    end
  end
  return json.array(list)
end

--- The messages in one form, or nil and an error. options: can (what the template can do, see
--- probe.lua), tools and tool_choice of the request.
function normalize.messages(given, options)
  local ok, result = pcall(run, given, options or {})
  if ok then return result end
  if type(result) ~= "table" or result.code ~= "argument" then error(result, 0) end
  return nil, result
end

return normalize
