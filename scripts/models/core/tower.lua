-- tower: parts that several vision towers share.
local tower = {}

--- The rope of a head whose positions are a row and a column: half of its rotations follow each.
--- kind: "grid" (both halves have all frequencies) or "grid_turns" (they take turns).
function tower.rope(kind, head, theta)
  local each = head // 4
  return { kind = kind, dims = head, theta = theta or 10000.0, sections = { each, each, 0 } }
end

--- The activation that a config names.
function tower.activation(g, name)
  local known = { gelu = "gelu", gelu_pytorch_tanh = "gelu_tanh", quick_gelu = "gelu_quick",
    silu = "silu" }
  local op = known[name] or error(("config: unknown activation '%s'"):format(tostring(name)), 0)
  return function(x) return g[op](g, x) end
end

--- Attention of the Qwen towers: one matrix for queries, keys and values, in this order. o: heads,
--- rope, regions.
function tower.fused_attention(g, h, a, o)
  local width = h:width()
  local q, k, v = g:split(g:linear(h, a "qkv"), { width, width, width })
  local shape = { o.heads, width // o.heads }
  q, k, v = g:reshape(q, shape), g:reshape(k, shape), g:reshape(v, shape)
  return g:linear(g:region_attention { q = g:rope(q, o.rope), k = g:rope(k, o.rope), v = v,
    regions = o.regions }, a "proj")
end

-- What towers with SigLIP share: where their tensors are, and the head for classifying, which is
-- not used.
tower.siglip_roots = {
  vision_tower = { "vision_tower.vision_model", "model.vision_tower.vision_model",
    "vision_tower", "model.vision_tower" },
  multi_modal_projector = { "multi_modal_projector", "model.multi_modal_projector" },
}
tower.siglip_extras = { "^head%." }

--- SigLIP from the patches to the last norm; c: the config of the tower.
function tower.siglip(g, c)
  local count, eps = c.num_attention_heads, c.layer_norm_eps
  local activation = tower.activation(g, c.hidden_act)
  local x = g:patch_embed(g:weight "vision_tower.embeddings.patch_embedding",
    { patch = c.patch_size, channels = c.num_channels })
  x = x + g:lookup(g:weight "vision_tower.embeddings.position_embedding")
  for _, p in g:layers("vision_tower.encoder.layers", c.num_hidden_layers) do
    local h, a = g:layer_norm(x, p "layer_norm1", eps), p "self_attn"
    local shape = { count, h:width() // count }
    local function heads(name) return g:reshape(g:linear(h, a(name)), shape) end
    local y = g:region_attention { q = heads "q_proj", k = heads "k_proj", v = heads "v_proj" }
    x = x + g:linear(y, a "out_proj")
    h = g:linear(g:layer_norm(x, p "layer_norm2", eps), p "mlp.fc1")
    x = x + g:linear(activation(h), p "mlp.fc2")
  end
  return g:layer_norm(x, g:weight "vision_tower.post_layernorm", eps)
end

return tower
