-- C functions return as many values as their annotations in scripts/meta say: one too many would be
-- whatever lies below it on the stack.
local help = require "repl.help"
local perigee = require "perigee"
local test = require("harness").test
local tiny = require "tiny"

--- The number of values that a function returns when it succeeds, by name.
local function annotated()
  local out = {}
  for _, e in ipairs(help.entries()) do
    if e.kind == "function" and e.member then
      local n = 0
      for _, tag in ipairs(e.tags) do
        local failure = tag.text:find "^perigee%.Error"
        if tag.kind == "return" and not failure then n = n + 1 end
      end
      out[e.class .. "." .. e.member] = n
    end
  end
  return out
end

local WANT = annotated()

--- Calls a function and compares the number of its results; returns the first.
local function call(t, name, f, ...)
  local got = table.pack(f(...))
  t.ok(WANT[name], name .. " has no annotation")
  t.eq(got.n, WANT[name], name)
  for i = 1, got.n do t.ok(got[i] ~= nil, ("%s: result %d is nil"):format(name, i)) end
  return got[1]
end

--- Calls object:method(...).
local function try(t, class, object, method, ...)
  return call(t, class .. "." .. method, object[method], object, ...)
end

test("results of an engine", function(t)
  local model = tiny.model()
  local function on(...) return try(t, "perigee.Engine", ...) end
  local name = model.graph:values()[1].name
  local engine = call(t, "perigee.engine.open", perigee.engine.open, model.graph,
    { threads = 1, tokens = 256, sequences = 4, taps = { name }, profile = true })
  local path = os.tmpname()
  local a = on(engine, "add")
  t.eq(on(engine, "step", { { seq = a, ids = { 1, 2, 3 }, outputs = 1 } }), 1)
  on(engine, "argmax", 1)
  on(engine, "sample", 1, { seed = 1 })
  on(engine, "logits"):close()
  on(engine, "tap", 1):close()
  t.eq(on(engine, "profile").steps, 1)
  t.ok(on(engine, "limits").read > 0)
  local b = on(engine, "fork", a)
  t.eq(on(engine, "info", b).ids, { 1, 2, 3 })
  on(engine, "snapshot", a):close()
  on(engine, "trim", b, 2)
  on(engine, "save", b, path)
  t.eq(on(engine, "info", on(engine, "load", path)).ids, { 1, 2 })
  on(engine, "remove", a)
  on(engine, "close")
  os.remove(path)
end)

test("results of graphs and plans", function(t)
  local model = tiny.model()
  local graph = model.graph
  local function on(...) return try(t, "perigee.Graph", graph, ...) end
  local embed = on("param", "model.embed_tokens.weight")
  t.eq(select("#", graph:param "nowhere"), 1)
  on("param_shape", embed)
  on("rows", embed, { from = 1, count = 8 })
  on("split", embed, 4)
  local x = on("embed", embed, {})
  t.eq(on("shape", x), { 64 })
  local q = on("linear", x, { weight = on("param", "model.layers.0.self_attn.q_proj.weight") })
  on("unary", "silu", q)
  on("binary", "add", { a = q, b = q })
  on("norm", q, { eps = 1e-6 })
  local heads = on("reshape", q, { 4, 16 })
  on("slice", heads, { from = 1, count = 4 })
  on("concat", { q, q })
  local value, layer, more = graph:attention { q = heads, k = heads, v = heads, scale = 1 }
  t.eq({ type(value), math.type(layer), more }, { type(x), "integer" })
  on("name", q, "query")
  for _, name in ipairs { "values", "unused", "caches" } do on(name) end
  local plan = on "plan"
  try(t, "perigee.Plan", plan, "instructions")
  try(t, "perigee.Plan", plan, "close")
  call(t, "perigee.batch.kv_bytes", perigee.batch.kv_bytes, graph, 10, 16)
end)

