-- The core against scripts that misuse it: ids that no table has, graphs that change after they
-- were planned, ops whose inputs do not fit together. All of it raises; nothing is read or written
-- outside of its memory.
local perigee = require "perigee"
local tiny = require "tiny"
local test = require("harness").test

-- ---- token ids --------------------------------------------------------------------------------

--- A head of 4096 rows over a table of 64: most logits are of ids that cannot be computed.
local function padded() return tiny.model { embed = 64, head = 4096 } end

test("a prompt may have the ids of the embedding, not those of the head", function(t)
  local model = padded()
  local batch <close> = assert(perigee.batch.open(model.graph,
    { sequences = 2, context = 64, cache_tokens = 256, threads = 1 }))
  local _, why = batch:command("add", { prompt = { 1, 2, 64 }, max_tokens = 2 })
  t.match(tostring(why), "prompt: token id must be between 0 and 63, got 64")
  local id = assert(batch:command("add", { prompt = { 1, 63 }, max_tokens = 3, temperature = 0 }))
  _, why = batch:command("force", id, { 4095 })
  t.match(tostring(why), "token id must be between 0 and 63, got 4095")
end)

test("a sampler never draws an id that the embedding lacks", function(t)
  local model = padded()
  local batch <close> = assert(perigee.batch.open(model.graph,
    { sequences = 4, context = 64, cache_tokens = 256, threads = 1 }))
  for _, temperature in ipairs { 0, 2 } do
    local id = assert(batch:command("add", { prompt = { 1, 2 }, max_tokens = 12, seed = 5,
      temperature = temperature, ignore_eos = true, top_logprobs = 3 }))
    local drawn = 0
    for _ = 1, 20 do
      for _, event in ipairs((batch:step { { id, 16 } })) do
        if event.id then
          drawn = drawn + 1
          t.ok(event.id < 64, "drew " .. event.id)
        end
      end
    end
    t.eq(drawn, 12)
  end
  local engine <close> = assert(perigee.engine.open(model.graph, { threads = 1, tokens = 64 }))
  local seq = engine:add()
  assert(engine:step { { seq = seq, ids = { 1, 2 }, outputs = 1 } })
  t.ok(engine:argmax(1) < 64 and engine:sample(1, { seed = 9 }) < 64, "drew an id of no table")
end)

-- ---- graphs that change after they were planned -----------------------------------------------

local function find(graph, pattern, op)
  for i, value in ipairs(graph:values()) do
    if value.name:match(pattern) and (not op or value.op == op) then return i - 1 end
  end
end

test("a graph may grow while a model of it runs", function(t)
  local model = tiny.model()
  local graph = model.graph
  local engine <close> = assert(perigee.engine.open(graph,
    { threads = 1, tokens = 256, sequences = 3 }))
  local a = engine:add()
  assert(engine:step { { seq = a, ids = { 1, 2, 3 }, outputs = 1 } })
  local x = graph:embed(graph:param "model.embed_tokens.weight", {})
  local function heads(name, n)
    return graph:reshape(graph:linear(x,
      { weight = graph:param("model.layers.0.self_attn." .. name .. ".weight") }), { n, 16 })
  end
  local q, k = heads("q_proj", 4), heads("k_proj", 2)
  for _ = 1, 8 do graph:attention { q = q, k = k, v = k, scale = 1 } end
  local b = engine:fork(a) -- shares a partly filled block, which is copied on the next write
  assert(engine:step { { seq = b, ids = { 4 }, outputs = 1 } })
  local got = engine:logits():bytes()
  assert(engine:step { { seq = a, ids = { 4 }, outputs = 1 } })
  t.ok(got == engine:logits():bytes(), "the fork differs")
end)

test("a graph may grow while the engine thread works", function(t)
  local model = tiny.model { config = { rope_scaling = { rope_type = "dynamic", factor = 2 } } }
  local batch <close> = assert(perigee.batch.open(model.graph,
    { sequences = 4, context = 256, cache_tokens = 1024, threads = 1 }))
  assert(batch:start())
  local added = 0
  for _ = 1, 30 do
    for i = 1, 20 do
      assert(batch:command("add", { prompt = { 1, 2, 3, i }, max_tokens = 1, temperature = 0 }))
    end
    for _ = 1, 200 do
      model.graph:unary("silu", 0)
      added = added + 1
    end
    batch:drain()
  end
  t.eq(added, 6000)
  batch:stop()
end)

-- ---- shared caches ----------------------------------------------------------------------------

