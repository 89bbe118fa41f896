-- sequences: the sequences that a run (pipeline/run.lua) has in a batch: from a prepared prompt to
-- outputs that fill up.
--
-- Everything here but `add` happens in callbacks of the batch, between steps, on the loop. An error
-- raised there ends its own run, never another one. A sequence of a run has fields of ours:
-- seq.output (pipeline/output.lua), seq.watcher (hooks/attach.lua, when hooks sit on it) and
-- seq.budget (pipeline/budget.lua, when it may think for so long).
local admission = require "pipeline.admission"
local budgets = require "pipeline.budget"
local errors = require "lib.errors"
local outputs = require "pipeline.output"
local parsers = require "parsers"
local perigee = require "perigee"
local uv = require "luv"

local sequences = {}

local function now_s() return uv.hrtime() * 1e-9 end

-- ---- events -------------------------------------------------------------------------------------

--- Notes when tokens came, for the timings and the metrics.
local function note_time(run, out, seq)
  local at = now_s()
  if not run.first_at then
    run.first_at, run.granted_at = at, seq.granted_at and seq.granted_at * 1e-9
  end
  if out.last_at and run.gap then run.gap(at - out.last_at) end
  out.last_at, run.last_at = at, at
end

local function on_token(run, event, seq)
  local watcher, out = seq.watcher, seq.output
  if watcher and not watcher:token(event, seq) then return end
  if event.id then note_time(run, out, seq) end
  local deltas = out:token(event)
  if seq.budget then seq.budget:token(event, out, seq) end
  if #deltas > 0 then run:send(out, deltas) end
  if out.enough and not out.ended then
    out.ended = true
    seq:cancel()
  end
end

local function on_done(run, seq)
  local out = seq.output
  if seq.watcher then seq.watcher:done(seq) end
  run.sequences[seq] = nil
  local whole = out.enough or seq.finish ~= "cancel"
  admission.left(run.entry.batch, seq.id, whole and seq.completion_tokens)
  local deltas = out:close(seq)
  if run.app.metrics then
    run.app.metrics.answers:add(1, { model = run.entry.name, reason = out.finish })
  end
  if #deltas > 0 then run:send(out, deltas) end
  if out.finish ~= "error" then run:finish(out) end
end

-- ---- the request of the batch -------------------------------------------------------------------

--- The special tokens that the parsers must see as text: a list and a set.
local function kept_marks(words, tok)
  if not (words and tok) then return {}, {} end
  local kept = rawget(words, "kept") -- words with formats of the site inherit from the model's
  if not kept then
    kept = { list = words:marks(tok), set = {} }
    for _, id in ipairs(kept.list) do kept.set[id] = true end
    words.kept = kept
  end
  return kept.list, kept.set
end

--- The token limit within context and caches: asking for more than there is room means all of it.
local function max_tokens(entry, tokens, asked)
  local _, all = entry.batch:room()
  local room = math.min((entry.context or entry.batch.core.context) - tokens, all - tokens + 1)
  return asked and math.min(asked, room) or nil
end

--- Fields of the batch that clients know under other names.
local NAMES = { stop_ids = "stop_token_ids", skip_special = "skip_special_tokens" }

--- A refusal of the batch as a request error.
local function refusal(why)
  if type(why) == "string" then return errors.new { message = why } end -- of engine/request.lua
  local err = errors.from(why)
  err.field = NAMES[err.field] or err.field
  return err
end

