-- gguf: presents the metadata of a GGUF file as a config and maps tensor names, so that the same
-- architecture builds GGUF files and original directories.
local perigee = require "perigee"
local text = require "lib.text"

local gguf = {}

local modules = {
  ["self_attn.q_proj"] = "attn_q", ["self_attn.k_proj"] = "attn_k", ["self_attn.v_proj"] = "attn_v",
  ["self_attn.o_proj"] = "attn_output", ["self_attn.q_norm"] = "attn_q_norm",
  ["self_attn.k_norm"] = "attn_k_norm",
  ["mlp.gate_proj"] = "ffn_gate", ["mlp.up_proj"] = "ffn_up", ["mlp.down_proj"] = "ffn_down",
  ["input_layernorm"] = "attn_norm", ["post_attention_layernorm"] = "ffn_norm",
  ["mlp.gate"] = "ffn_gate_inp", ["mlp.switch_mlp.gate_proj"] = "ffn_gate_exps",
  ["mlp.switch_mlp.up_proj"] = "ffn_up_exps", ["mlp.switch_mlp.down_proj"] = "ffn_down_exps",
}
-- Gemma 3 has four norms per layer, and uses the name ffn_norm for another one.
local gemma = {
  ["post_attention_layernorm"] = "post_attention_norm", ["pre_feedforward_layernorm"] = "ffn_norm",
  ["post_feedforward_layernorm"] = "post_ffw_norm",
}
local outer = {
  ["model.embed_tokens"] = "token_embd", ["model.norm"] = "output_norm", ["lm_head"] = "output",
}

local function speller(names)
  return function(path, tensor)
    local layer, module = path:match "^model%.layers%.(%d+)%.(.*)$"
    local name = outer[path] or path
    if layer then name = ("blk.%s.%s"):format(layer, names[module] or modules[module] or module) end
    return { tensor == "" and name or name .. "." .. tensor }
  end
end

-- general.architecture -> model type. pairs: rope rotates neighbouring values; names: tensor names
-- that differ.
local kinds = {
  llama = { type = "llama", pairs = true }, qwen2 = { type = "qwen2" }, qwen3 = { type = "qwen3" },
  qwen3moe = { type = "qwen3_moe" }, gemma3 = { type = "gemma3_text", names = gemma },
}

--- Rope scaling. Llama 3 has none here: its files hold divisors of the frequencies as a tensor.
local function rope_scaling(get)
  local kind = get "rope.scaling.type"
  if not kind or kind == "none" then return nil end
  return perigee.json.object {
    { "rope_type", kind },
    { "factor", get "rope.scaling.factor" },
    { "attention_factor", get "rope.scaling.attn_factor" },
    { "original_max_position_embeddings", get "rope.scaling.original_context_length" },
    { "beta_fast", get "rope.scaling.yarn_beta_fast" },
    { "beta_slow", get "rope.scaling.yarn_beta_slow" },
  }
end

--- The layers with a window: all but every n-th (a number), or as listed (layer types).
local function window_pattern(get)
  local pattern = get "attention.sliding_window_pattern"
  if type(pattern) ~= "table" then return pattern, nil end
  local types = {}
  for i, slides in ipairs(pattern) do
    types[i] = slides and "sliding_attention" or "full_attention"
  end
  return nil, types
end

--- a // b; nil if one is missing or no size: the config reports it, by its name.
local function quotient(a, b)
  if math.type(a) == "integer" and math.type(b) == "integer" and b > 0 then return a // b end
end

--- query_pre_attn_scalar of Gemma 3. Files do not store it; it is the head width, except in the
--- model of 62 layers (27B).
local function attention_scalar(get, head_dim)
  if get "block_count" ~= 62 then return head_dim end
  return quotient(get "embedding_length", get "attention.head_count")
end

--- The part of a head that turns; a dimension_count that is not a number is returned as it is.
local function rotary_factor(get, head_dim)
  local turning = get "rope.dimension_count"
  if turning == nil then return 1.0 end
  if type(turning) ~= "number" or not quotient(1, head_dim) then return turning end
  return turning / head_dim
end

--- The metadata as a config in the older dialect.
function gguf.config(meta, weights)
  local arch = meta["general.architecture"]
  local kind = kinds[arch]
  if not kind then
    return nil, ("unknown GGUF architecture '%s' (known: %s)"):format(tostring(arch),
      table.concat(text.sorted_keys(kinds), ", "))
  end
  local function get(key) return meta[arch .. "." .. key] end
  local heads, width = get "attention.head_count", get "embedding_length"
  local head_dim = get "attention.key_length" or quotient(width, heads)
  local pattern, types = window_pattern(get)
  local vocab = weights:find "token_embd.weight"
  return perigee.json.object {
    { "model_type", kind.type },
    { "gguf", kind },
    { "spell", speller(kind.names or {}) },
    { "metadata", meta },
    { "num_hidden_layers", get "block_count" },
    { "hidden_size", width },
    { "num_attention_heads", heads },
    { "num_key_value_heads", get "attention.head_count_kv" or heads },
    { "head_dim", head_dim },
    { "intermediate_size", get "feed_forward_length" },
    { "rms_norm_eps", get "attention.layer_norm_rms_epsilon" },
    { "max_position_embeddings", get "context_length" },
    { "vocab_size", vocab and vocab.shape[1] },
    { "rope_theta", get "rope.freq_base" or 10000.0 },
    { "rope_local_base_freq", get "rope.freq_base_swa" },
    { "partial_rotary_factor", rotary_factor(get, head_dim) },
    { "rope_scaling", rope_scaling(get) },
    { "rope_divisor", weights:find "rope_freqs.weight" and weights:rows "rope_freqs.weight" },
    { "sliding_window", get "attention.sliding_window" },
    { "sliding_window_pattern", pattern },
    { "layer_types", types },
    { "query_pre_attn_scalar", attention_scalar(get, head_dim) },
    { "final_logit_softcapping", get "final_logit_softcapping" },
    { "num_experts", get "expert_count" },
    { "num_experts_per_tok", get "expert_used_count" },
    { "moe_intermediate_size", get "expert_feed_forward_length" },
    { "norm_topk_prob", true },
  }
end

--- GGUF files store some weights differently: rotary pairs are neighbours, and norm weights include
--- their 1.
function gguf.adapt(g, parsed)
  g.rope_pairs = parsed.gguf.pairs or false
  g.gguf = true
  g.c:param "rope_freqs.weight" -- marks it as used: gguf.config has read it
end

return gguf
