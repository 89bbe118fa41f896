-- common: the fields that /v1/chat/completions and /v1/completions share.
local errors = require "lib.errors"
local perigee = require "perigee"
local schema = require "api.schema"
local structured = require "api.structured"
local json = perigee.json
local refuse = errors.refuse

local common = {}

local function include_usage(o)
  local options = o.stream_options
  if not options then return nil end
  if not o.stream then refuse("stream_options", "is only for requests with stream = true") end
  local include = options.include_usage
  if include == nil or include == json.null then return nil end
  return schema.value("boolean", "stream_options.include_usage", include)
end

--- The fields of the req (api/request.lua) that both have, of what the schema read.
function common.read(o, body)
  local sampling = o.sampling or {}
  sampling.max_tokens = o.max_completion_tokens or o.max_tokens
  return { body = body, model = o.model, user = o.user, stream = o.stream == true,
    include_usage = include_usage(o), n = o.n or 1, sampling = sampling,
    return_ids = o.return_token_ids, perigee = o.perigee,
    grammar = structured.read(o), fast_forward = o.fast_forward }
end

return common
