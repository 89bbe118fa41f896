-- perigee.weights: descriptions, decoded rows, GGUF metadata, errors.
local perigee = require "perigee"
local test = require("harness").test

test("a quantised tensor has the shape it had before", function(t)
  local w <close> = assert(perigee.weights.open "tests/golden/llama-mlx-mixed")
  local q = w:find "model.layers.0.self_attn.q_proj.weight"
  t.eq(q.kind, "affine 4-bit group 32")
  t.eq(q.shape, { 64, 64 })
  t.eq(q.parts, 3)
  t.eq(w:find "no.such.tensor", nil)
  t.eq(#w:names(), w.count)
  local bytes = 0
  for _, k in ipairs(w:summary()) do bytes = bytes + k.bytes end
  t.eq(bytes, w.bytes)
  t.eq(#w:rows(q.name, { from = 2, count = 3 }), 3 * 64)
  t.raises(function() w:rows(q.name, { from = 65 }) end, "'from'")
  t.raises(function() w:rows("nothing", {}) end, "no such tensor")
end)

test("GGUF metadata is in the order of the file", function(t)
  local w <close> = assert(perigee.weights.open "tests/golden-gguf/llama-Q4_0.gguf")
  local meta = w:metadata { most = 2 }
  t.eq(meta[1], { "general.architecture", "llama" })
  for _, pair in ipairs(meta) do
    if pair[1] == "tokenizer.ggml.tokens" then
      t.eq(#pair[2], 2)
      t.eq(pair[2].n, 300)
    end
  end
  local kinds = {}
  for _, pair in ipairs(w:metadata()) do
    local v = pair[2]
    kinds[pair[1]] = type(v) == "table" and { math.type(v[1]) or type(v[1]), #v == v.n }
      or math.type(v) or type(v)
  end
  t.eq({ kinds["general.architecture"], kinds["llama.context_length"],
    kinds["llama.attention.layer_norm_rms_epsilon"], kinds["tokenizer.ggml.tokens"],
    kinds["tokenizer.ggml.token_type"] },
    { "string", "integer", "float", { "string", true }, { "integer", true } })
end)

test("errors are one line", function(t)
  t.eq(t.fails("io", perigee.weights.open "tests/nowhere").message,
    "tests/nowhere: No such file or directory")
  local w = assert(perigee.weights.open "tests/golden/llama-mlx-mixed")
  w:close()
  w:close()
  t.raises(function() w:names() end, "closed")
end)

test("touch reads tensors at once or in a job, which outlives the weights", function(t)
  local w = assert(perigee.weights.open "tests/golden/llama-mlx-mixed")
  local bytes = 0
  for i = 1, w.count do
    local n = w:touch(i)
    bytes = bytes + n
    t.eq(w:touch(i, t.expect(function(touched) t.eq(touched, n) end)), true)
  end
  t.eq(bytes, w.bytes)
  t.raises(function() w:touch(w.count + 1) end, "no such weight")
  t.raises(function() w:touch(1, 5) end, "function expected")
  w:close()
end)
