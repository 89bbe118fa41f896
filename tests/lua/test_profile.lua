-- The profile of an engine: what ops cost, and that counting changes no number. Charts of it.
local chart = require "ui.chart"
local perigee = require "perigee"
local profile = require "cmd.bench.profile"
local shapes = require "cmd.bench.shapes"
local models = require "models"
local test = require("harness").test

local function tiny(quant)
  local weights, config = assert(shapes.make("tiny", quant))
  return assert(models.assemble(weights, config, { path = "tiny" }))
end

local function open(model, options)
  options.tokens = 64
  return assert(perigee.engine.open(model.graph, options))
end

local function run(engine, ids)
  local seq = assert(engine:add())
  assert(engine:step { { seq = seq, ids = ids, outputs = #ids } })
  local logits = engine:logits()
  engine:remove(seq)
  return logits
end

--- Sums of the jobs of an op.
local function sums(seen, op)
  local out = { count = 0, weights = 0, cache = 0, values = 0, macs = 0 }
  for _, job in ipairs(seen.jobs) do
    if job.op == op then
      out.count = out.count + 1
      for _, key in ipairs { "weights", "cache", "values", "macs" } do
        out[key] = out[key] + job[key]
      end
    end
  end
  return out
end

for _, precision in ipairs { "exact", "fast" } do
  test("a profile counts bytes and operations: " .. precision, function(t)
    local model = tiny "affine4g64"
    local engine <close> = open(model, { threads = 2, precision = precision, profile = true })
    run(engine, { 1, 2, 3, 4 })
    local seen = engine:profile()
    t.eq(seen.steps, 1)
    t.eq(seen.threads, 2)
    -- two layers of width 128 with 4 heads of 32, 2 of keys; a head of 1024 outputs
    local layer = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 128 * 256
    t.eq(sums(seen, "linear").macs, 4.0 * (2 * layer + 128 * 1024))
    t.eq(sums(seen, "gated").macs, 4.0 * 2 * 2 * 128 * 256)
    -- query i sees i keys; 4 heads of 32 values, keys and values
    t.eq(sums(seen, "attention").macs, 2.0 * (1 + 2 + 3 + 4) * 4 * 64)
    local bytes = precision == "fast" and 2 or 4
    t.eq(sums(seen, "attention").cache, 2.0 * 4 * 2 * 64 * bytes)
    t.eq(sums(seen, "store").cache, 2.0 * 4 * 2 * 64 * bytes)
    t.ok(sums(seen, "linear").weights >= (2 * layer + 128 * 1024) / 2)
    t.eq(sums(seen, "round").count > 0, precision == "fast")
    local busy = 0
    for _, job in ipairs(seen.jobs) do busy = busy + job.busy + job.wait end
    t.ok(busy > 0 and busy <= 2 * seen.wall, "more time than there was")
    t.eq(engine:profile().steps, 0, "it counts from zero")
  end)
end

test("a profile changes no number", function(t)
  local model = tiny "q4_0"
  local plain <close> = open(model, { threads = 2, precision = "fast" })
  local counted <close> = open(model, { threads = 2, precision = "fast", profile = true })
  t.ok(run(plain, { 5, 6, 7 }):equal(run(counted, { 5, 6, 7 })))
  t.raises(function() plain:profile() end, "without the option 'profile'")
end)

test("limits are numbers of this machine", function(t)
  local engine <close> = open(tiny "bf16", { threads = 1 })
  local limits = engine:limits()
  t.ok(limits.read > 1e8 and limits.read < 1e13)
  t.ok(limits.fma > 1e8 and limits.fma < 1e15)
  t.ok(limits.dot > 1e8 and limits.dot < 1e15)
  t.ok(limits.latency > 1e-9 and limits.latency < 1e-4)
end)

test("phases are prompts, and batches at depths", function(t)
  local model = tiny "q4_0"
  model.options = { threads = 1, precision = "fast" }
  local rows = profile.run(model,
    { prompts = "8", depths = "0,3", sequences = "1,3", seconds = 0 })
  local phases, macs = {}, {}
  for _, row in ipairs(rows) do
    if row.op == "all" then phases[#phases + 1] = row.phase end
    if row.op == "linear" then macs[row.phase] = row.gflop_per_s * row.ms end
  end
  t.eq(phases, { "prefill 8", "decode at 0", "decode at 0, batch 3", "decode at 3",
    "decode at 3, batch 3" })
  t.ok(math.abs(macs["decode at 3, batch 3"] / macs["decode at 3"] - 3) < 1e-6)
end)

--- Every element is closed, and no number is missing.
local function check_svg(t, svg)
  t.match(svg, "^<svg .*</svg>\n$")
  t.eq(svg:find("nan", 1, true), nil)
  t.eq(svg:find("inf", 1, true), nil)
  local _, opened = svg:gsub("<text", "")
  local _, closed = svg:gsub("</text>", "")
  t.eq(opened, closed)
end

test("charts are SVG", function(t)
  local svg = chart.ratios { title = "a < b & c", rows = {
    { label = "one", value = 2.5, low = 2, high = 3.25, bar = 1.8 },
    { label = "two", value = 0.5 } } }
  check_svg(t, svg)
  t.match(svg, "a &lt; b &amp; c")
  t.match(svg, "2%.50×")
  t.match(svg, '<line x1="512%.3" y1="69%.0" x2="670%.0" y2="69%.0"') -- from low to high
  svg = chart.roofline { title = "roof", read = 1e10, roofs = { { name = "x", rate = 1e11 },
    { name = "y", rate = 3e11 } }, points = {
    { label = "p", intensity = 0.01, rate = 1e9, share = 0.5 },
    { label = "q", intensity = 250, rate = 2e11, share = 0 } } }
  check_svg(t, svg)
  t.match(svg, ">p 50 %%<")
  t.match(svg, ">q 0 %%<")
  check_svg(t, chart.roofline { title = "empty", read = 1e10,
    roofs = { { name = "x", rate = 1e11 } }, points = {} })
end)
