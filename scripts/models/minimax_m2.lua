-- minimax_m2: MiniMax M2: experts in every layer, one norm over all heads of the queries and one
-- over all heads of the keys, partial rope.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

return {
  names = { "minimax_m2", "minimax" },
  build = function(g, c)
    local rope = config.rope(c, { dims = c.rotary_dim })
    local x = g:embed "model.embed_tokens"
    for _, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q, k = g:linear(h, p "self_attn.q_proj"), g:linear(h, p "self_attn.k_proj")
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      if c.use_qk_norm ~= false then
        q, k = g:rms_norm(q, p "self_attn.q_norm"), g:rms_norm(k, p "self_attn.k_norm")
      end
      q, k = g:rope(g:heads(q, c.heads), rope), g:rope(g:heads(k, c.kv_heads), rope)
      x = x + g:linear(g:attention { q = q, k = k, v = v }, p "self_attn.o_proj")
      local m = p "block_sparse_moe"
      x = x + blocks.moe(g, g:rms_norm(x, p "post_attention_layernorm"), m, {
        kind = "sigmoid", chosen = c.num_experts_per_tok, normalize = true,
        bias = m:tensor "e_score_correction_bias",
      })
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
