-- admin: inspects and reloads the site's scripts. On the Unix socket only.
--
--   GET  /admin/scripts     the version in use, its files, errors and strikes, and older versions
--                           that still serve requests
--   POST /admin/reload      reads configuration and scripts again; 409 and a message if that failed
--                           and the old ones were kept
--   POST /admin/rollback    returns to the scripts before the last change, from memory
local perigee = require "perigee"
local json = perigee.json

local function answer(app, response, ok, why)
  local status = app.scripts:status()
  status.ok = ok ~= nil
  status.error = status.error or why and tostring(why)
  if type(ok) == "table" and ok.changed then
    status.changed, status.restart = json.array(ok.changed), json.array(ok.restart)
  end
  response:json(ok and 200 or 409, status)
end

local function routes(app)
  local unix_only = { unix_only = true }
  app:route("GET", "/admin/scripts", function(_, response)
    response:json(200, app.scripts:status())
  end, unix_only)
  app:route("POST", "/admin/reload", function(_, response)
    answer(app, response, app:reload())
  end, unix_only)
  app:route("POST", "/admin/rollback", function(_, response)
    answer(app, response, app.scripts:rollback())
  end, unix_only)
end

return { routes = routes }
