-- pipeline: the way of one request, whatever API it came by:
--
--   request -> model -> normalize -> template -> admit -> generate ( sequences of the batch -> parse ) -> respond -> done
--
-- An API makes a req (pipeline.request), and a face: how answers look to its clients.
--
--   face:begin(req)                     the sequences have joined: from here on errors are part of the answer
--   face:delta(output, deltas)          more of an answer (only while face.streams)
--   face:finish(output)                 an answer is whole (only while face.streams)
--   face:answer(outputs, usage)         all are
--   face:fail(err)                      after begin
--
-- pipeline.serve(app, req, face) runs it inside a task and returns true, or nil and an error (api/errors.lua) when nothing has
-- been begun. Sequences tell about their tokens from the loop, between steps; only the task waits.
--
-- app.live[id] is the run of every request that is on its way; run:cancel(why) ends it at the next step. A client that goes
-- away, DELETE /v1/requests/{id} and a failure inside a callback all end here.
local admission = require "pipeline.admission"
local async = require "lib.async"
local bests = require "engine.best"
local errors = require "api.errors"
local hash = require "lib.hash"
local outputs = require "pipeline.output"
local prompts = require "pipeline.prompt"
local sequences = require "pipeline.sequences"
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
  --- Names a script of the generation for this request's sequences: its logits and token hooks run for them.
  function fields:attach(name, params) self.attached[#self.attached + 1] = { name = name, params = params or {} } end
  return fields
end

-- ---- one run -------------------------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

--- Ends the sequences at the next step. `why`: "gone" when nobody listens any more.
function Run:cancel(why)
  self.cancelled = self.cancelled or why or "cancelled"
  for seq in pairs(self.sequences) do seq:cancel() end
end

--- A script answered with something that cannot be, and was passed over. Said once for a request.
function Run:warn(phase, why)
  if self.warned[phase] then return end
  self.warned[phase] = true
  self.app.log:note("warning", ("%s: `%s` answered with %s; done without it"):format(self.req.id, phase, why))
end

--- Something of ours raised in the middle of an answer.
function Run:fail(err)
  self.app.log:note("error", ("%s: %s"):format(self.req.id, tostring(err)))
  self.failed = self.failed or errors.from(err)
  self:cancel "failed"
end

local function now_s() return uv.hrtime() * 1e-9 end

-- ---- generating -----------------------------------------------------------------------------------------------------

local function cancelled() return errors.new { status = 409, message = "the request was cancelled", code = "cancelled" } end

--- The model of the request, which may still be refused for its sake.
local function find_model(self)
  local app, req = self.app, self.req
  local entry, err = app.models:find(req.model)
  if not entry then error(errors.new(err), 0) end
  req.model = entry.name
  if self.entry == entry then return end
  self.entry, self.labels = entry, { model = entry.name }
  self.gap = app.metrics and app.metrics.inter_token:observer(self.labels)
end

--- From here on errors are part of the answer.
local function begin(self)
  if self.begun then return end
  self.begun = true
  self.face:begin(self.req)
end

local function salt_of(app, key)
  if not (app.config.cache_per_key and key) then return nil end
  return hash.fnv1a(key) & math.maxinteger
end

--- What batch:add takes of sampling: the server's defaults, the request's, a script's, each over the one before.
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

--- Runs the sequences of the request until all are done; returns the list of outputs. options: silent, n, sampling, logprobs, chat.
local function generate(self, options)
  local req = self.req
  if self.cancelled then error(cancelled(), 0) end
  find_model(self) -- a script may have waited before
  local list = self.prompts
  if options.chat then
    req.chat = options.chat
    list = { prompts.chat(req, self.entry) }
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
    if not live then async.breathe() end -- what is streamed must have begun before its first tokens come
    if self.cancelled then
      self.refused = cancelled()
      break
    end
    local ok, added = pcall(sequences.add, self, prompt, { sampling = sampling, n = n, first = (i - 1) * n, prompt = i, live = live,
      left = left })
    if not ok then
      self.refused = added
      self:cancel "failed"
      break
    end
    open = open + n
    table.move(added, 1, n, #made + 1, made)
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
  if not options.silent then self.last = made end
  return made
end

-- ---- the phases ----------------------------------------------------------------------------------------------------

local function rejected(gen, answer)
  if answer ~= nil and gen.rejected(answer) then error(errors.new(answer), 0) end
  return answer
end

--- Its prompts as ids. This may take a while, in which the model may be unloaded.
local function make_prompts(self)
  local req = self.req
  if req.api == "chat" then
    self.prompts = { prompts.chat(req, self.entry) }
  else
    self.prompts = {}
    for i, given in ipairs(req.prompts) do
      async.breathe()
      self.prompts[i] = prompts.plain(self.entry, given, { add_special = req.add_special, param = "prompt" })
    end
  end
  find_model(self)
  req.ids, req.all_ids, req.prompt_tokens = self.prompts[1].ids, {}, 0
  for i, prompt in ipairs(self.prompts) do
    req.all_ids[i], req.prompt_tokens = prompt.ids, req.prompt_tokens + #prompt.ids
  end
end

--- May it join? Sets its tag.
local function admit(self)
  local app, req, batch = self.app, self.req, self.entry.batch
  local predicted = 0
  for _, prompt in ipairs(self.prompts) do
    local err = admission.fits(self.entry, #prompt.ids, req.api == "chat" and "messages" or "prompt")
    if err then error(err, 0) end
    predicted = predicted + admission.predict(batch, #prompt.ids, { n = req.best_of or req.n,
      max_tokens = req.sampling.max_tokens })
  end
  local err, queue = admission.late(app, self.entry, predicted)
  if err then error(err, 0) end
  local now = app.scripts:current() -- not the request's own: this one weighs all requests against each other
  local answer = now:has "admit" and rejected(now, now:call("admit", req, queue)) or {}
  for key, value in pairs(answer) do req.tag[key] = value end
  req.tag.key, req.tag.model, req.tag.api = req.key, self.entry.name, req.api
end

--- request, model, normalize, template, admit: everything before the sequences.
local function prepare(self)
  local req = self.req
  local gen = req.generation
  if gen:has "request" then rejected(gen, gen:wait("request", req)) end
  local attached, unknown = gen:attached(req)
  if not attached then error(errors.new { status = 400, param = "perigee", message = unknown }, 0) end
  self.attached = attached
  find_model(self)
  local err = admission.early(self.app, self.entry)
  if err then error(err, 0) end
  make_prompts(self)
  admit(self)
end

--- The best n of each prompt's choices (engine/best.lua).
local function best(req, made)
  if not req.best_of then return made end
  local by_prompt, chosen = {}, {}
  for _, out in ipairs(made) do
    by_prompt[out.prompt] = by_prompt[out.prompt] or {}
    table.insert(by_prompt[out.prompt], { out = out, at = out.index, finish = out.finish,
      mean = out.logprob / math.max(1, #out.ids) })
  end
  for _, list in ipairs(by_prompt) do
    bests.rank(list)
    for i = 1, req.n do chosen[#chosen + 1] = list[i].out end
  end
  for i, out in ipairs(chosen) do out.index = i - 1 end
  return chosen
end

--- What the client gets: the outputs of the sequences, or what `generate` scripts made of them.
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
  local ok, list = pcall(outputs.adopt, result)
  if ok and self.streamed and not list[1].sent then ok, list = false, "something else than what was streamed" end
  if ok then return list end
  if result ~= nil then self:warn("generate", list) end
  return self.last or best(req, generate(self, {}))
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
  local usage = { prompt_tokens = self.begun and self.req.prompt_tokens or 0, completion_tokens = 0, cached_tokens = 0 }
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

--- A seq that ended with an error. That nothing is left to draw from is the request's own doing.
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
      if self.face.streams and not out.sent then
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
  local self = setmetatable({ app = app, req = req, face = face, sequences = {}, all = {}, warned = {}, log = o and o.log or {},
    random_name = random_name }, Run)
  local id = req.id -- scripts may write over it
  app.live = app.live or {}
  app.live[id] = self
  face.run = self
  local ok, usage = pcall(perform, self)
  app.live[id] = nil
  local err
  if not ok then
    err = errors.from(usage)
    if not errors.is(usage) then app.log:note("error", ("%s: %s"):format(req.id, tostring(usage))) end
    usage = usage_of(self)
    observe(self, usage, "error")
    if self.begun and self.cancelled ~= "gone" then face:fail(err) end
  end
  if gen:has "done" then
    async.run(function() -- the client has its answer, and its connection goes on
      gen:wait("done", req, usage)
      gen:release()
    end)
  else
    gen:release()
  end
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
