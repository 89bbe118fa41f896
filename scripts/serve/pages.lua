-- pages: what a browser gets: the page at / and its icon, with a policy that lets it talk to this server and nothing else.
local perigee = require "perigee"

local pages = {}

local POLICY = table.concat({ "default-src 'none'", "script-src 'self' 'unsafe-inline'", "style-src 'self' 'unsafe-inline'",
  "img-src 'self' data: blob:", "connect-src 'self'", "form-action 'none'", "base-uri 'none'", "frame-ancestors 'none'" }, "; ")

local HEADERS = { ["content-security-policy"] = POLICY, ["x-content-type-options"] = "nosniff", ["x-frame-options"] = "DENY",
  ["referrer-policy"] = "no-referrer", ["cross-origin-opener-policy"] = "same-origin",
  ["cross-origin-resource-policy"] = "same-origin", ["cache-control"] = "no-cache" }

-- A planet and its moon at the point nearest to it.
local ICON = [[<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<ellipse cx="16" cy="16" rx="14" ry="9" fill="none" stroke="#7a8cff" stroke-width="1.5" transform="rotate(-24 16 16)"/>
<circle cx="19" cy="15" r="6" fill="#3346d3"/><circle cx="27.5" cy="9" r="2.5" fill="#f2b134"/></svg>
]]

local function with(kind)
  local headers = { ["content-type"] = kind }
  for name, value in pairs(HEADERS) do headers[name] = value end
  return headers
end

local function icon(_, response)
  local headers = with "image/svg+xml"
  headers["cache-control"] = "max-age=86400"
  response:send(200, headers, ICON)
end

function pages.routes(app)
  app:route("GET", "/", function(_, response)
    local page = perigee.sys.script "ui/web/index.html"
    if not page then return app:refuse(response, { status = 404, code = "not_found", message = "this build has no page" }) end
    response:send(200, with "text/html; charset=utf-8", page)
  end, { auth = false })
  app:route("GET", "/favicon.ico", icon, { auth = false })
  app:route("GET", "/favicon.svg", icon, { auth = false })
end

return pages
