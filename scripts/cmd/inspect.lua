-- inspect: the contents of a model's files, as tables or as JSON.
local perigee = require "perigee"
local graph_view = require "ui.graph"
local memory = require "engine.memory"
local modeldir = require "lib.modeldir"
local models = require "models"
local tables = require "ui.table"
local text = require "lib.text"
local towers = require "models.vision"
local json = perigee.json

local function shape_text(shape)
  return "[" .. table.concat(shape, ", ") .. "]"
end

--- The quantized kind with the most bytes, or "none". Kinds are sorted by bytes.
local function quantization(kinds)
  for _, k in ipairs(kinds) do
    if not k.kind:match "^[FIUB][FO]?%d*" or k.kind:match "^IQ" then return k.kind end
  end
  return "none"
end

local function values_of(kinds)
  local n = 0
  for _, k in ipairs(kinds) do n = n + k.values end
  return n
end

local fact_order = { "name", "architecture", "context_length", "vocab_size", "layers", "width",
  "heads", "kv_heads", "tokenizer", "chat_template" }

--- Memory estimates as JSON, in bytes.
local function memory_json(e)
  local kv = json.array {}
  for i, k in ipairs(e.kv) do
    kv[i] = json.object { { "bits", k.bits }, { "bytes_per_token", k.token },
      { "bytes_of_context", k.context } }
  end
  return json.object { { "weights", e.weights }, { "kv", kv }, { "state_per_sequence", e.state },
    { "activations_512_rows", e.activations } }
end

--- A list of tables as JSON, with these keys.
local function list_json(list, keys)
  local out = json.array {}
  for i, item in ipairs(list) do
    local o = json.object()
    for _, key in ipairs(keys) do
      local v = item[key]
      if type(v) == "table" then v = json.array(v) end
      o[key] = v
    end
    out[i] = o
  end
  return out
end

local function plan_json(plan)
  local list = plan:instructions()
  for _, x in ipairs(list) do
    for i, v in ipairs(x.fused) do x.fused[i] = v.name end
  end
  local keys = { "op", "name", "shape", "steps", "fused", "place" }
  return json.object { { "instructions", list_json(list, keys) },
    { "row_bytes", 4 * plan.row_floats }, { "output_bytes", 4 * plan.output_floats },
    { "unshared_bytes", 4 * plan.unshared_floats } }
end

local function graph_json(out, graph)
  local plan <close> = assert(graph:plan())
  out.graph = list_json(graph:values(), { "name", "op", "shape", "steps", "weight", "inputs" })
  out.plan = plan_json(plan)
end

