-- Configs and files that do not fit their architecture: one line that says what is wrong, never an
-- error of Lua's own, and in no time.
local perigee = require "perigee"
local models = require "models"
local text = require "lib.text"
local uv = require "luv"
local vision = require "models.vision"
local test = require("harness").test
local json = perigee.json

local forced = ... -- with a collection at every step: a few models are enough

--- Messages of Lua's own, and positions in scripts.
local OWN = { "attempt to ", "bad argument", "'for' ", "representation", "%.lua:%d", "\n" }

local function check_message(t, why, what)
  for _, pattern in ipairs(OWN) do
    if tostring(why):find(pattern) then t.fail(("%s: %s"):format(what, why)) end
  end
end

--- Builds the text model and the tower. Returns why the text model cannot be built.
local function build(t, weights, parsed, what)
  local ok, model, why = pcall(models.assemble, weights, parsed)
  if not ok then t.fail(("%s raises %s"):format(what, model)) end
  if model then model.graph:close() else check_message(t, why, what) end
  local fine, tower, wrong = pcall(vision.build, weights, parsed)
  if not fine then t.fail(("%s: the tower raises %s"):format(what, tower)) end
  if tower then tower.graph:close() else check_message(t, wrong, what) end
  return why
end

--- Sets a key of a config, by its path.
local function set(parsed, path, value)
  for i = 1, #path - 1 do parsed = parsed[path[i]] end
  parsed[path[#path]] = value
end

--- The paths of all keys of an object.
local function paths_of(object, before, list)
  list = list or {}
  for key, value in pairs(object) do
    local path = { table.unpack(before or {}) }
    path[#path + 1] = key
    list[#list + 1] = path
    if json.is_object(value) then paths_of(value, path, list) end
  end
  return list
end

local function source_of(name)
  return assert(text.read_file(("tests/golden/%s/config.json"):format(name)))
end

local WRONG = { "null", '["a"]', "1073741824" }

local function check_keys(t, name)
  local source = source_of(name)
  local weights <close> = assert(perigee.weights.open("tests/golden/" .. name))
  for _, path in ipairs(paths_of(assert(json.decode(source)))) do
    for _, value in ipairs(WRONG) do
      local parsed = assert(json.decode(source))
      set(parsed, path, json.decode("[" .. value .. "]")[1])
      build(t, weights, parsed, ("%s: %s = %s"):format(name, table.concat(path, "."), value))
    end
  end
end

--- Without each tensor: a file that has it under another name.
local function check_tensors(t, name)
  local source = source_of(name)
  local weights <close> = assert(perigee.weights.open("tests/golden/" .. name))
  for _, hidden in ipairs(weights:names()) do
    local parsed = assert(json.decode(source))
    parsed.spell = function(path, tensor)
      local full = tensor == "" and path or path .. "." .. tensor
      return { full == hidden and full .. ".hidden" or full }
    end
    build(t, weights, parsed, ("%s without %s"):format(name, hidden))
  end
end

local all = { "deepseek_v3-noqlora", "gemma3_text", "gemma4_text", "gemma4_text-moe", "glm4_moe",
  "gpt_oss", "granitemoehybrid", "kimi_linear", "lfm2_moe", "minimax_m2", "nemotron_h-moe", "olmo3",
  "phi3-longrope", "qwen2", "qwen3-yarn", "qwen3_moe", "qwen3_5", "qwen3_next", "smollm3" }
for _, name in ipairs(forced and {} or all) do
  test(name .. ": every key absent or of another type, every tensor absent", function(t)
    check_keys(t, name)
    check_tensors(t, name)
  end)
end

test("a message names the key", function(t)
  for _, case in ipairs {
    { "kimi_linear", { "linear_attn_config", "num_heads" }, '"a"', 'num_heads must be an integer' },
    { "kimi_linear", { "linear_attn_config", "full_attn_layers" }, "true",
      "full_attn_layers must be a list of integers, got true" },
    { "gemma3_text", { "query_pre_attn_scalar" }, '{"__float__":"NaN"}',
      "query_pre_attn_scalar must be a number" },
    { "granitemoehybrid", { "time_step_limit" }, "0", "time_step_limit must be a list of two" },
    { "glm4_moe", { "rope_parameters", "partial_rotary_factor" }, "1e308",
      "partial_rotary_factor must be between 0 and 1" },
    { "deepseek_v3", { "num_nextn_predict_layers" }, "1e308",
      "num_nextn_predict_layers must be an integer of 0 or more" },
  } do
    local name, path, value, expected = table.unpack(case)
    local weights <close> = assert(perigee.weights.open("tests/golden/" .. name))
    local parsed = assert(json.decode(source_of(name)))
    set(parsed, path, json.decode("[" .. value .. "]")[1])
    t.match(build(t, weights, parsed, name), "config: " .. expected)
  end
end)

test("an architecture that meets a missing value: the key, the argument or the place", function(t)
  local weights <close> = assert(perigee.weights.open "tests/golden/llama")
  for _, case in ipairs {
    { function(_, c) return c.my_key + 1 end, "config: my_key is missing$" },
    { function(_, c) return c.rope_theta.x.y end, "config: rope_theta is 10000.0, which does not" },
    { function(_, c) return #c.my_list end, "config: my_list is missing$" },
    { function(g) return g:rope(g:embed "model.embed_tokens", { dims = 1 << 40 }) end,
      "the config does not fit the architecture 'mine': option 'dims' must be between" },
    { function(g) return g.nothing.y.z end,
      "the config does not fit the architecture 'mine': a value is missing or has another type "
      .. "%(.*test_configs.lua:%d+%)$" },
    { function()
      local sum = 0
      for _, v in ipairs(true) do sum = sum + v end
      return sum
    end, "another type$" },
  } do
    local parsed = assert(json.decode(source_of "llama"))
    parsed.model_type, parsed.rope_theta = "mine", 10000.0
    local model, why = models.assemble(weights, parsed,
      { architectures = { { names = { "mine" }, build = case[1] } } })
    t.eq(model, nil)
    t.match(why, case[2])
    if why:find "attempt to" or why:find "bad argument" then t.fail(why) end
  end
end)

test("a count of layers that predict ahead costs nothing", function(t)
  local weights <close> = assert(perigee.weights.open "tests/golden/deepseek_v3")
  local parsed = assert(json.decode(source_of "deepseek_v3"))
  parsed.num_nextn_predict_layers = 1 << 30
  local before = uv.getrusage().utime
  t.eq(build(t, weights, parsed, "deepseek_v3"), nil)
  local after = uv.getrusage().utime
  t.ok(after.sec - before.sec + (after.usec - before.usec) * 1e-6 < 2)
end)

test("an empty list may be a default; an empty object of a file is not a list", function(t)
  local config = require "models.core.config"
  local key = "deepstack_visual_indexes"
  t.eq(config.get({ [key] = {} }, key), {})
  t.eq(#config.get(json.decode '{"deepstack_visual_indexes": []}', key), 0)
  t.raises(function() config.get(json.decode '{"deepstack_visual_indexes": {}}', key) end,
    "must be a list of integers")
end)
