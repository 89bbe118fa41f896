-- request: the first argument of a handler. The parser fills in method, target, path (decoded),
-- raw_path, version, query (of equal names the last), query_list, headers (lower-case names) and
-- body; the connection adds
--   id        unique, so that a line of the log belongs to one request
--   client_id the client's x-request-id if it is well-formed; sent back instead of ours
--   peer      the client's address; nil on a Unix socket
--   local     the kind of socket: "tcp" or "unix"
--   started   uv.hrtime() when the request was complete
--   aborted   the client is gone
--   body      a string or, if it has more than 64 KB, perigee.Bytes
--   owner     whose request it is, to share things fairly: set by the server's owner (or nil)
local async = require "lib.async"
local uv = require "luv"

local ID_BYTES = 128

local Request = {}
Request.__index = Request

--- The value of a header, whatever the case of its name.
function Request:header(name)
  return self.headers[name:lower()]
end

--- Calls fn once, in a task, if the client goes away before the response is finished; at once if it
--- is already gone.
function Request:on_abort(fn)
  if self.aborted then
    async.run(fn)
  else
    self.abort_hooks = self.abort_hooks or {}
    table.insert(self.abort_hooks, fn)
  end
end

--- The most bytes that a body may have.
function Request:body_limit() return self.connection.server.limits.body end

--- Says that the body takes this many bytes now; false if that is too much (limits.bodies).
function Request:hold(bytes) return self.connection:hold(bytes) end

--- Called by the connection.
function Request:abort()
  if self.aborted then return end
  self.aborted = true
  local hooks = self.abort_hooks
  self.abort_hooks = nil
  for _, fn in ipairs(hooks or {}) do async.run(fn) end
end

local function is_well_formed(id)
  return id and #id <= ID_BYTES and id:find "^[%w._%-]+$" ~= nil
end

--- Completes the parser's request, also when only its head is there. A second call updates it.
return function(request, connection)
  local id = request.headers["x-request-id"]
  request.client_id = is_well_formed(id) and id or nil
  request.id = request.id or connection.server:new_id()
  request.connection = connection
  request.peer, request["local"] = request.peer or connection.peer, connection.kind
  request.started = uv.hrtime()
  request.aborted = connection.at_end or false
  return setmetatable(request, Request)
end
