-- curl: https requests through the system's curl. perigee has no TLS of its own: a proxy in front
-- of it speaks TLS to clients, and requests to other servers are rare.
--
--   local link, why = curl.open({ authority = "host:8443", port = 8443, target = "/x" }, "1.2.3.4",
--     { method = "GET", headers = { accept = "*/*" } })
--
-- curl verifies the certificate and connects to the address that was checked, whatever the name
-- resolves to by then. It prints the response as the server sent it, head and chunks included, so
-- that http.client reads it like one from a socket.
local async = require "lib.async"
local uv = require "luv"

local curl = {}

local STDERR_BYTES = 4096 -- of a message; curl prints one line

-- -q must be the first: without it curl would read the user's settings. A proxy would connect to
-- an address of its own choice.
local FIXED = { "-q", "--silent", "--show-error", "--include", "--raw", "--http1.1", "--globoff",
  "--proto", "=https", "--noproxy", "*" }

local function arguments(place, address, options)
  local args = table.move(FIXED, 1, #FIXED, 1, {})
  local function add(...)
    for _, text in ipairs { ... } do args[#args + 1] = text end
  end
  if address:find(":", 1, true) then address = "[" .. address .. "]" end
  add("--connect-to", ("::%s:%d"):format(address, place.port))
  if options.method == "HEAD" then add "--head" else add("--request", options.method) end
  for name, value in pairs(options.headers) do add("--header", ("%s: %s"):format(name, value)) end
  if options.body then add("--header", "expect:", "--data-binary", "@-") end
  add("--url", "https://" .. place.authority .. place.target)
  return args
end

--- Collects what curl says about a failure.
local function listen(pipe)
  local said = { text = "" }
  pipe:read_start(function(_, bytes)
    if bytes and #said.text < STDERR_BYTES then said.text = said.text .. bytes end
  end)
  return said
end

local function reason(said, code)
  local text = said.text:match "^curl: %(%d+%) ([^\r\n]+)"
  return text or ("curl ended with status %d"):format(code)
end

--- Waits until the process has ended; its exit status.
local function exit_status(link)
  if link.code then return link.code end
  return async.await(function(resume) link.on_exit = resume end)
end

local Link = {}
Link.__index = Link

--- The next bytes of the response; nil at its end, nil and a message on failure.
function Link:read()
  local bytes, err = async.await(function(resume)
    local started, why = self.out:read_start(function(failed, bytes)
      self.out:read_stop()
      resume(bytes, failed)
    end)
    if not started then resume(nil, why) end
  end)
  if bytes or err then return bytes, err end
  local code = exit_status(self)
  if code ~= 0 then return nil, reason(self.said, code) end
end

--- Ends the process if it is running.
function Link:close()
  if not self.code then self.process:kill "sigkill" end
  for _, handle in ipairs { self.process, self.out, self.err, self.input } do
    if not handle:is_closing() then handle:close() end
  end
end

--- Starts a request: options are method, headers and body. Returns a link with read and close; or
--- nil and a message.
function curl.open(place, address, options)
  local link = setmetatable({ input = uv.new_pipe(false), out = uv.new_pipe(false),
    err = uv.new_pipe(false) }, Link)
  local process, why = uv.spawn("curl", { args = arguments(place, address, options),
    stdio = { link.input, link.out, link.err } }, function(code)
      link.code = code
      if link.on_exit then link.on_exit(code) end
    end)
  if not process then
    for _, handle in ipairs { link.input, link.out, link.err } do handle:close() end
    if tostring(why):find "^ENOENT" then why = "https needs the program curl; install it" end
    return nil, why
  end
  link.process, link.said = process, listen(link.err)
  if options.body then link.input:write(options.body) end
  link.input:shutdown()
  return link
end

return curl
