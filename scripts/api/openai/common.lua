-- common: what /v1/chat/completions and /v1/completions share: the rest of the checks, the frame of
-- a stream's chunks, and the handler.
local errors = require "lib.errors"
local perigee = require "perigee"
local pipeline = require "pipeline"
local schema = require "api.schema"
local stream = require "api.openai.stream"
local json = perigee.json
local refuse = errors.refuse

local common = {}

local function check_format(format)
  if format and format.type ~= "text" then
    refuse("response_format", 'must be {"type": "text"}: this server has no constrained output yet')
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

--- The fields of the req that both have, of what the schema read.
function common.read(o, body)
  check_format(o.response_format)
  local sampling = o.sampling or {}
  sampling.max_tokens = o.max_completion_tokens or o.max_tokens
  local least, most = sampling.min_tokens, sampling.max_tokens
  if least and most and least > most then
    refuse("min_tokens", "must be at most max_tokens, which is %d, got %d", most, least)
  end
  return { body = body, model = o.model, user = o.user, stream = o.stream == true,
    include_usage = include_usage(o), n = o.n or 1, sampling = sampling,
    return_ids = o.return_token_ids }
end

--- body.perigee = { script = "name", … }: a script of the server by its name, with parameters.
--- Never code.
function common.attach(req, o)
  local given = o.perigee
  if not given or given.script == nil or given.script == json.null then return req end
  local name = schema.value("string", "perigee.script", given.script, { from = 1, to = 64 })
  local params = {}
  for key, value in pairs(given) do
    if key ~= "script" and value ~= json.null then
      if type(value) == "table" then
        refuse("perigee." .. key, "must be a string, a number, true or false")
      end
      params[key] = value
    end
  end
  req:attach(name, params)
  return req
end

--- A handler for requests that `read(body, request)` understands and `shape` answers.
function common.handler(app, read, shape)
  return function(request, response)
    local ok, req = pcall(function()
      return read(schema.body(request, app.config.limits), request)
    end)
    if not ok then
      local err = errors.from(req)
      if err.status >= 500 then app.log:note("error", "reading a request: " .. tostring(req)) end
      return app:refuse(response, err)
    end
    request:on_abort(function() pipeline.gone(app, req.id) end)
    local face = stream.new(req, response, shape)
    local done, err = pipeline.serve(app, req, face, { log = request.log, client = request })
    if not done and not request.aborted then app:refuse(response, err) end
  end
end

return common
