-- facet: a set of numbers, or of strings, as terms of the builder.
--
-- One number has many spellings (1, 1.0, -0), so a set has two terms: `all`, every spelling of its
-- values, of which complements are made, and `said`, the spellings that are offered. Both are over
-- the same plain texts; a spelling of `said` is one of `all`, except in the full set, which alone
-- offers exponents: 1e3 can be compared with nothing here, and a set that bounds numbers does not
-- offer it.
--
--   type: integer     all: 5, 5.0, 5.00    said: 5
--   not: {const: 5}   all and said: every plain number but 5, 5.0, 5.00
--
-- ALL and NONE are recognised by themselves, so that the usual schema makes no & and no complement.
local facet = {}

local Facet = {}
Facet.__index = Facet

--- The sets over one kind of values. `plain` is the term of all plain texts, `full` of all offered
--- ones; is_empty: of search.lua.
function facet.new(b, plain, full, is_empty)
  local f = setmetatable({ b = b, is_empty = is_empty }, Facet)
  f.ALL = { all = plain, said = full }
  f.NONE = { all = b:any {}, said = b:any {} }
  return f
end

--- A set of its own; `said` is all of it unless given.
function Facet:make(all, said) -- luacheck: ignore 212
  return { all = all, said = said or all }
end

function Facet:both(x, y)
  if x == self.ALL or x == y then return y end
  if y == self.ALL then return x end
  if x == self.NONE or y == self.NONE then return self.NONE end
  return { all = self.b:both(x.all, y.all), said = self.b:both(x.said, y.said) }
end

function Facet:any(list)
  local all, said = {}, {}
  for _, x in ipairs(list) do
    if x == self.ALL then return x end
    if x ~= self.NONE then all[#all + 1], said[#said + 1] = x.all, x.said end
  end
  if #all == 0 then return self.NONE end
  return { all = self.b:any(all), said = self.b:any(said) }
end

function Facet:except(x)
  if x == self.ALL then return self.NONE end
  if x == self.NONE then return self.ALL end
  return self:make(self.b:both(self.ALL.all, self.b:except(x.all)))
end

function Facet:is_none(x)
  if x == self.ALL then return false end
  return self.is_empty(x.all)
end

return facet
