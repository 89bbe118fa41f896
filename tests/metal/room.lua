-- room.lua - experts whose first halves lie where the logits of their router were: the plan gives
-- that memory to the next value that fits. Then they must not choose for themselves while others
-- write. Compared with the CPU; PERIGEE_METAL=... perigee run tests/metal/room.lua
local models = require "models"
local perigee = require "perigee"

local WIDTH, HEADS, DIM, EXPERTS = 64, 4, 16, 64
local IDS = { 3, 9, 1, 4, 1, 5, 9, 2, 6 }
local BOUND = 1e-3 -- of logits of a few tenths; experts of another choice move them by more

--- Qwen 3 with two layers of experts, `ff` wide, of which a token takes `chosen`.
local function graph_of(chosen, ff)
  local list = {}
  local function add(name, shape)
    list[#list + 1] = { name = name .. ".weight", shape = shape, kind = "bf16" }
  end
  add("model.embed_tokens", { 256, WIDTH })
  add("model.norm", { WIDTH })
  for i = 0, 1 do
    local p = ("model.layers.%d."):format(i)
    for _, name in ipairs { "input_layernorm", "post_attention_layernorm" } do
      add(p .. name, { WIDTH })
    end
    for _, name in ipairs { "q_proj", "k_proj", "v_proj", "o_proj" } do
      add(p .. "self_attn." .. name, { WIDTH, WIDTH })
    end
    add(p .. "self_attn.q_norm", { DIM })
    add(p .. "self_attn.k_norm", { DIM })
    add(p .. "mlp.gate", { EXPERTS, WIDTH })
    for e = 0, EXPERTS - 1 do
      local expert = p .. ("mlp.experts.%d."):format(e)
      add(expert .. "gate_proj", { ff, WIDTH })
      add(expert .. "up_proj", { ff, WIDTH })
      add(expert .. "down_proj", { WIDTH, ff })
    end
  end
  local config = { model_type = "qwen3_moe", hidden_size = WIDTH, num_hidden_layers = 2,
    num_attention_heads = HEADS, num_key_value_heads = HEADS, head_dim = DIM,
    num_experts = EXPERTS, num_experts_per_tok = chosen, moe_intermediate_size = ff,
    intermediate_size = ff, norm_topk_prob = true, rms_norm_eps = 1e-6, rope_theta = 10000,
    max_position_embeddings = 64, tie_word_embeddings = true }
  return assert(models.assemble(assert(perigee.weights.synthetic(list)), config,
    { path = "room" })).graph
end

--- The logits of all tokens, `chunk` of them in a step.
local function logits_of(graph, device, chunk)
  local engine <close> = assert(perigee.engine.open(graph,
    { threads = 1, tokens = 64, sequences = 1, device = device }))
  local seq, out = engine:add(), {}
  for i = 1, #IDS, chunk do
    local ids = table.move(IDS, i, i + chunk - 1, 1, {})
    engine:step { { seq = seq, ids = ids, outputs = #ids } }
    out[#out + 1] = engine:logits()
  end
  return perigee.tensor.concat(out)
end

local passed, failed = 0, 0
for _, shape in ipairs { { 2, 32 }, { 4, 16 }, { 2, 16 }, { 3, 32 } } do
  local graph = graph_of(shape[1], shape[2])
  local want = logits_of(graph, "cpu", #IDS)
  for chunk = 1, 3, 2 do
    local off = (logits_of(graph, "metal", chunk) - want):abs():max()
    local ok = off < BOUND and want:abs():max() > 10 * BOUND
    passed, failed = passed + (ok and 1 or 0), failed + (ok and 0 or 1)
    if not ok then
      print(("FAIL room: %d experts of %d, logits are off by %g"):format(shape[1], shape[2], off))
    end
  end
end
print(("room: %d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
