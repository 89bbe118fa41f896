-- sites: a site's folder with scripts, for tests of what serves.
--
--   local app <close> = sites.open({ ["hooks/mine.lua"] = "return {}" }, { forced = … })
--   app.write("hooks/mine.lua", "return { … }")    app.scripts:reload()    app.notes: what was
--   logged
--
-- The app is what reload.open needs of one. app.scripts is nil and app.why says why when the
-- scripts cannot be loaded. The folder is gone when it is closed.
local phases = require "hooks.phases"
local reload = require "hooks.reload"
local scheduler = require "engine.scheduler"
local sandbox = require "hooks.sandbox"
local trial = require "hooks.trial"
local uv = require "luv"

local sites = {}

local SLOW = {} -- deadlines of hooks, unless a test is about them
for phase in pairs(phases.list) do SLOW[phase] = 5000 end

local function write(path, source)
  local folder = path:match "^(.*)/"
  local at = ""
  for part in folder:gmatch "[^/]+" do
    at = at .. "/" .. part
    uv.fs_mkdir(at, 448)
  end
  local f = assert(io.open(path, "w"))
  f:write(source)
  f:close()
end

function sites.remove(path)
  local request = uv.fs_scandir(path)
  for name, kind in function() return request and uv.fs_scandir_next(request) end do
    if kind == "directory" then sites.remove(path .. "/" .. name) else uv.fs_unlink(path .. "/"
      .. name) end
  end
  uv.fs_rmdir(path)
end

--- The deadlines of a machine that collects at every allocation, or that a sanitizer makes slow;
--- gives the way back.
function sites.patient(forced)
  local was = { sandbox.LOAD_MS, sandbox.RELOAD_MS, trial.DEADLINE_MS, scheduler.DEADLINE_MS,
    phases.TURN_MS }
  local ms = forced and 60000 or os.getenv "SAN" and 3000
  local function set(load, reloading, case, policy, turn)
    sandbox.LOAD_MS, sandbox.RELOAD_MS, trial.DEADLINE_MS = load, reloading, case
    scheduler.DEADLINE_MS, phases.TURN_MS = policy, turn
  end
  if ms then set(ms, ms, ms, ms, ms) end
  return function() set(table.unpack(was)) end
end

--- A new folder with these files.
function sites.folder(files)
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-site-XXXXXX"))
  for path, source in pairs(files) do write(folder .. "/" .. path, source) end
  return folder
end

--- An app with a site of these files, and its scripts; options: config, deadlines, models (a list
--- of entries), forced.
function sites.open(files, options)
  options = options or {}
  local folder = sites.folder(files)
  local app = { notes = {}, folder = folder, deadlines = options.deadlines or SLOW,
    config = { site = folder, policy = "fifo" } }
  for key, value in pairs(options.config or {}) do app.config[key] = value end
  app.log = { note = function(_, level, text) app.notes[#app.notes + 1] = level .. ": "
    .. text end }
  function app.write(path, source) write(folder .. "/" .. path, source) end
  if options.models then app.models = { list = function() return options.models end } end
  local restore = sites.patient(options.forced)
  app.scripts, app.why = reload.open(app)
  return setmetatable(app, { __close = function()
    if app.scripts then app.scripts:close() end
    restore()
    sites.remove(folder)
  end })
end

return sites
