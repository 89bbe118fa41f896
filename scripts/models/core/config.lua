-- config: one view of a model's configuration, whatever dialect it is written in.
--
-- c.key reads a key of config.json; a model with several parts is searched in its text part first.
-- null counts as absent; an absent key has the architecture's default, if there is one. Some keys
-- are derived from others, because configs spell them in many ways: layers, hidden, heads,
-- kv_heads, head_dim, eps, vocab, experts, mixers, window, rope, time_step.
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local config = {}

local function present(v)
  if v ~= nil and v ~= json.null then return v end
end

--- Numbers that JSON lacks, as transformers writes them: {"__float__": "Infinity"}. Other values,
--- and names of other numbers, stay as they are.
local function number(v)
  if type(v) ~= "table" or not v.__float__ then return v end
  return v.__float__ == "Infinity" and math.huge or tonumber(v.__float__) or v
end

--- v if it is a JSON object, else nil.
function config.object(v)
  if json.is_object(v) then return v end
end
local object = config.object

-- ---- kinds of keys ------------------------------------------------------------------------------

local function words(list)
  local set = {}
  for word in list:gmatch "%S+" do set[word] = true end
  return set
end

local MAX_INTEGER = 1 << 30 -- sizes are int32 in C; products of two are checked there

local MAX_LAYERS = 4096 -- more than any model has; bounds the loops below on a damaged config

local function integer(v, least)
  local n = type(v) == "number" and math.tointeger(v)
  return n and n >= least and n <= MAX_INTEGER and n or nil
end

local function real(v) return type(v) == "number" and v == v and v or nil end -- NaN ~= NaN

--- A list of a file, or an empty table of Lua, which defaults have.
local function is_list(v)
  if type(v) ~= "table" then return false end
  return not json.is_object(v) or next(v) == nil and getmetatable(v) == nil
end

--- v if it is a list, and a list only of elements that `fits` accepts; else nil.
local function list_of(v, fits)
  if not is_list(v) then return nil end
  for i = 1, #v do
    if fits and fits(number(v[i])) == nil then return nil end
  end
  return v
end

