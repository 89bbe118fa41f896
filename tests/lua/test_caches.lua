-- What sequences remember, on every architecture, in both precisions and for every type of cache:
-- any chunking, company and size of block, forked, trimmed, saved and loaded give the same bits;
-- and fewer bits are near float32.
local perigee = require "perigee"
local models = require "models"
local run = require "engine.run"
local test = require("harness").test

local forced = ... -- with a collection at every step: a few are enough, the numbers are the same

local samples = require "samples"
local ids_of = samples.read_ids

local function bytes(t) return t:bytes() end

local function same(t, what, got, want)
  if got ~= want then t.eq(what .. " differs", "the same bits") end
end

local function check_chunks(t, runner, ids)
  local whole = bytes(runner:eval(ids).logits)
  for _, chunk in ipairs { 1, 5, 32 } do
    same(t, "a run in chunks of " .. chunk, bytes(runner:eval(ids, { chunk = chunk }).logits),
      whole)
  end
  return whole
end

--- Three sequences, one of them `ids`, in steps of changing make-up; the logits of `ids` as bytes.
local function beside_others(model, ids, cache)
  local engine <close> = assert(perigee.engine.open(model.graph,
    { tokens = 512, sequences = 3, threads = 2, precision = cache.precision,
    kv_bits = cache.kv_bits, kv_block = cache.kv_block }))
  local a, b, c = engine:add(), engine:add(), engine:add()
  local parts, at = {}, 1
  local sizes = { 3, 1, 7, 2, 1, 11, 4 }
  for k = 1, 100 do
    if at > #ids then break end
    local n = math.min(sizes[k % #sizes + 1], #ids - at + 1)
    local mine = { seq = b, ids = table.move(ids, at, at + n - 1, 1, {}), outputs = n,
      rope_length = #ids }
    local step = { { seq = a, ids = { 5, 6, 7 } }, mine, { seq = c, ids = { k % 9 } } }
    if k % 3 == 0 then table.remove(step, 1) end
    assert(engine:step(step))
    local logits, before = engine:logits(), k % 3 == 0 and 0 or 1
    parts[#parts + 1] = bytes(logits:rows(before + 1, before + n):contiguous())
    at = at + n
  end
  return table.concat(parts)
end

-- ---- what a sequence remembers ----------------------------------------------------------------

local function part(ids, from, to) return table.move(ids, from, to, 1, {}) end

--- Ids from `from` to `to` of a sequence; their logits as bytes.
local function go_on(engine, seq, ids, span)
  local from, to = span[1], span[2]
  assert(engine:step { { seq = seq, ids = part(ids, from, to), outputs = to - from + 1,
    rope_length = #ids } })
  return bytes(engine:logits())
end

--- Bytes of the logits of tokens from .. to of the whole run.
local function lines(whole, ids, span)
  local width = #whole // #ids
  return whole:sub((span[1] - 1) * width + 1, span[2] * width)
end

--- The child goes another way; the parent and a second child go on as if nothing had been.
local function check_fork(t, engine, ids, whole)
  local n, cut = #ids, #ids // 2
  local parent = assert(engine:add())
  same(t, "the beginning", go_on(engine, parent, ids, { 1, cut }), lines(whole, ids, { 1, cut }))
  local child, twin = assert(engine:fork(parent)), assert(engine:fork(parent))
  assert(engine:step { { seq = child, ids = { 3, 1, 4, 1, 5, 9, 2, 6 } } })
  same(t, "a parent", go_on(engine, parent, ids, { cut + 1, n }), lines(whole, ids, { cut + 1, n }))
  assert(engine:step { { seq = child, ids = { 5, 3, 5 } } })
  engine:remove(parent)
  same(t, "a twin", go_on(engine, twin, ids, { cut + 1, n }), lines(whole, ids, { cut + 1, n }))
  engine:remove(twin)
  engine:remove(child)
  t.eq(engine.used, 0)
end

--- Somewhere else and back again, with the help of a snapshot; where a window is in the way, it
--- says so and nothing changes.
local function check_trim(t, engine, ids, whole)
  local n, cut = #ids, #ids // 2 + 1
  local seq = assert(engine:add())
  go_on(engine, seq, ids, { 1, cut })
  local snapshot <close> = assert(engine:snapshot(seq))
  t.eq(snapshot.position, cut)
  assert(engine:step { { seq = seq, ids = { 8, 9 } } })
  local ok, why = engine:trim(seq, cut, { snapshot = snapshot })
  if not ok then -- two tokens further a block fell out of a window: the sequence is as it was
    t.eq(why.code, "unsupported")
    t.eq(#engine:info(seq).ids, cut + 2)
    assert(engine:trim(seq, 0))
    go_on(engine, seq, ids, { 1, cut })
  end
  t.eq(engine:info(seq).ids, part(ids, 1, cut))
  same(t, "what follows a trim", go_on(engine, seq, ids, { cut + 1, n }),
    lines(whole, ids, { cut + 1, n }))
  t.eq(engine:trim(seq, n + 1), nil)
  assert(engine:trim(seq, 0))
  same(t, "from the beginning", go_on(engine, seq, ids, { 1, n }), whole)
  engine:remove(seq)
  t.eq(engine.used, 0)
end

--- Saved by one engine, loaded by another with other blocks; a file of another model or type is
--- refused.
local function check_save(t, model, ids, cache)
  local n, cut, path = #ids, #ids // 2, os.tmpname()
  local rest
  local function open(block, bits)
    return assert(perigee.engine.open(model.graph,
      { tokens = 256, sequences = 2, threads = 1, precision = cache.precision, kv_bits = bits,
        kv_block = block }))
  end
  do
    local engine <close> = open(32, cache.kv_bits)
    local seq = assert(engine:add())
    go_on(engine, seq, ids, { 1, cut })
    assert(engine:save(seq, path))
    rest = go_on(engine, seq, ids, { cut + 1, n })
  end
  local engine <close> = open(2, cache.kv_bits)
  local seq = assert(engine:load(path))
  t.eq(engine:info(seq).ids, part(ids, 1, cut))
  same(t, "a loaded sequence", go_on(engine, seq, ids, { cut + 1, n }), rest)
  local other <close> = open(4, cache.kv_bits == 16 and 32 or 16)
  local none, why = other:load(path)
  t.eq(none, nil)
  t.eq(why.code, "unsupported")
  os.remove(path)
end

-- On average, of the spread of the logits: a router that chooses another expert makes single ones
-- jump.
local near = { exact = { [32] = 0, [16] = 2e-3, [8] = 0.1, [4] = 0.5 },
  fast = { [32] = 2e-3, [16] = 4e-3, [8] = 0.1, [4] = 0.5 } }

--- A type of cache: the same bits in any chunking, company, blocks; fork, trim and save; not far
--- from float32.
local function check_cache(t, model, ids, cache, exact)
  local runner = run.new(model, { threads = 2, precision = cache.precision,
    kv_bits = cache.kv_bits, kv_block = cache.kv_block })
  local logits = runner:eval(ids).logits
  local whole = check_chunks(t, runner, ids)
  runner:close()
  same(t, "a row beside others", beside_others(model, ids, cache), whole)
  local other = run.new(model,
    { threads = 1, precision = cache.precision, kv_bits = cache.kv_bits,
      kv_block = cache.kv_block == 2 and 32 or 2 })
  same(t, "another size of block", bytes(other:eval(ids, { chunk = 7 }).logits), whole)
  other:close()
  local far = (logits - exact):abs():mean() / exact:std()
  t.near(far, 0, near[cache.precision][cache.kv_bits],
    ("%s, %d bits"):format(cache.precision, cache.kv_bits))
  local engine <close> = assert(perigee.engine.open(model.graph,
    { tokens = 512, sequences = 4, threads = 2, precision = cache.precision,
    kv_bits = cache.kv_bits, kv_block = cache.kv_block }))
  check_fork(t, engine, ids, whole)
  check_trim(t, engine, ids, whole)
  check_save(t, model, ids, cache)
end

local some = forced and { "llama", "gpt_oss-mxfp4", "qwen3_5-mlx4" }
for _, name in ipairs(some or samples.directories "golden.safetensors") do
  test(name, function(t)
    local model = assert(models.load("tests/golden/" .. name))
    local path = ("tests/golden/%s/golden.safetensors"):format(name)
    local golden <close> = assert(perigee.weights.open(path))
    local ids = ids_of(golden, "ids.2")
    local runner = run.new(model, { threads = 2 })
    local exact = runner:eval(ids).logits
    runner:close()
    for _, precision in ipairs { "exact", "fast" } do
      for i, bits in ipairs { 32, 16, 8, 4 } do
        check_cache(t, model, ids, { precision = precision, kv_bits = bits,
          kv_block = i % 2 == 0 and 2 or 8 }, exact)
      end
    end
    model.graph:close()
    model.weights:close()
  end)
end

test("steps and caches that cannot be", function(t)
  local model = assert(models.load "tests/golden/llama")
  for _, options in ipairs { { kv_bits = 7 }, { kv_block = 3 } } do
    local none, why = perigee.engine.open(model.graph, options)
    t.eq(none, nil)
    t.eq(why.code, "argument")
  end
  local engine <close> = assert(perigee.engine.open(model.graph,
    { tokens = 8, kv_block = 4, sequences = 2, threads = 1 }))
  local a, b = assert(engine:add()), assert(engine:add())
  assert(engine:step { { seq = a, ids = { 1, 2, 3 } } })
  local used = engine.used
  local none, why = engine:step { { seq = b, ids = { 1 } },
    { seq = a, ids = { 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 } } }
  t.eq(none, nil)
  t.eq(why.code, "limit")
  none, why = engine:step { { seq = b, ids = { 1 } }, { seq = b, ids = { 2 } } }
  t.eq(none, nil)
  t.eq(why.code, "argument")
  t.raises(function() engine:step { { seq = b, ids = { 1 } }, { seq = a, ids = { -1 } } } end,
    "out of range")
  t.raises(function() engine:fork(3) end, "no sequence 3")
  t.eq(engine:info(a).ids, { 1, 2, 3 })
  t.eq(engine:info(b).ids, {})
  engine:remove(b)
  t.eq(engine.used, used)
  none, why = engine:load "tests/golden/llama/config.json"
  t.eq(none, nil)
  t.eq(why.code, "format")
  t.eq((engine:load "no/such/file"), nil)
  assert(engine:fork(a))
  none, why = engine:fork(a)
  t.eq(none, nil)
  t.eq(why.code, "limit")
  model.graph:close()
  model.weights:close()
end)
