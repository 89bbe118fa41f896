-- http: HTTP/1.1 on luv: a server, a router and a client.
--
--   local http = require "http"
--   local server = http.server { handler = function(request, response)
--     response:json(200, { hello = request.path })
--   end }
--   local at = assert(server:listen { host = "127.0.0.1", port = 8080 })
--
-- The handler runs in a task of its own for each request (lib.async) and may wait there; it must have answered when it
-- returns. request: method, target, path (decoded), query, query_list, headers (lower-case names), header(name), body, id,
-- peer, local ("tcp" or "unix"), started, aborted, on_abort(fn). response: see http.response.
--
-- server: listen{host, port | path, mode}, drain{seconds, done}, stats(). Its limits are listed in http.server.
return {
  server = require("http.server").new,
  router = require("http.router").new,
  request = require("http.client").request,
}
