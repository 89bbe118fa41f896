-- qwen3: Qwen 3, dense and with experts: Llama with a norm for each head of queries and keys.
local blocks = require "models.core.blocks"

--- Does layer i (from 1) have experts? Every n-th does, but for those named.
local function sparse(c, i)
  for _, dense in ipairs(c.mlp_only_layers or {}) do
    if dense == i - 1 then return false end
  end
  return (c.num_experts or c.num_local_experts or 0) > 0 and i % (c.decoder_sparse_step or 1) == 0
end

return {
  names = { "qwen3", "qwen3_moe" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    local experts = { kind = "softmax", chosen = c.num_experts_per_tok, normalize = c.norm_topk_prob }
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q = g:rms_norm(g:heads(g:linear(h, p "self_attn.q_proj"), c.heads), p "self_attn.q_norm")
      local k = g:rms_norm(g:heads(g:linear(h, p "self_attn.k_proj"), c.kv_heads), p "self_attn.k_norm")
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      local y = g:attention { q = g:rope(q, c.rope), k = g:rope(k, c.rope), v = v, window = c.window[i] }
      x = x + g:linear(y, p "self_attn.o_proj")
      h = g:rms_norm(x, p "post_attention_layernorm")
      x = x + (sparse(c, i) and blocks.moe(g, h, p "mlp", experts) or blocks.mlp(g, h, p "mlp"))
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
