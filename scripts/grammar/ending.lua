-- ending: which values have a text that ends. Of a schema that refers to itself there may be none:
--
--   {"properties": {"next": {"$ref": "#"}}, "required": ["next"]}
--
-- A model that begins such a value writes for ever. Compiling (perigee.grammar) finds rules like
-- that, but it does not look into the parameters that members in any order need.
--
--   local e = ending.new(converter)
--   e:has(value)                      value: of value.lua, complete
--
-- A value needs others: the members that are required and the least number of elements. It has an
-- end if a scalar fits it, or if all that one of its forms needs have one.
local array = require "grammar.array"
local object = require "grammar.object"
local read = require "grammar.read"

local ending = {}

local Ending = {}
Ending.__index = Ending

function ending.new(c) return setmetatable({ c = c }, Ending) end

--- The values that an object of a form has in any case; nil if one of them cannot be.
local function members(c, form)
  local out = {}
  for i, name in ipairs(form.need or {}) do
    c.spend(1)
    local literals = object.literals(c, form, name)
    out[i] = literals and c:value(literals)
    if not out[i] or out[i].dead then return nil end
  end
  return out
end

--- The same of an array. All elements from an index on are alike; conditions of `contains` count
--- where all are.
local function elements(c, form)
  local out = {}
  for index = 0, math.min((form.min or 0) - 1, array.uniform(form)) do
    c.spend(1)
    out[#out + 1] = c:value(array.literals(form, index))
    if out[#out].dead then return nil end
  end
  for _, entry in ipairs(form.contains or {}) do
    if entry.min > 0 then
      out[#out + 1] = c:value { entry.literal }
      if out[#out].dead then return nil end
    end
  end
  return out
end

--- What each form of a value needs: a list of lists.
local function needs_of(c, v)
  local out = {}
  for _, form in ipairs(v.arrays) do out[#out + 1] = elements(c, form) end
  for _, form in ipairs(v.objects) do out[#out + 1] = members(c, form) end
  return out
end

--- Has one of these lists only values that end?
local function is_met(c, lists)
  for _, list in ipairs(lists) do
    c.spend(read.GLANCE * (1 + #list))
    local met = true
    for _, v in ipairs(list) do met = met and v.ends end
    if met then return true end
  end
  return false
end

--- All values that v needs, in any number of steps, and of which it is unknown whether they end.
local function gather(c, v)
  local list, needs, at = { v }, {}, 1
  while list[at] do
    local one = list[at]
    if #one.arrays == 0 and #one.objects == 0 or not c:empty(one.term) then
      one.ends, needs[at] = not one.dead, {}
    else
      needs[at] = needs_of(c, one)
      one.ends = is_met(c, needs[at])
    end
    for _, lists in ipairs(one.ends and {} or needs[at]) do
      for _, inner in ipairs(lists) do
        if inner.ends == nil then
          inner.ends = false -- until it is seen that it does
          list[#list + 1] = inner
        end
      end
    end
    at = at + 1
  end
  return list, needs
end

--- Does a value have a text that ends? Without $ref every one does that is not dead.
function Ending:has(v)
  if v.dead then return false end
  if not self.c.reader.refers then return true end
  if v.ends ~= nil then return v.ends end
  local list, needs = gather(self.c, v)
  local found
  repeat
    found = false
    for i = #list, 1, -1 do -- what is needed comes after what needs it, where it is no circle
      if not list[i].ends and is_met(self.c, needs[i]) then list[i].ends, found = true, true end
    end
  until not found
  return v.ends
end

return ending
