-- signals: SIGTERM and SIGINT end the server, the first one after what runs, the second one at once; SIGHUP reloads.
local async = require "lib.async"
local uv = require "luv"

local signals = {}

local function on(handles, name, fn)
  local handle = uv.new_signal()
  handle:start(name, fn)
  handle:unref() -- the listening sockets keep the loop alive, nothing else should
  handles[#handles + 1] = handle
end

--- Listens for signals until the app has stopped.
function signals.start(app)
  local handles = {}
  local function stop(name)
    app.log:note("info", app.draining and name .. " again: stopping at once"
      or ("%s: finishing what runs, for %g s at most"):format(name, app.config.drain_s))
    app:stop()
  end
  on(handles, "sigterm", stop)
  on(handles, "sigint", stop)
  on(handles, "sighup", function() async.run(function() app:reload() end) end)
  app.on_stopped = function()
    for _, handle in ipairs(handles) do handle:close() end
  end
end

return signals
