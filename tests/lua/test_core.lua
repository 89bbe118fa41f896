-- The core against scripts that misuse it: ids that no table has, graphs that change after they
-- were planned, ops whose inputs do not fit together. All of it raises; nothing is read or written
-- outside of its memory.
local perigee = require "perigee"
local tiny = require "tiny"
local test = require("harness").test
local uv = require "luv"

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
      { from = 2, count = 1 << 60, step = 1 << 20 })
  end)
  refuses(t, "window must be 0 or more", function(graph, _, heads)
    graph:attention { q = heads, k = heads, v = heads, scale = 1, window = -1 }
  end)
end)

-- ---- identity of caches -----------------------------------------------------------------------

local function temporary()
  return assert(uv.fs_mkdtemp((os.getenv "TMPDIR" or "/tmp") .. "/perigee-XXXXXX"))
end

local function remove(folder)
  for name in function(r) return uv.fs_scandir_next(r) end, assert(uv.fs_scandir(folder)) do
    uv.fs_unlink(folder .. "/" .. name)
  end
  uv.fs_rmdir(folder)
end

local function engine_of(model)
  return assert(perigee.engine.open(model.graph, { threads = 1, tokens = 256, sequences = 2 }))
end

--- Saves a sequence of one model and loads it into another.
local function carry_over(from, to, file)
  local a <close> = engine_of(from)
  local b <close> = engine_of(to)
  local seq = a:add()
  assert(a:step { { seq = seq, ids = { 1, 2, 3, 4 }, outputs = 1 } })
  assert(a:save(seq, file))
  return b:load(file)
end

local function llama3(original)
  return { rope_scaling = { rope_type = "llama3", factor = 8.0, low_freq_factor = 1.0,
    high_freq_factor = 4.0, original_max_position_embeddings = original } }
end

test("a cache of another rope is another model's", function(t)
  local folder = temporary()
  local file = folder .. "/seq"
  local long = tiny.model { config = llama3(8192) }
  t.ok(carry_over(long, tiny.model { config = llama3(8192) }, file), "the same model")
  local linear = { rope_scaling = { rope_type = "linear", factor = 8.0 } }
  for _, config in ipairs { llama3(64), linear } do
    t.fails("unsupported", carry_over(long, tiny.model { config = config }, file))
  end
  remove(folder)
end)

test("a cache of edited constants is another model's", function(t)
  local folder = temporary()
  local function model(factor)
    local built = tiny.model { layers = 1 }
    local graph = built.graph
    local norm = graph:constant(graph:param "model.norm.weight")
    local x = graph:embed(graph:param "model.embed_tokens.weight", {})
    x = graph:binary("mul", { a = x, b = graph:binary("mul", { a = norm, number = factor }) })
    local heads = graph:reshape(x, { 4, 16 })
    local y = graph:attention { q = heads, k = heads, v = heads, scale = 1 }
    graph:finish(graph:linear(graph:output(graph:reshape(y, { 64 })),
      { weight = graph:param "lm_head.weight" }))
    return built
  end
  t.ok(carry_over(model(2), model(2), folder .. "/seq"))
  t.fails("unsupported", carry_over(model(2), model(3), folder .. "/seq"))
  remove(folder)
end)

test("a cache of edited weights is another model's", function(t)
  local folder = temporary()
  local file = folder .. "/model.safetensors"
  for _, name in ipairs { "config.json", "model.safetensors" } do
    assert(uv.fs_copyfile("examples/moonlet/" .. name, folder .. "/" .. name))
  end
  local engine <close> = engine_of(assert(perigee.open(folder)))
  local seq = engine:add()
  assert(engine:step { { seq = seq, ids = { 1, 2, 3, 4 }, outputs = 1 } })
  assert(engine:save(seq, folder .. "/seq"))
  local same <close> = engine_of(assert(perigee.open(folder)))
  t.ok(same:load(folder .. "/seq"))
  local bytes = io.open(file, "rb"):read "a" -- a copy with one byte changed replaces the file
  local at = #bytes - 12345
  local copy = assert(io.open(folder .. "/new", "wb"))
  copy:write(bytes:sub(1, at - 1), string.char(bytes:byte(at) ~ 1), bytes:sub(at + 1))
  copy:close()
  assert(os.rename(folder .. "/new", file))
  local edited <close> = engine_of(assert(perigee.open(folder)))
  t.fails("unsupported", edited:load(folder .. "/seq"))
  -- overwritten in place and restored, with its time: what was computed in between is not found
  local stat = uv.fs_stat(file)
  seq = edited:add()
  assert(edited:step { { seq = seq, ids = { 1, 2, 3, 4 }, outputs = 1 } })
  assert(edited:save(seq, folder .. "/seq"))
  uv.sleep(20) -- longer than the file system's clock ticks
  for _, byte in ipairs { "x", string.char(bytes:byte(at) ~ 1) } do
    local f <close> = assert(io.open(file, "r+b"))
    f:seek("set", at - 1)
    f:write(byte)
  end
  assert(uv.fs_utime(file, stat.atime.sec + stat.atime.nsec * 1e-9,
    stat.mtime.sec + stat.mtime.nsec * 1e-9))
  local restored <close> = engine_of(assert(perigee.open(folder)))
  t.fails("unsupported", restored:load(folder .. "/seq"))
  remove(folder)
end)

