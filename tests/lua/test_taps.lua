-- Values inside of a model that are tapped, one at a time: as the CPU computes them when all are
-- tapped, and nothing is fused. On the CPU these are the same bits. A device computes most values
-- where they are read and stores only those that somebody asks for.
local perigee = require "perigee"
local test = require("harness").test

local forced = ... -- with a collection at every step: one model is enough
local MODELS = { "qwen3_5_moe", "deepseek_v3-mlx4", "granitemoehybrid", "gemma4_text" }
local PROMPTS = { { 3 }, { 3, 9, 1, 4, 1 } }

local function open(name, device)
  return assert(perigee.open("tests/golden/" .. name, { threads = 1, device = device }))
end

--- Names of the values that can be tapped: neither constants nor stores.
local function tappable(model)
  local names = {}
  for _, value in ipairs(model.graph:values()) do
    local ok = pcall(model.eval, model, { 3 }, { tap = { value.name } })
    if ok then names[#names + 1] = value.name end
  end
  return names
end

for i, name in ipairs(MODELS) do
  if forced and i > 1 then break end
  test("values of " .. name .. ", one at a time", function(t)
    local device = perigee.engine.device "auto"
    local cpu <close> = open(name, "cpu")
    local model <close> = open(name, device)
    local names = tappable(cpu)
    t.ok(#names > 50, #names)
    for _, prompt in ipairs(PROMPTS) do
      local want = cpu:eval(prompt, { tap = names }).taps
      for _, value in ipairs(names) do
        local got = model:eval(prompt, { tap = { value } }).taps[value]
        if device == "cpu" then
          t.eq(got:bytes() == want[value]:bytes(), true, value)
        else
          t.near((got - want[value]):abs():max(), 0, 2e-2, value)
        end
      end
    end
  end)
end
