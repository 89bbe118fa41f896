-- olmo3: OLMo 3: norms after attention and MLP instead of before, one norm over all heads of the
-- queries and one over all heads of the keys; three layers with a window for each layer without,
-- and only the latter scale their rope.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

return {
  names = { "olmo3" },
  build = function(g, c)
    local window = config.window(c, function(i) return i % 4 ~= 0 end)
    local near = config.rope(c, { kind = "sliding_attention", plain = true, theta = 500000.0 })
    local far = config.rope(c, { kind = "full_attention", theta = c.rope_theta or 500000.0 })
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local rope = window[i] > 0 and near or far
      local q = g:rms_norm(g:linear(x, p "self_attn.q_proj"), p "self_attn.q_norm")
      local k = g:rms_norm(g:linear(x, p "self_attn.k_proj"), p "self_attn.k_norm")
      local v = g:heads(g:linear(x, p "self_attn.v_proj"), c.kv_heads)
      q, k = g:rope(g:heads(q, c.heads), rope), g:rope(g:heads(k, c.kv_heads), rope)
      local y = g:attention { q = q, k = k, v = v, window = window[i] }
      x = x + g:rms_norm(g:linear(y, p "self_attn.o_proj"), p "post_attention_layernorm")
      x = x + g:rms_norm(blocks.mlp(g, x, p "mlp"), p "post_feedforward_layernorm")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
