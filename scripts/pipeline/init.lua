-- pipeline: the path of one request, whichever API it came by.
--
-- The whole way of a streamed chat request, from the socket and back:
--
--    1  http/connection, parse, body      bytes -> request, response; a task starts
--    2  serve/init: gate, router, rate    refused, or the handler of the route
--    3  api/body, openai/chat, request    the JSON body -> req, checked field by field (api/schema,
--                                         chat/check)
--    4  pipeline.serve                    a run (pipeline/run); hook `request`; serve/models.find
--    5  pipeline/prompt                   hooks `normalize`, `template`; chat (normalize,
--                                         templates, tokenizer) -> token ids and message boundaries
--                                         pipeline/pictures: headers of pictures -> their tokens
--    6  pipeline/admission                refused with 400, 429 or 503, or admitted; hook `admit`
--    7  Run:generate, wrapped by hook `generate` -> pipeline/pictures (features of pictures) ->
--                                         pipeline/sequences.add -> engine/batch:add
--    8  runtime/batch                     steps on the engine thread; Lua grants (hook `schedule`)
--    9  engine/batch, dispatch            events -> hooks/attach (`logits`, `token`)
--   10  pipeline/output                   text -> parsers -> deltas; hook `parse`
--   11  pipeline/respond                  hook `respond`; then face:delta
--   12  api/openai/stream                 delta -> chunk of JSON -> http/sse -> the socket
--   13  pipeline/usage                    metrics and the access log; hook `done`
--
-- An API makes a req (pipeline.request) and a face, which knows how answers look to its clients:
--
--   face.streams                        deltas are sent as they come
--   face:begin(req)                     the sequences have joined: errors are part of the answer
--   now face:delta(output, deltas)          a part of an answer (only if face.streams)
--   face:finish(output)                 an answer is complete (only if face.streams)
--   face:answer(outputs, usage)         all answers are complete
--   face:fail(err)                      a request error after begin
--
-- app.live[id] is the run of each request in progress. A client that goes away, DELETE
-- /v1/requests/{id} and an error in a callback all end there, at the next step.
local admission = require "pipeline.admission"
local async = require "lib.async"
local bests = require "engine.best"
local errors = require "lib.errors"
local outputs = require "pipeline.output"
local pictures = require "pipeline.pictures"
local prompts = require "pipeline.prompt"
local respond = require "pipeline.respond"
local runs = require "pipeline.run"
local truncate = require "pipeline.truncate"
local usages = require "pipeline.usage"
local uv = require "luv"

local pipeline = {}

-- ---- requests -----------------------------------------------------------------------------------

