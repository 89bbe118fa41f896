-- forms: sets of arrays or of objects, as lists of forms. A form is what all of its values have in
-- common (required names, counts, schemas of members); a set is the union of its forms.
--
--   anyOf in an object   two lists, one after the other
--   allOf                every form of one with every form of the other, merged
--
-- Merging drops pairs that no value fits as far as that is seen at a glance, which is what keeps
-- tagged unions small: {kind: a} and {kind: b} have nothing in common.
local failure = require "grammar.failure"

local forms = {}

local MOST = 2000 -- forms of a set: conditions multiply

local Forms = {}
Forms.__index = Forms

--- `merge(x, y)` gives a form, or nil if nothing is left; said(algebra, node, positive): the set of
--- a node's keywords about this type, or what is outside of it.
function forms.new(name, converter, merge, said)
  local a = { name = name, c = converter, merge = merge, said = said, ALL = { {} }, NONE = {} }
  return setmetatable(a, Forms)
end

function Forms:both(x, y)
  if x == self.ALL or x == y then return y end
  if y == self.ALL then return x end
  local out = {}
  for _, f in ipairs(x) do
    for _, g in ipairs(y) do
      self.c.spend(4)
      out[#out + 1] = self.merge(f, g)
      if #out > MOST then
        failure.raise("limit", "", "conditions make more than %d forms of an %s", MOST, self.name)
      end
    end
  end
  return #out > 0 and out or self.NONE
end

function Forms:any(list)
  local out, last = {}, self.NONE
  for _, x in ipairs(list) do
    if x == self.ALL then return x end
    if x ~= self.NONE then
      table.move(x, 1, #x, #out + 1, out)
      last = x
    end
  end
  return #out == #last and last or out
end

function Forms:is_none(x) return #x == 0 end -- luacheck: ignore 212

--- What a schema's list of values has of this kind, or the values outside of it.
function Forms:values(list, positive)
  local x = positive and self.NONE or self.ALL
  for _, value in ipairs(list) do
    local node = self.c:constant(value, self.name)
    if node and positive then x = self:any { x, self.c.apply:set(self, node, true) } end
    if node and not positive then x = self:both(x, self.c.apply:set(self, node, false)) end
  end
  return x
end

--- The values of this kind that a node has by itself, without those that it refers to; or the
--- values outside.
function Forms:own(node, positive)
  local typed = not node.types or node.types[self.name]
  if not typed then return positive and self.NONE or self.ALL end
  local x = self.said(self, node, positive)
  for _, list in ipairs(node.lists or {}) do
    local set = self:values(list, positive)
    x = positive and self:both(x, set) or self:any { x, set }
  end
  return x
end

--- Which of two bounds is tighter; nil: unbounded.
function forms.least(x, y) return x and y and math.min(x, y) or x or y end
function forms.most(x, y) return x and y and math.max(x, y) or x or y end

--- Two lists one after the other; nil is empty.
function forms.joined(x, y)
  if not x or not y then return x or y end
  local out = table.move(x, 1, #x, 1, {})
  return table.move(y, 1, #y, #out + 1, out)
end

return forms
