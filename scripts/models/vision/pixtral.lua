-- pixtral: the tower of Pixtral and Mistral 3: RMS norms, gated MLPs and a rope in which rows and
-- columns take turns. Mistral 3 merges 2 x 2 patches before the projection, Pixtral none.
local blocks = require "models.core.blocks"
local tower = require "models.core.tower"

local EPS = 1e-5 -- of the tower's norms; configs do not state it

--- Joined patches through the merging layer, whose columns are stored channel by channel.
local function merged(g, x, m, side)
  local y = g:merge(x, side)
  local w = m "patch_merger.merging_layer"
  local _, rows, cols = w:shape()
  local count = side * side
  return g:linear(y, w:permuted { shape = { rows, cols // count, count }, order = { 1, 3, 2 } })
end

return {
  names = { "mistral3", "llava", "pixtral" },
  roots = {
    vision_tower = { "vision_tower.vision_model", "model.vision_tower.vision_model",
      "vision_tower", "model.vision_tower" },
    multi_modal_projector = { "multi_modal_projector", "model.multi_modal_projector" },
  },
  accepts = function(c) return c.model_type == "pixtral" end, -- other towers are called llava also
  defaults = { hidden_size = 1024, num_hidden_layers = 24, num_attention_heads = 16,
    patch_size = 16, num_channels = 3, hidden_act = "silu", rope_theta = 10000.0 },
  build = function(g, c, whole)
    local activation = tower.activation(g, c.hidden_act)
    local function gate(a, up) return activation(a) * up end
    local rope = tower.rope("grid_turns", c.head_dim, c.rope.theta)
    local norm, shape = { eps = EPS }, { c.heads, c.head_dim }
    local x = g:patch_embed(g:weight "vision_tower.patch_conv",
      { patch = c.patch_size, channels = c.num_channels })
    x = g:rms_norm(x, g:weight "vision_tower.ln_pre", norm)
    for _, p in g:layers("vision_tower.transformer.layers", c.layers) do
      local h, a = g:rms_norm(x, p "attention_norm", norm), p "attention"
      local function heads(name) return g:reshape(g:linear(h, a(name)), shape) end
      local y = g:region_attention { q = g:rope(heads "q_proj", rope),
        k = g:rope(heads "k_proj", rope), v = heads "v_proj" }
      x = x + g:linear(y, a "o_proj")
      x = x + blocks.mlp(g, g:rms_norm(x, p "ffn_norm", norm), p "feed_forward", gate)
    end
    local m, side = g:weight "multi_modal_projector", 1
    if m "norm":exists() then
      side = whole.spatial_merge_size or 2
      x = merged(g, g:rms_norm(x, m "norm", { eps = whole.eps }), m, side)
    else
      x = g:merge(x, 1)
    end
    x = tower.activation(g, whole.projector_hidden_act or "gelu")(g:linear(x, m "linear_1"))
    return g:linear(x, m "linear_2"), { patch = c.num_channels * c.patch_size ^ 2, merge = side }
  end,
}
