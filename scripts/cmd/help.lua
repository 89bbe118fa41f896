-- help: the commands, or one of them.
local command = require "lib.command"

return {
  summary = "show help about perigee or about one command",
  usage = "[COMMAND]",
  max = 1,
  run = function(opts)
    if opts[1] and not command.load(opts[1]) then
      return command.fail(command.USAGE, opts[1], command.unknown(opts[1]))
    end
    io.write(command.help(opts[1]))
  end,
}
