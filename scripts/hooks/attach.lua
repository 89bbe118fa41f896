-- attach: scripts that sit on the rows of one request: `start`, `token` and `logits`.
--
-- They run only for requests that name them: a client by "perigee": {"logits": NAME, parameters…} in the body, a `request`
-- script by req:attach(NAME, { … }). Every row gets a `seq` of its own per script:
--
--   start(seq, params, self)     before the row is added; what it returns is seq.state
--   token(seq, id, text, self)   for every token: nil, "stop" (the answer ends before this token) or "detach" (enough of it)
--   logits(seq, logits, self)    before every token is drawn: the most costly one, since the row waits for it
--
--   seq.id, row, params, state, prompt_tokens, ids (so far), text (so far), thinking, vocab (the tokenizer)
--   seq:force(ids)      the next tokens are these
--   seq:bias{[id]=x}    from now on, on top of the request's own; an infinite one is a ban
--   seq:stop()          as returning "stop"
--   logits[id], logits:top(k) -> { {id, logit}, … }, logits:argmax(), logits:bias{[id]=x}, logits:ban(ids): for this draw alone
--
-- A row with `token` scripts is watched, one with `logits` scripts is held (scripts/engine/batch.lua): what a script does holds
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

-- ---- one script on one row -----------------------------------------------------------------------------------------

local Seq = {}

--- The next tokens; before the row is there, and while it is held, they are part of its next draw.
function Seq:force(ids)
  local on = self.on
  if on.holding or not on.row then
    table.move(ids, 1, #ids, #on.forced + 1, on.forced)
  else
    assert(on.row:force(ids))
  end
end

function Seq:bias(biases)
  local on = self.on
  for id, x in pairs(biases) do on.biases[id] = x end
  if on.row then assert(on.row:bias(on.biases)) end
end

function Seq:stop() self.on.stopped = true end

--- Fields that are worked out when they are asked for.
local fields = {
  row = function(on) return on.row and on.row.row end,
  ids = function(on) return on.row and on.row.ids or {} end,
  text = function(on) return on.row and table.concat(on.row.pieces) or "" end,
}

--- Is the answer still in its thinking? A parser of our own reads along from the first time somebody asks.
function fields.thinking(on)
  local row = on.row
  if not (row and on.words) then return false end
  on.reader = on.reader or { parser = on.words:parser { prompt_tail = on.tail }, at = 0, thinking = false }
  local reader = on.reader
  while reader.at < #row.pieces do
    reader.at = reader.at + 1
    for _, event in ipairs(reader.parser:feed(row.pieces[reader.at])) do
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

-- ---- all scripts on one row ----------------------------------------------------------------------------------------

--- What the scripts of one row share; o: tok, words, tail, biases (the request's own).
local function new_on(req, list, o)
  local on = { forced = {}, biases = {}, words = o.words, tail = o.tail, seqs = {} }
  for id, x in pairs(o.biases or {}) do on.biases[id] = x end
  for i, item in ipairs(list) do
    local seq = setmetatable({ id = req.id, params = item.params, prompt_tokens = o.prompt_tokens, vocab = o.tok, on = on },
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

--- The logits are there, the row waits. Whatever the scripts do, it goes on.
local function draw(on, row)
  local how = { bias = {}, banned = {} }
  on.holding = true
  local tensor = row:logits()
  if tensor then
    local logits = setmetatable({ tensor = tensor, how = how }, logits_class)
    each(on, "logits", function(item) phases.call(item.script, "logits", item.seq, logits, item.script.self) end)
    tensor:close()
  end
  on.holding = nil
  if #on.forced > 0 then how.force, on.forced = on.forced, {} end
  local ok = pcall(row.sample, row, how)
  if not ok then row:sample {} end -- an id that does not exist, say
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

--- What `start` scripts did before there are rows becomes part of the request, where it is the same for all of them; rows that
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
--- prompt_tail, prompt_tokens. Returns a function that must get the list of rows once they are there.
function attach.wrap(req, list, request, o)
  local ons, of_row = {}, {}
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
  request.on_token = function(event, row)
    local on = of_row[row]
    if event.held then return draw(on, row) end
    if on.stopped then return end
    if event.id and tell(on, event) then
      row:cancel()
      return
    end
    on_token(event, row)
  end
  request.on_done = function(row)
    if of_row[row].stopped and row.finish == "cancel" then row.finish = "stop" end
    on_done(row)
  end
  return function(rows)
    for i, row in ipairs(rows) do
      of_row[row], ons[i].row = ons[i], row
      if i > 1 and not text.same(ons[i].biases, ons[1].biases) then row:bias(ons[i].biases) end
    end
  end
end

return attach
