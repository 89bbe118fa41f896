-- Every architecture against the logits of the reference, and against itself: any chunking, any
-- number of threads, alone or batched, bit for bit.
local perigee = require "perigee"
local models = require "models"
local run = require "engine.run"
local text = require "lib.text"
local uv = require "luv"
local test = require("harness").test

local TOLERANCE, GGUF_TOLERANCE = 2e-3, 1e-3
local forced = ... -- with a collection at every step: a few models are enough

local samples = require "samples"
local read, ids_of = samples.read, samples.read_ids

local function bytes(t) return t:bytes() end

--- The largest difference to the expected logits, which are those of the last rows.
local function distance(got, want)
  local rows = got:rows(got.shape[1] - want.shape[1] + 1, got.shape[1])
  return (rows - want):abs():max()
end

local function check_reference(t, runner, golden)
  for k = 0, 3 do
    local ids = ids_of(golden, "ids." .. k)
    if ids then
      local greedy = ids_of(golden, "greedy." .. k)
      local got = runner:eval(ids, { greedy = greedy and #greedy })
      local far = distance(got.logits, (read(golden, "logits." .. k)))
      t.near(far, 0, TOLERANCE, ("case %d"):format(k))
      if greedy then t.eq(got.greedy, greedy) end
    end
  end
end

local function same_bits(t, got, want, what)
  if got ~= want then t.fail(what .. ": not the same bits") end
end

local function check_chunks(t, runner, ids)
  local whole = bytes(runner:eval(ids).logits)
  for _, chunk in ipairs { 1, 5, 32 } do
    same_bits(t, bytes(runner:eval(ids, { chunk = chunk }).logits), whole, "chunks of " .. chunk)
  end
  return whole
end

--- The logits of another runner of the model.
local function bits_of(model, ids, options)
  local runner = run.new(model, options)
  local got = bytes(runner:eval(ids).logits)
  runner:close()
  return got
end

local function close(model)
  model.graph:close()
  model.weights:close()
end

--- The config in the older dialect must build the same model.
local function check_older_config(t, folder, ids, whole)
  local source = text.read_file(folder .. "/config.old.json")
  if not source then return end
  local weights = assert(perigee.weights.open(folder))
  local model = assert(models.assemble(weights, assert(perigee.json.decode(source))))
  same_bits(t, bits_of(model, ids, { threads = 1 }), whole, "config.old.json")
  close(model)
end

--- Computes `ids` together with two other sequences, in steps of varying composition; returns its
--- logits as bytes.
local function among_others(model, ids)
  local engine <close> = assert(perigee.engine.open(model.graph,
    { tokens = 512, sequences = 3, threads = 2 }))
  local a, b, c = engine:add(), engine:add(), engine:add()
  local parts, at = {}, 1
  local sizes = { 3, 1, 7, 2, 1, 11, 4 }
  for k = 1, 100 do
    if at > #ids then break end
    local n = math.min(sizes[k % #sizes + 1], #ids - at + 1)
    local mine = { seq = b, ids = table.move(ids, at, at + n - 1, 1, {}), outputs = n,
      rope_length = #ids }
    local step = { { seq = a, ids = { 5, 6, 7 } }, mine, { seq = c, ids = { k % 9 } } }
    if k % 3 == 0 then table.remove(step, 1) end
    assert(engine:step(step))
    local logits, before = engine:logits(), k % 3 == 0 and 0 or 1
    parts[#parts + 1] = bytes(logits:rows(before + 1, before + n):contiguous())
    at = at + n
  end
  return table.concat(parts)
end

local some = forced and { "llama", "gpt_oss-mxfp4", "qwen3_5-mlx4" }
for _, name in ipairs(some or samples.directories "golden.safetensors") do
  test(name, function(t)
    local model = assert(models.load("tests/golden/" .. name))
    local golden <close> = assert(perigee.weights.open("tests/golden/" .. name
      .. "/golden.safetensors"))
    local runner = run.new(model, { threads = 2 })
    check_reference(t, runner, golden)
    local ids = ids_of(golden, "ids.2")
    local whole = check_chunks(t, runner, ids)
    runner:close()
    same_bits(t, bits_of(model, ids, { threads = 1 }), whole, "one thread")
    same_bits(t, bits_of(model, ids, { threads = 2, fusion = false }), whole, "nothing fused")
    same_bits(t, among_others(model, ids), whole, "rows among others")
    check_older_config(t, "tests/golden/" .. name, ids, whole)
    close(model)
  end)
end

-- 20 threads have 80 tasks of a long step, for which a thread's own are bits of several words; 70
-- have more than these hold.
test("any number of threads", function(t)
  local model = assert(models.load "examples/moonlet")
  local ids = {}
  for i = 1, some and 60 or 600 do ids[i] = i * 37 % 2000 end
  for _, precision in ipairs { "exact", "fast" } do
    local want
    for _, threads in ipairs { 1, 2, 3, 20, 70 } do
      local runner = run.new(model, { threads = threads, precision = precision })
      local got = bytes(runner:eval(ids, { last = 2, chunk = #ids }).logits)
      same_bits(t, got, want or got, ("%s, %d threads"):format(precision, threads))
      want = got
      runner:close()
    end
  end
  close(model)
end)

--- GGUF files against the logits of the same weights: the last rows of two prompts.
local function gguf_files()
  local list = {}
  for name in uv.fs_scandir_next, uv.fs_scandir "tests/golden-gguf" do
    list[#list + 1] = name:match "^(.*)%.gguf$"
  end
  table.sort(list)
  return list
end

for _, name in ipairs(forced and {} or gguf_files()) do
  test(name .. ".gguf", function(t)
    local family, kind = name:match "^(.-)%-(.*)$"
    local expected = ("tests/golden-gguf/%s.safetensors"):format(family)
    local golden <close> = assert(perigee.weights.open(expected))
    local model = assert(models.load(("tests/golden-gguf/%s.gguf"):format(name)))
    local runner = run.new(model, { threads = 2 })
    for k = 0, 1 do
      local want = read(golden, ("logits.%s.%d"):format(kind, k))
      local got = runner:eval(ids_of(golden, "ids." .. k), { last = want.shape[1] })
      t.near(distance(got.logits, want), 0, GGUF_TOLERANCE, ("prompt %d"):format(k))
    end
    runner:close()
    close(model)
  end)
end

test("separate and tied heads", function(t)
  local function head(name)
    local model = assert(models.load("tests/golden/" .. name))
    local values = model.graph:values()
    local weight = values[#values].weight
    close(model)
    return weight
  end
  t.eq(head "llama", "lm_head.weight")
  t.eq(head "llama-tied", "model.embed_tokens.weight")
end)

test("every value has a unique name, and every layer is a value", function(t)
  for _, name in ipairs(forced and { "llama" } or samples.directories "golden.safetensors") do
    local model = assert(models.load("tests/golden/" .. name))
    local values, seen, layers = model.graph:values(), {}, 0
    for _, v in ipairs(values) do
      if seen[v.name] then t.fail(("%s: two values are called %s"):format(name, v.name)) end
      seen[v.name] = v
      if v.name:match "layers%.%d+$" then layers = layers + 1 end
    end
    t.eq(layers, model.config.layers, name)
    for _, v in ipairs(values) do -- the last layer's output is what the last norm reads
      if v.op == "output" then
        t.eq(seen[v.inputs[1]].inputs[1]:match "layers%.(%d+)$", tostring(layers - 1), name)
      end
    end
    close(model)
  end
end)

test("plans list what was fused, and save memory", function(t)
  local model = assert(models.load "tests/golden/llama")
  local plan <close> = assert(model.graph:plan())
  local apart <close> = assert(model.graph:plan { fusion = false })
  local ops, fused = {}, {}
  for _, x in ipairs(plan:instructions()) do
    ops[x.op] = (ops[x.op] or 0) + 1
    for _, v in ipairs(x.fused) do fused[v.name] = x.name end
  end
  t.eq(ops.gated, 2)
  t.eq(ops.map, nil) -- residuals and activations went into products
  t.eq(fused["model.layers.0.mlp.gate_proj"], "model.layers.0.mul.1")
  t.eq(fused["model.layers.0.mlp.up_proj"], "model.layers.0.mul.1")
  t.eq(fused["model.layers.0.mlp.down_proj"], "model.layers.0")
  t.eq(fused["model.layers.1.rope.2"], "model.layers.1.store.1")
  t.eq(#apart:instructions(), 39)
  t.eq(#plan:instructions(), 28) -- with one output for the residual and one for the attention
  t.eq(ops.output, 2)
  local list, places = plan:instructions(), {}
  for i, x in ipairs(list) do places[x.name] = i end
  for k, name in ipairs { "k_proj", "v_proj" } do -- products of one input follow each other
    t.eq(places["model.layers.1.self_attn." .. name],
      places["model.layers.1.self_attn.q_proj"] + k)
  end
  t.eq(plan.row_floats < plan.unshared_floats, true)
  t.eq(plan.row_floats <= apart.row_floats, true)
  close(model)
end)
