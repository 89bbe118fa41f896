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
--   thinking, vocab (the tokenizer)
--   seq:force(ids)      the next tokens are these
--   seq:bias{[id]=x}    from now on, in addition to the request's own; an infinite one is a ban
--   seq:stop()          the same as returning "stop"
--   logits[id], logits:top(k) -> { {id, logit}, … }, logits:argmax(), logits:bias{[id]=x},
--   logits:ban(ids): for this token alone
--
-- A sequence with `token` hooks is watched, one with `logits` hooks is held (engine/batch.lua), so
-- what a hook does takes effect at the very next token, whatever else the batch computes.
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

-- ---- logits -------------------------------------------------------------------------------------

local Logits = {}

function Logits:bias(biases)
  for id, x in pairs(biases) do self.how.bias[id] = (self.how.bias[id] or 0) + x end
end

function Logits:ban(ids)
  for _, id in ipairs(ids) do table.insert(self.how.banned, id) end
end

function Logits:top(k)
  local values, positions = self.tensor:topk(k)
  local out = {}
  values, positions = values:totable(), positions:totable()
  for i, at in ipairs(positions) do out[i] = { math.tointeger(at) - 1, values[i] } end
  return out
end

function Logits:argmax() return math.tointeger(self.tensor:argmax()) - 1 end

local logits_class = {
  __index = function(self, key)
    if math.type(key) == "integer" then return rawget(self, "tensor")[key + 1] end
    return Logits[key]
  end,
  __newindex = function() error("logits are changed by bias{[id] = x} and ban(ids)", 2) end,
}

-- ---- one script on one sequence -----------------------------------------------------------------

local Seq = {}

--- Forces the next tokens: before the sequence exists and while it is held, with its next draw.
function Seq:force(ids)
  local on = self.on
  if on.holding or not on.seq then
    table.move(ids, 1, #ids, #on.forced + 1, on.forced)
  else
    assert(on.seq:force(ids))
  end
end

function Seq:bias(biases)
  local on = self.on
  for id, x in pairs(biases) do on.biases[id] = x end
  if on.seq then assert(on.seq:bias(on.biases)) end
end

function Seq:stop() self.on.stopped = true end

--- Fields that are computed when they are read.
local fields = {
  id = function(on) return on.seq and on.seq.id end,
  ids = function(on) return on.seq and on.seq.ids or {} end,
  text = function(on) return on.seq and table.concat(on.seq.pieces) or "" end,
}

--- Is the answer still in its reasoning? From the first read on, a second parser follows the text.
function fields.thinking(on)
  local seq = on.seq
  if not (seq and on.words) then return false end
  on.reader = on.reader
    or { parser = on.words:parser { prompt_tail = on.tail }, at = 0, thinking = false }
  local reader = on.reader
  while reader.at < #seq.pieces do
    reader.at = reader.at + 1
    for _, event in ipairs(reader.parser:feed(seq.pieces[reader.at])) do
      reader.thinking = event.type == "reasoning"
    end
  end
  return reader.thinking
end

local seq_class = { __index = function(self, key)
  local field = fields[key]
  if field then return field(rawget(self, "on")) end
  return Seq[key]
end }

-- ---- all scripts on one sequence ----------------------------------------------------------------

local Watcher = {}
Watcher.__index = Watcher

--- The scripts of one sequence and what they share. o: tok, words, prompt_tail.
local function new_watcher(req, list, request, o)
  local self = setmetatable({ forced = {}, biases = {}, words = o.words, tail = o.prompt_tail,
    items = {} }, Watcher)
  for id, x in pairs(request.logit_bias or {}) do self.biases[id] = x end
  for i, one in ipairs(list) do
    local seq = setmetatable({ request = req.id, params = one.params,
      prompt_tokens = #request.prompt, vocab = o.tok, on = self }, seq_class)
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
    local logits = setmetatable({ tensor = tensor, how = how }, logits_class)
    each(self, "logits", function(item)
      phases.call(item.script, "logits", item.seq, logits, item.script.self)
    end)
    tensor:close()
  end
  self.holding = nil
  if #self.forced > 0 then how.force, self.forced = self.forced, {} end
  local ok = pcall(seq.sample, seq, how)
  if not ok then seq:sample {} end -- an id that does not exist, say
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
--- added, and token(event, seq) and done(seq) from on_token and on_done. o: tok, words,
--- prompt_tail.
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
