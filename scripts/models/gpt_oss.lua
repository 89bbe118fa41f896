-- gpt_oss: gpt-oss: a sink per head, a window in every other layer, biases everywhere, experts with
-- a clamped gate.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

return {
  names = { "gpt_oss" },
  defaults = { swiglu_alpha = 1.702, swiglu_limit = 7.0, rope_theta = 150000.0 },
  build = function(g, c)
    local window = config.window(c, function(i) return i % 2 == 1 end)
    local limit = c.swiglu_limit
    local function clamped_gate(gate, up)
      gate = g:clamp(gate, { high = limit })
      local open = gate * g:sigmoid(gate * c.swiglu_alpha)
      return open * (g:clamp(up, { low = -limit, high = limit }) + 1)
    end
    --- Gate and up are one matrix with alternating rows. Quantized blocks are [out, in], plain ones
    --- [in, out]; MLX files store gate and up separately, as [out, in].
    local function moe(h, m)
      local both = m "experts.gate_up_proj"
      return blocks.moe(g, h, m, {
        router = m "router", kind = "topk", chosen = c.num_experts_per_tok or c.experts_per_token,
        activation = clamped_gate, interleaved = true,
        transposed = both:exists() and not select(4, both:shape()),
      })
    end
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      local q = g:rope(g:heads(g:linear(h, p "self_attn.q_proj"), c.heads), c.rope)
      local k = g:rope(g:heads(g:linear(h, p "self_attn.k_proj"), c.kv_heads), c.rope)
      local v = g:heads(g:linear(h, p "self_attn.v_proj"), c.kv_heads)
      local y = g:attention { q = q, k = k, v = v, window = window[i], sinks = p "self_attn.sinks" }
      x = x + g:linear(y, p "self_attn.o_proj")
      x = x + moe(g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
