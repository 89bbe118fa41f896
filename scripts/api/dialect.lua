-- dialect: how errors look to the clients of a path, also where it has no route. A dialect is
--
--   { body = function(err, request),     -> the body of an error response and its content type;
--                                        request: that of HTTP, or nil if there is none yet
--     id_header }                        where its clients look for the id of a request, also of
--                                        answers (api/anthropic/init.lua); nil: x-request-id
local anthropic = require "api.anthropic.errors"
local errors = require "lib.errors"
local openai = require "api.openai.errors"

local dialect = {}

--- { the beginning of paths, their dialect }; all others are OpenAI's.
local OTHERS = { { "/v1/messages", anthropic } }

function dialect.of(path)
  for _, other in ipairs(OTHERS) do
    local prefix = other[1]
    if path == prefix or path:sub(1, #prefix + 1) == prefix .. "/" then return other[2] end
  end
  return openai
end

--- The body of an error response and its content type, as http.server wants them.
function dialect.body(err, request)
  return dialect.of(request and request.path or "").body(err, request)
end

--- Sends an error as the whole response.
function dialect.send(response, err)
  local headers, id = errors.headers(err), dialect.of(response.request.path).id_header
  if id then response:set(id, response:id()) end
  local body
  body, headers["content-type"] = dialect.body(err, response.request)
  return response:send(err.status, headers, body)
end

return dialect
