-- hash: FNV-1a over strings, 64 bits: the same on every machine and in every run. Not for input
-- that an attacker may choose: collisions are easy to make.
local hash = {}

local OFFSET, PRIME = 0xcbf29ce484222325, 0x100000001b3

--- The hash of a string, continuing from `h` if given. Uses all 64 bits, so it may be negative.
function hash.fnv1a(s, h)
  h = h or OFFSET
  for i = 1, #s do h = (h ~ s:byte(i)) * PRIME end
  return h
end

return hash
