-- body: incremental readers of message bodies: of known length, chunked, or up to the end of the
-- connection.
--
-- reader:feed(bytes, pos) returns "more" (all bytes were taken); or "done" and the position after
-- the body; or nil, a message and an HTTP status; or, if reader.slice is set, "some" and a position
-- after that many chunks: a read of 64 KB may have 10,000. The cost does not depend on how the
-- bytes are cut, and at most `max` bytes are kept. reader:content() returns the whole body: a
-- string or, if it has more than 64 KB, perigee.Bytes. reader:text() is always a string, for small
-- programs.
local fields = require "http.fields"
local perigee = require "perigee"

local body = {}

local byte, find, sub = string.byte, string.find, string.sub

local LARGE = 64 << 10        -- bytes of a body that is a Lua string at most
local SMALL, MANY = 4096, 64  -- pieces smaller than this are joined, 64 at a time
local LINE = 1024             -- bytes of a chunk's size line, extensions included
-- Framing may take OVERHEAD bytes and SHARE times the data: one-byte chunks cost 6 bytes each, so
-- honest clients pass and a body of nothing but extensions does not.
local OVERHEAD, SHARE = 16384, 8
local TRAILERS = 8192         -- bytes

-- ---- collecting ---------------------------------------------------------------------------------

local Pieces = {}
Pieces.__index = Pieces

--- The data of a body of at most `most` bytes. Up to LARGE they are a list of strings that stays
--- cheap when they are tiny; more go into memory outside of Lua.
local function new_pieces(most)
  return setmetatable({ list = {}, small = {}, size = 0, most = most }, Pieces)
end

--- Continues outside of Lua's heap.
local function go_large(self)
  local bytes, why = perigee.bytes.new(self.most)
  if not bytes then error(why, 0) end
  for _, piece in ipairs(self.list) do bytes:put(piece) end
  for _, piece in ipairs(self.small) do bytes:put(piece) end
  self.bytes, self.list, self.small = bytes, nil, nil
end

