-- errors: request errors (lib/errors.lua) as OpenAI's clients expect them:
--
--   {"error": {"message": …, "type": …, "param": …, "code": …}}
--
-- `type` exists in this dialect only; it follows from the status, but for a few codes.
local encode = require "api.encode"
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local dialect = {}

local TYPES = {
  [400] = "invalid_request_error", [401] = "authentication_error", [403] = "permission_error",
  [404] = "not_found_error", [409] = "conflict_error", [429] = "rate_limit_error",
  [503] = "overloaded_error",
}

--- Codes of perigee that OpenAI calls otherwise; false: that it has no code for.
local CODES = {
  argument = false, format = false, shape = false, unsupported = false, no_token = false,
  refused = false, unsatisfiable = false, limit = "context_length_exceeded", memory = "overloaded",
}

--- A 404 about what a field names, not about the path.
local NAMED = { previous_response_not_found = true, item_not_found = true }

local function type_of(err)
  if NAMED[err.code] then return "invalid_request_error" end
  return TYPES[err.status] or (err.status < 500 and "invalid_request_error" or "server_error")
end

local function code_of(code)
  local known = CODES[code]
  if known == nil then return code end
  return known or nil
end

--- The object that is sent. It may quote text of a client or a script, cut anywhere.
function dialect.object(err)
  local function quoted(said) return said and text.clean(said) or json.null end
  return json.object { { "error", json.object { { "message", quoted(err.message) },
    { "type", type_of(err) }, { "param", quoted(err.field) },
    { "code", quoted(code_of(err.code)) } } } }
end

--- The body of an error response and its content type.
function dialect.body(err)
  return encode(dialect.object(err)), "application/json"
end

return dialect
