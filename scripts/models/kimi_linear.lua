-- kimi_linear: Kimi Linear: delta attention with a decay rate per channel, latent attention without
-- rope every few layers, and experts.
local blocks = require "models.core.blocks"
local config = require "models.core.config"
local recurrent = require "models.core.recurrent"

local function delta_attention(g, c, h, a)
  local heads = c.linear_attn_config and config.get(c.linear_attn_config, "num_heads")
    or config.need(c, "linear_num_heads")
  local function mixed(name)
    local conv = g:either(a(name .. "_conv1d"), a(name .. "_conv.conv"))
    return g:heads(g:conv(g:linear(h, a(name .. "_proj")), conv, { activation = "silu" }), heads)
  end
  local q, k, v = mixed "q", mixed "k", mixed "v"
  local forget = g:heads(g:linear(g:linear(h, a "f_a_proj"), a "f_b_proj"), heads)
  local gate = g:linear(g:linear(h, a "g_a_proj"), a "g_b_proj")
  local y = g:delta {
    q = g:l2_norm(q, { scale = q:shape()[2] ^ -0.5 }), k = g:l2_norm(k), v = v,
    beta = g:sigmoid(g:linear(h, a "b_proj")), decay = recurrent.decay(g, forget, a),
  }
  return g:linear(g:rms_norm(y, a "o_norm") * g:sigmoid(gate), a "o_proj")
end

local function feed_forward(g, c, h, p)
  local m = p "block_sparse_moe.gate":exists() and p "block_sparse_moe" or p "mlp"
  if not m "gate":exists() then return blocks.mlp(g, h, m) end
  local route = blocks.group_route(c, m)
  route.bias = route.bias or m:tensor "e_score_correction_bias"
  return blocks.moe(g, h, m, route)
end

return {
  names = { "kimi_linear" },
  build = function(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h, a = g:rms_norm(x, p "input_layernorm"), p "self_attn"
      x = x + (c.mixers[i] == "linear_attention" and delta_attention(g, c, h, a)
        or blocks.latent_attention(g, h, a, false))
      x = x + feed_forward(g, c, g:rms_norm(x, p "post_attention_layernorm"), p)
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
