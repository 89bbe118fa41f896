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
-- recipe of llama-quantize. A round runs each side once; the ratio of a row is the median of the
-- ratios of its rounds, its spread their lowest and highest. Decode counts the mean of all tokens,
-- prefill the best of up to three prompts, on both sides.
package.path = "tests/bench/?.lua;" .. package.path
local perigee = require "perigee"
local chart = require "ui.chart"
local gguf = require "gguf"
local tables = require "ui.table"
local uv = require "luv"
local json = perigee.json

local settings = { rounds = "", rows = ".", threads = "2", cores = "", quick = "" }
for _, word in ipairs(arg) do
  local key, value = word:match "^(%w+)=(.*)$"
  if not key or not settings[key] then error(("unknown setting '%s'"):format(word), 0) end
  settings[key] = value
end
local quick = settings.quick ~= ""
local rounds = math.tointeger(tonumber(settings.rounds)) or (quick and 3 or 5)
local seconds = quick and 3 or 10
local threads = math.tointeger(tonumber(settings.threads))
local folder = os.getenv "PEER_FOLDER" or "build/peer"
local program = uv.exepath()
local cores = settings.cores ~= "" and settings.cores or ("0-%d"):format(threads - 1)

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
    { nil, recipe }, prefill = 512, bar = 2, same = true }
end

-- ---- running ------------------------------------------------------------------------------------

local function quoted(s) return "'" .. tostring(s):gsub("'", "'\\''") .. "'" end

--- The output of a program, which must succeed; its errors go to a log.
local function output_of(words)
  local list = {}
  for i, w in ipairs(words) do list[i] = quoted(w) end
  local pin = os.execute "command -v taskset >/dev/null" and ("taskset -c %s "):format(cores) or ""
  local command = ("%s%s 2>>%s/errors.log"):format(pin, table.concat(list, " "), quoted(folder))
  local pipe = assert(io.popen(command))
  local out = pipe:read "a"
  if not pipe:close() then error(("failed: %s (see %s/errors.log)"):format(command, folder), 0) end
  return out
end

--- The last line of CSV as a table by column.
local function csv(out)
  local names, last
  for line in out:gmatch "[^\n]+" do
    local cells = {}
    for cell in (line .. ","):gmatch "([^,]*)," do cells[#cells + 1] = cell end
    if names then last = cells else names = cells end
  end
  local row = {}
  for i, name in ipairs(names or {}) do row[name] = last and tonumber(last[i]) or nil end
  return row
end

local function file_of(row)
  local path = ("%s/%s-%s.gguf"):format(folder, row[2], row[3][2]:gsub(" ", "_"))
  gguf.write(path, row[2], row[3][2])
  return path
end

--- Tokens per second of perigee.
local function ours(row)
  local words = { program, "bench", "--precision", "fast", "--threads", threads, "--csv",
    "--seconds", seconds }
  local function more(...) table.move({ ... }, 1, select("#", ...), #words + 1, words) end
  if row.same then more(file_of(row)) else more("--shape", row[2], "--quant", row[3][1]) end
  if row.prefill then
    more("--tests", "prefill", "--prompts", row.prefill)
  elseif row.batch then
    more("--tests", "batch", "--sequences", row.batch)
  else
    more("--tests", "decode", "--depths", row.decode)
  end
  local result = csv(output_of(words))
  return assert(result.mean_per_s or result.tokens_per_s, "no result")
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
    local out = output_of { bin .. "llama-batched-bench", "-m", file_of(row), "-c", 4096, "-npp",
      16, "-ntg", 64, "-npl", row.batch, "-t", threads, "--output-format", "jsonl" }
    local line = out:match "(%b{})%s*$"
    return assert(json.decode(line)).speed_tg
  end
  local out = output_of { bin .. "llama-bench", "-m", file_of(row), "-t", threads, "-o", "json",
    "-p", row.prefill or 0, "-n", row.prefill and 0 or (quick and 32 or 64), "-d",
    row.decode or 0, "-r", row.prefill and (quick and 1 or 3) or 1 }
  return best(assert(json.decode(out))[1].samples_ts)
end

-- ---- results ------------------------------------------------------------------------------------

local function median(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[n // 2 + 1] or (sorted[n // 2] + sorted[n // 2 + 1]) / 2
end

local function measure(row)
  local a, b, ratios = {}, {}, {}
  for i = 1, rounds do
    -- the order changes, so that neither side always comes after the other
    if i % 2 == 1 then a[i] = ours(row) end
    b[i] = theirs(row)
    a[i] = a[i] or ours(row)
    ratios[i] = a[i] / b[i]
    io.stderr:write(("%s: %d of %d rounds, %.2fx\n"):format(row[1], i, rounds, ratios[i]))
  end
  return { name = row[1], same = row.same, ours = median(a), theirs = median(b),
    ratio = median(ratios), low = math.min(table.unpack(ratios)),
    high = math.max(table.unpack(ratios)), bar = row.bar }
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
if uv.loadavg() > 0.5 then
  io.stderr:write(("other programs run here (load %.1f): these ratios would not be fair\n"):format(
    uv.loadavg()))
end

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
