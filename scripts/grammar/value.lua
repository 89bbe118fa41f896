-- value: the converter's middle: which values fit several schemas at once, and the symbol for them.
--
-- A literal is a node's id, or its negative for "not this node". A list of literals is a
-- conjunction; the same list, in any order, is always the same value, with one rule. So a schema
-- that refers to itself ends: its rule is used before it is written, and there are finitely many
-- lists. Rules are written from a queue, not by recursion.
local apply = require "grammar.apply"
local array = require "grammar.array"
local array_rules = require "grammar.array_rules"
local decimal = require "grammar.decimal"
local ending = require "grammar.ending"
local failure = require "grammar.failure"
local number = require "grammar.number"
local object = require "grammar.object"
local object_rules = require "grammar.object_rules"
local read = require "grammar.read"
local scalar = require "grammar.scalar"
local search = require "grammar.search"
local words = require "grammar.words"
local json = require("perigee").json

local value = {}

local Converter = {}
Converter.__index = Converter

-- ---- at a glance --------------------------------------------------------------------------------

--- Whether there may be arrays or objects at all: bits, too many rather than too few. The forms
--- themselves cannot be asked while they are made.
local maybe = setmetatable({ name = "maybe", ALL = 3, NONE = 0 }, { __index = scalar.word })

local CONTAINERS = { "lists", "properties", "patterns", "additional", "names", "required",
  "min_properties", "max_properties", "dependent", "dependent_required", "prefix", "items",
  "min_items", "max_items", "contains", "unique" }

function maybe:own(node, positive) -- luacheck: ignore 212
  local types = node.types
  local bits = types and (types.array and 1 or 0) | (types.object and 2 or 0) or 3
  if positive then
    for _, list in ipairs(node.lists or {}) do
      local found = 0
      for _, v in ipairs(list) do
        found = found | (json.is_array(v) and 1 or json.is_object(v) and 2 or 0)
      end
      bits = bits & found
    end
    return bits
  end
  for _, field in ipairs(CONTAINERS) do
    if node[field] then return 3 end
  end
  return 3 & ~bits
end

-- ---- the builder, whose limits end a conversion ------------------------------------------------

for _, name in ipairs { "define", "list", "matches" } do
  Converter[name] = function(self, ...) return failure.checked(self.b[name](self.b, ...)) end
end

