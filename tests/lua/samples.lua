-- samples: inputs that several tests share: model directories, expected values, pseudo-random ids
-- and pieces of text.
local perigee = require "perigee"
local uv = require "luv"

local samples = {}

--- Names of the folders in tests/golden that have this file, sorted.
function samples.directories(file)
  local list = {}
  for name in uv.fs_scandir_next, uv.fs_scandir "tests/golden" do
    if uv.fs_stat(("tests/golden/%s/%s"):format(name, file)) then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

--- A tensor of a file of expected values, and its description; nothing if it is not in the file.
function samples.read(weights, name)
  local info = weights:find(name)
  if not info then return end
  local values = weights:rows(name, { count = info.rows })
  return perigee.tensor(values):reshape(info.shape), info
end

--- Token ids of a file of expected values, or nothing.
function samples.read_ids(weights, name)
  local t = samples.read(weights, name)
  if not t then return end
  local ids = {}
  for i, v in ipairs(t:totable()) do ids[i] = math.tointeger(v) end
  return ids
end

--- n ids below vocab; each seed gives other ones.
function samples.ids(n, seed, vocab)
  local ids = {}
  for i = 1, n do ids[i] = (i * 7919 + seed * 104729 + i * i * seed) % vocab end
  return ids
end

--- A function random(n) that returns 1 to n, the same numbers in every run.
function samples.generator(seed)
  local state = seed
  return function(n)
    state = (state * 6364136223846793005 + 1442695040888963407) & 0x7fffffffffffffff
    return (state >> 33) % n + 1
  end
end

--- The same as an object with the methods below(n) and pick(list), as schema_oracle wants it.
function samples.picker(random)
  local r = { below = function(_, n) return random(n) end }
  function r:pick(list) return list[self:below(#list)] end
  return r
end

--- Cuts a string into pieces, mostly of up to 5 bytes, sometimes of up to 40.
function samples.cut(s, random)
  local pieces, at = {}, 1
  while at <= #s do
    local n = random(random(4) == 1 and 40 or 5)
    pieces[#pieces + 1] = s:sub(at, at + n - 1)
    at = at + n
  end
  return pieces
end

return samples
