-- shapes: the dimensions of real models, to measure speed without their files. Weights are random.
local perigee = require "perigee"

local shapes = {}

-- model type, width, layers, heads, KV heads, head width, feed-forward width, vocabulary, tied head
local table_of = {
  ["qwen3-0.6b"] = { "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, true, norms = true },
  ["qwen3-1.7b"] = { "qwen3", 2048, 28, 16, 8, 128, 6144, 151936, true, norms = true },
  ["qwen3-4b"] = { "qwen3", 2560, 36, 32, 8, 128, 9728, 151936, true, norms = true },
  ["qwen3-8b"] = { "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, false, norms = true },
  ["qwen2.5-0.5b"] = { "qwen2", 896, 24, 14, 2, 64, 4864, 151936, true, biases = true },
  ["qwen2.5-1.5b"] = { "qwen2", 1536, 28, 12, 2, 128, 8960, 151936, true, biases = true },
  ["llama-3.2-1b"] = { "llama", 2048, 16, 32, 8, 64, 8192, 128256, true },
  ["llama-3.2-3b"] = { "llama", 3072, 28, 24, 8, 128, 8192, 128256, true },
  ["tiny"] = { "llama", 128, 2, 4, 2, 32, 256, 1024, true }, -- for tests of the command itself
  ["llama-3.1-8b"] = { "llama", 4096, 32, 32, 8, 128, 14336, 128256, false },
}

function shapes.names()
  local names = {}
  for name in pairs(table_of) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function tensors(s, kind)
  local _, width, layers, heads, kv, dim, ff, vocab, tied = table.unpack(s)
  local list = {}
  local function add(name, shape, as)
    list[#list + 1] = { name = name, shape = shape, kind = as or kind }
  end
  add("model.embed_tokens.weight", { vocab, width })
  for i = 0, layers - 1 do
    local p = ("model.layers.%d."):format(i)
    add(p .. "input_layernorm.weight", { width }, "bf16")
    add(p .. "post_attention_layernorm.weight", { width }, "bf16")
    for _, m in ipairs { { "q", heads }, { "k", kv }, { "v", kv } } do
      add(p .. "self_attn." .. m[1] .. "_proj.weight", { m[2] * dim, width })
      if s.biases then add(p .. "self_attn." .. m[1] .. "_proj.bias", { m[2] * dim }, "bf16") end
    end
    if s.norms then
      add(p .. "self_attn.q_norm.weight", { dim }, "bf16")
      add(p .. "self_attn.k_norm.weight", { dim }, "bf16")
    end
    add(p .. "self_attn.o_proj.weight", { width, heads * dim })
    add(p .. "mlp.gate_proj.weight", { ff, width })
    add(p .. "mlp.up_proj.weight", { ff, width })
    add(p .. "mlp.down_proj.weight", { width, ff })
  end
  add("model.norm.weight", { width }, "bf16")
  if not tied then add("lm_head.weight", { vocab, width }) end
  return list
end

--- Weights and config of a shape, quantized as `kind` ("affine4g64", "q4_0", "bf16"); or nil and
--- why.
function shapes.make(name, kind)
  local s = table_of[name]
  if not s then
    return nil, ("unknown shape '%s' (shapes: %s)"):format(name, table.concat(shapes.names(), ", "))
  end
  local ok, weights, why = pcall(perigee.weights.synthetic, tensors(s, kind))
  if not ok then return nil, weights end
  if not weights then return nil, why end
  return weights, perigee.json.object {
    { "model_type", s[1] }, { "hidden_size", s[2] }, { "num_hidden_layers", s[3] },
    { "num_attention_heads", s[4] }, { "num_key_value_heads", s[5] }, { "head_dim", s[6] },
    { "intermediate_size", s[7] }, { "vocab_size", s[8] }, { "rms_norm_eps", 1e-6 },
    { "rope_theta", 1e6 }, { "max_position_embeddings", 40960 }, { "tie_word_embeddings", s[9] },
  }
end

return shapes
