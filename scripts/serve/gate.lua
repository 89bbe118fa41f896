-- gate: who may ask: the Host header, pages of other sites, API keys. Every request passes here before its handler.
--
-- A page that somebody visits can send requests to this machine: by a name that it makes point to 127.0.0.1 (DNS
-- rebinding), or across sites without reading the answers. So on a local address the Host header must be a local name or one
-- of config.hosts, and a request that changes something must come from our own page or from an origin in config.cors.
-- Neither matters on the Unix socket, which no page can reach.
--
-- Checks return nothing, or a request error (lib/errors.lua).
local errors = require "lib.errors"
local perigee = require "perigee"

local gate = {}

-- ---- Host ----------------------------------------------------------------------------------------------------------

local LOCAL = { localhost = true, ["127.0.0.1"] = true, ["[::1]"] = true, ["::1"] = true }

--- "[::1]:8080" -> "[::1]", "Example.org.:80" -> "example.org".
local function bare(authority)
  local name = authority:match "^(%[[^%]]*%]):?%d*$" or authority:match "^([^:]*):?%d*$" or authority
  return (name:lower():gsub("%.$", ""))
end

--- Is an address to listen on reachable from this machine only?
function gate.is_local(address)
  return LOCAL[address:lower()] or address:match "^127%.%d+%.%d+%.%d+$" ~= nil
end

local function is_listed(list, name)
  for _, host in ipairs(list or {}) do
    if host:lower() == name then return true end
  end
  return false
end

--- config: host (where the server listens) and hosts.
function gate.host(config, request)
  if request["local"] == "unix" then return nil end
  local name = bare(request:header "host" or "")
  local own = config.host:find(":", 1, true) and "[" .. config.host .. "]" or config.host
  if LOCAL[name] or name == own:lower() or is_listed(config.hosts, name) then return nil end
  if not gate.is_local(config.host) and not config.hosts then return nil end
  if gate.is_local(config.host) and name:match "^127%.%d+%.%d+%.%d+$" then return nil end
  return errors.new { status = 403, code = "host_not_allowed",
    message = ("this server does not answer to the name '%s' (the configuration's `hosts` lists more)"):format(name) }
end

-- ---- origins -------------------------------------------------------------------------------------------------------

local SAFE = { GET = true, HEAD = true, OPTIONS = true }
local DEFAULT_HEADERS = { "authorization", "content-type", "x-api-key", "x-request-id", "x-stainless-arch", "x-stainless-lang",
  "x-stainless-os", "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime",
  "x-stainless-runtime-version", "x-stainless-timeout", "x-lane", "openai-organization", "openai-project", "openai-beta" }

--- The origin as it may be told to the browser, nil when it is none of those that may ask.
local function allowed(config, origin)
  for _, o in ipairs(config.cors and config.cors.origins or {}) do
    if o == "*" then return "*" end
    if o == origin then return origin end
  end
end

--- A request that changes something and comes from a page of another site. Refusal or nil.
function gate.origin(config, request)
  local origin = request:header "origin"
  if not origin or SAFE[request.method] or request["local"] == "unix" then return nil end
  if allowed(config, origin) then return nil end
  local host = request:header "host"
  if host and (origin == "http://" .. host or origin == "https://" .. host) then return nil end
  return errors.new { status = 403, code = "origin_not_allowed",
    message = ("pages of %s may not ask this server (the configuration's `cors` lists those that may)")
      :format(origin:sub(1, 200)) }
end

--- Headers of every answer to a page that may read it; nil: none.
function gate.cors(config, request)
  local origin = request:header "origin"
  local allow = origin and allowed(config, origin)
  if not allow then return nil end
  return { ["access-control-allow-origin"] = allow, ["vary"] = "Origin",
    ["access-control-expose-headers"] = "x-request-id, retry-after, x-ratelimit-limit-requests, "
      .. "x-ratelimit-remaining-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens" }
end

--- More headers for the answer to a preflight; nil when the request is none, or none that may be answered.
function gate.preflight(config, request)
  if request.method ~= "OPTIONS" or not request:header "access-control-request-method" then return nil end
  if not gate.cors(config, request) then return nil end
  return { ["access-control-allow-methods"] = "GET, POST, DELETE, OPTIONS",
    ["access-control-allow-headers"] = table.concat(config.cors.headers or DEFAULT_HEADERS, ", "),
    ["access-control-max-age"] = tostring(config.cors.max_age or 600) }
end

-- ---- keys ----------------------------------------------------------------------------------------------------------

--- { name = key } and lists, as the configuration has them, as a list of { name, key }.
function gate.keys(given)
  local list = {}
  for name, key in pairs(given) do
    list[#list + 1] = { name = type(name) == "string" and name or ("key" .. name), key = key }
  end
  table.sort(list, function(a, b) return a.name < b.name end)
  return list
end

--- The key that a request shows, as text.
local function shown(request)
  local bearer = request:header "authorization"
  local token = bearer and bearer:match "^[Bb][Ee][Aa][Rr][Ee][Rr] +(%S+) *$"
  return token or request:header "x-api-key"
end

--- Which of the keys the request shows. All of them are compared, each in a time that does not depend on where they differ.
--- Returns { name = }, or nil and a refusal.
function gate.key(keys, request)
  local given = shown(request)
  if not given then
    return nil, errors.new { status = 401, code = "missing_api_key",
      message = "an API key is needed: 'Authorization: Bearer KEY' or 'x-api-key: KEY'" }
  end
  local found
  for _, entry in ipairs(keys) do
    if perigee.sys.equal(given, entry.key) then found = entry end
  end
  if found then return { name = found.name } end
  return nil, errors.new { status = 401, code = "invalid_api_key", message = "this API key is not known here" }
end

return gate
