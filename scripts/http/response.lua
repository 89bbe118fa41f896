-- response: the response to one request. Either send() or json() once; or start(), any number of
-- write(), and finish(); or sse(), which is start() for events. Any task or callback may write
-- until the response is finished. After that, or once the client is gone, write does nothing and
-- returns nil.
--
-- Bodies of unknown length are chunked; for HTTP/1.0 they end with the connection. HEAD gets only
-- the head.
local async = require "lib.async"
local fields = require "http.fields"
local perigee = require "perigee"
local sse = require "http.sse"
local status = require "http.status"

local response = {}

local Response = {}
Response.__index = Response

local concat = table.concat
local CHUNKED = "transfer-encoding: chunked\r\n"
local JOINED = 64 << 10 -- up to this size head and body are joined, to save a write

local status_lines = {}
for code, reason in pairs(status.reasons) do
  status_lines[code] = ("HTTP/1.1 %d %s\r\n"):format(code, reason)
end
for code = 400, 599 do -- hooks may refuse requests with any error status
  status_lines[code] = status_lines[code] or ("HTTP/1.1 %d \r\n"):format(code)
end

function response.new(connection, request)
  return setmetatable({ connection = connection, request = request, bytes = 0 }, Response)
end

local function has_no_body(code)
  return code < 200 or code == 204 or code == 304
end

-- Headers that frame the body or decide whether the connection stays open: only the server writes
-- them.
local OURS = { ["content-length"] = true, ["transfer-encoding"] = true, connection = true }

--- Adds header lines; a value is a string, a number or a list of them.
local function add_headers(lines, headers)
  for name, value in pairs(headers) do
    if OURS[name:lower()] then
      error(("header '%s' is set by the server and cannot be given"):format(name), 4)
    end
    local values = type(value) == "table" and value or { value }
    for _, v in ipairs(values) do
      v = tostring(v)
      fields.check(name, v)
      lines[#lines + 1] = name .. ": " .. v .. "\r\n"
    end
  end
end

--- The id that the client knows its request by.
function Response:id() return self.request.client_id or self.request.id end

--- The head of the response; `framing` is the header that frames the body, or nil.
local function head_text(self, code, headers, framing)
  local connection, request = self.connection, self.request
  local line = status_lines[code]
  if not line then error(("%s is not a known HTTP status"):format(tostring(code)), 3) end
  local lines = { line, connection.server:common_headers(), "x-request-id: ", self:id(), "\r\n" }
  if self.always then add_headers(lines, self.always) end
  if headers then add_headers(lines, headers) end
  lines[#lines + 1] = framing
  if not connection:may_stay() then
    lines[#lines + 1] = "connection: close\r\n"
  elseif request.version == "1.0" then
    lines[#lines + 1] = "connection: keep-alive\r\n"
  end
  lines[#lines + 1] = "\r\n"
  return concat(lines)
end

local function check_new(self)
  if self.started then error("the response has already been started", 3) end
end

local function finish(self)
  self.finished = true
  self.connection:answered(self)
end

--- Sets a header that the response will have, whichever function sends it.
function Response:set(name, value)
  self.always = self.always or {}
  self.always[name] = value
end

--- Sends the whole response. Headers are a table or nil, the body is a string or nil.
function Response:send(code, headers, body)
  check_new(self)
  body = body or ""
  local framing = not has_no_body(code) and "content-length: " .. #body .. "\r\n" or nil
  local head = head_text(self, code, headers, framing)
  self.started, self.status = true, code
  if self.request.method == "HEAD" or not framing then body = "" end
  self.bytes = #body
  local connection = self.connection
  if #body <= JOINED then
    connection:write(head .. body)
  else
    connection:write(head)
    connection:write(body)
  end
  finish(self)
end

--- Sends the whole response inside a task: the body is a list of strings, which are forgotten as
--- the client takes them.
function Response:send_parts(code, headers, parts)
  local size = 0
  for i = 1, #parts do size = size + #parts[i] end
  if size <= JOINED then return self:send(code, headers, concat(parts)) end
  check_new(self)
  local head = head_text(self, code, headers, "content-length: " .. size .. "\r\n")
  self.started, self.status = true, code
  local connection = self.connection
  connection:write(head)
  for i = 1, self.request.method ~= "HEAD" and #parts or 0 do
    if not connection:is_open() then break end
    self.bytes = self.bytes + #parts[i]
    connection:write(parts[i])
    parts[i] = ""
    if not self:drained() then break end
  end
  if not self.finished then finish(self) end
end

--- Sends a value as JSON; a string is JSON already.
function Response:json(code, value, headers)
  local all = { ["content-type"] = "application/json" }
  for name, v in pairs(headers or {}) do all[name] = v end
  if type(value) ~= "string" then value = perigee.json.encode(value, { compact = true }) end
  self:send(code, all, value)
end

--- Sends an error as the server's owner wants its errors to look (http.server's error_body).
function Response:error(code, message)
  local body, kind = self.connection.server.error_body(code, message, self.request)
  self:send(code, { ["content-type"] = kind }, body)
end

--- Sends the head; write() and finish() send the body.
function Response:start(code, headers)
  check_new(self)
  local framing = nil
  if not has_no_body(code) then
    self.chunked = self.request.version == "1.1"
    if self.chunked then framing = CHUNKED else self.connection:leave() end
  end
  local head = head_text(self, code, headers, framing)
  self.started, self.status = true, code
  self.silent = self.request.method == "HEAD" or has_no_body(code)
  self.connection:write(head)
end

--- Sends a piece of the body. Returns the number of bytes not yet taken by the client; nil if it is
--- gone.
function Response:write(data)
  if not self.started then error("write: the response has not been started", 2) end
  if self.finished or not self.connection:is_open() then return nil end
  if self.silent or data == "" then return self.connection:waiting_bytes() end
  self.bytes = self.bytes + #data
  if self.chunked then data = ("%x\r\n"):format(#data) .. data .. "\r\n" end
  return self.connection:write(data, true)
end

--- Ends the response. A second call does nothing.
function Response:finish()
  if not self.started then error("finish: the response has not been started", 2) end
  if self.finished then return end
  if self.chunked and not self.silent then self.connection:write "0\r\n\r\n" end
  finish(self)
end

--- Ends a response that will not be completed, so that it is logged. `code`: the status to log if
--- none was sent.
function Response:abandon(code)
  self.status = self.status or code
  self.started = true
  finish(self)
end

--- Waits until the client has taken most of the data; false if it is gone.
function Response:drained()
  local connection = self.connection
  if connection:is_drained() then return connection:is_open() end
  return async.await(function(resume) return connection:when_drained(resume) end)
end

--- Starts a stream of server-sent events (http.sse). beat: what is sent while nothing else is.
function Response:sse(headers, beat)
  return sse.start(self, headers, beat)
end

return response
