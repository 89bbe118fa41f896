-- Options of C functions: the range of every integer, as the refusal of a value below it states,
-- and defaults that show.
local perigee = require "perigee"
local test = require("harness").test
local tiny = require "tiny"

local INT32, INT64 = (1 << 31) - 1, math.maxinteger

--- Checks the ranges of a function's options: { name = { least, most } }. take(options) calls it.
local function ranges(t, what, take, options)
  for name, range in pairs(options) do
    local least, most = table.unpack(range)
    local wrong = least > math.mininteger and least - 1 or most + 1
    local where = ("%s: %s"):format(what, name)
    local ok, err = pcall(take, { [name] = wrong })
    local want = ("option '%s' must be between %d and %d, got %d"):format(name, least, most, wrong)
    t.ok(not ok and tostring(err):find(want, 1, true), where .. ": " .. tostring(err))
    if most < INT64 then
      ok, err = pcall(take, { [name] = most + 1 })
      t.ok(not ok and tostring(err):find("must be between", 1, true), where)
    end
    ok, err = pcall(take, { [name] = "x" })
    t.ok(not ok and tostring(err):find(name, 1, true), where .. ": " .. tostring(err))
  end
end

test("ranges of batches, engines and towers", function(t)
  local graph = tiny.model().graph
  ranges(t, "batch", function(o) return perigee.batch.open(graph, o) end, {
    sequences = { 1, 1 << 16 }, step_tokens = { 1, 1 << 20 }, context = { 2, INT32 // 2 },
    cache_tokens = { 1, 1 << 40 }, kv_bits = { 4, 32 }, kv_block = { 1, 4096 },
    stride = { 1, INT32 }, media_bytes = { 0, INT64 }, cache_bytes = { 0, INT64 },
    cache_disk_bytes = { 0, INT64 }, threads = { 0, 1024 } })
  ranges(t, "engine", function(o) return perigee.engine.open(graph, o) end, {
    kv_bits = { 4, 32 }, kv_block = { 1, 4096 }, tokens = { 1, INT32 }, threads = { 0, 1024 },
    sequences = { 1, 1 << 20 } })
  ranges(t, "tower", function(o) return perigee.tower.open(graph, o) end, {
    patch = { 1, 1 << 24 }, merge = { 1, 256 }, window = { 0, 1 << 16 }, side = { 0, 1 << 15 },
    step_rows = { 1, 1 << 20 }, threads = { 0, 1024 } })
  local x = graph:embed(graph:param "model.embed_tokens.weight", {})
  ranges(t, "merge", function(o) return graph:merge(x, o) end, { count = { 1, 1 << 16 } })
  local embed = graph:param "model.embed_tokens.weight"
  ranges(t, "rows", function(o) return graph:rows(embed, o) end,
    { from = { 1, INT64 // 4 }, step = { 1, 1 << 20 }, count = { 1, INT64 // 4 } })
end)

test("ranges of pictures, JSON, tensors, tokenizers and weights", function(t)
  local image, json, tensor = perigee.image, perigee.json, perigee.tensor
  ranges(t, "decoder", image.decoder, { children = { 1, 64 }, pixels = { 1, INT32 },
    memory = { 1 << 20, 1 << 40 }, bytes = { 1, INT32 } })
  ranges(t, "read", function(o) return image.read("README.md", o) end, { limit = { 0, INT64 } })
  ranges(t, "base64", function(o) return image.base64("QUJD", o) end,
    { from = { 1, INT64 }, limit = { 0, INT64 } })
  local pixels <close> = image.pixels(tensor.zeros { 2, 2, 3, dtype = "u8" })
  ranges(t, "patches", function(o)
    o.pixels = pixels
    return image.patches(o)
  end, { patch = { 1, 1 << 24 }, patch_height = { 1, 1 << 24 }, merge = { 1, 1 << 24 },
    frames = { 1, 1 << 24 }, x = { 0, 1 << 24 }, y = { 0, 1 << 24 }, width = { 0, 1 << 24 },
    height = { 0, 1 << 24 } })
  ranges(t, "decode", function(o) return json.decode("1", o) end,
    { max_size = { 0, 1 << 30 }, max_values = { 1, INT64 }, max_depth = { 1, 200 } })
  local text = assert(perigee.bytes.new(1))
  ranges(t, "json.read", function(o) return json.read(text, o, print) end,
    { max_values = { 1, INT64 }, max_text = { 0, INT64 }, max_depth = { 1, 200 } })
  ranges(t, "encode", function(o) return json.encode(1, o) end, { indent = { 0, 64 } })
  local x = tensor { 1.0, 2.0 }
  ranges(t, "tensor", function(o) return x:format(o) end, { width = { 10, 10000 },
    edge = { 1, 1000 }, threshold = { 1, 1000000 }, digits = { 1, 17 } })
  ranges(t, "std", function(o) return x:std(1, o) end, { ddof = { 0, 1 << 20 } })
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  ranges(t, "tokenizer", function(o) return tok:encode("a", o) end, { max_ids = { 0, INT32 } })
  local weights <close> = assert(perigee.weights.synthetic {
    { name = "a", shape = { 2, 4 }, kind = "f32" } })
  ranges(t, "metadata", function(o) return weights:metadata(o) end, { most = { 0, INT32 } })
  ranges(t, "rows", function(o) return weights:rows("a", o) end,
    { from = { 1, 2 }, count = { 0, 2 } })
  ranges(t, "guard", function(o) return perigee.guard(function() end, o) end,
    { memory = { 0, INT64 } })
end)

test("no function takes an option that it does not know", function(t)
  local image, json, tensor = perigee.image, perigee.json, perigee.tensor
  local graph = tiny.model().graph
  local embed = graph:param "model.embed_tokens.weight"
  local x, numbers = graph:embed(embed, {}), tensor { 1.0, 2.0 }
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  local weights <close> = assert(perigee.weights.synthetic {
    { name = "a", shape = { 2, 4 }, kind = "f32" } })
  local takes = {
    image_read = function(o) return image.read("README.md", o) end,
    base64 = function(o) return image.base64("QUJD", o) end, patches = image.patches,
    decoder = image.decoder, decode = function(o) return json.decode("1", o) end,
    encode = function(o) return json.encode(1, o) end,
    json_read = function(o) return json.read(assert(perigee.bytes.new(1)), o, print) end,
    plan = function(o) return graph:plan(o) end,
    histogram = function(o) return numbers:histogram(2, o) end,
    format = function(o) return numbers:format(o) end,
    tensor = function(o) return tensor({ 1 }, o) end, eye = function(o) return tensor.eye(2, o) end,
    close_to = function(o) return numbers:close_to(numbers, o) end,
    sum = function(o) return numbers:sum(1, o) end, std = function(o) return numbers:std(1, o) end,
    sort = function(o) return numbers:sort(1, o) end,
    topk = function(o) return numbers:topk(1, o) end,
    tok_encode = function(o) return tok:encode("a", o) end,
    tok_decode = function(o) return tok:decode({ 1 }, o) end,
    tok_stream = function(o) return tok:stream(o) end,
    rows = function(o) return weights:rows("a", o) end,
    metadata = function(o) return weights:metadata(o) end,
    guard = function(o) return perigee.guard(function() end, o) end,
    engine = function(o) return perigee.engine.open(graph, o) end,
    batch = function(o) return perigee.batch.open(graph, o) end,
    tower = function(o) return perigee.tower.open(graph, o) end,
    graph_rows = function(o) return graph:rows(embed, o) end,
    embed = function(o) return graph:embed(embed, o) end,
    permute = function(o) return graph:permute(embed, o) end,
  }
  for _, name in ipairs { "linear", "expert_linear", "head_linear", "norm", "slice", "rope",
    "route", "conv", "layer_norm", "merge" } do
    takes[name] = function(o) return graph[name](graph, x, o) end
  end
  for _, name in ipairs { "rope_table", "attention", "delta", "ssm", "region_attention" } do
    takes[name] = function(o) return graph[name](graph, o) end
  end
  for name, take in pairs(takes) do
    local ok, why = pcall(take, { nonsense = 1 })
    t.ok(not ok and tostring(why):find("unknown option 'nonsense'", 1, true),
      name .. ": " .. tostring(why))
  end
end)

test("kinds of synthetic weights", function(t)
  local function made(entry)
    local w, why = perigee.weights.synthetic { entry }
    if not w then return tostring(why) end
    local info = w:find(entry.name)
    w:close()
    return info
  end
  local function of(kind, shape)
    return made { name = "a", kind = kind, shape = shape or { 2, 256 } }
  end
  for _, kind in ipairs { "f32", "f16", "bf16", "affine4g64", "affine8g32", "mxfp4", "mxfp8",
    "nvfp4", "q4_0", "q8_0", "q4_k", "Q6_K" } do
    t.eq(table.concat(of(kind).shape, " "), "2 256", kind)
  end
  for kind, why in pairs { i32 = "unknown kind of storage 'i32'", x = "unknown kind of storage 'x'",
    affine4g64x = "unknown kind of storage 'affine4g64x'",
    [("q"):rep(15)] = "unknown kind", [("q"):rep(40)] = "unknown kind",
    affine9g64 = "there is no quantisation 'affine9g64'" } do
    t.raises(function() of(kind) end, why)
  end
  t.raises(function() of("f32", {}) end, "a: between 1 and")
  t.raises(function() of("f32", { 1, 1, 1, 1, 1, 1, 1, 1, 1 }) end, "a: between 1 and")
  t.raises(function() of("f32", { "x" }) end, "number expected")
  for _, list in ipairs { { 1 }, { {} }, { { name = "a" } }, { { name = "a", kind = "f32" } },
    { { name = "a", kind = "f32", shape = 1 } } } do
    t.raises(function() perigee.weights.synthetic(list) end, "expected, got")
  end
end)

test("lists of any length", function(t)
  local tok <close> = assert(perigee.tokenizer.open "examples/moonlet")
  local ids = tok:encode(("Hello "):rep(20000))
  t.ok(#ids >= 20000)
  t.eq(tok:decode(ids), ("Hello "):rep(20000))
  t.eq(perigee.tensor(ids).size, #ids)
  t.eq(#perigee.json.decode(perigee.json.encode(ids)), #ids)
end)

test("limits of guarded calls", function(t)
  local function guard(ms) return perigee.guard(function() return 5 end, { deadline_ms = ms }) end
  t.eq({ { guard(0) }, { guard(1e11) } }, { { true, 5 }, { true, 5 } })
  for _, wrong in ipairs { -1, 1e12, 0 / 0 } do
    t.raises(function() guard(wrong) end, "option 'deadline_ms' must be between 0 and 1e12")
  end
end)

test("what a tensor shows by default", function(t)
  local x = perigee.tensor.range(1, 2000)
  t.eq(x:format(), x:format { width = 80, edge = 3, digits = 4 })
  for _, other in ipairs { { width = 79 }, { width = 81 }, { edge = 2 }, { edge = 4 } } do
    local y = perigee.tensor.range(1, 200):reshape { 2, 100 }
    if other.edge then t.ok(x:format(other) ~= x:format()) end
    t.ok(y:format(other))
  end
  local y = perigee.tensor { 1 / 3, 2 / 3 }
  t.eq(y:format(), y:format { digits = 4 })
  t.ok(y:format { digits = 5 } ~= y:format() and y:format { digits = 3 } ~= y:format())
end)
