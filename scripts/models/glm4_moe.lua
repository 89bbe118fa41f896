-- glm4_moe: GLM 4.5 and 4.6: partial rope, norms of queries and keys in the larger sizes, grouped
-- experts.
local blocks = require "models.core.blocks"

return {
  names = { "glm4_moe" },
  defaults = { partial_rotary_factor = 0.5 },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q = g:heads(g:linear(h, p "self_attn.q_proj"), c.heads)
      local k = g:heads(g:linear(h, p "self_attn.k_proj"), c.kv_heads)
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      if c.use_qk_norm then
        q, k = g:rms_norm(q, p "self_attn.q_norm"), g:rms_norm(k, p "self_attn.k_norm")
      end
      local y = g:attention { q = g:rope(q, c.rope), k = g:rope(k, c.rope), v = v }
      x = x + g:linear(y, p "self_attn.o_proj")
      h = g:rms_norm(x, p "post_attention_layernorm")
      local m, dense = p "mlp", i <= (c.first_k_dense_replace or 0)
      x = x + (dense and blocks.mlp(g, h, m) or blocks.moe(g, h, m, blocks.group_route(c, m)))
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
