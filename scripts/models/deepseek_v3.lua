-- deepseek_v3: DeepSeek V3 and R1, Kimi K2, GLM 4.7 Flash: latent attention, and grouped experts
-- after the first, dense layers.
local blocks = require "models.core.blocks"

--- Is layer i (from 1) dense?
local function dense(c, i)
  if c.mlp_layer_types then return c.mlp_layer_types[i] == "dense" end
  return i <= (c.first_k_dense_replace or 0) or (i - 1) % (c.moe_layer_freq or 1) ~= 0
end

return {
  names = { "deepseek_v3", "kimi_k2", "glm4_moe_lite" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      x = x + blocks.latent_attention(g, g:rms_norm(x, p "input_layernorm"), p "self_attn")
      local h, m = g:rms_norm(x, p "post_attention_layernorm"), p "mlp"
      x = x + (dense(c, i) and blocks.mlp(g, h, m) or blocks.moe(g, h, m, blocks.group_route(c, m)))
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
