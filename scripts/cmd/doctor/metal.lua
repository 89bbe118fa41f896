-- metal: what Metal says about itself, whether its methods are as we call them, and what a step
-- costs on its device: the latency of a step that computes next to nothing, and the bandwidth that
-- a step reaches which reads weights.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local models = require "models"
local shapes = require "cmd.bench.shapes"
local text = require "lib.text"
local uv = require "luv"

local metal = {}

-- A step of this many seconds hides its latency, which is below a millisecond.
local LONG = 0.02
-- Layers of the model that is read; the last one has 0.6 GB, more than any cache of a GPU.
local LAYERS = { 1, 4, 16, 64 }
-- The best of this many steps counts. A slow device gets fewer, but two: the first step of an
-- engine compiles its kernels.
local STEPS, SECONDS = 10, 0.5

local function wide(layers) return { "llama", 1024, layers, 8, 8, 128, 4096, 1024, true } end

--- Seconds of the best step of one token, and the bytes of weights that it reads.
local function step_of(shape)
  local weights, config = shapes.make(shape, "affine4g64")
  local model = assert(models.assemble(assert(weights, config), config, { path = "doctor" }))
  local engine <close> = assert(perigee.engine.open(model.graph, { threads = 1,
    tokens = 2 * STEPS, precision = "fast", device = "metal" }))
  local seq, best, began = assert(engine:add()), math.huge, uv.hrtime()
  local steps = 0
  while steps < 2 or steps < STEPS and uv.hrtime() - began < SECONDS * 1e9 do
    local t = uv.hrtime()
    assert(engine:step { { seq = seq, ids = { 1 }, outputs = 1 } })
    best, steps = math.min(best, (uv.hrtime() - t) * 1e-9), steps + 1
  end
  return best, common.bytes_per_token(model)
end

--- The latency of a step in seconds, bytes per second, and the bytes of the step that was measured.
--- step: another way to run one.
function metal.measure(step)
  step = step or step_of
  local latency, few = step "tiny"
  local seconds, bytes
  for _, layers in ipairs(LAYERS) do
    seconds, bytes = step(wide(layers))
    if seconds >= LONG then break end
  end
  return latency, (bytes - few) / math.max(seconds - latency, 1e-9), bytes
end

local function facts_rows(m)
  local families = (m.metal3 and "Metal 3" or "before Metal 3") .. (m.apple7 and ", Apple 7" or "")
  return {
    { "Metal", m.name, ("%s%s; room for %s, %s in one buffer"):format(families,
      (m.residency and ", residency sets" or "") .. (m.tensors and ", tensor operations" or ""),
      text.bytes(m.working_set), text.bytes(m.most_bytes)) },
    { "Metal's methods", m.differences == 0 and ("%d as we call them"):format(m.methods)
      or ("%d of %d DIFFER"):format(m.differences, m.methods), m.lines:match "[^\n]+" },
  }
end

--- Rows of doctor's table, and the number of faults. Nothing where there is no Metal.
function metal.rows()
  if not perigee.engine.device "metal" then return {}, 0 end
  local m, why = perigee.engine.metal()
  if not m then return { { "Metal", "cannot be opened", tostring(why) } }, 1 end
  local rows = facts_rows(m)
  if m.differences > 0 then return rows, 1 end -- a step might crash
  local latency, rate, bytes = metal.measure()
  rows[3] = { "Metal's latency", ("%.2f ms"):format(latency * 1e3), "of a step of a tiny model" }
  rows[4] = { "Metal's bandwidth", ("%.3g GB/s"):format(rate * 1e-9),
    ("a step that reads %s of 4-bit weights"):format(text.bytes(bytes)) }
  return rows, 0
end

return metal