-- ---- files that are lost ------------------------------------------------------------------------

--- A copy of moonlet, opened; and a function that damages its file.
local function copied()
  local folder = temporary()
  for _, name in ipairs { "config.json", "model.safetensors" } do
    assert(uv.fs_copyfile("examples/moonlet/" .. name, folder .. "/" .. name))
  end
  return folder, assert(perigee.open(folder)), function(size)
    local fd = assert(uv.fs_open(folder .. "/model.safetensors", "r+", 0))
    assert(uv.fs_ftruncate(fd, size))
    uv.fs_close(fd)
  end
end

test("a truncated file ends every sequence of its model with an error that names it", function(t)
  local folder, model, truncate = copied()
  local cache = temporary()
  local batch <close> = assert(perigee.batch.open(model.graph, { sequences = 2, context = 256,
    cache_tokens = 1024, threads = 2, cache_folder = cache, stride = 4 }))
  local request = { prompt = { 1, 2, 3, 4, 5, 6 }, max_tokens = 50, ignore_eos = true }
  local running, waiting = assert(batch:command("add", request)),
    assert(batch:command("add", { prompt = { 7, 8 }, max_tokens = 5, n = 3 }))
  assert(batch:step { { running, 6 } })
  assert(batch:command("pin", { prompt = request.prompt }))
  t.ok(batch:stats().prefix.bytes > 0)
  truncate(4096)
  local ended = {}
  for _, event in ipairs((assert(batch:step { { running, 1 } }))) do
    t.eq({ event.finish, event.error.code, event.id }, { "error", "io" })
    t.match(event.error.message, "model%.safetensors was truncated")
    ended[#ended + 1] = event.seq
  end
  table.sort(ended)
  t.eq(ended, { running, waiting, waiting + 1, waiting + 2 })
  t.eq(batch:stats().prefix.bytes, 0)
  t.fails("io", batch:command("add", request))
  t.fails("io", model.weights:check())
  t.fails("io", model.weights:touch(1))
  t.fails("io", perigee.batch.open(model.graph, { sequences = 1, cache_tokens = 64 }))
  batch:close()
  for name in uv.fs_scandir_next, (assert(uv.fs_scandir(cache))) do
    t.fail("nothing is written to disk: " .. name)
  end
  model:close()
  remove(cache)
  remove(folder)
end)

test("a truncated file ends a step of the engine with an error", function(t)
  local folder, model, truncate = copied()
  local engine <close> = engine_of(model)
  local seq = engine:add()
  assert(engine:step { { seq = seq, ids = { 1, 2, 3, 4 }, outputs = 1 } })
  truncate(0)
  t.fails("io", engine:step { { seq = seq, ids = { 5 }, outputs = 1 } })
  t.fails("io", model.weights:rows(model.weights:names()[1]))
  model:close()
  remove(folder)
end)

test("an overwritten file is noticed without a fault, on another thread", function(t)
  local folder, model = copied()
  t.eq(model.weights:check(), true)
  uv.sleep(20)
  local f = assert(io.open(folder .. "/model.safetensors", "r+b"))
  f:seek("set", 300000)
  f:write "other weights"
  f:close()
  local engine = engine_of(model)
  assert(engine:step { { seq = engine:add(), ids = { 1 }, outputs = 1 } }) -- nobody has looked
  assert(model.weights:check(t.expect(function(ok, err)
    t.fails("io", ok, err)
    t.fails("io", engine:step { { seq = engine:add(), ids = { 1 }, outputs = 1 } })
    engine:close()
    model:close()
    remove(folder)
  end)))
end)

-- ---- steps in flight --------------------------------------------------------------------------

test("tokens granted to a step in flight count as computed for the next", function(t)
  local model <close> = assert(perigee.open("examples/moonlet", { threads = 1 }))
  local left, done = {}, false
  local function policy(step)
    for _, info in ipairs(step.sequences) do
      -- A snapshot is taken before the last token of the prompt, so it may be a step of its own.
      if info.state ~= "decode" and info.left > 1 then left[#left + 1] = info.left end
      step:give(info, math.min(info.left, 100))
    end
  end
  local batch <close> = assert(model:batch { sequences = 2, step_tokens = 100, policy = policy })
  batch.scheduler.deadline_ms = 1000
  assert(batch:start())
  assert(batch:add { prompt = require("samples").ids(300, 1, 90), max_tokens = 1,
    on_done = function() done = true end })
  while not done do -- not only when a step is done: the next is chosen while one runs
    batch:pump()
    uv.run "nowait"
  end
  assert(batch:stop())
  t.eq(left, { 300, 200, 100 })
end)

test("a model closes all that it opened", function(t)
  local model = assert(perigee.open "examples/moonlet")
  local tok, graph, weights = model:tokenizer(), model.graph, model.weights
  t.ok(#weights:names() > 0 and #graph:values() > 0 and #tok:encode "a" > 0)
  model:close()
  t.raises(function() weights:names() end, "closed")
  t.raises(function() graph:values() end, "closed")
  t.raises(function() tok:encode "a" end, "closed")
end)
