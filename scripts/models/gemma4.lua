-- gemma4: Gemma 4 (text): Gemma 3's four norms, stored as they are; wider heads and a partial rope
-- in the global layers. Some sizes also have an embedding per layer, last layers that read the keys
-- and values of earlier ones, and experts in addition to the MLP.
local blocks = require "models.core.blocks"
local config = require "models.core.config"

--- Head width and number of key heads of layer i (from 1): listed by layer, or one pair for all
--- global layers.
local function heads_of(c, i, sliding)
  local own = c.per_layer_config and config.object(c.per_layer_config[tostring(i - 1)]) or {}
  local global = not sliding and not c.per_layer_config
  local width, kv_heads = config.get(own, "head_dim"), config.get(own, "num_key_value_heads")
  return width or global and c.global_head_dim or c.head_dim,
    kv_heads or global and c.attention_k_eq_v and c.num_global_key_value_heads or c.kv_heads
end

--- The extra input of each layer, from the token's row in a second table and from its embedding x.
local function layer_inputs(g, c, x)
  local width, sizes = c.hidden_size_per_layer_input or 0, {}
  if width == 0 then return {} end
  for i = 1, c.layers do sizes[i] = 1 end
  local shape = { c.layers, width }
  -- pictures have the inputs of the padding token
  local token = g:embed("model.embed_tokens_per_layer",
    { scale = width ^ 0.5, media = c.pad_token_id or 0 })
  local context = g:linear(x, g:weight "model.per_layer_model_projection") * c.hidden ^ -0.5
  context = g:rms_norm(g:reshape(context, shape), "model.per_layer_projection_norm")
  return { g:split((context + g:reshape(token, shape)) * 2 ^ -0.5, sizes) }
end

return {
  names = { "gemma4_text", "gemma4" },
  defaults = {
    num_attention_heads = 8, num_key_value_heads = 4, head_dim = 256, global_head_dim = 512,
    sliding_window = 512, num_kv_shared_layers = 0,
  },
  extras = function(c) -- k and v of layers that read those of others
    local list = {}
    for i = c.layers - c.num_kv_shared_layers, c.layers - 1 do
      list[#list + 1] = ("layers%%.%d%%.self_attn%%.[kv]_"):format(i)
    end
    return list
  end,
  build = function(g, c)
    local window = config.window(c, function(i) return i % 6 ~= 0 and i < c.layers end)
    local function gelu_gate(gate, up) return g:gelu_tanh(gate) * up end
    local x = g:embed("model.embed_tokens", { scale = c.hidden ^ 0.5 })
    local inputs, cache = layer_inputs(g, c, x), {}
    local spans = c.use_bidirectional_attention == "vision" -- of pictures, not in global layers

    local function attention(h, a, i)
      local kind = window[i] > 0 and "sliding_attention" or "full_attention"
      local width, kv_heads = heads_of(c, i, window[i] > 0)
      local rope = config.rope(c, { kind = kind, head_dim = width })
      local q = g:heads(g:linear(h, a "q_proj"), c.heads, { dim = width })
      q = g:rope(g:rms_norm(q, a "q_norm"), rope)
      local k, v, y
      if i <= c.layers - c.num_kv_shared_layers then
        k = g:heads(g:linear(h, a "k_proj"), kv_heads, { dim = width })
        v = a "v_proj":exists() and g:heads(g:linear(h, a "v_proj"), kv_heads, { dim = width }) or k
        v = g:rms_norm(v)
        k = g:rope(g:rms_norm(k, a "k_norm"), rope)
        y, cache[kind] = g:attention { q = q, k = k, v = v, window = window[i], scale = 1,
          spans = spans and window[i] > 0 }
      else
        local shared = cache[kind]
          or error(("config: layer %d shares keys, but no earlier layer has any"):format(i - 1), 0)
        y = g:attention { q = q, share = shared, window = window[i], scale = 1,
          spans = spans and window[i] > 0 }
      end
      return g:linear(y, a "o_proj")
    end

    local function experts(r, p)
      config.needs(c, { "num_experts", "top_k_experts" })
      local scaled = g:rms_norm(r, p "router.scale", { scale = c.hidden ^ -0.5 })
      local logits = g:linear(scaled, p "router.proj")
      local route = g:route(logits, {
        kind = "softmax", chosen = c.top_k_experts, normalize = true,
        factor = p "router.per_expert_scale",
      })
      local h = g:rms_norm(r, p "pre_feedforward_layernorm_2")
      return blocks.experts(g, h, p,
        { route = route, count = c.num_experts, activation = gelu_gate })
    end

    for i, p in g:layers "model.layers" do
      local h = attention(g:rms_norm(x, p "input_layernorm"), p "self_attn", i)
      x = x + g:rms_norm(h, p "post_attention_layernorm")
      h = blocks.mlp(g, g:rms_norm(x, p "pre_feedforward_layernorm"), p "mlp", gelu_gate)
      if c.enable_moe_block then
        h = g:rms_norm(h, p "post_feedforward_layernorm_1")
          + g:rms_norm(experts(x, p), p "post_feedforward_layernorm_2")
      end
      x = x + g:rms_norm(h, p "post_feedforward_layernorm")
      if inputs[i] then
        h = g:gelu_tanh(g:linear(x, p "per_layer_input_gate")) * inputs[i]
        h = g:linear(h, p "per_layer_projection")
        x = x + g:rms_norm(h, p "post_per_layer_input_norm")
      end
      x = x * p "layer_scalar"
    end
    return g:softcap(g:head(g:rms_norm(x, "model.norm")), c.final_logit_softcapping)
  end,
}
