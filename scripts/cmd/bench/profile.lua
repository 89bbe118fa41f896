-- profile: where the time of prefill and decode goes, op by op, against what the machine can do.
--
-- Rates of an op are those that all threads would reach if they did nothing else: its bytes and
-- operations by the time in which threads worked on it, times their number. Time in which a thread
-- waited for another, and in which it was not there at all, is shown separately: the three add up
-- to threads x time. `limit` is the share of the nearer of two limits, measured before: bytes of
-- weights and caches by the bandwidth of memory, operations by the fastest multiply-add loop of the
-- kind that the op uses.
local perigee = require "perigee"
local chart = require "ui.chart"
local common = require "cmd.bench.common"
local memory = require "engine.memory"

local profile = {}

local STEPS = 32 -- decode steps, at most

-- ---- measuring ----------------------------------------------------------------------------------

local function step(engine, rows)
  local ok, why = engine:step(rows)
  if not ok then error(why, 0) end
end

--- Prompts of n tokens, one step each; the first only provides the memory.
local function prefill(engine, n, seconds)
  local started
  for i = 0, 3 do
    local seq = assert(engine:add())
    if i == 1 then
      engine:profile()
      started = common.now()
    end
    step(engine, { { seq = seq, ids = common.ids(n, engine.vocabulary, i) } })
    engine:remove(seq)
    if started and common.now() - started > seconds then break end
  end
  return engine:profile()
end

--- Steps of n sequences, a token of each.
local function decode(engine, depth, n, seconds)
  local rows = {}
  for i = 1, n do
    local seq = assert(engine:add())
    rows[i] = { seq = seq, ids = common.ids(depth, engine.vocabulary, i) }
    if depth > 0 then step(engine, { rows[i] }) end
    rows[i].ids = { 1 + i }
  end
  step(engine, rows)
  engine:profile()
  local started = common.now()
  for i = 1, STEPS do
    step(engine, rows)
    if i >= 3 and common.now() - started > seconds then break end
  end
  for _, row in ipairs(rows) do engine:remove(row.seq) end
  return engine:profile()
end

-- ---- sums ---------------------------------------------------------------------------------------

