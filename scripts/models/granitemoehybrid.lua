-- granitemoehybrid: Granite 4: Mamba 2 with a few attention layers, experts plus an MLP that all
-- tokens share, and multipliers at embedding, attention, residuals and logits.
local blocks = require "models.core.blocks"
local config = require "models.core.config"
local recurrent = require "models.core.recurrent"

local function mamba(g, c, h, m)
  config.needs(c, { "mamba_n_heads", "mamba_d_head", "mamba_n_groups", "mamba_d_state" })
  return recurrent.mamba2(g, h, m, {
    heads = c.mamba_n_heads, dim = c.mamba_d_head, groups = c.mamba_n_groups,
    state = c.mamba_d_state, norm_groups = 1, time_step = c.time_step,
  })
end

local function attention(g, c, h, a)
  local q = g:heads(g:linear(h, a "q_proj"), c.heads)
  local k = g:heads(g:linear(h, a "k_proj"), c.kv_heads)
  local v = g:heads(g:linear(h, a "v_proj"), c.kv_heads)
  if c.position_embedding_type == "rope" then q, k = g:rope(q, c.rope), g:rope(k, c.rope) end
  return g:linear(g:attention { q = q, k = k, v = v, scale = c.attention_multiplier }, a "o_proj")
end

local function feed_forward(g, c, h, p)
  local m = p "block_sparse_moe"
  if not m "router.layer":exists() then
    return blocks.mlp(g, h, p "shared_mlp.output_linear":exists() and p "shared_mlp" or p "mlp")
  end
  local y = blocks.moe(g, h, m,
    { router = m "router.layer", kind = "topk", chosen = c.num_experts_per_tok })
  return y + blocks.mlp(g, h, p "shared_mlp")
end

return {
  names = { "granitemoehybrid" },
  defaults = {
    embedding_multiplier = 1, attention_multiplier = 1, residual_multiplier = 1, logits_scaling = 1,
  },
  build = function(g, c)
    local x = g:embed("model.embed_tokens", { scale = c.embedding_multiplier })
    for i, p in g:layers "model.layers" do
      local h = g:rms_norm(x, p "input_layernorm")
      h = c.mixers[i] == "linear_attention" and mamba(g, c, h, p "mamba")
        or attention(g, c, h, p "self_attn")
      x = x + h * c.residual_multiplier
      h = feed_forward(g, c, g:rms_norm(x, p "post_attention_layernorm"), p)
      x = x + h * c.residual_multiplier
    end
    return g:head(g:rms_norm(x, "model.norm")) / c.logits_scaling
  end,
}
