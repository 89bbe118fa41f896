-- stream: a face (pipeline/init.lua) of OpenAI's kind: one JSON object, or the same in pieces as server-sent events, ended by
-- "data: [DONE]". What the pieces look like is told by a shape:
--
--   shape.head(req, out)               the first chunk of a choice, or nil
--   shape.delta(req, out, o)           o: delta, logprobs          -> a choice
--   shape.finish(req, out, o)          o: logprobs                 -> a choice
--   shape.chunk(req, choices), shape.answer(req, outs, usage)      -> the whole object
--
-- Every object passes the `respond` scripts before it is written. A chunk that they drop is not sent; a whole answer that they
-- drop is a 403. An error in the middle of a stream is a chunk with {"error": …} and finish_reason "error", then [DONE].
local perigee = require "perigee"
local errors = require "api.errors"
local json = perigee.json

local stream = {}

local Face = {}
Face.__index = Face

function stream.new(req, response, shape)
  return setmetatable({ req = req, response = response, shape = shape, streams = req.stream == true, headed = {}, frames = {} },
    Face)
end

local COMPACT = { compact = true }

local function encode(object) return json.encode(object, COMPACT) end

--- An object as text, as `respond` scripts want it; false when they want it dropped. What they make that is no JSON is reported,
--- and the object is sent as it was.
local function respond(self, object)
  local text, gen = encode(object), self.req.generation
  if not gen:has "respond" then return text end
  local answer = gen:call("respond", self.req, object)
  if not answer then return answer == nil and text end
  local ok, other = pcall(encode, answer)
  if ok then return other end
  self.run:warn("respond", "what is no JSON: " .. tostring(other))
  return text
end

local function send(self, choices)
  local text = respond(self, self.shape.chunk(self.req, choices))
  if text then self.events:event(text) end
end

function Face:begin()
  if self.streams then self.events = self.response:sse { ["x-perigee-request"] = self.req.id } end
end

local function head(self, out)
  if self.headed[out.index] then return end
  self.headed[out.index] = true
  local choice = self.shape.head(self.req, out)
  if choice then send(self, { choice }) end
end

--- Probabilities that have not been sent, when the client asked for them. (Outputs that a script made have none.)
local function logprobs(self, out)
  return self.req.sampling.top_logprobs and out.take_logprobs and out:take_logprobs() or nil
end

-- Nearly all chunks of a stream differ in one text alone. What is around it is made once, by the shape: a chunk whose text is
-- MARK, cut there.
local MARK = "\1 text \1"
local CUT = encode(MARK)

--- The two parts of a chunk around the delta's text.
local function frame(self, out, delta)
  local known = self.frames[out.index]
  if known and known.type == delta.type and known.index == delta.index then return known end
  local like = { type = delta.type, index = delta.index, text = MARK }
  local whole = encode(self.shape.chunk(self.req, { self.shape.delta(self.req, out, { delta = like }) }))
  local from, to = whole:find(CUT, 1, true)
  known = { type = delta.type, index = delta.index, before = whole:sub(1, from - 1), after = whole:sub(to + 1) }
  self.frames[out.index] = known
  return known
end

--- Does the chunk of this delta have nothing of its own but the text?
local function is_plain(self, delta)
  return delta.text and not self.req.sampling.top_logprobs and not self.req.generation:has "respond"
end

function Face:delta(out, deltas)
  head(self, out)
  for _, delta in ipairs(deltas) do
    if is_plain(self, delta) then
      local around = frame(self, out, delta)
      self.events:event(around.before .. json.encode(delta.text) .. around.after)
    else
      send(self, { self.shape.delta(self.req, out, { delta = delta, logprobs = logprobs(self, out) }) })
    end
  end
end

function Face:finish(out)
  head(self, out)
  send(self, { self.shape.finish(self.req, out, { logprobs = logprobs(self, out) }) })
end

local function done(self)
  self.events:event "[DONE]"
  self.events:finish()
end

--- All choices are there. A stream gets the usage when it was asked for.
function Face:answer(outs, usage)
  if not self.streams then
    for _, out in ipairs(outs) do
      if out.take_logprobs then out:take_logprobs() end
    end
    local text = respond(self, self.shape.answer(self.req, outs, usage))
    if not text then
      return errors.send(self.response, errors.new { status = 403, message = "the answer was withheld", code = "withheld" })
    end
    return self.response:send(200, { ["content-type"] = "application/json", ["x-perigee-request"] = self.req.id }, text)
  end
  if self.req.include_usage then
    local chunk = self.shape.chunk(self.req, json.array())
    chunk.usage = stream.usage(usage)
    chunk.timings = stream.timings(usage)
    local text = respond(self, chunk)
    if text then self.events:event(text) end
  end
  done(self)
end

--- An error behind `begin`.
function Face:fail(err)
  if not self.streams then return errors.send(self.response, err) end
  local chunk = self.shape.chunk(self.req, { self.shape.finish(self.req, { index = 0, finish = "error", other = {} }, {}) })
  chunk.error = errors.object(err).error
  self.events:event(encode(chunk))
  done(self)
end

-- ---- parts that all shapes have --------------------------------------------------------------------------------------

--- The first fields of every object.
function stream.object(req, kind)
  return json.object { { "id", req.id }, { "object", kind }, { "created", req.received }, { "model", req.model },
    { "system_fingerprint", "perigee-" .. perigee.version } }
end

function stream.usage(usage)
  return json.object { { "prompt_tokens", usage.prompt_tokens }, { "completion_tokens", usage.completion_tokens },
    { "total_tokens", usage.prompt_tokens + usage.completion_tokens },
    { "prompt_tokens_details", json.object { { "cached_tokens", usage.cached_tokens } } } }
end

local TIMINGS = { "queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "prompt_per_second", "tokens_per_second" }

function stream.timings(usage)
  local out = json.object {}
  for _, name in ipairs(TIMINGS) do out[name] = usage.timings[name] or json.null end
  return out
end

--- The end of a choice: what it holds besides content, thinking and calls (pipeline/output.lua), where there is such; and its
--- ids, where they are wanted.
function stream.ending(req, choice, out)
  choice.finish_reason = out.finish
  if req.return_ids then choice.token_ids = json.array(out.ids) end
  if #out.other == 0 then return choice end
  choice.other = json.array()
  for i, o in ipairs(out.other) do choice.other[i] = json.object { { "kind", o.kind }, { "text", o.text } } end
  return choice
end

--- JSON has no infinity; OpenAI writes this instead.
function stream.logprob(x) return math.max(x, -9999.0) end

return stream
