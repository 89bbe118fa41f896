-- cmd: the registry of commands, one for each file of this folder.
--
-- A command is a module that returns
--   { summary = "…", usage = "FILE…", details = "…", options = {…},
--     stop = true, min = 1, max = 1, run = function(opts) … end }
-- `stop`: options end at the first operand. `min` and `max`: the number of operands. `run` gets the
-- options by key and the operands as a list. It returns an exit status (nil: 0), or nil and an
-- error, which is printed as one line. If the loop must run before the program ends, it returns a
-- second value: true, or a function that returns the final exit status.
local args = require "lib.args"
local perigee = require "perigee"
local text = require "lib.text"

local registry = {}

--- Names of all commands, sorted.
function registry.names()
  local names = {}
  for _, path in ipairs((perigee.sys.scripts())) do
    local name = path:match "^cmd/([%w_]+)%.lua$"
    if name ~= "init" then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

--- The module of a command, or nil when it does not exist.
function registry.load(name)
  for _, known in ipairs(registry.names()) do
    if known == name then return require("cmd." .. name) end
  end
end

--- The message about a command that does not exist.
function registry.unknown(name)
  local names = registry.names()
  return ("unknown command%s (commands: %s)"):format(text.suggestion(name, names),
    table.concat(names, ", "))
end

local function command_help(name)
  local c = registry.load(name)
  local usage = ("usage: perigee %s [options]%s\n"):format(name, c.usage and " " .. c.usage or "")
  local parts = { usage, c.summary .. "\n", c.details and c.details .. "\n" }
  if c.options and #c.options > 0 then
    parts[#parts + 1] = "options:\n" .. args.help(c.options) .. "\n"
  end
  return table.concat(parts, "\n")
end

local function program_help()
  local lines = { "usage: perigee COMMAND [options] …\n",
    "Lua decides, C computes: an inference runtime that you script.\n", "commands:" }
  for _, name in ipairs(registry.names()) do
    lines[#lines + 1] = ("  %-12s %s"):format(name, registry.load(name).summary)
  end
  lines[#lines + 1] = "\nperigee COMMAND --help describes one command.\n"
  return table.concat(lines, "\n")
end

--- The help of one command, or of the program.
function registry.help(name)
  local own = name and command_help(name) or program_help()
  return own .. "\ncommon options:\n" .. args.help(args.common) .. "\n"
end

return registry
