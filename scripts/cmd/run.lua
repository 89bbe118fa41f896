-- run: runs a Lua file, then the event loop until it has nothing left to do.
local command = require "lib.command"
local perigee = require "perigee"
local script = require "lib.script"

local function run(opts)
  local path = opts[1]
  local chunk, why = script.load(path)
  if not chunk then return nil, why end
  script.set_path(path)
  _G.arg = table.move(opts, 2, #opts, 1, { [0] = path })
  local ok, err = perigee.guard(function() return chunk(table.unpack(opts, 2)) end)
  if not ok then
    io.stdout:flush()
    io.stderr:write("perigee: ", script.describe(err), "\n")
    return command.FAILED
  end
  return command.OK, true
end

return {
  summary = "run a Lua script",
  usage = "FILE.lua [ARG…]",
  details = [[
The script gets its arguments as `...` and as `arg`. It can require "perigee", "luv", "cjson" and
modules next to its own file. After its main chunk the event loop runs until no handle is active.]],
  stop = true,
  min = 1,
  run = run,
}
