-- scalar: the algebras (apply.lua) of values that are regular: numbers, strings, and the three that
-- are one word each. Every operation is exact, so anyOf, oneOf, not and if need no case of their
-- own here.
local decimal = require "grammar.decimal"
local facet = require "grammar.facet"
local failure = require "grammar.failure"
local json = require("perigee").json

local scalar = {}

-- ---- null, true and false: sets of bits ---------------------------------------------------------

local NULL, TRUE, FALSE = 1, 2, 4

local word = { name = "word", ALL = 7, NONE = 0 }

function word:both(x, y) return x & y end -- luacheck: ignore 212

function word:any(list) -- luacheck: ignore 212
  local x = 0
  for _, y in ipairs(list) do x = x | y end
  return x
end

function word:is_none(x) return x == 0 end -- luacheck: ignore 212

--- The bit of a value that is one word.
local BIT = { [json.null] = NULL, [true] = TRUE, [false] = FALSE }
scalar.BIT = BIT

function word:own(node, positive) -- luacheck: ignore 212
  local x, types = 7, node.types
  if types then x = (types.null and NULL or 0) | (types.boolean and TRUE | FALSE or 0) end
  for _, values in ipairs(node.lists or {}) do
    local bits = 0
    for _, value in ipairs(values) do bits = bits | (BIT[value] or 0) end
    x = x & bits
  end
  return positive and x or 7 & ~x
end

scalar.word = word

scalar.NULL = NULL
-- Spellings of NULL, TRUE and FALSE.
scalar.JSON, scalar.PYTHON = { "null", "true", "false" }, { "None", "True", "False" }

--- The term of a set of words, in a spelling of those above.
function scalar.words(b, bits, spelling)
  local list = {}
  for i, text in ipairs(spelling) do
    if bits >> (i - 1) & 1 == 1 then list[#list + 1] = text end
  end
  return b:words(list)
end

-- ---- numbers and strings ------------------------------------------------------------------------

--- What both have in common: lists of values, and a set made of parts.
local function kind(self, name, values, parts)
  self.name = name
  function self.own(a, node, positive)
    local x = parts(a, node)
    for _, list in ipairs(node.lists or {}) do
      if x == a.NONE then break end
      x = a:both(x, values(list))
    end
    return positive and x or a:except(x)
  end
  return self
end

function scalar.number(b, numbers, is_empty)
  local a = facet.new(b, numbers.plain, numbers.full, is_empty)
  local integer = a:make(numbers.integer_all, numbers.integer_said)
  local function values(list)
    local all, said = {}, {}
    for _, value in ipairs(list) do
      local d = decimal.of(value)
      if d then all[#all + 1], said[#said + 1] = numbers:exactly(d) end
    end
    if #all == 0 then return a.NONE end
    return a:make(b:any(all), b:any(said))
  end
  --- The tighter of two bounds; `sign` is 1 for lower ones.
  local function tighter(x, y, sign)
    if not x or not y then return x or y end
    local order = sign * decimal.compare(x, y)
    if order == 0 then return x.closed and y or x end
    return order > 0 and x or y
  end
  local function bound(d, closed)
    return d and { negative = d.negative, int = d.int, frac = d.frac, closed = closed }
  end
  local function range(node, whole)
    local low = tighter(bound(node.minimum, not node.minimum_open),
      bound(node.minimum_beyond, false), 1)
    local high = tighter(bound(node.maximum, not node.maximum_open),
      bound(node.maximum_beyond, false), -1)
    if low or high then return a:make(numbers:range(low, high, whole)) end
    return whole and integer or a.ALL
  end
  local function multiple(node, whole)
    local d = node.multiple
    if d.negative or decimal.is_zero(d) then
      failure.raise("format", node, "multipleOf must be above 0, not %s", decimal.text(d))
    end
    local all, said = numbers:multiple(d, whole)
    if not all then
      failure.raise("unsupported", node, "multipleOf %s %s", decimal.text(d), said)
    end
    return a:make(all, said)
  end
  return kind(a, "number", values, function(_, node)
    local types = node.types or { number = true }
    local whole = types.integer and not types.number
    if not whole and not types.number then return a.NONE end
    local x = range(node, whole)
    if not node.multiple then return x end
    local y = multiple(node, whole)
    return x == integer and y or a:both(x, y) -- multiples are whole, then
  end)
end

--- name: of the algebra; raw strings have one of their own.
function scalar.string(b, words, name, is_empty)
  local a = facet.new(b, words.plain, words.plain, is_empty)
  local function values(list)
    local texts = {}
    for _, value in ipairs(list) do
      if type(value) == "string" then texts[#texts + 1] = words:inside(value) end
    end
    return #texts == 0 and a.NONE or a:make(words:any(texts))
  end
  return kind(a, name, values, function(_, node)
    if node.types and not node.types.string then return a.NONE end
    local x = a.ALL
    if node.min_length or node.max_length then
      x = a:make(words:length(node, node.min_length, node.max_length))
    end
    if node.pattern then x = a:both(x, a:make(words:pattern(node, "pattern", node.pattern))) end
    local format = node.format and words:format(node.format)
    return format and a:both(x, a:make(format)) or x
  end)
end

return scalar
