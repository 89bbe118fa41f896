-- mlx: perigee and mlx-lm, measured in turn on one shape with random 4-bit weights, 4.5 bits per
-- weight on both sides. `make bench-mlx`. For Macs: elsewhere MLX has a CPU backend that is not
-- made for speed.
--
--   perigee run tests/bench/mlx.lua [rounds=5] [rows=PATTERN] [shape=qwen3-0.6b] [threads=N]
--     [python=python3] [seconds=10]
--
-- rows: a Lua pattern of row names. python: one that has mlx-lm. MLX_FOLDER: for the log (default
-- build/mlx).
package.path = "tests/bench/?.lua;" .. package.path
local perigee = require "perigee"
local pair = require "pair"
local shapes = require "cmd.bench.shapes"
local tables = require "ui.table"
local json = perigee.json

local machine = perigee.sys.machine()
local settings = pair.settings { rounds = "5", rows = ".", shape = "qwen3-0.6b",
  threads = tostring(machine.cores), python = "python3", seconds = "10" }
local rounds = assert(math.tointeger(tonumber(settings.rounds)), "rounds is not a number")
local how = { folder = os.getenv "MLX_FOLDER" or "build/mlx", threads = settings.threads,
  seconds = settings.seconds }
local rows = { { "decode", decode = 0 }, { "decode at 2048", decode = 2048 },
  { "batch 8", batch = 8 }, { "prefill 512", prefill = 512 }, { "prefill 2048", prefill = 2048 } }

local found, version = pcall(pair.output, { settings.python, "-c",
  "import mlx_lm; print(mlx_lm.__version__)" }, how)
if not found then
  io.stderr:write(("bench-mlx: %s has no mlx-lm; install it (python3 -m pip install mlx-lm) or name"
    .. " another one (MLX='python=PATH')\n"):format(settings.python))
  os.exit(1)
end
local dense = shapes.dense(settings.shape)
if not dense then error(("there is no dense shape '%s'"):format(settings.shape), 0) end

--- The config as mlx-lm reads it.
local config = json.encode(json.object {
  { "model_type", dense.type }, { "hidden_size", dense.width },
  { "num_hidden_layers", dense.layers }, { "num_attention_heads", dense.heads },
  { "num_key_value_heads", dense.kv_heads }, { "head_dim", dense.head },
  { "intermediate_size", dense.feed_forward }, { "vocab_size", dense.vocabulary },
  { "rms_norm_eps", 1e-6 }, { "rope_theta", 1e6 }, { "max_position_embeddings", 40960 },
  { "tie_word_embeddings", dense.tied } })

local function ours(row)
  return pair.ours(row, { "--shape", settings.shape, "--quant", "affine4g64" }, how)
end

local device = "?"
local function theirs(row)
  local test = row.prefill and "prefill" or row.batch and "batch" or "decode"
  local out = assert(json.decode(pair.output({ settings.python, "tests/bench/mlx_peer.py", config,
    test, row[test], settings.seconds }, how)))
  device = out.device
  return out.tokens_per_s
end

pair.warn()
local cells = { { "", "perigee tok/s", "mlx-lm", "ratio", "spread" } }
for _, row in ipairs(rows) do
  if row[1]:find(settings.rows) then
    local r = pair.measure(row, rounds, ours, theirs)
    cells[#cells + 1] = { r.name, ("%.1f"):format(r.ours), ("%.1f"):format(r.theirs),
      ("%.2fx"):format(r.ratio), ("%.2f to %.2f"):format(r.low, r.high) }
  end
end
print(("%s, %s, median of %d rounds; mlx-lm %s on %s, perigee with %s threads"):format(machine.cpu,
  settings.shape, rounds, version:gsub("%s+$", ""), device, settings.threads))
print(tables.render(cells, { header = true }))
