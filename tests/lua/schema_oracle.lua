-- schema_oracle: says by the standard's words whether a value fits a schema, and makes schemas and
-- values to ask about. It knows nothing of terms or rules: what the converter builds is compared
-- with it.
--
-- Numbers are small here, so arithmetic on floats is exact: all are multiples of 1/8.
local json = require("perigee").json

local oracle = {}

-- Patterns that are asked about, and what they mean.
oracle.PATTERNS = {
  ["^a"] = function(s) return s:sub(1, 1) == "a" end,
  ["b"] = function(s) return s:find("b", 1, true) ~= nil end,
  ["^[ab]*$"] = function(s) return s:find "^[ab]*$" ~= nil end,
  ["c$"] = function(s) return s:sub(-1) == "c" end,
  ["^.$"] = function(s) return utf8.len(s) == 1 end,
}

local function is_same(a, b)
  if json.is_array(a) or json.is_object(a) then
    if json.is_array(a) ~= json.is_array(b) or json.is_object(a) ~= json.is_object(b) then
      return false
    end
    for key, v in pairs(a) do
      if b[key] == nil or not is_same(v, b[key]) then return false end
    end
    for key in pairs(b) do
      if a[key] == nil then return false end
    end
    return true
  end
  return a == b
end

local function type_of(v)
  if v == json.null then return "null" end
  if json.is_array(v) then return "array" end
  if json.is_object(v) then return "object" end
  return type(v)
end

local function count(object)
  local n = 0
  for _ in pairs(object) do n = n + 1 end
  return n
end

local holds -- fits(root, schema, value)

-- ---- keywords: function(root, wanted, value, schema) --------------------------------------------

local keyword = {}

function keyword.type(_, wanted, v)
  for _, name in ipairs(json.is_array(wanted) and wanted or { wanted }) do
    if name == type_of(v) then return true end
    if name == "integer" and type(v) == "number" and v % 1 == 0 then return true end
  end
  return false
end

function keyword.const(_, wanted, v) return is_same(wanted, v) end

function keyword.enum(_, wanted, v)
  for _, one in ipairs(wanted) do
    if is_same(one, v) then return true end
  end
  return false
end

local function for_type(name, f)
  return function(root, wanted, v, schema)
    return type_of(v) ~= name or f(root, wanted, v, schema)
  end
end

keyword.minimum = for_type("number", function(_, n, v) return v >= n end)
keyword.maximum = for_type("number", function(_, n, v) return v <= n end)
keyword.exclusiveMinimum = for_type("number", function(_, n, v) return v > n end)
keyword.exclusiveMaximum = for_type("number", function(_, n, v) return v < n end)
keyword.multipleOf = for_type("number", function(_, n, v) return v % n == 0 end)
keyword.minLength = for_type("string", function(_, n, v) return utf8.len(v) >= n end)
keyword.maxLength = for_type("string", function(_, n, v) return utf8.len(v) <= n end)
keyword.pattern = for_type("string", function(_, p, v) return oracle.PATTERNS[p](v) end)

local function is_evaluated(schema, name)
  if schema.properties and schema.properties[name] ~= nil then return true end
  for pattern in pairs(schema.patternProperties or {}) do
    if oracle.PATTERNS[pattern](name) then return true end
  end
  return false
end

keyword.properties = for_type("object", function(root, members, v)
  for name, schema in pairs(members) do
    if v[name] ~= nil and not holds(root, schema, v[name]) then return false end
  end
  return true
end)

keyword.patternProperties = for_type("object", function(root, members, v)
  for pattern, schema in pairs(members) do
    for name, inner in pairs(v) do
      if oracle.PATTERNS[pattern](name) and not holds(root, schema, inner) then return false end
    end
  end
  return true
end)

keyword.additionalProperties = for_type("object", function(root, schema, v, whole)
  for name, inner in pairs(v) do
    if not is_evaluated(whole, name) and not holds(root, schema, inner) then return false end
  end
  return true
end)

keyword.propertyNames = for_type("object", function(root, schema, v)
  for name in pairs(v) do
    if not holds(root, schema, name) then return false end
  end
  return true
end)

