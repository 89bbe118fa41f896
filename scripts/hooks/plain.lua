-- plain: what scripts hand to the server, made plain data.
--
-- A table with a metatable runs the script's code wherever the server indexes it, counts it or
-- loops over it, and there no deadline ends a loop. So the metatables that scripts set are known,
-- and every table that the server keeps is rid of them inside the guarded call of the hook. Only
-- rawget, rawlen and next look at such a table before that.
--
-- Also here: the functions of the sandbox that set and show metatables.
local plain = {}

-- A conversation has at most 400,000 values (the API's limit), nested 200 deep.
plain.DEPTH, plain.VALUES = 256, 1 << 20

local theirs = setmetatable({}, { __mode = "k" }) -- metatables that scripts have set
local any = false

-- ---- of the sandbox -----------------------------------------------------------------------------

--- setmetatable without __gc: Lua switches hooks off in finalizers, so no deadline would end one.
function plain.setmetatable(value, meta)
  if type(meta) == "table" then
    if rawget(meta, "__gc") ~= nil then
      error("setmetatable: scripts cannot have finalizers (__gc)", 2)
    end
    local had = type(value) == "table" and debug.getmetatable(value)
    if had and not theirs[had] then
      error("setmetatable: this table belongs to the server", 2)
    end
    theirs[meta], any = true, true
  end
  return setmetatable(value, meta)
end

--- The metatables of scripts only: those of strings and of the server's objects are not theirs.
function plain.getmetatable(value)
  local meta = type(value) == "table" and debug.getmetatable(value)
  if meta and theirs[meta] then return getmetatable(value) end
  return nil
end

-- ---- stripping ----------------------------------------------------------------------------------

--- Fields of our objects (pipeline/output.lua) that scripts may set; others lead into the server.
local OPEN = { "content", "text", "reasoning", "finish", "ids", "usage", "calls" }

local strip

local function strip_fields(value, state, depth)
  local meta = debug.getmetatable(value)
  if meta and rawget(meta, "__index") ~= nil then
    for _, key in ipairs(OPEN) do strip(rawget(value, key), state, depth) end
    return
  end
  for key, field in next, value do
    if type(key) == "table" then error("a table as a key", 0) end
    state.left = state.left - 1
    if type(field) == "table" then strip(field, state, depth) end
  end
end

--- Raises, as one phrase, when it is nested too deep, too large or contains itself.
function strip(value, state, depth)
  if type(value) ~= "table" or state.done[value] then return end
  if state.open[value] then error("a table that contains itself", 0) end
  if depth == 0 then error(("tables nested more than %d deep"):format(plain.DEPTH), 0) end
  if state.left <= 0 then error(("more than %d values"):format(plain.VALUES), 0) end
  local meta = debug.getmetatable(value)
  if meta and theirs[meta] then debug.setmetatable(value, nil) end
  state.open[value] = true
  strip_fields(value, state, depth - 1)
  state.open[value], state.done[value] = nil, true
end

--- Removes the metatables that scripts set from a value and all that it holds. Returns it, or nil
--- and what is wrong.
function plain.strip(value)
  if not any or type(value) ~= "table" then return value end
  local ok, why = pcall(strip, value, { open = {}, done = {}, left = plain.VALUES }, plain.DEPTH)
  if not ok then return nil, tostring(why) end
  return value
end

--- The same of one table alone.
function plain.bare(value)
  local meta = any and type(value) == "table" and debug.getmetatable(value)
  if meta and theirs[meta] then debug.setmetatable(value, nil) end
  return value
end

-- ---- copies -------------------------------------------------------------------------------------

local SCALARS = { string = true, number = true, boolean = true }

--- A copy of a list of at most `most` entries, each made by entry(value); nil when one of these is.
function plain.list(value, most, entry)
  if type(value) ~= "table" then return nil end
  local n = rawlen(value)
  if n > most then return nil end
  local out = {}
  for i = 1, n do
    out[i] = entry(rawget(value, i))
    if out[i] == nil then return nil end
  end
  return out
end

--- A copy of a table of at most `most` strings, numbers and booleans; nil when it is not one.
function plain.record(value, most)
  if type(value) ~= "table" then return nil end
  local out, n = {}, 0
  for key, field in next, value do
    n = n + 1
    if n > most or type(key) ~= "string" or not SCALARS[type(field)] then return nil end
    out[key] = field
  end
  return out
end

return plain
