-- parse: the incremental parser of requests. It knows no sockets and no time; the connection feeds
-- it.
--
-- parser:feed(bytes, pos) returns
--   "more"                all bytes were taken, the request is not complete
--   "head", next          the head was read into parser.request and a body follows
--   "some", next          many chunks of a body were read; the caller may rest
--   "request", next       parser.request is complete; the next feed begins a new one
--   nil, why, status      not a valid request; the connection cannot be used any longer
--
-- Time is linear, however the bytes are cut. The limits head, headers, target and body bound the
-- memory.
local body = require "http.body"
local fields = require "http.fields"
local url = require "http.url"

local CHUNKS = 512 -- between two rests: about 2 milliseconds

local parse = {}

local byte, find, match, sub = string.byte, string.find, string.match, string.sub

local REQUEST_LINE = "^([!#$%%&'*+%-.^_`|~%w]+) ([\33-\126]+) HTTP/(%d)%.(%d)\r\n()"
local HOST = "^[%w%-._~!$&'()*+,;=:%%%[%]]*$"

local Parser = {}
Parser.__index = Parser

function parse.new(limits)
  return setmetatable({ limits = limits, pieces = {}, size = 0, tail = "", after_cr = false },
    Parser)
end

--- Has a request begun that is not yet complete?
function Parser:is_inside()
  return self.size > 0 or self.reader ~= nil
end

--- The body that is being read will not be needed.
function Parser:drop()
  if self.reader then self.reader:drop() end
  self.reader = nil
end

-- ---- the head -----------------------------------------------------------------------------------

--- The reader of the body, nil if there is no body; or false, a message and a status.
local function frame(request, limits)
  local headers = request.headers
  local encoding, length = headers["transfer-encoding"], headers["content-length"]
  if encoding then
    if length then return false, "both content-length and transfer-encoding" end
    if request.version == "1.0" then return false, "transfer-encoding in HTTP/1.0" end
    if encoding:lower() ~= "chunked" then return false, "transfer-encoding is not 'chunked'" end
    local reader = body.chunked(limits.body)
    reader.slice = CHUNKS
    return reader
  end
  if not length then return nil end
  if #length > 18 or not find(length, "^%d+$") then return false, "malformed content-length" end
  local n = math.tointeger(tonumber(length))
  if n > limits.body then
    return false, ("body is larger than %d bytes"):format(limits.body), 413
  end
  return n > 0 and body.length(n) or nil
end

--- Checks the host: an absolute target takes precedence over the Host header.
local function check_host(request, authority)
  local host = request.headers.host
  if not host and request.version == "1.1" then return nil, "no host header" end
  host = authority or host
  if host and not find(host, HOST) then return nil, "malformed host header" end
  request.headers.host = host
  return true
end

--- Reads a head whose last line ends with the CR at `stop`.
local function read_head(self, text, pos, stop)
  local method, target, major, minor, after = match(text, REQUEST_LINE, pos)
  if not method then return nil, "malformed request line", 400 end
  if major ~= "1" then return nil, ("HTTP/%s.%s is not supported"):format(major, minor), 505 end
  if #target > self.limits.target then
    return nil, ("target is longer than %d bytes"):format(self.limits.target), 414
  end
  local headers, why, status = fields.read(text, after, stop, self.limits.headers)
  if not headers then return nil, why, status end
  local request = { method = method, target = target, version = minor == "0" and "1.0" or "1.1",
    headers = headers }
  local place
  place, why = url.target(target, method)
  if not place then return nil, why, 400 end
  request.path, request.raw_path, request.query, request.query_list =
    place.path, place.raw_path, place.query, place.query_list
  local ok
  ok, why = check_host(request, place.authority)
  if not ok then return nil, why, 400 end
  if headers.expect and headers.expect:lower() ~= "100-continue" then
    return nil, "unsupported expectation, only 100-continue is known", 417
  end
  return request
end

--- Reads a complete head; `stop` is the position of its CRLFCRLF in text.
local function end_head(self, text, pos, stop)
  local request, why, status = read_head(self, text, pos, stop)
  if not request then return nil, why, status end
  self.request = request -- also of a body that is refused
  local reader
  reader, why, status = frame(request, self.limits)
  if reader == false then return nil, why, status or 400 end
  self.reader = reader
  return reader and "head" or "request"
end

--- Checks an incomplete head; nil, a message and a status if it can no longer become valid.
local function check_partial(self, probe)
  if find(probe, "[^\r]\n") or self.size == #probe and byte(probe) == 10 then
    return nil, "line without CR", 400
  end
  if find(probe, "\0", 1, true) then return nil, "NUL in the head", 400 end
  if self.size == #probe and not find(probe, "^[!#$%%&'*+%-.^_`|~%w]+ ?") then
    return nil, "malformed request line", 400
  end
  return true
end

--- Skips empty lines before a request, also when CR and LF arrive separately; nil for a CR without
--- LF.
local function skip_empty_lines(self, bytes, pos)
  while pos <= #bytes do
    local b = byte(bytes, pos)
    if self.after_cr then
      if b ~= 10 then return nil end
    elseif b ~= 13 then
      break
    end
    self.after_cr = not self.after_cr
    pos = pos + 1
  end
  return pos
end

local function feed_head(self, bytes, pos)
  if self.size == 0 then
    self.request = nil
    pos = skip_empty_lines(self, bytes, pos)
    if not pos then return nil, "CR without LF", 400 end
    if pos > #bytes then return "more" end
    local stop = find(bytes, "\r\n\r\n", pos, true)
    if stop and stop - pos + 4 <= self.limits.head then -- the usual case: the whole head at once
      local event, why, status = end_head(self, bytes, pos, stop)
      return event, event and stop + 4 or why, status
    end
  end
  local portion = sub(bytes, pos)
  local probe = self.tail .. portion
  local stop = find(probe, "\r\n\r\n", 1, true)
  local taken = stop and stop + 3 - #self.tail or #portion
  self.size = self.size + taken
  if self.size > self.limits.head then
    return nil, ("head is larger than %d bytes"):format(self.limits.head), 431
  end
  self.pieces[#self.pieces + 1] = stop and sub(portion, 1, taken) or portion
  if not stop then
    local ok, why, status = check_partial(self, probe)
    if not ok then return nil, why, status end
    self.tail = sub(probe, -3)
    return "more"
  end
  local text = table.concat(self.pieces)
  self.pieces, self.size, self.tail = {}, 0, ""
  local event, why, status = end_head(self, text, 1, #text - 3)
  return event, event and pos + taken or why, status
end

-- ---- requests -----------------------------------------------------------------------------------

function Parser:feed(bytes, pos)
  local reader = self.reader
  if not reader then return feed_head(self, bytes, pos) end
  local event, next_pos, status = reader:feed(bytes, pos)
  if event ~= "done" then return event, next_pos, status end
  self.request.body = reader:content()
  self.reader = nil
  return "request", next_pos
end

return parse
