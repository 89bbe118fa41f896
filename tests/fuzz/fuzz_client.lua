-- Any bytes as the response of a server: the client's result does not depend on how they are cut,
-- and is a response or an error of one line. Its data as a stream of events: what the server's
-- sse module sends comes back as the same events.
local async = require "lib.async"
local client = require "http.client"
local driver = require "driver"
local sse = require "http.sse"
local text = require "lib.text"
local uv = require "luv"

local SOCKET = ("%s/perigee-fuzz-%d.sock"):format(uv.os_tmpdir(), uv.os_getpid())
local LATE_MS = 30000 -- a busy machine is slow; only a client that hangs takes this long
local CHUNKED = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

-- ---- the server ---------------------------------------------------------------------------------

local pieces -- what the next connection gets

local listener = assert(uv.new_pipe(false))
os.remove(SOCKET)
assert(listener:bind(SOCKET))

--- Writes one piece at a time, and waits, so that the client reads them so.
local function serve(stream, list)
  async.run(function()
    for i, piece in ipairs(list) do
      if i > 1 then async.sleep(1) end
      if stream:is_closing() then return end
      async.await(function(resume)
        if not stream:write(piece, function() resume() end) then resume() end
      end)
    end
    if not stream:is_closing() then stream:close() end
  end)
end

listener:listen(8, function()
  local stream, list, asked = uv.new_pipe(false), pieces, ""
  listener:accept(stream)
  -- Closing a socket with unread bytes would reset the connection.
  stream:read_start(function(_, bytes)
    local was = asked
    asked = asked .. (bytes or "")
    if asked:find("\r\n\r\n", 1, true) and not was:find("\r\n\r\n", 1, true) then
      serve(stream, list)
    elseif not bytes and not stream:is_closing() then
      stream:close()
    end
  end)
end)

--- The response to a request whose answer is cut into these pieces, as a comparable table; and the
--- data of its body as it arrived.
local function ask(list)
  pieces = list
  local got = {}
  local answer, err = client.request { socket = SOCKET, target = "/", timeout_ms = LATE_MS,
    connect_ms = LATE_MS, max_body = 1 << 16 }
  if not answer then
    if tostring(err):find "[\r\n]" then error "an error of several lines" end
    if err.code == "timeout" then error "the client waits after the end of the connection" end
    return { failed = err.code }
  end
  pieces = list
  local streamed, why = client.request { socket = SOCKET, target = "/", timeout_ms = LATE_MS,
    connect_ms = LATE_MS, max_body = 1 << 16, on_data = function(bytes) got[#got + 1] = bytes end }
  if not streamed then error("only as a stream: " .. tostring(why)) end
  if table.concat(got) ~= answer.body then error "on_data gets another body" end
  return { status = answer.status, headers = answer.headers, body = answer.body }
end

local function cut_at(input, ...)
  local list, from = {}, 1
  for _, at in ipairs { ... } do
    if at >= from and at < #input then
      list[#list + 1] = input:sub(from, at)
      from = at + 1
    end
  end
  list[#list + 1] = input:sub(from)
  return list
end

-- ---- events -------------------------------------------------------------------------------------

--- A reader of events as the standard of browsers describes it: lists of { name, data }.
local function read_events(bytes)
  bytes = bytes:gsub("^\u{FEFF}", ""):gsub("\r\n", "\n"):gsub("\r", "\n")
  local events, data, name = {}, nil, nil
  for line in bytes:gmatch "([^\n]*)\n" do
    local field, value = line:match "^([^:]*):? ?(.*)$"
    if line == "" then
      if data then events[#events + 1] = { name or "message", data } end
      data, name = nil, nil
    elseif field == "data" then
      data = data and data .. "\n" .. value or value
    elseif field == "event" then
      name = value
    end
  end
  return events
end

--- The bytes that the server sends for these events, as HTTP.
local function send_events(list)
  local out = { CHUNKED }
  local connection = { server = { limits = { heartbeat_s = 15 } } }
  local response = { connection = connection }
  function response.start() end
  function response.write(_, data)
    out[#out + 1] = ("%x\r\n%s\r\n"):format(#data, data)
    return 0
  end
  function response.finish() out[#out + 1] = "0\r\n\r\n" end
  local stream = sse.start(response)
  for i, event in ipairs(list) do
    stream:event(event[2], event[1] ~= "message" and event[1] or nil)
    if i % 3 == 0 then stream:comment(event[2]) end
  end
  stream:finish()
  return table.concat(out)
end

local function check_events(input, cut)
  local list, want = {}, {}
  for part in (input .. "\0"):gmatch "(%Z*)%z" do
    local name, data = part:match "^(%w+)=(.*)$"
    name, data = name or "message", data or part
    list[#list + 1] = { name, data }
    want[#want + 1] = { name, (data:gsub("\r\n", "\n"):gsub("\r", "\n")) }
  end
  local sent = send_events(list)
  local answer = ask(cut_at(sent, cut % #sent))
  if not answer.body then error "the stream was not read" end
  if not text.same(read_events(answer.body), want) then error "other events than were sent" end
end

-- ---- the target ---------------------------------------------------------------------------------

driver.main {
  name = "client", task = true, most = 2048,
  dictionary = { "HTTP/1.1 200 OK\r\n", "HTTP/1.0 204 \r\n", "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 304 x\r\n", "content-length: 5\r\n", "Content-Length:", "transfer-encoding: chunked",
    "\r\n\r\n", "0\r\n\r\n", "5\r\nhello\r\n", "data: ", "event: ", "\n\n", "\r\r", "id: 1\n",
    ": ping\n", "retry: 1\n", "\u{FEFF}", "[DONE]", "a=b" },
  run = function(input, thorough)
    local whole = ask { input }
    local r = driver.random(#input)
    local at, single = r:below(#input + 1), {}
    for i = 1, math.min(#input, thorough and 512 or 4) do single[i] = i end
    local others = { cut_at(input, at, at + r:below(20)), cut_at(input, table.unpack(single)) }
    for _, list in ipairs(others) do
      if not text.same(ask(list), whole) then error "another result in pieces" end
    end
    check_events(input, r:below(1 << 16))
  end,
  close = function()
    listener:close()
    os.remove(SOCKET)
  end,
}
