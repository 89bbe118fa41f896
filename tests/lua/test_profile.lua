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

--- The elements of a chart: "line x1 y1 x2 y2 color width", "text x y anchor size color words".
local function elements(svg)
  local list = {}
  for line in svg:gmatch "[^\n]+" do
    local parts = { line:match "^<(%l+)" }
    for value in line:gmatch '="([^"]*)"' do parts[#parts + 1] = value:gsub("%.0$", "") end
    parts[#parts + 1] = line:match ">(.+)</"
    if parts[1] and parts[1] ~= "svg" then list[#list + 1] = table.concat(parts, " ") end
  end
  return list
end

local RATIOS = {
  "text 12 22 start 16 #6b7280 bold a &lt; b &amp; c", "text 12 42 start 12 #9ca3af n",
  "line 260 52 260 112 #d1d5db 1", "text 260 128 middle 12 #9ca3af 0×",
  "line 386.2 52 386.2 112 #6b7280 1", "text 386.2 128 middle 12 #9ca3af 1×",
  "line 512.3 52 512.3 112 #d1d5db 1", "text 512.3 128 middle 12 #9ca3af 2×",
  "line 638.5 52 638.5 112 #d1d5db 1", "text 638.5 128 middle 12 #9ca3af 3×",
  "text 252 73 end 12 #6b7280 one", "rect 260 61 315.4 16 #2563eb",
  "line 512.3 69 670 69 #6b7280 2", "line 487.1 58 487.1 80 #6b7280 1 4 3",
  "text 676 73 start 12 #6b7280 2.50×", "text 252 99 end 12 #6b7280 two",
  "rect 260 87 63.1 16 #d97706", "line 354.6 84 354.6 106 #6b7280 1 4 3",
  "text 329.1 99 start 12 #6b7280 slow",
}

local ROOFLINE = {
  "text 12 22 start 16 #6b7280 bold roof", "text 12 42 start 12 #9ca3af",
  "line 70 56 70 400 #d1d5db 1", "text 70 418 middle 12 #9ca3af 0.1",
  "line 212.5 56 212.5 400 #d1d5db 1", "text 212.5 418 middle 12 #9ca3af 1",
  "line 355 56 355 400 #d1d5db 1", "text 355 418 middle 12 #9ca3af 10",
  "line 497.5 56 497.5 400 #d1d5db 1", "text 497.5 418 middle 12 #9ca3af 100",
  "line 640 56 640 400 #d1d5db 1", "text 640 418 middle 12 #9ca3af 1000",
  "line 70 400 640 400 #d1d5db 1", "text 64 404 end 12 #9ca3af 100 M",
  "line 70 314 640 314 #d1d5db 1", "text 64 318 end 12 #9ca3af 1 G",
  "line 70 228 640 228 #d1d5db 1", "text 64 232 end 12 #9ca3af 10 G",
  "line 70 142 640 142 #d1d5db 1", "text 64 146 end 12 #9ca3af 100 G",
  "line 70 56 640 56 #d1d5db 1", "text 64 60 end 12 #9ca3af 1 T",
  "text 355 436 middle 12 #6b7280 operations per byte", "line 355 142 640 142 #6b7280 2",
  "text 636 136 end 12 #6b7280 x 100 G/s", "line 423 101 640 101 #6b7280 2",
  "text 636 95 end 12 #6b7280 y 300 G/s", "line 70 314 423 101 #6b7280 2",
  "text 78 302 start 12 #6b7280 10.0 GB/s", "circle 70 314 13.9 #2563eb 0.8",
  "circle 656 66 5 #2563eb 0.8", "text 666 70 start 12 #6b7280 p 50 %",
  "circle 554.2 116.1 4 #d97706 0.8", "circle 656 86 5 #d97706 0.8",
  "text 666 90 start 12 #6b7280 q 0 %",
}

test("charts are SVG", function(t)
  local svg = chart.ratios { title = "a < b & c", note = "n", rows = {
    { label = "one", value = 2.5, low = 2, high = 3.25, bar = 1.8 },
    { label = "two", value = 0.5, bar = 0.75, note = "slow" } } }
  check_svg(t, svg)
  t.match(svg, 'width="760" height="142" viewBox="0 0 760 142"')
  t.eq(elements(svg), RATIOS)
  check_svg(t, chart.ratios { title = "one", rows = { { label = "a", value = 1 } } })
  svg = chart.roofline { title = "roof", read = 1e10, roofs = { { name = "x", rate = 1e11 },
    { name = "y", rate = 3e11 } }, points = {
    { label = "p", intensity = 0.01, rate = 1e9, share = 0.5 },
    { label = "q", intensity = 250, rate = 2e11, share = 0 } } }
  check_svg(t, svg)
  t.match(svg, 'width="860" height="448" viewBox="0 0 860 448"')
  t.eq(elements(svg), ROOFLINE)
  check_svg(t, chart.roofline { title = "empty", read = 1e10,
    roofs = { { name = "x", rate = 1e11 } }, points = {} })
end)
