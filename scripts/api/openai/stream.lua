-- stream: a face (pipeline/init.lua) of OpenAI's kind: one JSON object, or the same in chunks as
-- server-sent events that end with "data: [DONE]". A shape says what differs between endpoints:
--
--   shape.chunk, shape.whole           the names of their objects
--   shape.head(req, out)               -> the first choice of a stream, or nil
--   shape.delta(req, out, delta)       -> a choice; delta: of pipeline/output.lua
--   shape.finish(req, out)             -> the last choice of a stream
--   shape.choice(req, out, bare)       -> the choice of a whole answer; bare: without logprobs
--   shape.columns(req, out, entry)     -> JSON texts of a token's logprobs
--   shape.logprobs_text(req, out, columns, part)   -> the logprobs of a choice, from lists of
--                                      these; part: of a chunk of a stream
--
-- Logprobs are written as text, since making objects of them costs twenty times as much: with 20
-- alternatives per token, 64 streams would hold the loop for 80 ms at each step. Choices have a
-- field `logprobs` for them, which is null.
--
-- An error in the middle of a stream is a chunk with {"error": …} and finish_reason "error", then
-- [DONE].
local async = require "lib.async"
local dialect = require "api.dialect"
local encode = require "api.encode"
local errors = require "api.openai.errors"
local perigee = require "perigee"
local json = perigee.json

local stream = {}

-- ---- objects ------------------------------------------------------------------------------------

--- The first fields of every object.
local function object_of(req, kind)
  return json.object { { "id", req.id }, { "object", kind }, { "created", req.received },
    { "model", req.model }, { "system_fingerprint", "perigee-" .. perigee.version } }
end

local function usage_object(usage)
  local details = json.object { { "cached_tokens", usage.cached_tokens } }
  if usage.image_tokens then details.image_tokens = usage.image_tokens end
  local made = json.object { { "reasoning_tokens", usage.reasoning_tokens or 0 } }
  if (usage.forced_tokens or 0) > 0 then made.forced_tokens = usage.forced_tokens end
  return json.object { { "prompt_tokens", usage.prompt_tokens },
    { "completion_tokens", usage.completion_tokens },
    { "total_tokens", usage.prompt_tokens + usage.completion_tokens },
    { "prompt_tokens_details", details },
    { "completion_tokens_details", made } }
end

local TIMINGS = { "queue_ms", "prefill_ms", "ttft_ms", "decode_ms", "prompt_per_second",
  "tokens_per_second" }

local function timings_object(usage)
  local out = json.object {}
  for _, name in ipairs(TIMINGS) do out[name] = usage.timings[name] or json.null end
  out.forced_tokens = usage.timings.forced_tokens -- only where there are some
  return out
end

--- Completes the last choice of an output: its finish_reason, ids if wanted, and `other`.
local function with_end(req, choice, out)
  choice.finish_reason = out.finish
  if req.return_ids and not out.altered then choice.token_ids = json.array(out.ids) end
  if #out.other == 0 then return choice end
  choice.other = json.array()
  for i, o in ipairs(out.other) do
    choice.other[i] = json.object { { "kind", o.kind }, { "text", o.text } }
  end
  return choice
end

--- JSON has no infinity; OpenAI writes this instead.
function stream.logprob(x) return math.max(x, -9999.0) end

-- ---- the face -----------------------------------------------------------------------------------

local Face = {}
Face.__index = Face

function stream.new(req, response, shape)
  return setmetatable({ req = req, response = response, shape = shape,
    streams = req.stream == true, headed = {}, frames = {} }, Face)
end

local function chunk_of(self, choices)
  local chunk = object_of(self.req, self.shape.chunk)
  chunk.choices = json.array(choices)
  if self.req.include_usage then chunk.usage = json.null end
  return chunk
end

local function send(self, choice) self.events:event(encode(chunk_of(self, { choice }))) end

function Face:begin()
  if self.streams then
    self.events = self.response:sse { ["x-perigee-request"] = self.req.id }
  end
end

local function head(self, out)
  if self.headed[out.index] then return end
  self.headed[out.index] = true
  local choice = self.shape.head(self.req, out)
  if choice then send(self, choice) end
end

--- Logprobs that have not been sent, if the client wants them. (An output made by a hook has none.)
local function logprobs(self, out)
  if not self.req.sampling.top_logprobs or not out.take_logprobs then return nil end
  local fresh = out:take_logprobs()
  return not out.altered and fresh or nil
end

-- Stand for text that is put in later. No client can know them, so no answer contains them.
local GAP, MARK = ("\1 %016x \1"):format(math.random(0)), ("\1 %016x \1"):format(math.random(0))
local GAP_TEXT, MARK_TEXT = encode(GAP), encode(MARK)