--- Types of all keys that a build computes with: a value of another type is an error that names
--- the key, not one of the operation that meets it.
local kinds = {
  { "an integer of 1 or more", words [[
      num_attention_heads num_key_value_heads hidden_size head_dim vocab_size
      max_position_embeddings rotary_dim kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim
      v_head_dim global_head_dim num_global_key_value_heads num_experts_per_tok
      num_experts_per_token experts_per_token top_k_experts n_group num_expert_group topk_group
      moe_layer_freq decoder_sparse_step no_rope_layer_interval sliding_window_pattern
      full_attention_interval linear_num_heads linear_num_key_heads linear_num_value_heads
      linear_key_head_dim linear_value_head_dim n_groups ssm_state_size mamba_num_heads
      mamba_head_dim mamba_n_heads mamba_d_head mamba_n_groups mamba_d_state model_max_length
      depth embed_dim num_heads patch_size temporal_patch_size spatial_merge_size num_channels
      in_channels in_chans image_size window_size pooling_kernel_size position_embedding_size
      num_position_embeddings num_patches downsample_factor mm_tokens_per_image ]],
    function(v) return integer(v, 1) end },
  { "an integer of 0 or more", words [[
      num_hidden_layers num_experts num_local_experts first_k_dense_replace num_kv_shared_layers
      max_window_layers hidden_size_per_layer_input num_dense_layers sliding_window
      n_routed_experts num_nextn_predict_layers pad_token_id ]],
    function(v) return integer(v, 0) end },
  { "a number", words [[
      rms_norm_eps layer_norm_epsilon layer_norm_eps norm_eps rope_theta rope_local_base_freq
      partial_rotary_factor routed_scaling_factor query_pre_attn_scalar attn_logit_softcapping
      final_logit_softcapping swiglu_alpha swiglu_limit embedding_multiplier attention_multiplier
      residual_multiplier logits_scaling factor low_freq_factor high_freq_factor beta_fast beta_slow
      mscale mscale_all_dim attention_factor original_max_position_embeddings
      tokens_per_second ]],
    real },
  { "true or false", words [[
      use_sliding_window norm_topk_prob moe_renormalize use_qk_norm rope_interleave
      attention_k_eq_v enable_moe_block truncate mrope_interleaved standardize ]],
    function(v) if type(v) == "boolean" then return v end end },
  { "a list", words [[ layer_types mlp_layer_types layers_block_type mrope_section ]],
    function(v) return list_of(v) end },
  { "a list of integers", words [[
      mlp_only_layers no_rope_layers full_attn_idxs full_attn_layers fullatt_block_indexes
      deepstack_visual_indexes ]],
    function(v) return list_of(v, function(n) return integer(n, 0) end) end },
  { "a list of numbers", words [[ short_factor long_factor ]],
    function(v) return list_of(v, real) end },
  { "a list of two numbers", words [[ time_step_limit mamba_dt_limit ]],
    function(v) return list_of(v, real) and #v == 2 and v or nil end },
  { "an object", words [[ per_layer_config linear_attn_config ]], object },
  { "a string", words [[ rope_type type model_type hybrid_override_pattern ]],
    function(v) return type(v) == "string" and v or nil end },
}

--- The value of a key, converted to its type; raises one line when it has another type.
local function checked(key, v)
  if v == nil then return nil end
  v = number(v)
  for _, kind in ipairs(kinds) do
    if kind[2][key] then
      local good = kind[3](v)
      if good ~= nil then return good end
      error(("config: %s must be %s, got %s"):format(key, kind[1], json.encode(v)), 0)
    end
  end
  return v
end

--- The value of a key of an object inside the config.
function config.get(o, key) return checked(key, present(o[key])) end

--- The value of a key as the files have it, or the default.
local function unchecked(c, key)
  local inner, outer, defaults = rawget(c, "_inner"), rawget(c, "_outer"), rawget(c, "_defaults")
  local v = inner and present(inner[key])
  if v == nil then v = present(outer[key]) end
  if v == nil and defaults then v = defaults[key] end
  return v
end

local function raw(c, key) return checked(key, unchecked(c, key)) end

--- The value of a key; raises one line when it is missing.
function config.need(c, key)
  local v = c[key]
  if v == nil then error(("config: %s is missing"):format(key), 0) end
  return v
end

--- Raises one line when one of these keys is missing.
function config.needs(c, keys)
  for _, key in ipairs(keys) do config.need(c, key) end
end

--- Raises one line when one of these keys has a value of another type. They may be missing.
function config.check(c, keys)
  for _, key in ipairs(keys) do raw(c, key) end
end

-- ---- errors of a build --------------------------------------------------------------------------

--- An error of Lua's own as its position ("" if it was raised inside C) and text; nil for one of
--- ours, which says what is wrong.
local function of_lua(why)
  local place, rest = why:match "^([^:]*%.lua:%d+): (.*)$"
  if place then return place, rest end
  if why:find "^attempt to " or why:find "^bad argument #" then return "", why end
end

--- What a build with the config c raised, as one line. An error of Lua's own means that the build
--- met a value that it does not expect: the line names the key of the config, if the error does,
--- or the argument that C refused, or else only the place. what: "architecture 'llama'".
function config.unfit(c, why, what)
  why = text.first_line(why)
  local place, rest = of_lua(why)
  if not place then return why end
  local key = rest:match "%(field '([%w_]+)'%)$"
  local value = key and unchecked(c, key)
  if value ~= nil then
    return ("config: %s is %s, which does not fit the %s"):format(key, json.encode(value), what)
  elseif key and rawget(c, "_absent")[key] then
    return ("config: %s is missing"):format(key)
  end
  local refused = rest:match "^bad argument #%-?%d+ to '[^']*' %((.*)%)$" -- a size computed from it
  if refused and not refused:find("representation", 1, true) then
    return ("the config does not fit the %s: %s"):format(what, refused)
  end
  return ("the config does not fit the %s: a value is missing or has another type%s"):format(what,
    place == "" and "" or (" (%s)"):format(place))
end

-- ---- derived keys -------------------------------------------------------------------------------

local derived = {}

function derived.layers(c)
  local each = c.layers_block_type or c.hybrid_override_pattern
  local n = c.num_hidden_layers or each and #each or config.need(c, "num_hidden_layers")
  if n < 1 or n > MAX_LAYERS then
    error(("config: layers must be between 1 and %d, got %d"):format(MAX_LAYERS, n), 0)
  end
  return n
end
function derived.hidden(c) return config.need(c, "hidden_size") end
function derived.heads(c) return config.need(c, "num_attention_heads") end
function derived.kv_heads(c) return c.num_key_value_heads or c.heads end
function derived.head_dim(c) return c.hidden // c.heads end
function derived.eps(c) return c.rms_norm_eps or c.layer_norm_epsilon or c.norm_eps or 1e-6 end
function derived.vocab(c) return c.vocab_size end
function derived.experts(c) return c.num_experts or c.num_local_experts or c.n_routed_experts end
function derived.max_position_embeddings(c) return c.model_max_length end

--- The attention window of each layer, 0 for none. Layers of the type "sliding_attention" have one;
--- in a config without layer types, layers for which slides(i) returns true.
function config.window(c, slides)
  local size, types, list = c.sliding_window, c.layer_types, {}
  for i = 1, c.layers do
    local limited
    if types then limited = types[i] == "sliding_attention" else limited = slides(i) end
    list[i] = limited and size or 0
  end
  return list
end

--- Without layer types all layers have the window, or, with max_window_layers, the layers after it
--- if use_sliding_window is set.
function derived.window(c)
  local from = c.max_window_layers
  return config.window(c, function(i)
    if from then return c.use_sliding_window and i > from end
    return c.use_sliding_window ~= false
  end)
end

local pattern_mixers = {
  M = "linear_attention", ["*"] = "full_attention", ["-"] = "mlp", E = "moe",
}
local older_mixers = { mamba = "linear_attention", attention = "full_attention" }

--- The mixer of each layer: "full_attention", "linear_attention", "conv" … Configs give a list
--- of types, a pattern of letters, an interval, or the numbers of some layers.
function derived.mixers(c)
  local types = raw(c, "layers_block_type") or raw(c, "layer_types")
  local pattern = c.hybrid_override_pattern
  local full, interval, kimi = {}, c.full_attention_interval, c.linear_attn_config
  for _, i in ipairs(c.full_attn_idxs or {}) do full[i + 1] = true end
  for _, i in ipairs(kimi and config.get(kimi, "full_attn_layers") or {}) do full[i] = true end
  local other = c.full_attn_idxs and "conv" or (interval or kimi) and "linear_attention"
    or "full_attention"
  local list = {}
  for i = 1, c.layers do
    if types then list[i] = older_mixers[types[i]] or types[i]
    elseif pattern then list[i] = pattern_mixers[pattern:sub(i, i)] or pattern:sub(i, i)
    else list[i] = (full[i] or interval and i % interval == 0) and "full_attention" or other end
  end
  return list
end

--- The limits of the time step of a state space layer.
function derived.time_step(c)
  local limit = c.time_step_limit or c.mamba_dt_limit or { 0, math.huge }
  return { min = number(limit[1]), max = number(limit[2]) }
end

--- The rope parameters of one kind of layer ("full_attention", "sliding_attention").
local function rope_parameters(c, kind)
  local new = object(raw(c, "rope_parameters"))
  if new then return kind and object(new[kind]) or new end
  return object(raw(c, "rope_scaling")) or {}
end

--- Rotations of a head that follow each axis of a position (M-RoPE), or nil.
local function sections(list, rotations)
  if not list then return nil end
  local sum = 0
  for i = 1, 3 do
    local n = integer(list[i], 0)
    if not n then
      error(("config: mrope_section must be three integers, got %s"):format(json.encode(list)), 0)
    end
    sum = sum + n
  end
  if sum > rotations then
    error(("config: mrope_section has %d rotations, a head has %d"):format(sum, rotations), 0)
  end
  return list
end

--- The rope spec that g:rope takes. Options: kind of layer, head_dim (default: the config's), dims
--- (default: head_dim times partial_rotary_factor), theta (when neither dialect gives one), plain
--- (true: in the older dialect this kind of layer is not scaled).
function config.rope(c, options)
  options = options or {}
  local unscaled = options.plain and not object(raw(c, "rope_parameters"))
  local p = unscaled and {} or rope_parameters(c, options.kind)
  local function get(key) return checked(key, present(p[key])) end
  local partial = get "partial_rotary_factor" or c.partial_rotary_factor or 1
  local kind = get "rope_type" or get "type" or "default"
  local original = get "original_max_position_embeddings" or c.original_max_position_embeddings
    or c.max_position_embeddings
  local factor = get "factor"
  if not factor and (kind == "longrope" or kind == "su") then
    factor = config.need(c, "max_position_embeddings") / original
  end
  local head = options.head_dim or c.head_dim
  if partial < 0 or partial > 1 then
    error(("config: partial_rotary_factor must be between 0 and 1, got %s"):format(partial), 0)
  end
  local turning = options.dims or math.tointeger(head * partial // 1)
  local spec = {
    kind = kind,
    dims = kind == "proportional" and head or turning, turning = turning,
    theta = get "rope_theta" or options.theta or c.rope_theta or 10000.0,
    factor = factor,
    original = original,
    max_position = c.max_position_embeddings,
    truncate = get "truncate",
    divisor = c.rope_divisor,
    sections = sections(get "mrope_section", turning // 2),
    interleaved = get "mrope_interleaved",
  }
  for _, key in ipairs { "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "attention_factor", "short_factor", "long_factor" } do
    spec[key] = get(key)
  end
  return spec
end

function derived.rope(c) return config.rope(c) end

--- The rope of queries: c.rope, except where queries grow with their position (Ministral 3).
function derived.query_rope(c)
  local growth = rope_parameters(c).llama_4_scaling_beta
  if type(growth) ~= "number" or growth == 0 then return c.rope end
  local spec = { growth = growth }
  for key, value in pairs(c.rope) do spec[key] = value end
  return spec
end

local meta = {
  __index = function(c, key)
    local v = raw(c, key)
    if v == nil and derived[key] then v = derived[key](c) end
    if v ~= nil then rawset(c, key, v) else rawget(c, "_absent")[key] = true end
    return v
  end,
}

--- parsed: config.json as a table; its text part is found here. defaults: the architecture's.
function config.new(parsed, defaults)
  local inner = object(present(parsed.text_config) or present(parsed.llm_config))
  return setmetatable({ _outer = parsed, _inner = inner, _defaults = defaults, _absent = {} }, meta)
end

return config
