-- continue: a prompt that ends inside the last message, so that the model goes on with it.
--
-- A mark is appended to the text of the message, the template renders it, and the prompt is cut at
-- the mark. If the template strips the text, the white space before the mark is removed as well.
local perigee = require "perigee"
local strings = require "templates.jinja.strings"
local json = perigee.json

local continue = {}

local MARK = "CONTINUE_FINAL_MESSAGE_TAG "
local BARE = "CONTINUE_FINAL_MESSAGE_TAG"

local function copy(object)
  local out = json.object()
  for k, v in pairs(object) do out[k] = v end
  return out
end

--- The content with the mark after its last text, and that text; nil if there is none.
local function marked(content)
  if type(content) == "string" then return content .. MARK, content end
  if not json.is_array(content) then return nil end
  local out = json.array(table.move(content, 1, #content, 1, {}))
  for i = #out, 1, -1 do
    local part = out[i]
    if json.is_object(part) and type(part.text) == "string" then
      out[i] = copy(part)
      out[i].text = part.text .. MARK
      return out, part.text
    end
  end
end

local function strip(s, sides) return strings.strip(s, nil, sides) end

--- Cuts the lists of ranges at byte `last`.
local function cut_info(info, last)
  local function ranges(list)
    local out = {}
    for _, r in ipairs(list) do
      if r[1] <= last then out[#out + 1] = { r[1], math.min(r[2], last), r[3] } end
    end
    return out
  end
  info.spans, info.generations = ranges(info.spans), ranges(info.generations)
  local kept = {}
  for _, b in ipairs(info.boundaries) do
    if b.at <= last then kept[#kept + 1] = b end
  end
  info.boundaries = kept
end

local function last_place(text, part)
  local at = text:reverse():find(part:reverse(), 1, true)
  return at and #text - at - #part + 2
end

--- Returns variables with the mark, and a function that cuts the rendered text; or nil, nil and the
--- error. field: the name of the field to continue, or true for "content".
function continue.prepare(variables, field)
  field = type(field) == "string" and field or "content"
  local messages = variables.messages
  local last = json.is_array(messages) and messages[#messages]
  if not json.is_object(last) then return nil, nil, "there is no final message to continue" end
  local content, said = marked(last[field])
  if not content then
    return nil, nil, ("the final message has no text in '%s' to continue"):format(field)
  end
  local list = json.array(table.move(messages, 1, #messages, 1, {}))
  list[#list] = copy(last)
  list[#list][field] = content
  local function finish(text, info)
    local at = last_place(text, BARE)
    if not at or not text:find(strip(said, "lr"), 1, true) then
      return nil, "the template does not show the final message, so it cannot be continued"
    end
    local out = text:sub(1, at - 1)
    if text:sub(at, at + #MARK - 1) ~= MARK then out = strip(out, "r") end
    if info then cut_info(info, #out) end
    return out
  end
  return setmetatable({ messages = list }, { __index = variables }), finish
end

return continue
