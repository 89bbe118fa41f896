-- pipeline: the way of one request, whatever API it came by:
--
--   request -> model -> normalize -> template -> admit -> generate ( rows of the batch -> parse ) -> respond -> done
--
-- An API makes a req (pipeline.request), and a face: how answers look to its clients.
--
--   face:begin(req)                     the rows have joined: from here on errors are part of the answer
--   face:delta(output, deltas)          more of an answer (only while face.streams)
--   face:finish(output)                 an answer is whole (only while face.streams)
--   face:answer(outputs, usage)         all are
--   face:fail(err)                      after begin
--
-- pipeline.serve(app, req, face) runs it inside a task and returns true, or nil and an error (api/errors.lua) when nothing has
-- been begun. Rows tell about their tokens from the loop, between steps; only the task waits.
--
-- app.live[id] is the run of every request that is on its way; run:cancel(why) ends it at the next step. A client that goes
-- away, DELETE /v1/requests/{id} and a failure inside a callback all end here.
local admission = require "serve.admission"
local async = require "lib.async"
local errors = require "api.errors"
local opening = require "serve.opening"
local outputs = require "serve.output"
local prompts = require "serve.prompt"
local schema = require "api.schema"
local uv = require "luv"

local pipeline = {}

-- ---- requests ------------------------------------------------------------------------------------------------------

