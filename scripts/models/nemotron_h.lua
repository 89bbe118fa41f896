-- nemotron_h: Nemotron-H and Nemotron 3: each layer is one mixer: Mamba 2, attention without rope,
-- MLP or experts.
local blocks = require "models.core.blocks"
local config = require "models.core.config"
local recurrent = require "models.core.recurrent"

local mixers = {}

function mixers.linear_attention(g, c, h, m)
  config.needs(c, { "mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size" })
  return recurrent.mamba2(g, h, m, {
    heads = c.mamba_num_heads, dim = c.mamba_head_dim, groups = c.n_groups,
    state = c.ssm_state_size, norm_groups = c.n_groups, time_step = c.time_step,
  })
end

function mixers.full_attention(g, c, h, m)
  local q = g:heads(g:linear(h, m "q_proj"), c.heads)
  local k = g:heads(g:linear(h, m "k_proj"), c.kv_heads)
  local v = g:heads(g:linear(h, m "v_proj"), c.kv_heads)
  return g:linear(g:attention { q = q, k = k, v = v }, m "o_proj")
end

function mixers.mlp(g, _, h, m)
  return g:linear(g:relu2(g:linear(h, m "up_proj")), m "down_proj")
end

--- The experts compute on h or, in larger models, on a narrower projection of it.
function mixers.moe(g, c, h, m)
  local narrow = m "fc1_latent_proj":exists()
  local logits = g:linear(h, m "gate")
  local y = blocks.experts(g, narrow and g:linear(h, m "fc1_latent_proj") or h, m, {
    route = g:route(logits, blocks.group_route(c, m)), count = logits:width(),
    gated = false, activation = function(_, up) return g:relu2(up) end,
  })
  local shared = mixers.mlp(g, c, h, m "shared_experts")
  return shared + (narrow and g:linear(y, m "fc2_latent_proj") or y)
end

return {
  names = { "nemotron_h" },
  build = function(g, c)
    local x = g:embed "backbone.embeddings"
    for i, p in g:layers "backbone.layers" do
      local kind = c.mixers[i]
      local mixer = mixers[kind] or error(("layer %d: unknown mixer '%s'"):format(i - 1, kind), 0)
      x = x + mixer(g, c, g:rms_norm(x, p "norm"), p "mixer")
    end
    return g:head(g:rms_norm(x, "backbone.norm_f"))
  end,
}