test("results of batches, the system and values", function(t)
  local model = tiny.model()
  local core = call(t, "perigee.batch.open", perigee.batch.open, model.graph,
    { threads = 1, sequences = 2, context = 64, cache_tokens = 256 })
  for _, name in ipairs { "sequences", "room", "stats", "trace", "start", "pending", "completed",
    "drain", "stop" } do
    try(t, "perigee.BatchCore", core, name)
  end
  try(t, "perigee.BatchCore", core, "close")
  for _, name in ipairs { "machine", "versions", "cpu_ns", "trim", "raise_files" } do
    call(t, "perigee.sys." .. name, perigee.sys[name])
  end
  call(t, "perigee.sys.script", perigee.sys.script, "main.lua")
  call(t, "perigee.sys.width", perigee.sys.width, "é")
  call(t, "perigee.sys.equal", perigee.sys.equal, "a", "a")
  local secret = ("s"):rep(32)
  local closed = call(t, "perigee.sys.seal", perigee.sys.seal, secret, ("n"):rep(12), "text")
  call(t, "perigee.sys.unseal", perigee.sys.unseal, secret, closed)
  call(t, "perigee.sys.is_refused", perigee.sys.is_refused, "/")
  for _, name in ipairs { "fields", "commands" } do
    call(t, "perigee.batch." .. name, perigee.batch[name])
  end
  local json = perigee.json
  call(t, "perigee.json.decode", json.decode, "[1]")
  call(t, "perigee.json.encode", json.encode, { 1 })
  call(t, "perigee.json.array", json.array, { 1 })
  call(t, "perigee.json.object", json.object, { { "a", 1 } })
  call(t, "perigee.json.is_array", json.is_array, {})
  call(t, "perigee.json.is_object", json.is_object, {})
  for _, name in ipairs { "live", "classes", "heap" } do
    call(t, "perigee." .. name, perigee[name])
  end
  t.eq(select("#", perigee.error("io", "no")), 1)
  local bytes = call(t, "perigee.bytes.new", perigee.bytes.new, 100)
  local function on(...) return try(t, "perigee.Bytes", bytes, ...) end
  on("put", "hello")
  t.eq({ on "len", on("sub", 2, 3), on "text" }, { 5, "el", "hello" })
  on("slice", 2, 3):close()
  on "close"
end)

-- What the methods of a tensor take; the others take nothing.
local TAKES = { item = false, close = false, rows = { 1, 1 }, slice = { { { 1, 1 } } },
  select = { 1, 1 }, view = { { 4 } }, reshape = { { 4 } }, permute = { { 2, 1 } }, swap = { 1, 2 },
  expand = { { 2, 2 } }, unsqueeze = { 1 }, to = { "f64" }, fill = { 1 }, take = { { 1 } },
  clamp = { 0, 1 }, softmax = { 1 }, log_softmax = { 1 }, cumsum = { 1 }, sort = { 1 },
  argsort = { 1 }, topk = { 1 }, histogram = { 4 } }
