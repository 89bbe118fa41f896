-- graph: a model's graph and its plan as tables. Names inside a layer are shown without the layer's
-- prefix, and identical layers are shown once.
local tables = require "ui.table"
local text = require "lib.text"

local view = {}

local function shape_text(shape) return table.concat(shape, " × ") end

--- "model.layers.7.mlp" and "model.layers.7" -> "model.layers.7", 7; nil outside layers.
local function layer_of(name)
  local path, n = name:match "^(.-layers%.(%d+))%f[.\0]"
  return path, math.tointeger(tonumber(n or ""))
end

--- Items in runs of the same layer: { path =, layer =, items }. Rope tables come first: layers
--- share them.
local function runs_of(items)
  local shared, runs = {}, {}
  for _, item in ipairs(items) do
    local path, layer = layer_of(item.name)
    local run = runs[#runs]
    if item.op == "rope_table" then
      shared[#shared + 1] = item
    elseif run and run.path == path then
      run[#run + 1] = item
    else
      runs[#runs + 1] = { path = path, layer = layer, item }
    end
  end
  table.insert(runs, 1, shared)
  return runs
end

--- Shortens the names in a cell of a layer's table: its own without the prefix, other layers by
--- distance.
local function shorten(run, word)
  if not run.path or type(word) ~= "string" then return word end
  local function short(name)
    if name == run.path then return "(output)" end
    local tail = name:match("layers%." .. run.layer .. "%.(.*)$")
    if tail then return tail end
    return (name:gsub("^.-layers%.(%d+)$", function(n)
      local back = run.layer - tonumber(n)
      return back == 1 and "(layer before)" or ("(%d layers before)"):format(back)
    end))
  end
  return (word:gsub("[%w_.:]+", short))
end

--- One table with a heading for each layer; layers that equal an earlier one become a single line.
--- cells(item): the list of its cells.
local function render(header, items, cells)
  local out, seen, pending = { header }, {}, nil
  local function flush()
    if not pending then return end
    local from, to, as = pending.from, pending.to, pending.as
    out[#out + 1] = { from == to and ("layer %d: as %d"):format(from, as)
      or ("layers %d to %d: as %d"):format(from, to, as) }
    pending = nil
  end
  for _, run in ipairs(runs_of(items)) do
    local rows, key = {}, {}
    for i, item in ipairs(run) do
      rows[i] = cells(item)
      for k, word in ipairs(rows[i]) do rows[i][k] = shorten(run, word) end
      key[i] = table.concat(rows[i], "|")
    end
    key = run.path and table.concat(key, "\n")
    local as = key and seen[key]
    if as and pending and pending.as == as and pending.to == run.layer - 1 then
      pending.to = run.layer
    else
      flush()
      if as then
        pending = { from = run.layer, to = run.layer, as = as }
      else
        if run.path then out[#out + 1] = { run.path .. ":" } end
        for _, row in ipairs(rows) do
          if run.path then row[1] = "  " .. row[1] end
          out[#out + 1] = row
        end
      end
    end
    if key then seen[key] = seen[key] or run.layer end
  end
  flush()
  return tables.render(out, { header = true })
end

local function op_text(v)
  return v.steps and "map " .. table.concat(v.steps, ", ") or v.op
end

--- Every value: name, op, shape of a row, weight, inputs.
function view.values(values)
  return render({ "value", "op", "shape", "weight", "inputs" }, values, function(v)
    return { v.name, op_text(v), shape_text(v.shape), v.weight or "", table.concat(v.inputs, ", ") }
  end)
end

--- The values fused into an instruction: "+ silu + mlp.up_proj".
local function fused_text(x)
  local list = {}
  for _, v in ipairs(x.fused) do list[#list + 1] = v.name end
  return #list > 0 and "+ " .. table.concat(list, " + ") or ""
end

--- Every instruction: the value it computes, op, shape, and the values fused into it.
function view.instructions(list)
  return render({ "instruction", "op", "shape", "fused" }, list, function(x)
    return { x.name, op_text(x), shape_text(x.shape), fused_text(x) }
  end)
end

--- Numbers of ops, instructions and fused values, and memory per row with and without sharing.
function view.summary(plan, list, values)
  local fused, ops = 0, 0
  for _, x in ipairs(list) do fused = fused + #x.fused end
  for _, v in ipairs(values) do ops = ops + (v.op ~= "view" and v.op ~= "constant" and 1 or 0) end
  return ("%d ops in %d instructions, %d fused away; a row takes %s, without sharing %s"):format(
    ops, #list, fused, text.bytes(4 * (plan.row_floats + plan.output_floats)),
    text.bytes(4 * plan.unshared_floats))
end

return view
