-- kernels: do the kernels of this processor compute what the scalar ones do? Small models with
-- random weights run with every version that this machine has, in both precisions. All versions
-- do the same arithmetic (kernels/cpu/prim.h, int16.h), so logits must be equal bit for bit. Metal
-- sums in an order of its own, and is near.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local models = require "models"
local shapes = require "cmd.bench.shapes"
local uv = require "luv"

local kernels = {}

-- The tile instructions sum in an order of their own, so `fast` with them is only near: the mean
-- difference by the mean magnitude of logits. tests/c/test_plan.c has the same bound.
local NEAR = 2e-4
-- Of Metal, which has float32 values in both precisions: they differ from `exact` by the order of
-- sums, and from `fast` by what that rounds.
local METAL_NEAR = 2e-2

-- ---- what runs ----------------------------------------------------------------------------------

--- A text config: what all shapes below have, and more.
local function config(more)
  local c = { hidden_size = 256, num_hidden_layers = 2, num_attention_heads = 8,
    num_key_value_heads = 1, head_dim = 64, intermediate_size = 256, vocab_size = 300,
    rms_norm_eps = 1e-6, norm_eps = 1e-6, rope_theta = 1e4, max_position_embeddings = 4096,
    tie_word_embeddings = true }
  for key, value in pairs(more) do c[key] = value end
  return c
end

-- Widths are multiples of 256, the largest block of weights; the vocabulary ends inside a panel.
local DENSE = { "llama", 256, 1, 4, 2, 64, 256, 300, true }
local MORE = {
  { "short convolution", { "lfm2", config { conv_L_cache = 3, conv_bias = false, head_dim = 32,
    block_auto_adjust_ff_dim = false, layer_types = perigee.json.array { "conv",
      "full_attention" } } } },
  { "Mamba 2", { "granitemoehybrid", config { shared_intermediate_size = 512, head_dim = 32,
    num_local_experts = 0, num_experts_per_tok = 0, mamba_n_heads = 16, mamba_d_head = 32,
    mamba_n_groups = 1, mamba_d_state = 64, mamba_d_conv = 4, mamba_expand = 2,
    layer_types = perigee.json.array { "mamba", "attention" } } } },
  { "experts", { "qwen3_moe", config { num_hidden_layers = 1, moe_intermediate_size = 256,
    num_experts = 8, num_experts_per_tok = 2, norm_topk_prob = true } } },
  { "latent attention", { "deepseek_v3", config { moe_intermediate_size = 256,
    num_key_value_heads = 8, n_routed_experts = 8, n_shared_experts = 1, num_experts_per_tok = 2,
    n_group = 1, topk_group = 1, norm_topk_prob = false, routed_scaling_factor = 1.0,
    first_k_dense_replace = 1, kv_lora_rank = 256, qk_nope_head_dim = 64, qk_rope_head_dim = 32,
    v_head_dim = 64 } } },
  { "delta rule", { text = config { linear_num_key_heads = 2, linear_num_value_heads = 4,
    linear_key_head_dim = 64, linear_value_head_dim = 64, linear_conv_kernel_dim = 4,
    full_attention_interval = 2 } } },
}
local KINDS = { "f32", "f16", "bf16", "affine2g32", "affine2g64", "affine3g64", "affine4g32",
  "affine4g64", "affine4g128", "affine5g64", "affine6g64", "affine8g64", "mxfp4", "mxfp8", "nvfp4",
  "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl",
  "iq4_xs" }