function Pieces:add(piece)
  self.size = self.size + #piece
  if not self.bytes and self.size > LARGE then go_large(self) end
  if self.bytes then return self.bytes:put(piece) end
  local small = self.small
  if #piece < SMALL then
    small[#small + 1] = piece
    if #small < MANY then return end
    self.list[#self.list + 1] = table.concat(small)
    self.small = {}
  else
    if #small > 0 then
      self.list[#self.list + 1] = table.concat(small)
      self.small = {}
    end
    self.list[#self.list + 1] = piece
  end
end

--- A string, or perigee.Bytes if it is large.
function Pieces:join()
  if self.bytes then return self.bytes end
  self.list[#self.list + 1] = table.concat(self.small)
  self.small = {}
  return #self.list == 1 and self.list[1] or table.concat(self.list)
end

--- Makes a reader. on_data(bytes), if given, gets the data instead of it being collected.
local function new_reader(class, fields_of, on_data)
  fields_of.pieces = new_pieces(fields_of.max or fields_of.left)
  fields_of.on_data, fields_of.received = on_data, 0
  return setmetatable(fields_of, class)
end

local function take(reader, data)
  reader.received = reader.received + #data
  if reader.on_data then reader.on_data(data) else reader.pieces:add(data) end
end

-- ---- by length ----------------------------------------------------------------------------------

local Length = {}
Length.__index = Length

function body.length(n, on_data)
  return new_reader(Length, { left = n }, on_data)
end

--- Lowers the limit of the whole body; false if it is, or will be, larger.
function Length:bound(max) return self.received + self.left <= max end

function Length:feed(bytes, pos)
  local here = #bytes - pos + 1
  if here < self.left then
    self.left = self.left - here
    take(self, pos == 1 and bytes or sub(bytes, pos))
    return "more"
  end
  local next_pos = pos + self.left
  take(self, sub(bytes, pos, next_pos - 1))
  self.left = 0
  return "done", next_pos
end

function Length:content() return self.pieces:join() end

--- The rest will not be read: gives the memory back now, not when it is collected.
function Length:drop()
  if self.pieces.bytes then self.pieces.bytes:close() end
end

function Length:text()
  local content = self:content()
  return type(content) == "string" and content or content:text()
end

-- ---- until the end ------------------------------------------------------------------------------

local Rest = {}
Rest.__index = Rest

function body.rest(max, on_data)
  return new_reader(Rest, { max = max, ends_with_connection = true }, on_data)
end

function Rest:feed(bytes, pos)
  take(self, sub(bytes, pos))
  if self.received > self.max then
    return nil, ("body is larger than %d bytes"):format(self.max), 413
  end
  return "more"
end

Rest.text, Rest.content, Rest.drop = Length.text, Length.content, Length.drop

function Rest:bound(max)
  self.max = math.min(self.max, max)
  return self.received <= self.max
end

-- ---- in chunks ----------------------------------------------------------------------------------

local Chunked = {}
Chunked.__index = Chunked

function body.chunked(max, on_data)
  return new_reader(Chunked,
    { max = max, state = "size", line = "", overhead = 0, trailers = 0, left = 0 }, on_data)
end

Chunked.text, Chunked.content, Chunked.drop = Length.text, Length.content, Length.drop

--- A chunk whose size has come counts as a whole.
function Chunked:bound(max)
  self.max = math.min(self.max, max)
  return self.received + self.left <= self.max
end

--- Completes self.line up to a LF. Returns the line with its CRLF and the position after it; nil if
--- no LF has arrived.
local function read_line(self, bytes, pos, limit)
  local lf = find(bytes, "\n", pos, true)
  local line = self.line .. sub(bytes, pos, math.min(lf or #bytes, pos + limit))
  if #line > limit then return nil, "chunk line is too long" end
  self.line = lf and "" or line
  if not lf then return nil end
  return line, lf + 1
end

--- "1f;name=value\r\n" -> 31; nil if it is malformed or has more than 15 digits.
local function chunk_size(line)
  local _, digits = find(line, "^%x+")
  if not digits or digits > 15 or byte(line, -2) ~= 13 then return nil end
  local extensions = sub(line, digits + 1, -3)
  if extensions ~= ""
    and (not find(extensions, "^[ \t]*;") or find(extensions, "[\0-\8\10-\31\127]")) then
    return nil
  end
  return tonumber(sub(line, 1, digits), 16)
end

local states = {}

function states.size(self, bytes, pos)
  local line, next_pos = read_line(self, bytes, pos, LINE)
  if not line then return nil, next_pos end
  local n = chunk_size(line)
  if not n then return nil, "malformed chunk size" end
  self.overhead = self.overhead + #line + 2
  if self.overhead > OVERHEAD + SHARE * self.received then
    return nil, "too little data in too many chunks"
  end
  if self.received + n > self.max then
    return nil, ("body is larger than %d bytes"):format(self.max), 413
  end
  self.left, self.state = n, n == 0 and "trailer" or "data"
  return next_pos
end

function states.data(self, bytes, pos)
  local next_pos = math.min(pos + self.left, #bytes + 1)
  take(self, sub(bytes, pos, next_pos - 1))
  self.left = self.left - (next_pos - pos)
  if self.left == 0 then self.state = "crlf" end
  return next_pos
end

function states.crlf(self, bytes, pos)
  local part = sub(bytes, pos, pos + 1 - #self.line)
  local line = self.line .. part
  if line ~= sub("\r\n", 1, #line) then return nil, "chunk data is not followed by CRLF" end
  if #line == 2 then
    self.line, self.state = "", "size"
  else
    self.line = line
  end
  return pos + #part
end

function states.trailer(self, bytes, pos)
  local line, next_pos = read_line(self, bytes, pos, TRAILERS)
  if not line then return nil, next_pos end
  if line == "\r\n" then
    self.state = "done"
    return next_pos
  end
  self.trailers = self.trailers + #line
  if self.trailers > TRAILERS then
    return nil, ("trailers are larger than %d bytes"):format(TRAILERS), 431
  end
  local name, why = fields.line(line, 1)
  if not name then return nil, why end
  return next_pos
end

function Chunked:feed(bytes, pos)
  local steps = 3 * (self.slice or math.huge) -- the size, the data and the line end of each
  while pos <= #bytes do
    local next_pos, why, status = states[self.state](self, bytes, pos)
    if why then return nil, why, status or 400 end
    if not next_pos then return "more" end
    pos, steps = next_pos, steps - 1
    if self.state == "done" then return "done", pos end
    if steps <= 0 then return "some", pos end
  end
  return "more"
end

return body
