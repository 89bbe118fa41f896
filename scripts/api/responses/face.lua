-- face: sends the answers of POST /v1/responses (pipeline/init.lua), and keeps them.
--
-- A stream begins with response.created and response.in_progress and ends with one of
-- response.completed, response.incomplete and response.failed, which has all of the response. A
-- background response was answered when it was queued; what comes of it is kept only.
local Answer = require "api.responses.answer"
local async = require "lib.async"
local chat = require "api.openai.chat"
local dialect = require "api.dialect"
local encode = require "api.encode"
local errors = require "api.openai.errors"
local kept = require "api.responses.kept"
local logprobs = require "api.responses.logprobs"
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

--- Keeps the response as it is now, if it is to be kept. done: that is how it stays.
local function keep(self, response, done)
  local req = self.req
  if not req.keeps then return end
  local texts = {}
  for i, item in ipairs(response.output) do texts[i] = self.answers:encode(item) end
  self.app.responses:put(req.key, { id = req.id, previous = req.previous,
    object = self.answers:encode(response), input = self.input, output = texts,
    background = req.background, ended = self.ended }, done)
end

-- ---- sending ------------------------------------------------------------------------------------

local function state_of(self, status, more)
  local state = { status = status, output = self.answers.items }
  for key, value in pairs(more or {}) do state[key] = value end
  return object.response(self.req, state)
end

--- The last event, or the whole response.
local function finish(self, event, response)
  keep(self, response, true)
  if self.ended then self.ended:set() end
  if self.events then
    self.answers:event(event, { { "response", response } })
    return self.events:finish()
  end
  if self.queued then return end
  self.response:send_parts(200, { ["content-type"] = "application/json",
    ["x-perigee-request"] = self.req.id }, { self.answers:encode(response) })
end

--- A background request: unless it is streamed it is answered now, and the answer fetched later.
local function queue(self)
  self.stays, self.ended = true, async.signal()
  local response = state_of(self, "queued")
  keep(self, response)
  if self.req.stream then return end
  self.queued = true
  self.response:json(200, encode(response), { ["x-perigee-request"] = self.req.id })
end

function Face:begin()
  if self.ended then keep(self, state_of(self, "in_progress")) end
  if not self.req.stream then return end
  self.events = self.response:sse { ["x-perigee-request"] = self.req.id }
  self.answers.send = function(name, text) self.events:event(text, name) end
  for _, kind in ipairs { "created", "in_progress" } do
    self.answers:event(kind, { { "response", state_of(self, "in_progress") } })
  end
end

--- The tokens since the last delta, if their logprobs are wanted. Those of an answer that a hook
--- made or changed are not shown.
local function tokens_of(self, out)
  if not self.req.sampling.top_logprobs or not out.take_logprobs then return nil end
  self.tokens = self.tokens or logprobs.new()
  local run, bytes = self.app.live[self.req.id], 0
  for _, entry in ipairs(out:take_logprobs()) do
    local text = chat.shape.columns(self.req, out, entry)[1]
    self.tokens:add(entry.bytes, text)
    bytes = bytes + #text
  end
  if run then run:hold(bytes) end
  return not out.altered and self.tokens or nil
end

function Face:delta(out, deltas)
  if out.index > 0 then return end -- of a hook: a response is one answer
  local tokens = tokens_of(self, out)
  for i = 1, #deltas do self.answers:add(deltas[i], tokens) end
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
  if self.req.stream and err.code == "context_length_exceeded" then self:begin() end
  if self.events or self.queued then return finish(self, "failed", failed(self, err)) end
  self.app:refuse(self.response, err)
end

return function(req, response, app)
  -- With logprobs the pieces are needed as they come, whether they are sent or not.
  local self = setmetatable({ app = app, req = req, response = response,
    streams = req.stream or req.sampling.top_logprobs ~= nil, answers = Answer.new(req) }, Face)
  if req.keeps then self.input = input_texts(app, req) end
  if req.background then queue(self) end
  return self
end