local function has_all(names, v)
  for _, name in ipairs(names) do
    if v[name] == nil then return false end
  end
  return true
end

keyword.required = for_type("object", function(_, names, v) return has_all(names, v) end)
keyword.minProperties = for_type("object", function(_, n, v) return count(v) >= n end)
keyword.maxProperties = for_type("object", function(_, n, v) return count(v) <= n end)

keyword.dependentRequired = for_type("object", function(_, members, v)
  for name, names in pairs(members) do
    if v[name] ~= nil and not has_all(names, v) then return false end
  end
  return true
end)

keyword.dependentSchemas = for_type("object", function(root, members, v)
  for name, schema in pairs(members) do
    if v[name] ~= nil and not holds(root, schema, v) then return false end
  end
  return true
end)

keyword.prefixItems = for_type("array", function(root, schemas, v)
  for i, schema in ipairs(schemas) do
    if v[i] ~= nil and not holds(root, schema, v[i]) then return false end
  end
  return true
end)

keyword.items = for_type("array", function(root, schema, v, whole)
  for i = #(whole.prefixItems or {}) + 1, #v do
    if not holds(root, schema, v[i]) then return false end
  end
  return true
end)

keyword.contains = for_type("array", function(root, schema, v, whole)
  local n = 0
  for _, inner in ipairs(v) do n = n + (holds(root, schema, inner) and 1 or 0) end
  return n >= (whole.minContains or 1) and n <= (whole.maxContains or math.huge)
end)

