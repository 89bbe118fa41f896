-- grammars: compiled grammars that were used lately, so that the schema or the hundred tools that
-- an agent sends with each of its requests are converted once.
--
--   local g = grammars:get(key, make)      make() gives a grammar, or raises
--
-- A key is the whole text that the grammar was made of. Lua hashes it with a seed of the process,
-- and compares it, so no client can make two texts meet. What is let go is collected when the last
-- sequence has ended that uses it.
local grammars = {}

local MOST, BYTES = 64, 64 << 20

local Grammars = {}
Grammars.__index = Grammars

function grammars.new() return setmetatable({ entries = {}, count = 0, clock = 0 }, Grammars) end

--- Bytes of an entry: its automaton grows while it is used.
local function bytes_of(key, entry) return #key + entry.grammar.memory end

local function drop(self, key)
  self.entries[key], self.count = nil, self.count - 1
end

--- Lets go of those that were not used for longest.
local function trim(self)
  while true do
    local oldest, bytes = nil, 0
    for key, entry in pairs(self.entries) do
      bytes = bytes + bytes_of(key, entry)
      if not oldest or entry.used < self.entries[oldest].used then oldest = key end
    end
    if self.count <= MOST and bytes <= BYTES or not oldest then return end
    drop(self, oldest)
  end
end

--- The grammar of a key. One whose automaton is half full is made anew: it would fill up.
function Grammars:get(key, make)
  self.clock = self.clock + 1
  local entry = self.entries[key]
  if entry and not entry.grammar.worn then
    entry.used = self.clock
    return entry.grammar
  end
  local made = make() -- the loop may turn here
  if not self.entries[key] then self.count = self.count + 1 end
  self.entries[key] = { grammar = made, used = self.clock }
  trim(self)
  return made
end

return grammars
