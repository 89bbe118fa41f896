-- version: prints the version.
local perigee = require "perigee"

return {
  summary = "print the version",
  max = 0,
  run = function()
    io.write("perigee ", perigee.version, "\n")
  end,
}
