-- pages: the chat page at / and its icon, for browsers. Its content security policy lets the page
-- talk to this server only, and runs only the script and style that carry the nonce of this
-- response.
local errors = require "lib.errors"
local perigee = require "perigee"
local uv = require "luv"

local pages = {}

local POLICY = table.concat({
  "default-src 'none'", "script-src 'nonce-%s'", "style-src 'nonce-%s'",
  "img-src 'self' data: blob:", "connect-src 'self'", "form-action 'none'", "base-uri 'none'",
  "frame-ancestors 'none'",
}, "; ")

local HEADERS = { ["x-frame-options"] = "DENY",
  ["referrer-policy"] = "no-referrer", ["cross-origin-opener-policy"] = "same-origin",
  ["cross-origin-resource-policy"] = "same-origin", ["cache-control"] = "no-cache" }

-- A planet with its moon at perigee.
local ICON = [[<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">
<ellipse cx="16" cy="16" rx="14" ry="9" fill="none" stroke="#7a8cff" stroke-width="1.5"
  transform="rotate(-24 16 16)"/>
<circle cx="19" cy="15" r="6" fill="#3346d3"/><circle cx="27.5" cy="9" r="2.5" fill="#f2b134"/>
</svg>
]]

local function with(kind)
  local headers = { ["content-type"] = kind }
  for name, value in pairs(HEADERS) do headers[name] = value end
  return headers
end

local function new_nonce()
  return (uv.random(16):gsub(".", function(c) return ("%02x"):format(c:byte()) end))
end

local function icon(_, response)
  local headers = with "image/svg+xml"
  headers["cache-control"] = "max-age=86400"
  response:send(200, headers, ICON)
end

--- The page with its parts in place of their names; nil if the build has none.
local function page(nonce)
  local html = perigee.sys.script "ui/web/index.html"
  return html and (html:gsub("{{([%w.]+)}}", function(name)
    return name == "nonce" and nonce or perigee.sys.script("ui/web/" .. name)
  end))
end

local function chat_page(app, response)
  local nonce, headers = new_nonce(), with "text/html; charset=utf-8"
  local html = page(nonce)
  if not html then
    return app:refuse(response, errors.new { status = 404, code = "not_found",
      message = "this build has no chat page" })
  end
  headers["content-security-policy"] = POLICY:format(nonce, nonce)
  response:send(200, headers, html)
end

function pages.routes(app)
  app:route("GET", "/", function(_, response) chat_page(app, response) end, { auth = false })
  app:route("GET", "/favicon.ico", icon, { auth = false })
  app:route("GET", "/favicon.svg", icon, { auth = false })
end

return pages
