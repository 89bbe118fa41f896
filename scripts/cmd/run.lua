-- run: a Lua file, then the loop until nothing is left to wait for.
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
  details = "The script gets its arguments as `...` and as `arg`, finds modules beside its own file, and can require"
    .. "\n\"perigee\", \"luv\" and \"cjson\". When its main chunk is done the event loop runs until no handle is left.",
  stop = true,
  min = 1,
  run = run,
}
