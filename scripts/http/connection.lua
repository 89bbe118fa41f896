-- connection: one client. Reads requests in order, runs the handler of each in a task and writes
-- the responses in order.
--
-- The next request is parsed when the response to the previous one is finished and mostly sent.
-- Until then further bytes are read into a stash, so that a client that goes away is noticed and
-- its request aborted; when the stash is full, reading stops. A client that only closed its sending
-- side looks the same from here: its request is aborted too, but it gets whatever the handler still
-- sends, and so do the complete requests it sent before.
--
-- Data the socket does not take at once waits in the backlog; there is one write at a time.
--
--   head ─► body ─► busy ─► flush ─► head …
--                             └────► ending ─► linger ─► closed
--
-- head, body   reading a request, or waiting for one
-- busy         the handler runs
-- flush        the response is being sent, then the next request is read
-- ending       the last response is being sent
-- linger       our end is closed; input is discarded until the client closes its end or is silent,
--              because closing at once would reset the connection before the client has read the
--              response: many clients read it only after they have sent a whole body
-- Times are in milliseconds of the loop's clock and are checked by the server's tick.
local async = require "lib.async"
local fields = require "http.fields"
local parse = require "http.parse"
local request_of = require "http.request"
local response = require "http.response"
local status = require "http.status"
local uv = require "luv"

local connection = {}

local STASH = 64 << 10       -- bytes of further requests read while one is being processed
local SMALL = 2 << 10        -- bytes of a first request, or of a read, that never wait
local ENTRY = 64             -- memory of a backlog entry in addition to its bytes
local KEEPALIVE_S = 60       -- idle time before the first TCP keep-alive probe
local GONE = 499             -- status in the log if the client left first, as nginx has it
local RETRY = "retry-after: 1\r\n"
local CONTINUE = "HTTP/1.1 100 Continue\r\n\r\n"

local Connection = {}
Connection.__index = Connection

-- ---- opening and closing ------------------------------------------------------------------------

--- Takes an accepted stream. `kind`: "tcp" or "unix".
function connection.new(server, stream, kind)
  local self = setmetatable({ server = server, stream = stream, kind = kind,
    parser = parse.new(server.limits), state = "head", stay = true, requests = 0, held = 0,
    stash = {}, stash_bytes = 0, backlog = {}, backlog_bytes = 0, in_flight = 0, written = 0,
    unsent = 0, accepted = 0, progress = 0 }, Connection)
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

--- A larger body leaves an eighth of the room to others: ordinary requests are not refused because
--- of a few large ones.
local ORDINARY = 1 << 20

