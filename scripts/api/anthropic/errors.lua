-- errors: request errors (lib/errors.lua) as Anthropic's clients expect them:
--
--   {"type": "error", "error": {"type": …, "message": …}, "request_id": …}
--
-- `type` follows from the status. A field that is wrong is named by the message alone.
local encode = require "api.encode"
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local dialect = { id_header = "request-id" }

local TYPES = {
  [401] = "authentication_error", [403] = "permission_error", [404] = "not_found_error",
  [413] = "request_too_large", [429] = "rate_limit_error", [503] = "overloaded_error",
}

local function type_of(status)
  return TYPES[status] or (status < 500 and "invalid_request_error" or "api_error")
end

--- Agents look for the first words and both numbers, and make their conversation shorter.
local function message_of(err)
  if err.code ~= "context_length_exceeded" or not err.tokens then return err.message end
  return ("prompt is too long: %d tokens > %d maximum (%s)"):format(err.tokens, err.most,
    err.message)
end

--- The object that is sent. It may quote text of a client or a script, cut anywhere.
function dialect.object(err)
  local what = json.object { { "type", type_of(err.status) },
    { "message", text.clean(message_of(err)) } }
  what.details = err.details
  return json.object { { "type", "error" }, { "error", what } }
end

--- The body of an error response and its content type.
function dialect.body(err, request)
  local object = dialect.object(err)
  object.request_id = request and (request.client_id or request.id) or json.null
  return encode(object), "application/json"
end

return dialect
