-- bench: tokens per second of a model, or of a shape with random weights: one sequence, batches,
-- load.
local perigee = require "perigee"
local command = require "lib.command"
local count = require "cmd.bench.count"
local held = require "cmd.bench.held"
local image = require "cmd.bench.image"
local load = require "cmd.bench.load"
local models = require "models"
local preload = require "engine.preload"
local profile = require "cmd.bench.profile"
local progress = require "ui.progress"
local quality = require "cmd.bench.quality"
local shapes = require "cmd.bench.shapes"
local single = require "cmd.bench.single"
local tables = require "ui.table"
local text = require "lib.text"
local towers = require "models.vision"
local vision = require "engine.vision"
local json = perigee.json

-- In the order in which they run. rows: the number of results.
local tests = {
  { name = "prefill", run = single.prefill, rows = 3 },
  { name = "decode", run = single.decode, rows = 2 },
  { name = "batch", run = load.batch, rows = 4 },
  { name = "mixed", run = load.mixed, rows = 1 },
  { name = "prefix", run = load.prefix, rows = 1 },
  { name = "memory", run = load.memory, rows = 1 },
  { name = "grammar", run = held.run, rows = 1 },
  { name = "image", run = image.run, rows = 5 },
}

local function open(opts)
  local model, why
  if opts.shape then
    local weights, config = shapes.make(opts.shape, opts.quant)
    if not weights then return nil, config end
    local name = ("%s %s"):format(opts.shape, opts.quant)
    model, why = models.assemble(weights, config, { path = name })
  else
    model, why = models.load(opts[1])
  end
  if not model then return nil, why end
  model.options = command.model_options(opts, "fast")
  preload(model)
  local tower, broken = towers.build(model.weights, model.parsed)
  if broken then return nil, broken end
  model.vision = tower and vision.new(model, tower)
  return model
end

