-- read: one schema object as a node, with every keyword checked for its shape.
--
-- Nodes are read when they are first asked for, never by recursion: a child is a node that knows
-- its place and nothing else. The same JSON value is always the same node, so a schema that refers
-- to itself is a graph of nodes. KEYWORDS names the fields of a node; keywords that only describe
-- (title, default, unknown ones) are not read at all.
local decimal = require "grammar.decimal"
local failure = require "grammar.failure"
local resolve = require "grammar.resolve"
local unevaluated = require "grammar.unevaluated"
local json = require("perigee").json

local read = {}

--- Steps of a conversion for one value or name in a loop over many: a schema costs one.
read.GLANCE = 0.05

-- A schema inside another one is two values deeper: {"properties": {"a": {}}}.
local LIMITS = { depth = 128, json = 260, nodes = 50000, values = 20000, names = 20000 }

local TYPES = { null = true, boolean = true, integer = true, number = true, string = true,
  array = true, object = true }

local raise = failure.raise

-- ---- shapes of keywords -------------------------------------------------------------------------

local function kind_of(value)
  if value == json.null then return "null" end
  if json.is_array(value) then return "an array" end
  if json.is_object(value) then return "an object" end
  if json.digits(value) then return "a number" end
  return ("a %s"):format(type(value))
end

local shape = {}

local function wrong(node, keyword, want, value)
  raise("format", node, "%s must be %s, not %s", keyword, want, kind_of(value))
end

function shape.string(_, node, keyword, value)
  if type(value) ~= "string" then wrong(node, keyword, "a string", value) end
  return value
end

function shape.boolean(_, node, keyword, value)
  if type(value) ~= "boolean" then wrong(node, keyword, "true or false", value) end
  return value
end

