-- attach: scripts that sit on the sequences of one request: `start`, `token` and `logits`.
--
-- They run only for requests that name them: a client by "perigee": {"logits": NAME, parameters…} in the body, a `request`
-- script by req:attach(NAME, { … }). Every seq gets a `seq` of its own per script:
--
--   start(seq, params, self)     before the seq is added; what it returns is seq.state
--   token(seq, id, text, self)   for every token: nil, "stop" (the answer ends before this token) or "detach" (enough of it)
--   logits(seq, logits, self)    before every token is drawn: the most costly one, since the seq waits for it
--
--   seq.request (its id), seq.id, params, state, prompt_tokens, ids (so far), text (so far), thinking, vocab (the tokenizer)
--   seq:force(ids)      the next tokens are these
--   seq:bias{[id]=x}    from now on, on top of the request's own; an infinite one is a ban
--   seq:stop()          as returning "stop"
--   logits[id], logits:top(k) -> { {id, logit}, … }, logits:argmax(), logits:bias{[id]=x}, logits:ban(ids): for this draw alone
--
-- A seq with `token` scripts is watched, one with `logits` scripts is held (scripts/engine/batch.lua): what a script does holds
-- from the very next token on, whatever else the batch computes meanwhile.
local phases = require "hooks.phases"
local text = require "lib.text"
local unit = require "hooks.unit"

local attach = {}

-- ---- names ---------------------------------------------------------------------------------------------------------

local function is_attachable(script)
  local hooks = script.hooks
  return hooks.start ~= nil or hooks.token ~= nil or hooks.logits ~= nil
end

