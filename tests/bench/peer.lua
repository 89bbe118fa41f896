-- peer: perigee and llama.cpp, measured alternately on the same cores. `make bench-peer`.
--
--   perigee run tests/bench/peer.lua [rounds=5] [rows=PATTERN] [threads=2] [cores=0,1] [quick=1]
--
-- rows: a Lua pattern of row names, such as decode or 0.6b. quick: three rounds of shorter
-- measurements, and no model above 1 GB. PEER_FOLDER: the folder of llama.cpp's programs and of the
-- files that this writes (default build/peer): random weights as GGUF, peer.csv and peer.svg.
--
-- First table: models of the same shape with random weights, 4.5 bits per weight on both sides
-- (MLX affine 4-bit, Q4_0 with a Q4_0 head) or bf16. Second table: one GGUF file for both, with the
-- recipe of llama-quantize. A round runs each side once (pair.lua). Decode counts the mean of all
-- tokens, prefill the best of up to three prompts, on both sides.
package.path = "tests/bench/?.lua;" .. package.path
local perigee = require "perigee"
local chart = require "ui.chart"
local gguf = require "gguf"
local pair = require "pair"
local tables = require "ui.table"
local json = perigee.json

local settings = pair.settings { rounds = "", rows = ".", threads = "2", cores = "", quick = "" }
local quick = settings.quick ~= ""
local rounds = math.tointeger(tonumber(settings.rounds)) or (quick and 3 or 5)
local threads = math.tointeger(tonumber(settings.threads))
local folder = os.getenv "PEER_FOLDER" or "build/peer"
local how = { folder = folder, threads = threads, seconds = quick and 3 or 10,
  cores = settings.cores ~= "" and settings.cores or ("0-%d"):format(threads - 1) }

-- ---- what is measured ---------------------------------------------------------------------------

local FOUR, SIXTEEN = { "affine4g64", "q4_0 all" }, { "bf16", "bf16" }

--- test: decode (depth), batch (sequences) or prefill (tokens); bar: the ratio to reach.
local rows = {
  { "decode Qwen3-0.6B", "qwen3-0.6b", FOUR, decode = 0, bar = 1.8 },
  { "decode Qwen2.5-0.5B", "qwen2.5-0.5b", FOUR, decode = 0, bar = 1.8 },
  { "decode Llama-3.2-1B", "llama-3.2-1b", FOUR, decode = 0, bar = 1.8 },
  { "decode Qwen3-4B", "qwen3-4b", FOUR, decode = 0, bar = 1.8, large = true },
  { "decode at 2048 Qwen3-0.6B", "qwen3-0.6b", FOUR, decode = 2048, bar = 3 },
  { "batch 8 Qwen3-0.6B", "qwen3-0.6b", FOUR, batch = 8, bar = 3 },
  { "batch 8 Qwen2.5-0.5B", "qwen2.5-0.5b", FOUR, batch = 8, bar = 3 },
  { "prefill 512 Qwen3-0.6B", "qwen3-0.6b", FOUR, prefill = 512, bar = 2.5 },
  { "prefill 2048 Qwen3-0.6B", "qwen3-0.6b", FOUR, prefill = 2048, bar = 3 },
  { "prefill 512 bf16 Qwen3-0.6B", "qwen3-0.6b", SIXTEEN, prefill = 512, bar = 5 },
}
for _, recipe in ipairs { "q4_0", "q4_k_m", "q8_0" } do
  rows[#rows + 1] = { ("same file decode %s"):format(recipe:upper()), "qwen3-0.6b", { nil, recipe },
    decode = 0, bar = 1.5, same = true }
  rows[#rows + 1] = { ("same file prefill 512 %s"):format(recipe:upper()), "qwen3-0.6b",
    { nil, recipe }, prefill = 512, bar = threads >= 8 and 2.5 or 2, same = true }
end

-- ---- running ------------------------------------------------------------------------------------

