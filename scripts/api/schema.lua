-- schema: what a request may say. One table of fields: what each is, which values it takes, and where it goes.
--
--   local body = schema.body(request, most)             -- the JSON object that was sent
--   local out = schema.read(body, schema.fields { schema.sampling, schema.chat })
--   out.sampling.temperature, out.chat.messages, out.stream …
--
-- A field is { name, kind, from, to, into =, as = }: `kind` names a reader below, `from` and `to` bound it (`open`: from is
-- not itself allowed), `into` is the part of the result it goes to, `as` its name there. null is the same as not given.
-- Fields that nobody knows are left alone, because clients send what other servers understand; what would silently change
-- the answer if it were left alone is refused (schema.refused). Every refusal is a 400 that names the field. Requests are read
-- inside a task: with a large one the loop may turn.
local async = require "lib.async"
local perigee = require "perigee"
local errors = require "api.errors"
local json = perigee.json
local refuse = errors.refuse

local schema = {}

-- ---- kinds ---------------------------------------------------------------------------------------------------------

local function is_object(v) return type(v) == "table" and json.is_object(v) end
local function is_list(v) return type(v) == "table" and json.is_array(v) end

--- What a value is, in JSON's words.
local function kind_of(v)
  if v == json.null then return "null" end
  if json.digits(v) then return "an integer beyond 64 bits" end
  if is_list(v) then return "a list" end
  local t = type(v)
  return t == "table" and "an object" or t == "string" and "text" or math.type(v) == "integer" and "an integer" or "a " .. t
end
schema.kind_of, schema.is_object, schema.is_list = kind_of, is_object, is_list

local function bounds(f)
  local low = f.from and (f.open and "above %s" or f.to and "at least %s" or "%s or more"):format(f.from)
  local high = f.to and ("at most %s"):format(f.to)
  return low and high and low .. " and " .. high or low or high
end

local function within(name, v, f)
  local low = not f.from or (f.open and v > f.from or not f.open and v >= f.from)
  if v ~= v or not (low and (not f.to or v <= f.to)) then
    refuse(name, "is %s, it must be %s", tostring(v), bounds(f) or "a number")
  end
  return v
end

local kinds = {}

function kinds.number(name, v, f)
  if type(v) ~= "number" then refuse(name, "must be a number, not %s", kind_of(v)) end
  if v == math.huge or v == -math.huge then refuse(name, "is %s, it must be finite", tostring(v)) end
  return within(name, v, f)
end

function kinds.integer(name, v, f)
  local n = type(v) == "number" and math.tointeger(v)
  if not n then refuse(name, "must be an integer, not %s", type(v) == "number" and tostring(v) or kind_of(v)) end
  return within(name, n, f)
end

function kinds.boolean(name, v)
  if type(v) ~= "boolean" then refuse(name, "must be true or false, not %s", kind_of(v)) end
  return v
end

function kinds.text(name, v, f)
  if type(v) ~= "string" then refuse(name, "must be text, not %s", kind_of(v)) end
  if #v < (f.from or 0) then refuse(name, "is empty") end
  if f.to and #v > f.to then refuse(name, "has %d bytes, it may have %d", #v, f.to) end
  return v
end

function kinds.object(name, v)
  if not is_object(v) then refuse(name, "must be an object, not %s", kind_of(v)) end
  return v
end

function kinds.list(name, v, f)
  if not is_list(v) then refuse(name, "must be a list, not %s", kind_of(v)) end
  if f.from and #v < f.from then refuse(name, "is empty") end
  if f.to and #v > f.to then refuse(name, "has %d entries, it may have %d", #v, f.to) end
  return v
end

--- One text, or a list of them; gives a list.
function kinds.texts(name, v, f)
  if type(v) == "string" then v = json.array { v } end
  kinds.list(name, v, { to = f.to })
  local out = {}
  for i, s in ipairs(v) do out[i] = kinds.text(("%s[%d]"):format(name, i - 1), s, { from = 1, to = f.bytes }) end
  return out
end

local ID = { from = 0, to = 0x7fffffff }

