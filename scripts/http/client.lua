-- client: requests to other servers, for scripts and tests. Small on purpose: one request per
-- connection. https goes through the system's curl (http.curl).
--
--   local answer, err = client.request { url = "http://127.0.0.1:8080/x", body = "…" }
--   answer.status, answer.headers, answer.body
--
-- Call it inside a task. Options: url, or host and port (or socket: the path of a Unix socket) and
-- target; method, headers, body; timeout_ms (for everything, 30000), connect_ms (5000), max_body
-- (16 MiB); on_data(bytes) gets the body as it arrives instead of answer.body, and ends the request
-- by returning false; allow(address) is asked about each numeric address of the host before it is
-- used, and returns false for those that must not be. Failures are nil and a perigee.Error with the
-- code "io", "timeout" or "format".
local async = require "lib.async"
local body = require "http.body"
local curl = require "http.curl"
local fields = require "http.fields"
local perigee = require "perigee"
local url = require "http.url"
local uv = require "luv"

local client = {}

local HEAD_BYTES, HEADERS = 64 << 10, 200
local OPTIONS = { url = true, host = true, port = true, socket = true, target = true, method = true,
  headers = true, body = true, timeout_ms = true, connect_ms = true, max_body = true,
  on_data = true, allow = true }

-- ---- connecting ---------------------------------------------------------------------------------

local function failure(code, what, why)
  return nil, perigee.error(code, ("%s: %s"):format(what, why))
end

--- The numeric addresses of a host.
local function resolve(host, port)
  local err, list = async.await(function(resume)
    local request = uv.getaddrinfo(host, tostring(port), { socktype = "stream" }, resume)
    return function() uv.cancel(request) end
  end)
  if err then return nil, err end
  return list
end

local function connect_stream(stream, ...)
  local args = table.pack(...)
  return async.await(function(resume)
    args[args.n + 1] = function(err) resume(not err, err) end
    local started, err = stream:connect(table.unpack(args, 1, args.n + 1))
    if not started then resume(nil, err) end
    return function() stream:close() end
  end)
end

--- Connects to one address. Returns a stream, or nil and a message.
local function connect_address(address, port)
  local stream = uv.new_tcp()
  local ok, why = connect_stream(stream, address, port)
  if ok then
    stream:nodelay(true)
    return stream
  end
  stream:close()
  return nil, why
end

--- Calls connect(address) for the addresses of a place that `allow` lets pass, in order, until one
--- returns a connection. Returns it, or nil and a message.
local function first_address(place, allow, connect)
  local list, why = resolve(place.host, place.port)
  if not list then return nil, why end
  for _, address in ipairs(list) do
    local connection
    if allow and not allow(address.addr) then
      why = ("address %s is not allowed"):format(address.addr)
    else
      connection, why = connect(address.addr)
    end
    if connection then return connection end
  end
  return nil, why or "the host has no address"
end

local function connect_unix(path)
  local stream = uv.new_pipe(false)
  local ok, why = connect_stream(stream, path)
  if ok then return stream end
  stream:close()
  return nil, why
end

-- ---- one exchange -------------------------------------------------------------------------------

local function method_of(options) return options.method or (options.body and "POST" or "GET") end

