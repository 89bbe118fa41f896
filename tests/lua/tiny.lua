-- tiny: a small llama with synthetic weights, for tests of the core that need odd shapes. Not a
-- test itself.
local models = require "models"
local perigee = require "perigee"

local tiny = {}

--- A built model. o: embed and head (rows of the two tables), layers, width, heads, kv, dim, ff,
--- kind (of all matrices), head_kind, config (fields that replace those of the config).
function tiny.model(o)
  o = o or {}
  local width, layers, heads = o.width or 64, o.layers or 2, o.heads or 4
  local kv, dim, ff = o.kv or 2, o.dim or 16, o.ff or 96
  local list = {}
  local function add(name, shape, kind)
    list[#list + 1] = { name = name, shape = shape, kind = kind or o.kind or "bf16" }
  end
  add("model.embed_tokens.weight", { o.embed or 256, width })
  for i = 0, layers - 1 do
    local p = ("model.layers.%d."):format(i)
    add(p .. "input_layernorm.weight", { width }, "bf16")
    add(p .. "post_attention_layernorm.weight", { width }, "bf16")
    add(p .. "self_attn.q_proj.weight", { heads * dim, width })
    add(p .. "self_attn.k_proj.weight", { kv * dim, width })
    add(p .. "self_attn.v_proj.weight", { kv * dim, width })
    add(p .. "self_attn.o_proj.weight", { width, heads * dim })
    add(p .. "mlp.gate_proj.weight", { ff, width })
    add(p .. "mlp.up_proj.weight", { ff, width })
    add(p .. "mlp.down_proj.weight", { width, ff })
  end
  add("model.norm.weight", { width }, "bf16")
  add("lm_head.weight", { o.head or 256, width }, o.head_kind)
  local config = { model_type = "llama", hidden_size = width, num_hidden_layers = layers,
    num_attention_heads = heads, num_key_value_heads = kv, head_dim = dim, intermediate_size = ff,
    rms_norm_eps = 1e-6, rope_theta = 10000, max_position_embeddings = o.context or 4096,
    tie_word_embeddings = false }
  for key, value in pairs(o.config or {}) do config[key] = value end
  return assert(models.assemble(assert(perigee.weights.synthetic(list)), config, { path = "tiny" }))
end

return tiny
