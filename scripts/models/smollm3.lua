-- smollm3: SmolLM 3: Llama with some layers, usually every fourth, without rope.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

--- Does layer i (from 1) use rope? The list has 0 for layers that do not.
local function rotated(c, i)
  if c.no_rope_layers then return c.no_rope_layers[i] ~= 0 end
  return i % c.no_rope_layer_interval ~= 0
end

return {
  names = { "smollm3" },
  defaults = { no_rope_layer_interval = 4, rope_theta = 2000000.0 },
  build = function(g, c)
    local window = config.window(c, function(i)
      return c.use_sliding_window and not rotated(c, i)
    end)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q = g:heads(g:linear(h, p "self_attn.q_proj"), c.heads)
      local k = g:heads(g:linear(h, p "self_attn.k_proj"), c.kv_heads)
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      if rotated(c, i) then
        q, k = g:rope(q, c.rope), g:rope(k, c.rope)
      end
      local y = g:attention { q = q, k = k, v = v, window = window[i] }
      x = x + g:linear(y, p "self_attn.o_proj")
      x = x + blocks.mlp(g, g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