local function request_text(place, options)
  local lines = { ("%s %s HTTP/1.1\r\n"):format(method_of(options), place.target) }
  local given = {}
  for name, value in pairs(options.headers or {}) do
    given[name:lower()] = true
    lines[#lines + 1] = ("%s: %s\r\n"):format(name, value)
  end
  if not given.host then lines[#lines + 1] = ("host: %s\r\n"):format(place.authority) end
  if options.body then lines[#lines + 1] = ("content-length: %d\r\n"):format(#options.body) end
  lines[#lines + 1] = "connection: close\r\n\r\n"
  lines[#lines + 1] = options.body
  return table.concat(lines)
end

--- The reader of a response's body, nil if it has no body; false and a message if it is malformed.
local function frame(answer, method, options)
  local code, headers = answer.status, answer.headers
  local max = options.max_body or 16 << 20
  if method == "HEAD" or code == 204 or code == 304 then return nil end
  if headers["transfer-encoding"] then
    if headers["transfer-encoding"]:lower() ~= "chunked" then
      return false, "unknown transfer-encoding"
    end
    return body.chunked(max, answer.on_data)
  end
  local length = headers["content-length"]
  if not length then return body.rest(max, answer.on_data) end
  local n = #length <= 18 and length:find "^%d+$" and math.tointeger(tonumber(length))
  if not n then return false, "malformed content-length" end
  if n > max and not answer.on_data then
    return false, ("body has %d bytes, the limit is %d"):format(n, max)
  end
  return n > 0 and body.length(n, answer.on_data) or nil
end

--- Reads a head; its last header ends at `stop`.
local function read_head(text, stop)
  local code, after = text:match "^HTTP/1%.[01] (%d%d%d)[^%c]*\r\n()"
  if not code then return nil, "the response is not HTTP" end
  local headers, why = fields.read(text, after, stop, HEADERS)
  if not headers then return nil, why end
  return { status = math.tointeger(tonumber(code)), headers = headers }
end

--- Reads the head of the response, skipping interim ones. Returns it and the bytes after it.
local function read_answer(read)
  local text = ""
  while true do
    local stop = text:find("\r\n\r\n", 1, true)
    if not stop then
      local bytes, why = read()
      if not bytes then return nil, why or "the server closed the connection without responding" end
      text = text .. bytes
      if #text > HEAD_BYTES and not text:find("\r\n\r\n", 1, true) then
        return nil, "head of the response is too large"
      end
    else
      local answer, why = read_head(text, stop)
      if not answer then return nil, why end
      text = text:sub(stop + 4)
      if answer.status >= 200 or answer.status == 101 then return answer, text end
    end
  end
end

local function read_body(answer, reader, bytes, read)
  local event, why = "more", nil
  if bytes ~= "" then event, why = reader:feed(bytes, 1) end
  while event == "more" do
    if answer.stopped then return true end
    bytes, why = read()
    if not bytes then
      if why then return nil, why end
      if reader.ends_with_connection then break end
      return nil, "the server closed the connection in the middle of the body"
    end
    event, why = reader:feed(bytes, 1)
  end
  if not event then return nil, why end
  return true
end

--- A function that reads the next bytes of a stream; nil at the end, nil and a message on failure.
local function reader_of(stream)
  return function()
    return async.await(function(resume)
      local started, why = stream:read_start(function(err, bytes)
        stream:read_stop()
        resume(bytes, err)
      end)
      if not started then resume(nil, why) end
    end)
  end
end

--- Sends the request. Returns what the response is read from: { read = function, close = function
--- }; or nil and a message.
local function send(place, options)
  if place.scheme == "https" then
    local link, why = first_address(place, options.allow, function(address)
      return curl.open(place, address, { method = method_of(options), body = options.body,
        headers = options.headers or {} })
    end)
    if not link then return nil, why end
    return { read = function() return link:read() end, close = function() link:close() end }
  end
  local stream, why
  if place.socket then stream, why = connect_unix(place.socket)
  else
    stream, why = first_address(place, options.allow, function(address)
      return connect_address(address, place.port)
    end)
  end
  if not stream then return nil, why end
  stream:write(request_text(place, options)) -- not awaited: a server may respond before its end
  return { read = reader_of(stream), close = function() stream:close() end }
end

local function receive(read, options)
  local answer, rest = read_answer(read)
  if not answer then return nil, rest end
  if options.on_data then
    answer.on_data = function(bytes)
      if not answer.stopped and options.on_data(bytes) == false then answer.stopped = true end
    end
  end
  local reader, why = frame(answer, method_of(options), options)
  if reader == false then return nil, why end
  if reader then
    local ok
    ok, why = read_body(answer, reader, rest, read)
    if not ok then return nil, why end
    if not options.on_data then answer.body = reader:text() end
  else
    answer.body = ""
  end
  return { status = answer.status, headers = answer.headers, body = answer.body }
end

-- ---- requests -----------------------------------------------------------------------------------

--- The destination of a request: { host, port | socket, target, authority }.
local function place_of(options)
  if options.url then
    local place, why = url.parse(options.url)
    if not place then return nil, why end
    place.socket = options.socket
    return place
  end
  local target = options.target or "/"
  if target:find "[%c ]" then return nil, "white space in the target" end
  if options.socket then
    return { socket = options.socket, target = target, authority = "localhost" }
  end
  if not options.host then return nil, "url, host or socket must be given" end
  local port = options.port or 80
  return { host = options.host, port = port, target = target,
    authority = ("%s:%d"):format(options.host, port) }
end

local function exchange(place, options, what)
  local link, why = async.timeout(options.connect_ms or 5000, function()
    return send(place, options)
  end)
  if not link then return failure(why == "timeout" and "timeout" or "io", what, why) end
  local guard <close> = setmetatable({}, { __close = link.close }) -- luacheck: ignore 211
  local answer
  answer, why = receive(link.read, options)
  if not answer then return failure("io", what, why) end
  return answer
end

--- Sends a request and waits for the response.
function client.request(options)
  for key in pairs(options) do
    if not OPTIONS[key] then error(("request: unknown option '%s'"):format(tostring(key)), 2) end
  end
  for name, value in pairs(options.headers or {}) do fields.check(name, tostring(value)) end
  local place, why = place_of(options)
  if not place then return failure("format", "request", why) end
  local what = place.socket or place.authority
  local answer, err = async.timeout(options.timeout_ms or 30000, function()
    return exchange(place, options, what)
  end)
  if not answer and err == "timeout" then return failure("timeout", what, "timeout") end
  return answer, err
end

return client
