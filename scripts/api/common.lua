-- common: what /v1/chat/completions and /v1/completions have in common: the rest of the checks, and the handler.
local errors = require "api.errors"
local perigee = require "perigee"
local pipeline = require "pipeline"
local schema = require "api.schema"
local stream = require "api.stream"
local json = perigee.json
local refuse = errors.refuse

local common = {}

local function check_format(format)
  if format and format.type ~= "text" then
    refuse("response_format", "asks for constrained output, which this server does not have yet; it can be {\"type\": \"text\"}")
  end
end

local function include_usage(o)
  local options = o.stream_options
  if not options then return nil end
  if not o.stream then refuse("stream_options", "is only for requests with stream = true") end
  local include = options.include_usage
  if include == nil or include == json.null then return nil end
  return schema.value("boolean", "stream_options.include_usage", include)
end

--- Fields of the req that both have, out of what the schema read.
function common.read(o, body)
  check_format(o.response_format)
  local sampling = o.sampling or {}
  sampling.max_tokens = o.max_completion_tokens or o.max_tokens
  if sampling.min_tokens and sampling.max_tokens and sampling.min_tokens > sampling.max_tokens then
    refuse("min_tokens", "is %d, more than max_tokens, which is %d", sampling.min_tokens, sampling.max_tokens)
  end
  return { body = body, model = o.model, user = o.user, stream = o.stream == true, include_usage = include_usage(o), n = o.n or 1,
    sampling = sampling, return_ids = o.return_token_ids }
end

--- body.perigee = { logits = "name", … }: a script of the server by name, with its parameters. Never code.
function common.attach(req, o)
  local given = o.perigee
  if not given or given.logits == nil or given.logits == json.null then return req end
  local name = schema.value("text", "perigee.logits", given.logits, { from = 1, to = 64 })
  local params = {}
  for key, value in pairs(given) do
    if key ~= "logits" and value ~= json.null then
      if type(value) == "table" then refuse("perigee." .. key, "must be text, a number, true or false") end
      params[key] = value
    end
  end
  req:attach(name, params)
  return req
end

--- A handler for requests that `read(body, request)` understands and `shape` answers.
function common.handler(app, read, shape)
  return function(request, response)
    local ok, req = pcall(function() return read(schema.body(request, app.config.limits.values), request) end)
    if not ok then
      if not errors.is(req) then app.log:note("error", "reading a request: " .. tostring(req)) end
      return app:refuse(response, errors.from(req))
    end
    request:on_abort(function() pipeline.gone(app, req.id) end)
    local face = stream.new(req, response, shape)
    local done, err = pipeline.serve(app, req, face, { log = request.log })
    if not done and not request.aborted then app:refuse(response, err) end
  end
end

return common
