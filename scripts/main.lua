-- main: the command line. Returns a function that lua/main.c calls with the arguments.
local args = require "lib.args"
local command = require "lib.command"
local commands = require "cmd"
local tiles = require "engine.tiles"

--- What is wrong with the first argument that is not UTF-8, and its name.
local function check_utf8(argv)
  for i = 1, #argv do
    local n, at = utf8.len(argv[i])
    if not n then return ("not valid UTF-8 at byte %d"):format(at), ("argument %d"):format(i) end
  end
end

local function print_help(name)
  io.write(commands.help(name))
  return command.OK
end

--- What is wrong with the number of operands.
local function check_count(c, name, opts)
  if #opts < (c.min or 0) then
    return ("missing arguments, expected %s (perigee %s --help)"):format(c.usage, name)
  end
  if #opts > (c.max or math.huge) then
    return ("unexpected argument '%s'"):format(opts[c.max + 1])
  end
end

--- Runs a command. `before`: the options in front of its name.
local function run(name, words, before)
  local c = commands.load(name)
  if not c then return command.fail(command.USAGE, name, commands.unknown(name)) end
  local options = { c.options or {}, args.common }
  local opts, why = args.parse(options, words, { first = 2, stop = c.stop })
  if not opts then return command.fail(command.USAGE, name, why) end
  if opts.help or before.help then return print_help(name) end
  for key, value in pairs(before) do
    if type(key) == "string" and opts[key] == nil then opts[key] = value end
  end
  why = check_count(c, name, opts) or opts.metal_tiles and select(2, tiles.set(opts.metal_tiles))
  if why then return command.fail(command.USAGE, name, why) end
  local status, wait = c.run(args.defaults(options, opts))
  if status == nil and wait ~= nil and type(wait) ~= "function" and wait ~= true then
    return command.fail(command.FAILED, name, wait)
  end
  return status or command.OK, wait
end

return function(argv)
  local bad, which = check_utf8(argv)
  if bad then return command.fail(command.FAILED, which, bad) end
  if argv[1] == "--version" then return run("version", { "version" }, {}) end
  local before, why = args.parse({ args.common }, argv, { stop = true })
  if not before then return command.fail(command.USAGE, "command line", why) end
  if #before == 0 then
    if before.help then return print_help() end
    return command.fail(command.USAGE, "command line", "no command (perigee --help lists them)")
  end
  return run(before[1], before, before)
end
