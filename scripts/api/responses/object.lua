-- object: a response as clients get it: what they asked for, the items of the answer, and how it
-- ended.
local perigee = require "perigee"
local json = perigee.json

local object = {}

--- What a request's fields are where it has none.
local DEFAULTS = { parallel_tool_calls = true, tool_choice = "auto", truncation = "disabled",
  service_tier = "default", store = true, background = false }

--- Fields that are sent back as they came, in OpenAI's order.
local ECHOED = { "instructions", "max_output_tokens", "max_tool_calls", "parallel_tool_calls",
  "previous_response_id", "prompt_cache_key", "safety_identifier", "service_tier", "store",
  "temperature", "tool_choice", "top_logprobs", "top_p", "truncation", "user" }

local function echo(body, name)
  local value = body[name]
  if value == nil or value == json.null then value = DEFAULTS[name] end
  if value == nil then return json.null end
  return value
end

local function reasoning_of(body)
  local given = json.is_object(body.reasoning) and body.reasoning or {}
  return json.object { { "effort", given.effort or json.null },
    { "summary", given.summary or json.null } }
end

function object.usage(usage)
  local made = json.object { { "reasoning_tokens", usage.reasoning_tokens or 0 } }
  if (usage.forced_tokens or 0) > 0 then made.forced_tokens = usage.forced_tokens end
  return json.object { { "input_tokens", usage.prompt_tokens },
    { "input_tokens_details", json.object { { "cached_tokens", usage.cached_tokens },
      { "cache_write_tokens", 0 } } }, -- nothing is written that would be charged
    { "output_tokens", usage.completion_tokens },
    { "output_tokens_details", made },
    { "total_tokens", usage.prompt_tokens + usage.completion_tokens } }
end

--- The form of the answer, as it was asked for.
local function text_of(body)
  local given = json.is_object(body.text) and body.text.format
  return json.object { { "format", json.is_object(given) and given
    or json.object { { "type", "text" } } } }
end

--- state: status, output (a list of items), usage, error { code, message }, incomplete (why).
function object.response(req, state)
  local body = req.body
  local out = json.object { { "id", req.id }, { "object", "response" },
    { "created_at", req.received }, { "status", state.status },
    { "background", echo(body, "background") }, { "error", json.null },
    { "incomplete_details", json.null }, { "model", req.model or json.null },
    { "output", json.array(state.output or {}) }, { "tools", json.array() },
    { "reasoning", reasoning_of(body) },
    { "text", text_of(body) },
    { "metadata", json.object() }, { "usage", json.null } }
  for _, name in ipairs(ECHOED) do out[name] = echo(body, name) end
  if json.is_array(body.tools) then out.tools = body.tools end
  if json.is_object(body.metadata) then out.metadata = body.metadata end
  if state.error then
    out.error = json.object { { "code", state.error.code }, { "message", state.error.message } }
  end
  if state.incomplete then
    out.incomplete_details = json.object { { "reason", state.incomplete } }
  end
  if state.usage then out.usage = object.usage(state.usage) end
  return out
end

return object
