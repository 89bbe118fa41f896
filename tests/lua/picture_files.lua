-- picture_files: what tests of pictures share: files of tests/images, tensors of golden files, PNG
-- files made on the spot.
local perigee = require "perigee"

local pictures = {}

--- The bytes of a file.
function pictures.read(path)
  local f <close> = assert(io.open(path, "rb"))
  return f:read "a"
end

--- The bytes of a picture in tests/images.
function pictures.file(name) return pictures.read("tests/images/" .. name) end

--- The tensors of a safetensors file, by name, made when they are asked for.
function pictures.tensors(path)
  local source = pictures.read(path)
  local size = string.unpack("<I8", source)
  local header = assert(perigee.json.decode(source:sub(9, 8 + size)))
  local dtypes = { U8 = "u8", F32 = "f32", I32 = "i32" }
  return setmetatable({}, { __index = function(_, name)
    local info = header[name]
    if not info then return nil end
    local from, to = info.data_offsets[1], info.data_offsets[2]
    local shape = {}
    for i, n in ipairs(info.shape) do shape[i] = n end
    return perigee.tensor.from_bytes(source:sub(9 + size + from, 8 + size + to),
      { dtype = dtypes[info.dtype], shape = shape })
  end })
end

local crcs = {}
for i = 0, 255 do
  local c = i
  for _ = 1, 8 do c = c & 1 == 1 and c >> 1 ~ 0xedb88320 or c >> 1 end
  crcs[i] = c
end

local function crc32(s)
  local c = 0xffffffff
  for i = 1, #s do c = c >> 8 ~ crcs[(c ~ s:byte(i)) & 255] end
  return c ~ 0xffffffff
end

local function chunk(kind, body)
  local tagged = kind .. body
  return string.pack(">I4", #body) .. tagged .. string.pack(">I4", crc32(tagged))
end

--- A PNG file of these pixels (three bytes each, line by line), stored without compression.
function pictures.png(width, height, rgb)
  local list, stored = {}, {}
  for y = 1, height do list[y] = "\0" .. rgb:sub((y - 1) * width * 3 + 1, y * width * 3) end
  local data = table.concat(list)
  for at = 1, #data, 65535 do
    local part = data:sub(at, at + 65534)
    stored[#stored + 1] = string.pack("<BI2I2", at + 65535 > #data and 1 or 0, #part,
      ~#part & 0xffff) .. part
  end
  local a, s = 1, 0
  for i = 1, #data do
    a = (a + data:byte(i)) % 65521
    s = (s + a) % 65521
  end
  local head = string.pack(">I4I4BBBBB", width, height, 8, 2, 0, 0, 0)
  return "\x89PNG\r\n\x1a\n" .. chunk("IHDR", head)
    .. chunk("IDAT", "\x78\x01" .. table.concat(stored) .. string.pack(">I4", s << 16 | a))
    .. chunk("IEND", "")
end

--- A PNG file of one color (0 to 255 each).
function pictures.plain(width, height, r, g, b)
  return pictures.png(width, height, string.char(r, g, b):rep(width * height))
end

local B64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

function pictures.base64(s)
  local out = {}
  for i = 1, #s, 3 do
    local a, b, c = s:byte(i, i + 2)
    local n = a << 16 | (b or 0) << 8 | (c or 0)
    for k = 0, 3 do
      local d = n >> (18 - 6 * k) & 63
      out[#out + 1] = (k < 2 or k == 2 and b or k == 3 and c) and B64:sub(d + 1, d + 1) or "="
    end
  end
  return table.concat(out)
end

--- A data URI of a picture's file.
function pictures.uri(bytes, kind)
  return ("data:%s;base64,%s"):format(kind or "image/png", pictures.base64(bytes))
end

return pictures
