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
local freeform = require "api.responses.freeform"
local perigee = require "perigee"
local schema = require "api.schema"
local sealed = require "api.responses.sealed"
local json = perigee.json
local refuse, is_object, is_list, kind_of = errors.refuse, check.is_object, check.is_list,
  check.kind_of

local items = {}

local Reader = {}
Reader.__index = Reader

local NAME, ID = 256, 512 -- bytes of a function's name and of an id, at most

local function is_given(v) return v ~= nil and v ~= json.null end

local function string_of(item, key, at, o)
  if not is_given(item[key]) then refuse(at .. "." .. key, "is missing") end
  return schema.value("string", at .. "." .. key, item[key], o)
end

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
    return json.object { { "type", "text" }, { "text", string_of(part, key, at) } }
  end
end

local parts = { input_text = text_part "text", output_text = text_part "text",
  text = text_part "text", refusal = text_part "refusal" }

function parts.input_image(self, part, at)
  local url, path = part.image_url, at .. ".image_url"
  if not is_given(url) and is_given(part.file_id) then
    refuse(at .. ".file_id", "names a file, but this server keeps none; send image_url")
  end
  if is_object(url) then url = url.url end
  if type(url) ~= "string" and (type(url) ~= "userdata" or url == json.null) then
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
  if not is_list(given) then
    refuse(at, "must be a string or an array of parts, got %s", kind_of(given))
  end
  local list = json.array()
  count(self, #given)
  for i, part in ipairs(given) do
    async.breathe()
    local path = ("%s[%d]"):format(at, i - 1)
    schema.value("object", path, part)
    local kind = string_of(part, "type", path)
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
  local role = string_of(item, "role", at, { from = 1, to = 64 })
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
  local name = self.offer:name(string_of(item, "name", at, { from = 1, to = NAME }),
    is_given(item.namespace) and item.namespace or nil)
  local id = string_of(item, "call_id", at, { from = 1, to = ID })
  table.insert(turn_of(self).calls, json.object { { "id", id }, { "type", "function" },
    { "function", json.object { { "name", name }, { "arguments", arguments } } } })
end

function kinds.function_call(self, item, at)
  call(self, item, at, string_of(item, "arguments", at))
end

function kinds.custom_tool_call(self, item, at)
  call(self, item, at, freeform.arguments(string_of(item, "input", at)))
end

function kinds.function_call_output(self, item, at)
  put(self, json.object { { "role", "tool" },
    { "tool_call_id", string_of(item, "call_id", at, { from = 1, to = ID }) },
    { "content", content_of(self, item.output, at .. ".output") } })
end

kinds.custom_tool_call_output = kinds.function_call_output

--- The texts of a list of parts, such as a summary.
local function texts_of(item, key, at)
  if not is_given(item[key]) then return "" end
  at = ("%s.%s"):format(at, key)
  local texts = {}
  for i, part in ipairs(schema.value("array", at, item[key])) do
    local path = ("%s[%d]"):format(at, i - 1)
    texts[i] = string_of(schema.value("object", path, part), "text", path)
  end
  return table.concat(texts, "\n\n")
end

--- What encrypted_content holds, if it is ours. Anything else is as good as absent: agents move
--- between servers.
local function opened(item, at)
  if not is_given(item.encrypted_content) then return nil end
  return sealed.open(schema.value("string", at .. ".encrypted_content", item.encrypted_content))
end

function kinds.reasoning(self, item, at)
  local said, summary = texts_of(item, "content", at), texts_of(item, "summary", at)
  local thought = said ~= "" and said or opened(item, at) or summary
  if thought ~= "" then table.insert(turn_of(self).thoughts, thought) end
end

--- What a conversation was about before it was compacted (compact.lua).
function kinds.compaction(self, item, at)
  local summary = opened(item, at)
  if summary then put(self, json.object { { "role", "user" }, { "content", summary } }) end
end

--- An item that this server made and keeps.
function kinds.item_reference(self, item, at)
  local id = string_of(item, "id", at, { from = 1, to = ID })
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
    local kind = is_given(item.type) and string_of(item, "type", path) or "message"
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