function kinds.ids(name, v, f)
  kinds.list(name, v, f)
  local out = {}
  for i, id in ipairs(v) do
    local sound = math.type(id) == "integer" and id >= ID.from and id <= ID.to -- as nearly all are: no name is made for those
    out[i] = sound and id or kinds.integer(("%s[%d]"):format(name, i - 1), id, ID)
  end
  return out
end

--- {"1234": -5, …}: JSON's keys are text, a sampler's are ids.
function kinds.bias(name, v, f)
  kinds.object(name, v)
  local out, n = {}, 0
  for key, bias in pairs(v) do
    local id = #key <= 7 and key:find "^%d+$" and math.tointeger(tonumber(key)) -- numbers of any size could be made to collide
    if not id then refuse(name, "has the key '%s', which is no token id", key:sub(1, 64)) end
    out[id] = kinds.number(("%s[%s]"):format(name, key), bias, { from = -f.to, to = f.to })
    n = n + 1
    if n > f.most then refuse(name, "has more than %d entries", f.most) end
  end
  return out
end

--- Words that must not come: texts, or lists of ids; `all`: bytes and ids of all of them.
function kinds.words(name, v, f)
  kinds.list(name, v, f)
  local out, size = {}, 0
  for i, word in ipairs(v) do
    local at = ("%s[%d]"):format(name, i - 1)
    local kind = type(word) == "string" and "text" or "ids"
    out[i] = kinds[kind](at, word, { from = 1, to = 1024 })
    size = size + #out[i]
  end
  if size > f.all then refuse(name, "has %d bytes and ids, it may have %d", size, f.all) end
  return out
end

--- Whatever it is.
function kinds.any(_, v) return v end

-- ---- reading -------------------------------------------------------------------------------------------------------

--- Checks one value; for fields inside of others.
function schema.value(kind, name, v, options)
  return kinds[kind](name, v, options or {})
end

local function put(out, f, v)
  local part = out
  if f.into then
    part = out[f.into] or {}
    out[f.into] = part
  end
  part[f.as or f[1]] = v
end

--- Reads the fields of a body into a table; raises an error (errors.lua) at the first that is wrong.
function schema.read(body, fields)
  local out = {}
  for _, f in ipairs(fields) do
    local v = body[f[1]]
    if v ~= nil and v ~= json.null then
      put(out, f, kinds[f[2]](f[1], v, f))
      async.breathe()
    end
  end
  for name, why in pairs(fields.refused or {}) do
    local v = body[name]
    if v ~= nil and v ~= json.null and v ~= false then refuse(name, "%s", why) end
  end
  return out
end

