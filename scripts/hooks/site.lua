-- site: the folder with an operator's scripts, as it is at one moment.
--
--   hooks/NAME.lua             hooks into the path of a request (hooks/phases.lua)
--   policy/NAME.lua            which sequences run next (engine/scheduler.lua)
--   templates/NAME.jinja       chat template of the model of that name; default.jinja: of all
--                              models that have none here
--   parsers/tools/NAME.lua, parsers/reasoning/NAME.lua      formats of answers (scripts/parsers)
--   models/NAME.lua            model architectures (scripts/models)
--   and modules that these require
--
-- A snapshot lists the files and reads each one once, when it is needed. It keeps what it read, so
-- that the same version can be built again after the files have changed.
local text = require "lib.text"
local uv = require "luv"

local site = { MAX_FILE = 4 << 20 } -- bytes; a longer file is not a script

--- Folders of a site, and the ending of their files.
site.folders = { hooks = "lua", models = "lua", policy = "lua", templates = "jinja",
  ["parsers/tools"] = "lua", ["parsers/reasoning"] = "lua" }

--- Sorted names of the files in a folder with that ending, without it. None when there is no
--- folder.
function site.names(folder, ending)
  local out = {}
  local request = uv.fs_scandir(folder)
  if not request then return out end
  for file in function() return uv.fs_scandir_next(request) end do
    local name = file:match("^([%w_][%w_%-.]*)%." .. ending .. "$")
    if name then out[#out + 1] = name end
  end
  table.sort(out)
  return out
end

local Snapshot = {}
Snapshot.__index = Snapshot

--- The text of an existing file; raises one line.
local function read(path, stat)
  if stat.type ~= "file" then error(("%s: is a %s, not a file"):format(path, stat.type), 0) end
  if stat.size > site.MAX_FILE then
    error(("%s: must have at most %d bytes, got %d"):format(path, site.MAX_FILE, stat.size), 0)
  end
  local source, why = text.read_file(path)
  if not source then error(why, 0) end
  return source
end

--- The text of a file, nil when there is none. Raises when it cannot be read or is too long.
function Snapshot:read(path)
  local known = self.files[path]
  if known == nil and not self.sealed then
    local stat = uv.fs_stat(path)
    self.files[path] = false -- if reading raises: a file that can be read later is a change
    known = stat and read(path, stat) or false
    self.files[path] = known
  end
  return known or nil
end

--- A snapshot of the site's folder now; nil: there is no site. When the folder is `gone`, no
--- version of the scripts is built.
function site.snapshot(folder)
  local stat = folder and uv.fs_stat(folder)
  local gone = folder ~= nil and not (stat and stat.type == "directory")
  local self = setmetatable({ folder = folder, gone = gone, names = {}, files = {} }, Snapshot)
  for below, ending in pairs(site.folders) do
    self.names[below] = folder and site.names(folder .. "/" .. below, ending) or {}
  end
  return self
end

--- From now on nothing more is read.
function Snapshot:seal()
  self.sealed = true
  return self
end

--- Are two snapshots equal? Files that only one of them has read do not count.
function Snapshot:equals(other)
  if self.gone ~= other.gone or not text.same(self.names, other.names) then return false end
  for path, source in pairs(self.files) do
    local theirs = other.files[path]
    if theirs ~= nil and theirs ~= source then return false end
  end
  return true
end

return site
