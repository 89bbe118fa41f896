-- answer: the deltas of an answer (pipeline/output.lua) as items and events of the Responses API.
--
--   local answer = Answer.new(req, send)      send(name, text): an event; nil: not streamed
--   answer:add(delta, tokens)                 tokens: logprobs.lua, of what came with it
--   answer:close(finish)                      the items are complete
--   answer.items
--   answer:encode(value)                      the JSON text of something with items of it
--
-- An item is open at a time; a delta of another kind closes it. A whole answer goes the same way,
-- without events, so it has the same items as a stream. Logprobs are texts from the start
-- (api/openai/stream.lua says why): in an item a mark stands for them, which `encode` replaces.
local encode = require "api.encode"
local freeform = require "api.responses.freeform"
local perigee = require "perigee"
local store = require "api.responses.store"
local sealed = require "api.sealed"
local json = perigee.json

local Answer = {}
Answer.__index = Answer

-- No client can know it, so no answer contains it.
local MARK = ("\1 %016x "):format(math.random(0))
local MARKED = '"' .. encode(MARK):sub(2, -2) .. '(%d+)"'

function Answer:encode(value)
  local text = encode(value)
  if #self.logprobs == 0 then return text end
  return (text:gsub(MARKED, function(n) return self.logprobs[math.tointeger(n)] end))
end

