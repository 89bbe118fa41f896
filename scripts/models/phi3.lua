-- phi3: Phi 3, 3.5 and 4 (text): one matrix for queries, keys and values, another for gate and up;
-- longrope for long contexts.
local blocks = require "models.core.blocks"

return {
  names = { "phi3" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    local keys = c.kv_heads * c.head_dim
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local qkv = g:linear(h, p "self_attn.qkv_proj")
      local q, k, v = g:split(qkv, { c.heads * c.head_dim, keys, keys })
      q = g:rope(g:heads(q, c.heads), c.rope)
      k = g:rope(g:heads(k, c.kv_heads), c.rope)
      local y = g:attention { q = q, k = k, v = g:heads(v, c.kv_heads), window = c.window[i] }
      x = x + g:linear(y, p "self_attn.o_proj")
      x = x + blocks.mlp(g, g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
