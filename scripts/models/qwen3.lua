-- qwen3: Qwen 3 and Qwen3-VL, dense and with experts: Llama with a norm on each head of queries and
-- keys. The first layers of Qwen3-VL add further features of the vision tower (deepstack).
local blocks = require "models.core.blocks"
local config = require "models.core.config"

--- Does layer i (from 1) have experts? Every n-th layer does, except those listed as dense.
local function sparse(c, i)
  for _, dense in ipairs(c.mlp_only_layers or {}) do
    if dense == i - 1 then return false end
  end
  return (c.num_experts or c.num_local_experts or 0) > 0 and i % (c.decoder_sparse_step or 1) == 0
end

--- Original files of Qwen3-VL store the matrices of experts as [in, out]. Their shape may fit both
--- ways, so the model type decides.
local function transposed(g, c)
  local original = (c.model_type or ""):match "^qwen3_vl_moe"
  return original and g:weight("model.layers.0.mlp.experts.gate_up_proj"):exists() or false
end

--- Layers that add features of the vision tower.
local function deepstack(c)
  local vision = config.object(c.vision_config)
  return vision and #(config.get(vision, "deepstack_visual_indexes") or {}) or 0
end

return {
  names = { "qwen3", "qwen3_moe", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_text",
    "qwen3_vl_moe_text" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    local planes = deepstack(c)
    local experts = {
      kind = "softmax", chosen = c.num_experts_per_tok, normalize = c.norm_topk_prob,
      transposed = transposed(g, c),
    }
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local a = p "self_attn"
      local q = g:rms_norm(g:heads(g:linear(h, a "q_proj"), c.heads), a "q_norm")
      local k = g:rms_norm(g:heads(g:linear(h, a "k_proj"), c.kv_heads), a "k_norm")
      local v = g:heads(g:linear(h, a "v_proj"), c.kv_heads)
      q, k = g:rope(q, c.rope), g:rope(k, c.rope)
      local y = g:attention { q = q, k = k, v = v, window = c.window[i] }
      x = x + g:linear(y, a "o_proj")
      h = g:rms_norm(x, p "post_attention_layernorm")
      x = x + (sparse(c, i) and blocks.moe(g, h, p "mlp", experts) or blocks.mlp(g, h, p "mlp"))
      if i <= planes then x = g:deepstack(x, i) end
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
