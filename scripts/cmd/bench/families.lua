-- families: the tensors of models that are more than dense layers (shapes.lua): short convolutions
-- (LFM2), Mamba 2 (Granite 4), experts (Qwen3 MoE), latent attention with experts (DeepSeek).
--
-- A family is a function of the text config and of add(name, shape, kind), which it calls for every
-- tensor; kind is "bf16" or "f32", or nothing for the quantization that is measured.
local families = {}

--- put(name, shape, kind) of layer i.
local function of_layer(add, i)
  return function(name, shape, kind) add(("model.layers.%d.%s"):format(i, name), shape, kind) end
end

local function norm(put, name, width) put(name .. ".weight", { width }, "bf16") end

--- q, k, v and output; out: the name of the last.
local function attention(put, c, out)
  local width, dim = c.hidden_size, c.head_dim or c.hidden_size // c.num_attention_heads
  put("self_attn.q_proj.weight", { c.num_attention_heads * dim, width })
  put("self_attn.k_proj.weight", { c.num_key_value_heads * dim, width })
  put("self_attn.v_proj.weight", { c.num_key_value_heads * dim, width })
  put(("self_attn.%s.weight"):format(out), { width, c.num_attention_heads * dim })
  return dim
end

local function mlp(put, width, inner, names)
  put(names[1] .. ".weight", { inner, width })
  put(names[2] .. ".weight", { inner, width })
  put(names[3] .. ".weight", { width, inner })
end

function families.lfm2(c, add)
  local width = c.hidden_size
  add("model.embed_tokens.weight", { c.vocab_size, width })
  add("model.embedding_norm.weight", { width }, "bf16")
  for i, kind in ipairs(c.layer_types) do
    local put = of_layer(add, i - 1)
    norm(put, "operator_norm", width)
    norm(put, "ffn_norm", width)
    if kind == "conv" then
      put("conv.in_proj.weight", { 3 * width, width })
      put("conv.conv.weight", { width, 1, c.conv_L_cache }, "bf16")
      put("conv.out_proj.weight", { width, width })
    else
      local dim = attention(put, c, "out_proj")
      norm(put, "self_attn.q_layernorm", dim)
      norm(put, "self_attn.k_layernorm", dim)
    end
    mlp(put, width, c.intermediate_size,
      { "feed_forward.w1", "feed_forward.w3", "feed_forward.w2" })
  end
end

function families.granitemoehybrid(c, add)
  local width, heads = c.hidden_size, c.mamba_n_heads
  local inner, shared = heads * c.mamba_d_head, 2 * c.mamba_n_groups * c.mamba_d_state
  add("model.embed_tokens.weight", { c.vocab_size, width })
  norm(add, "model.norm", width)
  for i, kind in ipairs(c.layer_types) do
    local put = of_layer(add, i - 1)
    norm(put, "input_layernorm", width)
    norm(put, "post_attention_layernorm", width)
    if kind == "attention" then
      attention(put, c, "o_proj")
    else
      put("mamba.in_proj.weight", { 2 * inner + shared + heads, width })
      put("mamba.conv1d.weight", { inner + shared, 1, c.mamba_d_conv }, "bf16")
      put("mamba.conv1d.bias", { inner + shared }, "bf16")
      for _, name in ipairs { "A_log", "D", "dt_bias" } do
        put("mamba." .. name, { heads }, "f32")
      end
      norm(put, "mamba.norm", inner)
      put("mamba.out_proj.weight", { width, inner })
    end
    put("shared_mlp.input_linear.weight", { 2 * c.shared_intermediate_size, width })
    put("shared_mlp.output_linear.weight", { width, c.shared_intermediate_size })
  end
end

local PROJECTIONS = { "gate_proj", "up_proj", "down_proj" }

--- The same names in a module.
local function within(module)
  local names = {}
  for i, name in ipairs(PROJECTIONS) do names[i] = module .. "." .. name end
  return names
end

--- All experts of a layer in one tensor per projection, as MLX stores them.
local function experts(put, c, count)
  local width, inner = c.hidden_size, c.moe_intermediate_size
  put("mlp.gate.weight", { count, width }, "bf16")
  put("mlp.switch_mlp.gate_proj.weight", { count, inner, width })
  put("mlp.switch_mlp.up_proj.weight", { count, inner, width })
  put("mlp.switch_mlp.down_proj.weight", { count, width, inner })
end

--- The tensors around the layers, and the norms of each: layer(put, i) adds the rest of layer i.
local function decoder(c, add, layer)
  local width = c.hidden_size
  add("model.embed_tokens.weight", { c.vocab_size, width })
  norm(add, "model.norm", width)
  if not c.tie_word_embeddings then add("lm_head.weight", { c.vocab_size, width }) end
  for i = 0, c.num_hidden_layers - 1 do
    local put = of_layer(add, i)
    norm(put, "input_layernorm", width)
    norm(put, "post_attention_layernorm", width)
    layer(put, i)
  end
end

function families.qwen3_moe(c, add)
  decoder(c, add, function(put)
    local dim = attention(put, c, "o_proj")
    norm(put, "self_attn.q_norm", dim)
    norm(put, "self_attn.k_norm", dim)
    experts(put, c, c.num_experts)
  end)
end

local function latent_attention(put, c)
  local width, heads = c.hidden_size, c.num_attention_heads
  local key = c.qk_nope_head_dim + c.qk_rope_head_dim
  put("self_attn.q_proj.weight", { heads * key, width })
  put("self_attn.kv_a_proj_with_mqa.weight", { c.kv_lora_rank + c.qk_rope_head_dim, width })
  norm(put, "self_attn.kv_a_layernorm", c.kv_lora_rank)
  put("self_attn.kv_b_proj.weight", { heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank })
  put("self_attn.o_proj.weight", { width, heads * c.v_head_dim })
end

function families.deepseek_v3(c, add)
  decoder(c, add, function(put, i)
    latent_attention(put, c)
    if i < c.first_k_dense_replace then
      mlp(put, c.hidden_size, c.intermediate_size, within "mlp")
      return
    end
    experts(put, c, c.n_routed_experts)
    put("mlp.gate.e_score_correction_bias", { c.n_routed_experts }, "f32")
    mlp(put, c.hidden_size, c.n_shared_experts * c.moe_intermediate_size,
      within "mlp.shared_experts")
  end)
end

return families
