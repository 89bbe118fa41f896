-- command: what commands share: exit statuses, one-line errors, and a check of the common options.
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
  if opts.precision == "fast" then
    return nil, "--precision fast is not available yet, only exact"
  end
  if opts.device == "metal" then return nil, "--device metal: this build has the CPU only" end
  return true
end

return command