--- The scripts that a request names, with their parameters: { { script, params }, … }; or nil and one line.
function attach.resolve(gen, req)
  local list = {}
  for _, wanted in ipairs(req.attached or {}) do
    local script = gen.by_name[wanted.name]
    if not script or not is_attachable(script) then
      local names = {}
      for _, known in ipairs(gen.scripts) do
        if is_attachable(known) then names[#names + 1] = known.name end
      end
      return nil, ("there is no script '%s' for requests (there are: %s)"):format(tostring(wanted.name),
        #names > 0 and table.concat(names, ", ") or "none")
    end
    local params, why = unit.parameters(script, wanted.params)
    if not params then return nil, why end
    list[#list + 1] = { script = script, params = params }
  end
  return list
end

-- ---- logits --------------------------------------------------------------------------------------------------------

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
  __newindex = function() error("logits: bias{[id] = x} and ban(ids) change them", 2) end,
}

-- ---- one script on one seq -----------------------------------------------------------------------------------------

local Seq = {}

--- The next tokens; before the seq is there, and while it is held, they are part of its next draw.
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

--- Fields that are worked out when they are asked for.
local fields = {
  id = function(on) return on.seq and on.seq.id end,
  ids = function(on) return on.seq and on.seq.ids or {} end,
  text = function(on) return on.seq and table.concat(on.seq.pieces) or "" end,
}

--- Is the answer still in its thinking? A parser of our own reads along from the first time somebody asks.
function fields.thinking(on)
  local seq = on.seq
  if not (seq and on.words) then return false end
  on.reader = on.reader or { parser = on.words:parser { prompt_tail = on.tail }, at = 0, thinking = false }
  local reader = on.reader
  while reader.at < #seq.pieces do
    reader.at = reader.at + 1
    for _, event in ipairs(reader.parser:feed(seq.pieces[reader.at])) do
      if event.type == "reasoning" then reader.thinking = true else reader.thinking = false end
    end
  end
  return reader.thinking
end

local seq_class = { __index = function(self, key)
  local field = fields[key]
  if field then return field(rawget(self, "on")) end
  return Seq[key]
end }

-- ---- all scripts on one seq ----------------------------------------------------------------------------------------

--- What the scripts of one seq share; o: tok, words, tail, biases (the request's own).
local function new_on(req, list, o)
  local on = { forced = {}, biases = {}, words = o.words, tail = o.tail, seqs = {} }
  for id, x in pairs(o.biases or {}) do on.biases[id] = x end
  for i, item in ipairs(list) do
    local seq = setmetatable({ request = req.id, params = item.params, prompt_tokens = o.prompt_tokens, vocab = o.tok, on = on },
      seq_class)
    on.seqs[i] = { seq = seq, script = item.script }
    if item.script.hooks.start then
      local ok, state = phases.call(item.script, "start", seq, item.params, item.script.self)
      seq.state = state
      if not ok then on.seqs[i].detached = true end
    end
  end
  return on
end

local function each(on, phase, f)
  for _, item in ipairs(on.seqs) do
    if not item.detached and item.script.hooks[phase] then f(item) end
  end
end

--- The logits are there, the seq waits. Whatever the scripts do, it goes on.
local function draw(on, seq)
  local how = { bias = {}, banned = {} }
  on.holding = true
  local tensor = seq:logits()
  if tensor then
    local logits = setmetatable({ tensor = tensor, how = how }, logits_class)
    each(on, "logits", function(item) phases.call(item.script, "logits", item.seq, logits, item.script.self) end)
    tensor:close()
  end
  on.holding = nil
  if #on.forced > 0 then how.force, on.forced = on.forced, {} end
  local ok = pcall(seq.sample, seq, how)
  if not ok then seq:sample {} end -- an id that does not exist, say
end

--- A token. True when the answer ends before it.
local function tell(on, event)
  each(on, "token", function(item)
    if on.stopped then return end
    local ok, answer = phases.call(item.script, "token", item.seq, event.id, event.text, item.script.self)
    if ok and answer == "detach" then item.detached = true end
    if ok and answer == "stop" then on.stopped = true end
  end)
  return on.stopped
end

--- What `start` scripts did before there are sequences becomes part of the request, where it is the same for all of them; sequences that
--- must begin differently are held, and get theirs with the first draw.
local function begin(request, ons)
  local first, same = ons[1], true
  for _, on in ipairs(ons) do same = same and text.same(on.forced, first.forced) end
  if not same then request.hold = true end
  if same and #first.forced > 0 then
    request.force = table.move(first.forced, 1, #first.forced, #(request.force or {}) + 1, request.force or {})
    for _, on in ipairs(ons) do on.forced = {} end
  end
  if next(first.biases) then request.logit_bias = first.biases end
end

--- Makes a request of a batch (its table for batch:add) one that the scripts sit on; list: from resolve. o: tok, words,
--- prompt_tail, prompt_tokens. Returns a function that must get the list of sequences once they are there.
function attach.wrap(req, list, request, o)
  local ons, of_seq = {}, {}
  for i = 1, request.n or 1 do
    ons[i] = new_on(req, list, { tok = o.tok, words = o.words, tail = o.prompt_tail, prompt_tokens = o.prompt_tokens,
      biases = request.logit_bias })
  end
  for _, item in ipairs(list) do
    if item.script.hooks.logits then request.hold = true end
    if item.script.hooks.token then request.watch = true end
  end
  begin(request, ons)
  local on_token, on_done = request.on_token, request.on_done
  request.on_token = function(event, seq)
    local on = of_seq[seq]
    if event.held then return draw(on, seq) end
    if on.stopped then return end
    if event.id and tell(on, event) then
      seq:cancel()
      return
    end
    on_token(event, seq)
  end
  request.on_done = function(seq)
    if of_seq[seq].stopped and seq.finish == "cancel" then seq.finish = "stop" end
    on_done(seq)
  end
  return function(sequences)
    for i, seq in ipairs(sequences) do
      of_seq[seq], ons[i].seq = ons[i], seq
      if i > 1 and not text.same(ons[i].biases, ons[1].biases) then seq:bias(ons[i].biases) end
    end
  end
end

return attach
