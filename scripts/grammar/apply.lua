-- apply: what a node says about the values of one kind, with everything that applies in the same
-- place ($ref, allOf, anyOf, oneOf, not, if, dependentSchemas) put together.
--
-- How sets are represented is the business of an algebra, one per kind: { name, ALL, NONE,
-- both(a, x, y), any(a, list), is_none(a, x), own(a, node, positive) }. `own` gives the set of a
-- node's own keywords, or what is outside of them. Negation goes down to the leaves, because lists
-- of objects have no complement that could be made in one go:
--
--   not (own and A and (B or C))  =  not own, or not A, or (not B and not C)
--
-- Each node's set is made once per kind and sign. A node that is asked for while its set is being
-- made refers to itself without a value in between: no text could decide that.
local failure = require "grammar.failure"

local apply = {}

local DEPTH = 256 -- of nodes that apply in the same place: chains of $ref

local BUSY = {} -- stands for a set that is being made

local Apply = {}
Apply.__index = Apply

function apply.new(reader, spend)
  return setmetatable({ reader = reader, spend = spend, depth = 0 }, Apply)
end

function Apply:fold(a, list, positive)
  local x = a.ALL
  for _, node in ipairs(list) do
    if x == a.NONE then break end
    x = a:both(x, self:set(a, node, positive))
  end
  return x
end

function Apply:one(a, list, positive)
  local out = {}
  for i, node in ipairs(list) do out[i] = self:set(a, node, positive) end
  return a:any(out)
end

--- Of these nodes exactly one holds.
function Apply:exactly_one(a, list)
  local out, whole, alone = {}, a.NONE, true
  for i, node in ipairs(list) do
    out[i] = self:set(a, node, true)
    alone = alone and (whole == a.NONE or out[i] == a.NONE or a:is_none(a:both(whole, out[i])))
    if alone then whole = a:any { whole, out[i] } end
  end
  if alone then return whole end
  local apart = {}
  for i = 1, #list do
    local x = out[i]
    for j = 1, #list do
      if x == a.NONE then break end
      self.spend(1)
      if i ~= j and out[j] ~= a.NONE and not a:is_none(a:both(x, out[j])) then
        x = a:both(x, self:set(a, list[j], false))
      end
    end
    apart[i] = x
  end
  return a:any(apart)
end

--- None of these nodes holds, or two.
function Apply:not_exactly_one(a, list)
  local out = { self:fold(a, list, false) }
  for i = 1, #list do
    for j = i + 1, #list do
      self.spend(1)
      out[#out + 1] = a:both(self:set(a, list[i], true), self:set(a, list[j], true))
    end
  end
  return a:any(out)
end

--- if and then, or not if and else; negated: if and not then, or not if and not else.
function Apply:condition(a, node, positive)
  local out = {}
  for _, side in ipairs { { true, node.then_of }, { false, node.else_of } } do
    local x = self:set(a, node.if_of, side[1])
    if side[2] then
      x = a:both(x, self:set(a, side[2], positive))
    elseif not positive then
      x = a.NONE
    end
    out[#out + 1] = x
  end
  return a:any(out)
end

--- dependentSchemas: without the name anything, with it the schema.
function Apply:dependent(a, entry, positive)
  local with = a:both(a:having(entry.name), self:set(a, entry.node, positive))
  return positive and a:any { a:lacking(entry.name), with } or with
end

--- Calls f with a function for each part of a node; stops when f returns true.
function Apply:each_part(a, node, positive, f)
  if node.ref and f(self:set(a, node.ref, positive)) then return end
  if node.all_of and f(self[positive and "fold" or "one"](self, a, node.all_of, positive)) then
    return
  end
  if node.any_of and f(self[positive and "one" or "fold"](self, a, node.any_of, positive)) then
    return
  end
  if node.one_of and
    f(self[positive and "exactly_one" or "not_exactly_one"](self, a, node.one_of)) then return end
  if node.not_of and f(self:set(a, node.not_of, not positive)) then return end
  if node.if_of and (node.then_of or node.else_of) and f(self:condition(a, node, positive)) then
    return
  end
  if not a.having then return end
  for _, entry in ipairs(node.dependent or {}) do
    if f(self:dependent(a, entry, positive)) then return end
  end
end

function Apply:make(a, node, positive)
  if node.never then return positive and a.NONE or a.ALL end
  if node.loose and not positive then return a.ALL end
  if positive then
    local own = a:own(node, true)
    if own == a.NONE then return own end
    local x = node.parts_first and a.ALL or own
    self:each_part(a, node, true, function(part)
      x = a:both(x, part)
      return x == a.NONE
    end)
    return node.parts_first and a:both(x, own) or x
  end
  local out = { a:own(node, false) }
  if out[1] == a.ALL then return a.ALL end
  self:each_part(a, node, false, function(part)
    out[#out + 1] = part
    return part == a.ALL
  end)
  return a:any(out)
end

--- The set of an algebra that a node, or its negation, stands for.
function Apply:set(a, node, positive)
  local key = a.name .. (positive and "+" or "-")
  local known = node[key]
  if known == BUSY then
    failure.raise("format", node, "refers to itself without a value in between")
  end
  if known then return known end
  self.spend(2)
  self.depth = self.depth + 1
  if self.depth > DEPTH then
    failure.raise("limit", node, "more than %d schemas refer to each other for one value", DEPTH)
  end
  self.reader:open(node)
  node[key] = BUSY
  known = self:make(a, node, positive)
  node[key], self.depth = known, self.depth - 1
  return known
end

return apply