--- Ops by name, the longest first. A job that was not busy did not run: others did its work.
local function by_op(seen)
  local ops, list = {}, {}
  for _, job in ipairs(seen.jobs) do
    if job.busy > 0 then
      local op = ops[job.op]
      if not op then
        op = { op = job.op, count = 0, busy = 0, wait = 0, weights = 0, cache = 0, values = 0,
          macs = 0, packed = job.packed }
        ops[job.op], list[#list + 1] = op, op
      end
      op.count = op.count + 1
      for _, key in ipairs { "busy", "wait", "weights", "cache", "values", "macs" } do
        op[key] = op[key] + job[key]
      end
    end
  end
  table.sort(list, function(a, b) return a.busy > b.busy end)
  return list
end

--- The nearer limit: its name and the share of it that the op reaches.
local function nearest(op, limits, seconds)
  local reads = (op.weights + op.cache) / limits.read / seconds
  local name = op.packed and "dot" or "fma"
  local computes = op.macs / limits[name] / seconds
  if reads == 0 and computes == 0 then return "", 0 end
  if reads >= computes then return "read", reads end
  return name, computes
end

--- A row per op and one for all, per step.
local function rows_of(phase, seen, limits)
  local rows, threads, steps = {}, seen.threads, math.max(1, seen.steps)
  local whole = math.max(seen.wall * threads, 1e-12)
  local all = { phase = phase, op = "all", count = 0, busy = 0, wait = 0, weights = 0, cache = 0,
    values = 0, macs = 0 }
  for _, op in ipairs(by_op(seen)) do
    local seconds = math.max(op.busy / threads, 1e-12)
    local bytes = op.weights + op.cache + op.values
    local limit, share = nearest(op, limits, seconds)
    rows[#rows + 1] = { phase = phase, op = op.op, count = op.count, ms = op.busy / threads / steps
      * 1e3, share = op.busy / whole, wait = op.wait / whole, mb = bytes / steps * 1e-6,
      gb_per_s = bytes / seconds * 1e-9, gflop_per_s = 2 * op.macs / seconds * 1e-9,
      limit = limit, limit_share = share, intensity = 2 * op.macs / math.max(bytes, 1) }
    for _, key in ipairs { "count", "busy", "wait", "weights", "cache", "values", "macs" } do
      all[key] = all[key] + op[key]
    end
  end
  local bytes, wall = all.weights + all.cache + all.values, math.max(seen.wall, 1e-12)
  rows[#rows + 1] = { phase = phase, op = "all", count = all.count, waits = seen.waits / steps,
    ms = seen.wall / steps * 1e3,
    share = all.busy / whole, wait = all.wait / whole,
    idle = math.max(0, 1 - (all.busy + all.wait) / whole), mb = bytes / steps * 1e-6,
    gb_per_s = bytes / wall * 1e-9, gflop_per_s = 2 * all.macs / wall * 1e-9, limit = "read",
    limit_share = (all.weights + all.cache) / wall / limits.read,
    intensity = 2 * all.macs / math.max(bytes, 1) }
  return rows
end

--- Raises if there is not enough memory for the longest prompt.
local function check_room(model, tokens)
  local plan <close> = assert(model.graph:plan())
  local ok, why = memory.check({ kv = memory.kv(model.graph, tokens, memory.kv_bits(model.options)),
    state = memory.state(model.graph), activations = memory.activations(plan, tokens) },
    { tokens = tokens, budget = model.options.memory, weights = model.weights.bytes })
  if not ok then error(why, 0) end
end

--- The rows of all phases, and the limits.
function profile.run(model, opts)
  local context = common.context(model)
  local prompts = common.numbers(opts.prompts or "512", "--prompts")
  local depths = common.numbers(opts.depths or "0", "--depths")
  local sequences = common.numbers(opts.sequences or "1", "--sequences")
  local deepest = math.min(context, math.max(table.unpack(depths)) + STEPS + 1)
  local most = math.max(math.min(context, math.max(table.unpack(prompts))),
    deepest * math.max(table.unpack(sequences)))
  check_room(model, most)
  local o = model.options
  local engine <close>, why = perigee.engine.open(model.graph, { threads = o.threads,
    sequences = math.max(table.unpack(sequences)), tokens = most, kv_bits = o.kv_bits,
    precision = o.precision, device = o.device,
    profile = true })
  if not engine then error(why, 0) end
  local limits, failed = engine:limits()
  if not limits then error(failed, 0) end
  local rows = {}
  local function add(phase, seen)
    local list = rows_of(phase, seen, limits)
    table.move(list, 1, #list, #rows + 1, rows)
  end
  for _, n in ipairs(prompts) do
    if n <= context then add(("prefill %d"):format(n), prefill(engine, n, opts.seconds)) end
  end
  for _, depth in ipairs(depths) do
    for _, n in ipairs(depth + STEPS < context and sequences or {}) do
      local phase = n == 1 and "decode at %d" or "decode at %d, batch %d"
      add(phase:format(depth, n), decode(engine, depth, n, opts.seconds))
    end
  end
  return rows, limits
end

-- ---- output -------------------------------------------------------------------------------------

profile.columns = { "phase", "op", "count", "ms", "share", "wait", "idle", "mb", "gb_per_s",
  "gflop_per_s", "limit", "limit_share", "waits" }

local function percent(x) return x and x > 0 and ("%.1f %%"):format(100 * x) or "" end

--- Rows of a table for people.
function profile.cells(rows)
  local out = { { "phase", "op", "count", "ms/step", "busy", "waiting", "idle", "MB/step", "GB/s",
    "GFLOP/s", "of its limit", "waits" } }
  for i, r in ipairs(rows) do
    out[i + 1] = { r.phase, r.op, r.count, ("%.3f"):format(r.ms), percent(r.share),
      percent(r.wait), percent(r.idle), ("%.2f"):format(r.mb), ("%.2f"):format(r.gb_per_s),
      r.gflop_per_s > 0 and ("%.1f"):format(r.gflop_per_s) or "",
      r.limit_share > 0 and ("%.0f %% %s"):format(100 * r.limit_share, r.limit) or "",
      r.waits and ("%.0f"):format(r.waits) or "" }
  end
  return out
end

function profile.describe(limits)
  return ("limits (%s): read %.1f GB/s, fma %.0f GFLOP/s, dot (16-bit integers) %.0f GOP/s")
    :format(limits.name, limits.read * 1e-9, 2 * limits.fma * 1e-9, 2 * limits.dot * 1e-9)
end

--- A roofline of the products and attention of all phases, as SVG.
function profile.svg(rows, limits, title)
  local points = {}
  for _, r in ipairs(rows) do
    if r.op ~= "all" and r.gflop_per_s > 0 and r.share > 0.005 then
      points[#points + 1] = { label = ("%s, %s"):format(r.op, r.phase), intensity = r.intensity,
        rate = r.gflop_per_s * 1e9, share = r.share }
    end
  end
  local roofs = { { name = "float32", rate = 2 * limits.fma },
    { name = "16-bit integers", rate = 2 * limits.dot } }
  table.sort(roofs, function(a, b) return a.rate < b.rate end)
  return chart.roofline { title = title, note = "circles: share of the time of all threads",
    read = limits.read, roofs = roofs, points = points }
end

return profile
