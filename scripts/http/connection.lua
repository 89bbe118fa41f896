-- connection: one client. Reads requests one after another, runs the handler of each in a task, writes the answers in order.
--
-- The next request is not looked at before the answer to the former is finished and most of it has left; bytes that come
-- meanwhile are kept up to a bound, then reading stops and the client has to wait. Reading goes on that far so that a client
-- that goes away is noticed: the request is aborted then. One that only closed its sending side is aborted as well, as it
-- looks the same from here, but gets what the handler still answers, and so do complete requests it sent before.
--
-- Writing: what the socket does not take at once waits in a list; one write is under way at a time.
--
-- state   "head", "body"  a request is read, or waited for
--         "busy"          it is answered
--         "flush"         the answer leaves, then the next request is read
--         "ending"        the last answer leaves
--         "linger"        our end is closed; what comes is thrown away until the client closes its own or time is up,
--                         because closing at once would reset the connection before the client has read the answer
--         "closed"
-- Times are those of the loop's clock in milliseconds and are looked at by the server's tick.
local async = require "lib.async"
local fields = require "http.fields"
local parse = require "http.parse"
local request_of = require "http.request"
local response = require "http.response"
local status = require "http.status"
local uv = require "luv"

local connection = {}

local STASH = 64 << 10       -- bytes of further requests that are read while one is answered
local ENTRY = 64             -- what a waiting piece costs beside its bytes
local BURST = 16             -- requests that are answered in one go before others get their turn
local LINGER_BYTES = 16 << 20 -- that are thrown away at the end
local KEEPALIVE_S = 60       -- TCP's own
local GONE = 499             -- in the log: the client did not wait for an answer
local RETRY = "retry-after: 1\r\n"
local CONTINUE = "HTTP/1.1 100 Continue\r\n\r\n"

local Connection = {}
Connection.__index = Connection

-- ---- life ----------------------------------------------------------------------------------------------------------

--- Takes an accepted stream. `kind`: "tcp" or "unix".
function connection.new(server, stream, kind)
  local self = setmetatable({ server = server, stream = stream, kind = kind, parser = parse.new(server.limits),
    state = "head", stay = true, requests = 0, held = 0, stash = {}, stash_bytes = 0,
    backlog = {}, backlog_bytes = 0, in_flight = 0, written = 0, accepted = 0, progress = 0 }, Connection)
  self.on_written = function(err) self:wrote(err) end
  self.on_bytes = function(err, bytes)
    local ok, why = pcall(self.on_read, self, err, bytes)
    if not ok then self:fail(why) end
  end
  if kind == "tcp" then
    stream:nodelay(true)
    stream:keepalive(true, KEEPALIVE_S)
    local peer = stream:getpeername()
    self.peer = peer and peer.ip
  end
  self:set_deadline(server.limits.header_s)
  stream:read_start(self.on_bytes)
  return self
end

--- Says how many bytes of a body this connection holds; false when all connections together hold too many.
function Connection:hold(bytes)
  local server = self.server
  server.held = server.held + bytes - self.held
  self.held = bytes
  return server.held <= server.limits.bodies
end

function Connection:set_deadline(seconds)
  self.deadline = uv.now() + seconds * 1000
end

--- May the answer still be written?
function Connection:is_open()
  return self.state == "busy"
end

--- Is the client between two requests?
function Connection:is_idle()
  return self.state == "head" and not self.parser:is_inside()
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
  self.backlog, self.backlog_bytes, self.stash, self.rest, self.parser.reader = {}, 0, {}, nil, nil
  self:hold(0)
  if self.request then self.request:abort() end
  self:wake_writers(false)
  self.server:forget(self)
end

--- Closes because something went wrong here, such as memory.
function Connection:fail(why)
  self.server:report(self.request, why)
  self:close()
end

--- Closes because the client does not do its part.
function Connection:cut()
  self.server.counts.cut = self.server.counts.cut + 1
  self:close()
end