local BOTH = { "write", "add", "sub", "mul", "div", "idiv", "mod", "pow", "minimum", "maximum",
  "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "matmul", "equal", "close_to" }

test("results of every method of a tensor", function(t)
  local x = perigee.tensor { { 1.0, 2.0 }, { 3.0, 4.0 } }
  local both = { where = { x, x } }
  for _, name in ipairs(BOTH) do both[name] = { x } end
  for _, name in ipairs(perigee.classes()["perigee.Tensor"].methods) do
    local takes = TAKES[name]
    if takes == nil then takes = both[name] end
    if takes ~= false then
      local of = name == "where" and x:gt(1) or x:copy()
      try(t, "perigee.Tensor", of, name, table.unpack(takes or {}))
    end
  end
  try(t, "perigee.Tensor", x:select(1, 1):select(1, 1), "item")
  for name, shape in pairs { zeros = { 2 }, ones = { 2 }, uniform = { 2 }, normal = { 2 } } do
    call(t, "perigee.tensor." .. name, perigee.tensor[name], shape)
  end
  call(t, "perigee.tensor.full", perigee.tensor.full, { 2 }, 1)
  call(t, "perigee.tensor.eye", perigee.tensor.eye, 2)
  call(t, "perigee.tensor.range", perigee.tensor.range, 2)
  call(t, "perigee.tensor.is", perigee.tensor.is, x)
  call(t, "perigee.tensor.concat", perigee.tensor.concat, { x, x })
  call(t, "perigee.tensor.stack", perigee.tensor.stack, { x, x })
end)

test("results of weights and tokenizers", function(t)
  local weights = call(t, "perigee.weights.synthetic", perigee.weights.synthetic,
    { { name = "a", shape = { 2, 4 }, kind = "f32" } })
  local function on(...) return try(t, "perigee.Weights", weights, ...) end
  for _, name in ipairs { "names", "metadata", "summary", "files", "check" } do on(name) end
  on("find", "a")
  t.eq(select("#", weights:find "b"), 1)
  on("rows", "a", { from = 1, count = 1 })
  on("touch", 1)
  on "close"
  local tok = call(t, "perigee.tokenizer.open", perigee.tokenizer.open, "examples/moonlet")
  local function with(...) return try(t, "perigee.Tokenizer", tok, ...) end
  t.eq(select("#", tok:encode "Hello"), 1)
  local ids = tok:encode "Hello"
  with("decode", ids)
  with("token", ids[1])
  with("bytes", ids[1])
  with("id", with("token", ids[1]))
  with("is_special", ids[1])
  with "added"
  local stream = with "stream"
  try(t, "perigee.Detokenizer", stream, "push", ids[1])
  try(t, "perigee.Detokenizer", stream, "finish")
  try(t, "perigee.Detokenizer", stream, "close")
  with "close"
end)

-- ---- tables -------------------------------------------------------------------------------------

--- The fields of every annotated class: { class = { name = is it always there? } }.
local function annotated_fields()
  local classes = {}
  for _, path in ipairs((perigee.sys.scripts())) do
    local class
    for line in (path:match "^meta/" and perigee.sys.script(path) or ""):gmatch "[^\n]+" do
      local name = line:match "^%-%-%-@class ([%w_.]+)"
      if name then
        class = classes[name] or {}
        classes[name] = class
      end
      local field, optional = line:match "^%-%-%-@field ([%w_]+)(%??)%s"
      if field and class then class[field] = optional == "" end
    end
  end
  return classes
end

--- Has this table the fields of the class, and no others?
local function fits(t, classes, class, value)
  for name, always in pairs(classes[class]) do
    t.ok(value[name] ~= nil or not always, ("%s.%s is missing"):format(class, name))
  end
  for name in pairs(value) do
    t.ok(classes[class][name] ~= nil, ("%s.%s has no annotation"):format(class, tostring(name)))
  end
end

test("tables have the fields of their annotations", function(t)
  local classes = annotated_fields()
  local model = tiny.model()
  fits(t, classes, "perigee.Machine", perigee.sys.machine())
  fits(t, classes, "perigee.TensorStats", perigee.tensor({ 1.0 }):stats())
  fits(t, classes, "perigee.WeightInfo", model.weights:find(model.weights:names()[1]))
  for _, v in ipairs(model.graph:values()) do fits(t, classes, "perigee.ValueInfo", v) end
  fits(t, classes, "perigee.CacheGroup", model.graph:caches().groups[1])
  local plan <close> = model.graph:plan()
  for _, i in ipairs(plan:instructions()) do fits(t, classes, "perigee.Instruction", i) end
  for _, f in ipairs(perigee.batch.fields()) do fits(t, classes, "perigee.BatchField", f) end
  local b <close> = assert(perigee.batch.open(model.graph,
    { threads = 1, sequences = 2, context = 64, cache_tokens = 256 }))
  local id = b:command("add", { prompt = { 1, 2, 3 }, max_tokens = 2, top_logprobs = 2,
    temperature = 0 })
  fits(t, classes, "perigee.SeqInfo", b:sequences()[1])
  local seen = {}
  for _ = 1, 3 do
    for _, e in ipairs(b:step { { id, 64 } }) do
      fits(t, classes, "perigee.BatchEvent", e)
      for key in pairs(e) do seen[key] = true end
      if e.id then t.eq({ #e.top, e.top[1].id, e.top[1].logprob }, { 2, e.id, e.logprob }) end
    end
  end
  for _, key in ipairs { "seq", "id", "logprob", "top", "text", "finish", "prompt_tokens",
    "completion_tokens", "cached_tokens" } do
    t.ok(seen[key], key)
  end
  fits(t, classes, "perigee.BatchTrace", b:trace()[1])
  local stats = b:stats()
  for _, key in ipairs { "steps", "prefill_tokens", "decode_tokens", "cached_tokens", "added",
    "finished", "cancelled", "failed", "preempted", "running", "waiting", "media_bytes" } do
    t.eq(math.type(stats[key]), "integer", key)
  end
  for _, key in ipairs { "schedule", "compute", "sample" } do
    t.ok(stats[key] >= 0 and stats[key] < 60 and b:trace()[1][key] < 60, key)
  end
  for _, key in ipairs { "bytes", "disk_bytes", "nodes", "snapshots", "lookups", "hits",
    "hit_tokens", "asked_tokens", "evictions", "disk_reads", "disk_writes", "disk_errors" } do
    t.eq(math.type(stats.prefix[key]), "integer", key)
  end
  t.eq({ stats.steps, stats.prefill_tokens, stats.decode_tokens, stats.finished, stats.running,
    stats.waiting, stats.failed }, { 2, 3, 2, 1, 0, 0, 0 })
end)