--- Completes the fields that an API read to a req. `request`: that of HTTP.
function pipeline.request(fields, request)
  local key = request.key
  fields.id = fields.id .. runs.random_name()
  fields.path, fields.headers, fields.peer = request.path, request.headers, request.peer
  fields.key = key and key.name
  fields.received, fields.started = os.time(), request.started or uv.hrtime()
  fields.sampling, fields.n = fields.sampling or {}, fields.n or 1
  fields.ctx, fields.tag, fields.attached = {}, {}, {}
  --- Names a script whose start, token and logits hooks run for the request's sequences.
  function fields:attach(name, params)
    if type(name) ~= "string" then
      error(("attach: expected the name of a script, got %s"):format(type(name)), 2)
    end
    self.attached[#self.attached + 1] = { name = name, params = params or {} }
  end
  return fields
end

-- ---- the phases ---------------------------------------------------------------------------------

--- Raises a hook's answer when it is a refusal.
local function unless_refused(answer)
  if errors.is(answer) then error(answer, 0) end
  return answer
end

--- May the request have its pictures?
local function check_pictures(self)
  local taken = self.req.media or {}
  if #taken == 0 then return end
  pictures.check(taken, self.entry, self.app.config.limits.pictures)
  local err = admission.pictures(self.app, self.entry, self.req.key)
  if err then error(err, 0) end
end

--- The prompt of the conversation, with its pictures; raises if it is too long.
local function make_chat(self)
  local prompt = prompts.chat(self.req, self.entry, { client = self.client })
  self:find_model()
  pictures.plan(self, prompt)
  local err = admission.fits(self.entry, #prompt.ids, "messages")
  if err then error(err, 0) end
  return prompt
end

--- Makes the prompts. This may take a while, in which the model may be unloaded.
local function make_prompts(self)
  local req = self.req
  if req.chat then
    check_pictures(self)
    local function make() return make_chat(self) end
    self.prompts = { req.truncates and truncate.fit(self.entry, req, make) or make() }
  else
    self.prompts = {}
    for i, given in ipairs(req.prompts) do
      async.breathe()
      self.prompts[i] = prompts.plain(self.entry, given, { add_special = req.add_special,
        field = "prompt", client = self.client })
    end
  end
  self:find_model()
  req.ids, req.all_ids, req.prompt_tokens = self.prompts[1].ids, {}, 0
  req.image_tokens = self.prompts[1].image_tokens
  for i, prompt in ipairs(self.prompts) do
    req.all_ids[i], req.prompt_tokens = prompt.ids, req.prompt_tokens + #prompt.ids
  end
end

--- May it join? Sets its tag.
local function admit(self)
  local app, req, entry = self.app, self.req, self.entry
  local predicted, n = 0, req.best_of or req.n
  for _, prompt in ipairs(self.prompts) do
    local err = admission.fits(entry, #prompt.ids, req.chat and "messages" or "prompt")
    if err then error(err, 0) end
    predicted = predicted + admission.predict(entry.batch, #prompt.ids,
      { n = n, max_tokens = req.sampling.max_tokens })
  end
  local err, queue = admission.late(app, entry,
    { key = req.key, tokens = predicted, sequences = n * #self.prompts })
  if err then error(err, 0) end
  local now = app.scripts:current() -- not req.scripts: `admit` weighs all requests
  local answer = now:has "admit" and unless_refused(now:call("admit", req, queue)) or {}
  for key, value in pairs(answer) do req.tag[key] = value end
  req.tag.key, req.tag.model, req.tag.api = req.key, entry.name, req.api
  req.tag.session = req.session
end

--- Everything before the sequences: request, model, normalize, template, admit.
local function prepare(self)
  local req = self.req
  local scripts = req.scripts
  if scripts:has "request" then unless_refused(scripts:wait("request", req)) end
  local attached, why = scripts:attached(req)
  if not attached then error(errors.new { field = "perigee", message = why }, 0) end
  self.attached = attached
  self:find_model()
  local err = admission.early(self.app, self.entry, req.key)
  if err then error(err, 0) end
  make_prompts(self)
  admit(self)
end

--- The best n of each prompt's answers (engine/best.lua).
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

--- The outputs that a `generate` hook returned; nil when there are none that can be used.
local function adopt(self, result)
  local ok, list = pcall(outputs.adopt, result)
  if ok and self.live and not list[1].live then
    ok, list = false, "something other than what was streamed"
  end
  if ok then return list end
  if result ~= nil then self:warn("generate", list) end
end

--- The outputs for the client: those of the sequences, or what `generate` hooks made of them.
local function answers(self)
  local req = self.req
  if not req.scripts:has "generate" then return best(req, self:generate {}) end
  local result = req.scripts:wait("generate", req, function(_, options)
    local o = { logprobs = true }
    for key, value in pairs(options or {}) do o[key] = value end
    local made = self:generate(o)
    if o.n or #made ~= 1 then return made end
    return made[1]
  end)
  return adopt(self, result) or self.last or best(req, self:generate {})
end

-- ---- the answer ---------------------------------------------------------------------------------

--- The error of a sequence that failed. That no token is left to sample is the request's own doing.
local function failure(why)
  if type(why) == "table" and why.code == "no_token" then return errors.from(why) end
  return errors.new { status = 500, code = "generation_failed", message = tostring(why) }
end

--- Sends the outputs that have not been streamed, and the end.
local function answer(self, list, usage)
  self:begin()
  local face = self.face
  if face.streams then
    for _, out in ipairs(list) do
      if not out.live then
        out.live = true
        self:send(out, outputs.deltas(out))
        self:finish(out)
      end
    end
  elseif self.responds then
    list = respond.answers(self, list)
    if #list == 0 then
      return face:fail(errors.new { status = 403, code = "withheld",
        message = "the answer was withheld" })
    end
  end
  face:answer(list, usage)
end

--- Raises if the model's files were written to, so that no answer of damaged weights looks sound.
--- They are looked at on a helper thread, since a network file system may be slow.
local function check_files(weights)
  local _, why = async.await(function(resume) weights:check(resume) end)
  if why then error(failure(why), 0) end
end

local function perform(self)
  prepare(self)
  self.added_at = uv.hrtime() * 1e-9
  local weights = self.entry.model.weights
  local list = answers(self)
  for _, out in ipairs(list) do
    if out.finish == "error" then error(failure(out.error), 0) end
  end
  check_files(weights)
  local usage = usages.of(self)
  usages.observe(self, usage, list[1] and list[1].finish)
  if not self.gone then answer(self, list, usage) end
  return usage
end

--- Serves a request inside a task. o: log (a table for the access log), client (whose request it
--- is, lib/jobs.lua). Returns true, or nil and a request error when nothing was sent.
function pipeline.serve(app, req, face, o)
  local scripts = app.scripts:current():retain()
  req.scripts = scripts
  local self = runs.new(app, req, face, o or {})
  local id = req.id -- hooks may overwrite it
  app.live = app.live or {}
  app.live[id] = self
  local ok, usage = pcall(perform, self)
  app.live[id] = nil
  self:let_go()
  local err
  if not ok then
    err = errors.from(usage)
    if not errors.is(usage) then
      app.log:note("error", ("%s: %s"):format(req.id, tostring(usage)))
    end
    usage = usages.of(self)
    usages.observe(self, usage, "error")
    if self.state ~= "preparing" and not self.gone then face:fail(err) end
  end
  if scripts:has "done" then
    async.run(function() -- the client has its answer, and its connection goes on
      scripts:wait("done", req, usage)
      scripts:release()
    end)
  else
    scripts:release()
  end
  if err and self.state == "preparing" then return nil, err end
  return true
end

--- Nobody listens any more.
function pipeline.gone(app, id)
  local run = app.live and app.live[id]
  if run then run:cancel "gone" end
end

--- Ends a request by the id of its response; false when there is none, or it has another key.
function pipeline.cancel(app, id, key)
  local run = app.live and app.live[id]
  if not run or run.req.key ~= key then return false end
  run:cancel()
  return true
end

return pipeline
