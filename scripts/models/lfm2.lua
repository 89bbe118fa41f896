-- lfm2: LFM2: short convolutions with a few attention layers between them; dense, or with experts
-- after the first layers.
local blocks = require "models.core.blocks"

local function short_conv(g, h, m)
  local b, c, x = g:split(g:linear(h, m "in_proj"), { h:width(), h:width(), h:width() })
  return g:linear(c * g:conv(b * x, m "conv"), m "out_proj")
end

local function attention(g, c, h, a)
  local q = g:heads(g:linear(h, a "q_proj"), c.heads)
  local k = g:heads(g:linear(h, a "k_proj"), c.kv_heads)
  local v = g:heads(g:linear(h, a "v_proj"), c.kv_heads)
  q = g:rope(g:rms_norm(q, a "q_layernorm"), c.rope)
  k = g:rope(g:rms_norm(k, a "k_layernorm"), c.rope)
  return g:linear(g:attention { q = q, k = k, v = v }, a "out_proj")
end

local function feed_forward(g, c, h, m)
  if not m "gate":exists() then return blocks.mlp(g, h, m) end
  return blocks.moe(g, h, m, {
    kind = "sigmoid", bias = m:tensor "expert_bias", chosen = c.num_experts_per_tok,
    normalize = c.norm_topk_prob, eps = 1e-6, scale = c.routed_scaling_factor,
  })
end

return {
  names = { "lfm2", "lfm2_moe", "lfm2_vl" },
  defaults = { rope_theta = 1000000.0 },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "operator_norm")
      x = x + (c.mixers[i] == "conv" and short_conv(g, h, p "conv")
        or attention(g, c, h, p "self_attn"))
      x = x + feed_forward(g, c, g:rms_norm(x, p "ffn_norm"), p "feed_forward")
    end
    return g:head(g:rms_norm(x, "model.embedding_norm"))
  end,
}
