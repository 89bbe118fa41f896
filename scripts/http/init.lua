-- http: HTTP/1.1 on luv: a server, a router and a client.
--
--   local http = require "http"
--   local server = http.server { handler = function(request, response)
--     response:json(200, { hello = request.path })
--   end }
--   local at = assert(server:listen { host = "127.0.0.1", port = 8080 })
--
-- The handler runs in its own task for each request (lib.async) and may wait there. It must have
-- responded when it returns, and should stop when request:on_abort reports that the client is gone.
-- See http.request and http.response for its arguments, http.server for limits and the log.
--
-- server: listen{host, port | path, mode}, drain{seconds, done}, stats().
return {
  server = require("http.server").new,
  router = require("http.router").new,
  request = require("http.client").request,
}