--- Sends what is left, then closes our end and lingers.
function Connection:close_gently()
  self.state, self.deadline = "ending", nil
  if self.in_flight > 0 then return end
  self.state, self.lingered = "linger", 0
  self:set_deadline(self.server.limits.linger_s)
  self.rest, self.stash, self.stash_bytes, self.parser.reader = nil, {}, 0, nil
  self:hold(0)
  self:resume_reading()
  if self.at_end or not self.stream:shutdown() then self:close() end
end

--- There is no room for another connection.
function Connection:turn_away()
  self:refuse(503, "too many connections", RETRY)
end

--- Answers what is no request, or cannot be taken, and closes. `headers`: more lines.
function Connection:refuse(code, message, headers)
  local body, kind = self.server.error_body(code, message)
  self.server:count_refused(self, code, message)
  local head = "HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n"
  self:write(head:format(code, status.reasons[code], self.server:common_headers(), kind, #body,
    headers or "") .. body)
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
  if not self.stream:write(data, self.on_written) then self:close() end
end

--- Writes, now or when the socket takes it. Returns the bytes that wait, or nil when the client is gone. `bounded`: more
--- than limits.queue bytes waiting is the end of this connection.
function Connection:write(data, bounded)
  if self.state == "closed" then return nil end
  self.written = self.written + #data
  if self.in_flight == 0 then
    local sent, _, name = self.stream:try_write(data)
    if sent == #data then return 0 end
    if not sent and name ~= "EAGAIN" then
      self:close()
      return nil
    end
    send_later(self, sent and data:sub(sent + 1) or data)
    return self:waiting_bytes()
  end
  self.backlog[#self.backlog + 1] = data
  self.backlog_bytes = self.backlog_bytes + #data
  if bounded and self:waiting_bytes() + #self.backlog * ENTRY > self.server.limits.queue then
    self:cut()
    return nil
  end
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
  if self:is_drained() then self:wake_writers(true) end
  if self.state == "flush" and self:is_drained() then
    self:next_request()
  elseif self.state == "ending" then
    self:close_gently()
  end
end

-- ---- reading -------------------------------------------------------------------------------------------------------

function Connection:on_read(err, bytes)
  if self.state == "closed" then return end
  if err then return self:close() end
  if not bytes then return self:on_end() end
  if self.state == "head" or self.state == "body" then
    self:consume(bytes, 1)
  elseif self.state == "linger" then
    self.lingered = self.lingered + #bytes
    if self.lingered > LINGER_BYTES then self:close() end
  else
    self.stash[#self.stash + 1] = bytes
    self.stash_bytes = self.stash_bytes + #bytes
    if self.stash_bytes > STASH then
      self.paused = true
      self.stream:read_stop()
    end
  end
end

--- The client closed its sending side, or went away.
function Connection:on_end()
  self.at_end = true
  self.stream:read_stop()
  if self.state == "busy" then
    self.request:abort()
  elseif self.state == "linger" then
    self:close()
  elseif self.state == "head" or self.state == "body" then
    self:end_of_input()
  end
end

--- Nothing will complete what has been read.
function Connection:end_of_input()
  if self.parser:is_inside() then
    self:refuse(400, "the request is not complete")
  else
    self:close_gently()
  end
end

function Connection:resume_reading()
  if self.paused and not self.at_end then
    self.paused = false
    self.stream:read_start(self.on_bytes)
  end
end

--- What was read while the client had to wait, or nil.
local function take_stash(self)
  if self.stash_bytes == 0 then return nil end
  local bytes = table.concat(self.stash)
  self.stash, self.stash_bytes = {}, 0
  return bytes
end

--- Reads requests out of bytes and answers them until they are used up or an answer takes longer.
local function consume(self, bytes, pos)
  local served = 0
  while true do
    local event, next_pos, code = self.parser:feed(bytes, pos)
    if event == "more" then
      bytes, pos = take_stash(self), 1
      if not bytes then return self:wait_for_more() end
    elseif event == "head" then
      if next_pos > #bytes and self.parser.request.version == "1.1" and self.parser.request.headers.expect then
        self:write(CONTINUE)
        if self.state == "closed" then return end
      end
      pos = next_pos
    elseif event == "request" then
      self.rest, self.rest_pos = bytes, next_pos
      self:serve(self.parser.request)
      if self.state ~= "head" then return end
      pos, served = next_pos, served + 1
      if served >= BURST then return self:take_turns() end
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

--- Goes on after other connections had their turn.
function Connection:take_turns()
  self.state = "flush"
  async.run(function()
    async.sleep(0)
    if self.state == "flush" and self:is_drained() then self:next_request() end
  end)
end

--- All bytes are used up: sets the clock for the rest of the request, or for the next one.
function Connection:wait_for_more()
  local limits, reader = self.server.limits, self.parser.reader
  self.rest = nil
  if self.at_end then return self:end_of_input() end
  self:resume_reading()
  if reader then
    if self.state == "head" then self.state, self.body_began = "body", uv.now() end
    self.deadline = self.body_began + (limits.body_s + reader.received / limits.body_rate) * 1000
    if not self:hold(reader.received) then self:refuse(503, "too many large requests", RETRY) end
  elseif self.parser:is_inside() then
    if self.waits_for ~= "head" then self:set_deadline(limits.header_s) end
    self.waits_for = "head"
  elseif self.waits_for == "request" then
    self.waits_for = "first byte"
    self:set_deadline(limits.idle_s)
  end
end

-- ---- answering -----------------------------------------------------------------------------------------------------

--- The handler has ended without a finished answer.
local function end_unanswered(self, request, answer, fault)
  if fault and not answer.started then
    return answer:error(500, ("internal error, see the log for request %s"):format(request.id))
  end
  self.request = nil -- it is not the client who ends it now
  self:close()
  answer:abandon(GONE)
end

--- Runs in the request's task.
local function handle(self, request, answer)
  local ok, err = xpcall(self.server.handler, debug.traceback, request, answer)
  local fault = not ok and err
  if ok and not answer.finished and not request.aborted then
    fault = answer.started and "the handler did not finish its answer" or "the handler did not answer"
  end
  if fault then self.server:report(request, fault) end
  if not answer.finished then end_unanswered(self, request, answer, fault) end
end

--- Does the client want to go on after this request?
local function wants_to_stay(request)
  local wish = request.headers.connection
  if request.version == "1.0" then return fields.has(wish, "keep-alive") and not fields.has(wish, "close") end
  return not wish or not fields.has(wish, "close")
end

function Connection:serve(request)
  self.requests = self.requests + 1
  self.state, self.waits_for, self.deadline = "busy", "request", nil
  if not wants_to_stay(request) or self.requests >= self.server.limits.requests then self.stay = false end
  self:hold(request.body and #request.body or 0)
  self.request = request_of(request, self)
  async.run(handle, self, request, response.new(self, request))
end

--- The response tells that it is finished.
function Connection:answered(answer)
  self.server:log_answer(self, answer)
  self.stream_of_events, self.request = nil, nil
  self:hold(0)
  if self.state ~= "busy" then return end
  self.state = "flush"
  if self:is_drained() then self:next_request() end
end

--- The last answer has left, mostly.
function Connection:next_request()
  if not self:may_stay() then return self:close_gently() end
  self.state = "head"
  if not self.consuming then self:consume(self.rest, self.rest_pos) end
end

-- ---- time ----------------------------------------------------------------------------------------------------------

--- Has the client accepted nothing for too long?
local function is_stuck(self, now)
  if self.in_flight == 0 then return false end
  local accepted = self.written - self.backlog_bytes - self.stream:get_write_queue_size()
  if accepted > self.accepted then self.accepted, self.progress = accepted, now end
  return now - self.progress > self.server.limits.write_s * 1000
end

--- Called by the server's tick.
function Connection:check(now)
  if is_stuck(self, now) then return self:cut() end
  local events = self.stream_of_events
  if events then events:keep_alive(now, self.in_flight == 0) end
  if not self.deadline or now < self.deadline then return end
  self.deadline = nil
  if self.parser:is_inside() and self.state ~= "linger" then
    self:refuse(408, ("the %s took too long"):format(self.state))
  else
    self:close()
  end
end

return connection
