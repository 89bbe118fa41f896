-- llama: Llama 2 and 3, and models of the same shape: Mistral (window), Ministral 3 (queries grow
-- with their position), Qwen 2 (biases, window from some layer on), Seed-OSS, SmolLM, Yi; and the
-- text models of Qwen2-VL, Qwen2.5-VL, Pixtral and Mistral 3.
local blocks = require "models.core.blocks"

return {
  names = {
    "llama", "mistral", "qwen2", "seed_oss", "qwen2_vl", "qwen2_5_vl", "mistral3", "ministral3",
    "llava", "pixtral",
  },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q = g:rope(g:heads(g:linear(h, p "self_attn.q_proj"), c.heads), c.query_rope)
      local k = g:rope(g:heads(g:linear(h, p "self_attn.k_proj"), c.kv_heads), c.rope)
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      local y = g:attention { q = q, k = k, v = v, window = c.window[i] }
      x = x + g:linear(y, p "self_attn.o_proj")
      x = x + blocks.mlp(g, g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
