-- gate: access control: the Host header, origins of web pages, API keys. Every request passes here
-- before its handler.
--
-- A web page can make its visitor's browser send requests to a server on the visitor's machine:
-- with a host name that it makes resolve to 127.0.0.1 (DNS rebinding), or across sites without
-- reading the response. So on a local address the Host header must be a local name or one of
-- config.hosts, and a request that changes something must come from our own page or from an origin
-- in config.cors. Neither matters on the Unix socket, which no page can reach.
--
-- Checks return nothing, or a request error (lib/errors.lua).
local errors = require "lib.errors"
local perigee = require "perigee"

local gate = {}

-- ---- Host ---------------------------------------------------------------------------------------

local LOCAL = { localhost = true, ["127.0.0.1"] = true, ["[::1]"] = true, ["::1"] = true }

--- "[::1]:8080" -> "[::1]", "Example.org.:80" -> "example.org".
local function bare(authority)
  local name = authority:match "^(%[[^%]]*%]):?%d*$" or authority:match "^([^:]*):?%d*$"
    or authority
  return (name:lower():gsub("%.$", ""))
end

--- Can only this machine reach a server that listens on this address?
function gate.is_local(address)
  return LOCAL[address:lower()] or address:match "^127%.%d+%.%d+%.%d+$" ~= nil
end

local function is_listed(list, name)
  for _, host in ipairs(list or {}) do
    if host:lower() == name then return true end
  end
  return false
end

--- Checks the Host header. Uses config.host, where the server listens, and config.hosts.
function gate.host(config, request)
  if request["local"] == "unix" then return nil end
  local name = bare(request:header "host" or "")
  local own = config.host:find(":", 1, true) and "[" .. config.host .. "]" or config.host
  if LOCAL[name] or name == own:lower() or is_listed(config.hosts, name) then return nil end
  if not gate.is_local(config.host) and not config.hosts then return nil end
  if gate.is_local(config.host) and name:match "^127%.%d+%.%d+%.%d+$" then return nil end
  return errors.new { status = 403, code = "host_not_allowed",
    message = ("host name '%s' is not allowed (add it to `hosts` in the configuration)")
      :format(name) }
end

-- ---- origins ------------------------------------------------------------------------------------

local SAFE = { GET = true, HEAD = true, OPTIONS = true }
local DEFAULT_HEADERS = { "authorization", "content-type", "x-api-key", "x-request-id",
  "x-stainless-arch", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version",
  "x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
  "x-stainless-timeout", "x-lane", "openai-organization", "openai-project", "openai-beta" }

--- The value of Access-Control-Allow-Origin for an origin; nil if it is not allowed.
local function allowed(config, origin)
  for _, o in ipairs(config.cors and config.cors.origins or {}) do
    if o == "*" then return "*" end
    if o == origin then return origin end
  end
end

--- Refuses a request that changes something and comes from a page of another site. Browsers that
--- leave out Origin say where a request comes from in Sec-Fetch-Site.
function gate.origin(config, request)
  local origin = request:header "origin"
  if SAFE[request.method] or request["local"] == "unix" then return nil end
  if not origin then
    local site = request:header "sec-fetch-site"
    if not site or site == "same-origin" or site == "none" then return nil end
    return errors.new { status = 403, code = "origin_not_allowed",
      message = "requests of other sites' pages are not allowed (Sec-Fetch-Site)" }
  end
  if allowed(config, origin) then return nil end
  local host = request:header "host"
  if host and (origin == "http://" .. host or origin == "https://" .. host) then return nil end
  return errors.new { status = 403, code = "origin_not_allowed",
    message = ("origin %s is not allowed (add it to `cors` in the configuration)")
      :format(origin:sub(1, 200)) }
end

--- The CORS headers of a response; nil if the page may not read it.
function gate.cors(config, request)
  local origin = request:header "origin"
  local allow = origin and allowed(config, origin)
  if not allow then return nil end
  return { ["access-control-allow-origin"] = allow, ["vary"] = "Origin",
    ["access-control-expose-headers"] = "x-request-id, retry-after, request-id, "
      .. "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-limit-tokens, "
      .. "x-ratelimit-remaining-tokens" }
end

--- The additional headers of the response to a preflight; nil if the request is not one, or not
--- allowed.
function gate.preflight(config, request)
  if request.method ~= "OPTIONS" or not request:header "access-control-request-method" then
    return nil
  end
  if not gate.cors(config, request) then return nil end
  return { ["access-control-allow-methods"] = "GET, POST, DELETE, OPTIONS",
    ["access-control-allow-headers"] = table.concat(config.cors.headers or DEFAULT_HEADERS, ", "),
    ["access-control-max-age"] = tostring(config.cors.max_age or 600) }
end

-- ---- keys ---------------------------------------------------------------------------------------

--- The keys of the configuration, { name = key } or a list, as a list of { name, key }.
function gate.keys(given)
  local list = {}
  for name, key in pairs(given) do
    list[#list + 1] = { name = type(name) == "string" and name or ("key" .. name), key = key }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- The key that a request carries.
local function key_of(request)
  local bearer = request:header "authorization"
  local token = bearer and bearer:match "^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+) *$"
  return token or request:header "x-api-key"
end

--- Finds the request's key. All keys are compared, each in constant time, so that response times
--- reveal nothing. Returns { name }, or nil and a refusal.
function gate.key(keys, request)
  local given = key_of(request)
  if not given then
    return nil, errors.new { status = 401, code = "missing_api_key",
      message = "an API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'" }
  end
  local found
  for _, entry in ipairs(keys) do
    if perigee.sys.equal(given, entry.key) then found = entry end
  end
  if found then return { name = found.name } end
  return nil, errors.new { status = 401, code = "invalid_api_key",
    message = "this API key is not known here" }
end

return gate
