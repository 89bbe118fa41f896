-- face: sends the answers of POST /v1/responses (pipeline/init.lua), and keeps them.
--
-- A stream begins with response.created and response.in_progress and ends with one of
-- response.completed, response.incomplete and response.failed, which has all of the response. A
-- background response was answered when it was queued; what comes of it is kept only.
local Answer = require "api.responses.answer"
local async = require "lib.async"
local dialect = require "api.dialect"
local encode = require "api.encode"
local errors = require "api.openai.errors"
local kept = require "api.responses.kept"
local object = require "api.responses.object"
local outputs = require "pipeline.output"
local perigee = require "perigee"
local json = perigee.json

local Face = {}
Face.__index = Face

-- ---- keeping ------------------------------------------------------------------------------------

--- JSON texts of the request's own items. They are made before the answer: a picture's source is
--- given up when it has been read.
local function input_texts(app, req)
  local texts = {}
  for _, item in ipairs(req.input) do
    async.breathe()
    local known = kept(item, function(id) return app.responses:item(req.key, id) end)
    if known then texts[#texts + 1] = encode(known) end
  end
  return texts
end

--- Keeps the response as it is now, if it is to be kept.
local function keep(self, response)
  local req = self.req
  if not req.keeps then return end
  local texts = {}
  for i, item in ipairs(response.output) do texts[i] = encode(item) end
  self.app.responses:put(req.key, { id = req.id, previous = req.previous,
    object = encode(response), input = self.input, output = texts,
    background = req.background, ended = self.ended })
end

-- ---- sending ------------------------------------------------------------------------------------

local function state_of(self, status, more)
  local state = { status = status, output = self.answers.items }
  for key, value in pairs(more or {}) do state[key] = value end
  return object.response(self.req, state)
end

--- The last event, or the whole response.
local function finish(self, event, response)
  keep(self, response)
  if self.ended then self.ended:set() end
  if self.events then
    self.answers:event(event, { { "response", response } })
    return self.events:finish()
  end
  if self.queued then return end
  self.response:send_parts(200, { ["content-type"] = "application/json",
    ["x-perigee-request"] = self.req.id }, { encode(response) })
end

--- A background request: unless it is streamed it is answered now, and the answer fetched later.
local function queue(self)
  self.stays, self.ended = true, async.signal()
  local response = state_of(self, "queued")
  keep(self, response)
  if self.streams then return end
  self.queued = true
  self.response:json(200, encode(response), { ["x-perigee-request"] = self.req.id })
end

function Face:begin()
  if self.ended then keep(self, state_of(self, "in_progress")) end
  if not self.streams then return end
  self.events = self.response:sse { ["x-perigee-request"] = self.req.id }
  self.answers.send = function(name, text) self.events:event(text, name) end
  for _, kind in ipairs { "created", "in_progress" } do
    self.answers:event(kind, { { "response", state_of(self, "in_progress") } })
  end
end

function Face:delta(out, deltas)
  if out.index > 0 then return end -- of a hook: a response is one answer
  for i = 1, #deltas do self.answers:add(deltas[i]) end
end

function Face:finish(out)
  if out.index > 0 then return end
  self.answers:close(out)
  self.closed = true
end

--- How an answer that is not simply complete ends: the event, the status, and why.
local ENDS = { length = { "incomplete", "incomplete", "max_output_tokens" },
  content_filter = { "incomplete", "incomplete", "content_filter" },
  cancel = { "completed", "cancelled" } }

function Face:answer(outs, usage)
  local out = outs[1]
  if not self.streams then self:delta(out, outputs.deltas(out)) end
  if not self.closed then self.answers:close(out) end
  local ending = ENDS[out.finish] or { "completed", "completed" }
  finish(self, ending[1], state_of(self, ending[2], { usage = usage, incomplete = ending[3] }))
end

--- The response of a request that failed.
local function failed(self, err)
  if err.code == "cancelled" then return state_of(self, "cancelled") end
  local said = errors.object(err).error
  return state_of(self, "failed", { error = { message = said.message,
    code = err.status < 500 and said.code ~= json.null and said.code or "server_error" } })
end

--- An error after `begin`.
function Face:fail(err)
  if self.events or self.queued then return finish(self, "failed", failed(self, err)) end
  if self.ended then finish(self, "failed", failed(self, err)) end
  dialect.send(self.response, err)
end

--- An error before `begin`. That a stream's prompt is too long is said in the stream: Codex then
--- stops, where it would try again after a refusal.
function Face:refuse(err)
  if err.field == "messages" then err.field = "input" end
  if self.streams and err.code == "context_length_exceeded" then self:begin() end
  if self.events or self.queued then return finish(self, "failed", failed(self, err)) end
  self.app:refuse(self.response, err)
end

return function(req, response, app)
  local self = setmetatable({ app = app, req = req, response = response, streams = req.stream,
    answers = Answer.new(req) }, Face)
  if req.keeps then self.input = input_texts(app, req) end
  if req.background then queue(self) end
  return self
end