local function file_of(row)
  local path = ("%s/%s-%s.gguf"):format(folder, row[2], row[3][2]:gsub(" ", "_"))
  gguf.write(path, row[2], row[3][2])
  return path
end

local function ours(row)
  return pair.ours(row, row.same and { file_of(row) }
    or { "--shape", row[2], "--quant", row[3][1] }, how)
end

local function best(samples)
  local most = 0
  for _, x in ipairs(samples) do most = math.max(most, x) end
  return most
end

--- Tokens per second of llama.cpp.
local function theirs(row)
  local bin = folder .. "/bin/bin/"
  if row.batch then
    local out = pair.output({ bin .. "llama-batched-bench", "-m", file_of(row), "-c", 4096, "-npp",
      16, "-ntg", 64, "-npl", row.batch, "-t", threads, "--output-format", "jsonl" }, how)
    local line = out:match "(%b{})%s*$"
    return assert(json.decode(line)).speed_tg
  end
  local out = pair.output({ bin .. "llama-bench", "-m", file_of(row), "-t", threads, "-o", "json",
    "-p", row.prefill or 0, "-n", row.prefill and 0 or (quick and 32 or 64), "-d",
    row.decode or 0, "-r", row.prefill and (quick and 1 or 3) or 1 }, how)
  return best(assert(json.decode(out))[1].samples_ts)
end

-- ---- results ------------------------------------------------------------------------------------

local function measure(row)
  local result = pair.measure(row, rounds, ours, theirs)
  result.same, result.bar = row.same, row.bar
  return result
end

local function print_table(title, results, same)
  local cells = { { "", "perigee tok/s", "llama.cpp", "ratio", "spread", "bar", "" } }
  for _, r in ipairs(results) do
    if (r.same or false) == same then
      cells[#cells + 1] = { r.name, ("%.1f"):format(r.ours), ("%.1f"):format(r.theirs),
        ("%.2fx"):format(r.ratio), ("%.2f to %.2f"):format(r.low, r.high), ("%.1fx"):format(r.bar),
        r.ratio >= r.bar and "reached" or "below" }
    end
  end
  if #cells > 1 then print(title .. "\n" .. tables.render(cells, { header = true }) .. "\n") end
end

local function save(name, content)
  local file = assert(io.open(folder .. "/" .. name, "wb"))
  file:write(content)
  assert(file:close())
end

local function save_all(results, about)
  local lines, bars = { "row,perigee,llama.cpp,ratio,low,high,bar" }, {}
  for i, r in ipairs(results) do
    lines[#lines + 1] = ("%s,%.2f,%.2f,%.3f,%.3f,%.3f,%.1f"):format(r.name, r.ours, r.theirs,
      r.ratio, r.low, r.high, r.bar)
    bars[i] = { label = r.name, value = r.ratio, low = r.low, high = r.high, bar = r.bar }
  end
  save("peer.csv", table.concat(lines, "\n") .. "\n")
  save("peer.svg", chart.ratios { title = "Tokens per second: perigee / llama.cpp", note = about,
    rows = bars })
end

local function about()
  local file = io.open(folder .. "/compiler")
  local compiler = file and file:read() or "?"
  if file then file:close() end
  return ("%s, %d threads, median of %d rounds; llama.cpp by %s"):format(
    perigee.sys.machine().cpu, threads, rounds, compiler)
end

-- The threads of llama.cpp spin where they wait: with as many other programs as cores it falls to a
-- hundredth of its speed, and ratios mean nothing.
pair.warn()

local results = {}
for _, row in ipairs(rows) do
  local wanted = row[1]:lower():find(settings.rows:lower())
  if wanted and not (quick and row.large) then
    local ok, result = pcall(measure, row)
    if ok then
      results[#results + 1] = result
      save_all(results, about()) -- what is there is kept if the run is stopped
    else
      io.stderr:write(("%s: %s\n"):format(row[1], tostring(result)))
    end
  end
end
print(about())
print_table("Same shapes, random weights (4.5 bits per weight, or bf16, on both sides)", results,
  false)
print_table("The same GGUF file for both", results, true)
