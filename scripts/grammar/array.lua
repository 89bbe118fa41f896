-- array: the forms (forms.lua) of arrays.
--
-- A form has, each where it is needed:
--   groups    nodes whose prefixItems and items apply
--   at        by index, from 0: literals (value.lua) that this element must also fulfil
--   contains  { literal, min, max, from }: how many elements, counted from an index on, fulfil it
--   unique    the node that wants no two equal elements
--   min, max  how many elements
local failure = require "grammar.failure"
local forms = require "grammar.forms"

local array = {}

local function with_at(x, y)
  if not x or not y then return x or y end
  local out = {}
  for index, list in pairs(x) do out[index] = list end
  for index, list in pairs(y) do out[index] = forms.joined(out[index], list) end
  return out
end

--- What a form says about the element at an index.
function array.literals(form, index)
  local out = {}
  for _, node in ipairs(form.groups or {}) do
    local prefix = node.prefix or {}
    local element = prefix[index + 1] or node.items
    if element then out[#out + 1] = element.id end
  end
  for _, literal in ipairs(form.at and form.at[index] or {}) do out[#out + 1] = literal end
  return out
end

--- The index from which on all elements are alike.
function array.uniform(form)
  local from = 0
  for _, node in ipairs(form.groups or {}) do from = math.max(from, #(node.prefix or {})) end
  for index in pairs(form.at or {}) do from = math.max(from, index + 1) end
  for _, entry in ipairs(form.contains or {}) do from = math.max(from, entry.from) end
  return from
end

local function merge(c, x, y)
  local f = { min = forms.most(x.min, y.min), max = forms.least(x.max, y.max) }
  f.groups, f.at = forms.joined(x.groups, y.groups), with_at(x.at, y.at)
  f.contains, f.unique = forms.joined(x.contains, y.contains), x.unique or y.unique
  local uniform = array.uniform(f)
  for index = 0, uniform do
    if f.max and index >= f.max then break end
    c.spend(1)
    if c:is_hopeless(array.literals(f, index)) then f.max = index end
  end
  if f.min and f.max and f.min > f.max then return nil end
  return f
end

local function positive(a, node)
  local f = { min = node.min_items, max = node.max_items, unique = node.unique and node or nil }
  if f.min == 0 then f.min = nil end
  if f.max == math.huge then f.max = nil end
  if node.prefix or node.items then f.groups = { node } end
  local least = node.min_contains or 1
  if node.contains and (least > 0 or node.max_contains) then
    if node.max_contains and node.max_contains < least then return a.NONE end
    local entry = { literal = node.contains.id, min = least, max = node.max_contains, from = 0 }
    f.contains = { entry }
    f.min = forms.most(f.min, least > 0 and least or nil)
  end
  if next(f) == nil then return a.ALL end
  f = merge(a.c, f, {})
  return f and { f } or a.NONE
end

local function negative(a, node)
  local out = {}
  local function add(form)
    local f = merge(a.c, form, {})
    if f then out[#out + 1] = f end
  end
  for i, element in ipairs(node.prefix or {}) do
    add { min = i, at = { [i - 1] = { -element.id } } }
  end
  local from = #(node.prefix or {})
  if node.items then
    add { min = from + 1, contains = { { literal = -node.items.id, min = 1, from = from } } }
  end
  if (node.min_items or 0) > 0 then add { max = node.min_items - 1 } end
  if node.max_items then add { min = node.max_items + 1 } end
  if node.contains then
    local id, least = node.contains.id, node.min_contains or 1
    if least > 0 then
      add { contains = { { literal = id, min = 0, max = least - 1, from = 0 } } }
    end
    if node.max_contains then
      local more = node.max_contains + 1
      add { min = more, contains = { { literal = id, min = more, from = 0 } } }
    end
  end
  if node.unique and a.c.relax then return a.ALL end
  if node.unique then
    failure.raise("unsupported", node, "uniqueItems cannot be enforced under a negation")
  end
  return #out > 0 and out or a.NONE
end

--- The algebra of arrays.
function array.algebra(c)
  return forms.new("array", c, function(x, y) return merge(c, x, y) end,
    function(a, node, is_positive)
      return (is_positive and positive or negative)(a, node)
    end)
end

return array
