-- decimal: the numbers of a schema, exactly. Bounds are compared digit by digit and never as
-- floats: 0.1 is one tenth, 18446744073709551615 keeps its last digit.
--
--   decimal.of(0.5)  ->  { negative = false, int = "0", frac = "5" }
--
-- `int` has no leading zeros ("0" is zero), `frac` no trailing ones.
local json = require("perigee").json

local decimal = {}

-- The largest double has 309 digits before the point; its bounds occur in generated schemas.
decimal.DIGITS = 400

local function normal(negative, int, frac)
  int, frac = int:gsub("^0+", ""), frac:gsub("0+$", "")
  if int == "" then int = "0" end
  return { negative = negative and not (int == "0" and frac == ""), int = int, frac = frac }
end

--- Moves the point of "12" "5" by an exponent. Only as far as a number may have digits: what is
--- longer is refused by its length.
local function shift(int, frac, by)
  local most = 2 * decimal.DIGITS + #int + #frac
  by = math.max(-most, math.min(most, by))
  if by >= 0 then
    frac = frac .. ("0"):rep(by - #frac)
    return int .. frac:sub(1, by), frac:sub(by + 1)
  end
  int = ("0"):rep(-by - #int) .. int
  return int:sub(1, #int + by), int:sub(#int + by + 1) .. frac
end

--- A number as the JSON decoder gives it; nil for anything else, and if it is not finite.
function decimal.of(value)
  if math.type(value) == "integer" then
    local digits = tostring(value):gsub("^-", "")
    return { negative = value < 0, int = digits, frac = "" }
  end
  local text = json.digits(value)
  if type(value) == "number" then
    if value ~= value or value == math.huge or value == -math.huge then return nil end
    text = json.encode(value) -- the shortest text that reads as this number
  end
  if not text then return nil end
  local sign, int, frac, exponent = text:match "^(-?)(%d+)%.?(%d*)[eE]?([+-]?%d*)$"
  if not int then return nil end
  local by = tonumber(exponent) or 0
  return normal(sign == "-", shift(int, frac, math.tointeger(by) or 0))
end

--- Its usual spelling: -12.5
function decimal.text(d)
  return (d.negative and "-" or "") .. d.int .. (d.frac ~= "" and "." .. d.frac or "")
end

--- Which of two numbers without sign is larger: -1, 0 or 1 as a < b, a == b, a > b.
local function compare_sizes(a, b)
  if #a.int ~= #b.int then return #a.int < #b.int and -1 or 1 end
  local x, y = a.int .. a.frac, b.int .. b.frac -- "12" < "123", as fractions are
  return x == y and 0 or x < y and -1 or 1
end

--- -1, 0 or 1 as a < b, a == b, a > b.
function decimal.compare(a, b)
  if a.negative ~= b.negative then return a.negative and -1 or 1 end
  return a.negative and compare_sizes(b, a) or compare_sizes(a, b)
end

--- Its size plus one, for whole numbers.
local function one_more(int)
  local nines = #int:match "9*$"
  if nines == #int then return "1" .. ("0"):rep(nines) end
  local at = #int - nines
  return int:sub(1, at - 1) .. math.tointeger(int:sub(at, at) + 1) .. ("0"):rep(nines)
end

local function one_less(int)
  local zeros = #int:match "0*$"
  local at = #int - zeros
  local text = int:sub(1, at - 1) .. math.tointeger(int:sub(at, at) - 1) .. ("9"):rep(zeros)
  return (text:gsub("^0+(.)", "%1"))
end

function decimal.negated(d)
  return { negative = not d.negative and not decimal.is_zero(d), int = d.int, frac = d.frac }
end

--- The smallest whole number that is at least d, or above it if not closed.
function decimal.ceiling(d, closed)
  local up = d.frac ~= "" or not closed
  local int = { negative = d.negative, int = d.int, frac = "" }
  if d.negative and d.frac ~= "" then up = false end
  if not up then return int.int == "0" and { negative = false, int = "0", frac = "" } or int end
  if not d.negative then return { negative = false, int = one_more(d.int), frac = "" } end
  local less = one_less(d.int)
  return { negative = less ~= "0", int = less, frac = "" }
end

function decimal.is_zero(d) return d.int == "0" and d.frac == "" end

--- A count of a schema (maxLength: 2.0 is one): an integer, math.huge where it is beyond any that
--- could be reached, or nil if it is not a count.
function decimal.count(value)
  local d = decimal.of(value)
  if not d or d.negative or d.frac ~= "" then return nil end
  return #d.int > 15 and math.huge or math.tointeger(tonumber(d.int))
end

return decimal
