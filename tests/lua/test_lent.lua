-- hooks.lent: what hooks on sequences get in their hands, at its limits.
local lent = require "hooks.lent"
local perigee = require "perigee"
local test = require("harness").test

test("a tokenizer is shown, not given away", function(t)
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  local vocab = lent.vocab(tok)
  t.ok(rawequal(vocab, lent.vocab(tok)))
  t.eq({ lent.vocab(nil), vocab.close, getmetatable(vocab) }, { nil, nil, false })
  t.eq({ vocab.size, vocab.bos, vocab.eos, vocab.unk, vocab.pad },
    { tok.size, tok.bos, tok.eos, tok.unk, tok.pad })
  local ids = vocab:encode "Hello"
  t.eq({ ids, vocab:decode(ids), vocab:token(ids[1]), vocab:bytes(ids[1]),
    vocab:id(vocab:token(ids[1])), vocab:is_special(ids[1]) },
    { tok:encode "Hello", "Hello", tok:token(ids[1]), tok:bytes(ids[1]), ids[1], false })
  t.ok(vocab:encode(("a"):rep(64 << 10)))
  t.raises(function() vocab:encode(("a"):rep((64 << 10) + 1)) end,
    "encode: the text has 65537 bytes, the limit is 65536")
  local many = {}
  for i = 1, 1 << 16 do many[i] = ids[1] end
  t.ok(vocab:decode(many))
  many[#many + 1] = ids[1]
  t.raises(function() vocab:decode(many) end, "decode: 65537 ids, the limit is 65536")
end)

test("logits are read, biased and banned", function(t)
  local how = { bias = {}, banned = {} }
  local logits, back = lent.logits(perigee.tensor { 1.0, 5.0, 3.0, 5.0 }, how, 4)
  t.eq({ logits[0], logits[1], logits[3], logits:argmax() }, { 1.0, 5.0, 5.0, 1 })
  t.eq(logits:top(3), { { 1, 5.0 }, { 3, 5.0 }, { 2, 3.0 } })
  t.eq(#logits:top(9), 4)
  for _, wrong in ipairs { 0, 1.5, "x" } do
    t.raises(function() logits:top(wrong) end,
      "top: expected a positive integer, got " .. tostring(wrong))
  end
  logits:bias { [0] = 0.5, [3] = -math.huge }
  logits:bias { [0] = 1.0, [2] = 1e30 }
  t.eq(how.bias, { [0] = 1.5, [2] = 1e30, [3] = -1e30 })
  logits:bias { [3] = -5 }
  t.eq(how.bias[3], -1e30)
  logits:ban { 1, 1, 2.0 }
  logits:ban { 0 }
  t.eq(how.banned, { 1, 2, 0 })
  t.raises(function() logits:ban { 3 } end, "ban: no token would be left")
  for part, wrong in pairs {
    ["bias: expected a table of numbers by id, got number"] = function() logits:bias(1) end,
    ["bias of token 1 must be a finite number or -math.huge, got inf"] = function()
      logits:bias { [1] = math.huge }
    end,
    ["bias of token 1 must be a finite number or -math.huge, got x"] = function()
      logits:bias { "x" }
    end,
    ["bias: token id must be between 0 and 3, got 4"] = function() logits:bias { [4] = 1 } end,
    ["ban: token id must be between 0 and 3, got -1"] = function() logits:ban { -1 } end,
    ["ban: token id must be between 0 and 3, got 1.5"] = function() logits:ban { 1.5 } end,
    ["ban: expected a list of ids, got string"] = function() logits:ban "x" end,
    ["logits are changed by bias{[id] = x} and ban(ids)"] = function() logits[1] = 5 end,
  } do
    t.raises(wrong, part)
  end
  t.raises(function() logits:bias { [1] = 0 / 0 } end, "bias of token 1 must be a finite number")
  back()
  for _, late in ipairs { function() return logits[0] end, function() logits:top(1) end,
    function() logits:argmax() end } do
    t.raises(late, "logits: only while the hook runs")
  end
end)

test("a sequence is forced, biased and stopped", function(t)
  local on = { forced = {}, biases = {}, room = 3, vocabulary = 10 }
  local seq = lent.seq(on, { tag = "shown" })
  t.eq({ seq.tag, seq.id, seq.ids, seq.text, seq.thinking, getmetatable(seq) },
    { "shown", nil, {}, "", false, false })
  seq:force { 1, 2 }
  seq:bias { [4] = 0.5 }
  t.eq({ on.forced, on.biases }, { { 1, 2 }, { [4] = 0.5 } })
  t.raises(function() seq:force { 3, 4 } end, "force: 4 tokens do not fit, there is room for 3")
  t.raises(function() seq:force { 10 } end, "force: token id must be between 0 and 9, got 10")
  seq:force { 9 }
  t.eq(on.forced, { 1, 2, 9 })
  local told = {}
  on.seq = { id = 5, ids = { 7, 8 }, pieces = { "a", "b" },
    force = function(_, ids)
      told[#told + 1] = ids
      return true
    end,
    bias = function(_, all)
      told[#told + 1] = all
      return true
    end }
  on.forced = {}
  t.eq({ seq.id, seq.ids, seq.text }, { 5, { 7, 8 }, "ab" })
  seq.ids[1] = 0
  t.eq(on.seq.ids[1], 7) -- a copy
  seq:force { 3 }
  seq:bias { [1] = 2 }
  t.eq(told, { { 3 }, { [4] = 0.5, [1] = 2 } })
  on.holding = true
  seq:force { 6 }
  t.eq({ on.forced, #told }, { { 6 }, 2 })
  seq:stop()
  t.eq(on.stopped, true)
  local fed = 0
  on.tail, on.words = "T", { parser = function(_, o)
    t.eq(o.prompt_tail, "T")
    local last
    return { feed = function(_, piece) fed, last = fed + 1, piece end,
      thinking = function() return last == "b" end }
  end }
  t.eq({ seq.thinking, seq.thinking, fed }, { true, true, 2 })
  on.seq.pieces[3] = "c"
  t.eq({ seq.thinking, fed }, { false, 3 })
end)
