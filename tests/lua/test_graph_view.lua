-- ui.graph: a graph and its plan as tables.
local test = require("harness").test
local view = require "ui.graph"

local function value(name, op, inputs, more)
  local v = { name = name, op = op, shape = { 4, 2 }, inputs = inputs or {}, fused = {} }
  for k, x in pairs(more or {}) do v[k] = x end
  return v
end

--- Four layers between an embedding and an output; the second has another op, the last another
--- input.
local function list_of()
  local list = { value("embed", "embed", {}, { weight = "e.weight" }), value("rope", "rope_table") }
  for i = 0, 3 do
    local p = "model.layers." .. i
    list[#list + 1] = value(p .. ".a", i == 1 and "norm" or "linear",
      { i == 0 and "embed" or "model.layers." .. i - 1 }, { weight = p .. ".a.weight" })
    list[#list + 1] = value(p, "add", { p .. ".a", i == 3 and "model.layers.0" or "rope" },
      { fused = { { name = p .. ".b" }, { name = "x" } } })
  end
  list[#list + 1] = value("out", "map", { "model.layers.3" }, { steps = { "mul", "add" } })
  return list
end

--- Without the spaces at the ends of lines.
local function lines(s) return (s:gsub(" +\n", "\n"):gsub("%s+$", "")) .. "\n" end

test("values and instructions, layer by layer", function(t)
  t.eq(lines(view.values(list_of())), [[
value            op            shape  weight    inputs
rope             rope_table    4 × 2
embed            embed         4 × 2  e.weight
model.layers.0:
  a              linear        4 × 2  a.weight  embed
  (output)       add           4 × 2            a, rope
model.layers.1:
  a              norm          4 × 2  a.weight  (layer before)
  (output)       add           4 × 2            a, rope
model.layers.2:
  a              linear        4 × 2  a.weight  (layer before)
  (output)       add           4 × 2            a, rope
model.layers.3:
  a              linear        4 × 2  a.weight  (layer before)
  (output)       add           4 × 2            a, (3 layers before)
out              map mul, add  4 × 2            model.layers.3
]])
  t.eq(lines(view.instructions(list_of())), [[
instruction          op            shape  fused
rope                 rope_table    4 × 2
embed                embed         4 × 2
model.layers.0:
  a                  linear        4 × 2
  (output)           add           4 × 2  + b + x
model.layers.1:
  a                  norm          4 × 2
  (output)           add           4 × 2  + b + x
layers 2 to 3: as 0
out                  map mul, add  4 × 2
]])
  local few = list_of()
  few = table.move(few, 1, 4, 1, { [5] = few[7], [6] = few[8] })
  t.match(view.instructions(few), "\nlayer 2: as 0")
end)

test("the summary of a plan", function(t)
  t.eq(view.summary({ row_floats = 256, output_floats = 128, unshared_floats = 1024 }, list_of(),
    { value("a", "view"), value("b", "constant"), value("c", "add"), value("d", "mul") }),
    "2 ops in 11 instructions, 8 fused away; a row takes 1.5 KiB, without sharing 4.0 KiB")
end)
