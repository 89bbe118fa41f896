-- face: a face (pipeline/init.lua) of the Messages API: one JSON object, or events.
--
-- An answer is a list of blocks: thinking, text, tool_use. In a stream each begins, grows and ends
-- before the next one begins. The signature of a thinking block is its text, sealed
-- (api/sealed.lua): clients send it back, also those that want the text itself left out.
local calls = require "chat.calls"
local dialect = require "api.dialect"
local encode = require "api.encode"
local errors = require "api.anthropic.errors"
local outputs = require "pipeline.output"
local perigee = require "perigee"
local sealed = require "api.sealed"
local json = perigee.json

local Face = {}
Face.__index = Face

local PING = 'event: ping\ndata: {"type": "ping"}\n\n'

-- ---- objects ------------------------------------------------------------------------------------

local function usage_object(usage)
  local out = json.object { { "input_tokens", usage.prompt_tokens - usage.cached_tokens },
    { "cache_creation_input_tokens", 0 }, { "cache_read_input_tokens", usage.cached_tokens },
    { "output_tokens", usage.completion_tokens } }
  if (usage.forced_tokens or 0) > 0 then out.forced_tokens = usage.forced_tokens end
  return out
end

local function message_object(req, o)
  return json.object { { "id", req.id }, { "type", "message" }, { "role", "assistant" },
    { "model", req.model }, { "content", json.array(o.content) },
    { "stop_reason", o.stop_reason or json.null },
    { "stop_sequence", o.stop_sequence or json.null }, { "usage", usage_object(o.usage) } }
end

local REASONS = { stop = "end_turn", cancel = "end_turn", tool_calls = "tool_use",
  length = "max_tokens", content_filter = "refusal" }

--- Why an answer ended: its stop_reason and stop_sequence.
local function reason_of(out)
  if out.finish == "stop" and out.stop then return "stop_sequence", out.stop end
  if out.finish == "length" and out.full then return "model_context_window_exceeded" end
  return REASONS[out.finish]
end

local function thinking_block(text, signed)
  return json.object { { "type", "thinking" }, { "thinking", text }, { "signature", signed } }
end

local function text_block(text) return json.object { { "type", "text" }, { "text", text } } end

local function call_block(call, input)
  return json.object { { "type", "tool_use" }, { "id", call.id }, { "name", call.name },
    { "input", input } }
end

--- The thoughts of an answer that the model ended without another word. Clients look for a text or
--- a call in every message, so such thoughts are its text as well. nil: it has words of its own.
local function unsaid(out, list)
  local thoughts = {}
  for i, d in ipairs(list) do
    if d.type ~= "reasoning" then return nil end
    thoughts[i] = d.text
  end
  return out.finish == "stop" and #thoughts > 0 and table.concat(thoughts) or nil
end

--- The blocks of a whole answer: those that a stream of it would have.
local function blocks_of(out, omits)
  local list, all = {}, outputs.deltas(out)
  for i, d in ipairs(all) do
    if d.type == "reasoning" then
      list[i] = thinking_block(omits and "" or d.text, sealed.close(d.text))
    elseif d.type == "text" then
      list[i] = text_block(d.text)
    else
      list[i] = call_block(d, calls.arguments_object(d.arguments))
    end
  end
  local thoughts = unsaid(out, all)
  if thoughts then list[#list + 1] = text_block(thoughts) end
  return list
end

-- ---- events -------------------------------------------------------------------------------------

--- Sends an event; `rest`: the JSON text of its fields after the type.
local function send(self, name, rest)
  self.events:event(('{"type":"%s"%s}'):format(name, rest), name)
end

local function send_delta(self, kind, text)
  send(self, "content_block_delta", (',"index":%d,"delta":{"type":%s%s}'):format(self.index, kind,
    json.encode(text)))
end

--- Ends the block that is open.
local function close(self)
  if not self.open then return end
  if self.open == "reasoning" then
    send_delta(self, '"signature_delta","signature":', sealed.close(table.concat(self.thoughts)))
  end
  send(self, "content_block_stop", (',"index":%d'):format(self.index))
  self.open, self.index = nil, self.index + 1
end

local function open(self, what, block)
  close(self)
  self.open, self.thoughts = what, {}
  self.said = self.said or what ~= "reasoning" -- a text or a call
  send(self, "content_block_start", (',"index":%d,"content_block":%s'):format(self.index,
    encode(block)))
end

local deltas = {}

function deltas.text(self, d)
  if self.open ~= "text" then open(self, "text", text_block "") end
  send_delta(self, '"text_delta","text":', d.text)
end

function deltas.reasoning(self, d)
  if self.open ~= "reasoning" then open(self, "reasoning", thinking_block("", "")) end
  self.thoughts[#self.thoughts + 1] = d.text
  if self.req.omits_thinking then return end
  send_delta(self, '"thinking_delta","thinking":', d.text)
end

function deltas.call(self, d)
  if d.name then open(self, d.index, call_block(d, json.object {})) end
  if self.open ~= d.index then
    error(("a part of call %d came after the end of its block"):format(d.index), 0)
  end
  send_delta(self, '"input_json_delta","partial_json":', d.arguments or "")
end

-- ---- the face -----------------------------------------------------------------------------------

--- The prompt's tokens are known by now, those of them that the cache has are not.
function Face:begin()
  if not self.streams then return end
  local req = self.req
  self.events = self.response:sse({ ["x-perigee-request"] = req.id }, PING)
  local usage = { prompt_tokens = req.prompt_tokens, cached_tokens = 0, completion_tokens = 0 }
  send(self, "message_start", ',"message":' .. encode(message_object(req, { usage = usage })))
  send(self, "ping", "")
end

function Face:delta(_, list)
  for _, d in ipairs(list) do deltas[d.type](self, d) end
end

function Face:finish() close(self) end

function Face:answer(outs, usage)
  local out = outs[1]
  local reason, text = reason_of(out)
  if not self.streams then
    return self.response:json(200, message_object(self.req, {
      content = blocks_of(out, self.req.omits_thinking), stop_reason = reason,
      stop_sequence = text, usage = usage }), { ["x-perigee-request"] = self.req.id })
  end
  local thoughts = not self.said and unsaid(out, outputs.deltas(out))
  if thoughts then deltas.text(self, { text = thoughts }) end
  close(self)
  send(self, "message_delta", (',"delta":%s,"usage":%s'):format(encode(json.object {
    { "stop_reason", reason }, { "stop_sequence", text or json.null } }),
    encode(usage_object(usage))))
  send(self, "message_stop", "")
  self.events:finish()
end

function Face:fail(err)
  if not self.streams then return dialect.send(self.response, err) end
  self.events:event(encode(errors.object(err)), "error")
  self.events:finish()
end

return function(req, response)
  return setmetatable({ req = req, response = response, streams = req.stream, index = 0 }, Face)
end
