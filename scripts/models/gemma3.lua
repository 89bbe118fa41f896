-- gemma3: Gemma 3: norms before and after both halves of a layer, scaled embeddings, and five
-- layers with a window and their own rope for each layer without one. The rows of a picture see all
-- of it, in every layer. Norm weights are stored minus 1, except in GGUF files.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

return {
  names = { "gemma3_text", "gemma3" },
  defaults = { -- published configs leave these out
    num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, query_pre_attn_scalar = 256,
    sliding_window = 4096, sliding_window_pattern = 6, rope_theta = 1000000.0,
    rope_local_base_freq = 10000.0,
  },
  build = function(g, c)
    local window = config.window(c, function(i) return i % c.sliding_window_pattern ~= 0 end)
    local near = config.rope(c,
      { kind = "sliding_attention", plain = true, theta = c.rope_local_base_freq })
    local far = config.rope(c, { kind = "full_attention" })
    local function gelu_gate(gate, up) return g:gelu_tanh(gate) * up end
    g.norm_offset = g.gguf and 0 or 1
    local x = g:embed("model.embed_tokens", { scale = c.hidden ^ 0.5 })
    for i, p in g:layers "model.layers" do
      local h, rope = g:rms_norm(x, p "input_layernorm"), window[i] > 0 and near or far
      local a = p "self_attn"
      local q = g:rms_norm(g:heads(g:linear(h, a "q_proj"), c.heads), a "q_norm")
      local k = g:rms_norm(g:heads(g:linear(h, a "k_proj"), c.kv_heads), a "k_norm")
      local y = g:attention {
        q = g:rope(q, rope), k = g:rope(k, rope),
        v = g:heads(g:linear(h, a "v_proj"), c.kv_heads), window = window[i],
        scale = c.query_pre_attn_scalar ^ -0.5, softcap = c.attn_logit_softcapping, spans = true,
      }
      x = x + g:rms_norm(g:linear(y, a "o_proj"), p "post_attention_layernorm")
      h = blocks.mlp(g, g:rms_norm(x, p "pre_feedforward_layernorm"), p "mlp", gelu_gate)
      x = x + g:rms_norm(h, p "post_feedforward_layernorm")
    end
    return g:softcap(g:head(g:rms_norm(x, "model.norm")), c.final_logit_softcapping)
  end,
}
