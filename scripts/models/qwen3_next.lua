-- qwen3_next: Qwen3-Next and Qwen3.5: gated delta nets with gated attention every few layers; dense
-- or with experts.
local blocks = require "models.core.blocks"
local config = require "models.core.config"
local recurrent = require "models.core.recurrent"

--- Original files store norm weights minus 1, converted files store them as they are. The layout of
--- conv1d tells the two apart: [channels, 1, taps] or [channels, taps, 1].
local function norm_offset(g, c)
  for i = 1, c.layers do
    if c.mixers[i] == "linear_attention" then
      local _, _, last = g:weight(("model.layers.%d.linear_attn.conv1d"):format(i - 1)):shape()
      return last > 1 and 1 or 0
    end
  end
  return 1
end

local function attention(g, c, h, a)
  local both = g:heads(g:linear(h, a "q_proj"), c.heads, { dim = 2 * c.head_dim })
  local q, gate = g:split_heads(both, { c.head_dim, c.head_dim })
  local k = g:heads(g:linear(h, a "k_proj"), c.kv_heads)
  local v = g:heads(g:linear(h, a "v_proj"), c.kv_heads)
  q = g:rope(g:rms_norm(q, a "q_norm"), c.rope)
  k = g:rope(g:rms_norm(k, a "k_norm"), c.rope)
  return g:linear(g:attention { q = q, k = k, v = v } * g:sigmoid(gate), a "o_proj")
end

--- Returns queries, keys and values in one value; z, which gates the output; b and a, which give
--- beta and the decay.
local function projections(g, c, h, m)
  if m "in_proj_qkv":exists() then
    return g:linear(h, m "in_proj_qkv"), g:linear(h, m "in_proj_z"),
      g:linear(h, m "in_proj_b"), g:linear(h, m "in_proj_a")
  end
  -- Qwen3-Next stores the rows of each key head together.
  local groups, key = c.linear_num_key_heads, c.linear_key_head_dim
  local each = c.linear_num_value_heads // groups
  local value = each * c.linear_value_head_dim
  local qkvz = g:heads(g:linear(h, m "in_proj_qkvz"), groups)
  local q, k, v, z = g:split_heads(qkvz, { key, key, value, value })
  local b, a = g:split_heads(g:heads(g:linear(h, m "in_proj_ba"), groups), { each, each })
  return g:concat { g:flat(q), g:flat(k), g:flat(v) }, g:flat(z), g:flat(b), g:flat(a)
end

local function delta_net(g, c, h, m)
  config.needs(c, { "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim" })
  local key_heads, value_heads = c.linear_num_key_heads, c.linear_num_value_heads
  local key = c.linear_key_head_dim
  local keys, values = key_heads * key, value_heads * c.linear_value_head_dim
  local qkv, z, b, a = projections(g, c, h, m)
  local q, k, v = g:split(g:conv(qkv, m "conv1d", { activation = "silu" }), { keys, keys, values })
  q = g:l2_norm(g:heads(q, key_heads), { scale = key ^ -0.5 })
  k = g:l2_norm(g:heads(k, key_heads))
  v = g:heads(v, value_heads)
  local y = g:delta { q = q, k = k, v = v, beta = g:sigmoid(b), decay = recurrent.decay(g, a, m) }
  return g:linear(g:rms_norm(y, m "norm", { offset = 0 }) * g:silu(z), m "out_proj")
end

local function mlp(g, c, h, m)
  if not m "gate":exists() then return blocks.mlp(g, h, m) end
  return blocks.moe(g, h, m,
    { kind = "softmax", chosen = c.num_experts_per_tok, normalize = c.norm_topk_prob })
end

return {
  names = { "qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text" },
  defaults = { full_attention_interval = 4, partial_rotary_factor = 0.25, norm_topk_prob = true },
  build = function(g, c)
    g.norm_offset = norm_offset(g, c)
    local x = g:embed "model.embed_tokens"
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      x = x + (c.mixers[i] == "linear_attention" and delta_net(g, c, h, p "linear_attn")
        or attention(g, c, h, p "self_attn"))
      x = x + mlp(g, c, g:rms_norm(x, p "post_attention_layernorm"), p "mlp")
    end
    return g:head(g:rms_norm(x, "model.norm"))
  end,
}