keyword.minItems = for_type("array", function(_, n, v) return #v >= n end)
keyword.maxItems = for_type("array", function(_, n, v) return #v <= n end)

keyword.uniqueItems = for_type("array", function(_, wanted, v)
  for i = 1, wanted and #v or 0 do
    for j = 1, i - 1 do
      if is_same(v[i], v[j]) then return false end
    end
  end
  return true
end)

local function number_that_hold(root, schemas, v)
  local n = 0
  for _, schema in ipairs(schemas) do n = n + (holds(root, schema, v) and 1 or 0) end
  return n
end

function keyword.allOf(root, list, v) return number_that_hold(root, list, v) == #list end
function keyword.anyOf(root, list, v) return number_that_hold(root, list, v) > 0 end
function keyword.oneOf(root, list, v) return number_that_hold(root, list, v) == 1 end
keyword["not"] = function(root, schema, v) return not holds(root, schema, v) end

keyword["if"] = function(root, schema, v, whole)
  local branch = whole[holds(root, schema, v) and "then" or "else"]
  return branch == nil or holds(root, branch, v)
end

keyword["$ref"] = function(root, reference, v)
  return holds(root, reference == "#" and root or root["$defs"][reference:match "[^/]*$"], v)
end

-- Read by other keywords, or not at all.
for _, name in ipairs { "then", "else", "minContains", "maxContains", "$defs" } do
  keyword[name] = function() return true end
end

function holds(root, schema, v)
  if type(schema) == "boolean" then return schema end
  for name, wanted in pairs(schema) do
    if not keyword[name](root, wanted, v, schema) then return false end
  end
  return true
end

--- Does a value fit a schema?
function oracle.fits(schema, v) return holds(schema, schema, v) end

-- ---- schemas and values -------------------------------------------------------------------------

local NAMES = { "a", "b", "c", "ab" }
local SCALARS = { 0, 1, 2, 5, -3, 2.5, 0.25, "", "a", "b", "ab", "bc", json.null, true, false }

local function value(r, depth)
  local kind = depth == 0 and 1 or r:below(3)
  if kind == 1 then return r:pick(SCALARS) end
  if kind == 2 then
    local list = json.array {}
    for i = 1, r:below(4) - 1 do list[i] = value(r, depth - 1) end
    return list
  end
  local object = json.object()
  for _ = 1, r:below(4) - 1 do object[r:pick(NAMES)] = value(r, depth - 1) end
  return object
end
oracle.value = value

local schema

local function schemas(r, depth, most)
  local list = json.array {}
  for i = 1, r:below(most) do list[i] = schema(r, depth) end
  return list
end

local function names(r)
  local list = json.array {}
  for i = 1, r:below(2) do list[i] = NAMES[(r:below(#NAMES) + i) % #NAMES + 1] end
  return list
end

local function members(r, depth, from)
  local object = json.object()
  for _ = 1, r:below(3) do object[r:pick(from)] = schema(r, depth) end
  return object
end

local PATTERN_LIST = { "^a", "b", "^[ab]*$", "c$", "^.$" }
local TYPES = { "null", "boolean", "integer", "number", "string", "array", "object" }

--- Each adds a keyword, or some that belong together.
local add = {
  function(s, r) s.type = r:pick(TYPES) end,
  function(s, r) s.type = json.array { r:pick(TYPES), "object" } end,
  function(s, r) s.const = value(r, 1) end,
  function(s, r)
    s.enum = json.array {}
    for i = 1, r:below(4) do s.enum[i] = value(r, 1) end
  end,
  function(s, r) s[r:pick { "minimum", "exclusiveMinimum" }] = r:pick { -3, 0, 0.5, 2 } end,
  function(s, r) s[r:pick { "maximum", "exclusiveMaximum" }] = r:pick { -2.5, 0, 1, 5 } end,
  function(s, r) s.multipleOf = r:pick { 1, 2, 3, 0.5, 2.5, 0.25, 1.5 } end,
  function(s, r) s.minLength = r:below(3) - 1 end,
  function(s, r) s.maxLength = r:below(3) - 1 end,
  function(s, r) s.pattern = r:pick(PATTERN_LIST) end,
  function(s, r, d) s.properties = members(r, d, NAMES) end,
  function(s, r, d) s.properties = members(r, d, NAMES) end,
  function(s, r, d) s.patternProperties = members(r, d, PATTERN_LIST) end,
  function(s, r, d) s.additionalProperties = schema(r, d) end,
  function(s) s.additionalProperties = false end,
  function(s, r) s.required = names(r) end,
  function(s, r, d) s.propertyNames = schema(r, d) end,
  function(s, r) s.minProperties = r:below(3) - 1 end,
  function(s, r) s.maxProperties = r:below(3) - 1 end,
  function(s, r)
    s.dependentRequired = json.object()
    s.dependentRequired[r:pick(NAMES)] = names(r)
  end,
  function(s, r, d) s.dependentSchemas = members(r, d, NAMES) end,
  function(s, r, d) s.prefixItems = schemas(r, d, 2) end,
  function(s, r, d) s.items = schema(r, d) end,
  function(s, r) s.minItems = r:below(3) - 1 end,
  function(s, r) s.maxItems = r:below(4) - 1 end,
  function(s, r, d)
    s.contains = schema(r, d)
    if r:below(2) == 1 then s.minContains = r:below(3) - 1 end
    if r:below(2) == 1 then s.maxContains = r:below(3) - 1 end
  end,
  function(s) s.uniqueItems, s.items = true, json.object { { "enum", json.array { 1, "a" } } } end,
  function(s, r, d) s.allOf = schemas(r, d, 2) end,
  function(s, r, d) s.anyOf = schemas(r, d, 3) end,
  function(s, r, d) s.oneOf = schemas(r, d, 3) end,
  function(s, r, d) s["not"] = schema(r, d) end,
  function(s, r, d)
    s["if"] = schema(r, d)
    if r:below(4) > 1 then s["then"] = schema(r, d) end
    if r:below(4) > 1 then s["else"] = schema(r, d) end
  end,
  function(s, r) s["$ref"] = r:pick { "#/$defs/x", "#/$defs/y" } end,
}

function schema(r, depth)
  if depth == 0 then
    if r:below(4) == 1 then return r:below(3) > 1 end
    return json.object { { "type", r:pick(TYPES) } }
  end
  local s = json.object()
  for _ = 1, r:below(3) do r:pick(add)(s, r, depth - 1) end
  return s
end

--- A schema with two definitions, which may refer to each other.
function oracle.schema(r)
  local s = schema(r, 3)
  if type(s) == "boolean" then return s end
  s["$defs"] = json.object { { "x", schema(r, 2) }, { "y", schema(r, 1) } }
  return s
end

return oracle
