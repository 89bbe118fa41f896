-- qwen2_5_vl: the tower of Qwen2.5-VL: RMS norms, gated MLPs, and attention inside windows except
-- in a few blocks.
local blocks = require "models.core.blocks"
local tower = require "models.core.tower"

return {
  names = { "qwen2_5_vl" },
  roots = { visual = { "visual", "model.visual", "vision_tower" } },
  defaults = { depth = 32, hidden_size = 1280, num_heads = 16, patch_size = 14,
    spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, hidden_act = "silu",
    window_size = 112, fullatt_block_indexes = { 7, 15, 23, 31 } },
  build = function(g, c)
    local heads, merge, channels = c.num_heads, c.spatial_merge_size, c.in_chans or c.in_channels
    local rope = tower.rope("grid", c.hidden_size // heads)
    local activation = tower.activation(g, c.hidden_act)
    local function gate(a, up) return activation(a) * up end
    local whole = {}
    for _, i in ipairs(c.fullatt_block_indexes) do whole[i + 1] = true end
    local x = g:patch_embed(g:weight "visual.patch_embed.proj",
      { patch = c.patch_size, frames = c.temporal_patch_size, channels = channels })
    for i, p in g:layers("visual.blocks", c.depth) do
      local h = g:rms_norm(x, p "norm1")
      x = x + tower.fused_attention(g, h, p "attn",
        { heads = heads, rope = rope, regions = whole[i] and "frame" or "window" })
      x = x + blocks.mlp(g, g:rms_norm(x, p "norm2"), p "mlp", gate)
    end
    local m = g:weight "visual.merger"
    local y = g:merge(g:rms_norm(x, m "ln_q"), merge)
    return g:linear(g:gelu(g:linear(y, m "mlp.0")), m "mlp.2"), {
      patch = channels * c.temporal_patch_size * c.patch_size ^ 2, merge = merge, blocks = true,
      window = c.window_size // merge // c.patch_size,
    }
  end,
}
