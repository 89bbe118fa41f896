-- body: readers of message bodies, fed with bytes as they come. One that knows its length, one for chunks, one that reads
-- until the end of the connection.
--
-- reader:feed(bytes, pos) -> "more" (all bytes are taken), or "done" and the position behind the body, or nil, what is wrong
-- and the status that says so. Bytes are taken in any portions at the same cost; what is kept is bounded by `max`.
local fields = require "http.fields"

local body = {}

local byte, find, sub = string.byte, string.find, string.sub

local SMALL = 4096            -- pieces below this are joined
local MANY = 64               -- that many at a time
local LINE = 1024             -- of a chunk's size with its extensions
local OVERHEAD, SHARE = 16384, 8 -- what framing may take: this, and so many times the data
local TRAILERS = 8192

-- ---- collecting ----------------------------------------------------------------------------------------------------

local Pieces = {}
Pieces.__index = Pieces

--- A list of strings that does not suffer from tiny ones.
local function new_pieces()
  return setmetatable({ list = {}, small = {}, size = 0 }, Pieces)
end

function Pieces:add(piece)
  self.size = self.size + #piece
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

function Pieces:join()
  self.list[#self.list + 1] = table.concat(self.small)
  self.small = {}
  return #self.list == 1 and self.list[1] or table.concat(self.list)
end

--- What every reader has. on_data(bytes) gets the data instead of the collection, when given.
local function new_reader(class, fields_of, on_data)
  fields_of.pieces, fields_of.on_data, fields_of.received = new_pieces(), on_data, 0
  return setmetatable(fields_of, class)
end

local function take(reader, data)
  reader.received = reader.received + #data
  if reader.on_data then reader.on_data(data) else reader.pieces:add(data) end
end

-- ---- by length -----------------------------------------------------------------------------------------------------

local Length = {}
Length.__index = Length

function body.length(n, on_data)
  return new_reader(Length, { left = n }, on_data)
end

function Length:feed(bytes, pos)
  local here = #bytes - pos + 1
  if here < self.left then
    self.left = self.left - here
    take(self, pos == 1 and bytes or sub(bytes, pos))
    return "more"
  end
  local behind = pos + self.left
  take(self, sub(bytes, pos, behind - 1))
  self.left = 0
  return "done", behind
end

function Length:text() return self.pieces:join() end

-- ---- until the end -------------------------------------------------------------------------------------------------

local Rest = {}
Rest.__index = Rest

function body.rest(max, on_data)
  return new_reader(Rest, { max = max, ends_with_connection = true }, on_data)
end

function Rest:feed(bytes, pos)
  take(self, sub(bytes, pos))
  if self.received > self.max then return nil, ("body is larger than %d bytes"):format(self.max), 413 end
  return "more"
end

Rest.text = Length.text

-- ---- in chunks -----------------------------------------------------------------------------------------------------

local Chunked = {}
Chunked.__index = Chunked

function body.chunked(max, on_data)
  return new_reader(Chunked, { max = max, state = "size", line = "", overhead = 0, trailers = 0, left = 0 }, on_data)
end

Chunked.text = Length.text

--- Completes self.line up to a LF: the line with its CRLF and the position behind it, or nil when there is no LF yet.
local function read_line(self, bytes, pos, limit)
  local lf = find(bytes, "\n", pos, true)
  local line = self.line .. sub(bytes, pos, math.min(lf or #bytes, pos + limit))
  if #line > limit then return nil, "chunk line is too long" end
  self.line = lf and "" or line
  if not lf then return nil end
  return line, lf + 1
end

--- "1f;name=value\r\n" -> 31; nil when it is malformed or more than 15 digits long.
local function chunk_size(line)
  local _, digits = find(line, "^%x+")
  if not digits or digits > 15 or byte(line, -2) ~= 13 then return nil end
  local extensions = sub(line, digits + 1, -3)
  if extensions ~= "" and (not find(extensions, "^[ \t]*;") or find(extensions, "[\0-\8\10-\31\127]")) then return nil end
  return tonumber(sub(line, 1, digits), 16)
end

local states = {}

function states.size(self, bytes, pos)
  local line, next_pos = read_line(self, bytes, pos, LINE)
  if not line then return nil, next_pos end
  local n = chunk_size(line)
  if not n then return nil, "malformed chunk size" end
  self.overhead = self.overhead + #line + 2
  if self.overhead > OVERHEAD + SHARE * self.received then return nil, "too little data in too many chunks" end
  if self.received + n > self.max then return nil, ("body is larger than %d bytes"):format(self.max), 413 end
  self.left, self.state = n, n == 0 and "trailer" or "data"
  return next_pos
end

function states.data(self, bytes, pos)
  local behind = math.min(pos + self.left, #bytes + 1)
  take(self, sub(bytes, pos, behind - 1))
  self.left = self.left - (behind - pos)
  if self.left == 0 then self.state = "crlf" end
  return behind
end

function states.crlf(self, bytes, pos)
  local part = sub(bytes, pos, pos + 1 - #self.line)
  local line = self.line .. part
  if line ~= sub("\r\n", 1, #line) then return nil, "chunk does not end where it said" end
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
  if self.trailers > TRAILERS then return nil, ("trailers are larger than %d bytes"):format(TRAILERS), 431 end
  local name, why = fields.line(line, 1)
  if not name then return nil, why end
  return next_pos
end

function Chunked:feed(bytes, pos)
  while pos <= #bytes do
    local next_pos, why, status = states[self.state](self, bytes, pos)
    if why then return nil, why, status or 400 end
    if not next_pos then return "more" end
    pos = next_pos
    if self.state == "done" then return "done", pos end
  end
  return "more"
end

return body
