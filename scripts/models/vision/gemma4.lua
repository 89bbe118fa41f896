-- gemma4: the tower of Gemma 4: sandwich norms, norms on queries, keys and values, a rope for
-- columns on the first half of a head and for rows on the second, and features averaged over 3 x 3
-- patches. The E models limit inputs and outputs of all matrices.
local config = require "models.core.config"

--- x W', limited on both sides if the file has limits.
local function linear(g, x, m)
  local function limit(y, side)
    local low, high = m:tensor(side .. "_min"), m:tensor(side .. "_max")
    return low and g:clamp(y, { low = low, high = high }) or y
  end
  return limit(g:linear(limit(x, "input"), g:either(m, m "linear")), "output")
end

local function attention(g, c, h, a)
  local width, part = c.head_dim, c.head_dim // 2
  local theta = c.rope.theta
  local columns = { dims = part, theta = theta, sections = { 0, part // 2, 0 } }
  local rows = { dims = part, theta = theta, sections = { part // 2, 0, 0 } }
  local function rotate(x) return g:rope(g:rope(x, columns), rows, { skip = part }) end
  local function heads(name, n) return g:reshape(linear(g, h, a(name)), { n, width }) end
  local q = g:rms_norm(heads("q_proj", c.heads), a "q_norm")
  local k = g:rms_norm(heads("k_proj", c.kv_heads), a "k_norm")
  local v = g:rms_norm(heads("v_proj", c.kv_heads))
  local y = g:region_attention { q = rotate(q), k = rotate(k), v = v, scale = 1 }
  return linear(g, g:flat(y), a "o_proj")
end

return {
  names = { "gemma4" },
  roots = {
    vision_tower = { "model.vision_tower", "vision_tower" },
    embed_vision = { "model.embed_vision", "embed_vision" },
  },
  defaults = { rope_theta = 100.0, pooling_kernel_size = 3, position_embedding_size = 10240 },
  build = function(g, c)
    local pool, size = c.pooling_kernel_size, c.position_embedding_size
    config.needs(c, { "patch_size" })
    local x = g:patch_embed(g:weight "vision_tower.patch_embedder.input_proj",
      { patch = c.patch_size, adjust = function(x) return (x - 0.5) * 2 end })
    local positions = g:weight "vision_tower.patch_embedder.position_embedding_table"
    x = x + g:lookup(positions:flattened(x:width()))
    for _, p in g:layers("vision_tower.encoder.layers", c.layers) do
      local h = attention(g, c, g:rms_norm(x, p "input_layernorm"), p "self_attn")
      x = x + g:rms_norm(h, p "post_attention_layernorm")
      h = g:rms_norm(x, p "pre_feedforward_layernorm")
      local m = p "mlp"
      h = g:gelu_tanh(linear(g, h, m "gate_proj")) * linear(g, h, m "up_proj")
      x = x + g:rms_norm(linear(g, h, m "down_proj"), p "post_feedforward_layernorm")
    end
    local y = g:merge(x, pool, { mean = true }) * c.hidden ^ 0.5
    if c.standardize then
      y = (y - g:weight "vision_tower.std_bias") * g:weight "vision_tower.std_scale"
    end
    y = g:linear(g:rms_norm(y), g:weight "embed_vision.embedding_projection")
    return y, { patch = 3 * c.patch_size ^ 2, merge = pool, table = "axes", side = size }
  end,
}
