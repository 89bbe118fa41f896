-- gemma3: the tower of Gemma 3: SigLIP over pictures of one size, averaged to a fixed number of
-- features, a norm (stored minus 1, like those of the text model) and a projection.
local tower = require "models.core.tower"

return {
  names = { "gemma3" },
  roots = tower.siglip_roots,
  extras = tower.siglip_extras,
  defaults = { hidden_size = 1152, image_size = 896, num_attention_heads = 16,
    num_hidden_layers = 27, patch_size = 14, num_channels = 3, layer_norm_eps = 1e-6,
    hidden_act = "gelu_pytorch_tanh" },
  build = function(g, c, whole)
    local side = c.image_size // c.patch_size
    local tokens = whole.mm_tokens_per_image or 256
    local pool = side // (math.tointeger(tokens ^ 0.5)
      or error(("config: mm_tokens_per_image must be a square, got %d"):format(tokens), 0))
    local x = tower.siglip(g, c)
    local m = g:weight "multi_modal_projector"
    local y = g:merge(x, pool, { mean = true })
    y = g:rms_norm(y, m "mm_soft_emb_norm", { eps = c.layer_norm_eps, offset = 1 })
    local projection = m "mm_input_projection_weight" -- stored as [in, out]
    local _, rows, cols = projection:shape()
    y = g:linear(y, projection:permuted { shape = { rows, cols }, order = { 2, 1 } })
    return y, { patch = c.num_channels * c.patch_size ^ 2, merge = pool, table = "raster",
      side = side }
  end,
}
