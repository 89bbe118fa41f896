-- items: the items of a request as the messages of a conversation (chat/check.lua).
--
-- What an assistant made lies in several items here, one after the other: its reasoning, its text,
-- its calls. Together they are one message. Kinds of items that this server does not know are left
-- out: agents send what other servers made.
--
-- Every refusal names the place in the request, such as input[2].content[0].image_url.
local async = require "lib.async"
local check = require "chat.check"
local content = require "chat.content"
local errors = require "lib.errors"
local field = require "api.responses.field"
local freeform = require "api.responses.freeform"
local perigee = require "perigee"
local schema = require "api.schema"
local sealed = require "api.sealed"
local json = perigee.json
local refuse, kind_of = errors.refuse, check.kind_of
local is_given, needed = field.is_given, field.needed

local items = {}

local Reader = {}
Reader.__index = Reader

-- Bytes of a function's name, as chat/check.lua has it, and of an id.
local NAME, ID = { from = 1, to = 256 }, { from = 1, to = 512 }

--- Counts what the conversation has so far: loops go over all of it at once.
local function count(self, n)
  self.count = self.count + n
  if self.count > check.MOST then
    refuse("input", "has more than %d items, parts and calls", check.MOST)
  end
end

-- ---- parts --------------------------------------------------------------------------------------

local function text_part(key)
  return function(_, part, at)
    return json.object { { "type", "text" }, { "text", needed(part, key, at) } }
  end
end

local parts = { input_text = text_part "text", output_text = text_part "text",
  text = text_part "text", refusal = text_part "refusal" }

function parts.input_image(self, part, at)
  local url, path = part.image_url, at .. ".image_url"
  if not is_given(url) and is_given(part.file_id) then
    refuse(at .. ".file_id", "names a file, but this server keeps none; send image_url")
  end
  if check.is_object(url) then url = url.url end
  if type(url) ~= "string" and not check.is_long(url) then
    refuse(path, "must be a URL, got %s", kind_of(url))
  end
  local out = json.object { { "type", "image_url" },
    { "image_url", json.object { { "url", url } } } }
  self.places[out] = path
  return out
end

