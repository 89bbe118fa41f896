-- spelling: the bytes that a token stands for, on its own. Decoding one id would do for most, but a token may be half a
-- character, and decoders drop the space before a first word.
--
--   spelling.bytes(tok, id)   "\xF0\x9F"
--   spelling.text(tok, id)    the same for people: what is no UTF-8 is shown as replacement characters
--
-- Two spellings are common. Byte-level vocabularies write every byte as one printable character, the unprintable ones moved
-- up from U+0100; the others write a space as U+2581 and a lone byte as <0xF0>.
local text = require "lib.text"

local spelling = {}

local byte_of = {} -- code point -> byte, of the byte-level alphabet
do
  local next_point = 256
  for b = 0, 255 do
    local printable = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    byte_of[printable and b or next_point] = string.char(b)
    if not printable then next_point = next_point + 1 end
  end
end

local known = setmetatable({}, { __mode = "k" }) -- tokenizer -> { level = boolean, [id] = bytes }

local function of(tok)
  local cache = known[tok]
  if not cache then
    cache = { level = tok:id "Ġ" ~= nil and tok:id "Ċ" ~= nil }
    known[tok] = cache
  end
  return cache
end

local function decode(tok, id, level)
  local token = tok:token(id)
  if not token then return "" end
  if tok:is_special(id) then return token end
  if not level then
    local hex = token:match "^<0x(%x%x)>$"
    return hex and string.char(tonumber(hex, 16)) or (token:gsub("▁", " "))
  end
  if not utf8.len(token) then return token end
  local parts = {}
  for _, point in utf8.codes(token) do parts[#parts + 1] = byte_of[point] or utf8.char(point) end
  return table.concat(parts)
end

--- "" for a model that has no tokenizer (nil).
function spelling.bytes(tok, id)
  if not tok then return "" end
  local cache = of(tok)
  local bytes = cache[id]
  if not bytes then
    bytes = decode(tok, id, cache.level)
    cache[id] = bytes
  end
  return bytes
end

--- How many characters begin in these bytes.
function spelling.characters(bytes)
  local n = 0
  for i = 1, #bytes do
    local b = bytes:byte(i)
    if b < 0x80 or b >= 0xC0 then n = n + 1 end
  end
  return n
end

function spelling.text(tok, id) return text.clean(spelling.bytes(tok, id)) end

return spelling
