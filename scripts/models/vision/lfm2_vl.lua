-- lfm2_vl: the tower of LFM2-VL: SigLIP 2 over pictures of any size, with a table of positions that
-- is interpolated with antialiasing, 2 x 2 patches merged, and a projection.
local tower = require "models.core.tower"

return {
  names = { "lfm2_vl" },
  roots = tower.siglip_roots,
  extras = tower.siglip_extras,
  defaults = { hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
    patch_size = 16, num_channels = 3, num_patches = 256, layer_norm_eps = 1e-6,
    hidden_act = "gelu_pytorch_tanh" },
  build = function(g, c, whole)
    local side = whole.downsample_factor or 2
    local x = tower.siglip(g, c)
    local m = g:weight "multi_modal_projector"
    local y = g:merge(x, side)
    if m "layer_norm":exists() then y = g:layer_norm(y, m "layer_norm", 1e-5) end
    y = tower.activation(g, whole.projector_hidden_act or "gelu")(g:linear(y, m "linear_1"))
    return g:linear(y, m "linear_2"), { patch = c.num_channels * c.patch_size ^ 2, merge = side,
      table = "antialiased", side = c.num_patches ^ 0.5 }
  end,
}
