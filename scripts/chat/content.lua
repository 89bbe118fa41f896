-- content: the content of a message: text, or a list of parts (checked by chat/check.lua). Nothing
-- here changes its arguments.
--
-- A part is an object with a type. Text is { type = "text", text = … } (input_text, output_text and
-- refusal are other names of it); image, video and audio have a type per dialect; thinking belongs
-- to an assistant.
local async = require "lib.async"
local check = require "chat.check"
local perigee = require "perigee"
local json = perigee.json

local refuse = check.refuse

local content = {}

local DEPTH = 100 -- of nested values; more is a mistake or a cycle
local SOME = 256  -- entries between two looks at the clock: less than a millisecond

local TYPES = check.PARTS

--- A copy whose objects have one order: plain Lua tables become objects with sorted keys.
local function ordered(value, depth)
  if type(value) ~= "table" then return value end
  if depth > DEPTH then
    refuse("messages", "must not be nested deeper than %d levels", DEPTH)
  end
  if json.is_array(value) then
    local out = json.array {}
    for i, item in ipairs(value) do
      if i % SOME == 0 then async.breathe() end
      out[i] = ordered(item, depth + 1)
    end
    return out
  end
  async.breathe()
  local keys, plain = {}, getmetatable(value) == nil
  for key in pairs(value) do
    if type(key) ~= "string" then
      refuse("messages", "must have string keys, got %s", tostring(key))
    end
    keys[#keys + 1] = key
  end
  if plain then table.sort(keys) end
  local out = json.object()
  for _, key in ipairs(keys) do out[key] = ordered(value[key], depth + 1) end
  return out
end

--- A copy in which every object has one order of its keys.
function content.ordered(value) return ordered(value, 0) end

function content.text(text)
  return json.object { { "type", "text" }, { "text", text } }
end

--- "text", "image", "video", "audio" or "thinking".
function content.kind(part) return TYPES[part.type].kind end

local function read_part(part)
  if type(part) == "string" then return content.text(part) end
  local known = TYPES[part.type or "text"]
  if known.kind ~= "text" or part.type == "text" then return part end
  local out = json.object { { "type", "text" }, { "text", part[known.field] } }
  for key, value in pairs(part) do
    if key ~= "type" and key ~= "text" and key ~= known.field then out[key] = value end
  end
  return out
end

--- The content of a checked message: text, null, or a list of parts with one name for text.
function content.read(value)
  if value == nil or value == json.null then return json.null end
  if type(value) == "string" then return value end
  local out = json.array {}
  for i, part in ipairs(value) do
    if i % SOME == 0 then async.breathe() end
    out[i] = read_part(part)
  end
  return out
end

function content.is_empty(value)
  return value == nil or value == json.null or value == "" or type(value) == "table" and #value == 0
end

--- Is it only text?
function content.is_text(value)
  if type(value) ~= "table" then return true end
  for _, part in ipairs(value) do
    if content.kind(part) ~= "text" then return false end
  end
  return true
end

--- The text of content that is only text: parts become lines.
function content.flat(value)
  if type(value) ~= "table" then return value end
  local texts = {}
  for i, part in ipairs(value) do texts[i] = part.text end
  return table.concat(texts, "\n")
end

function content.parts(value)
  if type(value) == "table" then return value end
  if content.is_empty(value) then return json.array {} end
  return json.array { content.text(value) }
end

--- Does the part have nothing but its text?
local function bare(part)
  for key, value in pairs(part) do
    if key ~= "type" and key ~= "text" and value ~= json.null then return false end
  end
  return true
end

local function with_text(part, text)
  local out = json.object()
  for key, value in pairs(part) do out[key] = value end
  out.text = text
  return out
end

local GAP = "\n\n"

local Joined = {}
Joined.__index = Joined

--- Joins contents, texts with a blank line (or `gap`) between: add them in order, then call
--- value(). All parts stay, in order. Consecutive texts are joined once, at the end.
function content.joined(gap)
  return setmetatable({ gap = gap or GAP, texts = {} }, Joined)
end

-- parts: a list, once one was added; texts: those at its end, which may still grow; tail: the part
-- of the first of them, which stays as it is when nothing follows.

--- Makes the texts at the end a part: later text is not joined to it.
local function close_text(self, after)
  if #self.texts == 0 then return end
  local alone = #self.texts == 1 and after == "" and self.tail
  table.insert(self.parts, alone or content.text(table.concat(self.texts, self.gap) .. after))
  self.texts, self.tail = {}, nil
end

local function add_parts(self, list)
  local parts = self.parts or json.array {}
  self.parts = parts
  local first, last, from = list[1], list[#list], 1
  if content.kind(first) == "text" then
    if #self.texts > 0 and bare(first) then
      self.texts[#self.texts + 1], from = first.text, 2
    elseif #self.texts > 0 then
      close_text(self, self.gap)
    elseif #parts > 0 and content.kind(parts[#parts]) == "text" then
      parts[#parts] = with_text(parts[#parts], parts[#parts].text .. self.gap)
    end
  end
  if from > #list then return end
  close_text(self, "")
  table.move(list, from, #list, #parts + 1, parts)
  if content.kind(last) == "text" and bare(last) then
    self.texts[1], self.tail = last.text, last
    table.remove(parts)
  end
end

function Joined:add(value)
  if content.is_empty(value) then
    if self.nothing == nil then self.nothing = value end
  elseif type(value) ~= "string" then
    add_parts(self, value)
  elseif not self.parts or #self.texts > 0 then
    self.texts[#self.texts + 1] = value
  else
    add_parts(self, content.parts(value))
  end
  return self
end

--- The joined content; if all were empty, the first of them.
function Joined:value()
  if self.parts then
    close_text(self, "")
    return self.parts
  end
  if #self.texts == 0 then return self.nothing end
  return table.concat(self.texts, self.gap)
end

--- Two contents as one.
function content.join(a, b, gap) return content.joined(gap):add(a):add(b):value() end

--- The content with f applied to each of its texts.
function content.map(value, f)
  if type(value) == "string" then return f(value) end
  if type(value) ~= "table" then return value end
  local out = json.array {}
  for i, part in ipairs(value) do
    out[i] = content.kind(part) == "text" and with_text(part, f(part.text)) or part
  end
  return out
end

--- The text of a thinking part, which may itself consist of parts.
local function thought(part)
  local value = part.thinking or part.text or part.reasoning
  if type(value) == "string" then return value end
  local texts = {}
  for _, inner in ipairs(type(value) == "table" and value or {}) do
    if type(inner) == "table" and type(inner.text) == "string" then
      texts[#texts + 1] = inner.text
    end
  end
  return table.concat(texts, "\n")
end

--- The content without its thinking parts, and their text, nil when there are none.
function content.without_thinking(value)
  if type(value) ~= "table" then return value end
  local out, thoughts = json.array {}, {}
  for _, part in ipairs(value) do
    if content.kind(part) == "thinking" then
      thoughts[#thoughts + 1] = thought(part)
    else
      out[#out + 1] = part
    end
  end
  return out, #thoughts > 0 and table.concat(thoughts, GAP) or nil
end

--- The parts of normalized messages that are not text, in order.
function content.media(messages)
  local out = {}
  for _, message in ipairs(messages) do
    async.breathe()
    for _, part in ipairs(type(message.content) == "table" and message.content or {}) do
      if content.kind(part) ~= "text" then out[#out + 1] = part end
    end
  end
  return out
end

--- A part under the name that the template wants; raises when the template has no place for it.
local function place(part, can, at)
  local kind = content.kind(part)
  if kind == "text" then return part end
  local wanted = can[kind ~= "thinking" and kind]
  if not wanted then
    refuse(at, "is of type '%s', but the chat template has no place for %s", part.type, kind)
  end
  if wanted == "any" and part.type:sub(1, 6) ~= "input_" or wanted == part.type then return part end
  local out = json.object()
  for key, value in pairs(part) do out[key] = value end
  out.type = wanted == "any" and kind or wanted
  return out
end

--- The content in the form that the template takes. Without a template: only text becomes a string,
--- anything else stays a list.
function content.shape(message, can, at)
  local value = message.content
  if not can then return content.is_text(value) and content.flat(value) or value end
  local text = content.is_text(value)
  if can.strings and text and (not can.parts or message.role ~= "user") then
    return content.flat(value)
  end
  if not can.parts and not text then
    for i, part in ipairs(value) do place(part, {}, ("%s.content[%d]"):format(at, i - 1)) end
  end
  if type(value) ~= "table" then return can.strings and value or content.parts(value) end
  local out = json.array {}
  for i, part in ipairs(value) do
    if i % SOME == 0 then async.breathe() end
    out[i] = place(part, can, ("%s.content[%d]"):format(at, i - 1))
  end
  return out
end

return content