--- Several lists of fields as one.
function schema.fields(lists, refused)
  local out = { refused = refused }
  for _, list in ipairs(lists) do table.move(list, 1, #list, #out + 1, out) end
  return out
end

local LARGE = 1 << 20

--- The JSON object of a request's body, which may have so many values (json.decode); raises.
function schema.body(request, most)
  local text, encoding = request.body, request:header "content-encoding"
  if encoding and encoding:lower() ~= "identity" then
    error(errors.new { status = 415,
      message = ("content-encoding is '%s', and bodies are read as they are"):format(encoding:sub(1, 64)) }, 0)
  end
  if not text or text == "" then
    error(errors.new { message = "the request has no body, it must be a JSON object" }, 0)
  end
  if #text > LARGE then async.sleep(0) end -- to have put it together took its time
  local body, why = json.decode(text, { max_values = most, digits = true }) -- a message's numbers go to the prompt as they are
  if why and why.code == "limit" then
    error(errors.new { status = 413, message = "the body is too large: " .. why.message, code = "too_many_values" }, 0)
  end
  if body == nil then error(errors.new { message = "the body is no JSON: " .. tostring(why) }, 0) end
  if not is_object(body) then
    error(errors.new { message = ("the body must be a JSON object, not %s"):format(kind_of(body)) }, 0)
  end
  async.breathe()
  return body
end

-- ---- fields --------------------------------------------------------------------------------------------------------

local INT = 0x7fffffff

--- What the generator takes of every API (engine/request.lua).
schema.sampling = {
  { "temperature", "number", from = 0, into = "sampling" },
  { "top_p", "number", from = 0, open = true, to = 1, into = "sampling" },
  { "top_k", "integer", from = -1, to = INT, into = "sampling" },
  { "min_p", "number", from = 0, to = 1, into = "sampling" },
  { "typical_p", "number", from = 0, open = true, to = 1, into = "sampling" },
  { "xtc_probability", "number", from = 0, to = 1, into = "sampling" },
  { "xtc_threshold", "number", from = 0, to = 1, into = "sampling" },
  { "repetition_penalty", "number", from = 0, open = true, to = 1e6, into = "sampling" },
  { "presence_penalty", "number", from = -2, to = 2, into = "sampling" },
  { "frequency_penalty", "number", from = -2, to = 2, into = "sampling" },
  { "penalty_window", "integer", from = 0, to = INT, into = "sampling" },
  { "min_tokens", "integer", from = 0, to = INT, into = "sampling" },
  { "seed", "integer", into = "sampling" },
  { "stop", "texts", to = 64, bytes = 1024, into = "sampling" },
  { "stop_token_ids", "ids", to = 1024, into = "sampling" },
  { "logit_bias", "bias", to = 100, most = 10000, into = "sampling" },
  { "bad_words", "words", to = 1024, all = 32768, into = "sampling" },
  { "banned", "ids", to = 100000, into = "sampling" },
  { "ignore_eos", "boolean", into = "sampling" },
  { "skip_special_tokens", "boolean", into = "sampling", as = "skip_special" },
  { "n", "integer", from = 1, to = 128 },
  { "stream", "boolean" },
  { "stream_options", "object" },
  { "model", "text", to = 256 },
  { "user", "text", to = 1024 },
  { "metadata", "object" },
  { "store", "boolean" },
  { "response_format", "object" },
  { "return_token_ids", "boolean" },
  { "perigee", "object" },
}

schema.chat = {
  { "messages", "list", from = 1, into = "chat" },
  { "tools", "list", to = 1024, into = "chat" },
  { "tool_choice", "any", into = "chat" },
  { "parallel_tool_calls", "boolean", into = "chat" },
  { "add_generation_prompt", "boolean", into = "chat" },
  { "continue_final_message", "boolean", into = "chat" },
  { "chat_template_kwargs", "object", into = "chat", as = "kwargs" },
  { "enable_thinking", "boolean" },
  { "reasoning_effort", "text", from = 1, to = 64 },
  { "max_tokens", "integer", from = 1, to = INT },
  { "max_completion_tokens", "integer", from = 1, to = INT },
  { "logprobs", "boolean" },
  { "top_logprobs", "integer", from = 0, to = 20 },
  { "modalities", "list" },
}

schema.completions = {
  { "prompt", "any" },
  { "max_tokens", "integer", from = 0, to = INT },
  { "max_completion_tokens", "integer", from = 0, to = INT },
  { "logprobs", "integer", from = 0, to = 20 },
  { "echo", "boolean" },
  { "best_of", "integer", from = 1, to = 128 },
  { "add_special_tokens", "boolean" },
}

local LATER = "asks for constrained output, which this server does not have yet"
local NONE = "is not something that this server can do"

--- What would change the answer, and is not there.
schema.refused = {
  guided_json = LATER, guided_regex = LATER, guided_choice = LATER, guided_grammar = LATER, structured_outputs = LATER,
  grammar = LATER, json_schema = LATER, use_beam_search = NONE, prompt_logprobs = NONE, truncate_prompt_tokens = NONE,
  include_stop_str_in_output = NONE, functions = "is the old form, send 'tools'",
  function_call = "is the old form, send 'tool_choice'",
  suffix = "is not supported: text can be continued, not filled in", chat_template = "cannot be sent: the server's own is used",
  audio = NONE, web_search_options = NONE,
}

--- Is that the name of a field?
schema.known = {}
for _, list in ipairs { schema.sampling, schema.chat, schema.completions } do
  for _, f in ipairs(list) do schema.known[f[1]] = true end
end

return schema
