-- phi3: Phi 3, 3.5 and 4 (text): queries, keys and values from one matrix, gate and up from another; long contexts by longrope.
local blocks = require "models.core.blocks"

return {
  names = { "phi3" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    local keys = c.kv_heads * c.head_dim
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q, k, v = g:split(g:linear(h, p "self_attn.qkv_proj"), { c.heads * c.head_dim, keys, keys })
      q, k, v = g:rope(g:heads(q, c.heads), c.rope), g:rope(g:heads(k, c.kv_heads), c.rope), g:heads(v, c.kv_heads)
      x = x + g:linear(g:attention { q = q, k = k, v = v, window = c.window[i] }, p "self_attn.o_proj")
      x = x + blocks.mlp(g, g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