function Converter:rule(name)
  local rule = failure.checked(self.b:rule(name))
  self.rules[#self.rules + 1] = rule
  return rule
end

function Converter:empty(term) return self.is_empty(term) end

-- ---- literals -----------------------------------------------------------------------------------

--- Whether a node says nothing: true or {}.
local function is_trivial(node)
  if node.trivial == nil then
    local raw = node.raw
    node.trivial = raw == true or json.is_object(raw) and pairs(raw)(raw) == nil
  end
  return node.trivial
end

--- The literals sorted, each once, without those that everything fulfils; nil if two contradict.
function Converter:normal(literals)
  local seen, out = {}, {}
  for _, literal in ipairs(literals) do
    local trivial = is_trivial(self.reader.list[math.abs(literal)])
    if seen[-literal] or trivial and literal < 0 then return nil end
    if not seen[literal] and not trivial then out[#out + 1] = literal end
    seen[literal] = true
  end
  table.sort(out)
  return out, table.concat(out, " ")
end

function Converter:fold(a, literals)
  local x = a.ALL
  for _, literal in ipairs(literals) do
    if x == a.NONE then break end
    x = a:both(x, self.apply:set(a, self.reader.list[math.abs(literal)], literal > 0))
  end
  return x
end

--- Does nothing fit these literals, as far as that is seen without a look into arrays and objects?
function Converter:is_hopeless(literals)
  local list, key = self:normal(literals)
  if not list then return true end
  local known = self.hopeless[key]
  if known == nil then
    known = self:fold(maybe, list) == 0 and self:fold(scalar.word, list) == 0
      and self.number:is_none(self:fold(self.number, list))
      and self.string:is_none(self:fold(self.string, list))
    self.hopeless[key] = known
  end
  return known
end

-- ---- values -------------------------------------------------------------------------------------

local DEAD = { dead = true, literals = {} }

--- The value of a conjunction: { term, arrays, objects, dead, bare = the term without strings }.
function Converter:value(literals)
  local list, key = self:normal(literals)
  if not list then return DEAD end
  local v = self.values[key]
  if v then return v end
  self.spend(4)
  v = { literals = list }
  self.values[key] = v
  local numbers, strings = self:fold(self.number, list), self:fold(self.string, list)
  local parts = { scalar.words(self.b, self:fold(scalar.word, list), self.spelling) }
  if not self.number:is_none(numbers) then parts[#parts + 1] = numbers.said end
  v.bare = self.b:any(parts)
  if not self.string:is_none(strings) then parts[#parts + 1] = self.words:quoted(strings.said) end
  v.term = self.b:any(parts)
  v.arrays, v.objects = self:fold(self.array, list), self:fold(self.object, list)
  v.dead = #v.arrays == 0 and #v.objects == 0 and self:empty(v.term)
  return v
end

--- A value that must fulfil more.
function Converter:value_and(v, literals)
  if v.dead then return v end
  local all = table.move(v.literals, 1, #v.literals, 1, {})
  return self:value(table.move(literals, 1, #literals, #all + 1, all))
end

--- What stands for a value in an alternative: a term, or a rule that is written later.
function Converter:symbol(v)
  if v.dead or not self.ending:has(v) then return self.b:any {} end
  if #v.arrays == 0 and #v.objects == 0 then return v.term end
  if not v.rule then
    local node = self.reader.list[math.abs(v.literals[1] or 0)]
    v.rule = self:rule(node and node.at ~= "" and node.at or "value")
    self.queue[#self.queue + 1] = v
  end
  return v.rule
end

--- The value without its strings.
function Converter:without_strings(v)
  v.rest = v.rest or { literals = v.literals, term = v.bare, arrays = v.arrays, objects = v.objects,
    dead = #v.arrays == 0 and #v.objects == 0 and self:empty(v.bare) }
  return v.rest
end

function Converter:write(v)
  local out = {}
  if not self:empty(v.term) then out[1] = { v.term } end
  for _, form in ipairs(v.arrays) do array_rules.write(self, form, out) end
  for _, form in ipairs(v.objects) do object_rules.write(self, form, out) end
  self:define(v.rule, out)
end

local function write_all(self, style)
  local v = self:value { self.reader.root.id }
  if v.dead or style and #v.objects == 0 then
    failure.raise("unsatisfiable", "", style and "no object fits" or "no value fits")
  end
  if not self.ending:has(v) then
    failure.raise("unsatisfiable", "", "refers to itself, and no value that fits has an end")
  end
  local root, out = self:rule "root", {}
  if not style then out[1] = { self:symbol(v) } end
  for _, form in ipairs(style and v.objects or {}) do object_rules.write(self, form, out, style) end
  if #out == 0 then failure.raise("unsatisfiable", "", "no object can be written that fits") end
  self:define(root, out)
  while #self.queue > 0 do self:write(table.remove(self.queue)) end
  return root
end

--- Writes the rules of a schema; gives the root. style: how the members of the root are written,
--- which is then an object (parameters.lua). If that fails the builder has rules that are used and
--- not defined, with which it would not compile: they are given no text.
function Converter:run(style)
  local ok, root = pcall(write_all, self, style)
  if ok then return root end
  for _, rule in ipairs(self.rules) do self.b:define(rule, {}) end
  error(root, 0)
end

-- ---- questions of the forms ---------------------------------------------------------------------

--- The node of an array or object that a schema lists as a value: its own little schema.
function Converter:constant(v, kind)
  if not (kind == "array" and json.is_array(v) or kind == "object" and json.is_object(v)) then
    return nil
  end
  if self.constants[v] then return self.constants[v] end
  local reader = self.reader
  local node = reader:blank "a value"
  self.constants[v], node.types, node.ready = node, { [kind] = true }, true
  local function child(inner)
    local one = reader:blank "a value"
    one.lists, one.ready = { { inner } }, true
    return one
  end
  local never = reader:blank "a value"
  never.never, never.ready = true, true
  if kind == "array" then
    node.prefix, node.items, node.min_items = {}, never, #v
    for i, inner in ipairs(v) do node.prefix[i] = child(inner) end
    return node
  end
  node.properties, node.required, node.additional = {}, {}, never
  for name, inner in pairs(v) do
    table.insert(node.properties, { name = name, node = child(inner) })
    table.insert(node.required, name)
  end
  return node
end

--- Adds what a group says about the value of a name.
function Converter:named(node, name, out)
  if not node.index then
    node.index = {}
    for _, entry in ipairs(node.properties or {}) do
      self.spend(read.GLANCE)
      node.index[entry.name] = entry.node.id
    end
  end
  local id, matched = node.index[name], false
  if id then out[#out + 1] = id end
  for _, entry in ipairs(node.patterns or {}) do
    if self:matches(self:name_pattern(node, entry.name), self.words:inside(name)) then
      out[#out + 1], matched = entry.node.id, true
    end
  end
  if not id and not matched and node.additional then out[#out + 1] = node.additional.id end
end

--- Adds what a group says about values of names that it does not declare, by the patterns that
--- match them.
function Converter:classed(node, matched, out)
  local any = false
  for _, entry in ipairs(node.patterns or {}) do
    if matched[self:name_pattern(node, entry.name)] then
      out[#out + 1], any = entry.node.id, true
    end
  end
  if not any and node.additional then out[#out + 1] = node.additional.id end
end

function Converter:name_pattern(node, text)
  return self.words:pattern(node, "patternProperties", text)
end

local function inside_all(self, names)
  local texts = {}
  for name in pairs(names) do texts[#texts + 1] = self.words:inside(name) end
  table.sort(texts)
  return self.words:any(texts)
end

--- Names that a node's additionalProperties is about.
function Converter:additional_names(node)
  local names = {}
  for _, entry in ipairs(node.properties or {}) do names[entry.name] = true end
  local terms = { inside_all(self, names) }
  for _, entry in ipairs(node.patterns or {}) do
    terms[#terms + 1] = self:name_pattern(node, entry.name)
  end
  return self.b:both(self.words.plain, self.b:except(self.b:any(terms)))
end

--- Names that a literal of propertyNames allows.
function Converter:names_term(literal)
  local node = self.reader.list[math.abs(literal)]
  return self.apply:set(self.string, node, literal > 0).all
end

function Converter:is_name(literal, name)
  return self:matches(self:names_term(literal), self.words:inside(name))
end

--- Names that a form allows and does not know.
function Converter:unknown_names(form, known)
  local term = self.words.plain
  for _, literal in ipairs(form.names or {}) do
    term = self.b:both(term, self:names_term(literal))
  end
  if next(known) == nil then return term end
  return self.b:both(term, self.b:except(inside_all(self, known)))
end

-- ---- finite lists -------------------------------------------------------------------------------

--- Values that a node can have at most, if the schema lists them; nil otherwise.
local function listed(self, node, depth)
  self.reader:open(node)
  if depth == 0 then return nil end
  if node.lists then return node.lists[1] end
  local types = node.types
  if types and not (types.number or types.integer or types.string or types.array or types.object)
  then
    return { json.null, true, false }
  end
  for _, inner in ipairs { node.ref or false, table.unpack(node.all_of or {}) } do
    local list = inner and listed(self, inner, depth - 1)
    if list then return list end
  end
  local all = {}
  for _, inner in ipairs(node.any_of or node.one_of or {}) do
    local list = listed(self, inner, depth - 1)
    if not list then return nil end
    table.move(list, 1, #list, #all + 1, all)
  end
  return #all > 0 and all or nil
end

--- The terms of all values that fit, each once, if they are a list of scalars; nil otherwise.
function Converter:finite(literals)
  local v = self:value(literals)
  if v.dead then return {} end
  if #v.arrays > 0 or #v.objects > 0 then return nil end
  for _, literal in ipairs(v.literals) do
    local list = literal > 0 and listed(self, self.reader.list[literal], 16)
    if list then
      local out, seen = {}, {}
      for _, one in ipairs(list) do
        local term = type(one) ~= "table" and self.b:both(v.term, self:spelled(one))
        if term and not self:empty(term) and not seen[term] then
          out[#out + 1], seen[term] = term, true
        end
      end
      return out
    end
  end
  return nil
end

--- The usual spelling of a scalar.
function Converter:spelled(one)
  if scalar.BIT[one] then return scalar.words(self.b, scalar.BIT[one], self.spelling) end
  local d = decimal.of(one)
  return self.b:text(d and decimal.text(d) or json.encode(one))
end

--- `options`: order, relax, and marks (init.lua); style: see run.
function value.new(b, reader, marks, options, spend)
  local style = options.style or {}
  local c = setmetatable({ b = b, reader = reader, marks = marks, order = options.order,
    relax = options.relax, spend = spend, is_empty = search.new(b, options.job),
    spelling = style.spelling or scalar.JSON, hopeless = {}, values = {}, queue = {},
    constants = {}, rules = {} }, Converter)
  c.apply = apply.new(reader, spend)
  c.words = words.new(b, { bare = style.bare, job = options.job }, spend)
  c.raw_words = words.new(b, { raw = true, job = options.job }, spend)
  c.number = scalar.number(b, number.new(b, reader.widest, spend), c.is_empty)
  c.string = scalar.string(b, c.words, "string", c.is_empty)
  c.raw = scalar.string(b, c.raw_words, "raw", c.is_empty)
  c.array, c.object = array.algebra(c), object.algebra(c)
  c.ending = ending.new(c)
  return c
end

return value
