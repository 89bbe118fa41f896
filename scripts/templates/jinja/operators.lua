-- operators: + - * / // % ** == < in, with Python's semantics.
local format = require "templates.jinja.format"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local fail, tick, turn = values.fail, values.tick, values.turn
local Big = values.Big
local List, Tuple, Dict, Undefined = values.List, values.Tuple, values.Dict, values.Undefined
local typename, null, is_str = values.typename, values.null, values.is_str
local mathtype = math.type

local operators = {}

-- ---- numbers ------------------------------------------------------------------------------------

--- The value as a number (True is 1), or nil.
local function number(v)
  if type(v) == "number" then return v end
  if type(v) == "boolean" then return v and 1 or 0 end
end
operators.number = number

local function is_big(v) return type(v) == "table" and getmetatable(v) == Big end

local function check_defined(a, b)
  if values.is_undefined(a) then fail(a.message) end
  if b ~= nil and values.is_undefined(b) then fail(b.message) end
  local big = is_big(a) and a or b ~= nil and is_big(b) and b
  if big then fail("%s does not fit in 64 bits, arithmetic is not possible", big.digits) end
end

local function unsupported(sign, a, b)
  check_defined(a, b)
  fail("unsupported operand types for %s: '%s' and '%s'", sign, typename(a), typename(b))
end

local function too_large(sign, a, b) fail("%d %s %d does not fit in 64 bits", a, sign, b) end

local function add_int(a, b)
  local sum = a + b
  if (a ~ sum) & (b ~ sum) < 0 then too_large("+", a, b) end
  return sum
end

local function mul_int(a, b)
  local about = a * 1.0 * b
  if about >= 2 ^ 63 or about < -2 ^ 63 then too_large("*", a, b) end
  return a * b
end

-- ---- sequences ----------------------------------------------------------------------------------

