-- grammars: compiled grammars that were used lately, so that the schema or the hundred tools that
-- an agent sends with each of its requests are converted once.
--
--   local g = grammars:get(key, make)      make() gives a grammar, or raises
--
-- Requests that ask for the same one while it is being made wait for it. If that fails, or its
-- client leaves, the next of them makes it.
--
-- A key is the whole text that the grammar was made of. Lua hashes it with a seed of the process,
-- and compares it, so no client can make two texts meet. What is let go is collected when the last
-- sequence has ended that uses it.
local async = require "lib.async"

local grammars = {}

local MOST, BYTES = 64, 64 << 20

local Grammars = {}
Grammars.__index = Grammars

function grammars.new()
  return setmetatable({ entries = {}, making = {}, count = 0, clock = 0 }, Grammars)
end

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

--- The kept grammar of a key. One whose automaton is half full is made anew: it would fill up.
local function kept(self, key)
  local entry = self.entries[key]
  if not entry or entry.grammar.worn then return nil end
  self.clock = self.clock + 1
  entry.used = self.clock
  return entry.grammar
end

local function keep(self, key, grammar)
  if not self.entries[key] then self.count = self.count + 1 end
  self.clock = self.clock + 1
  self.entries[key] = { grammar = grammar, used = self.clock }
  trim(self)
end

--- Others wait for this key until what this returns is closed.
local function begin(self, key)
  local ended = async.signal()
  self.making[key] = ended
  return setmetatable({}, { __close = function()
    self.making[key] = nil
    ended:set()
  end })
end

--- The grammar of a key.
function Grammars:get(key, make)
  local found = kept(self, key)
  while not found and self.making[key] do
    self.making[key]:wait()
    found = kept(self, key)
  end
  if found then return found end
  local _ <close> = begin(self, key)
  local made = make() -- the loop may turn here
  keep(self, key, made)
  return made
end

return grammars