--- Ids that are banned by the client, and by us.
local function with_banned(list, more)
  if not (list and more) then return list or more end
  return table.move(more, 1, #more, #list + 1, table.move(list, 1, #list, 1, {}))
end

--- May text that must come be appended without the model?
local function fast_forward(run)
  local wanted = run.req.fast_forward
  if wanted == nil then wanted = run.app.config.fast_forward end
  return wanted ~= false
end

--- Is the answer to a prompt parsed? Then its stop texts are looked for in what the client reads of
--- it (pipeline/output.lua), else in all of it, by the batch.
local function is_parsed(run, prompt) return run.req.chat and prompt.words ~= nil end

--- What finds stop texts in answers to a prompt that is parsed; nil without any. Raises.
local function finder_of(run, prompt, stops)
  if not stops or not is_parsed(run, prompt) then return nil end
  local ok, finder, why = pcall(perigee.stops.open, stops)
  if ok and finder then return finder end
  error(refusal(ok and why or finder), 0)
end

--- The table for batch:add.
local function request_of(run, prompt, o)
  local request = {}
  for key, value in pairs(o.sampling) do request[key] = value end
  if is_parsed(run, prompt) then request.stop = nil end
  request.prompt, request.boundaries, request.n = prompt.ids, prompt.boundaries, o.n
  request.media, request.positions = prompt.media, prompt.positions
  request.rope_delta = prompt.rope_delta
  request.max_tokens = max_tokens(run.entry, #prompt.ids, request.max_tokens)
  request.force, request.phases = prompt.force, prompt.phases
  request.banned = with_banned(request.banned, prompt.banned)
  if request.phases then request.fast_forward = fast_forward(run) end
  local kept = kept_marks(prompt.words, run.entry.tok)
  if #kept > 0 then request.keep_special = kept end
  request.keep_logprobs = false
  request.on_token = function(event, seq)
    local ok, err = pcall(on_token, run, event, seq)
    if not ok then run:fail(err) end
  end
  request.on_done = function(seq)
    local ok, err = pcall(on_done, run, seq)
    if not ok then run:fail(err) end
    o.left()
  end
  return request
end

-- ---- outputs ------------------------------------------------------------------------------------

--- Lets `parse` hooks replace deltas. They get copies; a list that cannot be is reported, and the
--- parser's own is taken.
local function parse_hook(run)
  local req = run.req
  if not req.scripts:has "parse" then return nil end
  return function(deltas, is_sound)
    local copies = {}
    for i, delta in ipairs(deltas) do
      copies[i] = {}
      for key, value in pairs(delta) do copies[i][key] = value end
    end
    local answer = req.scripts:call("parse", req, copies)
    if not answer or is_sound(answer) then return answer end
    run:warn("parse", "deltas that cannot be")
  end
end

--- What is kept of logprobs: the texts of the API if nobody but it looks at them.
local function kept_logprobs(run, o)
  local scripts, face = run.req.scripts, run.face
  if o.live then return nil, not scripts:has "generate" end
  if scripts:has "generate" or scripts:has "respond" or not face.columns then return nil, false end
  return function(out, entry) return face:columns(out, entry) end, false
end

--- The thinking budget of a request: its own, or that of its effort.
local function tokens_to_think(run)
  local req = run.req
  return req.thinking_budget or (run.app.config.thinking_budgets or {})[req.effort]
end

--- The outputs of one prompt's sequences.
local function outputs_of(run, prompt, o)
  local words, chat, list = prompt.words, run.req.chat, {}
  local _, kept = kept_marks(words, run.entry.tok)
  local parse = parse_hook(run)
  local columns, forget = kept_logprobs(run, o)
  local known = chat and (prompt.known or parsers.known(chat.tools, run.req.allowed))
  local callable = chat and not run.req.bans_calls and chat.tools or nil
  local stops = o.sampling.stop
  if type(stops) == "string" then stops = { stops } end
  local finder = finder_of(run, prompt, stops)
  for i = 1, o.n do
    list[i] = outputs.new { index = o.first + i - 1, prompt = o.prompt, tok = run.entry.tok,
      live = o.live, kept = kept, parse = parse, logprobs = o.sampling.top_logprobs ~= nil,
      parser = is_parsed(run, prompt) and words:parser { tools = callable, known = known,
        prompt_tail = prompt.tail } or nil,
      columns = columns, forget = forget, hold = function(bytes) run:hold(bytes) end,
      most = o.sampling.max_tokens, least = o.sampling.min_tokens, stops = stops,
      finder = finder and assert(finder:fork()), exact = tokens_to_think(run) ~= nil,
      one_call = callable and chat.parallel_tool_calls == false,
      call_id = function() return (run.req.call_prefix or "call_") .. run.random_name() end }
  end
  return list
end

--- Gives sequences that will be added a thinking budget, if the request has one; returns how to
--- make each. A budget of nothing ends the thinking that the prompt began.
local function budget_of(run, prompt, request, first)
  local tokens = tokens_to_think(run)
  local closing = tokens and first.parser and budgets.closing(prompt.words, run.entry.tok)
  if not closing then return nil end
  request.watch = true
  if tokens == 0 and not request.force and first:thinking() then request.force = closing.first end
  return function() return budgets.new(tokens, closing, #(request.force or {})) end
end

--- Adds the sequences of one prompt to the run's batch; returns their outputs, or raises. o:
--- sampling, n, first (the index of the first choice), prompt (which one), live (deltas are sent as
--- they come), left (called when a sequence is done).
function sequences.add(run, prompt, o)
  local batch = run.entry.batch
  local request = request_of(run, prompt, o)
  local made = outputs_of(run, prompt, o)
  local budget = budget_of(run, prompt, request, made[1])
  local watchers = #run.attached > 0 and run.req.scripts.watch(run.req, run.attached, request,
    { tok = run.entry.tok, words = prompt.words, prompt_tail = prompt.tail,
      closing = budgets.closing,
      vocabulary = batch.core.vocabulary, context = batch.core.context })
  local added = table.pack(pcall(batch.add, batch, request))
  if not added[1] or not added[2] then error(refusal(added[1] and added[3] or added[2]), 0) end
  local predicted = admission.predict(batch, #prompt.ids,
    { n = o.n, max_tokens = request.max_tokens })
  for i = 1, added.n - 1 do
    local seq = added[i + 1]
    seq.output, run.sequences[seq] = made[i], true
    seq.budget = budget and budget()
    if watchers then watchers[i]:join(seq) end
    admission.joined(batch, seq.id, i == 1 and predicted or 0)
  end
  return made
end

return sequences
