-- object: the forms (forms.lua) of objects.
--
-- A form has, each where it is needed:
--   groups     nodes whose properties, patternProperties and additionalProperties apply together:
--              additional names are those that the same node does not name otherwise
--   need       names that are present, as a list
--   lack       names that are not, as a set
--   values     by name: literals (value.lua) that its value must also fulfil
--   names      literals that every name fulfils
--   some       { term, literals }: there is a name of this term whose value fulfils these
--   extra      the same, of names that the form does not mention (object_rules.lua)
--   min, max   how many members
local forms = require "grammar.forms"

local object = {}

-- ---- merging ------------------------------------------------------------------------------------

local function with_names(x, y)
  if not x or not y then return x or y end
  local out, seen = {}, {}
  for _, list in ipairs { x, y } do
    for _, name in ipairs(list) do
      if not seen[name] then out[#out + 1], seen[name] = name, true end
    end
  end
  return out
end

local function union(x, y)
  if not x or not y then return x or y end
  local out = {}
  for name in pairs(x) do out[name] = true end
  for name in pairs(y) do out[name] = true end
  return out
end

local function with_values(x, y)
  if not x or not y then return x or y end
  local out = {}
  for name, list in pairs(x) do out[name] = list end
  for name, list in pairs(y) do out[name] = forms.joined(out[name], list) end
  return out
end

local function groups_of(x, y)
  local out, seen = {}, {}
  for _, node in ipairs(forms.joined(x, y)) do
    if not seen[node] then out[#out + 1], seen[node] = node, true end
  end
  return out
end

--- What a form says about the value of one name.
function object.literals(c, form, name)
  local out = {}
  if form.lack and form.lack[name] then return nil end
  for _, node in ipairs(form.groups or {}) do c:named(node, name, out) end
  for _, literal in ipairs(form.values and form.values[name] or {}) do out[#out + 1] = literal end
  for _, literal in ipairs(form.names or {}) do
    if not c:is_name(literal, name) then return nil end
  end
  return out
end

local function merge(c, x, y)
  local f = { min = forms.most(x.min, y.min), max = forms.least(x.max, y.max) }
  if f.min and f.max and f.min > f.max then return nil end
  f.groups = x.groups and y.groups and groups_of(x.groups, y.groups) or x.groups or y.groups
  f.need, f.lack = with_names(x.need, y.need), union(x.lack, y.lack)
  f.values, f.names = with_values(x.values, y.values), forms.joined(x.names, y.names)
  f.some, f.extra = forms.joined(x.some, y.some), forms.joined(x.extra, y.extra)
  if f.max and f.need and #f.need > f.max then return nil end
  for _, name in ipairs(f.need or {}) do
    c.spend(1)
    local literals = object.literals(c, f, name)
    if not literals or c:is_hopeless(literals) then return nil end
  end
  return f
end

-- ---- the keywords of a node ---------------------------------------------------------------------

local function positive(a, node)
  local f = { need = node.required, min = node.min_properties, max = node.max_properties }
  if f.need and #f.need == 0 then f.need = nil end
  if f.min == 0 then f.min = nil end
  if f.max == math.huge then f.max = nil end
  if node.properties or node.patterns or node.additional then f.groups = { node } end
  if node.names then f.names = { node.names.id } end
  if next(f) == nil then return a.ALL end
  f = merge(a.c, f, {}) -- what is required may be impossible
  return f and { f } or a.NONE
end

local function depends(a, node, x)
  for _, entry in ipairs(node.dependent_required or {}) do
    local need = with_names({ entry.name }, entry.names)
    if #need > 1 then x = a:both(x, a:any { a:lacking(entry.name), { { need = need } } }) end
  end
  return x
end

local function negative(a, node)
  local c, out = a.c, {}
  local function add(form)
    local f = merge(c, form, {})
    if f then out[#out + 1] = f end
  end
  for _, entry in ipairs(node.properties or {}) do
    add { need = { entry.name }, values = { [entry.name] = { -entry.node.id } } }
  end
  for _, name in ipairs(node.required or {}) do add { lack = { [name] = true } } end
  for _, entry in ipairs(node.patterns or {}) do
    add { some = { { term = c:name_pattern(node, entry.name), literals = { -entry.node.id } } } }
  end
  if node.additional then
    add { some = { { term = c:additional_names(node), literals = { -node.additional.id } } } }
  end
  if node.names then
    add { some = { { term = c:names_term(-node.names.id), literals = {} } } }
  end
  if (node.min_properties or 0) > 0 then add { max = node.min_properties - 1 } end
  if node.max_properties then add { min = node.max_properties + 1 } end
  for _, entry in ipairs(node.dependent_required or {}) do
    for _, name in ipairs(entry.names) do
      add { need = { entry.name }, lack = { [name] = true } }
    end
  end
  return #out > 0 and out or a.NONE
end

--- The algebra of objects.
function object.algebra(c)
  local a = forms.new("object", c, function(x, y) return merge(c, x, y) end,
    function(a, node, is_positive)
      if not is_positive then return negative(a, node) end
      return depends(a, node, positive(a, node))
    end)
  function a.lacking(_, name) return { { lack = { [name] = true } } } end
  function a.having(_, name) return { { need = { name } } } end
  return a
end

return object
