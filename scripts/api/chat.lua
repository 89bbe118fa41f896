-- chat: POST /v1/chat/completions.
local async = require "lib.async"
local perigee = require "perigee"
local errors = require "api.errors"
local messages = require "api.messages"
local pipeline = require "pipeline"
local schema = require "api.schema"
local stream = require "api.stream"
local text = require "lib.text"
local common = require "api.common"
local json = perigee.json
local refuse = errors.refuse

local chat = {}

-- ---- reading -------------------------------------------------------------------------------------------------------

local FIELDS = schema.fields({ schema.sampling, schema.chat }, schema.refused)
local OURS = { "messages", "tools", "add_generation_prompt", "continue_final_message" }

--- Variables of the template: those of the client, and the two that have a place of their own.
local function template_variables(o)
  local given, out = o.chat.kwargs or {}, {}
  for key, value in pairs(given) do out[key] = value end
  for _, key in ipairs(OURS) do
    if out[key] ~= nil then refuse("chat_template_kwargs", "cannot hold '%s', which is a field of the request", key) end
  end
  if o.enable_thinking ~= nil then out.enable_thinking = o.enable_thinking end
  if o.reasoning_effort then
    out.reasoning_effort = o.reasoning_effort
    if o.reasoning_effort == "none" and out.enable_thinking == nil then out.enable_thinking = false end
  end
  return out
end

local function check_modalities(list)
  for i, m in ipairs(list or {}) do
    if m ~= "text" then refuse(("modalities[%d]"):format(i - 1), "is not 'text', which is all that this server writes") end
  end
end

--- The req of a body; raises what is wrong with it.
function chat.read(body, request)
  local o = schema.read(body, FIELDS)
  o.chat = o.chat or {}
  messages.check(o.chat.messages)
  check_modalities(o.modalities)
  o.chat.kwargs = template_variables(o)
  if o.chat.continue_final_message and body.add_generation_prompt == true then
    refuse("add_generation_prompt", "and continue_final_message cannot both be true")
  end
  if o.chat.continue_final_message then o.chat.add_generation_prompt = false end
  o.chat.tools, o.force_call = messages.choose(o.chat)
  if o.top_logprobs and o.logprobs ~= true then refuse("top_logprobs", "is %d, but logprobs is not true", o.top_logprobs) end
  local fields = common.read(o, body)
  if o.logprobs then fields.sampling.top_logprobs = o.top_logprobs or 0 end
  fields.id, fields.api, fields.chat, fields.force_call = "chatcmpl-", "chat", o.chat, o.force_call
  return common.attach(pipeline.request(fields, request), o)
end

-- ---- shapes --------------------------------------------------------------------------------------------------------

local function bytes_list(bytes)
  local list = json.array()
  for i = 1, #bytes do list[i] = bytes:byte(i) end
  return list
end

local function token_object(bytes, logprob)
  return json.object { { "token", text.clean(bytes) }, { "logprob", stream.logprob(logprob) },
    { "bytes", bytes_list(bytes) } }
end

--- {"content": [{token, logprob, bytes, top_logprobs}]}
local function logprobs_object(out, entries)
  if not entries then return json.null end
  local list = json.array()
  for i, entry in ipairs(entries) do
    local token = token_object(entry.bytes, entry.logprob)
    token.top_logprobs = json.array()
    for k, top in ipairs(entry.top or {}) do
      local bytes = out.tok and out.tok:bytes(top.id) or ""
      token.top_logprobs[k] = token_object(bytes, top.logprob)
    end
    list[i] = token
  end
  return json.object { { "content", list }, { "refusal", json.null } }
end

local function call_object(call)
  return json.object { { "id", call.id }, { "type", "function" },
    { "function", json.object { { "name", call.name }, { "arguments", call.arguments } } } }
end

local shape = {}
chat.shape = shape

function shape.chunk(req, choices)
  local chunk = stream.object(req, "chat.completion.chunk")
  chunk.choices = json.array(choices)
  if req.include_usage then chunk.usage = json.null end
  return chunk
end

local function choice_of(out, delta, entries)
  local logprobs = json.null
  if entries and #entries > 0 then logprobs = logprobs_object(out, entries) end
  return json.object { { "index", out.index }, { "delta", delta }, { "logprobs", logprobs }, { "finish_reason", json.null } }
end

function shape.head(_, out)
  return choice_of(out, json.object { { "role", "assistant" }, { "content", "" } })
end

local deltas = {
  content = function(d) return json.object { { "content", d.text } } end,
  reasoning = function(d) return json.object { { "reasoning_content", d.text } } end,
  call = function(d)
    local call = call_object { id = d.id, name = d.name, arguments = "" }
    return json.object { { "tool_calls", json.array { json.object { { "index", d.index - 1 }, { "id", call.id },
      { "type", call.type }, { "function", call["function"] } } } } }
  end,
  arguments = function(d)
    return json.object { { "tool_calls", json.array { json.object { { "index", d.index - 1 },
      { "function", json.object { { "arguments", d.text } } } } } } }
  end,
}

function shape.delta(_, out, o) return choice_of(out, deltas[o.delta.type](o.delta), o.logprobs) end

function shape.finish(req, out, o) return stream.ending(req, choice_of(out, json.object {}, o.logprobs), out) end

local function message_object(out)
  local message = json.object { { "role", "assistant" }, { "content", out.content or json.null }, { "refusal", json.null } }
  if out.reasoning then message.reasoning_content = out.reasoning end
  if #out.calls > 0 then
    message.tool_calls = json.array()
    for i, call in ipairs(out.calls) do message.tool_calls[i] = call_object(call) end
  elseif not out.content then
    message.content = ""
  end
  return message
end

function shape.answer(req, outs, usage)
  local answer = stream.object(req, "chat.completion")
  answer.choices = json.array()
  for i, out in ipairs(outs) do
    async.breathe()
    answer.choices[i] = stream.ending(req, json.object { { "index", out.index }, { "message", message_object(out) },
      { "logprobs", logprobs_object(out, req.sampling.top_logprobs and out.logprobs) } }, out)
  end
  answer.usage = stream.usage(usage)
  answer.timings = stream.timings(usage)
  return answer
end

return chat
