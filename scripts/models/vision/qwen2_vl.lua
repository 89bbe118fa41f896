-- qwen2_vl: the tower of Qwen2-VL: layer norms, quick GELU, a rope over rows and columns, and four
-- patches merged into one feature.
local tower = require "models.core.tower"

return {
  names = { "qwen2_vl" },
  roots = { visual = { "visual", "model.visual", "vision_tower" } },
  defaults = { depth = 32, embed_dim = 1280, num_heads = 16, patch_size = 14,
    spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, hidden_act = "quick_gelu" },
  build = function(g, c)
    local heads, merge, channels = c.num_heads, c.spatial_merge_size, c.in_chans or c.in_channels
    local rope = tower.rope("grid", c.embed_dim // heads)
    local activation = tower.activation(g, c.hidden_act)
    local x = g:patch_embed(g:weight "visual.patch_embed.proj",
      { patch = c.patch_size, frames = c.temporal_patch_size, channels = channels })
    for _, p in g:layers("visual.blocks", c.depth) do
      local h = g:layer_norm(x, p "norm1")
      x = x + tower.fused_attention(g, h, p "attn", { heads = heads, rope = rope })
      h = g:linear(g:layer_norm(x, p "norm2"), p "mlp.fc1")
      x = x + g:linear(activation(h), p "mlp.fc2")
    end
    local m = g:weight "visual.merger"
    local y = g:merge(g:layer_norm(x, m "ln_q"), merge)
    return g:linear(g:gelu(g:linear(y, m "mlp.0")), m "mlp.2"), {
      patch = channels * c.temporal_patch_size * c.patch_size ^ 2, merge = merge, blocks = true,
    }
  end,
}
