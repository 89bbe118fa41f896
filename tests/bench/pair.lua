-- pair: perigee and another program, measured in turn: what peer.lua and mlx.lua share.
--
-- A row is { name, shape, …, decode = depth | batch = sequences | prefill = tokens }. Its ratio is
-- the median of the ratios of its rounds, its spread their lowest and highest.
local uv = require "luv"

local pair = {}

--- Reads "key=value" words of the command line into a table of strings that has all keys.
function pair.settings(settings)
  for _, word in ipairs(arg) do
    local key, value = word:match "^(%w+)=(.*)$"
    if not key or not settings[key] then error(("unknown setting '%s'"):format(word), 0) end
    settings[key] = value
  end
  return settings
end

local function quoted(s) return "'" .. tostring(s):gsub("'", "'\\''") .. "'" end

--- The output of a program, which must succeed; its errors go to a log. options: folder (of the
--- log), cores (that it may use, where there is taskset).
function pair.output(words, options)
  local list = {}
  for i, w in ipairs(words) do list[i] = quoted(w) end
  local pin = options.cores and os.execute "command -v taskset >/dev/null"
    and ("taskset -c %s "):format(options.cores) or ""
  local command = ("%s%s 2>>%s/errors.log"):format(pin, table.concat(list, " "),
    quoted(options.folder))
  local pipe = assert(io.popen(command))
  local out = pipe:read "a"
  if pipe:close() then return out end
  error(("failed: %s (see %s/errors.log)"):format(command, options.folder), 0)
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

--- Tokens per second of perigee. model: the words that name it. options: as of pair.output, and
--- threads, seconds.
function pair.ours(row, model, options)
  local words = { uv.exepath(), "bench", "--precision", "fast", "--threads", options.threads,
    "--csv", "--seconds", options.seconds }
  local function more(...) table.move({ ... }, 1, select("#", ...), #words + 1, words) end
  more(table.unpack(model))
  if row.prefill then
    more("--tests", "prefill", "--prompts", row.prefill)
  elseif row.batch then
    more("--tests", "batch", "--sequences", row.batch)
  else
    more("--tests", "decode", "--depths", row.decode)
  end
  local result = csv(pair.output(words, options))
  return assert(result.mean_per_s or result.tokens_per_s, "no result")
end

local function median(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[n // 2 + 1] or (sorted[n // 2] + sorted[n // 2 + 1]) / 2
end

--- Runs both sides `rounds` times: functions of the row that return tokens per second.
function pair.measure(row, rounds, ours, theirs)
  local a, b, ratios = {}, {}, {}
  for i = 1, rounds do
    -- the order changes, so that neither side always comes after the other
    if i % 2 == 1 then a[i] = ours(row) end
    b[i] = theirs(row)
    a[i] = a[i] or ours(row)
    ratios[i] = a[i] / b[i]
    io.stderr:write(("%s: %d of %d rounds, %.2fx\n"):format(row[1], i, rounds, ratios[i]))
  end
  return { name = row[1], ours = median(a), theirs = median(b), ratio = median(ratios),
    low = math.min(table.unpack(ratios)), high = math.max(table.unpack(ratios)) }
end

--- Says so if other programs run here.
function pair.warn()
  if uv.loadavg() <= 0.5 then return end
  io.stderr:write(("other programs run here (load %.1f): these ratios would not be fair\n"):format(
    uv.loadavg()))
end

return pair
