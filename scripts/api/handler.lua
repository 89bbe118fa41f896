-- handler: serves the requests of an API's route. An API is
--
--   { read = function(body, request, app),  -> a req (api/request.lua); raises what is wrong
--     face = function(req, response) }      -> what sends its answers (pipeline/init.lua)
--
-- Refusals before the answer begins look as the path says (api/dialect.lua).
local errors = require "lib.errors"
local pipeline = require "pipeline"
local read_body = require "api.body"

return function(app, api)
  return function(request, response)
    local ok, req = pcall(function()
      return api.read(read_body(request, app.config.limits), request, app)
    end)
    if not ok then
      local err = errors.from(req)
      if err.status >= 500 then app.log:note("error", "reading a request: " .. tostring(req)) end
      return app:refuse(response, err)
    end
    request:on_abort(function() pipeline.gone(app, req.id) end)
    local done, err = pipeline.serve(app, req, api.face(req, response),
      { log = request.log, client = request })
    if not done and not request.aborted then app:refuse(response, err) end
  end
end
