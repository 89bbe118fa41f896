-- files: completes the path of a file that a person is typing.
local uv = require "luv"

local files = {}

--- Paths that begin with this one, sorted; folders end in "/". Hidden files only after a dot.
function files.complete(path)
  local folder, start = path:match "^(.*/)([^/]*)$"
  if not folder then folder, start = "", path end
  local out, dir = {}, uv.fs_scandir(folder == "" and "." or folder)
  if not dir then return out end
  for name, kind in uv.fs_scandir_next, dir do
    if name:sub(1, #start) == start and (name:sub(1, 1) ~= "." or start ~= "") then
      local full = folder .. name
      if kind == "link" then kind = (uv.fs_stat(full) or {}).type end
      out[#out + 1] = kind == "directory" and full .. "/" or full
    end
  end
  table.sort(out)
  return out
end

return files