--- The vision tower as JSON.
local function tower_json(tower, with_graph)
  local s = tower.spec
  local out = json.object { { "hidden", tower.hidden }, { "merge", tower.merge },
    { "patch_values", s.patch }, { "deepstack", #tower.deepstack } }
  if with_graph then graph_json(out, tower.graph) end
  return out
end

--- about: { facts, kinds, model, tower, estimate, problem = why the model could not be built, or
--- nil }
local function as_json(weights, about, with_graph)
  local facts, kinds = about.facts, about.kinds
  local out = json.object()
  for _, key in ipairs(fact_order) do out[key] = facts[key] end
  out.tensors = weights.count
  out.bytes = weights.bytes
  out.parameters = values_of(kinds)
  out.quantization = quantization(kinds)
  local files = weights:files()
  for i, path in ipairs(files) do files[i] = text.clean(path) end
  out.files = json.array(files)
  local list = json.array {}
  for i, k in ipairs(kinds) do
    list[i] = json.object { { "kind", k.kind }, { "tensors", k.count }, { "values", k.values },
      { "bytes", k.bytes } }
  end
  out.kinds = list
  out.memory = about.estimate and memory_json(about.estimate)
  out.problem = about.problem
  if with_graph then graph_json(out, about.model.graph) end
  out.vision = about.tower and tower_json(about.tower, with_graph)
  io.write(json.encode(out), "\n")
end

--- The vision tower in one line.
local function tower_text(tower)
  local merged = tower.merge > 1 and (", %d x %d of them a token"):format(tower.merge, tower.merge)
    or ""
  local more = #tower.deepstack > 0 and (", %d deepstack layers"):format(#tower.deepstack) or ""
  return ("patches of %d values%s, features of width %d%s"):format(tower.spec.patch, merged,
    tower.hidden, more)
end

local function print_facts(weights, about)
  local facts, kinds, rows = about.facts, about.kinds, {}
  local function row(key, value)
    if value ~= nil then rows[#rows + 1] = { key, tostring(value) } end
  end
  row("path", weights.path)
  for _, key in ipairs(fact_order) do row(key:gsub("_", " "), facts[key]) end
  row("vision tower", about.tower and tower_text(about.tower))
  row("tensors", weights.count)
  row("parameters", values_of(kinds))
  row("quantization", quantization(kinds))
  local files = #weights:files()
  row("size", ("%s in %d file%s"):format(text.bytes(weights.bytes), files,
    files == 1 and "" or "s"))
  io.write(tables.render(rows), "\n\n")
end

local function print_memory(e, facts)
  local rows = { { "weights", text.bytes(e.weights) } }
  for _, k in ipairs(e.kv) do
    local whole = ""
    if k.context then
      whole = (", %s for %d tokens"):format(text.bytes(k.context), facts.context_length)
    end
    rows[#rows + 1] = { ("KV cache, %d bits"):format(k.bits),
      text.bytes(k.token) .. " per token" .. whole }
  end
  if e.state > 0 then
    rows[#rows + 1] = { "recurrent state", text.bytes(e.state) .. " per sequence" }
  end
  rows[#rows + 1] = { "activations", text.bytes(e.activations) .. " for a step of 512 tokens" }
  io.write("memory\n", tables.render(rows, { indent = "  " }), "\n\n")
end

local function print_graph(graph)
  local plan <close> = assert(graph:plan())
  local values, list = graph:values(), plan:instructions()
  io.write(graph_view.values(values), "\n\n", graph_view.instructions(list), "\n\n",
    graph_view.summary(plan, list, values), "\n")
end

local function print_kinds(kinds)
  local rows = { { "storage", "tensors", "values", "size" } }
  for _, k in ipairs(kinds) do
    rows[#rows + 1] = { k.kind, k.count, k.values, text.bytes(k.bytes) }
  end
  io.write(tables.render(rows, { header = true }), "\n\n")
end

local function print_tensors(weights)
  local rows = { { "tensor", "storage", "shape", "size" } }
  for _, name in ipairs(weights:names()) do
    local w = weights:find(name)
    rows[#rows + 1] = { name, w.kind, shape_text(w.shape), text.bytes(w.bytes) }
  end
  io.write(tables.render(rows, { header = true }), "\n")
end

local function print_metadata(weights)
  local rows = {}
  for _, pair in ipairs(weights:metadata { most = 4 }) do
    local value = pair[2]
    if type(value) == "table" then
      local shown = {}
      for i, v in ipairs(value) do shown[i] = tostring(v) end
      value = ("%d × %s%s"):format(value.n, table.concat(shown, " "),
        value.n > #value and " …" or "")
    end
    value = tostring(value):gsub("%c", " ")
    if utf8.len(value) and utf8.len(value) > 60 then
      value = value:sub(1, utf8.offset(value, 60) - 1) .. "…"
    end
    rows[#rows + 1] = { pair[1], value }
  end
  if #rows > 0 then io.write(tables.render(rows), "\n\n") end
end

local function show(weights, about)
  print_facts(weights, about)
  print_metadata(weights)
  if about.estimate then
    print_memory(about.estimate, about.facts)
  else
    io.write("no memory estimates: ", about.problem, "\n\n")
  end
  print_kinds(about.kinds)
  print_tensors(weights)
end

local function run(opts)
  local weights, why = perigee.weights.open(opts[1])
  if not weights then return nil, why end
  local kinds, err = weights:summary()
  if not kinds then return nil, err end
  local about = { facts = modeldir.facts(weights), kinds = kinds }
  local model, problem = models.build(weights)
  if model then about.estimate = memory.estimate(model, about.facts.context_length) end
  if model then about.tower, problem = towers.build(weights, model.parsed) end
  if opts.graph and not model then return nil, problem end
  about.model, about.problem = model, problem and text.clean(tostring(problem))
  if opts.json then
    as_json(weights, about, opts.graph)
  elseif opts.graph then
    print_graph(model.graph)
    if about.tower then
      io.write "\nvision tower\n\n"
      print_graph(about.tower.graph)
    end
  else
    show(weights, about)
  end
  if about.tower then about.tower.graph:close() end
  if model then model.graph:close() end
  weights:close()
end

return {
  summary = "show the contents of a model's files",
  usage = "MODEL",
  details = "MODEL is a model directory, a .safetensors or a .gguf file (any part of a split one).",
  options = {
    { name = "json", kind = "flag", help = "print one line of JSON instead of tables" },
    { name = "graph", kind = "flag",
      help = "show the values of the graph and the instructions of its plan" },
  },
  min = 1,
  max = 1,
  run = run,
}