local function random_name()
  return (uv.random(12):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end
pipeline.random_name = random_name

--- A req out of what an API read. `request`: that of HTTP.
function pipeline.request(fields, request)
  local key = request.key
  fields.id = fields.id .. random_name()
  fields.path, fields.headers, fields.peer = request.path, request.headers, request.peer
  fields.key = key and key.name
  fields.received, fields.started = os.time(), request.started or uv.hrtime()
  fields.sampling, fields.ctx, fields.tag, fields.attached = fields.sampling or {}, {}, {}, {}
  fields.n = fields.n or 1
  --- Names a script of the generation for this request's rows: its logits and token hooks run for them.
  function fields:attach(name, params) self.attached[#self.attached + 1] = { name = name, params = params or {} } end
  return fields
end

-- ---- one run -------------------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

--- Ends the rows at the next step. `why`: "gone" when nobody listens any more.
function Run:cancel(why)
  self.cancelled = self.cancelled or why or "cancelled"
  for row in pairs(self.rows) do row:cancel() end
end

--- Something of ours raised in the middle of an answer.
local function broken(self, err)
  self.app.log:note("error", ("%s: %s"):format(self.req.id, tostring(err)))
  self.failed = self.failed or errors.from(err)
  self:cancel "failed"
end

local function now_s() return uv.hrtime() * 1e-9 end

-- ---- rows ----------------------------------------------------------------------------------------------------------

--- Which special tokens the parsers must see; as a list and as a set.
local function kept_marks(words, tok)
  local list, set = words and tok and words:marks(tok) or {}, {}
  for _, id in ipairs(list) do set[id] = true end
  return list, set
end

local function salt_of(app, key)
  if not (app.config.cache_per_key and key) then return nil end
  local hash = 0xcbf29ce484222325
  for i = 1, #key do hash = (hash ~ key:byte(i)) * 0x100000001b3 end
  return hash & math.maxinteger
end

--- What batch:add takes, but for the prompt and the callbacks.
local function sampling_of(self, options)
  local out = {}
  for key, value in pairs(self.app.config.defaults or {}) do out[key] = value end
  for key, value in pairs(self.req.sampling) do out[key] = value end
  for key, value in pairs(options.sampling or {}) do out[key] = value end
  if out.top_k == -1 then out.top_k = 0 end
  if options.logprobs and not out.top_logprobs then out.top_logprobs = 0 end -- their sum is asked for
  out.seed = out.seed or math.random(0, math.maxinteger >> 1)
  out.salt = salt_of(self.app, self.req.key)
  out.tag = self.req.tag
  return out
end

--- The token limit within the context and the caches: asking for more than there is room for means all there is.
local function max_tokens(entry, tokens, asked)
  local _, all = entry.batch:room()
  local room = math.min((entry.context or entry.batch.core.context) - tokens, all - tokens + 1)
  return asked and math.min(asked, room) or nil
end

--- One token of one row.
local function on_token(self, out, event, row)
  local at = now_s()
  if event.id then
    if not self.first_at then
      self.first_at, self.granted_at = at, row.granted_at and row.granted_at * 1e-9
    end
    local metrics = self.app.metrics
    if out.last_at and metrics then metrics.inter_token:observe(at - out.last_at, self.labels) end
    out.last_at, self.last_at = at, at
  end
  local deltas = out:token(event)
  if out.live and (#deltas > 0) then self.face:delta(out, deltas) end
  if out.enough and not out.ended then
    out.ended = true
    row:cancel()
  end
end

local function on_done(self, out, row)
  self.rows[row] = nil
  admission.left(self.entry.batch, row.row, row.finish ~= "cancel" and row.completion_tokens)
  local deltas = out:close(row)
  if self.app.metrics then self.app.metrics.answers:add(1, { model = self.entry.name, reason = out.finish }) end
  if not out.live or self.cancelled == "gone" then return end
  if #deltas > 0 then self.face:delta(out, deltas) end
  if out.finish ~= "error" then self.face:finish(out) end
end

local function guarded(self, f)
  return function(...)
    local ok, err = pcall(f, self, ...)
    if not ok then broken(self, err) end
  end
end

--- A refusal of the generator as a 400; its text begins with the name of the field where it is about one.
local function refusal(why)
  local code, text = type(why) == "table" and why.code, type(why) == "table" and why.text or tostring(why)
  if code == "nomem" then return errors.new { status = 503, message = text, code = "overloaded" } end
  text = text:gsub("^stop_ids:", "stop_token_ids:") -- as clients call it
  local param = text:match "^'?([%l_]+)'?[: ]"
  return errors.new { status = 400, message = text, param = schema.known[param] and param or nil,
    code = code == "limit" and "context_length_exceeded" or nil }
end

--- Adds the rows of one prompt. o: sampling, n, first (index of the first choice), live, left (called when a row is done).
local function add_rows(self, prompt, o)
  local req, entry = self.req, self.entry
  local kept, kept_set = kept_marks(self.words, entry.tok)
  local request, of_row = {}, {}
  for key, value in pairs(o.sampling) do request[key] = value end
  request.prompt, request.boundaries, request.n = prompt.ids, prompt.boundaries, o.n
  request.max_tokens = max_tokens(entry, #prompt.ids, request.max_tokens)
  if #kept > 0 then request.keep_special = kept end
  local token, done = guarded(self, on_token), guarded(self, on_done)
  request.on_token = function(event, row) token(of_row[row], event, row) end
  request.on_done = function(row)
    done(of_row[row], row)
    o.left()
  end
  local bind = #self.attached > 0 and req.generation:wrap(req, self.attached, request, { tok = entry.tok, words = self.words,
    prompt_tail = prompt.tail, prompt_tokens = #prompt.ids })
  local forced = opening.ids(req, entry, self.words, prompt)
  local rows = table.pack(pcall(entry.batch.add, entry.batch, request))
  if not rows[1] or not rows[2] then
    error(refusal(rows[1] and rows[3] or rows[2]), 0)
  end
  if bind then bind(table.move(rows, 2, rows.n, 1, {})) end
  local predicted = admission.predict(entry.batch, #prompt.ids, { n = o.n, max_tokens = request.max_tokens })
  local parsed = req.api ~= "completions"
  local hook
  if req.generation:has "parse" then hook = function(events) return req.generation:call("parse", req, events) end end
  for i = 2, rows.n do
    local row = rows[i]
    local out = outputs.new { index = o.first + i - 2, prompt = o.prompt, tok = entry.tok, live = o.live, kept = kept_set,
      parser = parsed and self.words and self.words:parser { tools = req.chat.tools, prompt_tail = prompt.tail } or nil,
      logprobs = request.top_logprobs ~= nil,
      one_call = parsed and req.chat.tools and req.chat.parallel_tool_calls == false, hook = hook,
      call_id = function() return "call_" .. random_name() end }
    of_row[row], self.rows[row] = out, true
    o.outputs[#o.outputs + 1] = out
    admission.joined(entry.batch, row.row, i == 2 and predicted or 0)
    if forced then row:force(forced) end
  end
end

local function cancelled() return errors.new { status = 409, message = "the request was cancelled", code = "cancelled" } end

--- From here on errors are part of the answer.
local function begin(self)
  if self.begun then return end
  self.begun = true
  self.face:begin(self.req)
end

--- Runs the rows of the request until all are done; returns the list of outputs. options: silent, n, sampling, logprobs, chat.
local function generate(self, options)
  local req = self.req
  if self.cancelled then error(cancelled(), 0) end
  local list = self.prompts
  if options.chat then
    req.chat = options.chat
    list = { prompts.chat(req, self.entry, self.words) }
  end
  local live = self.face.streams and not options.silent and not self.streamed
  local n = options.n or req.best_of or req.n
  local sampling = sampling_of(self, { sampling = options.sampling, logprobs = options.logprobs or req.best_of })
  local made, open, wake = {}, 0, nil
  local function left()
    open = open - 1
    if open == 0 and wake then wake() end
  end
  if live then self.streamed = true end
  for i, prompt in ipairs(list) do
    open = open + n
    local ok, err = pcall(add_rows, self, prompt, { sampling = sampling, n = n, first = (i - 1) * n, prompt = i, live = live,
      outputs = made, left = left })
    if not ok then
      open = open - n
      self.refused = err
      self:cancel "failed"
      break
    end
  end
  if not self.refused then begin(self) end
  if open > 0 then
    async.await(function(resume) wake = resume end)
    wake = nil
  end
  if self.refused then error(self.refused, 0) end
  if self.failed then error(self.failed, 0) end
  for _, out in ipairs(made) do
    out.sent = out.live
    self.all[#self.all + 1] = out
  end
  return made
end

-- ---- the phases ----------------------------------------------------------------------------------------------------

local function rejected(gen, answer)
  if answer ~= nil and gen.rejected(answer) then error(errors.new(answer), 0) end
  return answer
end

--- request, model, normalize, template, admit: everything before the rows.
local function prepare(self)
  local app, req = self.app, self.req
  local gen = req.generation
  if gen:has "request" then rejected(gen, gen:wait("request", req)) end
  local attached, unknown = gen:attached(req)
  if not attached then error(errors.new { status = 400, param = "perigee", message = unknown }, 0) end
  self.attached = attached
  local entry, err = app.models:find(req.model)
  if not entry then error(errors.new(err), 0) end
  self.entry, self.labels, req.model = entry, { model = entry.name }, entry.name
  err = admission.early(app, entry)
  if err then error(err, 0) end
  local param
  if req.api == "chat" then
    self.words, param = gen:words(entry), "messages"
    self.prompts = { prompts.chat(req, entry, self.words) }
  else
    self.prompts, param = {}, "prompt"
    for i, given in ipairs(req.prompts) do
      self.prompts[i] = prompts.plain(entry, given, { add_special = req.add_special, param = param })
    end
  end
  req.ids, req.all_ids, req.prompt_tokens = self.prompts[1].ids, {}, 0
  local predicted = 0
  for i, prompt in ipairs(self.prompts) do
    local tokens = #prompt.ids
    req.all_ids[i] = prompt.ids
    err = admission.fits(entry, tokens, param)
    if err then error(err, 0) end
    req.prompt_tokens = req.prompt_tokens + tokens
    predicted = predicted + admission.predict(entry.batch, tokens, { n = req.best_of or req.n,
      max_tokens = req.sampling.max_tokens })
  end
  local queue
  err, queue = admission.late(app, entry, predicted)
  if err then error(err, 0) end
  local now = app.scripts:current()
  local answer = now:has "admit" and rejected(now, now:call("admit", req, queue)) or {}
  for key, value in pairs(answer) do req.tag[key] = value end
  req.tag.key, req.tag.model, req.tag.api = req.key, entry.name, req.api
end

--- The best n of each prompt's choices, by mean log probability.
local function best(req, made)
  if not req.best_of then return made end
  local function mean(out) return #out.ids > 0 and out.logprob / #out.ids or -math.huge end
  local by_prompt, chosen = {}, {}
  for _, out in ipairs(made) do
    by_prompt[out.prompt] = by_prompt[out.prompt] or {}
    table.insert(by_prompt[out.prompt], out)
  end
  for _, list in ipairs(by_prompt) do
    table.sort(list, function(a, b) return mean(a) > mean(b) or mean(a) == mean(b) and a.index < b.index end)
    for i = 1, req.n do chosen[#chosen + 1] = list[i] end
  end
  for i, out in ipairs(chosen) do out.index = i - 1 end
  return chosen
end

--- What the client gets: the outputs of the rows, or what `generate` scripts made of them.
local function answers(self)
  local req = self.req
  local gen = req.generation
  if not gen:has "generate" then return best(req, generate(self, {})) end
  local result = gen:wait("generate", req, function(_, options)
    local o = { logprobs = true }
    for key, value in pairs(options or {}) do o[key] = value end
    local made = generate(self, o)
    if o.n or #made ~= 1 then return made end
    return made[1]
  end)
  if result == nil then return best(req, generate(self, {})) end
  local list = result[1] and result or { result }
  for i, out in ipairs(list) do list[i] = outputs.adopt(out, i - 1) end
  return list
end

-- ---- accounts ------------------------------------------------------------------------------------------------------

local function milliseconds(from, to) return from and to and math.max(0, math.floor((to - from) * 1e6) / 1e3) or nil end

--- Milliseconds of the request's stations, and tokens per second.
local function timings(self, usage)
  local received = self.req.started * 1e-9
  local granted = self.granted_at or self.added_at
  local decode = self.first_at and self.last_at and self.last_at - self.first_at or 0
  local prefill = self.first_at and granted and self.first_at - granted
  local read = usage.prompt_tokens - usage.cached_tokens
  return { queue_ms = milliseconds(received, granted), prefill_ms = milliseconds(granted, self.first_at),
    ttft_ms = milliseconds(received, self.first_at), decode_ms = milliseconds(self.first_at, self.last_at),
    prompt_per_second = prefill and prefill > 0 and math.floor(read / prefill * 100) / 100 or nil,
    tokens_per_second = decode > 0 and math.floor((usage.completion_tokens - 1) / decode * 100) / 100 or nil }
end

--- Prompt, answer and cached tokens of everything that ran for the request.
local function usage_of(self)
  local usage = { prompt_tokens = self.req.prompt_tokens or 0, completion_tokens = 0, cached_tokens = 0 }
  local seen = {}
  for _, out in ipairs(self.all) do
    usage.completion_tokens = usage.completion_tokens + out.usage.completion_tokens
    if not seen[out.prompt] then
      seen[out.prompt] = true
      usage.cached_tokens = usage.cached_tokens + out.usage.cached_tokens
    end
  end
  usage.timings = timings(self, usage)
  return usage
end

--- Tells metrics and the access log, before the last byte of the answer: with that the log's line is written.
local function observe(self, usage, finish)
  local m, labels, t, log = self.app.metrics, self.labels, usage.timings, self.log
  log.finish = finish
  log.model, log.prompt_tokens, log.completion_tokens = self.req.model, usage.prompt_tokens, usage.completion_tokens
  log.cached_tokens, log.ttft_ms = usage.cached_tokens, t.ttft_ms
  if not m or not labels then return end
  m.prompt_tokens:add(usage.prompt_tokens, labels)
  m.generated_tokens:add(usage.completion_tokens, labels)
  m.cached_tokens:add(usage.cached_tokens, labels)
  if t.ttft_ms then m.ttft:observe(t.ttft_ms * 1e-3, labels) end
  if t.queue_ms then m.queue_time:observe(t.queue_ms * 1e-3, labels) end
end

-- ---- the whole -----------------------------------------------------------------------------------------------------

--- A row that ended with an error. That nothing is left to draw from is the request's own doing.
local function failure(why)
  local text = tostring(why)
  local own = text:find("leave no token", 1, true) ~= nil
  return errors.new { status = own and 400 or 500, message = text, code = not own and "generation_failed" or nil }
end

local function perform(self)
  prepare(self)
  self.added_at = now_s()
  local list = answers(self)
  for _, out in ipairs(list) do
    if out.finish == "error" then error(failure(out.error), 0) end
  end
  local usage = usage_of(self)
  observe(self, usage, list[1] and list[1].finish)
  if self.cancelled ~= "gone" then
    begin(self)
    for _, out in ipairs(list) do
      if self.face.streams and not out.sent and not self.streamed then
        self.face:delta(out, outputs.deltas(out))
        self.face:finish(out)
      end
    end
    self.face:answer(list, usage)
  end
  return usage
end

--- Serves a request inside a task. o: log (a table that gets what the access log wants to know). True, or nil and an error.
function pipeline.serve(app, req, face, o)
  local gen = app.scripts:current()
  gen:retain()
  req.generation = gen
  local self = setmetatable({ app = app, req = req, face = face, rows = {}, all = {}, log = o and o.log or {} }, Run)
  app.live = app.live or {}
  app.live[req.id] = self
  face.run = self
  local ok, usage = pcall(perform, self)
  app.live[req.id] = nil
  local err
  if not ok then
    err = errors.from(usage)
    if not errors.is(usage) then app.log:note("error", ("%s: %s"):format(req.id, tostring(usage))) end
    usage = usage_of(self)
    observe(self, usage, "error")
    if self.begun and self.cancelled ~= "gone" then face:fail(err) end
  end
  if gen:has "done" then gen:wait("done", req, usage) end
  gen:release()
  if err and not self.begun then return nil, err end
  return true
end

--- Nobody listens any more.
function pipeline.gone(app, id)
  local run = app.live and app.live[id]
  if run then run:cancel "gone" end
end

--- Ends a request by the id of its response; false when there is none, or it is another key's.
function pipeline.cancel(app, id, key)
  local run = app.live and app.live[id]
  if not run or run.req.key ~= key then return false end
  run:cancel "cancelled"
  return true
end

return pipeline
