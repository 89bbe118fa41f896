-- read: the body of POST /v1/responses as a req (api/request.lua).
local check = require "chat.check"
local errors = require "lib.errors"
local items = require "api.responses.items"
local perigee = require "perigee"
local request = require "api.request"
local schema = require "api.schema"
local structured = require "api.structured"
local tools = require "api.responses.tools"
local json = perigee.json
local refuse = errors.refuse

local INT = 0x7fffffff

local FIELDS = schema.fields({ schema.sampling { top_k = { from = -1 },
  presence_penalty = { from = -2, to = 2 }, frequency_penalty = { from = -2, to = 2 },
  skip_special = { name = "skip_special_tokens" } }, {
  { "model", "string", to = 256 },
  { "input", "any" },
  { "instructions", "string" },
  { "tools", "array", to = 1024 },
  { "tool_choice", "any" },
  { "parallel_tool_calls", "boolean" },
  { "max_tool_calls", "integer", from = 1, to = INT },
  { "reasoning", "object" },
  { "text", "object" },
  { "include", "strings", to = 64, bytes = 128 },
  { "max_output_tokens", "integer", from = 1, to = INT },
  { "previous_response_id", "string", from = 1, to = 128 },
  { "store", "boolean" },
  { "stream", "boolean" },
  { "stream_options", "object" },
  { "top_logprobs", "integer", from = 0, to = 20 },
  { "background", "boolean" },
  { "truncation", "string", from = 1, to = 64 },
  { "metadata", "object" },
  { "user", "string", to = 1024 },
  { "safety_identifier", "string", to = 1024 },
  { "prompt_cache_key", "string", to = 1024 },
  { "service_tier", "string", to = 64 },
  { "chat_template_kwargs", "object" },
  { "perigee", "object" },
}, structured.FIELDS }, {
  conversation = "is not supported: send previous_response_id, or the items themselves",
  prompt = "is not supported: this server keeps no prompts" })

-- ---- single fields ------------------------------------------------------------------------------

--- Raises unless a string is one of these.
local function one_of(name, value, choices)
  if value == nil then return end
  for _, choice in ipairs(choices) do
    if value == choice then return end
  end
  refuse(name, "must be one of %s, got '%s'", table.concat(choices, ", "), value:sub(1, 64))
end

local function check_metadata(given)
  for key, value in pairs(given or {}) do
    schema.value("string", "metadata." .. key:sub(1, 64), value, { to = 512 })
  end
end

local function effort_of(reasoning)
  local effort = reasoning and reasoning.effort
  if effort == nil or effort == json.null then return nil end
  return schema.value("string", "reasoning.effort", effort, { from = 1, to = 64 })
end

local function includes(list, name)
  for _, value in ipairs(list or {}) do
    if value == name then return true end
  end
  return false
end

--- How many alternatives of each token are wanted; nil: no logprobs at all. Some clients send the
--- documented default, 0, and mean nothing by it.
local function logprobs_of(o)
  if includes(o.include, "message.output_text.logprobs") then return o.top_logprobs or 0 end
  return o.top_logprobs and o.top_logprobs > 0 and o.top_logprobs or nil
end

local function check_fields(o)
  check_metadata(o.metadata)
  one_of("truncation", o.truncation, { "disabled", "auto" })
  if o.background and o.store == false then
    refuse("store", "must be true when background is true: its answer is fetched later")
  end
end

-- ---- the conversation ---------------------------------------------------------------------------

--- The input as a list of items.
local function input_of(input)
  if input == nil then return json.array() end
  if type(input) == "string" then
    return json.array { json.object { { "type", "message" }, { "role", "user" },
      { "content", input } } }
  end
  if not check.is_list(input) then
    refuse("input", "must be a string or an array of items, got %s", check.kind_of(input))
  end
  return input
end

--- The items before this request's own.
local function earlier(app, key, id)
  if not id then return {} end
  local list, missing, running = app.responses:conversation(key, id)
  if list then return list end
  if running then refuse("previous_response_id", "is '%s', which is still in progress", missing) end
  error(errors.new { status = 404, code = "previous_response_not_found",
    field = "previous_response_id",
    message = ("Previous response with id '%s' not found."):format(missing) }, 0)
end

--- The messages of a request. before: the items of its conversation so far.
local function messages_of(o, before, input, reader)
  if o.instructions and o.instructions ~= "" then
    reader.messages[1] = json.object { { "role", "system" }, { "content", o.instructions } }
  end
  local none = #reader.messages
  reader:add(before, "previous_response_id")
  reader:add(input, "input[%d]")
  local messages = reader:finish()
  if #messages == none then refuse("input", "is missing or says nothing") end
  return messages
end

-- ---- all ----------------------------------------------------------------------------------------

--- The req of a body; raises what is wrong with it. For the face it has `offer` (tools.lua),
--- `input` (its own items), `items` (with those before), `seals` (reasoning is sent sealed),
--- `keeps` (the response is stored), `previous` and `background`.
return function(body, from, app)
  local o = schema.read(body, FIELDS)
  check_fields(o)
  local key = from.key and from.key.name
  local offer, input = tools.read(o.tools, o.tool_choice), input_of(o.input)
  local before = earlier(app, key, o.previous_response_id)
  local reader = items.reader { offer = offer,
    find = function(id) return app.responses:item(key, id) end }
  local messages = messages_of(o, before, input, reader)
  local sampling = o.sampling or {}
  sampling.max_tokens = o.max_output_tokens
  sampling.top_logprobs = logprobs_of(o)
  return request.chat({ id = "resp_", api = "responses", body = body, model = o.model,
    stream = o.stream == true, user = o.user or o.safety_identifier, sampling = sampling,
    session = o.prompt_cache_key, effort = effort_of(o.reasoning), perigee = o.perigee,
    places = reader.places, chat = { messages = messages, tools = offer.tools,
      tool_choice = offer.choice, parallel_tool_calls = o.parallel_tool_calls,
      kwargs = o.chat_template_kwargs },
    grammar = structured.read(o, { { "text.format", o.text and o.text.format } }),
    fast_forward = o.fast_forward,
    strict = offer.strict, offer = offer, input = input,
    items = table.move(input, 1, #input, #before + 1, before),
    truncates = o.truncation == "auto", keeps = o.store ~= false, background = o.background == true,
    previous = o.previous_response_id,
    seals = includes(o.include, "reasoning.encrypted_content") }, from)
end
