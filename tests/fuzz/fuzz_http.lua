-- Any bytes as a stream of requests: the same requests however the bytes are cut; a request that is
-- written again reads equal; a head that two readers could frame differently is refused; and the
-- response to each is framed correctly.
local body = require "http.body"
local driver = require "driver"
local fields = require "http.fields"
local parse = require "http.parse"
local response = require "http.response"
local text = require "lib.text"

local LIMITS = { head = 2048, headers = 20, target = 256, body = 2000 }
local WIDE = { head = 1 << 20, headers = 100, target = 1 << 16, body = 1 << 20 }

--- All requests in a list of pieces. Returns them, and how it ended: "error", "inside" or "clean".
--- With heads: the bytes of each head are added to this list (for input in one piece).
local function read_all(pieces, limits, heads)
  local parser, requests = parse.new(limits), {}
  local began = 1
  for _, bytes in ipairs(pieces) do
    local pos = 1
    while pos <= #bytes do
      local event, next_pos, status = parser:feed(bytes, pos)
      if not event then
        if type(next_pos) ~= "string" or next_pos:find "[\r\n]" then error "no message" end
        if math.type(status) ~= "integer" or status < 400 or status > 599 then
          error(("status %s"):format(tostring(status)))
        end
        return requests, "error"
      end
      if event == "more" then break end
      if next_pos <= pos and event == "request" and not parser.request.body then
        error "no progress"
      end
      if heads and event == "head" then heads[#requests + 1] = bytes:sub(began, next_pos - 1) end
      if event == "request" then
        requests[#requests + 1] = parser.request
        if heads and not heads[#requests] then
          heads[#requests] = bytes:sub(began, next_pos - 1)
        end
        began = next_pos
      end
      pos = next_pos
    end
  end
  return requests, parser:is_inside() and "inside" or "clean"
end

--- The cases in which servers and proxies have disagreed where a body ends: lines are found here as
--- the most lenient reader would.
local function check_framing(request, head)
  local lengths, encodings = 0, 0
  for line in (head .. "\n"):gmatch "([^\n]*)\n" do
    local name = line:match "^%s*([^:]-)%s*:"
    name = name and name:lower()
    if name == "content-length" then lengths = lengths + 1 end
    if name == "transfer-encoding" then encodings = encodings + 1 end
  end
  if lengths > 1 or encodings > 1 or lengths + encodings > 1 then
    error(("accepted %d lengths and %d encodings"):format(lengths, encodings))
  end
  local length = request.headers["content-length"]
  if length and tonumber(length) ~= #(request.body or "") then
    error(("content-length is %s, the body has %d bytes"):format(length, #(request.body or "")))
  end
  if (request.body or "") ~= "" and lengths + encodings == 0 then
    error "a body without a length"
  end
end

local function written(request)
  local lines = { ("%s %s HTTP/%s\r\n"):format(request.method, request.target, request.version) }
  for _, name in ipairs(text.sorted_keys(request.headers)) do
    lines[#lines + 1] = ("%s: %s\r\n"):format(name, request.headers[name])
  end
  lines[#lines + 1] = "\r\n"
  local bytes = request.body or ""
  if request.headers["transfer-encoding"] then
    if bytes ~= "" then bytes = ("%x\r\n%s\r\n"):format(#bytes, bytes) end
    bytes = bytes .. "0\r\n\r\n"
  end
  return table.concat(lines) .. bytes
end

--- Empty values of a repeated header are joined to ", ", which is read without its space.
local function trim_values(request)
  for name, value in pairs(request.headers) do
    request.headers[name] = value:match "^[ \t]*(.-)[ \t]*$"
  end
end

local function check_written(request)
  local again, how = read_all({ written(request) }, WIDE)
  if #again ~= 1 or how ~= "clean" then error("written again it is " .. how) end
  trim_values(request)
  if not text.same(again[1], request) then error "written again it differs" end
end

-- ---- cuts ---------------------------------------------------------------------------------------

local function check_cut(input, pieces, requests, how)
  local others, other_how = read_all(pieces, LIMITS)
  if other_how ~= how or #others ~= #requests then
    error(("whole: %d requests, %s; cut at %d: %d requests, %s"):format(#requests, how,
      #(pieces[1] or ""), #others, other_how))
  end
  for i, request in ipairs(requests) do
    if not text.same(request, others[i]) then
      error(("request %d differs, cut at %d of %d"):format(i, #pieces[1], #input))
    end
  end
end

--- One byte at a time, and in two pieces: at every byte, or at a few.
local function check_cuts(input, requests, how, thorough)
  local single = {}
  for i = 1, #input do single[i] = input:sub(i, i) end
  check_cut(input, single, requests, how)
  local r = driver.random(#input)
  for i = 1, thorough and #input - 1 or math.min(#input - 1, 6) do
    local at = thorough and i or r:below(#input - 1)
    check_cut(input, { input:sub(1, at), input:sub(at + 1) }, requests, how)
  end
end

-- ---- responses ----------------------------------------------------------------------------------

--- A connection that collects what is written to it.
local function new_connection()
  local connection = { out = {}, server = {} }
  function connection.server.common_headers() return "server: perigee\r\n" end
  function connection:write(data)
    self.out[#self.out + 1] = data
    return 0
  end
  function connection:leave() self.left = true end
  function connection:may_stay() return not self.left end
  function connection.is_open() return true end
  function connection.waiting_bytes() return 0 end
  function connection:answered() self.answers = (self.answers or 0) + 1 end
  return connection
end

--- The headers that were sent and the body, read by our own reader.
local function read_response(connection, request)
  local sent = table.concat(connection.out)
  local stop = sent:find("\r\n\r\n", 1, true) or error "a response without a head"
  local after = sent:match "^HTTP/1%.1 %d%d%d [%w %-']*\r\n()" or error "no status line"
  local headers = assert(fields.read(sent, after, stop, 100))
  local rest = sent:sub(stop + 4)
  if request.method == "HEAD" then
    if rest ~= "" then error "a body for HEAD" end
    return headers, nil
  end
  local reader
  if headers["transfer-encoding"] then
    reader = body.chunked(1 << 20)
  elseif headers["content-length"] then
    local n = tonumber(headers["content-length"])
    if n == 0 and rest == "" then return headers, "" end
    reader = body.length(n)
  else
    if not connection.left then error "a body without framing on a connection that stays" end
    return headers, rest
  end
  local event, next_pos = reader:feed(rest, 1)
  if event ~= "done" or next_pos ~= #rest + 1 then error "the response's framing is wrong" end
  return headers, reader:text()
end

--- Sends the request's headers and body back, whole or in pieces.
local function check_response(request, in_pieces)
  local connection = new_connection()
  request.id = "id"
  local answer = response.new(connection, request)
  local given = {}
  for name, value in pairs(request.headers) do given["x-" .. name] = value end
  local bytes = request.body or request.path
  if in_pieces then
    answer:start(200, given)
    for at = 1, #bytes, 7 do answer:write(bytes:sub(at, at + 6)) end
    answer:finish()
  else
    answer:send(200, given, bytes)
  end
  request.id = nil
  local headers, got = read_response(connection, request)
  if got and got ~= bytes then error "another body than was sent" end
  for name, value in pairs(given) do
    if headers[name] ~= value then error(("header %s differs"):format(name)) end
  end
  if connection.answers ~= 1 then error "not answered once" end
end

--- A header whose name or value could end its line is refused before anything is sent.
local function check_injection(input)
  local name, value = input:match "^([^:]*):(.*)$"
  if not name then return end
  local connection = new_connection()
  local answer = response.new(connection, { method = "GET", version = "1.1", id = "id" })
  if not pcall(answer.send, answer, 200, { [name] = value }, "") then
    if #connection.out > 0 then error "bytes were sent before a header was refused" end
    return
  end
  local headers = read_response(connection, { method = "GET" })
  local count = 0
  for _ in pairs(headers) do count = count + 1 end
  if count > 4 then error "one header became several" end
end

-- ---- the target ---------------------------------------------------------------------------------

local WORDS = { "GET ", "POST ", "HEAD ", "OPTIONS * ", " HTTP/1.1\r\n", " HTTP/1.0\r\n",
  "Host: h\r\n", "\r\nHost:", "Content-Length: ", "content-length:5\r\n", "Content-Length: 0\r\n",
  "Transfer-Encoding: chunked\r\n", "transfer-encoding:chunked\r\n", "Transfer-Encoding : chunked",
  "chunked", "identity", ", chunked", "Expect: 100-continue\r\n", "Connection: close\r\n",
  "\r\n\r\n", "\r\n", "\n\n", "\r\n ", "\r\n\t", "0\r\n\r\n", "5\r\nhello\r\n", "1;a=b\r\nx\r\n",
  "ffffffffffffffff\r\n", "0x5\r\n", "+5", "5, 5", "\v", "\0", "http://h:80/", "/%2e%2e/", "?a=b&",
  "%00", "%", "[::1]", "@", "X: y\r\n", ":", "Trailer: 1\r\n" }

driver.main {
  name = "http", dictionary = WORDS, most = 4096,
  run = function(input, thorough)
    local heads = {}
    local requests, how = read_all({ input }, LIMITS, heads)
    if #input <= 1024 then check_cuts(input, requests, how, thorough) end
    for i, request in ipairs(requests) do
      check_framing(request, heads[i])
      check_written(request)
      check_response(request, false)
      check_response(request, true)
    end
    check_injection(input)
  end,
}