--- The tests that --tests names, in the order above; or nil and a message about one that does not
--- exist.
local function chosen(list)
  if not list then return tests end
  local wanted, out = {}, {}
  for name in list:gmatch "[^,%s]+" do wanted[name] = true end
  for _, t in ipairs(tests) do
    if wanted[t.name] then out[#out + 1] = t end
    wanted[t.name] = nil
  end
  local unknown = next(wanted)
  if unknown then
    local names = {}
    for i, t in ipairs(tests) do names[i] = t.name end
    return nil, ("unknown test '%s' (tests: %s)"):format(unknown, table.concat(names, ", "))
  end
  return out
end

local function measure(model, opts, list)
  local total, rows = 0, {}
  for _, t in ipairs(list) do total = total + t.rows end
  local bar <close> = progress.new("bench", total)
  for _, t in ipairs(list) do
    bar:update(#rows, t.name)
    t.run(model, opts, function(row)
      rows[#rows + 1] = row
      bar:update(#rows, t.name)
    end)
  end
  return rows
end

-- ---- output -------------------------------------------------------------------------------------

local columns = { "test", "tokens", "batch", "depth", "tokens_per_s", "mean_per_s", "gb_per_s",
  "speedup", "free_per_s", "gap_alone_ms", "gap_p50_ms", "gap_p99_ms", "first_ms", "repeat_ms",
  "decode_ms", "cached", "ratio", "bytes_per_token", "bytes_fixed", "patches", "images_per_s" }

--- One line: the head (a list of pairs) and the rows.
local function print_json(head, rows, keys)
  local list = json.array {}
  for i, row in ipairs(rows) do
    local o = json.object()
    for _, key in ipairs(keys) do o[key] = row[key] end
    list[i] = o
  end
  head[#head + 1] = { "rows", list }
  io.write(json.encode(json.object(head)), "\n")
end

local function print_csv(rows, keys)
  io.write(table.concat(keys, ","), "\n")
  for _, row in ipairs(rows) do
    local cells = {}
    for i, key in ipairs(keys) do
      local v = row[key]
      cells[i] = v == nil and "" or math.type(v) == "float" and ("%.6g"):format(v) or tostring(v)
    end
    io.write(table.concat(cells, ","), "\n")
  end
end

--- The numbers of a result that have no column.
local function remarks(row)
  if row.test == "mixed" then
    return ("time between tokens of 7 streams: %.1f ms alone, p50 %.1f, p99 %.1f (%.2fx)"):format(
      row.gap_alone_ms, row.gap_p50_ms, row.gap_p99_ms, row.ratio)
  elseif row.test == "prefix" then
    return ("first token %.0f ms, repeated %.1f ms (%.2f decode steps), %d cached"):format(
      row.first_ms, row.repeat_ms, row.ratio, row.cached)
  elseif row.test == "memory" then
    return ("%s per token, %s fixed"):format(text.bytes(row.bytes_per_token),
      text.bytes(row.bytes_fixed))
  elseif row.test == "grammar" then
    return ("held to JSON schemas; free %.1f tokens/s (%.2fx)"):format(row.free_per_s, row.ratio)
  elseif row.test == "image" and row.first_ms then
    return ("a picture in a conversation: first token %.0f ms, again %.1f ms (%.0fx), %d cached")
      :format(row.first_ms, row.repeat_ms, row.ratio, row.cached)
  elseif row.test == "image" then
    return ("%.2f pictures/s of %d patches"):format(row.images_per_s, row.patches)
  elseif row.speedup then
    return ("%.2fx one sequence"):format(row.speedup)
  end
  return ""
end

local function speed_cells(rows)
  local out = { { "test", "tokens", "batch", "depth", "tokens/s", "GB/s", "" } }
  for i, row in ipairs(rows) do
    out[i + 1] = { row.test, row.tokens, row.batch, row.depth,
      row.tokens_per_s and ("%.1f"):format(row.tokens_per_s) or "",
      row.gb_per_s and ("%.2f"):format(row.gb_per_s) or "", remarks(row) }
  end
  return out
end

--- shown: rows, columns (of JSON and CSV), cells (of a table), title and head (pairs of JSON).
local function print_rows(opts, shown)
  if opts.json then return print_json(shown.head, shown.rows, shown.columns) end
  if opts.csv then return print_csv(shown.rows, shown.columns) end
  io.write(shown.title, "\n", tables.render(shown.cells, { header = true }), "\n")
  if shown.times then io.write("\n", tables.render(shown.times, { header = true }), "\n") end
end

--- Title and head of measurements of a model.
local function describe(model, opts)
  local threads = opts.threads or perigee.sys.machine().cores
  local how = model.options.precision
  return ("%s, %s, %d threads, %s"):format(model.path, text.bytes(model.weights.bytes), threads,
      how),
    { { "model", model.path }, { "bytes", model.weights.bytes }, { "threads", threads },
      { "precision", how } }
end

-- ---- what to do ---------------------------------------------------------------------------------

local function run_speed(model, opts)
  local title, head = describe(model, opts)
  local rows = measure(model, opts, opts.chosen)
  return { rows = rows, columns = columns, cells = speed_cells(rows), title = title, head = head }
end

local function run_profile(model, opts)
  local title, head = describe(model, opts)
  local rows, limits = profile.run(model, opts)
  if opts.svg then
    local file = assert(io.open(opts.svg, "wb"))
    file:write(profile.svg(rows, limits, title))
    assert(file:close())
  end
  head[#head + 1] = { "limits", json.object { { "name", limits.name }, { "read", limits.read },
    { "fma", limits.fma }, { "dot", limits.dot } } }
  return { rows = rows, columns = profile.columns, cells = profile.cells(rows),
    title = title .. "\n" .. profile.describe(limits), head = head }
end

local function run_count(model, opts)
  local rows = count.run(model, opts)
  return { rows = rows, columns = count.columns, cells = count.cells(rows),
    title = ("%s, %s, on Metal, per token"):format(model.path, text.bytes(model.weights.bytes)),
    times = count.times(rows),
    head = { { "model", model.path }, { "bytes", model.weights.bytes } } }
end

local function run_quality(opts)
  if not opts[1] then return nil, "--quality needs a MODEL" end
  local rows, why = quality.run(opts)
  if not rows then return nil, why end
  print_rows(opts, { rows = rows, columns = quality.columns, cells = quality.cells(rows),
    title = ("%s, %d tokens, against exact with a KV cache of 32 bits"):format(opts[1],
      rows[1].tokens), head = { { "model", opts[1] } } })
end

local function main(opts)
  if opts.count and opts.device ~= "metal" then return nil, "--count needs --device metal" end
  if not opts.count then -- which needs no GPU
    local possible, unable = command.check_compute(opts)
    if not possible then return nil, unable end
  end
  if (opts.shape == nil) == (opts[1] == nil) then
    return nil, "expected either MODEL or --shape"
  end
  if opts.quality then return run_quality(opts) end
  local unknown
  opts.chosen, unknown = chosen(opts.tests)
  if not opts.chosen then return nil, unknown end
  local model, why = open(opts)
  if not model then return nil, why end
  local ok, shown = pcall(opts.count and run_count or opts.profile and run_profile or run_speed,
    model, opts)
  if not ok then return nil, shown end
  print_rows(opts, shown)
end

return {
  summary = "measure prefill, decode and batch speed, latency and cache memory",
  usage = "[MODEL]",
  details = "Measures MODEL or, with --shape, a model with random weights. Shapes:\n"
    .. table.concat(shapes.names(), ", ") .. [[.

Tests:
  prefill   one prompt of 16, 128 and 512 tokens
  decode    one sequence, at depth 0 and 512
  batch     decode with 1, 2, 4 and 8 sequences
  mixed     time between tokens of 7 streams while a long prompt is prefilled
  prefix    time to first token of a long prompt, cold and from the prefix cache
  memory    KV cache bytes per token of context
  grammar   decode of 16 sequences that JSON schemas hold, and of 16 free ones in turn
  image     time to first token of a conversation with a picture, cold and from the caches, and
            pictures of 16 x 16 to 64 x 64 patches through the vision tower, if there is one

With --profile: time, bytes and operations of every op in prefill and decode, next to the limits of
this machine, measured first. With --quality: how far `fast` and each type of KV cache are from
`exact`, over a text. With --device metal --count: bytes, operations and dispatches of a token, op
by op, and the time that the bytes imply on Apple's chips; nothing is run.]],
  options = {
    { name = "shape", kind = "string", value = "NAME", help = "measure a model of this shape" },
    { name = "quant", kind = "string", value = "KIND", default = "affine4g64",
      help = "quantization of its weights: affine4g64, q4_0, bf16, …" },
    { name = "tests", kind = "string", value = "LIST", shown = "all",
      help = "tests to run, such as prefill,batch" },
    { name = "prompts", kind = "string", value = "LIST", shown = "16,128,512",
      help = "tokens of the prompts (prefill)" },
    { name = "depths", kind = "string", value = "LIST", shown = "0,512",
      help = "tokens before the first one (decode)" },
    { name = "sequences", kind = "string", value = "LIST", shown = "1,2,4,8",
      help = "sequences at a time (batch, profile)" },
    { name = "profile", kind = "flag", help = "where the time goes, op by op" },
    { name = "count", kind = "flag", help = "count what a token costs (with --device metal)" },
    { name = "svg", kind = "string", value = "FILE", help = "write a roofline (profile)" },
    { name = "quality", kind = "flag", help = "compare fast and types of KV cache with exact" },
    { name = "text", kind = "string", value = "FILE",
      help = "the text (quality; default: of perigee itself)" },
    { name = "tokens", kind = "integer", value = "N", min = 2, max = 1 << 20, default = 1500,
      help = "tokens of the text (quality)" },
    { name = "prompt", kind = "integer", value = "N", min = 16, max = 1 << 20, default = 4000,
      help = "tokens of a long prompt (mixed, prefix)" },
    { name = "seconds", kind = "number", value = "S", default = 5,
      help = "longest time for each measurement" },
    { name = "json", kind = "flag", help = "print one line of JSON" },
    { name = "csv", kind = "flag", help = "print comma-separated values" },
  },
  max = 1,
  run = main,
}
