-- fallback: tools for templates that do not know them.
--
-- The tools are described at the end of the system message, with the way to call one: a block of
--
--   <tool_call>
--   {"name": "lookup_tide", "arguments": {"port": "Brest"}}
--   </tool_call>
--
-- for each call, which the `hermes` parser reads. Calls of earlier turns are written in the same
-- way after the text of their message, and results become a user's text, in the order of the calls:
--
--   <tool_response>
--   high water at 14:02
--   </tool_response>
--
-- All of this is ordinary text: special tokens are not recognised in it.
local async = require "lib.async"
local calls = require "chat.calls"
local content = require "chat.content"
local encode = require "lib.encode"
local perigee = require "perigee"
local json = perigee.json

local fallback = { FORMAT = "hermes" }

local BEFORE = "# Tools\n\nYou can call tools. Each line describes one of them as JSON:\n"
local AFTER = "\nTo call a tool, write a block of this form, with the name of the tool and its "
  .. 'arguments as JSON:\n<tool_call>\n{"name": "the tool\'s name", '
  .. '"arguments": {"a parameter": "its value"}}\n</tool_call>\n'
  .. "Write one block for each call and nothing behind the last one. The results come in the next "
  .. "message, each between <tool_response> and </tool_response>, in the order of the calls."

--- The sentence about tool_choice, if any.
local function demand(choice)
  if type(choice) == "table" and choice.allowed_tools then choice = choice.allowed_tools.mode end
  if choice == "required" then return "\nYou must call a tool now." end
  if type(choice) == "table" then
    return ("\nYou must call the tool %s now."):format(json.encode(calls.body(choice).name))
  end
  return ""
end

--- The text that describes the tools. choice: tool_choice of the request.
function fallback.describe(tools, choice)
  local lines = {}
  for i, tool in ipairs(tools) do
    local inner = json.is_object(tool) and json.is_object(tool["function"]) and tool["function"]
      or tool
    lines[i] = encode(inner, nil, async.breathe)
  end
  return BEFORE .. table.concat(lines, "\n") .. AFTER .. demand(choice)
end

--- A call as text.
function fallback.call(call)
  local inner = calls.body(call)
  return ('<tool_call>\n{"name": %s, "arguments": %s}\n</tool_call>'):format(
    json.encode(inner.name or ""), calls.arguments_text(inner.arguments))
end

--- Calls and results of a conversation (results in the order of their calls) as text.
function fallback.write(list)
  local out = {}
  for i, message in ipairs(list) do
    if message.tool_calls then
      local blocks = {}
      for k, call in ipairs(message.tool_calls) do blocks[k] = fallback.call(call) end
      message.content = content.join(message.content, table.concat(blocks, "\n"), "\n")
      message.tool_calls = nil
    elseif message.role == "tool" then
      local said = content.is_text(message.content) and content.flat(message.content)
        or message.content
      said = content.join("<tool_response>", said, "\n")
      said = content.join(said, "</tool_response>", "\n")
      message = json.object { { "role", "user" }, { "content", said } }
    end
    out[i] = message
  end
  return out
end

--- The conversation with the tools described in its system message.
function fallback.declare(list, tools, choice)
  local text = fallback.describe(tools, choice)
  local first = list[1]
  if first and first.role == "system" then
    first.content = content.join(first.content, text)
    return list
  end
  local system = json.object { { "role", "system" }, { "content", text } }
  return table.move(list, 1, #list, 2, { system })
end

return fallback