--- The cases: name, shape, kind, options of the engine.
local function cases()
  local list = {}
  local function add(name, shape, kind)
    for _, options in ipairs { { precision = "exact" }, { precision = "fast" } } do
      list[#list + 1] = { ("%s, %s"):format(name, options.precision), shape, kind, options }
    end
  end
  for _, kind in ipairs(KINDS) do add(kind, DENSE, kind) end
  for _, more in ipairs(MORE) do add(more[1], more[2], "affine4g64") end
  for _, bits in ipairs { 8, 4 } do
    list[#list + 1] = { ("KV cache of %d bits"):format(bits), DENSE, "affine4g64",
      { precision = "fast", kv_bits = bits } }
  end
  return list
end

-- ---- running ------------------------------------------------------------------------------------

-- A prompt in two steps, the second of which sees the first in the cache, and a token more. 17 is
-- one row more than the largest tile has.
local STEPS = { 17, 3, 1 }

--- The logits of all rows, one tensor per step. One thread: with more, such small models mostly
--- wait.
local function logits(case, device)
  local _, shape, kind, options = table.unpack(case)
  local weights, parsed = shapes.make(shape, kind)
  local model = assert(models.assemble(assert(weights, parsed), parsed, { path = case[1] }))
  local engine <close> = assert(perigee.engine.open(model.graph, { threads = 1, tokens = 64,
    precision = options.precision, kv_bits = options.kv_bits, device = device or "cpu" }))
  local seq, out = assert(engine:add()), {}
  for i, n in ipairs(STEPS) do
    assert(engine:step { { seq = seq, ids = common.ids(n, engine.id_limit, i), outputs = n } })
    out[i] = engine:logits():copy()
  end
  return out
end

--- run(case) with PERIGEE_ISA=version, or without it. It is restored, whatever happens.
local function with_version(version, run, case, device)
  local before = uv.os_getenv "PERIGEE_ISA"
  local function set(value)
    if value then uv.os_setenv("PERIGEE_ISA", value) else uv.os_unsetenv "PERIGEE_ISA" end
  end
  set(version)
  local ok, result = pcall(run, case, device)
  set(before)
  if not ok then
    error(("kernels %s, %s: %s"):format(device or version or "tiles", case[1], result), 0)
  end
  return result
end

--- How far two lists of logits are apart: 0 for the same bits; not a number is infinitely far.
function kernels.distance(a, b)
  local same, apart, size = true, 0, 0
  for i, x in ipairs(a) do
    same = same and x:bytes() == b[i]:bytes()
    apart = apart + x:sub(b[i]):abs():sum()
    size = size + b[i]:abs():sum()
  end
  if same and size == size and size > 0 then return 0 end
  local far = apart / size
  return far == far and far > 0 and far or math.huge
end

--- What is compared: name, the value of PERIGEE_ISA (nil: without it), lines about what differs.
--- Tiles have no name of their own there, but any name turns them off.
local function versions_of(machine)
  local list = {}
  local function add(name, isa) list[#list + 1] = { name = name, isa = isa, wrong = {} } end
  for _, name in ipairs(machine.kernels) do
    if name ~= "scalar" then add(name, name) end
  end
  for _, name in ipairs(machine.features) do
    if name == "amx_bf16" then add "tiles" end
  end
  if perigee.engine.device "metal" then
    list[#list + 1] = { name = "Metal", device = "metal", isa = "scalar", wrong = {} }
  end
  return list
end

--- Compares all versions with the scalar one. Returns a list of { name, wrong }, where wrong has a
--- line for each case that differs, and the number of cases. options: progress, called before each
--- case with its number and their count; logits: another way to run a case.
function kernels.check(options)
  local list, versions = cases(), versions_of(perigee.sys.machine())
  local run = options.logits or logits
  for i, case in ipairs(list) do
    if options.progress then options.progress(i, #list) end
    local right = with_version("scalar", run, case)
    for _, v in ipairs(versions) do
      local far = kernels.distance(with_version(v.isa, run, case, v.device), right)
      local fast = case[4].precision == "fast"
      local most = v.device and METAL_NEAR or not v.isa and fast and NEAR or 0
      if far > most then v.wrong[#v.wrong + 1] = ("%s differs by %.1e"):format(case[1], far) end
    end
  end
  return versions, #list
end

return kernels
