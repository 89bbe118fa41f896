-- qwen3_vl: the tower of Qwen3-VL and Qwen3.5: layer norms, a learned table of positions that is
-- interpolated to the size of the picture, and features for the first text layers from the middle
-- of the tower (deepstack; Qwen3.5 has none).
local tower = require "models.core.tower"

--- Four patches as one feature. The last merger norms patches, those of the deepstack norm groups.
local function merge(g, x, m, side, norm_first)
  local y = norm_first and g:merge(g:layer_norm(x, m "norm"), side)
    or g:layer_norm(g:merge(x, side), m "norm")
  return g:linear(g:gelu(g:linear(y, m "linear_fc1")), m "linear_fc2")
end

return {
  names = { "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe" },
  roots = { visual = { "visual", "model.visual", "vision_tower" } },
  defaults = { depth = 27, hidden_size = 1152, num_heads = 16, patch_size = 16,
    spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3,
    hidden_act = "gelu_pytorch_tanh", num_position_embeddings = 2304,
    deepstack_visual_indexes = {} },
  build = function(g, c)
    local side, heads = c.spatial_merge_size, c.num_heads
    local rope = tower.rope("grid", c.hidden_size // heads)
    local activation = tower.activation(g, c.hidden_act)
    local after, deepstack = {}, {}
    local x = g:patch_embed(g:weight "visual.patch_embed.proj",
      { patch = c.patch_size, frames = c.temporal_patch_size, channels = c.in_channels })
    x = x + g:lookup(g:weight "visual.pos_embed")
    for i, p in g:layers("visual.blocks", c.depth) do
      local h = g:layer_norm(x, p "norm1")
      x = x + tower.fused_attention(g, h, p "attn", { heads = heads, rope = rope })
      h = g:linear(g:layer_norm(x, p "norm2"), p "mlp.linear_fc1")
      x = x + g:linear(activation(h), p "mlp.linear_fc2")
      after[i] = x
    end
    for j, i in ipairs(c.deepstack_visual_indexes) do
      local m = g:weight(("visual.deepstack_merger_list.%d"):format(j - 1))
      local y = after[i + 1]
        or error(("config: deepstack_visual_indexes has %d, depth is %d"):format(i, c.depth), 0)
      deepstack[j] = merge(g, y, m, side, false)
    end
    return merge(g, x, g:weight "visual.merger", side, true), {
      patch = c.in_channels * c.temporal_patch_size * c.patch_size ^ 2, merge = side,
      blocks = true, table = "aligned", side = c.num_position_embeddings ^ 0.5,
      deepstack = deepstack,
    }
  end,
}
