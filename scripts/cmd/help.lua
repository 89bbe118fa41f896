-- help: help for the program, or for one command.
local command = require "lib.command"
local commands = require "cmd"

return {
  summary = "show help for perigee or one command",
  usage = "[COMMAND]",
  max = 1,
  run = function(opts)
    if opts[1] and not commands.load(opts[1]) then
      return command.fail(command.USAGE, opts[1], commands.unknown(opts[1]))
    end
    io.write(commands.help(opts[1]))
  end,
}
