-- lent: what hooks on sequences get in their hands: `seq`, `logits` and `seq.vocab`.
--
-- These are views. What they show stays the server's: a script can neither close the tokenizer or
-- the tensor of the logits nor reach the sequence and its batch, which are kept aside in `behind`.
-- Every id and number is checked here, where a mistake raises in the hook that made it, so that the
-- batch never refuses what a script did.
local plain = require "hooks.plain"

local lent = {}

local behind = setmetatable({}, { __mode = "k" }) -- view -> what it shows

-- ---- the tokenizer ------------------------------------------------------------------------------

-- Bytes and ids of one call, in C and under a deadline of 2 ms: 64 KB take about 5 ms.
local MAX_TEXT, MAX_IDS = 64 << 10, 1 << 16

local Vocab = {}

function Vocab:encode(text, options)
  if type(text) == "string" and #text > MAX_TEXT then
    error(("encode: the text has %d bytes, the limit is %d"):format(#text, MAX_TEXT), 2)
  end
  return behind[self]:encode(text, options)
end

function Vocab:decode(ids, options)
  if type(ids) == "table" and rawlen(ids) > MAX_IDS then
    error(("decode: %d ids, the limit is %d"):format(rawlen(ids), MAX_IDS), 2)
  end
  return behind[self]:decode(plain.bare(ids), options)
end

for _, name in ipairs { "stream", "token", "bytes", "id", "is_special" } do
  Vocab[name] = function(self, value)
    local tok = behind[self]
    return tok[name](tok, value)
  end
end

local vocab_fields = { size = true, bos = true, eos = true, unk = true, pad = true }

local vocab_class = { __metatable = false, __index = function(self, key)
  if vocab_fields[key] then return behind[self][key] end
  return Vocab[key]
end }

local views = setmetatable({}, { __mode = "kv" }) -- one view for each tokenizer

--- A view of a tokenizer; nil of nil.
function lent.vocab(tok)
  if not tok then return nil end
  local view = views[tok]
  if not view then
    view = setmetatable({}, vocab_class)
    views[tok], behind[view] = view, tok
  end
  return view
end

-- ---- ids and numbers ----------------------------------------------------------------------------

local BANNED = -1e30 -- as a bias: a number that no logit makes up for
local MOST = 1e30

local function checked_id(what, id, vocabulary)
  if math.type(id) == "float" then id = math.tointeger(id) or id end
  if math.type(id) ~= "integer" or id < 0 or id >= vocabulary then
    error(("%s: token id must be between 0 and %d, got %s"):format(what, vocabulary - 1,
      tostring(id)), 0)
  end
  return id
end

--- The ids of a list, copied.
local function checked_ids(what, given, vocabulary)
  if type(given) ~= "table" then
    error(("%s: expected a list of ids, got %s"):format(what, type(given)), 0)
  end
  local ids = {}
  for i = 1, rawlen(given) do ids[i] = checked_id(what, rawget(given, i), vocabulary) end
  return ids
end

--- Biases by id, copied. -math.huge is a ban.
local function checked_biases(given, vocabulary)
  if type(given) ~= "table" then
    error(("bias: expected a table of numbers by id, got %s"):format(type(given)), 0)
  end
  local biases = {}
  for id, x in next, given do
    id = checked_id("bias", id, vocabulary)
    if type(x) ~= "number" or x ~= x or x > MOST then
      error(("bias of token %d must be a finite number or -math.huge, got %s"):format(id,
        tostring(x)), 0)
    end
    biases[id] = math.max(x, BANNED)
  end
  return biases
end

-- ---- logits -------------------------------------------------------------------------------------

local Logits = {}

function Logits:bias(biases)
  local on = behind[self]
  for id, x in next, checked_biases(biases, on.vocabulary) do
    on.how.bias[id] = math.max((on.how.bias[id] or 0) + x, BANNED)
  end
end

function Logits:ban(ids)
  local on = behind[self]
  local set, banned = on.banned, on.how.banned
  for _, id in ipairs(checked_ids("ban", ids, on.vocabulary)) do
    if not set[id] then
      if #banned + 1 >= on.vocabulary then error("ban: no token would be left", 0) end
      set[id], banned[#banned + 1] = true, id
    end
  end
end

--- The tensor, while the hook runs.
local function tensor_of(self)
  return behind[self].tensor or error("logits: only while the hook runs", 0)
end

function Logits:top(k)
  if math.type(k) ~= "integer" or k < 1 then
    error(("top: expected a positive integer, got %s"):format(tostring(k)), 2)
  end
  local values, positions = tensor_of(self):topk(math.min(k, behind[self].vocabulary))
  local out = {}
  values, positions = values:totable(), positions:totable()
  for i, at in ipairs(positions) do out[i] = { math.tointeger(at) - 1, values[i] } end
  return out
end

function Logits:argmax() return math.tointeger(tensor_of(self):argmax()) - 1 end

local logits_class = {
  __metatable = false,
  __index = function(self, key)
    if math.type(key) == "integer" then return tensor_of(self)[key + 1] end
    return Logits[key]
  end,
  __newindex = function() error("logits are changed by bias{[id] = x} and ban(ids)", 2) end,
}

--- A view of a tensor of logits for one draw, and a function that takes it back. how: { bias,
--- banned }, which it fills.
function lent.logits(tensor, how, vocabulary)
  local view = setmetatable({}, logits_class)
  local on = { tensor = tensor, how = how, vocabulary = vocabulary, banned = {} }
  behind[view] = on
  return view, function() on.tensor = nil end
end

-- ---- sequences ----------------------------------------------------------------------------------

local Seq = {}

--- Forces the next tokens: before the sequence exists and while it is held, with its next draw.
function Seq:force(given)
  local on = behind[self]
  local ids = checked_ids("force", given, on.vocabulary)
  if #on.forced + #ids > on.room then
    error(("force: %d tokens do not fit, there is room for %d"):format(#on.forced + #ids, on.room),
      2)
  end
  if on.holding or not on.seq then
    table.move(ids, 1, #ids, #on.forced + 1, on.forced)
  else
    assert(on.seq:force(ids))
  end
end

function Seq:bias(given)
  local on = behind[self]
  for id, x in next, checked_biases(given, on.vocabulary) do on.biases[id] = x end
  if on.seq then assert(on.seq:bias(on.biases)) end
end

function Seq:stop() behind[self].stopped = true end

--- Fields that are computed when they are read.
local fields = {
  id = function(on) return on.seq and on.seq.id end,
  ids = function(on) return on.seq and table.move(on.seq.ids, 1, #on.seq.ids, 1, {}) or {} end,
  text = function(on) return on.seq and table.concat(on.seq.pieces) or "" end,
}

--- Is the answer still in its reasoning? From the first read on, a second parser follows the text.
function fields.thinking(on)
  local seq = on.seq
  if not (seq and on.words) then return false end
  on.reader = on.reader or { parser = on.words:parser { prompt_tail = on.tail }, at = 0 }
  local reader = on.reader
  while reader.at < #seq.pieces do
    reader.at = reader.at + 1
    reader.parser:feed(seq.pieces[reader.at])
  end
  return reader.parser:thinking()
end

--- The ids that end its reasoning; nil if the model's format has none.
function fields.closing(on)
  local closing = on.words and on.closing(on.words, on.tok)
  return closing and table.move(closing.first, 1, #closing.first, 1, {})
end

local seq_class = { __metatable = false, __index = function(self, key)
  local field = fields[key]
  if field then return field(behind[self]) end
  return Seq[key]
end }

--- What a script sees of a sequence. on: what the scripts of the sequence share (hooks/attach.lua):
--- seq, forced, biases, holding, stopped, words, tail, tok, closing, vocabulary, room.
function lent.seq(on, shown)
  local view = setmetatable(shown, seq_class)
  behind[view] = on
  return view
end

return lent