test("an attention that shares a cache keeps its store alive", function(t)
  local function logits(used)
    local graph = tiny.model({ layers = 1 }).graph
    local x = graph:embed(graph:param "model.embed_tokens.weight", {})
    local function heads(name, n)
      return graph:reshape(graph:linear(x,
        { weight = graph:param("model.layers.0.self_attn." .. name .. ".weight") }), { n, 16 })
    end
    local a, layer = graph:attention { q = heads("q_proj", 4), k = heads("k_proj", 2),
      v = heads("v_proj", 2), scale = 1 }
    local b = graph:attention { q = heads("q_proj", 4), share = layer, scale = 1 }
    if used then -- the same numbers
      b = graph:binary("add", { a = b, b = graph:binary("mul", { a = a, number = 0 }) })
    end
    graph:finish(graph:linear(graph:output(graph:reshape(b, { 64 })),
      { weight = graph:param "lm_head.weight" }))
    local engine <close> = assert(perigee.engine.open(graph, { threads = 1, tokens = 64 }))
    local seq = engine:add()
    assert(engine:step { { seq = seq, ids = { 1, 2, 3, 4, 5 }, outputs = 1 } })
    return engine:logits()
  end
  local apart = (logits(true) - logits(false)):abs():max()
  t.ok(apart == 0, "logits differ by " .. apart)
end)

-- ---- ops whose inputs do not fit --------------------------------------------------------------

--- Calls f(graph, x, heads): x is the embedding, heads the same as [4, 16].
local function refuses(t, pattern, f)
  local graph = tiny.model({ layers = 1 }).graph
  local x = graph:embed(graph:param "model.embed_tokens.weight", {})
  local ok, why = pcall(f, graph, x, graph:reshape(x, { 4, 16 }))
  t.ok(not ok, "accepted: " .. pattern)
  t.match(tostring(why), pattern)
end

test("only elementwise operations read constants", function(t)
  local function constant(graph) return graph:constant(graph:param "model.norm.weight") end
  refuses(t, "linear: .* is a constant", function(graph)
    graph:linear(constant(graph), { weight = graph:param "lm_head.weight" })
  end)
  refuses(t, "norm: .* is a constant", function(graph) graph:norm(constant(graph), {}) end)
  refuses(t, "output: .* is a constant", function(graph) graph:output(constant(graph)) end)
  refuses(t, "concat: .* is a constant", function(graph, x)
    graph:concat { x, constant(graph) }
  end)
  refuses(t, "the output of the graph, .*, is a constant", function(graph)
    graph:finish(constant(graph))
    assert(graph:plan())
  end)
end)

test("inputs of an op have the same rows", function(t)
  local all = "needs all rows"
  refuses(t, all, function(graph, x, heads)
    graph:attention { q = graph:reshape(graph:output(x), { 4, 16 }), k = heads, v = heads,
      scale = 1 }
  end)
  refuses(t, all, function(graph, x)
    local few = graph:reshape(graph:output(x), { 4, 16 })
    graph:attention { q = few, k = few, v = few, scale = 1 }
  end)
  refuses(t, all, function(graph, x) graph:output(graph:output(x)) end)
  refuses(t, "output rows only", function(graph, x) graph:concat { x, graph:output(x) } end)
  refuses(t, "every row", function(graph, x)
    local few = graph:reshape(graph:output(x), { 4, 16 })
    graph:rope(few, { table = graph:rope_table { dims = 16 } })
  end)
end)

test("a store has no value to read", function(t)
  refuses(t, "is a cache store", function(graph)
    graph:unary("silu", find(graph, "store", "store"))
  end)
end)

test("widths and offsets are checked without overflow", function(t)
  refuses(t, "rope rotates", function(graph, _, heads)
    graph:rope(heads, { table = graph:rope_table { dims = 16 }, skip = 2147483640 })
  end)
  refuses(t, "width %-64 does not divide", function(graph, x) graph:norm(x, { width = -64 }) end)
  refuses(t, "cannot be reshaped", function(graph, x)
    graph:reshape(x, { 2147483647, 2147483647, 2147483647 })
  end)
  refuses(t, "cannot be reshaped", function(graph, x) graph:reshape(x, { -4, -16 }) end)
  refuses(t, "do not fit", function(graph)
    graph:rows(graph:param "lm_head.weight",
      { from = 2, count = math.maxinteger, step = 1 << 20 })
  end)
  refuses(t, "window must be 0 or more", function(graph, _, heads)
    graph:attention { q = heads, k = heads, v = heads, scale = 1, window = -1 }
  end)
end)
