-- hash: a number that is the same for the same strings on every machine; 0 or more. This is FNV-1a:
-- fast, but not cryptographic, so not for places where a client could gain by a collision.
local OFFSET, PRIME = 0xcbf29ce484222325, 0x100000001b3

return function(...)
  local h = OFFSET
  for i = 1, select("#", ...) do
    local s = tostring((select(i, ...)))
    for at = 1, #s do h = (h ~ s:byte(at)) * PRIME end
    h = (h ~ 0xff) * PRIME -- ends each string, so that ("ab", "c") differs from ("a", "bc")
  end
  return (h ~ h >> 32) & math.maxinteger
end
