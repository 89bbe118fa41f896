-- The tiles of Metal's kernels: the list of the scripts is that of the program, what is wrong with
-- a command line is said in one line, and another tile gives other dispatches. (Bits: tests/metal.)
local perigee = require "perigee"
local shapes = require "cmd.bench.shapes"
local models = require "models"
local tiles = require "engine.tiles"
local test = require("harness").test

local function model(shape, quant)
  local weights, config = assert(shapes.make(shape, quant))
  return assert(models.assemble(weights, config, { path = shape }))
end

--- The sum of a field over the instructions of a step.
local function sum(plan, load, field)
  local all = 0
  for _, cost in ipairs(assert(plan:count(load))) do all = all + cost[field] end
  return all
end

test("the program has the tiles of the list, with their defaults", function(t)
  local all, count = perigee.engine.tiles {}, 0
  for _, tile in ipairs(tiles.list) do
    t.eq(all[tile[1]], tile[2])
    t.ok(tile[3] <= tile[2] and tile[2] <= tile[4], tile[1])
    all[tile[1]] = nil
  end
  for _ in pairs(all) do count = count + 1 end
  t.eq(count, 0)
end)

test("a wrong tile is refused", function(t)
  for line, why in pairs {
    ["join=1"] = "there is no tile 'join'", ["join_rows=x"] = "'join_rows=x' is not NAME=VALUE",
    [""] = "'' is not NAME=VALUE", ["linear_simdgroups=0"] = "must be between 1 and 8",
    ["linear_simdgroups=9"] = "must be between 1 and 8" } do
    local ok, said = tiles.set(line)
    t.eq(ok, nil)
    t.ok(said:find(why, 1, true), said)
  end
  t.eq(perigee.engine.tiles({}).linear_simdgroups, 4)
end)

test("tiles change the dispatches of a step and how often it reads its weights", function(t)
  local m = model("tiny", "bf16")
  local plan <close> = assert(m.graph:plan())
  local decode, prefill = { rows = 1, past = 7 }, { rows = 64 }
  local joined, once = sum(plan, decode, "dispatches"), sum(plan, prefill, "weights")
  assert(tiles.set "join_rows=0,linear_simdgroups=2")
  t.eq(sum(plan, decode, "dispatches"), joined + 2 * 5 + 1) -- of a layer 11, not 6; the last norm
  t.eq(sum(plan, prefill, "weights") > 1.5 * once, true)
  assert(tiles.set "join_rows=8,linear_simdgroups=4")
  t.eq(sum(plan, decode, "dispatches"), joined)
end)

test("a token reads little more than the weights and the cache", function(t)
  local m = model("qwen3-0.6b", "affine4g64")
  local plan <close> = assert(m.graph:plan())
  local load = { rows = 1, past = 512 }
  local bytes = sum(plan, load, "weights") + sum(plan, load, "cache") + sum(plan, load, "values")
  t.ok(bytes < 1.1 * sum(plan, load, "once"), bytes)
  local per_layer = (sum(plan, load, "dispatches") - 5) / 28 -- embed, table, two outputs, head
  t.ok(per_layer >= 5 and per_layer <= 8, per_layer)
end)
