-- shapes: the dimensions of real models, to measure speed without their files. Weights are random.
local perigee = require "perigee"
local families = require "cmd.bench.families"

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

-- Qwen3.5 0.8B: hybrid layers, and a vision tower. (Other keys are equal in all sizes.)
local hybrids = {
  ["qwen3_5-0.8b"] = {
    text = { hidden_size = 1024, num_hidden_layers = 24, num_attention_heads = 8,
      num_key_value_heads = 2, head_dim = 256, intermediate_size = 3584, vocab_size = 248320,
      linear_num_key_heads = 16, linear_num_value_heads = 16, linear_key_head_dim = 128,
      linear_value_head_dim = 128, linear_conv_kernel_dim = 4, full_attention_interval = 4,
      rms_norm_eps = 1e-6, max_position_embeddings = 262144 },
    vision = { depth = 12, hidden_size = 768, num_heads = 12, intermediate_size = 3072,
      patch_size = 16, temporal_patch_size = 2, spatial_merge_size = 2, in_channels = 3,
      out_hidden_size = 1024, num_position_embeddings = 2304 },
  },
}

--- "acca" -> a list of layer types.
local function types(pattern, words)
  local list = {}
  for i = 1, #pattern do list[i] = words[pattern:sub(i, i)] end
  return perigee.json.array(list)
end

-- Text configs by family (families.lua). Of models with experts only the first layers, two of them
-- with experts, and a small vocabulary: the whole ones have 17 and 9 GB in 4 bits.
local others = {
  ["lfm2-350m"] = { "lfm2", { hidden_size = 1024, num_hidden_layers = 16, num_attention_heads = 16,
    num_key_value_heads = 8, intermediate_size = 4608, block_auto_adjust_ff_dim = false,
    vocab_size = 65536, conv_L_cache = 3, conv_bias = false, norm_eps = 1e-5,
    layer_types = types("ccaccaccacacacac", { a = "full_attention", c = "conv" }),
    max_position_embeddings = 128000, tie_word_embeddings = true } },
  ["granite-4.0-h-350m"] = { "granitemoehybrid", { hidden_size = 768, num_hidden_layers = 32,
    num_attention_heads = 12, num_key_value_heads = 4, intermediate_size = 2048,
    shared_intermediate_size = 2048, num_local_experts = 0, num_experts_per_tok = 0,
    vocab_size = 100352, mamba_n_heads = 48, mamba_d_head = 32, mamba_n_groups = 1,
    mamba_d_state = 128, mamba_d_conv = 4, mamba_expand = 2, rms_norm_eps = 1e-5,
    layer_types = types("mmmmmmmmmmammammmammmmmmmmmammmm",
      { a = "attention", m = "mamba" }),
    max_position_embeddings = 32768, tie_word_embeddings = true } },
  ["qwen3-30b-a3b-part"] = { "qwen3_moe", { hidden_size = 2048, num_hidden_layers = 2,
    num_attention_heads = 32, num_key_value_heads = 4, head_dim = 128, intermediate_size = 6144,
    moe_intermediate_size = 768, num_experts = 128, num_experts_per_tok = 8, norm_topk_prob = true,
    vocab_size = 8192, rms_norm_eps = 1e-6, rope_theta = 1e6, max_position_embeddings = 40960,
    tie_word_embeddings = false } },
  ["deepseek-v2-lite-part"] = { "deepseek_v3", { hidden_size = 2048, num_hidden_layers = 3,
    num_attention_heads = 16, num_key_value_heads = 16, intermediate_size = 10944,
    moe_intermediate_size = 1408, n_routed_experts = 64, n_shared_experts = 2,
    num_experts_per_tok = 6, n_group = 1, topk_group = 1, norm_topk_prob = false,
    routed_scaling_factor = 1.0, first_k_dense_replace = 1, kv_lora_rank = 512,
    qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128, vocab_size = 8192,
    rms_norm_eps = 1e-6, rope_theta = 1e4, max_position_embeddings = 40960,
    tie_word_embeddings = false } },
}

