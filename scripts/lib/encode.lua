-- encode: JSON of large values in pieces, so that the loop can turn between them.
--
-- perigee.json.encode writes 100,000 values, which a request may have, in one go: 20 ms and more.
-- Here a value of that size is taken apart, and C writes about PIECE values at a time. Their text
-- is the same.
local json = require("perigee").json

-- Values of a piece: C writes as many in less than a millisecond. Bytes of a text that count as
-- one: about as many as are copied in the time of one.
local PIECE, BYTES = 2048, 256

-- Levels of the parts that are taken apart, as many as json.decode and json.encode allow. A table
-- that contains itself ends here.
local DEPTH = 200

--- How many values v is, counted up to `most`.
local function size_of(v, most)
  if type(v) == "string" then return 1 + #v // BYTES end
  if type(v) ~= "table" or most <= 1 then return 1 end
  local n = 1
  for _, inner in pairs(v) do
    n = n + size_of(inner, most - n)
    if n >= most then break end
  end
  return n
end

--- The keys of a table in the order in which they are written.
local function keys_of(w, v, is_list)
  local keys = {}
  if is_list then
    for i = 1, #v do keys[i] = i end
    return keys
  end
  for key in pairs(v) do
    keys[#keys + 1] = key
    if #keys % PIECE == 0 then w.pause() end
  end
  if not getmetatable(v) then table.sort(keys) end
  return keys
end

local put

--- Writes a table that is too large for one piece: small parts together, large ones by themselves.
local function put_table(w, v, depth)
  if depth > DEPTH then error(("a value is nested deeper than %d levels"):format(DEPTH), 0) end
  local is_list = json.is_array(v)
  local some, size, comma = {}, 0, ""
  local function flush()
    if #some == 0 then return end
    local text = json.encode(is_list and json.array(some) or json.object(some), w.options)
    w[#w + 1], comma = comma .. text:sub(2, -2), w.comma
    some, size = {}, 0
    w.pause()
  end
  w[#w + 1] = is_list and "[" or "{"
  for _, key in ipairs(keys_of(w, v, is_list)) do
    local inner = v[key]
    if inner == nil then inner = json.null end -- a hole of a list
    local weight = size_of(inner, PIECE)
    if weight < PIECE or type(inner) ~= "table" then
      some[#some + 1] = is_list and inner or { key, inner }
      size = size + weight
      if size >= PIECE then flush() end
    else
      flush()
      w[#w + 1] = comma .. (is_list and "" or json.encode(key, w.options) .. w.colon)
      comma = w.comma
      put(w, inner, depth + 1)
    end
  end
  flush()
  w[#w + 1] = is_list and "]" or "}"
end

function put(w, v, depth)
  if type(v) == "table" and size_of(v, PIECE) >= PIECE then return put_table(w, v, depth) end
  w[#w + 1] = json.encode(v, w.options)
end

--- The same text as json.encode(v, { ascii, item_separator, key_separator }). pause() is called
--- between two pieces.
return function(v, options, pause)
  options = options or {}
  local w = { options = options, pause = pause, comma = options.item_separator or ", ",
    colon = options.key_separator or ": " }
  put(w, v, 0)
  return #w == 1 and w[1] or table.concat(w)
end
