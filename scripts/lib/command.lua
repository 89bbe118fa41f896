-- command: what commands share: exit statuses, one-line errors, and a check of the common options.
local perigee = require "perigee"

local command = { OK = 0, FAILED = 1, USAGE = 2 }

--- Writes "perigee: WHAT: WHY" to stderr, in one write because a log may go to the same place, and
--- returns the status.
function command.fail(status, what, why)
  io.stdout:flush()
  io.stderr:write(("perigee: %s: %s\n"):format(what, (tostring(why):gsub("%s*\n%s*", "; "))))
  return status
end

--- Can this build run models with these options? True, or nil and why not.
function command.check_compute(opts)
  local name, why = perigee.engine.device(opts.device or "auto")
  if not name then return nil, tostring(why) end
  return true
end

--- The options of a model by those of the command line. precision: the command's default, otherwise
--- exact.
function command.model_options(opts, precision)
  return { threads = opts.threads, context = opts.context, memory = opts.memory,
    kv_bits = tonumber(opts.kv_bits), device = opts.device,
    precision = opts.precision or precision or "exact" }
end

return command
