-- sequences: the sequences that a run (pipeline/init.lua) has in a batch: from a prepared prompt to outputs that fill up.
--
-- Everything here but `add` happens in callbacks of the batch, between steps, on the loop. What raises there ends the run, never
-- another one's.
local admission = require "pipeline.admission"
local errors = require "api.errors"
local opening = require "pipeline.opening"
local outputs = require "pipeline.output"
local schema = require "api.schema"
local uv = require "luv"

local sequences = {}

local function now_s() return uv.hrtime() * 1e-9 end

-- ---- tokens --------------------------------------------------------------------------------------------------------

--- May this output still be written to the client?
local function is_heard(run, out)
  return out.live and run.begun and not (run.cancelled == "gone" or run.failed or run.refused)
end

--- When tokens came, for the timings and the metrics.
local function note_time(run, out, seq)
  local at = now_s()
  if not run.first_at then run.first_at, run.granted_at = at, seq.granted_at and seq.granted_at * 1e-9 end
  if out.last_at and run.gap then run.gap(at - out.last_at) end
  out.last_at, run.last_at = at, at
end

local function on_token(run, out, event, seq)
  if event.id then note_time(run, out, seq) end
  local deltas = out:token(event)
  if #deltas > 0 and is_heard(run, out) then run.face:delta(out, deltas) end
  if out.enough and not out.ended then
    out.ended = true
    seq:cancel()
  end
end

local function on_done(run, out, seq)
  run.sequences[seq] = nil
  admission.left(run.entry.batch, seq.id, seq.finish ~= "cancel" and seq.completion_tokens)
  local deltas = out:close(seq)
  if run.app.metrics then run.app.metrics.answers:add(1, { model = run.entry.name, reason = out.finish }) end
  if not is_heard(run, out) then return end
  if #deltas > 0 then run.face:delta(out, deltas) end
  if out.finish ~= "error" then run.face:finish(out) end
end

-- ---- requests of the batch -----------------------------------------------------------------------------------------

local marks = setmetatable({}, { __mode = "k" }) -- words -> { list, set } of special tokens that the parsers must see

local function kept_marks(words, tok)
  if not (words and tok) then return {}, {} end
  if not marks[words] then
    local list, set = words:marks(tok), {}
    for _, id in ipairs(list) do set[id] = true end
    marks[words] = { list, set }
  end
  return table.unpack(marks[words])
end

--- The token limit within the context and the caches: asking for more than there is room for means all there is.
local function max_tokens(entry, tokens, asked)
  local _, all = entry.batch:room()
  local room = math.min((entry.context or entry.batch.core.context) - tokens, all - tokens + 1)
  return asked and math.min(asked, room) or nil
end

--- A refusal of the generator as a 400; its text begins with the name of the field where it is about one.
local function refusal(why)
  local code, text = type(why) == "table" and why.code, type(why) == "table" and why.message or tostring(why)
  if code == "memory" then return errors.new { status = 503, message = text, code = "overloaded" } end
  text = text:gsub("^stop_ids:", "stop_token_ids:") -- as clients call it
  local param = text:match "^'?([%l_]+)'?[: ]"
  return errors.new { status = 400, message = text, param = schema.known[param] and param or nil,
    code = code == "limit" and "context_length_exceeded" or nil }
end

--- What batch:add takes; of_seq: seq -> output, filled later.
local function request_of(run, prompt, o, of_seq)
  local request = {}
  for key, value in pairs(o.sampling) do request[key] = value end
  request.prompt, request.boundaries, request.n = prompt.ids, prompt.boundaries, o.n
  request.max_tokens = max_tokens(run.entry, #prompt.ids, request.max_tokens)
  request.force = opening.ids(run.req, run.entry, prompt)
  local kept = kept_marks(prompt.words, run.entry.tok)
  if #kept > 0 then request.keep_special = kept end
  request.on_token = function(event, seq)
    local ok, err = pcall(on_token, run, of_seq[seq], event, seq)
    if not ok then run:fail(err) end
  end
  request.on_done = function(seq)
    local ok, err = pcall(on_done, run, of_seq[seq], seq)
    if not ok then run:fail(err) end
    o.left()
  end
  return request
end

--- The events of a parser as `parse` scripts change them. What is no list of events any more is reported, and the parser's
--- own are taken.
local function parse_hook(run)
  local req = run.req
  if not req.generation:has "parse" then return nil end
  return function(events, is_sound)
    local copy = {}
    for i, event in ipairs(events) do
      copy[i] = {}
      for key, value in pairs(event) do copy[i][key] = value end
    end
    local answer = req.generation:call("parse", req, copy)
    if not answer or is_sound(answer) then return answer end
    run:warn("parse", "events that cannot be")
  end
end

--- The outputs of one prompt's sequences.
local function outputs_of(run, prompt, o)
  local req, words, list = run.req, prompt.words, {}
  local chat = req.api == "chat" and req.chat or nil
  local _, kept = kept_marks(words, run.entry.tok)
  local hook = parse_hook(run)
  for i = 1, o.n do
    list[i] = outputs.new { index = o.first + i - 1, prompt = o.prompt, tok = run.entry.tok, live = o.live, kept = kept,
      parser = chat and words and words:parser { tools = chat.tools, prompt_tail = prompt.tail }, hook = hook,
      logprobs = o.sampling.top_logprobs ~= nil, one_call = chat and chat.tools and chat.parallel_tool_calls == false,
      call_id = function() return "call_" .. run.random_name() end }
  end
  return list
end

--- Adds the sequences of one prompt to the run's batch; returns their outputs, or raises. o: sampling, n, first (the index of the
--- first choice), prompt (which one), live (deltas go to the client), left (called when a seq is done).
function sequences.add(run, prompt, o)
  local batch, of_seq = run.entry.batch, {}
  local request = request_of(run, prompt, o, of_seq)
  local made = outputs_of(run, prompt, o)
  local bind = #run.attached > 0 and run.req.generation:wrap(run.req, run.attached, request, { tok = run.entry.tok,
    words = prompt.words, prompt_tail = prompt.tail, prompt_tokens = #prompt.ids })
  local added = table.pack(pcall(batch.add, batch, request))
  if not added[1] or not added[2] then error(refusal(added[1] and added[3] or added[2]), 0) end
  local list = table.move(added, 2, added.n, 1, {})
  if bind then bind(list) end
  local predicted = admission.predict(batch, #prompt.ids, { n = o.n, max_tokens = request.max_tokens })
  for i, seq in ipairs(list) do
    of_seq[seq], run.sequences[seq] = made[i], true
    admission.joined(batch, seq.id, i == 1 and predicted or 0)
  end
  return made
end

return sequences
