-- handler: serves the requests of an API's route. An API is
--
--   { read = function(body, request, app),  -> a req (api/request.lua); raises what is wrong
--     face = function(req, response, app) } -> what sends its answers (pipeline/init.lua)
--
-- Refusals before the answer begins look as the path says (api/dialect.lua), unless the face has a
-- method for them: face:refuse(err). A face that `stays` goes on when its client leaves.
local errors = require "lib.errors"
local pipeline = require "pipeline"
local read_body = require "api.body"

return function(app, api)
  return function(request, response)
    local ok, req, face = pcall(function()
      local read = api.read(read_body(request, app.config.limits), request, app)
      return read, api.face(read, response, app)
    end)
    if not ok then
      local err = errors.from(req)
      if err.status >= 500 then app.log:note("error", "reading a request: " .. tostring(req)) end
      return app:refuse(response, err)
    end
    if not face.stays then request:on_abort(function() pipeline.gone(app, req.id) end) end
    local done, err = pipeline.serve(app, req, face, { log = request.log, client = request })
    if done or request.aborted and not face.stays then return end
    if face.refuse then face:refuse(err) else app:refuse(response, err) end
  end
end
