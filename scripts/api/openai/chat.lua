-- chat: POST /v1/chat/completions.
local common = require "api.openai.common"
local encode = require "api.encode"
local errors = require "lib.errors"
local fields_of = require "api.openai.fields"
local perigee = require "perigee"
local request = require "api.request"
local schema = require "api.schema"
local stream = require "api.openai.stream"
local text = require "lib.text"
local json = perigee.json
local refuse = errors.refuse

local chat = {}

-- ---- reading ------------------------------------------------------------------------------------

local function check_modalities(list)
  for i, m in ipairs(list or {}) do
    if m ~= "text" then
      refuse(("modalities[%d]"):format(i - 1), "must be 'text': this server generates nothing else")
    end
  end
end

--- The req of a body; raises what is wrong with it.
function chat.read(body, from)
  local o = schema.read(body, fields_of.chat)
  local given = o.chat or {}
  check_modalities(o.modalities)
  if given.continue_final_message and body.add_generation_prompt == true then
    refuse("add_generation_prompt", "and continue_final_message cannot both be true")
  end
  if o.top_logprobs and o.logprobs ~= true then
    refuse("top_logprobs", "is only for requests with logprobs = true")
  end
  local fields = common.read(o, body)
  if o.logprobs then fields.sampling.top_logprobs = o.top_logprobs or 0 end
  fields.id, fields.api, fields.chat = "chatcmpl-", "chat", given
  fields.thinking, fields.effort = o.enable_thinking, o.reasoning_effort
  fields.thinking_budget = o.thinking_token_budget
  fields.session = o.prompt_cache_key
  return request.chat(fields, from)
end

-- ---- shapes -------------------------------------------------------------------------------------

local function bytes_list(bytes)
  local list = json.array()
  for i = 1, #bytes do list[i] = bytes:byte(i) end
  return list
end

local function token_object(bytes, logprob)
  return json.object { { "token", text.clean(bytes) }, { "logprob", stream.logprob(logprob) },
    { "bytes", bytes_list(bytes) } }
end

--- {token, logprob, bytes, top_logprobs}
local function entry_object(out, entry)
  local token = token_object(entry.bytes, entry.logprob)
  token.top_logprobs = json.array()
  for k, top in ipairs(entry.top or {}) do
    local bytes = out.tok and out.tok:bytes(top.id) or ""
    token.top_logprobs[k] = token_object(bytes, top.logprob)
  end
  return token
end

--- {"content": [{token, logprob, bytes, top_logprobs}]}
local function logprobs_object(out, entries)
  if not entries then return json.null end
  local list = json.array()
  for i, entry in ipairs(entries) do list[i] = entry_object(out, entry) end
  return json.object { { "content", list }, { "refusal", json.null } }
end

local shape = { chunk = "chat.completion.chunk", whole = "chat.completion" }
chat.shape = shape

function chat.face(req, response) return stream.new(req, response, shape) end

local function choice_of(out, delta)
  return json.object { { "index", out.index }, { "delta", delta }, { "logprobs", json.null },
    { "finish_reason", json.null } }
end

function shape.head(_, out)
  return choice_of(out, json.object { { "role", "assistant" }, { "content", "" } })
end

local deltas = {
  text = function(d) return json.object { { "content", d.text } } end,
  reasoning = function(d) return json.object { { "reasoning_content", d.text } } end,
}

function deltas.call(d)
  local fn, call = json.object {}, json.object { { "index", d.index - 1 } }
  if d.name then
    call.id = d.id
    call.type = "function"
    fn.name = d.name
  end
  fn.arguments = d.arguments or ""
  call["function"] = fn
  return json.object { { "tool_calls", json.array { call } } }
end

function shape.delta(_, out, delta) return choice_of(out, deltas[delta.type](delta)) end

function shape.finish(_, out) return choice_of(out, json.object {}) end

local function message_object(out)
  local message = json.object { { "role", "assistant" }, { "content", out.content or json.null },
    { "refusal", json.null } }
  if out.reasoning then message.reasoning_content = out.reasoning end
  if #out.calls > 0 then
    message.tool_calls = json.array()
    for i, call in ipairs(out.calls) do
      message.tool_calls[i] = json.object { { "id", call.id }, { "type", "function" },
        { "function", json.object { { "name", call.name }, { "arguments", call.arguments } } } }
    end
  elseif not out.content then
    message.content = ""
  end
  return message
end

-- The texts around the logprob of a token, by tokenizer and id: with 20 alternatives per token they
-- are needed often. LIMIT bounds the memory.
local around, LIMIT = setmetatable({}, { __mode = "k" }), 20000

local function around_of(tok, id)
  local known = around[tok]
  if not known or known.count >= LIMIT then
    known = { count = 0, before = {}, after = {} }
    around[tok] = known
  end
  if not known.before[id] then
    local bytes = tok:bytes(id) or ""
    known.before[id] = '{"token":' .. encode(text.clean(bytes)) .. ',"logprob":'
    known.after[id] = ',"bytes":' .. encode(bytes_list(bytes))
    known.count = known.count + 1
  end
  return known.before[id], known.after[id]
end

--- The text of a token's logprobs, to be kept until the answer is complete: that of entry_object.
function shape.columns(_, out, entry)
  if not out.tok then return { encode(entry_object(out, entry)) } end
  local list, top = {}, entry.top or {}
  for k = 1, #top do
    local before, after = around_of(out.tok, top[k].id)
    list[k] = before .. json.encode(stream.logprob(top[k].logprob)) .. after .. "}"
  end
  local before, after = around_of(out.tok, entry.id)
  return { before .. json.encode(stream.logprob(entry.logprob)) .. after .. ',"top_logprobs":['
    .. table.concat(list, ",") .. "]}" }
end

--- The texts around and between those of `columns`, as shape.choice would have them.
function shape.logprobs_text(_, _, columns)
  return '{"content":[' .. table.concat(columns[1] or {}, ",") .. '],"refusal":null}'
end

function shape.choice(req, out, bare)
  local wanted = req.sampling.top_logprobs and not out.altered and not bare
  return json.object { { "index", out.index }, { "message", message_object(out) },
    { "logprobs", logprobs_object(out, wanted and out.logprobs) } }
end

return chat
