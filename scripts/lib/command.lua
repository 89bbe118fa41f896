-- command: finding the commands (scripts/cmd/*.lua), their help, and one-line errors.
--
-- A command is a module that returns
--   { summary = "…", usage = "FILE…", options = {…}, stop = true, min = 1, max = 1, run = function(opts) … end }
-- `run` gets the options by name and the operands as a list. It returns an exit status (nil: 0) and, when the loop
-- should run afterwards, true or a function that gives the final status; or nil and an error, printed as one line.
local args = require "lib.args"
local perigee = require "perigee"
local text = require "lib.text"

local command = { OK = 0, FAILED = 1, USAGE = 2 }

--- Writes "perigee: WHAT: WHY" to stderr and returns the status.
function command.fail(status, what, why)
  io.stdout:flush() -- and in one write, since a log may go to the same place
  io.stderr:write(("perigee: %s: %s\n"):format(what, (tostring(why):gsub("%s*\n%s*", "; "))))
  return status
end

--- Can models be run as the options ask for? True, or nil and why not.
function command.check_compute(opts)
  if opts.precision == "fast" then return nil, "--precision fast does not exist yet" end
  if opts.device == "metal" then return nil, "--device metal: this build computes on the CPU" end
  return true
end

--- Names of all commands, sorted.
function command.names()
  local names = {}
  for _, path in ipairs((perigee.sys.scripts())) do
    names[#names + 1] = path:match "^cmd/([%w_]+)%.lua$"
  end
  table.sort(names)
  return names
end

--- The command's module, or nil when there is none of that name.
function command.load(name)
  for _, known in ipairs(command.names()) do
    if known == name then return require("cmd." .. name) end
  end
end

--- The sentence about a command that does not exist.
function command.unknown(name)
  local names = command.names()
  local nearest = text.nearest(name, names)
  return ("unknown command%s (there are: %s)"):format(nearest and (", is it '" .. nearest .. "'?") or "",
    table.concat(names, ", "))
end

--- Help of one command, or of the program.
function command.help(name)
  local lines = {}
  local function put(line) lines[#lines + 1] = line end
  if name then
    local c = command.load(name)
    put(("usage: perigee %s [options]%s"):format(name, c.usage and " " .. c.usage or ""))
    put("\n" .. c.summary .. (c.details and "\n\n" .. c.details or "") .. "\n")
    if c.options and #c.options > 0 then put("options:\n" .. args.help(c.options) .. "\n") end
  else
    put "usage: perigee COMMAND [options] …\n"
    put "Lua decides, C computes: an inference runtime that its users script.\n\ncommands:"
    for _, known in ipairs(command.names()) do
      put(("  %-12s %s"):format(known, command.load(known).summary))
    end
    put "\nperigee COMMAND --help tells more about one.\n"
  end
  put("common options:\n" .. args.help(args.common))
  return table.concat(lines, "\n") .. "\n"
end

return command
