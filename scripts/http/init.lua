-- http: HTTP/1.1 on luv: a server, a router and a client.
--
--   local http = require "http"
--   local server = http.server { handler = function(request, response)
--     response:json(200, { hello = request.path })
--   end }
--   local at = assert(server:listen { host = "127.0.0.1", port = 8080 })
--
-- The handler runs in a task of its own for each request (lib.async) and may wait there; it must have answered when it
-- returns, and should give up when request.on_abort says that nobody waits any more. See http.request and http.response for
-- what it is given, http.server for limits and the log, http.router and http.client.
--
-- server: listen{host, port | path, mode}, drain{seconds, done}, stats().
return {
  server = require("http.server").new,
  router = require("http.router").new,
  request = require("http.client").request,
}