--- Content of an item: text, or a list of parts.
local function content_of(self, given, at)
  if type(given) == "string" then return given end
  if not is_given(given) then refuse(at, "is missing") end
  if not check.is_list(given) then
    refuse(at, "must be a string or an array of parts, got %s", kind_of(given))
  end
  local list = json.array()
  count(self, #given)
  for i, part in ipairs(given) do
    async.breathe()
    local path = ("%s[%d]"):format(at, i - 1)
    schema.value("object", path, part)
    local kind = needed(part, "type", path)
    if not parts[kind] then
      refuse(path .. ".type", kind == "input_file" and "is '%s', but this server reads no files"
        or "must be a known type of part, got '%s'", kind:sub(1, 64))
    end
    list[i] = parts[kind](self, part, path)
  end
  return list
end

-- ---- turns --------------------------------------------------------------------------------------

--- The assistant's message that is being put together.
local function turn_of(self)
  self.turn = self.turn or { said = {}, thoughts = {}, calls = json.array() }
  return self.turn
end

--- All contents of a turn as one.
local function joined(said)
  local all = content.joined()
  for _, one in ipairs(said) do all:add(one) end
  local value = all:value()
  return value == nil and json.null or value
end

--- The assistant's turn is over. Thoughts that led to nothing are left out.
local function close(self)
  local turn = self.turn
  self.turn = nil
  if not turn or #turn.said + #turn.calls == 0 then return end
  local message = json.object { { "role", "assistant" }, { "content", joined(turn.said) } }
  if #turn.thoughts > 0 then message.reasoning_content = table.concat(turn.thoughts, "\n\n") end
  if #turn.calls > 0 then message.tool_calls = turn.calls end
  self.messages[#self.messages + 1] = message
end

local function put(self, message)
  close(self)
  self.messages[#self.messages + 1] = message
end

-- ---- items --------------------------------------------------------------------------------------

local ROLES = { user = true, assistant = true, system = true, developer = true }

local kinds = {}

function kinds.message(self, item, at)
  local role = needed(item, "role", at, { from = 1, to = 64 })
  if not ROLES[role] then
    refuse(at .. ".role", "must be one of user, assistant, system and developer, got '%s'", role)
  end
  local said = content_of(self, item.content, at .. ".content")
  if role ~= "assistant" then
    return put(self, json.object { { "role", role }, { "content", said } })
  end
  table.insert(turn_of(self).said, said)
end

local function call(self, item, at, arguments)
  local name = self.offer:name(needed(item, "name", at, NAME),
    is_given(item.namespace) and item.namespace or nil)
  local id = needed(item, "call_id", at, ID)
  table.insert(turn_of(self).calls, json.object { { "id", id }, { "type", "function" },
    { "function", json.object { { "name", name }, { "arguments", arguments } } } })
end

function kinds.function_call(self, item, at)
  call(self, item, at, needed(item, "arguments", at))
end

function kinds.custom_tool_call(self, item, at)
  call(self, item, at, freeform.arguments(needed(item, "input", at)))
end

function kinds.function_call_output(self, item, at)
  put(self, json.object { { "role", "tool" },
    { "tool_call_id", needed(item, "call_id", at, ID) },
    { "content", content_of(self, item.output, at .. ".output") } })
end

kinds.custom_tool_call_output = kinds.function_call_output

--- The texts of a list of parts, such as a summary.
local function texts_of(item, key, at)
  local texts = {}
  for i, part in ipairs(field.optional(item, key, at, "array") or {}) do
    local path = ("%s.%s[%d]"):format(at, key, i - 1)
    texts[i] = needed(schema.value("object", path, part), "text", path)
  end
  return table.concat(texts, "\n\n")
end

--- What encrypted_content holds, if it is ours. Anything else is as good as absent: agents move
--- between servers.
local function opened(item, at)
  local text = field.optional(item, "encrypted_content", at, "string")
  return text and sealed.open(text)
end

function kinds.reasoning(self, item, at)
  local said, summary = texts_of(item, "content", at), texts_of(item, "summary", at)
  local thought = said ~= "" and said or opened(item, at) or summary
  if thought ~= "" then table.insert(turn_of(self).thoughts, thought) end
end

--- What a conversation was about before it was compacted (compact.lua). It cannot be done without,
--- unless another server has it.
function kinds.compaction(self, item, at)
  local summary, given = opened(item, at), item.encrypted_content
  if not summary and is_given(given) and sealed.is_ours(given) then
    refuse(at .. ".encrypted_content", "was sealed by another server, or by this one before it was "
      .. "started again without a folder for responses: compact the conversation once more")
  end
  if summary then put(self, json.object { { "role", "user" }, { "content", summary } }) end
end

--- An item that this server made and keeps.
function kinds.item_reference(self, item, at)
  local id = needed(item, "id", at, ID)
  local known = self.find and self.find(id)
  if known then return kinds[known.type] and kinds[known.type](self, known, at) end
  if id:find "^rs_" then return end -- it can be done without
  error(errors.new { status = 404, code = "item_not_found", field = at .. ".id",
    message = ("Item with id '%s' not found."):format(id) }, 0)
end

-- ---- all ----------------------------------------------------------------------------------------

--- Reads a list of items that were sent at this place.
function Reader:add(list, at)
  count(self, #list)
  for i, item in ipairs(list) do
    async.breathe()
    local path = at:format(i - 1)
    schema.value("object", path, item)
    local kind = schema.value("string", path .. ".type", field.kind(item))
    if kinds[kind] then kinds[kind](self, item, path) end
  end
  return self
end

--- The messages of everything that was added.
function Reader:finish()
  close(self)
  return self.messages
end

--- o: offer (tools.lua), find (the item of an id, or nil). Reader.places: pictures and their paths.
function items.reader(o)
  return setmetatable({ offer = o.offer, find = o.find, messages = json.array(), places = {},
    count = 0 }, Reader)
end

return items
