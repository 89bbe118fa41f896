-- script: a user's Lua file: compiled as text, with its folder on the path of `require`.
local text = require "lib.text"

local script = {}

--- The compiled chunk, or nil and a message of one line. env: its globals (default: ours).
function script.load(path, env)
  local f, why = io.open(path, "rb")
  if not f then return nil, why end
  local first, reason = f:read(1) -- a folder can be opened, but not read
  f:close()
  if not first and reason then return nil, path .. ": " .. reason end
  local chunk, wrong = loadfile(path, "t", env or _G)
  if chunk then return chunk end
  -- Source nested too deep for the parser is a perigee.Error without the name of the file.
  wrong = text.first_line(wrong)
  return nil, wrong:find(path, 1, true) and wrong or path .. ": " .. wrong
end

--- `require` finds the scripts of perigee first, then modules next to the script, then LUA_PATH.
function script.set_path(path)
  local folder = text.dirname(path)
  local user = os.getenv "LUA_PATH_5_4" or os.getenv "LUA_PATH"
  local places = { folder .. "/?.lua", folder .. "/?/init.lua" }
  for place in (user or ""):gmatch "[^;]+" do places[#places + 1] = place end
  package.path = table.concat(places, ";")
end

--- A script's error for people: its message, then the traceback.
function script.describe(err)
  return err.traceback and (err.message .. "\n" .. err.traceback) or tostring(err)
end

return script
