-- count: what a token costs on Metal, counted from the plan and the table of kernels: no GPU is
-- asked, so the numbers are the same on every machine.
--
-- Bytes are those of weights (as often as the kernels read them), caches and lines of values. The
-- least that a step can do is to read every weight that it needs, and the cache, once; `excess` is
-- what the kernels read and write beyond that. A chip's time is the longer of bytes by bandwidth
-- and operations by the rate of its GPU: what it takes at best.
local common = require "cmd.bench.common"
local memory = require "engine.memory"

local count = {}

-- GB/s of unified memory, as published, and TFLOPS of the largest GPU of the name: its cores times
-- 128 lanes times 2 times the clock.
local chips = {
  { "M1", 68, 2.6 }, { "M1 Pro", 200, 5.3 }, { "M1 Max", 400, 10.6 }, { "M1 Ultra", 800, 21.2 },
  { "M2", 100, 3.6 }, { "M2 Pro", 200, 6.8 }, { "M2 Max", 400, 13.6 }, { "M2 Ultra", 800, 27.2 },
  { "M3", 100, 3.5 }, { "M3 Pro", 150, 6.4 }, { "M3 Max", 400, 14.1 }, { "M3 Ultra", 819, 28.3 },
  { "M4", 120, 4.0 }, { "M4 Pro", 273, 8.1 }, { "M4 Max", 546, 16.2 },
  { "M5", 153, 4.1 },
}

local sums = { "dispatches", "barriers", "weights", "cache", "values", "macs", "once" }

local function add(to, from)
  to.count = to.count + 1
  for _, key in ipairs(sums) do to[key] = to[key] + from[key] end
end

local function zero(op)
  local row = { op = op, count = 0 }
  for _, key in ipairs(sums) do row[key] = 0 end
  return row
end

--- The costs of a step: rows by op, the most expensive first, and their sum.
local function by_op(costs)
  local ops, list, all = {}, {}, zero "all"
  for _, cost in ipairs(costs) do
    if cost.values > 0 then -- it runs, alone or with another
      if not ops[cost.op] then
        ops[cost.op] = zero(cost.op)
        list[#list + 1] = ops[cost.op]
      end
      add(ops[cost.op], cost)
      add(all, cost)
    end
  end
  table.sort(list, function(a, b)
    local x, y = a.weights + a.cache + a.values, b.weights + b.cache + b.values
    return x > y or x == y and a.op < b.op
  end)
  list[#list + 1] = all
  return list
end

local function row_of(phase, tokens, op)
  local bytes = op.weights + op.cache + op.values
  local row = { phase = phase, op = op.op, count = op.count, dispatches = op.dispatches / tokens,
    barriers = op.barriers / tokens, weights_mb = op.weights / tokens * 1e-6,
    cache_mb = op.cache / tokens * 1e-6, values_mb = op.values / tokens * 1e-6,
    mb = bytes / tokens * 1e-6, gflop = 2 * op.macs / tokens * 1e-9 }
  if op.op == "all" then
    row.excess = bytes / math.max(op.once, 1) - 1
    row.chips = {}
    for i, chip in ipairs(chips) do
      row.chips[i] = { chip = chip[1], gb_per_s = chip[2], tflops = chip[3],
        ms = math.max(bytes / chip[2], 2 * op.macs / chip[3] * 1e-3) / tokens * 1e-6 }
    end
  end
  return row
end

--- The rows of all phases, per token.
function count.run(model, opts)
  local rows, context = {}, common.context(model)
  local plan <close> = assert(model.graph:plan())
  local function phase(name, o, tokens)
    o.kv_bits = memory.kv_bits(model.options)
    local costs, why = plan:count(o)
    if not costs then error(why, 0) end
    for _, op in ipairs(by_op(costs)) do rows[#rows + 1] = row_of(name, tokens, op) end
  end
  for _, n in ipairs(common.numbers(opts.prompts or "512", "--prompts")) do
    if n > 0 and n <= context then phase(("prefill %d"):format(n), { rows = n }, n) end
  end
  for _, depth in ipairs(common.numbers(opts.depths or "0,512", "--depths")) do
    if depth < context then
      phase(("decode at %d"):format(depth), { rows = 1, past = depth }, 1)
    end
  end
  return rows
end

-- ---- output -------------------------------------------------------------------------------------

count.columns = { "phase", "op", "count", "dispatches", "barriers", "weights_mb", "cache_mb",
  "values_mb", "mb", "gflop", "excess" }

--- Rows of a table for people, all numbers per token.
function count.cells(rows)
  local out = { { "phase", "op", "count", "dispatches", "barriers", "MB weights", "MB cache",
    "MB values", "GFLOP", "excess" } }
  for i, r in ipairs(rows) do
    out[i + 1] = { r.phase, r.op, r.count, ("%.4g"):format(r.dispatches),
      ("%.4g"):format(r.barriers), ("%.3f"):format(r.weights_mb), ("%.3f"):format(r.cache_mb),
      ("%.3f"):format(r.values_mb), ("%.4f"):format(r.gflop),
      r.excess and ("%.1f %%"):format(100 * r.excess) or "" }
  end
  return out
end

--- A second table: the time of a token that the bytes and operations imply.
function count.times(rows)
  local head, out = { "chip", "GB/s", "TFLOPS" }, {}
  for i, chip in ipairs(chips) do out[i] = { table.unpack(chip) } end
  for _, r in ipairs(rows) do
    if r.chips then
      head[#head + 1] = r.phase .. " ms"
      for i, c in ipairs(r.chips) do out[i][#out[i] + 1] = ("%.3f"):format(c.ms) end
    end
  end
  table.insert(out, 1, head)
  return out
end

return count
