-- attach: hooks that sit on the sequences of one request: `start`, `token` and `logits`.
--
-- They run only for requests that name their script: a client by "perigee": {"script": NAME,
-- parameters…} in the body, a `request` hook by req:attach(NAME, { … }). Each script gets an object
-- `seq` for each sequence:
--
--   start(seq, params, self)     before the sequence is added; what it returns is seq.state
--   token(seq, id, text, self)   for each token: nil, "stop" (the answer ends before this token) or
--                                "detach" (this script is not called for this sequence any more)
--   logits(seq, logits, self)    before each token is sampled. The most costly one, since the
--                                sequence waits for it
--
--   seq.request (the request's id), id, params, state, prompt_tokens, ids (so far), text (so far),
--   thinking, closing (the ids that end thinking), vocab (the tokenizer)
--   seq:force(ids)      the next tokens are these
--   seq:bias{[id]=x}    from now on, in addition to the request's own; -math.huge is a ban
--   seq:stop()          the same as returning "stop"
--   logits[id], logits:top(k) -> { {id, logit}, … }, logits:argmax(), logits:bias{[id]=x},
--   logits:ban(ids): for this token alone
--
-- A sequence with `token` hooks is watched, one with `logits` hooks is held (engine/batch.lua), so
-- what a hook does takes effect at the very next token, whatever else the batch computes.
local lent = require "hooks.lent"
local phases = require "hooks.phases"
local text = require "lib.text"
local unit = require "hooks.unit"

local attach = {}

-- ---- names --------------------------------------------------------------------------------------

local function is_attachable(script)
  local hooks = script.hooks
  return hooks.start ~= nil or hooks.token ~= nil or hooks.logits ~= nil
end

local function unknown(scripts, name)
  local names = {}
  for _, script in ipairs(scripts.list) do
    if is_attachable(script) then names[#names + 1] = script.name end
  end
  return ("unknown script '%s' (requests may name: %s)"):format(tostring(name),
    #names > 0 and table.concat(names, ", ") or "none")
end

--- The scripts that a request names, with their parameters: { { script, params }, … }; or nil and
--- one line.
function attach.resolve(scripts, req)
  local list = {}
  for _, wanted in ipairs(req.attached or {}) do
    local script = scripts.by_name[wanted.name]
    if not script or not is_attachable(script) then return nil, unknown(scripts, wanted.name) end
    local params, why = unit.parameters(script, wanted.params)
    if not params then return nil, why end
    list[#list + 1] = { script = script, params = params }
  end
  return list
end

-- ---- all scripts on one sequence ----------------------------------------------------------------

local Watcher = {}
Watcher.__index = Watcher

--- The scripts of one sequence and what they share. o: tok, words, prompt_tail, closing (of
--- pipeline/budget.lua).
local function new_watcher(req, list, request, o)
  local self = setmetatable({ forced = {}, biases = {}, words = o.words, tail = o.prompt_tail,
    tok = o.tok, closing = o.closing, items = {} }, Watcher)
  for id, x in pairs(request.logit_bias or {}) do self.biases[id] = x end
  self.vocabulary = o.vocabulary or o.tok.size
  self.room = (o.context or math.maxinteger) - #request.prompt - #(request.force or {})
  for i, one in ipairs(list) do
    local seq = lent.seq(self, { request = req.id, params = one.params,
      prompt_tokens = #request.prompt, vocab = lent.vocab(o.tok) })
    local item = { seq = seq, script = one.script }
    self.items[i] = item
    if one.script.hooks.start then
      local ok, state = phases.call(one.script, "start", seq, one.params, one.script.self)
      seq.state, item.detached = state, not ok
    end
  end
  return self
end

local function each(self, phase, f)
  for _, item in ipairs(self.items) do
    if not item.detached and item.script.hooks[phase] then f(item) end
  end
end

--- The logits of a held sequence are ready. Whatever the scripts do, it continues.
local function draw(self, seq)
  local how = { bias = {}, banned = {} }
  self.holding = true
  local tensor = seq:logits()
  if tensor then
    local logits, take_back = lent.logits(tensor, how, self.vocabulary)
    each(self, "logits", function(item)
      phases.call(item.script, "logits", item.seq, logits, item.script.self)
    end)
    take_back()
    tensor:close()
  end
  self.holding = nil
  if #self.forced > 0 then how.force, self.forced = self.forced, {} end
  local ok, done, why = pcall(seq.sample, seq, how)
  if ok and done then return end
  each(self, "logits", function(item)
    phases.strike(item.script, "logits", text.first_line(ok and why or done))
  end)
  seq:sample {}
end

--- Calls the `token` hooks. Returns true when the answer ends before this token.
local function call_token(self, event)
  each(self, "token", function(item)
    if self.stopped then return end
    local ok, answer = phases.call(item.script, "token", item.seq, event.id, event.text,
      item.script.self)
    if ok and answer == "detach" then item.detached = true end
    if ok and answer == "stop" then self.stopped = true end
  end)
  return self.stopped
end

--- An event of the batch. Returns true when it is part of the answer.
function Watcher:token(event, seq)
  if event.held then
    draw(self, seq)
    return false
  end
  if self.stopped then return false end
  if event.id and call_token(self, event) then
    seq:cancel()
    return false
  end
  return true
end

--- The sequence is done.
function Watcher:done(seq)
  if self.stopped and seq.finish == "cancel" then seq.finish = "stop" end
end

--- The sequence exists now.
function Watcher:join(seq)
  seq.watcher, self.seq = self, seq
  if not text.same(self.biases, self.first.biases) then seq:bias(self.biases) end
end

--- What `start` hooks did becomes part of the request where it is the same for all sequences;
--- sequences that must begin differently are held, and get theirs with the first draw.
local function begin(request, watchers)
  local first, same = watchers[1], true
  for _, watcher in ipairs(watchers) do
    watcher.first = first
    same = same and text.same(watcher.forced, first.forced)
  end
  if not same then request.hold = true end
  if same and #first.forced > 0 then
    local force = request.force or {}
    request.force = table.move(first.forced, 1, #first.forced, #force + 1, force)
    for _, watcher in ipairs(watchers) do watcher.forced = {} end
  end
  if next(first.biases) then request.logit_bias = first.biases end
end

--- Puts the scripts of a list (from resolve) on the sequences of a request: changes the table for
--- batch:add and returns one watcher per sequence. Its owner calls join(seq) once the sequence is
--- added, and token(event, seq) and done(seq) from on_token and on_done. o: see new_watcher.
function attach.watch(req, list, request, o)
  local watchers = {}
  for i = 1, request.n or 1 do watchers[i] = new_watcher(req, list, request, o) end
  for _, item in ipairs(list) do
    if item.script.hooks.logits then request.hold = true end
    if item.script.hooks.token then request.watch = true end
  end
  begin(request, watchers)
  return watchers
end

return attach