function shapes.names()
  local names = {}
  for name in pairs(others) do names[#names + 1] = name end
  for name in pairs(table_of) do names[#names + 1] = name end
  for name in pairs(hybrids) do names[#names + 1] = name end
  table.sort(names)
  return names
end

--- The dimensions of a dense shape by name; nil if there is none.
function shapes.dense(name)
  local s = table_of[name]
  return s and { type = s[1], width = s[2], layers = s[3], heads = s[4], kv_heads = s[5],
    head = s[6], feed_forward = s[7], vocabulary = s[8], tied = s[9], norms = s.norms,
    biases = s.biases }
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

-- ---- Qwen3.5 ------------------------------------------------------------------------------------

--- add(name, shape, kind) for every tensor of the text model; kind "bf16" or nothing for the
--- quantization that is measured.
local function hybrid_text(c, add)
  local width = c.hidden_size
  local keys = c.linear_num_key_heads * c.linear_key_head_dim
  local values = c.linear_num_value_heads * c.linear_value_head_dim
  add("model.embed_tokens.weight", { c.vocab_size, width })
  for i = 0, c.num_hidden_layers - 1 do
    local function put(name, shape, as)
      add(("model.layers.%d.%s"):format(i, name), shape, as)
    end
    put("input_layernorm.weight", { width }, "bf16")
    put("post_attention_layernorm.weight", { width }, "bf16")
    if (i + 1) % c.full_attention_interval == 0 then
      local heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
      put("self_attn.q_proj.weight", { 2 * heads, width })
      put("self_attn.k_proj.weight", { kv, width })
      put("self_attn.v_proj.weight", { kv, width })
      put("self_attn.o_proj.weight", { width, heads })
      put("self_attn.q_norm.weight", { c.head_dim }, "bf16")
      put("self_attn.k_norm.weight", { c.head_dim }, "bf16")
    else
      put("linear_attn.in_proj_qkv.weight", { 2 * keys + values, width })
      put("linear_attn.in_proj_z.weight", { values, width })
      put("linear_attn.in_proj_a.weight", { c.linear_num_value_heads, width })
      put("linear_attn.in_proj_b.weight", { c.linear_num_value_heads, width })
      put("linear_attn.conv1d.weight", { 2 * keys + values, 1, c.linear_conv_kernel_dim }, "bf16")
      put("linear_attn.A_log", { c.linear_num_value_heads }, "f32")
      put("linear_attn.dt_bias", { c.linear_num_value_heads }, "bf16")
      put("linear_attn.norm.weight", { c.linear_value_head_dim }, "bf16")
      put("linear_attn.out_proj.weight", { width, values })
    end
    put("mlp.gate_proj.weight", { c.intermediate_size, width })
    put("mlp.up_proj.weight", { c.intermediate_size, width })
    put("mlp.down_proj.weight", { width, c.intermediate_size })
  end
  add("model.norm.weight", { width }, "bf16")
end

--- The same for its tower, which is never quantized.
local function hybrid_tower(c, add)
  local function both(name, rows, ...) -- a weight and its bias
    add(("visual.%s.weight"):format(name), { rows, ... }, "bf16")
    add(("visual.%s.bias"):format(name), { rows }, "bf16")
  end
  local width, merged = c.hidden_size, c.hidden_size * c.spatial_merge_size ^ 2 // 1 | 0
  both("patch_embed.proj", width, c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
  add("visual.pos_embed.weight", { c.num_position_embeddings, width }, "bf16")
  for i = 0, c.depth - 1 do
    local function put(name, ...) both(("blocks.%d.%s"):format(i, name), ...) end
    put("norm1", width)
    put("norm2", width)
    put("attn.qkv", 3 * width, width)
    put("attn.proj", width, width)
    put("mlp.linear_fc1", c.intermediate_size, width)
    put("mlp.linear_fc2", width, c.intermediate_size)
  end
  both("merger.norm", width)
  both("merger.linear_fc1", merged, merged)
  both("merger.linear_fc2", c.out_hidden_size, merged)
end

local function object(t)
  local o = perigee.json.object()
  for key, value in pairs(t) do o[key] = value end
  return o
end

local function hybrid(s, kind)
  local list = {}
  local function add(name, shape, as)
    list[#list + 1] = { name = name, shape = shape, kind = as or kind }
  end
  hybrid_text(s.text, add)
  if s.vision then hybrid_tower(s.vision, add) end
  return list, perigee.json.object { { "model_type", "qwen3_5" }, { "text_config", object(s.text) },
    { "vision_config", s.vision and object(s.vision) }, { "tie_word_embeddings", true } }
end

local function other(s, kind)
  local list, parsed = {}, object(s[2])
  families[s[1]](s[2], function(name, shape, as)
    list[#list + 1] = { name = name, shape = shape, kind = as or kind }
  end)
  parsed.model_type = s[1]
  return list, parsed
end

local function dense(s, kind)
  return tensors(s, kind), perigee.json.object {
    { "model_type", s[1] }, { "hidden_size", s[2] }, { "num_hidden_layers", s[3] },
    { "num_attention_heads", s[4] }, { "num_key_value_heads", s[5] }, { "head_dim", s[6] },
    { "intermediate_size", s[7] }, { "vocab_size", s[8] }, { "rms_norm_eps", 1e-6 },
    { "rope_theta", 1e6 }, { "max_position_embeddings", 40960 }, { "tie_word_embeddings", s[9] },
  }
end

--- Weights and config of a shape, quantized as `kind` ("affine4g64", "q4_0", "bf16"); or nil and
--- why. shape: a name, or an entry as in the tables above.
function shapes.make(shape, kind)
  local s = type(shape) == "table" and shape
    or table_of[shape] or hybrids[shape] or others[shape]
  if not s then
    return nil,
      ("unknown shape '%s' (shapes: %s)"):format(shape, table.concat(shapes.names(), ", "))
  end
  local build = s.text and hybrid or type(s[2]) == "table" and other or dense
  local list, parsed = build(s, kind)
  local ok, weights, why = pcall(perigee.weights.synthetic, list)
  if not ok then return nil, weights end
  return weights, weights and parsed or why
end

return shapes
