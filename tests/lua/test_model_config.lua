-- models.core: configs in all their dialects, positions on three axes, metadata of GGUF files.
local config = require "models.core.config"
local gguf = require "models.core.gguf"
local mrope = require "models.core.mrope"
local perigee = require "perigee"
local test = require("harness").test
local tower = require "models.core.tower"
local vision = require "models.vision"
local json = perigee.json

--- A config of this JSON text.
local function of(source, defaults) return config.new(assert(json.decode(source)), defaults) end

test("where a value comes from", function(t)
  local c = of('{"a": 1, "b": 2, "c": null, "text_config": {"a": 3, "c": 4, "d": null}}',
    { a = 5, d = 6, e = 7 })
  t.eq({ c.a, c.b, c.c, c.d, c.e, c.f }, { 3, 2, 4, 6, 7 })
  t.eq(of('{"llm_config": {"a": 1}}').a, 1)
  t.eq({ config.object(json.object()) ~= nil, config.object { 1 }, config.object(1) }, { true })
  t.raises(function() config.need(c, "x") end, "config: x is missing")
  t.raises(function() config.needs(c, { "a", "y" }) end, "config: y is missing")
  config.check(c, { "a", "x" })
end)

test("every kind of value, at its limits", function(t)
  local function get(key, text)
    local ok, v = pcall(function() return of(('{"%s": %s}'):format(key, text))[key] end)
    return v, ok
  end
  local function refused(key, text, kind)
    local why, ok = get(key, text)
    t.eq({ ok, why }, { false, ("config: %s must be %s, got %s"):format(key, kind, text) })
  end
  for _, n in ipairs { 1, 1 << 30 } do t.eq(get("hidden_size", n), n) end
  for _, n in ipairs { "0", "-1", tostring((1 << 30) + 1), "1.5", '"1"', "true" } do
    refused("hidden_size", n, "an integer of 1 or more")
  end
  t.eq(get("hidden_size", "2.0"), 2)
  t.eq(get("sliding_window", 0), 0)
  refused("sliding_window", "-1", "an integer of 0 or more")
  t.eq(get("rope_theta", 1.5), 1.5)
  refused("rope_theta", '"x"', "a number")
  t.eq({ get("truncate", false) }, { false, true })
  refused("truncate", "0", "true or false")
  t.eq(#get("layer_types", '["a", "b"]'), 2)
  refused("layer_types", '"a"', "a list")
  t.eq(#get("mlp_only_layers", "[0, 3]"), 2)
  refused("mlp_only_layers", "[-1]", "a list of integers")
  t.eq(#get("short_factor", "[0.5, 3]"), 2)
  refused("short_factor", '["a"]', "a list of numbers")
  t.eq(#get("time_step_limit", "[0, 3]"), 2)
  refused("time_step_limit", "[0, 1, 2]", "a list of two numbers")
  refused("linear_attn_config", "[]", "an object")
  refused("model_type", "1", "a string")
  t.eq(of('{"rope_theta": {"__float__": "Infinity"}}').rope_theta, math.huge)
  t.eq(of('{"rope_theta": {"__float__": "1.5"}}').rope_theta, 1.5)
  t.eq(of("{}", { mlp_only_layers = {} }).mlp_only_layers, {})
end)

test("values that are derived from others", function(t)
  local c = of '{"num_hidden_layers": 2, "hidden_size": 12, "num_attention_heads": 3}'
  t.eq({ c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.eps, c.vocab, c.experts },
    { 2, 12, 3, 3, 4, 1e-6 })
  c = of [[{"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_size": 8, "head_dim": 7, "layer_norm_epsilon": 0.5, "vocab_size": 9,
    "num_local_experts": 3, "model_max_length": 11}]]
  t.eq({ c.kv_heads, c.head_dim, c.eps, c.vocab, c.experts, c.max_position_embeddings },
    { 2, 7, 0.5, 9, 3, 11 })
  t.eq({ of('{"norm_eps": 2.5}').eps, of('{"rms_norm_eps": 3.5, "norm_eps": 2.5}').eps,
    of('{"n_routed_experts": 5}').experts, of('{"num_experts": 6}').experts }, { 2.5, 3.5, 5, 6 })
  t.eq(of('{"layers_block_type": ["a", "b", "c"]}').layers, 3)
  t.eq(of('{"hybrid_override_pattern": "M*-E"}').layers, 4)
  for _, n in ipairs { 1, 4096 } do t.eq(of(('{"num_hidden_layers": %d}'):format(n)).layers, n) end
  for _, n in ipairs { 0, 4097 } do
    t.raises(function() return of(('{"num_hidden_layers": %d}'):format(n)).layers end,
      ("config: layers must be between 1 and 4096, got %d"):format(n))
  end
  t.raises(function() return of("{}").layers end, "config: num_hidden_layers is missing")
  local limit = of('{"time_step_limit": [0.5, {"__float__": "Infinity"}]}').time_step
  t.eq(limit, { min = 0.5, max = math.huge })
  t.eq(of("{}").time_step, { min = 0, max = math.huge })
  t.eq(of('{"mamba_dt_limit": [1, 2]}').time_step, { min = 1, max = 2 })
end)

test("windows", function(t)
  local function window(more)
    return of(('{"num_hidden_layers": 4, "sliding_window": 9%s}'):format(more)).window
  end
  t.eq(window "", { 9, 9, 9, 9 })
  t.eq(window ', "use_sliding_window": false', { 0, 0, 0, 0 })
  t.eq(window ', "max_window_layers": 2', { 0, 0, 0, 0 })
  t.eq(window ', "max_window_layers": 2, "use_sliding_window": true', { 0, 0, 9, 9 })
  t.eq(window ', "layer_types": ["sliding_attention", "full_attention", "x", "sliding_attention"]',
    { 9, 0, 0, 9 })
  t.eq(config.window(of('{"num_hidden_layers": 3, "sliding_window": 9}'), function(i)
    return i % 2 == 0
  end), { 0, 9, 0 })
  t.eq(of('{"num_hidden_layers": 1}').window, { 0 })
end)

test("mixers", function(t)
  local function mixers(source) return table.concat(of(source).mixers, " ") end
  t.eq(mixers '{"num_hidden_layers": 2}', "full_attention full_attention")
  t.eq(mixers '{"layers_block_type": ["mamba", "attention", "conv"]}',
    "linear_attention full_attention conv")
  t.eq(mixers '{"num_hidden_layers": 1, "layer_types": ["x"]}', "x")
  t.eq(mixers '{"hybrid_override_pattern": "M*-EX"}',
    "linear_attention full_attention mlp moe X")
  t.eq(mixers '{"num_hidden_layers": 4, "full_attention_interval": 2}',
    "linear_attention full_attention linear_attention full_attention")
  t.eq(mixers '{"num_hidden_layers": 3, "full_attn_idxs": [1]}', "conv full_attention conv")
  t.eq(mixers '{"num_hidden_layers": 3, "linear_attn_config": {"full_attn_layers": [3]}}',
    "linear_attention linear_attention full_attention")
end)

local BASE = '{"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 100%s}'

test("ropes", function(t)
  local function rope(more, options) return config.rope(of(BASE:format(more)), options) end
  local plain = { kind = "default", dims = 16, turning = 16, theta = 10000.0, original = 100,
    max_position = 100 }
  t.eq(rope "", plain)
  local function with(changes)
    local out = {}
    for k, v in pairs(plain) do out[k] = v end
    for k, v in pairs(changes) do out[k] = v end
    return out
  end
  t.eq(rope ', "rope_theta": 5', with { theta = 5 })
  t.eq(rope("", { theta = 6.0 }), with { theta = 6.0 })
  t.eq(rope(', "rope_theta": 5', { theta = 6.0 }), with { theta = 6.0 })
  t.eq(rope(', "rope_parameters": {"rope_theta": 7}', { theta = 6.0 }), with { theta = 7 })
  t.eq(rope ', "partial_rotary_factor": 0.5', with { dims = 8, turning = 8 })
  t.eq(rope ', "partial_rotary_factor": 0', with { dims = 0, turning = 0 })
  t.eq(rope ', "partial_rotary_factor": 1', plain)
  for _, wrong in ipairs { "-0.5", "1.5" } do
    t.raises(function() rope(', "partial_rotary_factor": ' .. wrong) end,
      "config: partial_rotary_factor must be between 0 and 1, got " .. wrong)
  end
  t.eq(rope("", { dims = 4 }), with { dims = 4, turning = 4 })
  t.eq(rope("", { head_dim = 8 }), with { dims = 8, turning = 8 })
  t.eq(rope [[, "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 2, "mscale": 3,
    "original_max_position_embeddings": 25, "truncate": false}]], with { kind = "yarn", factor = 4,
    beta_fast = 2, mscale = 3, original = 25, truncate = false })
  t.eq(rope [[, "rope_scaling": {"rope_type": "llama3", "low_freq_factor": 1, "factor": 8,
    "high_freq_factor": 4}]], with { kind = "llama3", low_freq_factor = 1, high_freq_factor = 4,
    factor = 8 })
  t.eq(rope(', "rope_scaling": {"type": "yarn", "factor": 4}', { plain = true }), plain)
  t.eq(rope ', "rope_scaling": null', plain)
  for _, kind in ipairs { "longrope", "su" } do
    t.eq(rope((', "original_max_position_embeddings": 25, "rope_scaling": {"type": "%s", '
      .. '"short_factor": [1], "long_factor": [2]}'):format(kind)).factor, 4.0)
  end
  local two = ', "rope_parameters": {"full_attention": {"rope_type": "proportional", '
    .. '"partial_rotary_factor": 0.25}, "sliding_attention": {"rope_theta": 8}}'
  t.eq(rope(two, { kind = "full_attention" }), with { kind = "proportional", turning = 4 })
  t.eq(rope(two, { kind = "sliding_attention" }), with { theta = 8 })
  t.eq(rope(two, { kind = "sliding_attention", plain = true }), with { theta = 8 })
  local m = rope ', "rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}'
  t.eq({ m.sections, m.interleaved }, { json.array { 2, 3, 3 } })
  t.raises(function() rope ', "rope_scaling": {"mrope_section": [2, 3, 4]}' end,
    "config: mrope_section has 9 rotations, a head has 8")
  t.raises(function() rope ', "rope_scaling": {"mrope_section": [2, 3]}' end,
    "config: mrope_section must be three integers, got [2, 3]")
  local c = of(BASE:format ', "rope_parameters": {"llama_4_scaling_beta": 0.5}')
  t.eq({ c.query_rope.growth, c.query_rope.dims, c.rope.growth }, { 0.5, 16 })
  c = of(BASE:format ', "rope_parameters": {"llama_4_scaling_beta": 0}')
  t.ok(rawequal(c.query_rope, c.rope))
end)

test("positions of pictures", function(t)
  local c = of(BASE:format ', "rope_scaling": {"mrope_section": [2, 3, 3]}')
  local function axes(ids, media) return { mrope.positions(ids, media, c) } end
  t.eq(axes({ 7, 7, 7 }), { { { 0, 1, 2 }, { 0, 1, 2 }, { 0, 1, 2 } }, 0 })
  -- A picture of 2 x 3 tokens after two of text.
  t.eq(axes({ 7, 7, 9, 9, 9, 9, 9, 9, 7 }, { { at = 3, tokens = 6, grid = { 1, 4, 6 } } }),
    { { { 0, 1, 2, 2, 2, 2, 2, 2, 5 }, { 0, 1, 2, 2, 2, 3, 3, 3, 5 },
      { 0, 1, 2, 3, 4, 2, 3, 4, 5 } }, -3 })
  -- Two frames of 1 x 2 in one run, and the same with a token between them.
  t.eq(axes({ 9, 9, 9, 9, 7 }, { { at = 1, tokens = 4, grid = { 2, 2, 4 } } }),
    { { { 0, 0, 1, 1, 2 }, { 0, 0, 0, 0, 2 }, { 0, 1, 0, 1, 2 } }, -2 })
  t.eq(axes({ 9, 9, 7, 9, 9, 7 }, { { at = 1, tokens = 4, grid = { 2, 2, 4 } } }),
    { { { 0, 0, 2, 3, 3, 5 }, { 0, 0, 2, 3, 3, 5 }, { 0, 1, 2, 3, 4, 5 } }, 0 })
  t.raises(function() axes({ 9 }, { { at = 1, tokens = 1, grid = { 1, 2 } } }) end,
    "media: grid must be {t, h, w}")
  c = of(BASE:format(', "rope_scaling": {"mrope_section": [2, 3, 3]}, '
    .. '"vision_config": {"spatial_merge_size": 1, "tokens_per_second": 4}'))
  t.eq(axes({ 9, 9, 7 }, { { at = 1, tokens = 2, grid = { 2, 1, 1 }, seconds_per_grid = 1.2 } }),
    { { { 0, 4, 5 }, { 0, 0, 5 }, { 0, 0, 5 } }, 3 })
  t.eq(axes({ 9, 9, 7 }, { { at = 1, tokens = 2, grid = { 2, 1, 1 } } }),
    { { { 0, 1, 2 }, { 0, 0, 2 }, { 0, 0, 2 } }, 0 })
  t.eq(mrope.positions({ 1 }, nil, of(BASE:format "")), nil)
end)

test("parts of towers", function(t)
  t.eq(tower.rope("grid", 32), { kind = "grid", dims = 32, theta = 10000.0,
    sections = { 8, 8, 0 } })
  t.eq(tower.rope("grid_turns", 16, 5.0).theta, 5.0)
  local g = setmetatable({}, { __index = function(_, op)
    return function(_, x) return op .. x end
  end })
  for name, op in pairs { gelu = "gelu", gelu_pytorch_tanh = "gelu_tanh",
    quick_gelu = "gelu_quick", silu = "silu" } do
    t.eq(tower.activation(g, name) "!", op .. "!")
  end
  t.raises(function() tower.activation(g, "relu") end, "config: unknown activation 'relu'")
end)

test("a tower that is missing or cannot be built leaves no graph open", function(t)
  local parsed = assert(json.decode '{"model_type": "gemma3", "vision_config": {}}')
  local function build(names, config_of)
    local list = {}
    for i, name in ipairs(names) do list[i] = { name = name, shape = { 2, 4 }, kind = "f32" } end
    local weights <close> = assert(perigee.weights.synthetic(list))
    collectgarbage()
    collectgarbage "stop" -- it is closed, not collected
    local before = (perigee.live())["perigee.Graph"] or 0
    local made, why = vision.build(weights, config_of or parsed)
    local after = (perigee.live())["perigee.Graph"] or 0
    collectgarbage "restart"
    return { made, why and tostring(why):match "[^:]*$", after - before }
  end
  t.eq(build { "model.norm.weight" }, { nil, nil, 0 })
  t.eq(build({ "model.norm.weight" }, json.decode '{"model_type": "llama", "vision_config": {}}'),
    { nil, nil, 0 })
  t.eq(build({ "vision_tower.x.weight" }, json.decode '{"model_type": "gemma3"}'), { nil, nil, 0 })
  local broken = build { "vision_tower.x.weight" }
  t.ok(not broken[1] and broken[2] and broken[3] == 0, tostring(broken[2]))
end)

test("metadata of GGUF files", function(t)
  local weights = { find = function(_, name)
    if name == "token_embd.weight" then return { shape = { 99, 8 } } end
  end }
  local function read(arch, more)
    local meta = { ["general.architecture"] = arch }
    for k, v in pairs(more or {}) do meta[arch .. "." .. k] = v end
    return gguf.config(meta, weights)
  end
  local c = read("llama", { ["attention.head_count"] = 4, embedding_length = 32, block_count = 2,
    ["rope.dimension_count"] = 4, context_length = 128, feed_forward_length = 64 })
  t.eq({ c.model_type, c.num_hidden_layers, c.hidden_size, c.num_attention_heads,
    c.num_key_value_heads, c.head_dim, c.rope_theta, c.partial_rotary_factor, c.vocab_size,
    c.max_position_embeddings, c.intermediate_size, c.query_pre_attn_scalar, c.norm_topk_prob,
    c.rope_scaling }, { "llama", 2, 32, 4, 4, 8, 10000.0, 0.5, 99, 128, 64, 8, true })
  c = read("gemma3", { ["attention.head_count"] = 4, embedding_length = 40, block_count = 62,
    ["attention.key_length"] = 16, ["attention.head_count_kv"] = 2, ["rope.freq_base"] = 5.0,
    ["attention.sliding_window_pattern"] = { true, false } })
  t.eq({ c.model_type, c.query_pre_attn_scalar, c.head_dim, c.num_key_value_heads, c.rope_theta,
    c.layer_types, c.partial_rotary_factor },
    { "gemma3_text", 10, 16, 2, 5.0, { "sliding_attention", "full_attention" }, 1.0 })
  t.eq(read("gemma3", { ["attention.sliding_window_pattern"] = 6 }).sliding_window_pattern, 6)
  t.eq(read("llama", { ["attention.head_count"] = 0, embedding_length = 40 }).head_dim, nil)
  t.eq(read("llama", { ["rope.dimension_count"] = 4 }).partial_rotary_factor, 4)
  t.eq(read("llama", { ["rope.scaling.type"] = "none" }).rope_scaling, nil)
  local scaling = read("qwen2", { ["rope.scaling.type"] = "yarn", ["rope.scaling.factor"] = 4.0,
    ["rope.scaling.original_context_length"] = 7, ["rope.scaling.yarn_beta_fast"] = 8.0,
    ["rope.scaling.yarn_beta_slow"] = 9.0, ["rope.scaling.attn_factor"] = 0.5 }).rope_scaling
  t.eq(json.encode(scaling), '{"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.5, '
    .. '"original_max_position_embeddings": 7, "beta_fast": 8.0, "beta_slow": 9.0}')
  for arch, kind in pairs { llama = "llama", qwen2 = "qwen2", qwen3 = "qwen3",
    qwen3moe = "qwen3_moe", gemma3 = "gemma3_text" } do
    local got = read(arch)
    t.eq({ got.model_type, got.gguf.pairs }, { kind, arch == "llama" or nil })
  end
  t.eq(select(2, read "x"),
    "unknown GGUF architecture 'x' (known: gemma3, llama, qwen2, qwen3, qwen3moe)")
  local spell = read("gemma3").spell
  t.eq({ spell("model.layers.3.mlp.gate_proj", "weight")[1],
    spell("model.layers.0.post_attention_layernorm", "weight")[1], spell("model.norm", "")[1],
    read("llama").spell("model.layers.0.post_attention_layernorm", "weight")[1] },
    { "blk.3.ffn_gate.weight", "blk.0.post_attention_norm.weight", "output_norm",
      "blk.0.ffn_norm.weight" })
end)

-- ---- what builds do with their config -----------------------------------------------------------

--- A builder that writes down what it is told, one line for each value. has(path): is this tensor
--- in the file? Returns also a function that shows a value, and the lines.
local function recorder(c, has)
  local lines = {}
  local Value, Weight, show = {}, {}, nil
  Value.__index, Weight.__index = Value, Weight
  local function value(words)
    lines[#lines + 1] = words
    return setmetatable({ words = "v" .. #lines }, Value)
  end
  function show(x)
    if getmetatable(x) == Value then return x.words end
    if getmetatable(x) == Weight then return x.path end
    if type(x) ~= "table" then return type(x) == "function" and "function" or tostring(x) end
    local list = {}
    for k, v in pairs(x) do list[#list + 1] = tostring(k) .. "=" .. show(v) end
    table.sort(list)
    return "{" .. table.concat(list, ",") .. "}"
  end
  for name, sign in pairs { __add = "+", __sub = "-", __mul = "*", __div = "/" } do
    Value[name] = function(a, b) return value(("(%s %s %s)"):format(show(a), sign, show(b))) end
  end
  function Value.width() return 64 end
  function Value.shape() return { 4, 16 } end
  function Value:named() return self end
  local function weight(path) return setmetatable({ path = path }, Weight) end
  function Weight:exists(tensor) return has(tensor and self.path .. "." .. tensor or self.path) end
  function Weight.shape() return 1, 64, 64, false end
  function Weight:tensor(name) return weight(self.path .. "." .. name) end
  function Weight.expect() end
  Weight.__call = function(w, name) return weight(w.path .. "." .. name) end
  for _, name in ipairs { "rows", "split", "permuted", "flattened" } do
    Weight[name] = function(w, ...) return weight(w.path .. name .. show { ... }) end
  end
  local g = { config = c, norm_offset = 0 }
  function g.weight(_, path) return weight(path) end
  function g.either(_, a) return a end
  function g.layers(_, path, count)
    local i = 0
    return function()
      i = i + 1
      if i <= (count or c.layers) then return i, weight(("%s.%d"):format(path, i - 1)) end
    end
  end
  local function parts(_, x, sizes)
    local list = {}
    for i, size in ipairs(sizes) do list[i] = value(("%s[%d:%s]"):format(show(x), i, size)) end
    return table.unpack(list)
  end
  g.split, g.split_heads = parts, parts
  function g.attention(_, o) return value("attention" .. show(o)), 7 end
  return setmetatable(g, { __index = function(_, op)
    return function(_, ...)
      local n, list = select("#", ...), { ... }
      for i = 1, n do list[i] = show(list[i]) end
      return value(op .. "(" .. table.concat(list, ",") .. ")")
    end
  end }), show, lines
end

--- What an architecture or a tower builds of this config, as text.
local function built(module, parsed, o)
  local a = require(module)
  local c = config.new(assert(json.decode(json.encode(parsed))), a.defaults)
  local g, show, lines = recorder(c, o.has or function() return true end)
  local y, spec = a.build(g, c, config.new(assert(json.decode(json.encode(o.whole or {})))))
  return table.concat(lines, "\n") .. show { y, spec }
end

local TEXT = { hidden_size = 64, num_hidden_layers = 4, num_attention_heads = 4,
  num_key_value_heads = 2, head_dim = 16, vocab_size = 99, max_position_embeddings = 128,
  num_experts = 4, num_experts_per_tok = 2, sliding_window = 8, rms_norm_eps = 1e-5 }
local TOWER = { hidden_size = 64, num_hidden_layers = 2, num_attention_heads = 4, patch_size = 4,
  image_size = 16, num_channels = 3, num_patches = 16 }
local full, slides = "full_attention", "sliding_attention"

-- The module, the key, its default and other values that count; more keys that are given.
local KEYS = {
  { "vision.lfm2_vl", "downsample_factor", 2, { 3 }, whole = true },
  { "vision.lfm2_vl", "projector_hidden_act", "gelu", { "silu" }, whole = true },
  { "vision.pixtral", "spatial_merge_size", 2, { 3 }, whole = true },
  { "vision.pixtral", "projector_hidden_act", "gelu", { "silu" }, whole = true },
  { "vision.gemma3", "mm_tokens_per_image", 256, { 4 }, whole = true, more = { image_size = 64 } },
  { "qwen3", "decoder_sparse_step", 1, { 2, 3 } },
  { "qwen3", "mlp_only_layers", json.array(), { { 0 }, { 3 } } },
  { "gpt_oss", "layer_types", { slides, full, slides, full }, { { full, full, full, full } } },
  { "gpt_oss", "swiglu_alpha", 1.702, { 2 } }, { "gpt_oss", "swiglu_limit", 7.0, { 8 } },
  { "gemma4", "pad_token_id", 0, { 5 }, more = { hidden_size_per_layer_input = 8 } },
  { "gemma4", "hidden_size_per_layer_input", 0, { 8 } },
  { "gemma4", "num_kv_shared_layers", 0, { 1 },
    more = { layer_types = { full, full, full, full } } },
  { "gemma4", "layer_types", { slides, slides, slides, slides, slides, full, full },
    { { slides, slides, slides, slides, slides, slides, full } },
    more = { num_hidden_layers = 7 } },
  { "gemma4", "use_bidirectional_attention", "none", { "vision" } },
  { "gemma4", "final_logit_softcapping", json.null, { 30 } },
  { "glm4_moe", "first_k_dense_replace", 0, { 1, 2 } },
  { "glm4_moe", "use_qk_norm", false, { true } }, { "minimax_m2", "use_qk_norm", true, { false } },
  { "olmo3", "layer_types", { slides, slides, slides, full }, { { full, slides, slides, full } } },
  { "olmo3", "rope_theta", 500000.0, { 10000.0 } },
  { "smollm3", "no_rope_layer_interval", 4, { 2, 3 } },
  { "smollm3", "no_rope_layers", { 1, 1, 1, 0 }, { { 1, 0, 1, 0 } } },
  { "smollm3", "rope_theta", 2000000.0, { 10000.0 } },
  { "smollm3", "use_sliding_window", false, { true } },
  { "gemma3", "sliding_window_pattern", 6, { 2, 4 } },
  { "gemma3", "query_pre_attn_scalar", 256, { 64 } },
  { "gemma3", "rope_local_base_freq", 10000.0, { 5.0 } },
  { "gemma3", "rope_theta", 1000000.0, { 5.0 }, more = { sliding_window_pattern = 2 } },
  { "lfm2", "rope_theta", 1000000.0, { 5.0 } },
  { "gpt_oss", "rope_theta", 150000.0, { 5.0 } },
  { "granitemoehybrid", "residual_multiplier", 1, { 2 } },
  { "granitemoehybrid", "embedding_multiplier", 1, { 2 } },
  { "granitemoehybrid", "attention_multiplier", 1, { 2 } },
  { "granitemoehybrid", "logits_scaling", 1, { 2 } },
  { "granitemoehybrid", "position_embedding_type", "nope", { "rope" } },
}

test("keys that are left out have their defaults, and others count", function(t)
  t.unforced() -- nothing of C is involved
  for _, case in ipairs(KEYS) do
    local module, key, default, others = table.unpack(case, 1, 4)
    local function with(value)
      local parsed, whole = {}, {}
      for k, v in pairs(module:find "^vision" and TOWER or TEXT) do parsed[k] = v end
      for k, v in pairs(case.more or {}) do parsed[k] = v end
      if case.whole then whole[key] = value else parsed[key] = value end
      return built("models." .. module, parsed, { whole = whole })
    end
    local plain = with(nil)
    t.eq(with(default) == plain, true, module .. ": " .. key)
    for _, other in ipairs(others) do
      t.eq(with(other) == plain, false, ("%s: %s %s"):format(module, key, json.encode(other)))
    end
  end
end)

test("a model that is not built leaves no graph open", function(t)
  local models = require "models"
  local weights <close> = assert(perigee.weights.synthetic {
    { name = "model.embed_tokens.weight", shape = { 99, 64 }, kind = "f32" } })
  collectgarbage()
  collectgarbage "stop"
  local before = (perigee.live())["perigee.Graph"] or 0
  local parsed = assert(json.decode(json.encode(TEXT)))
  parsed.model_type = "llama"
  local none, why = models.assemble(weights, parsed, { path = "here" })
  local after = (perigee.live())["perigee.Graph"] or 0
  collectgarbage "restart"
  t.eq({ none, after - before }, { nil, 0 })
  t.eq(why, "here: missing tensor model.layers.0.input_layernorm.weight")
  parsed.model_type = nil
  t.eq({ models.assemble(weights, parsed, { path = "here" }) },
    { nil, "here: the config has no model_type" })
end)

test("a file that is no architecture hides only its own names", function(t)
  local models = require "models"
  local real = require "models.qwen3"
  t.patch(package.loaded, "models.qwen3", 5)
  for _, name in ipairs { "qwen3", "qwen3_moe", "qwen3_vl_moe_text" } do
    t.eq({ models.find(name) }, { nil, "models/qwen3.lua: returns a number, not a table" }, name)
  end
  t.eq(models.find("llama") ~= nil, true)
  package.loaded["models.qwen3"] = real
  t.eq(models.find("qwen3_moe"), real)
  t.match(select(2, models.find("qwen4")), "^unknown architecture 'qwen4' %(known: deepseek_v3, ")
end)