function shape.number(_, node, keyword, value)
  local d = decimal.of(value)
  if not d then wrong(node, keyword, "a finite number", value) end
  local digits = math.max(#d.int, #d.frac)
  if digits > decimal.DIGITS then
    raise("limit", node, "%s has %d digits, at most %d are read", keyword, digits, decimal.DIGITS)
  end
  return d
end

function shape.count(_, node, keyword, value)
  local n = decimal.count(value)
  if not n then
    if not decimal.of(value) then wrong(node, keyword, "a count", value) end
    raise("format", node, "%s must be a count, not %s", keyword, tostring(value))
  end
  return n
end

--- Each name once.
function shape.names(self, node, keyword, value)
  if not json.is_array(value) then wrong(node, keyword, "an array of strings", value) end
  local list, seen = {}, {}
  for _, name in ipairs(value) do
    if type(name) ~= "string" then wrong(node, keyword, "an array of strings", value) end
    if not seen[name] then list[#list + 1], seen[name] = name, true end
  end
  self:bound("names", #list, node, keyword)
  return list
end

function shape.values(self, node, keyword, value)
  if not json.is_array(value) then wrong(node, keyword, "an array", value) end
  if #value == 0 then raise("format", node, "%s has no values", keyword) end
  self:bound("values", #value, node, keyword)
  return value
end

function shape.schema(self, node, keyword, value)
  return self:child(node, value, resolve.pointer(node.at, keyword))
end

function shape.schemas(self, node, keyword, value)
  if not json.is_array(value) then wrong(node, keyword, "an array of schemas", value) end
  if #value == 0 then raise("format", node, "%s has no schemas", keyword) end
  local list, at = {}, resolve.pointer(node.at, keyword)
  for i, raw in ipairs(value) do list[i] = self:child(node, raw, resolve.pointer(at, i - 1)) end
  return list
end

--- Members of an object in their order: a list of { name, node }.
function shape.members(self, node, keyword, value)
  if not json.is_object(value) then wrong(node, keyword, "an object of schemas", value) end
  local list, at = {}, resolve.pointer(node.at, keyword)
  for name, raw in pairs(value) do
    list[#list + 1] = { name = name, node = self:child(node, raw, resolve.pointer(at, name)) }
    self:bound("names", #list, node, keyword)
  end
  return list
end

function shape.types(_, node, keyword, value)
  local list = json.is_array(value) and value or { value }
  if #list == 0 then raise("format", node, "%s has no types", keyword) end
  local types = {}
  for _, name in ipairs(list) do
    if type(name) ~= "string" then wrong(node, keyword, "a type or a list of types", name) end
    if not TYPES[name] then raise("format", node, "%s %q is unknown", keyword, name) end
    types[name] = true
  end
  return types
end

-- ---- keywords -----------------------------------------------------------------------------------

-- keyword = { field of the node, shape }. `nullable` of OpenAPI is not one: the standard does not
-- know it, so its validators would refuse a null that it allows.
local KEYWORDS = {
  type = { "types", "types" },
  minimum = { "minimum", "number" }, maximum = { "maximum", "number" },
  multipleOf = { "multiple", "number" },
  minLength = { "min_length", "count" }, maxLength = { "max_length", "count" },
  pattern = { "pattern", "string" }, format = { "format", "string" },
  properties = { "properties", "members" }, patternProperties = { "patterns", "members" },
  additionalProperties = { "additional", "schema" }, propertyNames = { "names", "schema" },
  required = { "required", "names" },
  minProperties = { "min_properties", "count" }, maxProperties = { "max_properties", "count" },
  dependentSchemas = { "dependent", "members" },
  unevaluatedProperties = { "unevaluated_properties", "schema" },
  unevaluatedItems = { "unevaluated_items", "schema" },
  prefixItems = { "prefix", "schemas" },
  minItems = { "min_items", "count" }, maxItems = { "max_items", "count" },
  contains = { "contains", "schema" }, uniqueItems = { "unique", "boolean" },
  minContains = { "min_contains", "count" }, maxContains = { "max_contains", "count" },
  allOf = { "all_of", "schemas" },
  ["not"] = { "not_of", "schema" },
  ["if"] = { "if_of", "schema" }, ["then"] = { "then_of", "schema" },
  ["else"] = { "else_of", "schema" },
}

-- Keywords whose shape depends on something; each sets fields of the node.
local SPECIAL = {}

--- One more list of values, in each of which the node's value must be.
local function add_list(self, node, keyword, list)
  node.lists = node.lists or {}
  table.insert(node.lists, shape.values(self, node, keyword, list))
end

function SPECIAL.enum(self, node, value) add_list(self, node, "enum", value) end
function SPECIAL.const(self, node, value) add_list(self, node, "const", json.array { value }) end

SPECIAL["$ref"] = function(self, node, value)
  if type(value) ~= "string" then wrong(node, "$ref", "a string", value) end
  node.ref = self:node(resolve.find(self.document, node, value), node.depth)
end

--- Before draft 6 true makes minimum exclusive.
local function exclusive(side)
  return function(self, node, value)
    local field = "exclusive" .. side:gsub("^%l", string.upper)
    if value == true then node[side .. "_open"] = true end
    if type(value) ~= "boolean" then
      node[side .. "_beyond"] = shape.number(self, node, field, value)
    end
  end
end
SPECIAL.exclusiveMinimum, SPECIAL.exclusiveMaximum = exclusive "minimum", exclusive "maximum"

--- Before 2020-12 a list of schemas is what prefixItems is now, and additionalItems what items is.
function SPECIAL.items(self, node, value)
  if not json.is_array(value) then
    node.items = shape.schema(self, node, "items", value)
  elseif #value > 0 then
    node.prefix = node.prefix or shape.schemas(self, node, "items", value)
  end
  if json.is_array(value) and node.raw.additionalItems ~= nil then
    node.items = shape.schema(self, node, "additionalItems", node.raw.additionalItems)
  end
end

local function add_required(self, node, keyword, name, names)
  node.dependent_required = node.dependent_required or {}
  local list = shape.names(self, node, keyword, names)
  node.dependent_required[#node.dependent_required + 1] = { name = name, names = list }
end

function SPECIAL.dependentRequired(self, node, value)
  if not json.is_object(value) then wrong(node, "dependentRequired", "an object", value) end
  for name, names in pairs(value) do add_required(self, node, "dependentRequired", name, names) end
end

--- The older keyword: names or a schema.
function SPECIAL.dependencies(self, node, value)
  if not json.is_object(value) then wrong(node, "dependencies", "an object", value) end
  local schemas = {}
  for name, what in pairs(value) do
    if json.is_array(what) then
      add_required(self, node, "dependencies", name, what)
    else
      schemas[#schemas + 1] = { name, what }
    end
  end
  if #schemas == 0 then return end
  local list = shape.members(self, node, "dependencies", json.object(schemas))
  node.dependent = table.move(node.dependent or {}, 1, #(node.dependent or {}), #list + 1, list)
end

-- Keywords that would change what is valid, and that nothing here can enforce.
for _, keyword in ipairs { "$dynamicRef", "$recursiveRef", "extends", "disallow",
  "divisibleBy" } do
  SPECIAL[keyword] = function(_, node)
    raise("unsupported", node, "%s cannot be enforced", keyword)
  end
end

--- The values of a schema that only lists them: {"const": "a", "title": "A"}; nil if it says more.
local function only_values(raw)
  if not json.is_object(raw) or raw.enum ~= nil and raw.const ~= nil then return nil end
  for keyword in pairs(raw) do
    local says = KEYWORDS[keyword] or SPECIAL[keyword]
    if says and keyword ~= "enum" and keyword ~= "const" then return nil end
  end
  if json.is_array(raw.enum) then return raw.enum end
  return raw.const ~= nil and { raw.const } or nil
end

--- All values of schemas that only list them; nil if one says more. In oneOf a value that comes
--- twice fits none, so there each must be a string of its own.
local function values_of(raws, keyword)
  local all, seen = json.array {}, {}
  for _, raw in ipairs(json.is_array(raws) and raws or {}) do
    local values = only_values(raw)
    if not values or #values == 0 then return nil end
    for _, value in ipairs(values) do
      if keyword == "oneOf" and (type(value) ~= "string" or seen[value]) then return nil end
      all[#all + 1], seen[value] = value, true
    end
  end
  return #all > 0 and all or nil
end

--- Alternatives that only list values are one list, which costs far less.
for keyword, field in pairs { anyOf = "any_of", oneOf = "one_of" } do
  SPECIAL[keyword] = function(self, node, value)
    local list = values_of(value, keyword)
    if list then return add_list(self, node, keyword, list) end
    node[field] = shape.schemas(self, node, keyword, value)
  end
end

-- Keywords with members of the same object: those that precede `properties` precede it in answers.
local IN_PLACE = { allOf = true, anyOf = true, oneOf = true, ["$ref"] = true, ["if"] = true }

-- ---- nodes --------------------------------------------------------------------------------------

local Reader = {}
Reader.__index = Reader

--- `spend(n)` counts work and raises when it is too much. relax: leave out what is wrong.
function read.new(raw, spend, relax)
  local self = setmetatable({ nodes = 0, of = {}, spend = spend, list = {}, relax = relax }, Reader)
  self.widest = { int = 0, frac = 0 }
  self.document = resolve.document(raw)
  self:measure(raw)
  local version = json.is_object(raw) and raw["$schema"]
  -- Up to draft 7 a $ref stands alone: what is beside it does not count.
  self.ref_alone = type(version) == "string" and version:find "/draft%-0[3-7]/" ~= nil
  self.root = self:node(self.document, 0)
  return self
end

function Reader:bound(what, n, node, keyword) -- luacheck: ignore 212
  if n > LIMITS[what] then
    raise("limit", node, "%s has more than %d %s", keyword, LIMITS[what], what)
  end
end

--- Looks at the whole document before anything else does: how deep it is, which bounds all later
--- recursion over values, how long its numbers are, and whether parts may refer to themselves. A
--- number of `default` counts: a property may have that name, and a $ref may lead into one.
function Reader:measure(raw)
  local todo, depths = { raw }, { 1 }
  while #todo > 0 do
    local value, depth = table.remove(todo), table.remove(depths)
    self.spend(read.GLANCE)
    local d = decimal.of(value)
    if d and math.max(#d.int, #d.frac) <= decimal.DIGITS then
      self.widest.int = math.max(self.widest.int, #d.int)
      self.widest.frac = math.max(self.widest.frac, #d.frac)
    elseif type(value) == "table" then
      self.spend(1)
      if depth > LIMITS.json then
        raise("limit", "", "values are nested more than %d deep", LIMITS.json)
      end
      for key, inner in pairs(value) do
        if key == "$ref" then self.refers = true end
        if type(inner) ~= "string" then
          todo[#todo + 1], depths[#depths + 1] = inner, depth + 1
        end
      end
    end
  end
end

--- Calls fn(self, node, ...); whether it succeeded. With `relax` a failure only makes the node
--- loose (relax.lua), otherwise it is the conversion's.
function Reader:try(node, fn, ...)
  if not self.relax then return true, fn(self, node, ...) end
  local ok, why = pcall(fn, self, node, ...)
  if not ok and not failure.is(why) then error(why, 0) end
  node.loose = node.loose or not ok
  return ok
end

local function check_place(_, _, place, depth)
  local raw = place.raw
  if type(raw) ~= "boolean" and not json.is_object(raw) then
    raise("format", place, "a schema must be an object, true or false, not %s", kind_of(raw))
  end
  if depth > LIMITS.depth then
    raise("limit", place, "schemas are nested more than %d deep", LIMITS.depth)
  end
end

--- The node of a place: known, or new and not yet read.
function Reader:node(place, depth)
  local raw = place.raw
  local key = type(raw) == "table" and raw or place.at .. (raw and "#true" or "#false")
  local node = self.of[key]
  if node then return node end
  self.spend(1)
  node = self:blank(place.at)
  if not self:try(node, check_place, place, depth) then
    node.ready = true
    return node
  end
  node.raw, node.base, node.root, node.depth = raw, place.base, place.root, depth
  self.of[key] = node
  return node
end

--- A node without a place of its own, whose fields the caller sets.
function Reader:blank(at)
  self.nodes = self.nodes + 1
  if self.nodes > LIMITS.nodes then
    raise("limit", at, "the schema has more than %d parts", LIMITS.nodes)
  end
  local node = { id = self.nodes, at = at, ready = false }
  self.list[node.id] = node
  return node
end

function Reader:child(node, raw, at)
  return self:node(resolve.below(node, raw, at), node.depth + 1)
end

local function read_keyword(self, node, keyword, value)
  local known = KEYWORDS[keyword]
  if known then
    node[known[1]] = shape[known[2]](self, node, keyword, value)
  elseif SPECIAL[keyword] then
    SPECIAL[keyword](self, node, value)
  end
end

--- Reads a node, once.
function Reader:open(node)
  if node.ready then return node end
  node.ready, self.last = true, node.at
  local raw = node.raw
  if raw == nil then return node end -- made by hand
  if type(raw) == "boolean" then
    node.never = not raw
    return node
  end
  self.spend(4)
  if self.ref_alone and raw["$ref"] ~= nil then
    self:try(node, read_keyword, "$ref", raw["$ref"])
    return node
  end
  for keyword, value in pairs(raw) do
    if IN_PLACE[keyword] and raw.properties ~= nil and not node.properties then
      node.parts_first = true
    end
    self:try(node, read_keyword, keyword, value)
  end
  if self.check then self.check(node) end
  if node.unevaluated_properties or node.unevaluated_items then
    self:try(node, unevaluated.apply)
  end
  return node
end

return read
