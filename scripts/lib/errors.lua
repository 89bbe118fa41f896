-- errors: what a request is refused with. One shape for all parts of the server and for every API.
--
-- A request error is a perigee.Error { code, message, field } that also has the HTTP `status` and
-- perhaps `retry_after` (seconds). `field` is the field of the request that is wrong, as a path
-- such as "messages[2].content". It travels as a second result or by error(). How it looks to a
-- client is the business of each API (api/dialect.lua).
--
--   errors.new { status = 429, code = "queue_full", message = "…", retry_after = 3 }
--   errors.refuse("top_p", "must be between 0 and 1, got %g", p)     -- raises a 400
--   errors.from(anything)                                            -- a request error
local perigee = require "perigee"

local errors = {}

local class = getmetatable(perigee.error("argument", ""))

--- The status of each code of perigee.Error whose message is meant for clients. Any other code is
--- a fault of the server: clients get a 500 that says no more than that.
local STATUS = {
  argument = 400, format = 400, limit = 400, no_token = 400, shape = 400,
  unsatisfiable = 400, unsupported = 400, not_found = 404, cancelled = 409, memory = 503,
}

local function is_error(value) return getmetatable(value) == class end

--- given: status, message, and optionally code, field, retry_after, tokens and most (of what is too
--- long for the context: those it has at least, and those that fit), details (for clients of one
--- API).
function errors.new(given)
  local status = given.status or 400
  local code = given.code or (status == 400 and "argument" or "refused")
  local err = perigee.error(code, given.message, { field = given.field })
  err.status, err.retry_after = status, given.retry_after
  err.tokens, err.most, err.details = given.tokens, given.most, given.details
  return err
end

--- Is it a request error?
function errors.is(value) return is_error(value) and value.status ~= nil end

--- Raises a 400 about one field; the message begins with the field's name.
function errors.refuse(field, format, ...)
  error(errors.new { field = field, message = field .. " " .. format:format(...) }, 0)
end

--- Any value as a request error. `field` is blamed when the error names none itself.
function errors.from(value, field)
  if errors.is(value) then return value end
  local status = is_error(value) and STATUS[value.code]
  if not status then
    return errors.new { status = 500, code = "internal_error",
      message = "the server failed to answer" }
  end
  return errors.new { status = status, code = value.code, message = value.message,
    field = value.field or field }
end

local LONGEST_S = 86400 -- a client is never told to wait longer than a day
local AGAIN_S = { [429] = 1, [503] = 1 } -- these are refused for now, so they always say until when

--- Whole seconds for the Retry-After header, nil when it is not worth trying again.
function errors.retry_after(err)
  local seconds = err.retry_after or AGAIN_S[err.status]
  return seconds and math.ceil(math.max(1, math.min(seconds, LONGEST_S)))
end

--- Headers of an error response. x-should-retry: the vendors' clients would try again after a 409
--- too, but not after what says false.
function errors.headers(err)
  local after = errors.retry_after(err)
  return { ["retry-after"] = after,
    ["x-should-retry"] = not after and err.status < 500 and "false" or nil }
end

return errors
