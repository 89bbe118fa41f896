-- signals: the first SIGTERM or SIGINT drains the server, the second stops it at once; SIGHUP
-- reloads configuration and scripts. SIGUSR1 and SIGUSR2, which would end the process, do nothing.
local async = require "lib.async"
local uv = require "luv"

local signals = {}

local function on(handles, name, fn)
  local handle = uv.new_signal()
  handle:start(name, fn)
  handle:unref() -- only the listening sockets should keep the loop alive
  handles[#handles + 1] = handle
end

--- Listens for signals until the app has stopped.
function signals.start(app)
  local handles = {}
  local function stop(name)
    app.log:note("info", app.draining and name .. " again: stopping at once"
      or ("%s: draining, at most %g s"):format(name, app.config.drain_s))
    app:stop()
  end
  on(handles, "sigterm", stop)
  on(handles, "sigint", stop)
  on(handles, "sighup", function() async.run(function() app:reload() end) end)
  for _, name in ipairs { "sigusr1", "sigusr2" } do on(handles, name, function() end) end
  app.on_stopped = function()
    for _, handle in ipairs(handles) do handle:close() end
  end
end

return signals
