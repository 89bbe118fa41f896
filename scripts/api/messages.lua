-- messages: the conversation and the tools of a request, checked. What is wrong is refused with its place, such as
-- messages[2].content[0]; what is merely unusual is left to normalization (scripts/chat) and to the model's template.
local async = require "lib.async"
local perigee = require "perigee"
local errors = require "api.errors"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse
local is_object, is_list, kind_of = schema.is_object, schema.is_list, schema.kind_of

local messages = {}

local IMAGES = { image = true, image_url = true, input_image = true }
local TEXTS = { text = true, input_text = true, output_text = true, thinking = true, reasoning = true, refusal = true }

local function is_given(v) return v ~= nil and v ~= json.null end

local function check_part(part, at)
  if type(part) == "string" then return end
  if not is_object(part) then refuse(at, "must be an object, not %s", kind_of(part)) end
  local kind = part.type
  if type(kind) ~= "string" then refuse(at .. ".type", "must be text, not %s", is_given(kind) and kind_of(kind) or "missing") end
  if IMAGES[kind] then refuse(at, "is an image, and this server has no image input yet") end
  if not TEXTS[kind] then refuse(at .. ".type", "is '%s', which this server cannot read (it can read: text)", kind:sub(1, 64)) end
  local text = part.text
  if kind ~= "text" and not is_given(text) then return end
  if type(text) ~= "string" then refuse(at .. ".text", "must be text, not %s", is_given(text) and kind_of(text) or "missing") end
end

local function check_content(content, at)
  if not is_given(content) or type(content) == "string" then return end
  if not is_list(content) then refuse(at, "must be text or a list of parts, not %s", kind_of(content)) end
  for i, part in ipairs(content) do check_part(part, ("%s[%d]"):format(at, i - 1)) end
end

local function check_call(call, at)
  if not is_object(call) then refuse(at, "must be an object, not %s", kind_of(call)) end
  local fn = is_given(call["function"]) and call["function"] or call
  if not is_object(fn) then refuse(at .. ".function", "must be an object, not %s", kind_of(fn)) end
  schema.value("text", at .. ".function.name", fn.name == nil and json.null or fn.name, { from = 1, to = 256 })
  local args = fn.arguments
  if is_given(args) and type(args) ~= "string" and not is_object(args) then
    refuse(at .. ".function.arguments", "must be JSON as text, not %s", kind_of(args))
  end
  if is_given(call.id) and type(call.id) ~= "string" then refuse(at .. ".id", "must be text, not %s", kind_of(call.id)) end
end

local function check_message(message, at)
  if not is_object(message) then refuse(at, "must be an object, not %s", kind_of(message)) end
  local role = message.role
  if not is_given(role) then refuse(at .. ".role", "is missing") end
  schema.value("text", at .. ".role", role, { from = 1, to = 64 })
  check_content(message.content, at .. ".content")
  local calls = message.tool_calls
  if is_given(calls) then
    if not is_list(calls) then refuse(at .. ".tool_calls", "must be a list, not %s", kind_of(calls)) end
    for i, call in ipairs(calls) do check_call(call, ("%s.tool_calls[%d]"):format(at, i - 1)) end
  end
  for _, key in ipairs { "tool_call_id", "name", "reasoning_content" } do
    local v = message[key]
    if is_given(v) and type(v) ~= "string" then refuse(("%s.%s"):format(at, key), "must be text, not %s", kind_of(v)) end
  end
  if not is_given(message.content) and not is_given(calls) and role ~= "assistant" then refuse(at .. ".content", "is missing") end
end

function messages.check(list)
  if list == nil then refuse("messages", "is missing") end
  for i, message in ipairs(list) do
    async.breathe()
    check_message(message, ("messages[%d]"):format(i - 1))
  end
end

-- ---- tools ---------------------------------------------------------------------------------------------------------

local function check_tool(tool, at)
  if not is_object(tool) then refuse(at, "must be an object, not %s", kind_of(tool)) end
  if tool.type ~= "function" then
    refuse(at .. ".type", "is %s, it must be 'function'", type(tool.type) == "string" and "'" .. tool.type:sub(1, 64) .. "'" or
      is_given(tool.type) and kind_of(tool.type) or "missing")
  end
  local fn = tool["function"]
  if not is_object(fn) then refuse(at .. ".function", "must be an object, not %s", is_given(fn) and kind_of(fn) or "missing") end
  local name = schema.value("text", at .. ".function.name", fn.name == nil and json.null or fn.name, { from = 1, to = 128 })
  if not name:find "^[%w_.%-]+$" then
    refuse(at .. ".function.name", "is '%s', it may have letters, digits, _ . and - only", name)
  end
  if is_given(fn.description) and type(fn.description) ~= "string" then
    refuse(at .. ".function.description", "must be text, not %s", kind_of(fn.description))
  end
  if is_given(fn.parameters) and not is_object(fn.parameters) then
    refuse(at .. ".function.parameters", "must be an object, not %s", kind_of(fn.parameters))
  end
  return name
end

--- The names of the tools, as a list and a set.
function messages.check_tools(tools)
  local names, set = {}, {}
  for i, tool in ipairs(tools or {}) do
    local name = check_tool(tool, ("tools[%d]"):format(i - 1))
    names[i], set[name] = name, true
  end
  return names, set
end

local CHOICES = { auto = true, none = true, required = true }

--- tool_choice: returns the tools to offer (nil: none), and { name = … or nil } when a call is demanded.
function messages.choose(chat)
  local names, set = messages.check_tools(chat.tools)
  local choice, tools = chat.tool_choice, #names > 0 and chat.tools or nil
  if choice == nil or choice == "auto" then return tools end
  if type(choice) == "string" then
    if not CHOICES[choice] then refuse("tool_choice", "is '%s', it must be auto, none, required or a tool", choice:sub(1, 64)) end
    if choice == "none" then return nil end
    if not tools then refuse("tool_choice", "is 'required', but there are no tools") end
    return tools, { name = #names == 1 and names[1] or nil }
  end
  if not is_object(choice) then refuse("tool_choice", "must be text or an object, not %s", kind_of(choice)) end
  local fn = choice["function"]
  if choice.type ~= "function" or not is_object(fn) or type(fn.name) ~= "string" then
    refuse("tool_choice", 'must be {"type": "function", "function": {"name": …}}')
  end
  if not set[fn.name] then
    refuse("tool_choice", "names the tool '%s', which is not among the tools", fn.name:sub(1, 128))
  end
  return tools, { name = fn.name }
end

return messages
