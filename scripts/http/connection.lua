-- connection: one client. Reads requests one after another, runs the handler of each in a task, writes the answers in order.
--
-- The next request is not looked at before the answer to the former is finished and most of it has left; bytes that come
-- meanwhile are kept up to a bound, then reading stops and the client has to wait. Reading goes on that far so that a client
-- that goes away is noticed: the request is aborted then. A client that only closed its sending side still gets answers.
--
-- Writing: what the socket does not take at once waits in one list; one write is under way at a time.
--
-- state: "head" and "body" while a request is read, "busy" while it is answered, "flush" while an answer leaves before the
-- next request or the end, "linger" after our end was closed (so that the client can read the answer before the connection
-- is reset), "closed". Times are those of the loop's clock, in milliseconds, and are looked at by the server's tick.
local async = require "lib.async"
local parse = require "http.parse"
local response = require "http.response"
local status = require "http.status"
local uv = require "luv"

local connection = {}

local STASH = 65536         -- bytes of further requests that are read while one is answered
local ENTRY = 64            -- what a waiting piece costs beside its bytes
local LINGER_BYTES = 1 << 20 -- that are thrown away before a connection is closed
local CONTINUE = "HTTP/1.1 100 Continue\r\n\r\n"

local Connection = {}
Connection.__index = Connection

local Request = {}
Request.__index = Request

-- ---- requests ------------------------------------------------------------------------------------------------------

--- The value of a header, whatever the case of its name.
function Request:header(name)
  return self.headers[name:lower()]
end

--- Calls fn once when the client goes away before the answer is finished; at once when it has gone.
function Request:on_abort(fn)
  if self.aborted then return fn() end
  self.abort_hooks = self.abort_hooks or {}
  table.insert(self.abort_hooks, fn)
end

local function abort(request)
  if request.aborted then return end
  request.aborted = true
  local hooks = request.abort_hooks or {}
  request.abort_hooks = nil
  for _, fn in ipairs(hooks) do async.run(fn) end
end

local function is_sane_id(id)
  return id and #id <= 128 and id:find "^[%w._%-]+$"
end

-- ---- life ----------------------------------------------------------------------------------------------------------

--- Takes an accepted stream. `kind`: "tcp" or "unix".
function connection.new(server, stream, kind)
  local self = setmetatable({ server = server, stream = stream, kind = kind, state = "head", stash = {}, stash_bytes = 0,
    backlog = {}, backlog_bytes = 0, in_flight = 0, written = 0, accepted = 0, progress = uv.now(), requests = 0,
    stay = true, parser = parse.new(server.limits) }, Connection)
  self.on_written = function(err) self:wrote(err) end
  self:set_deadline(server.limits.header_s)
  if kind == "tcp" then
    stream:nodelay(true)
    stream:keepalive(true, 60)
    local peer = stream:getpeername()
    self.peer = peer and peer.ip
    self.peer_port = peer and peer.port
  end
  stream:read_start(function(err, bytes) self:on_read(err, bytes) end)
  return self
end

function Connection:set_deadline(seconds)
  self.deadline = seconds and uv.now() + seconds * 1000
end

function Connection:is_open()
  return self.state ~= "closed" and self.state ~= "linger"
end

--- Will another request be read after this one?
function Connection:may_stay()
  return self.stay and not self.server.draining
end

--- This is the last answer.
function Connection:leave()
  self.stay = false
end

--- Closes at once, whatever is under way.
function Connection:close()
  if self.state == "closed" then return end
  self.state = "closed"
  self.stream:close()
  self.backlog, self.backlog_bytes, self.stash = {}, 0, {}
  self:wake_writers(false)
  if self.request then abort(self.request) end
  self.server:forget(self)
end

--- Sends what is left, closes our end and waits a little for the client to close its own.
function Connection:close_gently()
  if self.in_flight > 0 then
    self.state = "flush"
    self.stay = false
    return
  end
  self.state = "linger"
  self.lingered = 0
  self:set_deadline(self.server.limits.linger_s)
  self:resume_reading()
  if self.at_end or not self.stream:shutdown() then self:close() end
end