--- The two parts of a text around another.
local function cut(text, at)
  local from, to = text:find(at, 1, true)
  return text:sub(1, from - 1), text:sub(to + 1)
end

--- The JSON text of a list of logprobs.
local function logprobs_text(self, out, entries)
  if not entries or #entries == 0 then return "null" end
  local columns = {}
  for i, entry in ipairs(entries) do
    for k, column in ipairs(self.shape.columns(self.req, out, entry)) do
      columns[k] = columns[k] or {}
      columns[k][i] = column
    end
  end
  return self.shape.logprobs_text(self.req, out, columns, true)
end

--- Sends a chunk with the logprobs that have not been sent.
local function send_with_logprobs(self, out, choice)
  choice.logprobs = GAP
  local before, after = cut(encode(chunk_of(self, { choice })), GAP_TEXT)
  self.events:event(before .. logprobs_text(self, out, logprobs(self, out)) .. after)
end

-- Nearly all chunks of a stream differ in their text and logprobs alone. What is around these is
-- encoded once.

--- The three parts of a chunk around the text of a delta and its logprobs.
local function frame(self, out, delta)
  local known = self.frames[out.index]
  if known and known.type == delta.type and known.index == delta.index then return known end
  local like = { type = delta.type, index = delta.index }
  like[delta.type == "call" and "arguments" or "text"] = MARK
  local choice = self.shape.delta(self.req, out, like)
  choice.logprobs = GAP
  known = { type = delta.type, index = delta.index }
  known.before, known.between = cut(encode(chunk_of(self, { choice })), MARK_TEXT)
  known.between, known.after = cut(known.between, GAP_TEXT)
  self.frames[out.index] = known
  return known
end

function Face:delta(out, deltas)
  head(self, out)
  for i = 1, #deltas do
    local delta = deltas[i]
    if delta.name then
      send_with_logprobs(self, out, self.shape.delta(self.req, out, delta))
    else
      local around = frame(self, out, delta)
      self.events:event(around.before .. json.encode(delta.text or delta.arguments or "")
        .. around.between .. logprobs_text(self, out, logprobs(self, out)) .. around.after)
    end
  end
end

function Face:finish(out)
  head(self, out)
  send_with_logprobs(self, out, with_end(self.req, self.shape.finish(self.req, out), out))
end

local function done(self)
  self.events:event "[DONE]"
  self.events:finish()
end

local function with_usage(object, usage)
  object.usage = usage_object(usage)
  object.timings = timings_object(usage)
  return object
end

--- What an output keeps of a token's logprobs, if the client wants them (pipeline/output.lua).
function Face:columns(out, entry)
  if not self.req.sampling.top_logprobs then return nil end
  return self.shape.columns(self.req, out, entry)
end

--- Adds the text of a choice. Logprobs that were kept as texts are joined and forgotten.
local function put_choice(self, parts, out)
  local req = self.req
  local columns = out.columns and req.sampling.top_logprobs and not out.altered and out.written
  if not columns then
    logprobs(self, out)
    parts[#parts + 1] = encode(with_end(req, self.shape.choice(req, out), out))
    return
  end
  local choice = with_end(req, self.shape.choice(req, out, true), out)
  choice.logprobs = GAP
  local n = #parts
  parts[n + 1], parts[n + 3] = cut(encode(choice), GAP_TEXT)
  parts[n + 2] = self.shape.logprobs_text(req, out, columns)
  out.written, out.ats = {}, {}
end

--- All answers as one object: a list of texts, since together they may be too long for one string.
local function whole(self, outs, usage)
  local object = object_of(self.req, self.shape.whole)
  object.choices = json.array { GAP }
  local head_text, tail = cut(encode(with_usage(object, usage)), GAP_TEXT)
  local parts = { head_text }
  for i, out in ipairs(outs) do
    async.breathe()
    if i > 1 then parts[#parts + 1] = "," end
    put_choice(self, parts, out)
  end
  parts[#parts + 1] = tail
  return parts
end

--- All answers are complete. A stream gets the usage if it was asked for.
function Face:answer(outs, usage)
  if not self.streams then
    return self.response:send_parts(200, { ["content-type"] = "application/json",
      ["x-perigee-request"] = self.req.id }, whole(self, outs, usage))
  end
  if self.req.include_usage then
    self.events:event(encode(with_usage(chunk_of(self, {}), usage)))
  end
  done(self)
end

--- An error after `begin`.
function Face:fail(err)
  if not self.streams then return dialect.send(self.response, err) end
  local none = { index = 0, finish = "error", other = {}, ids = {} }
  local choice = with_end(self.req, self.shape.finish(self.req, none), none)
  local chunk = chunk_of(self, { choice })
  chunk.error = errors.object(err).error
  self.events:event(encode(chunk))
  done(self)
end

return stream