--- Records how many bytes of a body this connection holds; false if all connections together, or
--- those of the same owner (http.server's gate), hold too many.
function Connection:hold(bytes)
  local server, owner = self.server, self.owner or self.peer or self.kind
  local more = bytes - self.held
  if more == 0 then return true end
  local own = (server.held_by[owner] or 0) + more
  server.held, server.held_by[owner] = server.held + more, own > 0 and own or nil
  self.held = bytes
  local all, each = server.limits.bodies, server.limits.bodies_each
  if bytes > ORDINARY then all, each = all - all // 8, each - each // 8 end
  return server.held <= all and own <= each
end

--- Records how many bytes of this connection are unsent.
local function note_unsent(self)
  local server, bytes = self.server, self.in_flight + self.backlog_bytes
  server.unsent = server.unsent + bytes - self.unsent
  self.unsent = bytes
end

function Connection:set_deadline(seconds)
  self.deadline = uv.now() + seconds * 1000
end

--- May the response still be written?
function Connection:is_open()
  return self.state == "busy"
end

--- Is the client between two requests?
function Connection:is_idle()
  return self.state == "head" and not self.parser:is_inside()
end

--- Will another request be read on this connection?
function Connection:may_stay()
  return self.stay and not self.server.draining
end

--- This is the last response.
function Connection:leave()
  self.stay = false
end

--- Closes at once, whatever is in progress.
function Connection:close()
  if self.state == "closed" then return end
  self.state = "closed"
  self.stream:close()
  self.backlog, self.backlog_bytes, self.stash, self.rest = {}, 0, {}, nil
  self.parser:drop()
  self.in_flight = 0
  note_unsent(self)
  self:hold(0)
  if self.request then self.request:abort() end
  self:wake_writers(false)
  self.server:forget(self)
end

--- Closes after a failure in the server, such as lack of memory.
function Connection:fail(why)
  self.server:report(self.request, why)
  self:close()
end

--- Closes because the client does not read.
function Connection:cut()
  self.server.counts.cut = self.server.counts.cut + 1
  self:close()
end

--- Sends the rest, then closes our end and lingers.
function Connection:close_gently()
  self.state, self.deadline = "ending", nil
  if self.in_flight > 0 then return end
  self.state, self.lingered, self.linger_began = "linger", 0, uv.now()
  self:set_deadline(self.server.limits.linger_s)
  self.rest, self.stash, self.stash_bytes = nil, {}, 0
  self.parser:drop()
  self:hold(0)
  self:resume_reading()
  if self.at_end or not self.stream:shutdown() then self:close() end
end

--- Refuses the connection: there are too many.
function Connection:turn_away(why)
  self:refuse(503, why, RETRY)
end

--- Refuses input that is not a valid request, or cannot be accepted, and closes. `headers`: more
--- lines.
function Connection:refuse(code, message, headers)
  local body, kind = self.server.error_body(code, message, self.parser.request)
  self.server:count_refused(self, code, message)
  local head = "HTTP/1.1 %d %s\r\n%scontent-type: %s\r\ncontent-length: %d\r\n%s"
    .. "connection: close\r\n\r\n"
  self:write(head:format(code, status.reasons[code], self.server:common_headers(), kind, #body,
    headers or "") .. body)
  if self.state ~= "closed" then self:close_gently() end
end

-- ---- writing ------------------------------------------------------------------------------------

function Connection:waiting_bytes()
  return self.in_flight + self.backlog_bytes
end

function Connection:is_drained()
  return self:waiting_bytes() <= self.server.limits.low_water
end

--- Calls resume(true) when most data is sent, resume(false) when the client is gone. Returns a
--- function that cancels this.
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
  note_unsent(self)
  self.progress, self.accepted = uv.now(), self.written - self.backlog_bytes - #data
  if not self.stream:write(data, self.on_written) then self:close() end
end

--- Writes now, or later if the socket is full. Returns the number of unsent bytes, nil if the
--- client is gone. `bounded`: the connection is cut if more than limits.queue bytes are unsent.
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
  note_unsent(self)
  local limits = self.server.limits
  local many = bounded and self:waiting_bytes() + #self.backlog * ENTRY > limits.queue
  if many or self.server.unsent > limits.unsent then
    self:cut()
    return nil
  end
  return self:waiting_bytes()
end

--- A write has completed.
function Connection:wrote(err)
  if self.state == "closed" then return end
  if err then return self:close() end
  self.in_flight = 0
  note_unsent(self)
  if #self.backlog > 0 then
    local data = table.concat(self.backlog)
    self.backlog, self.backlog_bytes = {}, 0
    send_later(self, data)
  end
  if self:is_drained() then self:wake_writers(true) end
  if self.state == "flush" and self:is_drained() and not self.queued then
    self:next_request()
  elseif self.state == "ending" then
    self:close_gently()
  end
end

-- ---- reading ------------------------------------------------------------------------------------

function Connection:on_read(err, bytes)
  if self.state == "closed" then return end
  if err then return self:close() end
  if not bytes then return self:on_end() end
  local reads = self.state == "body" or self.state == "head" and not self:must_wait(#bytes)
  if reads and not self.inside then
    self:consume(bytes, 1)
    if self.state == "body" then self:rest_between_reads() end
  elseif self.state == "linger" then
    if not self:discard(#bytes) then return self:close() end
    self:rest_between_reads()
  else
    self.stash[#self.stash + 1] = bytes
    self.stash_bytes = self.stash_bytes + #bytes
    if self.stash_bytes > STASH then
      self.paused = true
      self.stream:read_stop()
    end
    if self.state == "head" and not self.inside then self:take_turns() end
    if #bytes > SMALL then self:rest_between_reads() end
  end
end

--- Counts input that is discarded; false if it has more bytes than two bodies, because one may be
--- refused for its size, or comes for too long. A client that sends gets linger_s more, within the
--- body_s that a body may take.
function Connection:discard(bytes)
  local limits = self.server.limits
  self.lingered = self.lingered + bytes
  if self.lingered > 2 * limits.body then return false end
  if uv.now() - self.linger_began > limits.body_s * 1000 then return false end
  self:set_deadline(limits.linger_s)
  return true
end

--- libuv reads up to 2 MB of a connection in one turn of the loop, and as much of the next one.
--- What is more than one read (a large body, further requests) goes on in the next turn if this one
--- has taken long enough.
function Connection:rest_between_reads()
  if self.paused or self.resting or self.at_end or not async.is_over() then return end
  self.resting = true
  self.stream:read_stop()
  async.defer(function()
    self.resting = false
    if self.state == "closed" or self.paused or self.at_end then return end
    self.stream:read_start(self.on_bytes)
  end)
end

--- Rests in the middle of a body in many chunks. What still comes until reading stops is stashed.
local function rest_inside(self, bytes, pos)
  self.resting, self.inside = true, true
  self.stream:read_stop()
  async.defer(function()
    self.resting, self.inside = false, false
    if self.state == "closed" then return end
    local ok, why = pcall(self.consume, self, bytes, pos)
    if not ok then return self:fail(why) end
    if self.state == "closed" or self.resting or self.paused or self.at_end then return end
    self.stream:read_start(self.on_bytes)
  end)
end

--- Has this turn of the loop computed enough? A connection's first request is served even then if
--- it is small, so that new clients do not wait for busy ones.
function Connection:must_wait(bytes)
  return (self.requests > 0 or bytes > SMALL) and async.is_over()
end

--- The client closed its sending side, or went away.
function Connection:on_end()
  self.at_end = true
  self.stream:read_stop()
  if self.inside then return end -- there is more to read, then the end is noticed
  if self.state == "busy" then
    self.request:abort()
  elseif self.state == "linger" then
    self:close()
  elseif self.state == "head" or self.state == "body" then
    self:end_of_input()
  end
end

--- The input ended; an incomplete request stays incomplete.
function Connection:end_of_input()
  if self.parser:is_inside() then
    self:refuse(400, "the request is incomplete")
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

--- The stash, or nil if it is empty.
local function take_stash(self)
  if self.stash_bytes == 0 then return nil end
  local bytes = table.concat(self.stash)
  self.stash, self.stash_bytes = {}, 0
  return bytes
end

--- Parses requests and serves them until the bytes are used up, a response takes longer or other
--- connections must get their turn.
local function consume(self, bytes, pos)
  if not bytes then bytes, pos = take_stash(self) or "", 1 end
  while true do
    local event, next_pos, code = self.parser:feed(bytes, pos)
    if event == "more" then
      bytes, pos = take_stash(self), 1
      if not bytes then return self:wait_for_more() end
    elseif event == "head" then
      pos = next_pos
    elseif event == "some" then
      pos = next_pos
      if async.is_over() then return rest_inside(self, bytes, pos) end
    elseif event == "request" then
      self.rest, self.rest_pos = bytes, next_pos
      self:serve(self.parser.request)
      if self.state ~= "head" then return end
      pos = next_pos
      if pos <= #bytes and async.is_over() then return self:take_turns() end
    else
      return self:refuse(code, next_pos)
    end
  end
end

function Connection:consume(bytes, pos)
  self.consuming = true -- so that an immediate response returns here instead of recursing
  consume(self, bytes, pos)
  self.consuming = false
end

--- Continues after other connections had their turn.
function Connection:take_turns()
  self.state, self.queued = "flush", true
  async.defer(function()
    self.queued = false
    if self.state ~= "flush" or not self:is_drained() then return end
    local ok, why = pcall(self.next_request, self)
    if not ok then self:fail(why) end
  end)
end

--- A body has begun and will take longer: passes the request through the gate first, so that a
--- client who may not ask cannot make the server wait for, or keep, a body. False if that is the
--- end of it.
local function enter_body(self, reader)
  local request = self.parser.request
  request_of(request, self)
  self.answer = response.new(self, request)
  local verdict = self.server.gate and self.server.gate(request, self.answer) or {}
  if verdict.stop then
    self.stay = false
    self.parser:drop() -- the body is not read
    self:serve(request)
    return false
  end
  self.owner = verdict.owner
  if not reader:bound(verdict.body or self.server.limits.body) then
    self:refuse(413, ("body is larger than %d bytes"):format(verdict.body))
    return false
  end
  if reader.received == 0 and request.version == "1.1" and request.headers.expect then
    self:write(CONTINUE)
  end
  self.state, self.body_mark = "body", 0
  self:set_deadline(self.server.limits.body_s)
  return true
end

--- Every body_s * body_rate bytes of a body must come within body_s. So a client that stops sending
--- is noticed after body_s, and the whole takes at most body_s and one second per body_rate bytes.
local function check_pace(self, reader)
  local limits = self.server.limits
  if reader.received - self.body_mark < limits.body_s * limits.body_rate then return end
  self.body_mark = reader.received
  self:set_deadline(limits.body_s)
end

--- All bytes are used up: sets the deadline for the rest of the request, or for the next one.
function Connection:wait_for_more()
  local limits, reader = self.server.limits, self.parser.reader
  self.rest = nil
  if self.at_end then return self:end_of_input() end
  self:resume_reading()
  if reader then
    if self.state == "head" and not enter_body(self, reader) then return end
    if self.state ~= "body" then return end
    check_pace(self, reader)
    if not self:hold(reader.received) then self:refuse(503, "too many large requests", RETRY) end
  elseif self.parser:is_inside() then
    if self.waits_for ~= "head" then self:set_deadline(limits.header_s) end
    self.waits_for = "head"
  elseif self.waits_for == "request" then
    self.waits_for = "first byte"
    self:set_deadline(limits.idle_s)
  end
end

-- ---- answering ----------------------------------------------------------------------------------

--- The handler returned without finishing the response.
local function end_unanswered(self, request, answer, fault)
  if fault and not answer.started then
    return answer:error(500, ("internal error, see the log for request %s"):format(request.id))
  end
  self.request = nil -- the server ends it, so it is not aborted
  self:close()
  answer:abandon(GONE)
end

--- Runs in the request's task.
local function handle(self, request, answer)
  local ok, err = xpcall(self.server.handler, debug.traceback, request, answer)
  local fault = not ok and err
  if ok and not answer.finished and not request.aborted then
    fault = answer.started and "the handler did not finish its response"
      or "the handler did not respond"
  end
  if fault then self.server:report(request, fault) end
  if not answer.finished then end_unanswered(self, request, answer, fault) end
end

--- Does the client want to keep the connection after this request?
local function wants_to_stay(request)
  local wish = request.headers.connection
  if request.version == "1.0" then
    return fields.has(wish, "keep-alive") and not fields.has(wish, "close")
  end
  return not wish or not fields.has(wish, "close")
end

function Connection:serve(request)
  self.requests = self.requests + 1
  self.state, self.waits_for, self.deadline = "busy", "request", nil
  if not wants_to_stay(request) or self.requests >= self.server.limits.requests then
    self.stay = false
  end
  self:hold(request.body and #request.body or 0)
  local answer = self.answer or response.new(self, request)
  self.request, self.answer = request_of(request, self), nil
  async.run(handle, self, request, answer)
end

--- Gives a large body back that the handler has left, now and not when it is collected.
local function drop_body(request)
  local body = request.body
  if type(body) == "userdata" then body:close() end
  request.body = nil
end

--- Called by the response when it is finished.
function Connection:answered(answer)
  drop_body(answer.request)
  self.server:log_answer(self, answer)
  self.stream_of_events, self.request = nil, nil
  self:hold(0)
  self.owner = nil
  if self.state ~= "busy" then return end
  self.state = "flush"
  if self:is_drained() then self:next_request() end
end

--- The last response is mostly sent.
function Connection:next_request()
  if not self:may_stay() then return self:close_gently() end
  self.state = "head"
  if not self.consuming then self:consume(self.rest, self.rest_pos) end
end

-- ---- time ---------------------------------------------------------------------------------------

--- Has the client taken too little for too long?
local function is_stuck(self, now)
  if self.in_flight == 0 then return false end
  local limits = self.server.limits
  local accepted = self.written - self.backlog_bytes - self.stream:get_write_queue_size()
  if accepted - self.accepted >= limits.write_s * limits.write_rate then
    self.accepted, self.progress = accepted, now
  end
  return now - self.progress > limits.write_s * 1000
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
