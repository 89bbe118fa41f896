-- numbers: the filters int, float, round and filesizeformat.
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local fail, number = values.fail, operators.number

local numbers = {}

local WORDS = { inf = math.huge, infinity = math.huge, nan = 0 / 0 }

--- Digits may be grouped by single underscores.
local function ungrouped(t)
  if t:find "__" or t:find "_$" or t:find "^[+-]?_" then return nil end
  return (t:gsub("_", ""))
end

--- A float as Python reads one, or nil.
local function parse_float(t)
  t = strings.text(strings.strip(t, nil, "lr"))
  local sign, word = t:match "^([+-]?)(%a+)$"
  if word and WORDS[word:lower()] then
    return sign == "-" and -WORDS[word:lower()] or WORDS[word:lower()]
  end
  t = ungrouped(t)
  if not t or not t:match "^[+-]?[%d.]+[eE]?[+-]?%d*$" then return nil end
  local n = tonumber((t:gsub("^%+", "")))
  return n and n * 1.0
end

local PREFIX = { [2] = "^0[bB]", [8] = "^0[oO]", [16] = "^0[xX]" }

local function parse_int(t, base)
  t = strings.text(strings.strip(t, nil, "lr"))
  local sign, digits = t:match "^([+-]?)(.*)$"
  if base == 0 then
    base = 10
    for b, prefix in pairs(PREFIX) do
      if digits:find(prefix) then base = b end
    end
  end
  if PREFIX[base] then digits = digits:gsub(PREFIX[base], "") end
  digits = ungrouped(digits)
  if not digits or not digits:match "^%w+$" then return nil end
  local total = 0
  if base == 10 and digits:match "^%d+$" then
    return values.integer(sign == "-" and "-" .. digits or digits)
  end
  for c in digits:gmatch "." do
    local d = tonumber(c, 36)
    if not d or d >= base then return nil end
    if total > (math.maxinteger - d) // base then
      fail("the number %s does not fit in 64 bits", t)
    end
    total = total * base + d
  end
  return sign == "-" and -total or total
end

local function truncate(x)
  if x ~= x or x == math.huge or x == -math.huge then return nil end
  local n = math.tointeger(x < 0 and math.ceil(x) or math.floor(x))
  if not n then fail("the number %g does not fit in 64 bits", x) end
  return n
end

--- int(value), or the default if the value is not a number.
function numbers.to_int(v, default, base)
  if default == nil then default = 0 end
  base = base == nil and 10 or math.tointeger(number(base) or -1) or -1
  if values.is_undefined(v) then fail(v.message) end
  if values.kind(v) == "int" then return v end
  local n = number(v)
  if n then return math.type(n) == "integer" and n or truncate(n) or default end
  if not values.is_str(v) then return default end
  n = (base == 0 or base >= 2 and base <= 36) and parse_int(strings.text(v), base)
  if n then return n end
  n = parse_float(strings.text(v))
  return n and truncate(n) or default
end

function numbers.to_float(v, default)
  if default == nil then default = 0.0 end
  if values.is_undefined(v) then fail(v.message) end
  if number(v) then return number(v) * 1.0 end
  if values.kind(v) == "int" then return v.float end
  return values.is_str(v) and parse_float(strings.text(v)) or default
end

--- Rounds the exact value, ties to even.
local function round_half_even(x, precision)
  if x ~= x or x == math.huge or x == -math.huge then return x end
  if precision > 0 then return tonumber(("%." .. math.min(precision, 99) .. "f"):format(x)) end
  local unit = 10.0 ^ -precision
  -- With a point, because "-0" would read as the integer 0.
  return tonumber(("%.0f.0"):format(x / unit)) * unit
end

local function round_int(n, precision)
  if precision >= 0 then return n end
  if precision < -18 then return 0 end
  local unit = math.tointeger(10 ^ -precision)
  local rest = n % unit
  local down = n - rest
  if rest * 2 > unit or rest * 2 == unit and (down // unit) % 2 == 1 then return down + unit end
  return down
end

function numbers.round(v, precision, method)
  local n = number(v)
  if not n and values.kind(v) == "int" then return v end
  if not n then
    if values.is_undefined(v) then fail(v.message) end
    fail("round needs a number, got %s", values.typename(v))
  end
  precision = precision == nil and 0 or math.tointeger(number(precision) or 0.5)
    or fail "the precision must be an int"
  method = method == nil and "common" or values.is_str(method) and strings.text(method)
  if method == "common" then
    return math.type(n) == "integer" and round_int(n, precision) or round_half_even(n, precision)
  end
  if method ~= "ceil" and method ~= "floor" then
    fail "round: the method must be common, ceil or floor"
  end
  local unit = 10.0 ^ precision
  return math[method](n * unit) / unit
end

local UNITS = { "k", "M", "G", "T", "P", "E", "Z", "Y" }

function numbers.file_size(v, binary)
  local bytes = numbers.to_float(v, values.null)
  if bytes == values.null then fail("filesizeformat needs a number, got %s", values.typename(v)) end
  binary = binary ~= nil and values.truth(binary)
  local base = binary and 1024 or 1000
  if bytes == 1 then return "1 Byte" end
  if bytes < base then return ("%d Bytes"):format(truncate(bytes)) end
  for i, unit in ipairs(UNITS) do
    local size = (base * 1.0) ^ (i + 1)
    if bytes < size or i == #UNITS then
      return ("%.1f %s"):format(base * bytes / size, binary and unit:upper() .. "iB" or unit .. "B")
    end
  end
end

return numbers
