-- doctor: the machine, the build and its limits, what memory and processor reach, and whether the
-- kernels of this processor compute what they should. For bug reports.
local perigee = require "perigee"
local command = require "lib.command"
local kernels = require "cmd.doctor.kernels"
local metal = require "cmd.doctor.metal"
local models = require "models"
local progress = require "ui.progress"
local shapes = require "cmd.bench.shapes"
local show = require "ui.table"
local term = require "ui.term"
local text = require "lib.text"
local uv = require "luv"

local FEW_FILES = 1024 -- a server needs one for each connection

local function limit(n, unit)
  if n == math.maxinteger then return "unlimited" end
  return unit and unit(n) or tostring(n)
end

--- Are pictures decoded in a process that can do nothing else? One is started to try.
local function confinement()
  local decoder <close>, why = perigee.image.decoder { children = 1 }
  local job = decoder and decoder:escape()
  local held
  if job then held, why = decoder:wait(job) end
  return held and "decoded in a confined process" or "not decoded: " .. tostring(why)
end

--- What is here: rows of name, value, remark or nil. A fourth value: the remark in a report, where
--- the other one is private.
local function machine_rows()
  local m, v = perigee.sys.machine(), perigee.sys.versions()
  local _, folder = perigee.sys.scripts()
  local _, cap = perigee.heap()
  return {
    { "perigee", perigee.version, folder and "scripts from " .. folder or "scripts embedded",
      folder and "scripts replaced" },
    { "compiler", v.compiler },
    { "Lua", (v.lua:gsub("^Lua ", "")) },
    { "luv", (uv.version_string():gsub("^.*luv%s*", "")) .. " on libuv " .. v.libuv },
    { "lua-cjson", require("cjson")._VERSION },
    { "PCRE2", v.pcre2, v.pcre2_jit and "with JIT" or "without JIT: tokenizing will be slow" },
    { "utf8proc", v.utf8proc },
    { "xxhash", v.xxhash },
    { "libwebp", v.libwebp },
    { "zlib", v.zlib },
    { "zstd", v.zstd },
    { "pictures", confinement() },
    { "system", m.system },
    { "processor", m.cpu ~= "" and m.cpu or "unknown" },
    { "instructions", #m.features > 0 and table.concat(m.features, " ") or "none perigee uses" },
    { "cores", ("%d of %d"):format(m.cores, m.cores_online) },
    { "memory", text.bytes(m.memory), text.bytes(m.memory_available) .. " available"
      .. (m.memory_limit > 0 and ", limited to " .. text.bytes(m.memory_limit) or "") },
    { "script heap", cap > 0 and "at most " .. text.bytes(cap) or "unlimited" },
    { "page size", text.bytes(m.page_size) },
    { "open files", limit(m.open_files),
      m.open_files < FEW_FILES and "low for a server: raise it with ulimit -n" or nil },
    { "locked memory", limit(m.locked_memory, text.bytes) },
  }
end

-- ---- measuring and testing ----------------------------------------------------------------------

--- What this number of threads reaches together. Any model will do: its engine has the threads.
local function limits_of(threads)
  local weights, config = shapes.make("tiny", "bf16")
  local model = assert(models.assemble(assert(weights, config), config, { path = "tiny" }))
  local options = { threads = threads, tokens = 16, device = "cpu" }
  local engine <close> = assert(perigee.engine.open(model.graph, options))
  return assert(engine:limits())
end

local function measured_rows(threads)
  local all, one = limits_of(threads), limits_of(1)
  local many = ("%d %s"):format(threads, threads == 1 and "thread" or "threads")
  return {
    { "bandwidth", ("%.1f GB/s"):format(all.read * 1e-9),
      ("reading, %s; one alone %.1f"):format(many, one.read * 1e-9) },
    { "latency", ("%.0f ns"):format(math.min(all.latency, one.latency) * 1e9),
      "of memory, one load after another" },
    { "float32", ("%.0f GFLOP/s"):format(2 * all.fma * 1e-9),
      ("multiply-adds, %s, %s"):format(all.name, many) },
    { "16-bit integers", ("%.0f GOP/s"):format(2 * all.dot * 1e-9), "the same" },
  }
end

--- A row for each version of the kernels, and the number of those that are wrong.
local function kernel_rows()
  local bar <close> = progress.new("kernels", 1)
  local versions, cases = kernels.check {
    progress = function(n, all) bar:update((n - 1) / all) end }
  local rows, failed = {}, 0
  for i, v in ipairs(versions) do
    failed = failed + (#v.wrong > 0 and 1 or 0)
    rows[i] = { "kernels " .. v.name, #v.wrong == 0
      and ("%d small models as with the scalar ones"):format(cases)
      or ("WRONG in %d of %d small models"):format(#v.wrong, cases), v.wrong[1] }
  end
  return rows, failed
end

-- ---- the command --------------------------------------------------------------------------------

local function render(rows, paint, private)
  local lines = {}
  for i, row in ipairs(rows) do
    local remark = not private and row[4] or row[3]
    lines[i] = { row[1], row[2] .. (remark and paint("dim", "  (" .. remark .. ")") or "") }
  end
  return show.render(lines) .. "\n"
end

local function write(path, content)
  local file, why = io.open(path, "wb")
  if not file then return nil, why end
  local ok, failed = file:write(content)
  local closed, late = file:close()
  if ok and closed then return true end
  return nil, ("%s: %s"):format(path, failed or late)
end

local function main(opts)
  local rows, wrong = machine_rows(), 0
  if not opts.quick then
    local more = measured_rows(opts.threads or perigee.sys.machine().cores)
    table.move(more, 1, #more, #rows + 1, rows)
    for _, test in ipairs { metal.rows, kernel_rows } do
      local lines, failed = test()
      table.move(lines, 1, #lines, #rows + 1, rows)
      wrong = wrong + failed
    end
  end
  io.write(render(rows, term.painter(term.has_color(1)), true))
  if opts.report then
    local ok, why = write(opts.report, render(rows, term.painter(false), false))
    if not ok then return nil, why end
  end
  return wrong > 0 and command.FAILED or command.OK
end

return {
  summary = "show the machine, the build and its limits, and test the kernels",
  details = [[
Shows the machine and the build, measures memory, processor and Metal, and runs small models with
every version of the kernels that this machine has: their logits must equal those of the scalar
kernels bit for bit, and those of Metal be near. Exit status 1: they do not, please send a report. A
report has no name of the machine, no user and no path.]],
  options = {
    { name = "report", kind = "string", value = "FILE", help = "also write all of it to a file" },
    { name = "quick", kind = "flag", help = "show only: no measurements and no tests" },
  },
  max = 0,
  run = main,
}
