-- folder: directories in which the server keeps what clients wrote.
--
--   local path = folder.private("cache_folder", base, name)
--
-- Another user who can write there could replace what is read back, and one who can read there sees
-- prompts. So the base must be safe from writes of others, and the directory in it from both.
local uv = require "luv"

local folder = {}

local MODE, WRITE, ALL = 448, 18, 63 -- 0700, 0022, 0077

--- Raises unless a directory is safe. setting: the one that names it; private: also from readers.
local function check(setting, path, private)
  local stat, why = (private and uv.fs_lstat or uv.fs_stat)(path)
  if not stat then error(("%s: %s"):format(setting, why), 0) end
  local function refuse(what, ...) error(("%s: %s " .. what):format(setting, path, ...), 0) end
  if stat.type ~= "directory" then refuse "is not a directory" end
  if stat.uid ~= uv.getuid() and (private or stat.uid ~= 0) then
    refuse("belongs to user %d, it must belong to you", stat.uid)
  end
  if stat.mode & (private and ALL or WRITE) ~= 0 then
    refuse("has mode %04o: others must not %s it (chmod 700)", stat.mode & 4095,
      private and "read or write" or "write to")
  end
end

--- The path of a directory below another; both are made if they are missing. Raises.
function folder.private(setting, base, name)
  local path = base .. "/" .. name
  for _, each in ipairs { base, path } do
    local ok, why, code = uv.fs_mkdir(each, MODE)
    if not ok and code ~= "EEXIST" then error(why, 0) end
    check(setting, each, each == path)
  end
  return path
end

return folder