--- What stands for the logprobs of the open item in its part and its last events.
local function marked(self)
  local list = self.open.logprobs
  if #list == 0 then return json.array() end
  self.logprobs[#self.logprobs + 1] = "[" .. table.concat(list, ",") .. "]"
  return MARK .. #self.logprobs
end

-- ---- events -------------------------------------------------------------------------------------

--- Sends an event: a list of { key, value }, between its type and its number.
function Answer:event(kind, fields)
  if not self.send then return end
  local event = json.object { { "type", "response." .. kind } }
  for _, field in ipairs(fields) do event[field[1]] = field[2] end
  event.sequence_number = self.number
  self.number = self.number + 1
  self.send("response." .. kind, self:encode(event))
end

--- An event about the open item, or about its only part.
local function item_event(self, kind, fields)
  local open = self.open
  local all = { { "item_id", open.item.id }, { "output_index", open.index } }
  if open.kind.part then all[#all + 1] = { open.kind.part, 0 } end
  table.move(fields, 1, #fields, #all + 1, all)
  self:event(kind, all)
end

--- A piece of the open item's text. Only the piece and the number differ from event to event, so
--- what is around the piece is encoded once per item. logprobs: texts.
local function delta_event(self, piece, logprobs)
  local open = self.open
  open.texts[#open.texts + 1] = piece
  table.move(logprobs or {}, 1, #(logprobs or {}), #open.logprobs + 1, open.logprobs)
  if not self.send or piece == "" then return end
  if not open.around then
    local name = "response." .. open.kind.delta
    local head = json.object { { "type", name }, { "item_id", open.item.id },
      { "output_index", open.index } }
    if open.kind.part then head[open.kind.part] = 0 end
    open.around = encode(head):sub(1, -2) .. ',"delta":'
    open.event = name
  end
  local number, after = self.number, ""
  if open.kind.logprobs then
    after = ',"logprobs":[' .. table.concat(logprobs or {}, ",") .. "]"
  end
  self.number = number + 1
  self.send(open.event, ('%s%s%s,"sequence_number":%d}'):format(open.around, json.encode(piece),
    after, number))
end

-- ---- kinds of items -----------------------------------------------------------------------------
-- part: the name of the index of its part, if it has parts; first(self) and last(self, text): the
-- events after it was added and before it is done.

local kinds = {}

local function new_id(self, prefix) return store.item_id(prefix, self.id, #self.items) end

local function summary(text)
  return json.object { { "type", "summary_text" }, { "text", text } }
end

kinds.reasoning = { part = "summary_index", delta = "reasoning_summary_text.delta",
  item = function(self)
    return json.object { { "id", new_id(self, "rs_") }, { "type", "reasoning" },
      { "summary", json.array() } }
  end,
  first = function(self)
    item_event(self, "reasoning_summary_part.added", { { "part", summary "" } })
  end,
  last = function(self, text)
    item_event(self, "reasoning_summary_text.done", { { "text", text } })
    item_event(self, "reasoning_summary_part.done", { { "part", summary(text) } })
    local item = self.open.item
    item.summary = json.array { summary(text) }
    if self.req.seals then item.encrypted_content = sealed.close(text) end
  end }

local function said(text, logprobs)
  return json.object { { "type", "output_text" }, { "text", text },
    { "annotations", json.array() }, { "logprobs", logprobs } }
end

kinds.text = { part = "content_index", delta = "output_text.delta", logprobs = true,
  item = function(self)
    return json.object { { "id", new_id(self, "msg_") }, { "type", "message" },
      { "status", "in_progress" }, { "role", "assistant" }, { "content", json.array() } }
  end,
  first = function(self)
    item_event(self, "content_part.added", { { "part", said("", json.array()) } })
  end,
  last = function(self, text)
    local logprobs = marked(self)
    item_event(self, "output_text.done", { { "text", text }, { "logprobs", logprobs } })
    item_event(self, "content_part.done", { { "part", said(text, logprobs) } })
    self.open.item.content = json.array { said(text, logprobs) }
  end }

--- The item of a call. key: where its text is.
local function call_item(prefix, kind, key)
  return function(self, delta)
    local given = self.req.offer.of[delta.name] or { name = delta.name }
    local item = json.object { { "id", new_id(self, prefix) }, { "type", kind },
      { "status", "in_progress" }, { "call_id", delta.id }, { "name", given.name }, { key, "" } }
    if given.namespace then item.namespace = given.namespace end
    return item
  end
end

local function nothing() end

kinds.call = { delta = "function_call_arguments.delta", first = nothing,
  item = call_item("fc_", "function_call", "arguments"),
  last = function(self, text)
    item_event(self, "function_call_arguments.done",
      { { "arguments", text }, { "name", self.open.item.name } })
    self.open.item.arguments = text
  end }

kinds.custom = { delta = "custom_tool_call_input.delta", first = nothing,
  item = call_item("ctc_", "custom_tool_call", "input"),
  last = function(self)
    local rest, text = self.open.freeform:finish()
    delta_event(self, rest)
    item_event(self, "custom_tool_call_input.done", { { "input", text } })
    self.open.item.input = text
  end }

-- ---- items --------------------------------------------------------------------------------------

local function close_item(self, status)
  local open = self.open
  if not open then return end
  open.kind.last(self, table.concat(open.texts))
  if open.item.status then open.item.status = status end
  self.items[#self.items + 1] = open.item
  self:event("output_item.done", { { "output_index", open.index }, { "item", open.item } })
  self.open = nil
end

local function open_item(self, kind, delta)
  close_item(self, "completed")
  self.open = { kind = kinds[kind], item = kinds[kind].item(self, delta), index = #self.items,
    texts = {}, logprobs = {}, call = delta.index,
    freeform = kind == "custom" and freeform.new() or nil }
  self:event("output_item.added",
    { { "output_index", self.open.index }, { "item", self.open.item } })
  kinds[kind].first(self)
end

--- The kind of item that a delta belongs to.
local function kind_of(self, delta)
  if delta.type ~= "call" then return delta.type end
  local given = self.req.offer.of[delta.name]
  return given and given.custom and "custom" or "call"
end

--- Adds a delta of the answer.
function Answer:add(delta, tokens)
  local open = self.open
  if delta.type == "call" then
    if delta.name then
      open_item(self, kind_of(self, delta), delta)
    elseif not open or open.call ~= delta.index then
      return -- a hook sent more of a call that is over
    end
    if tokens then tokens:take "" end
    local piece = delta.arguments or ""
    if self.open.freeform then piece = self.open.freeform:feed(piece) end
    return delta_event(self, piece)
  end
  local first = not open or open.kind ~= kinds[delta.type]
  if first then open_item(self, delta.type, delta) end
  local logprobs = tokens and tokens:take(delta.text, first)
  delta_event(self, delta.text, delta.type == "text" and logprobs or nil)
end

local WHOLE = { stop = true, tool_calls = true }

--- Is the last call complete?
local function is_whole(self, out)
  for _, call in ipairs(out.calls or {}) do
    if call.id == self.open.item.call_id then return true end
  end
  return false
end

--- The answer is complete. One that says nothing and calls nothing has an empty message: clients
--- look for one.
function Answer:close(out)
  local whole = WHOLE[out.finish] or false
  if self.open and self.open.call then whole = is_whole(self, out) end
  close_item(self, whole and "completed" or "incomplete")
  local last = self.items[#self.items]
  if WHOLE[out.finish] and (not last or last.type == "reasoning") then
    open_item(self, "text", { type = "text" })
    close_item(self, "completed")
  end
end

function Answer.new(req, send)
  return setmetatable({ req = req, id = req.id, send = send, items = {}, number = 0,
    logprobs = {} }, Answer)
end

return Answer
