-- tokens: POST /tokenize and /detokenize.
--
--   {"content": "…"}      -> {"tokens": […], "count": n, "max_model_len": n}     as the text stands: no tokens are added
--   {"prompt": "…"}       the same with the tokens that /v1/completions would add ("add_special": true or false says it)
--   {"messages": […]}     the prompt that /v1/chat/completions would make of it
--   {"tokens": […]}       -> {"content": "…", "prompt": "…"}
local async = require "lib.async"
local clean = require("lib.text").clean
local perigee = require "perigee"
local errors = require "api.errors"
local messages = require "api.messages"
local prompts = require "pipeline.prompt"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse

local tokens = {}

local TOKENIZE = schema.fields { {
  { "model", "text", to = 256 },
  { "content", "text" },
  { "prompt", "text" },
  { "messages", "list", from = 1 },
  { "tools", "list", to = 1024 },
  { "add_generation_prompt", "boolean" },
  { "continue_final_message", "boolean" },
  { "chat_template_kwargs", "object" },
  { "add_special", "boolean" },
  { "add_special_tokens", "boolean" },
  { "parse_special", "boolean" },
  { "return_token_strs", "boolean" },
} }

local DETOKENIZE = schema.fields { {
  { "model", "text", to = 256 },
  { "tokens", "ids", to = 262144 },
  { "skip_special_tokens", "boolean" },
} }

--- The model, which must have a tokenizer; raises.
local function find(app, name)
  local entry, err = app.models:find(name)
  if not entry then error(errors.new(err), 0) end
  if not entry.tok then refuse("model", "is '%s', which has no tokenizer", entry.name) end
  return entry
end

local function first_given(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if v ~= nil then return v end
  end
end

--- As many tokens as a body may have values: more than any model reads, and they can be counted all the same.
local function limit_of(app, entry, param)
  local most = math.floor(app.config.limits.values)
  return { tok = entry.tok, param = param, most = most, refusal = function(count)
    return errors.new { status = 413, param = param, code = "too_many_values",
      message = ("%s has %d tokens, at most %d are listed"):format(param, count, most) }
  end }
end

local function encode_text(app, entry, o)
  local add = first_given(o.add_special, o.add_special_tokens, o.prompt ~= nil)
  local limit = limit_of(app, entry, o.content and "content" or "prompt")
  return (prompts.encode(limit, o.content or o.prompt, { add_special = add, parse_special = o.parse_special }))
end

local function encode_messages(app, entry, o)
  messages.check(o.messages)
  messages.check_tools(o.tools)
  local gen = app.scripts:current()
  local req = { api = "chat", model = entry.name, generation = gen, ctx = {}, tag = {}, chat = { messages = o.messages,
    tools = o.tools and #o.tools > 0 and o.tools or nil, add_generation_prompt = o.add_generation_prompt,
    continue_final_message = o.continue_final_message, kwargs = o.chat_template_kwargs or {} } }
  return prompts.chat(req, entry, limit_of(app, entry, "messages")).ids
end

local function tokenize(app, body)
  local o = schema.read(body, TOKENIZE)
  if not (o.content or o.prompt or o.messages) then refuse("content", "is missing (it can be content, prompt or messages)") end
  local entry = find(app, o.model)
  local ids = o.messages and encode_messages(app, entry, o) or encode_text(app, entry, o)
  local answer = json.object { { "tokens", json.array(ids) }, { "count", #ids }, { "max_model_len", entry.context } }
  if o.return_token_strs then
    answer.token_strs = json.array()
    for i, id in ipairs(ids) do
      async.breathe()
      answer.token_strs[i] = clean(entry.tok:bytes(id))
    end
  end
  return answer
end

local function detokenize(app, body)
  local o = schema.read(body, DETOKENIZE)
  if not o.tokens then refuse("tokens", "is missing") end
  local entry = find(app, o.model)
  for i, id in ipairs(o.tokens) do
    if id >= entry.tok.size then
      refuse(("tokens[%d]"):format(i - 1), "is %d, the vocabulary ends at %d", id, entry.tok.size - 1)
    end
  end
  async.breathe()
  local text, why = entry.tok:decode(o.tokens, { skip_special = o.skip_special_tokens == true })
  if not text then refuse("tokens", "cannot be decoded: %s", tostring(why)) end
  return json.object { { "content", text }, { "prompt", text } }
end

local function handler(app, work)
  return function(request, response)
    local ok, answer = pcall(function() return work(app, schema.body(request, app.config.limits.values)) end)
    async.breathe()
    if ok then return response:send(200, { ["content-type"] = "application/json" }, json.encode(answer, { compact = true })) end
    if not errors.is(answer) then app.log:note("error", request.path .. ": " .. tostring(answer)) end
    app:refuse(response, errors.from(answer))
  end
end

function tokens.routes(app)
  app:route("POST", "/tokenize", handler(app, tokenize), {})
  app:route("POST", "/detokenize", handler(app, detokenize), {})
end

return tokens
