-- errors: what a client is told when something cannot be done, in OpenAI's shape.
--
--   local err = errors.new { status = 400, message = "…", param = "temperature" }
--   errors.send(response, err)          -- {"error": {"message", "type", "param", "code"}}, Retry-After when it has one
--
-- An error is a plain table { status, message, type, param, code, retry_after } with this module's metatable, so that it
-- can travel both as a second result and by error(): `errors.is` tells it from everything else that may be raised.
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local errors = {}

local LONGEST = 86400 -- seconds that a client is told to wait

local Error = { __name = "perigee.ApiError" }
Error.__tostring = function(err) return err.message end

--- The `type` of each status where the caller gave none.
local TYPES = {
  [400] = "invalid_request_error", [401] = "authentication_error", [403] = "permission_error", [404] = "not_found_error",
  [409] = "conflict_error", [429] = "rate_limit_error", [503] = "overloaded_error",
}

function errors.new(given)
  local err = { status = given.status or 400, message = given.message, type = given.type, param = given.param,
    code = given.code, retry_after = given.retry_after }
  err.type = err.type or TYPES[err.status] or (err.status < 500 and "invalid_request_error" or "server_error")
  return setmetatable(err, Error)
end

function errors.is(value) return getmetatable(value) == Error end

--- Raises a 400 about one field: errors.refuse("top_p", "is %g, it must be …", 3) says "top_p is 3, it must be …".
function errors.refuse(param, format, ...)
  error(errors.new { status = 400, message = param .. " " .. format:format(...), param = param }, 0)
end

--- Any error as one of ours: those of other parts ({ status, message } or a perigee.Error) and whatever was raised. What
--- is not meant for clients becomes a 500 that says no more than that.
function errors.from(value, status)
  if errors.is(value) then return value end
  if type(value) == "table" and value.status and value.message then return errors.new(value) end
  local said = type(value) == "table" and value.message or tostring(value)
  if status then return errors.new { status = status, message = said } end
  return errors.new { status = 500, message = "the server failed to answer", code = "internal_error" }
end

--- The object that is sent. It may quote what a client or a script said, cut anywhere.
function errors.object(err)
  local function quoted(said) return said and text.clean(said) or json.null end
  return json.object { { "error", json.object { { "message", quoted(err.message) }, { "type", quoted(err.type) },
    { "param", quoted(err.param) }, { "code", quoted(err.code) } } } }
end

local AGAIN = { [429] = 1, [503] = 1 } -- what is refused for now always says when to come back

--- Retry-After counts whole seconds.
function errors.headers(err)
  local seconds = err.retry_after or AGAIN[err.status]
  if not seconds then return nil end
  return { ["retry-after"] = ("%d"):format(math.ceil(math.max(1, math.min(seconds, LONGEST)))) }
end

function errors.send(response, err)
  local headers = errors.headers(err) or {}
  headers["content-type"] = "application/json"
  return response:send(err.status, headers, json.encode(errors.object(err), { compact = true }))
end

return errors
