-- tokens: POST /tokenize and /detokenize.
--
--   {"content": "…"}      -> {"tokens": […], "count": n, "max_model_len": n}; no tokens are added
--   {"prompt": "…"}       the same with the tokens that /v1/completions adds, unless "add_special"
--                         says otherwise
--   {"messages": […]}     the prompt that /v1/chat/completions makes of it
--   {"tokens": […]}       -> {"content": "…", "prompt": "…"}
local answer = require "api.answer"
local async = require "lib.async"
local clean = require("lib.text").clean
local count = require "api.count"
local encode = require "api.encode"
local errors = require "lib.errors"
local perigee = require "perigee"
local prompts = require "pipeline.prompt"
local request = require "api.request"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse

local tokens = {}

local TOKENIZE = schema.fields { {
  { "model", "string", to = 256 },
  { "content", "string" },
  { "prompt", "string" },
  { "messages", "array", from = 1 },
  { "tools", "array", to = 1024 },
  { "add_generation_prompt", "boolean" },
  { "continue_final_message", "boolean" },
  { "chat_template_kwargs", "object" },
  { "add_special", "boolean" },
  { "add_special_tokens", "boolean" },
  { "parse_special", "boolean" },
  { "return_token_strs", "boolean" },
} }

local DETOKENIZE = schema.fields { {
  { "model", "string", to = 256 },
  { "tokens", "ids", to = 262144 },
  { "skip_special_tokens", "boolean" },
} }

local function first_given(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if v ~= nil then return v end
  end
end

local function encode_text(app, entry, o, client)
  local add = first_given(o.add_special, o.add_special_tokens, o.prompt ~= nil)
  local limit = count.limit(app, entry, o.content and "content" or "prompt", client)
  return (prompts.encode(limit, o.content or o.prompt,
    { add_special = add, parse_special = o.parse_special }))
end

local function encode_messages(app, entry, o, client)
  local req = request.chat({ id = "tokenize-", api = "chat", sampling = {}, chat = {
    messages = o.messages, tools = o.tools, add_generation_prompt = o.add_generation_prompt,
    continue_final_message = o.continue_final_message, kwargs = o.chat_template_kwargs } }, client)
  return count.chat(app, entry, req, client)
end

local SOME = 4096 -- entries that are written at a time: a few milliseconds

--- Adds the texts of a list of n entries, write(from, to) at a time, with commas between.
local function put_list(parts, n, write)
  for from = 1, n, SOME do
    async.breathe()
    if from > 1 then parts[#parts + 1] = "," end
    parts[#parts + 1] = write(from, math.min(from + SOME - 1, n))
  end
  return parts
end

--- The answer, as a list of texts.
local function tokenize(app, body, client)
  local o = schema.read(body, TOKENIZE)
  if not (o.content or o.prompt or o.messages) then
    refuse("content", "is missing; send content, prompt or messages")
  end
  local entry = count.model(app, o.model)
  local ids = (o.messages and encode_messages or encode_text)(app, entry, o, client)
  local parts = put_list({ '{"tokens":[' }, #ids, function(from, to)
    return table.concat(ids, ",", from, to)
  end)
  parts[#parts + 1] = ('],"count":%d,"max_model_len":%d'):format(#ids, entry.context)
  if o.return_token_strs then
    parts[#parts + 1] = ',"token_strs":['
    put_list(parts, #ids, function(from, to)
      local texts = json.array()
      for i = from, to do texts[#texts + 1] = clean(entry.tok:bytes(ids[i])) end
      return encode(texts):sub(2, -2)
    end)
    parts[#parts + 1] = "]"
  end
  parts[#parts + 1] = "}"
  return parts
end

local function detokenize(app, body)
  local o = schema.read(body, DETOKENIZE)
  if not o.tokens then refuse("tokens", "is missing") end
  local entry = count.model(app, o.model)
  for i, id in ipairs(o.tokens) do
    if i % SOME == 0 then async.breathe() end
    if id >= entry.tok.size then
      refuse(("tokens[%d]"):format(i - 1),
        "must be at most %d, the last id of the vocabulary, got %d", entry.tok.size - 1, id)
    end
  end
  async.breathe()
  local text, why = entry.tok:decode(o.tokens, { skip_special = o.skip_special_tokens == true })
  if not text then refuse("tokens", "cannot be decoded: %s", tostring(why)) end
  return { encode(json.object { { "content", text }, { "prompt", text } }) }
end

function tokens.routes(app)
  app:route("POST", "/tokenize", answer(app, tokenize), { cost = true })
  app:route("POST", "/detokenize", answer(app, detokenize), { cost = true })
end

return tokens
