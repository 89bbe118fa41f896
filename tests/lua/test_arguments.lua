-- Arguments of C objects: what each method refuses, with both numbers in the message, and that a
-- refused call has changed nothing.
local perigee = require "perigee"
local test = require("harness").test
local tiny = require "tiny"

--- Calls that must raise: { function, part of the message }.
local function refused(t, list)
  for _, case in ipairs(list) do t.raises(case[1], case[2]) end
end

test("an engine: sequences and steps", function(t)
  local graph = tiny.model().graph
  local e <close> = assert(perigee.engine.open(graph, { threads = 1, tokens = 256, sequences = 2 }))
  t.eq({ e.vocabulary, e.id_limit, e.threads, e.outputs, e.used }, { 256, 256, 1, 0, 0 })
  for _, wrong in ipairs { 0, 1, 3, -1 } do
    for _, name in ipairs { "info", "remove", "fork", "snapshot" } do
      t.raises(function() e[name](e, wrong) end, ("no sequence %d"):format(wrong))
    end
    t.raises(function() e:trim(wrong, 1) end, ("no sequence %d"):format(wrong))
    t.raises(function() e:save(wrong, "x") end, ("no sequence %d"):format(wrong))
    t.raises(function() e:step { { seq = wrong, ids = { 1 } } } end, "no sequence")
  end
  t.eq({ e:add(), e:add() }, { 1, 2 })
  t.eq(t.fails("limit", e:add()).message, "all 2 sequences are in use")
  t.fails("limit", e:fork(1))
  t.fails("limit", e:load "nowhere")
  e:remove(1)
  t.raises(function() e:info(1) end, "no sequence 1")
  t.eq(e:add {}, 1)
  local function step(run) return function() return e:step { run } end end
  refused(t, {
    { function() e:step(5) end, "table expected, got number" },
    { step(5), "table expected, got number" }, { step {}, "table expected, got nil" },
    { step { ids = {} }, "a step needs between 1 and 536870911 token ids, got 0" },
    { step { ids = { 1, "2" } }, "token id 2 of the list is not an integer: 2" },
    { step { ids = { 1.0 } }, "token id 1 of the list is not an integer: 1.0" },
    { step { ids = { -1 } }, "token id -1 is out of range: the vocabulary has 256 tokens" },
    { step { ids = { 0, 256 } }, "token id 256 is out of range: the vocabulary has 256 tokens" },
    { step { ids = { 1, 2 }, outputs = 3 }, "outputs must be between 0 and 2, the number of ids" },
    { step { ids = { 1, 2 }, outputs = -1 }, "the number of ids, got -1" },
    { step { ids = { 1 }, outputs = "x" }, "number expected, got string" },
    { step { ids = { 1 }, rope_length = -1 }, "rope_length out of range" },
    { step { ids = { 1 }, rope_length = 1 << 31 }, "rope_length out of range" },
    { function() e:argmax(1) end, "no such line of logits" },
    { function() e:add { prompt = {} } end, "a step needs between" },
    { function() e:add { promt = {} } end, "did you mean 'prompt'?" },
    { function() e:add(5) end, "table expected" },
  })
  t.eq(#e:info(1).ids, 0)
  t.eq(t.fails("argument", e:step { { ids = { 1 } }, { ids = { 2 } } }).message,
    "the step has the same sequence twice")
  t.eq({ #e:info(1).ids, e.outputs }, { 0, 0 })
  t.eq({ e:step { { ids = { 0, 255 } } }, e.outputs }, { 1, 1 }) -- sequence 1, one line
  t.eq({ e:step { { ids = { 7 }, outputs = 0 }, { seq = 2, ids = { 8, 9 }, outputs = 2 } },
    e.outputs }, { 2, 2 })
  t.eq({ e:info(1).ids, e:info(2).ids }, { { 0, 255, 7 }, { 8, 9 } })
  t.ok(e.used > 0 and e:info(1).bytes > 0)
  t.eq(e:step {}, 0)
  -- Ids that were read stay alive while others are.
  local late = setmetatable({ seq = 2 }, { __index = function(_, key)
    if key ~= "ids" then return nil end
    collectgarbage()
    local over = {} -- what the memory of collected ids would hold
    for i = 1, 20000 do over[i] = ("%05d"):format(i) .. ("\1"):rep(i % 16) end
    return { 200, over = over }
  end })
  t.eq(e:step { { ids = { 100 } }, late }, 2)
  t.eq({ e:info(1).ids[4], e:info(2).ids[3] }, { 100, 200 })
  t.eq({ e:trim(1, 3), e:trim(2, 2) }, { true, true })
  refused(t, {
    { function() e:trim(1, -1) end, "number of tokens is out of range" },
    { function() e:trim(1, 1 << 31) end, "number of tokens is out of range" },
    { function() e:trim(1, 1, { snapshot = 5 }) end, "perigee.Snapshot expected" },
    { function() e:trim(1, 1, { snapshots = 5 }) end, "did you mean 'snapshot'?" },
    { function() e:span(1, 0) end, "no such token" },
    { function() e:span(1, 1 << 31) end, "no such token" },
  })
  t.eq(e:span(1, 1), nil)
  t.fails("argument", e:trim(1, 4))
  t.eq({ e:trim(1, 2), e:info(1).ids }, { true, { 0, 255 } })
  local snapshot <close> = assert(e:snapshot(2))
  t.eq({ snapshot.position, snapshot.nothing }, { 2 })
  t.fails("limit", e:load("nowhere", {}))
  e:remove(2)
  t.fails("io", e:load("/nowhere/x")) -- and the sequence is free again
  t.eq(e:add(), 2)
  t.fails("io", e:save(1, "/nowhere/x"))
  e:remove(1)
  e:remove(2)
  t.eq(e.used, 0)
end)

test("a batch: commands, grants, lists", function(t)
  local graph = tiny.model().graph
  local b <close> = assert(perigee.batch.open(graph,
    { threads = 1, sequences = 2, context = 64, cache_tokens = 256, step_tokens = 16 }))
  t.eq({ b.running, b.threads, b.step_tokens, b.context, b.vocabulary }, { false, 1, 16, 64, 256 })
  local function add(more)
    local request = { prompt = { 1, 2, 3 } }
    for k, v in pairs(more) do request[k] = v end
    return b:command("add", request)
  end
  local function wrong(more) return function() return add(more) end end
  refused(t, {
    { function() b:command "nothing" end, "unknown command 'nothing'" },
    { function() b:command("add", 5) end, "table expected, got number" },
    { function() b:command("cancel", "x") end, "number expected, got string" },
    { wrong { prompt = 5 }, "prompt must be a list of token ids, got number" },
    { wrong { prompt = { 1, "2" } }, "prompt[2] must be a token id, got 2" },
    { wrong { prompt = { 1.5 } }, "prompt[1] must be a token id, got 1.5" },
    { wrong { prompt = { 1 << 31 } }, "prompt[1]: token id 2147483648 is out of range" },
    { wrong { prompt = { -(1 << 31) - 1 } }, "token id -2147483649 is out of range" },
    { wrong { logit_bias = 5 }, "logit_bias must be a table {[token id] = number}, got number" },
    { wrong { logit_bias = { a = 1 } }, "logit_bias must map token ids to numbers, got [a] = 1" },
    { wrong { logit_bias = { "x" } }, "logit_bias must map token ids to numbers, got [1] = x" },
    { wrong { logit_bias = { [-1] = 1 } }, "logit_bias: token id -1 is out of range" },
    { wrong { logit_bias = { [1 << 31] = 1 } }, "logit_bias: token id 2147483648 is out of range" },
    { wrong { stop = 5 }, "stop must be a string or a list of strings, got number" },
    { wrong { stop = { "a", 5 } }, "stop[2] must be a string, got number" },
    { wrong { bad_words = 5 }, "bad_words must be a list of lists of token ids, got number" },
    { wrong { bad_words = { { 1 }, 5 } }, "bad_words must be a list of token ids, got number" },
    { wrong { temperture = 1 }, "unknown option 'temperture', did you mean 'temperature'?" },
    { wrong { temperature = "1" }, "option 'temperature': number expected, got string" },
    { wrong { top_k = 1.5 }, "option 'top_k': integer expected, got number" },
    { wrong { ignore_eos = 1 }, "option 'ignore_eos': boolean expected, got number" },
    { function() b:step(5) end, "table expected" },
    { function() b:step { 5 } end, "grants[1] must be {sequence, tokens}, got number" },
    { function() b:step { { 1, 2 }, { 1 } } end, "grants[2] must be {sequence, tokens}, two" },
    { function() b:step { { "1", 2 } } end, "grants[1] must be {sequence, tokens}, two integers" },
    { function() b:trace(-1) end, "a number of steps expected" },
    { function() b:pending() end, "does not run on the engine thread: start it first" },
    { function() b:completed() end, "start it first" }, { function() b:stop() end, "start it" },
    { function() b:submit {} end, "start it first" },
    { function() b:retire(5) end, "function expected" },
    { function() perigee.batch.open(graph, { share = 5 }) end, "'share' must be an open batch" },
    { function() perigee.batch.open(graph, { share = b, threads = 1 }) end,
      "option 'threads' must be absent with 'share'" },
    { function() perigee.batch.open(graph, { end_ids = 5 }) end, "end_ids must be a list" },
    { function() perigee.batch.kv_bytes(graph, -1) end, "tokens must be 0 or more" },
    { function() perigee.batch.kv_bytes(graph, 1, 65) end, "kv_bits must be 32, 16, 8 or 4" },
    { function() perigee.batch.kv_bytes(graph, 1, -1) end, "kv_bits must be 32, 16, 8 or 4" },
  })
  for key, value in pairs { top_k = 1 << 31, max_tokens = 1 << 31 } do
    local err = t.fails("argument", add { [key] = value })
    t.eq({ err.field, err.message },
      { key, key .. " must be at most 2147483647, got 2147483648" })
  end
  t.fails("argument", add { temperature = -1 })
  t.eq({ b:sequences(), b:drain() }, { {}, {} })
  t.eq({ perigee.batch.kv_bytes(graph, 0), perigee.batch.kv_bytes(graph, 4),
    perigee.batch.kv_bytes(graph, 4, 16) * 2 == perigee.batch.kv_bytes(graph, 4, 32) },
    { 0, perigee.batch.kv_bytes(graph, 4, 32), true })
  local id, count = add { max_tokens = 1, temperature = 0, bad_words = { { 1 }, { 2, 3 } },
    logit_bias = { [0] = -1 }, banned = { 5 }, stop_ids = { 6 }, n = 2 }
  t.eq(count, 2)
  local list = b:sequences()
  t.eq({ #list, list[1].id, list[1].state, list[1].prompt, list[1].past, list[1].generated,
    list[1].left, list[1].cached }, { 2, id, "waiting", 3, 0, 0, 3, 0 })
  t.eq(select(2, b:step { { id, 0 } }), 0)
  local events, ran = b:step { { id, 1 << 40 } }
  t.eq(ran, 1)
  t.ok(#events >= 1 and events[1].seq == id and events[1].finish == "length")
  t.raises(function() b:command("trim", id, -1) end, "a number of tokens expected")
  t.raises(function() b:command("trim", id, 1 << 31) end, "a number of tokens expected")
  t.eq(pcall(b.command, b, "trim", id, 0), true)
  t.eq({ events[1].prompt_tokens, events[1].completion_tokens, events[1].cached_tokens },
    { 3, 1, 0 })
  local free, all = b:room()
  t.ok(free <= all and all >= 256)
  t.eq({ #b:trace(0), #b:trace(1), #b:trace(), #b:trace(1000) }, { 0, 1, 1, 1 })
  local at = b:trace()[1]
  t.eq({ at.tokens, at.prefill, at.decode, #b:trace(256, at.at), #b:trace(256, at.at - 1) },
    { 3, 1, 0, 0, 1 }) -- one sequence in prefill
  local stats = b:stats()
  t.eq({ stats.steps, stats.prefill_tokens, stats.added, stats.finished }, { 1, 3, 2, 2 })
  t.ok(stats.compute > 0 and stats.compute < 100 and at.compute > 0)
  t.eq(b:logits(id), nil)
  local fd = assert(b:start())
  t.ok(fd > 2 and b.running)
  t.raises(function() b:step {} end, "runs on the engine thread: stop it first")
  t.raises(function() b:start() end, "stop it first")
  t.raises(function() b:submit { 5 } end, "grants[1] must be")
  b:stop()
  t.eq(b.running, false)
  t.eq(b:retire(t.expect(function() end)), true)
  t.raises(function() b:stats() end, "the batch was retired")
end)

test("defaults of a batch and an engine", function(t)
  local graph = tiny.model().graph
  local b <close> = assert(perigee.batch.open(graph, { threads = 1, cache_tokens = 256 }))
  t.eq({ b.context, b.step_tokens }, { 4096, 512 })
  local e <close> = assert(perigee.engine.open(graph, { threads = 1, tokens = 64 }))
  t.eq(e:add(), 1)
  t.eq(t.fails("limit", e:add()).message, "all 1 sequences are in use")
end)

test("a backend by its name, and one that this build does not have", function(t)
  t.eq({ perigee.engine.device "cpu", perigee.engine.device "auto" }, { "cpu", "cpu" })
  local graph, why = tiny.model().graph, "device metal: there is no Metal on this system"
  for _, open in ipairs { perigee.engine.open, perigee.batch.open, perigee.tower.open } do
    local err = t.fails("unsupported", open(graph, { device = "metal", threads = 1,
      [open == perigee.batch.open and "cache_tokens" or "threads"] = 1 }))
    t.eq({ err.message, err.field }, { why, "device" })
  end
  assert(perigee.engine.open(graph, { device = "cpu", threads = 1 })):close()
  assert(perigee.batch.open(graph, { device = "auto", cache_tokens = 64 })):close()
  t.eq(t.fails("unsupported", perigee.engine.device "").message,
    "device : this build has metal, cpu only")
  local model <close> = assert(perigee.open("examples/moonlet", { device = "metal", threads = 1 }))
  t.fails("unsupported", model:batch { sequences = 1 })
  t.raises(function() model:eval { prompt = "a" } end, why)
  local pixels = perigee.tensor.zeros { 4, 768 }
  t.raises(function() model.vision:encode { patches = pixels, grid = { 1, 2, 2 } } end, why)
end)

test("pictures of a prompt that are refused", function(t)
  local e <close> = assert(perigee.engine.open(tiny.model().graph, { threads = 1, tokens = 64 }))
  local hash, plane = ("h"):rep(32), perigee.tensor.zeros { 2, 64 }
  local good = { at = 1, tokens = 2, hash = hash, features = plane }
  local function item(change)
    local out = {}
    for k, v in pairs(good) do out[k] = v end
    for k, v in pairs(change) do
      out[k] = v or nil
    end
    return out
  end
  local function add(more)
    return function() return e:add { prompt = { 7, 7, 7 }, media = more.media,
      positions = more.positions } end
  end
  local function with(change) return add { media = { good, item(change) } } end
  refused(t, {
    { add { media = 5 }, "media must be a list of items, got number" },
    { add { media = { good, 5 } }, "media[2] must be a table, got number" },
    { with { hash = "x" }, "media[2]: hash must have 32 bytes, got 1" },
    { with { hash = false }, "media[2]: hash must have 32 bytes, got 0" },
    { with { at = 0 }, "option 'at' must be between 1 and" },
    { with { tokens = 0 }, "option 'tokens' must be between 1 and" },
    { with { features = false }, "media[2]: features must be a tensor, got nil" },
    { with { features = perigee.tensor.zeros { 2, 63 } },
      "media[2]: features are [2, 63], expected [2, 64]" },
    { with { features = perigee.tensor.zeros { 3, 64 } },
      "media[2]: features are [3, 64], expected [2, 64]" },
    { with { features = perigee.tensor.zeros { 2, 64, dtype = "f64" } }, "contiguous f32 matrix" },
    { with { features = perigee.tensor.zeros { 128 } }, "contiguous f32 matrix, got [128]" },
    { with { features = perigee.tensor.zeros({ 64, 2 }):t() }, "contiguous f32 matrix" },
    { with { deepstack = 5 }, "media[2]: deepstack must be a list of at most 15 tensors" },
    { with { deepstack = { plane } }, "media[2] has 1 deepstack tensors, the model takes 0" },
    { with { deepstack = { 5 } }, "media[2]: deepstack must be a tensor, got number" },
    { add { positions = 5 }, "positions must be three lists of integers, got number" },
    { add { positions = { {}, {} } }, "positions must be three lists of integers" },
    { add { positions = { 5, {}, {} } }, "positions[1] must be a list of integers, got number" },
    { add { positions = { { 0, 1, 2 }, { 0, 1 }, {} } },
      "positions[2] has 2 entries, the prompt has 3 tokens" },
    { add { positions = { { 0, 1, 2 }, { 0, 1, 2 }, { 0, 1, "x" } } },
      "positions[3][3] must be an integer, got x" },
    { add { positions = { { 0, 1, 1 << 31 }, {}, {} } }, "positions[1][3] must be an integer" },
  })
  t.eq(e:add { prompt = { 7, 7, 7 }, media = { good } }, 1)
  t.eq({ e:step { { ids = { 7, 7, 7 } } }, #e:info(1).ids }, { 1, 3 })
end)

test("fields of requests as they are listed", function(t)
  local seen = {}
  for _, f in ipairs(perigee.batch.fields()) do
    t.ok(not seen[f.name] and #f.help > 0, f.name)
    seen[f.name] = f
  end
  local function of(name)
    local f = seen[name]
    return { f.type, f.min, f.max, f.above, f.default }
  end
  t.eq(of "temperature", { "number", 0.0, nil, nil, 1.0 })
  t.eq(of "top_p", { "number", 0.0, 1.0, true, 1.0 })
  t.eq(of "ignore_eos", { "boolean", nil, nil, nil, false })
  t.eq(seen.seed.min, nil)
  local on = {}
  for _, c in ipairs(perigee.batch.commands()) do on[c.name] = c.sequence end
  t.eq({ on.add, on.cancel, on.pin }, { false, true, false })
end)

test("weights: what is saved, found and refused", function(t)
  local path = os.tmpname() .. ".safetensors"
  local bytes = string.pack("<ffff", 1, 2, 3, 4)
  local good = { name = "a", dtype = "f32", shape = { 2, 2 }, bytes = bytes }
  local function save(change)
    local item = {}
    for k, v in pairs(good) do item[k] = v end
    for k, v in pairs(change) do item[k] = v end
    return function() return perigee.weights.save(path, { good, item }) end
  end
  refused(t, {
    { function() perigee.weights.save(path, 5) end, "table expected" },
    { function() perigee.weights.save(path, { 5 }) end, "table expected" },
    { save { name = {} }, "string expected" }, { save { shape = 5 }, "table expected" },
    { save { dtype = "f99" }, "unknown dtype 'f99'" },
    { save { shape = { 2, -2 } }, "a: dimension 2 is negative or too large" },
    { save { shape = { 1 << 62, 4 } }, "a: dimension" },
    { save { shape = { "x" } }, "number expected" },
    { save { shape = { 2, 3 } }, "a: the shape needs 24 bytes, got 16" },
    { save { shape = { 1, 1, 1, 1, 1, 1, 1, 1, 1 } }, "a: at most 8 dimensions, got 9" },
    { save { bytes = {} }, "string expected" },
  })
  t.eq(save { name = "b", shape = { 4 } } (), true)
  t.fails("io", perigee.weights.save("/nowhere/x", { good }))
  local w <close> = assert(perigee.weights.open(path))
  os.remove(path)
  t.eq({ w.count, w.bytes, w.path, w:files(), w:names() }, { 2, 32, path, { path }, { "a", "b" } })
  t.eq(w:find "a", { name = "a", kind = "F32", shape = { 2, 2 }, bytes = 16, rows = 2, cols = 2,
    file = 1, parts = 1 })
  t.eq({ w:rows "a", w:rows("a", { from = 2 }), w:rows("a", { count = 2 }),
    w:rows("a", { count = 0 }) }, { { 1.0, 2.0 }, { 3.0, 4.0 }, { 1.0, 2.0, 3.0, 4.0 }, {} })
  t.eq(w:summary(), { { kind = "F32", count = 2, values = 8, bytes = 32 } })
  t.eq(w:metadata(), {})
  refused(t, { { function() w:touch(0) end, "no such weight" },
    { function() w:touch(3) end, "no such weight" },
    { function() w:rows "c" end, "no such tensor" },
    { function() w:rows("a", { from = 3 }) end, "between 1 and 2, got 3" },
    { function() w:rows("a", { from = 2, count = 2 }) end, "between 0 and 1, got 2" } })
  t.eq({ w:touch(2) }, { 16 })
  local large <close> = assert(perigee.weights.synthetic {
    { name = "x", kind = "affine4g64", shape = { 4097, 4096 } } })
  t.raises(function() large:rows("x", { count = 4097 }) end,
    "16781312 values do not fit in a table (at most 16777216)")
end)

test("tokenizers: options and ids", function(t)
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  local function encode(o) return function() return tok:encode("Hello", o) end end
  refused(t, {
    { encode { spans = 5 }, "option 'spans' must be a list of {from, to, trusted}" },
    { encode { spans = { 5 } }, "spans[1] must be {from, to, trusted}" },
    { encode { spans = { { 0, 1, true } } }, "spans[1] must be between 1 and 5, got 0 to 1" },
    { encode { spans = { { 1, 6, true } } }, "spans[1] must be between 1 and 5, got 1 to 6" },
    { encode { spans = { { 3, 1, true } } }, "spans[1] must be between 1 and 5, got 3 to 1" },
    { encode { spans = { { 1, 2, true }, { 2, 3, true } } }, "spans[2] must be between 3 and 5" },
    { encode { spans = { { "x", 2 } } }, "number expected" },
    { encode { positions = 5 }, "option 'positions' must be a list of byte offsets" },
    { encode { positions = { 1.5 } }, "positions[1] must be an integer" },
    { encode { positions = { 1, "2" } }, "positions[2] must be an integer" },
    { encode { positions = { -1 } }, "positions[1] must be between 0 and 5, got -1" },
    { encode { positions = { 3, 2 } }, "positions[2] must be between 3 and 5, got 2" },
    { encode { positions = { 6 } }, "positions[1] must be between 0 and 5, got 6" },
    { encode { marks = 5 }, "option 'marks' must be a list of ids" },
    { encode { marks = { "x" } }, "marks[1] must be an integer" },
    { function() tok:encode(nil) end, "string expected" },
    { function() tok:decode(5) end, "table expected" },
    { function() tok:decode { 1, "x" } end, "ids[2] must be an integer" },
    { function() tok:encode("x", {}, 5) end, "function expected" },
    { function() perigee.tokenizer.open("examples/moonlet", 5) end, "function expected" },
  })
  local spans = { { 1, 0, true }, { 1, 5, false } }
  t.eq({ tok:encode("Hello", { spans = spans, positions = { 0, 5 } }) }, { { 982 }, { 0, 1 } })
  t.eq({ tok:encode("", {}), tok:encode("Hello", { max_ids = 1 }) }, { {}, { 982 } })
  local err = t.fails("limit", tok:encode("Hello, moon!", { max_ids = 3 }))
  t.eq({ err.message, err.count, err.above }, { "text has 4 tokens, the limit is 3", 4 })
  t.eq(t.fails("format", tok:encode "ab\xff").message, "the text is not UTF-8 at byte 3")
  for _, id in ipairs { -1, tok.size, 1 << 31, (1 << 32) + 982 } do
    t.eq({ tok:token(id), tok:is_special(id), tok:decode { 982, id } }, { nil, false, "Hello" }, id)
    t.eq(tok:bytes(id), "")
  end
  t.eq({ tok:token(982), tok:id "Hello", tok:id "no such token", tok:bytes(982) },
    { "Hello", 982, nil, "Hello" })
  local special = assert(tok:id "<|im_end|>")
  t.eq({ tok:is_special(special), tok:is_special(982), tok:decode({ 982, special }, { skip_special =
    true }), tok:decode { 982, special } }, { true, false, "Hello", "Hello<|im_end|>" })
  local added = {}
  for _, id in ipairs(tok:added()) do added[id] = true end
  t.ok(added[special] and not added[982])
  for skip, want in pairs { [true] = "Hello", [false] = "Hello<|im_end|>" } do
    local s <close> = tok:stream { skip_special = skip }
    t.eq(s:push(982) .. s:push(special) .. s:push(-1) .. s:finish(), want)
  end
  t.eq(math.type(tok.eos), "integer")
end)

test("objects that hold no memory of their own count none", function(t)
  local function bytes() return (select(2, perigee.live())) end
  local model = tiny.model()
  collectgarbage()
  collectgarbage "stop"
  local before = bytes()
  local list = { perigee.job.stop(), assert(model.graph:plan()), assert(perigee.graph.open(
    model.weights)), assert(perigee.weights.open "tests/golden/llama"), perigee.image.decoder {},
    assert(perigee.engine.open(model.graph, { threads = 1, tokens = 32 })),
    assert(perigee.batch.open(model.graph, { threads = 1, sequences = 1, context = 32,
      cache_tokens = 32 })) }
  t.eq({ #list, bytes() }, { 7, before })
  for _, object in ipairs(list) do object:close() end
  collectgarbage "restart"
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  t.eq(bytes() - before, 64 * tok.size)
  local _ <close> = tok:stream()
  t.eq(bytes() - before, 64 * tok.size)
end)

test("defaults of patches, and options that count", function(t)
  local image = perigee.image
  local values = perigee.tensor.range(0, 64 * 64 * 3 - 1):to "u8":reshape { 64, 64, 3 }
  local pixels <close> = image.pixels(values)
  local function made(options)
    local o = { pixels = pixels }
    for k, v in pairs(options) do o[k] = v end
    local rows, grid = assert(image.patches(o))
    return rows:bytes() .. table.concat(grid, " ") .. table.concat(rows.shape, " ")
  end
  local defaults = { patch = 16, patch_height = 16, merge = 1, frames = 1, scale = 1 / 255,
    order = "cyx", mean = { 0, 0, 0 }, std = { 1, 1, 1 }, x = 0, y = 0, width = 0, height = 0 }
  local plain = made {}
  t.ok(made(defaults) == plain, "all")
  for key, value in pairs(defaults) do t.ok(made { [key] = value } == plain, key) end
  for key, value in pairs { patch = 8, patch_height = 8, merge = 2, frames = 2, scale = 1,
    order = "yxc" } do
    t.ok(made { [key] = value } ~= plain, key)
  end
  local part = { width = 32, height = 16 }
  local corner = made(part)
  t.ok(corner ~= plain)
  for _, key in ipairs { "x", "y" } do
    part[key] = 0
    t.ok(made(part) == corner, key)
    part[key] = 16
    t.ok(made(part) ~= corner, key)
    part[key] = 0
  end
  t.eq({ made { height = 32 } == plain, made { x = 16, y = 16 } == plain }, { true, true })
  t.match(select(2, image.patches { pixels = pixels, width = 32 }).message,
    "^32 x 0 pixels at 0, 0 are not inside a picture of 64 x 64")
  for i = 1, 3 do
    local mean, std = { 0, 0, 0 }, { 1, 1, 1 }
    mean[i], std[i] = 0.5, 2
    t.ok(made { mean = mean } ~= plain and made { std = std } ~= plain)
  end
  refused(t, {
    { function() image.patches(5) end, "table expected" },
    { function() image.patches { pixels = 5 } end, "perigee.Pixels expected" },
    { function() image.patches { pixels = { pixels, 5 } } end, "perigee.Pixels expected" },
    { function() image.patches({ pixels = pixels }, 5) end, "function expected" },
    { function() image.pixels(perigee.tensor.zeros { 2, 2, 4, dtype = "u8" }) end,
      "a tensor of u8 with the shape [height, width, 3] is needed" },
    { function() image.pixels(perigee.tensor.zeros { 2, 2, dtype = "u8" }) end, "a tensor of u8" },
    { function() image.pixels(perigee.tensor.zeros { 0, 2, 3, dtype = "u8" }) end, "is empty" },
    { function() image.base64(5, {}, 5) end, "function expected" },
    { function() image.base64 {} end, "string expected" },
    { function() image.bytes {} end, "string expected" },
    { function() image.join(5) end, "table expected" },
    { function() image.sha256() end, "string expected" },
  })
  t.eq({ image.base64("QUJD", { from = 5 }):text(), image.base64("QUJD", { from = 99 }):text(),
    image.base64("xQUJD", { from = 2 }):text(), image.base64("QUJD", { limit = 3 }):text() },
    { "", "", "ABC", "ABC" })
  local list = {}
  for i = 1, 4097 do list[i] = pixels end
  t.raises(function() image.patches { pixels = list, patch = 64 } end,
    "option 'pixels' must have between 1 and 4096 pictures")
  for seconds, fine in pairs { [0.001] = true, [3600] = true, [0] = false, [3600.5] = false,
    [-1] = false } do
    local ok, made_ = pcall(image.decoder, { seconds = seconds, children = 1 })
    t.eq(ok, fine, seconds)
    if ok then made_:close() end
  end
end)
