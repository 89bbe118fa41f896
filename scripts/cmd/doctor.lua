-- doctor: the machine, the build and the limits, for bug reports.
local perigee = require "perigee"
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

--- The rows of the table: name, value, remark or nil.
local function rows()
  local m, v = perigee.sys.machine(), perigee.sys.versions()
  local _, folder = perigee.sys.scripts()
  local _, cap = perigee.heap()
  return {
    { "perigee", perigee.version, folder and "scripts from " .. folder or "scripts embedded" },
    { "compiler", v.compiler },
    { "Lua", (v.lua:gsub("^Lua ", "")) },
    { "luv", (uv.version_string():gsub("^.*luv%s*", "")) .. " on libuv " .. v.libuv },
    { "lua-cjson", require("cjson")._VERSION },
    { "PCRE2", v.pcre2, v.pcre2_jit and "with JIT" or "without JIT: tokenizing will be slow" },
    { "utf8proc", v.utf8proc },
    { "xxhash", v.xxhash },
    { "libwebp", v.libwebp },
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

return {
  summary = "show the machine, the build and its limits",
  max = 0,
  run = function()
    local paint = term.painter(term.has_color(1))
    local lines = {}
    for i, row in ipairs(rows()) do
      lines[i] = { row[1], row[2] .. (row[3] and paint("dim", "  (" .. row[3] .. ")") or "") }
    end
    io.write(show.render(lines), "\n")
  end,
}