--- Answers bytes that are no request, or a request that cannot be read, and closes.
function Connection:refuse(code, message)
  self.stay = false
  local body = status.error_body(code, message)
  self.server:count_refused(self, code, message)
  self:write(("HTTP/1.1 %d %s\r\n%scontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s")
    :format(code, status.reasons[code], self.server:common_headers(), #body, body))
  if self.state ~= "closed" then self:close_gently() end
end

-- ---- writing -------------------------------------------------------------------------------------------------------

function Connection:waiting_bytes()
  return self.in_flight + self.backlog_bytes
end

function Connection:is_drained()
  return self:waiting_bytes() <= self.server.limits.low_water
end

--- Calls resume(true) when little is waiting, resume(false) when the client is gone; returns what takes that back.
function Connection:when_drained(resume)
  self.writers = self.writers or {}
  self.writers[resume] = true
  return function()
    if self.writers then self.writers[resume] = nil end
  end
end

function Connection:wake_writers(value)
  local writers = self.writers
  self.writers = nil
  for resume in pairs(writers or {}) do resume(value) end
end

local function send_later(self, data)
  self.in_flight = #data
  self.progress = uv.now()
  self.stream:write(data, self.on_written)
end

--- Writes, now or when the socket takes it. Returns the bytes that wait, or nil when the client is gone. `bounded`: more
--- than limits.queue bytes waiting is the end of this connection.
function Connection:write(data, bounded)
  if self.state == "closed" or self.state == "linger" then return nil end
  self.written = self.written + #data
  if self.in_flight > 0 then
    self.backlog[#self.backlog + 1] = data
    self.backlog_bytes = self.backlog_bytes + #data + ENTRY
    if bounded and self:waiting_bytes() > self.server.limits.queue then
      self.server.counts.cut = self.server.counts.cut + 1
      self:close()
      return nil
    end
    return self:waiting_bytes()
  end
  local sent, _, name = self.stream:try_write(data)
  if sent == #data then return 0 end
  if not sent and name ~= "EAGAIN" then
    self:close()
    return nil
  end
  send_later(self, sent and data:sub(sent + 1) or data)
  return self:waiting_bytes()
end

--- A write has ended.
function Connection:wrote(err)
  if self.state == "closed" then return end
  if err then return self:close() end
  self.in_flight = 0
  if #self.backlog > 0 then
    local data = table.concat(self.backlog)
    self.backlog, self.backlog_bytes = {}, 0
    send_later(self, data)
  end
  if self:is_drained() then
    self:wake_writers(true)
    if self.state == "flush" then self:next_request() end
  end
end

-- ---- reading -------------------------------------------------------------------------------------------------------

function Connection:on_read(err, bytes)
  if self.state == "closed" then return end
  if err then return self:close() end
  if not bytes then return self:on_end() end
  if self.state == "linger" then
    self.lingered = self.lingered + #bytes
    if self.lingered > LINGER_BYTES then self:close() end
  elseif self.state == "busy" or self.state == "flush" then
    self.stash[#self.stash + 1] = bytes
    self.stash_bytes = self.stash_bytes + #bytes
    if self.stash_bytes > STASH then
      self.paused = true
      self.stream:read_stop()
    end
  else
    self:consume(bytes, 1)
  end
end

--- The client closed its sending side, or went away.
function Connection:on_end()
  self.at_end = true
  self.stream:read_stop()
  if self.state == "linger" then return self:close() end
  self.stay = false
  if self.state == "busy" then
    abort(self.request)
  elseif self.state ~= "flush" then
    if self.parser:is_inside() then self:refuse(400, "the request is not complete") else self:close() end
  end
end

function Connection:resume_reading()
  if self.paused and not self.at_end then
    self.paused = false
    self.stream:read_start(function(err, bytes) self:on_read(err, bytes) end)
  end
end

--- Reads requests out of bytes and answers them until they are used up or an answer takes longer.
local function consume(self, bytes, pos)
  while true do
    local event, next_pos, code = self.parser:feed(bytes, pos)
    if event == "more" then
      bytes, pos = table.remove(self.stash, 1), 1
      if not bytes then return self:wait_for_more() end
      self.stash_bytes = self.stash_bytes - #bytes
    elseif event == "head" then
      if not self:expect(self.parser.request, next_pos > #bytes) then return end
      pos = next_pos
    elseif event == "request" then
      self.rest, self.rest_pos = bytes, next_pos
      self:serve(self.parser.request)
      if self.state ~= "head" then return end
      bytes, pos = self.rest, self.rest_pos
    else
      return self:refuse(code, next_pos)
    end
  end
end

function Connection:consume(bytes, pos)
  self.consuming = true -- so that an answer given at once comes back here instead of calling again
  consume(self, bytes, pos)
  self.consuming = false
end

--- All bytes are used up: sets the clock for the rest of the request, or for the next one.
function Connection:wait_for_more()
  local limits = self.server.limits
  self:resume_reading()
  if self.at_end then return self:on_end() end
  local reader = self.parser.reader
  if reader then
    if self.state ~= "body" then
      self.state = "body"
      self.body_began = uv.now()
    end
    self.deadline = self.body_began + (limits.body_s + reader.received / limits.body_rate) * 1000
  elseif self.parser:is_inside() then
    if not self.in_head then
      self.in_head = true
      self:set_deadline(limits.header_s)
    end
  elseif self.requests > 0 and not self.idle then
    self.idle = true
    if not self:may_stay() then return self:close_gently() end
    self:set_deadline(limits.idle_s)
  end
end

--- A body follows: does the client wait to be told so? False when the request was refused.
function Connection:expect(request, is_empty)
  local wish = request.headers.expect
  if not wish or request.version == "1.0" then return true end
  if wish:lower() ~= "100-continue" then
    self:refuse(417, "only 100-continue can be expected")
    return false
  end
  if is_empty then self:write(CONTINUE) end
  return self.state ~= "closed"
end

-- ---- answering -----------------------------------------------------------------------------------------------------

--- Runs in the request's task.
local function handle(self, request, answer)
  local ok, err = xpcall(self.server.handler, debug.traceback, request, answer)
  if ok and answer.finished then return end
  if not ok then self.server:report(request, err) end
  if not answer.started then
    if ok then self.server:report(request, "the handler did not answer") end
    answer:error(500, "internal error; the log has more under the id of this request")
  elseif not answer.finished then
    if ok then self.server:report(request, "the handler did not finish its answer") end
    self:close()
  end
end

function Connection:serve(request)
  local server = self.server
  self.requests = self.requests + 1
  self.in_head, self.idle, self.deadline = false, false, nil
  self.state = "busy"
  setmetatable(request, Request)
  request.id = is_sane_id(request.headers["x-request-id"]) and request.headers["x-request-id"] or server:new_id()
  request.started = uv.hrtime()
  request.aborted = self.at_end or false
  request.peer, request["local"] = self.peer, self.kind
  local wish = request.headers.connection
  if request.version == "1.0" then
    if not wish or wish:lower() ~= "keep-alive" then self.stay = false end
  elseif wish and wish:lower():find("close", 1, true) then
    self.stay = false
  end
  if self.requests >= server.limits.requests then self.stay = false end
  self.request = request
  async.run(handle, self, request, response.new(self, request))
end

--- The response tells that it is finished.
function Connection:answered(answer)
  self.server:log_answer(self, answer)
  self.stream_of_events, self.request = nil, nil
  if self.state == "closed" then return end
  self.state = "flush"
  if self:is_drained() then self:next_request() end
end

--- The last answer has left, mostly.
function Connection:next_request()
  if not self:may_stay() and not self.at_end then return self:close_gently() end
  self.state = "head"
  if not self.consuming then self:consume(self.rest, self.rest_pos) end
end

-- ---- time ----------------------------------------------------------------------------------------------------------

--- Called by the server's tick.
function Connection:check(now)
  local limits = self.server.limits
  if self.in_flight > 0 then
    local accepted = self.written - self.stream:get_write_queue_size() - self.backlog_bytes
    if accepted > self.accepted then self.accepted, self.progress = accepted, now end
    if now - self.progress > limits.write_s * 1000 then
      self.server.counts.cut = self.server.counts.cut + 1
      return self:close()
    end
  end
  local events = self.stream_of_events
  if events and now - events.last >= limits.heartbeat_s * 1000 then events:comment "" end
  if self.deadline and now >= self.deadline then
    self.deadline = nil
    if self.state == "linger" or not self.parser:is_inside() then return self:close() end
    self:refuse(408, self.state == "body" and "the body took too long" or "the head took too long")
  end
end

return connection