local function joined(a, b, class)
  values.opened(a)
  values.opened(b)
  tick(#a + #b)
  local out = table.move(a, 1, #a, 1, {})
  return setmetatable(table.move(b, 1, #b, #out + 1, out), class)
end

local function repeated(v, count, class)
  local out, n = {}, #values.opened(v)
  if n == 0 or count <= 0 then return setmetatable(out, class) end
  if count > values.state.max_steps then tick(count) end
  tick(count * n)
  for i = 0, count - 1 do table.move(v, 1, n, i * n + 1, out) end
  return setmetatable(out, class)
end

local function add_other(a, b)
  check_defined(a, b)
  if is_str(a) then
    if is_str(b) then return strings.add(a, b) end
    fail('can only concatenate str (not "%s") to str', typename(b))
  end
  local x, y = number(a), number(b)
  if x and y then
    if mathtype(x) == "integer" and mathtype(y) == "integer" then return add_int(x, y) end
    return x + y
  end
  local class = type(a) == "table" and getmetatable(a)
  if (class == List or class == Tuple) and type(b) == "table" and getmetatable(b) == class then
    return joined(a, b, class)
  end
  if class == List or class == Tuple then
    fail('can only concatenate %s (not "%s") to %s', class.name, typename(b), class.name)
  end
  unsupported("+", a, b)
end

function operators.add(a, b)
  if type(a) == "string" and type(b) == "string" then
    values.charge(#a + #b)
    return a .. b
  end
  return add_other(a, b)
end

function operators.sub(a, b)
  local x, y = number(a), number(b)
  if not x or not y then unsupported("-", a, b) end
  if mathtype(x) == "integer" and mathtype(y) == "integer" then
    local difference = x - y
    if (x ~ y) & (x ~ difference) < 0 then too_large("-", x, y) end
    return difference
  end
  return x - y
end

local function times(v, count)
  if is_str(v) then return strings.times(v, count) end
  local class = getmetatable(v)
  if class == List or class == Tuple then return repeated(v, count, class) end
end

function operators.mul(a, b)
  local x, y = number(a), number(b)
  if x and y then
    if mathtype(x) == "integer" and mathtype(y) == "integer" then return mul_int(x, y) end
    return x * y
  end
  local result
  if mathtype(y) == "integer" and a ~= null then result = times(a, y) end
  if mathtype(x) == "integer" and b ~= null then result = times(b, x) end
  if result == nil then unsupported("*", a, b) end
  return result
end

local function two(sign, a, b)
  local x, y = number(a), number(b)
  if not x or not y then unsupported(sign, a, b) end
  if (sign == "/" or sign == "//" or sign == "%") and y == 0 then fail "division by zero" end
  return x, y
end

function operators.div(a, b)
  local x, y = two("/", a, b)
  return x / y
end

--- x // y of floats, exact like Python's: subtracts the remainder first (10 // 0.1 is 99).
local function floor_divide(x, y)
  local rest = math.fmod(x, y)
  local quotient = (x - rest) / y
  if rest ~= 0 and (y < 0) ~= (rest < 0) then quotient = quotient - 1.0 end
  if quotient == 0 then return x / y * 0.0 end -- keeps the sign
  local whole = quotient // 1
  return quotient - whole > 0.5 and whole + 1.0 or whole
end

function operators.floordiv(a, b)
  local x, y = two("//", a, b)
  if mathtype(x) == "integer" and mathtype(y) == "integer" then return x // y end
  return floor_divide(x * 1.0, y * 1.0)
end

function operators.mod(a, b)
  if is_str(a) then
    return format.percent(a, type(b) == "table" and getmetatable(b) == Tuple and b or { b }, b)
  end
  local x, y = two("%", a, b)
  local rest = x % y
  -- Zero takes the divisor's sign.
  if rest == 0 and mathtype(rest) == "float" then return y < 0 and -0.0 or 0.0 end
  return rest
end

local function pow_int(x, y)
  local result = 1
  while y > 0 do
    if y & 1 == 1 then result = mul_int(result, x) end
    y = y >> 1
    if y > 0 then x = mul_int(x, x) end
  end
  return result
end

function operators.pow(a, b)
  local x, y = two("**", a, b)
  if mathtype(x) == "integer" and mathtype(y) == "integer" and y >= 0 then
    if x == 1 or x == 0 or x == -1 then
      return y == 0 and 1 or x == -1 and (y & 1 == 0 and 1 or -1) or x
    end
    return pow_int(x, y)
  end
  if x == 0 and y < 0 then fail "0 cannot be raised to a negative power" end
  if x < 0 and y // 1 ~= y then fail "a negative number cannot be raised to a fraction" end
  return (x * 1.0) ^ y
end

function operators.neg(a)
  local x = number(a)
  if is_big(a) then
    return values.big(a.digits:sub(1, 1) == "-" and a.digits:sub(2) or "-" .. a.digits)
  end
  if not x then
    check_defined(a)
    fail("bad operand type for unary -: '%s'", typename(a))
  end
  return -x
end

function operators.pos(a)
  local x = number(a)
  if not x then
    check_defined(a)
    fail("bad operand type for unary +: '%s'", typename(a))
  end
  return x
end

-- ---- comparing ----------------------------------------------------------------------------------

local MAX_DEPTH = 200
local eq

local function same_items(a, b, depth)
  values.opened(a)
  values.opened(b)
  if #a ~= #b then return false end
  tick(#a)
  for i = 1, #a do
    if not eq(a[i], b[i], depth + 1) then return false end
  end
  return true
end

local function same_dicts(a, b, depth)
  values.open(a)
  values.open(b)
  if #a.keys ~= #b.keys then return false end
  tick(#a.keys)
  for k, v in pairs(a.map) do
    local other = b.map[k]
    if other == nil or not eq(v, other, depth + 1) then return false end
  end
  return true
end

--- A Big and a float are equal if the float's exact value has the Big's digits.
local function same_as_big(big, v)
  if is_big(v) then return big.digits == v.digits end
  return math.type(v) == "float" and ("%.0f"):format(v) == big.digits
end

--- Python's ==.
function eq(a, b, depth)
  local ta, tb = type(a), type(b)
  if ta == tb and ta ~= "table" then return a == b end
  if ta ~= "table" and tb ~= "table" then
    local x, y = number(a), number(b)
    return x ~= nil and x == y
  end
  if is_str(a) then return is_str(b) and strings.text(a) == strings.text(b) end
  if is_big(a) then return same_as_big(a, b) end
  if is_big(b) then return same_as_big(b, a) end
  if ta ~= tb then return false end
  local class = getmetatable(a)
  if class ~= getmetatable(b) then return false end
  if rawequal(a, b) then return true end
  depth = depth or 0
  if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
  if class == List or class == Tuple or class == values.Range then
    return same_items(a, b, depth)
  end
  if class == Dict then return same_dicts(a, b, depth) end
  return class == Undefined
end
operators.eq = eq

local order

local function order_items(a, b, depth)
  values.opened(a)
  values.opened(b)
  tick(math.min(#a, #b))
  for i = 1, math.min(#a, #b) do
    if not eq(a[i], b[i]) then return order(a[i], b[i], depth + 1) end
  end
  return #a - #b
end

--- The number to compare by; a Big compares by its nearest float.
local function nearest(v) return number(v) or is_big(v) and v.float end

--- The order of two Bigs by their digits.
local function order_bigs(a, b)
  if a.digits == b.digits then return 0 end
  local s, t = a.digits, b.digits
  local less = #s < #t or #s == #t and s < t
  return less == (s:sub(1, 1) ~= "-") and -1 or 1
end

--- Negative, zero or positive; or nil and whether one is NaN, else the two values or items that
--- cannot be compared.
function order(a, b, depth)
  local x, y = nearest(a), nearest(b)
  if x and x == y and is_big(a) and is_big(b) then return order_bigs(a, b) end
  if x and y then return x < y and -1 or x > y and 1 or x == y and 0 or nil, x ~= x or y ~= y end
  if is_str(a) and is_str(b) then
    local s, t = strings.text(a), strings.text(b)
    return s < t and -1 or s == t and 0 or 1
  end
  if type(a) ~= "table" or type(b) ~= "table" then return nil, false, a, b end
  local class = getmetatable(a)
  if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
  if class == getmetatable(b) and (class == List or class == Tuple) then
    return order_items(a, b, depth)
  end
  return nil, false, a, b
end

local function compare(sign, a, b)
  local result, nan, x, y = order(a, b, 0)
  if result or nan then return result end
  check_defined(x, y)
  fail("'%s' not supported between '%s' and '%s'", sign, typename(x), typename(y))
end

function operators.lt(a, b)
  local c = compare("<", a, b)
  return c ~= nil and c < 0
end
function operators.le(a, b)
  local c = compare("<=", a, b)
  return c ~= nil and c <= 0
end
function operators.gt(a, b)
  local c = compare(">", a, b)
  return c ~= nil and c > 0
end
function operators.ge(a, b)
  local c = compare(">=", a, b)
  return c ~= nil and c >= 0
end

--- Is a in b?
function operators.contains(a, b)
  if is_str(b) then
    if not is_str(a) then
      check_defined(a)
      fail("'in <string>' needs a string on its left, got %s", typename(a))
    end
    local t, part = strings.text(b), strings.text(a)
    values.search(#t, #part)
    return t:find(part, 1, true) ~= nil
  end
  if type(b) == "table" then
    if getmetatable(b) == Dict then return values.open(b).map[values.hash(a)] ~= nil end
    local items = values.try_items(b)
    if items then
      tick(#items)
      for i = 1, #items do
        if eq(items[i], a) then return true end
      end
      return false
    end
  end
  fail("'%s' object is not iterable", typename(b))
end

--- A stable sort in place; less may raise.
function operators.sort(list, less)
  local n, from, to = #list, list, {}
  tick(n)
  local width = 1
  while width < n do
    for low = 1, n, 2 * width do
      local i, middle = low, math.min(low + width, n + 1)
      local j, high = middle, math.min(low + 2 * width, n + 1)
      for k = low, high - 1 do
        turn(k)
        if i < middle and (j >= high or not less(from[j], from[i])) then
          to[k], i = from[i], i + 1
        else
          to[k], j = from[j], j + 1
        end
      end
    end
    from, to, width = to, from, width * 2
  end
  if from ~= list then table.move(from, 1, n, 1, list) end
  return list
end

--- ~ over any number of values.
function operators.tilde(...)
  local str = format.str
  local list = { ... }
  for i = 1, #list do
    if type(list[i]) ~= "string" then list[i] = str(list[i]) end
  end
  return strings.cat(list, #list)
end

return operators
