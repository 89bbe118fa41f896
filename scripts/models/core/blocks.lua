-- blocks: parts that several architectures share: gated MLPs, mixtures of experts, latent
-- attention.
--
-- m is a module, say p "mlp"; m "gate_proj" is a module inside it. The layout of a file (fused or
-- separate matrices, stacked or single experts) is recognized by its tensor names.
local config = require "models.core.config"

local blocks = {}

-- ---- MLP ----------------------------------------------------------------------------------------

--- Names of the matrices of an MLP: in most models, in models that number them, in MLX files with
--- experts of two matrices.
local roles = {
  gate = { "gate_proj", "w1" }, up = { "up_proj", "w3", "fc1" },
  down = { "down_proj", "w2", "output_linear", "fc2" },
}
local fused = { "gate_up_proj", "input_linear" }

local function first_of(m, names)
  for _, name in ipairs(names) do
    local w = m(name)
    if w:exists() then return w end
  end
end

local function silu_gate(g)
  return function(gate, up) return g:silu(gate) * up end
end

--- The upper and the lower half of the rows of a matrix.
local function halves(w)
  local _, rows = w:shape()
  return w:rows(1, { count = rows // 2 }), w:rows(rows // 2 + 1)
end

--- Checks the MLPs of layers against intermediate_size; experts and other MLPs have their own
--- widths. Some models double the width in part of their layers.
local function expect_width(g, w, times)
  local width = g.config.intermediate_size
  if math.type(width) ~= "integer" or not w.path:match "layers%.%d+%.mlp%.[%w_]+$" then return end
  local _, rows = w:shape()
  if rows == 2 * times * width then return end
  w:expect({ times * width }, ("intermediate_size %d"):format(width))
end

--- down(activation(gate, up)) of x; gate and up may be one matrix, gate first. The default
--- activation is silu(gate) * up.
function blocks.mlp(g, x, m, activation)
  activation = activation or silu_gate(g)
  local gate, up
  local both = first_of(m, fused)
  if both then expect_width(g, both, 2) end
  if both and both:exists "bias" then
    local y = g:linear(x, both)
    gate, up = g:split(y, { y:width() // 2, y:width() // 2 })
  elseif both then
    local first, second = halves(both)
    gate = g:linear(x, first):named(both.path .. ".gate")
    up = g:linear(x, second):named(both.path .. ".up")
  else
    local w = first_of(m, roles.gate) or m "gate_proj"
    expect_width(g, w, 1)
    gate = g:linear(x, w)
    up = g:linear(x, first_of(m, roles.up) or m "up_proj")
  end
  return g:linear(activation(gate, up), first_of(m, roles.down) or m "down_proj")
end

-- ---- experts ------------------------------------------------------------------------------------

--- The matrices of one role, one per expert: stacked (switch_mlp.gate_proj, experts.gate_proj), or
--- one by one (experts.7.gate_proj).
local function stacked(g, m, role, count)
  for _, place in ipairs { m "switch_mlp", m "experts", m "experts.switch_glu", m } do
    local w = first_of(place, roles[role])
    if w then return w end
  end
  local list = {}
  for e = 1, count do
    local expert = m(("experts.%d"):format(e - 1))
    list[e] = first_of(expert, roles[role])
    if not list[e] then -- g:stack names it; the count may be any number of a config
      list[e] = expert(roles[role][1])
      break
    end
  end
  return g:stack(list)
end

--- Gate and up of the chosen experts when one matrix holds both: half of its rows each or, when
--- interleaved, alternating rows.
local function both_of(g, x, w, o)
  if not (o.transposed or o.interleaved) then
    local first, second = halves(w)
    return g:expert_linear(x, first, o):named(w.path .. ".gate"),
      g:expert_linear(x, second, o):named(w.path .. ".up")
  end
  local y = g:expert_linear(x, w, o)
  local chosen, half = y:shape()[1], y:shape()[2] // 2
  if not o.interleaved then return g:split_heads(y, { half, half }) end
  local gate, up = g:split_heads(g:reshape(y, { chosen, half, 2 }), { 1, 1 })
  return g:reshape(gate, { chosen, half }), g:reshape(up, { chosen, half })
end

--- Runs x through the experts of m that the route chose; weights and sums the results. o: route,
--- count (of experts), activation(gate, up), transposed (matrices are [in, out]), interleaved (gate
--- and up alternate in one matrix), gated (false: experts of two matrices; activation(nil, up)).
function blocks.experts(g, x, m, o)
  local activation = o.activation or silu_gate(g)
  local both = first_of(m "experts", fused) or first_of(m, fused)
  local gate, up
  if both then
    gate, up = both_of(g, x, both, o)
  else
    local w = o.gated ~= false and stacked(g, m, "gate", o.count)
    gate = w and g:expert_linear(x, w, o) or nil
    up = g:expert_linear(x, stacked(g, m, "up", o.count), o)
  end
  local y = g:expert_linear(activation(gate, up), stacked(g, m, "down", o.count), o)
  return g:expert_sum(y, o.route)
end

--- A mixture of experts with its router (o.router, by default m "gate") and, if the file has them,
--- the experts that all tokens share. o: options of g:route and blocks.experts.
function blocks.moe(g, x, m, o)
  local router, experts = o.router or m "gate", g.config.experts
  if experts then router:expect({ experts }, ("%d experts"):format(experts)) end
  local logits = g:linear(x, router)
  local y = blocks.experts(g, x, m, { route = g:route(logits, o), count = logits:width(),
    activation = o.activation, transposed = o.transposed, interleaved = o.interleaved })
  local shared = first_of(m, { "shared_experts.down_proj" }) and m "shared_experts"
    or first_of(m, { "shared_expert.down_proj" }) and m "shared_expert"
  if not shared then return y end
  local s = blocks.mlp(g, x, shared, o.activation)
  local gate = m "shared_expert_gate"
  if gate:exists() then s = s * g:sigmoid(g:linear(x, gate)) end
  return y + s
end

--- Routing of DeepSeek-V3 and its successors: sigmoid scores, a bias that affects only the choice,
--- and only experts of the best groups.
function blocks.group_route(c, m)
  return {
    kind = "sigmoid", bias = m "gate":tensor "e_score_correction_bias", eps = 1e-20,
    chosen = c.num_experts_per_tok or c.num_experts_per_token,
    normalize = c.norm_topk_prob or c.moe_renormalize, scale = c.routed_scaling_factor,
    groups = c.n_group or c.num_expert_group, groups_kept = c.topk_group,
  }
end

-- ---- latent attention ---------------------------------------------------------------------------

--- The matrices from a head's queries to the latent and from the latent to its values: separate in
--- MLX files, otherwise the two parts of kv_b_proj. Third: are they stored as [in, out]?
local function absorbed(c, a)
  if a "embed_q":exists() then return a "embed_q", a "unembed_out", false end
  local both = a "kv_b_proj":split(c.heads)
  return both:rows(1, { count = c.qk_nope_head_dim }),
    both:rows(c.qk_nope_head_dim + 1, { count = c.v_head_dim }), true
end

--- YaRN's temperature correction. It applies to the whole score, not only to its rope part.
local function yarn_scale(spec)
  local all = spec and spec.kind ~= "default" and spec.mscale_all_dim or 0
  if all == 0 or (spec.factor or 1) <= 1 then return 1 end
  return (0.1 * all * math.log(spec.factor) + 1) ^ 2
end

--- Multi-head latent attention, in the absorbed form for every row: the cache holds one head of
--- [latent | rotated key], and its first part also serves as the values. a: p "self_attn". rope: a
--- spec, nil for the config's, or false for none.
function blocks.latent_attention(g, x, a, rope)
  local c = g.config
  config.needs(c, { "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim" })
  local norm = { eps = 1e-6 } -- the reference uses its default here, not the config's eps
  if rope == nil then rope = config.rope(c, { dims = c.qk_rope_head_dim }) end
  local function rotate(y)
    return rope and g:rope(y, rope, { pairs = c.rope_interleave ~= false }) or y
  end

  local q
  if a "q_a_proj":exists() then
    q = g:linear(g:rms_norm(g:linear(x, a "q_a_proj"), a "q_a_layernorm", norm), a "q_b_proj")
  else
    q = g:linear(x, a "q_proj")
  end
  q = g:heads(q, c.heads, { dim = c.qk_nope_head_dim + c.qk_rope_head_dim })
  local q_plain, q_rope = g:split_heads(q, { c.qk_nope_head_dim, c.qk_rope_head_dim })
  local kv = g:linear(x, a "kv_a_proj_with_mqa")
  local latent, k_rope = g:split(kv, { c.kv_lora_rank, c.qk_rope_head_dim })
  latent = g:rms_norm(latent, a "kv_a_layernorm", norm)

  local to_latent, to_values, transposed = absorbed(c, a)
  local y = g:attention {
    q = g:concat { g:head_linear(q_plain, to_latent, { transposed = transposed }), rotate(q_rope) },
    k = g:concat { latent, rotate(k_rope) },
    value = c.kv_lora_rank,
    scale = (c.qk_nope_head_dim + c.qk_rope_head_dim) ^ -0.5 * yarn_scale(rope),
  }
  return g:linear(g:head_linear(y, to_values), a "o_proj")
end

return blocks
