-- answer: handlers of routes that compute something and answer with one JSON text.
--
--   app:route("POST", path, answer(app, function(app, body, request) return { texts… } end))
--
-- The texts are sent one after another. Errors that it raises look as the path says.
local async = require "lib.async"
local errors = require "lib.errors"
local read_body = require "api.body"

return function(app, work)
  return function(request, response)
    local ok, texts = pcall(function()
      return work(app, read_body(request, app.config.limits), request)
    end)
    async.breathe()
    if ok then
      return response:send_parts(200, { ["content-type"] = "application/json" }, texts)
    end
    local err = errors.from(texts)
    if err.status >= 500 then app.log:note("error", request.path .. ": " .. tostring(texts)) end
    app:refuse(response, err)
  end
end
