-- number: bounds and divisors of numbers as terms.
--
-- A plain number is an optional minus, digits, and perhaps a point with digits. A bound is a chain
-- over the digits of its number: below it, every digit may follow; on it, the next digit decides.
--
--   at most 25    [0-9] | 1[0-9] | 2([0-4] | 5)      and the fractions that fit each
--
-- Texts may be as long as the longest number of the schema, and at least INT and FRAC digits: a
-- model that is sure of nothing must not write digits for ever, but an identifier of 53 digits is a
-- number, too.
--
-- A client can send many bounds with hundreds of digits. So a range is made once, and so are chains
-- of digits that several bounds end with: what is made anew for each digit is a term, and of these
-- the builder has a limit.
local decimal = require "grammar.decimal"
local failure = require "grammar.failure"

local number = {}

local INT, FRAC = 64, 20
local EXPONENT = "[eE][+-]?[0-9]{1,3}" -- doubles end at e308
local DIVISOR = 1000000                -- the largest that the builder's remainders take
local PARTS = 100                      -- fractions of a multiple: two digits after the point
local STEP = 1 / 4                     -- steps of a conversion (init.lua) for a digit of a bound
local BLOCK = 32                       -- digits after which a chain is kept

local Numbers = {}
Numbers.__index = Numbers

--- `widest` has the digits before and after the point of the schema's longest numbers.
function number.new(b, widest, spend)
  local n = setmetatable({ b = b, spend = spend, sets = {}, ranges = {}, multiples = {},
    nonzeros = { [0] = b:any {} }, others = {}, ends = {}, chains = {}, fractions = {} }, Numbers)
  n.int, n.frac = math.max(INT, widest.int), math.max(FRAC, widest.frac)
  n.digit, n.zero, n.nonzero = n:digits(0, 9), b:text "0", n:digits(1, 9)
  n.none, n.empty, n.point, n.minus = b:any {}, b:text "", b:text ".", b:text "-"
  n.fraction = b:cat(n.point, b:times(n.digit, 1, n.frac))
  n.tail = b:any(n.empty, n.fraction)
  n.zeros = b:any(n.empty, b:cat(n.point, b:times(n.zero, 1, n.frac)))
  n.whole = n:shorter(n.int)
  n.sign = b:any(n.empty, n.minus)
  n.plain = b:cat(n.sign, n.whole, n.tail)
  n.full = b:cat(n.plain, b:times(failure.checked(b:pattern(EXPONENT)), 0, 1))
  n.integer_all = b:cat(n.sign, n.whole, n.zeros)
  n.integer_said = b:any(n.whole, b:cat(n.minus, b:cat(n.nonzero, b:times(n.digit, 0, n.int - 1))))
  -- Whole numbers only: all their spellings, and those that are offered.
  local same = { __index = n }
  n.all = setmetatable({ tail = n.zeros, others = {}, chains = {} }, same)
  n.said = setmetatable({ tail = n.empty, zeros = n.empty, is_said = true, others = {},
    chains = {} }, same)
  return n
end

--- One of the digits from..to.
function Numbers:digits(from, to)
  if from > to then return self.none end
  local key = from << 4 | to
  self.sets[key] = self.sets[key] or self.b:bytes(("0123456789"):sub(from + 1, to + 1))
  return self.sets[key]
end

--- Whole numbers of at most n digits.
function Numbers:shorter(n)
  if n < 1 then return self.none end
  return self.b:any(self.zero, self.b:cat(self.nonzero, self.b:times(self.digit, 0, n - 1)))
end

--- At most n digits, one of which is not 0.
function Numbers:some(n)
  local b, known = self.b, self.nonzeros
  for k = #known + 1, n do
    known[k] = b:any(b:cat(self.nonzero, b:times(self.digit, 0, k - 1)),
      b:cat(self.zero, known[k - 1]))
  end
  return known[n]
end

-- ---- bounds -------------------------------------------------------------------------------------

--- One of the digits from..to before the point, which leaves a bound, and n more.
function Numbers:other(from, to, n)
  if from > to then return self.none end
  local b, key = self.b, n << 8 | from << 4 | to
  self.others[key] = self.others[key] or
    b:cat(self:digits(from, to), b:times(self.digit, n, n), self.tail)
  return self.others[key]
end

--- The same after the point, and at most n more.
function Numbers:last(from, to, n)
  if from > to then return self.none end
  local b, key = self.b, n << 8 | from << 4 | to
  self.ends[key] = self.ends[key] or b:cat(self:digits(from, to), b:times(self.digit, 0, n))
  return self.ends[key]
end

--- A digit of a bound and what follows it, or what leaves the bound here.
function Numbers:on(digit, after, other)
  local term = self.b:cat(self:digits(digit, digit), after)
  return other == self.none and term or self.b:any(other, term)
end

--- The chain over the digits of a text from the last to the i-th: step(k, digit, after), which is
--- `last` after them. known: chains that were made; key: all that the steps after the first digit
--- depend on, beside the digits from there on.
function Numbers:chain(known, key, text, i, last, step)
  local n, t = #text, last
  local made = math.max(n - math.max(i, 2) + 1, 0) // BLOCK * BLOCK
  while made > 0 and not known[key .. text:sub(-made)] do made = made - BLOCK end
  if made > 0 then t = known[key .. text:sub(-made)] end
  for k = n - made, i, -1 do
    t = step(k, text:byte(k) - 48, t)
    local length = n - k + 1
    if length % BLOCK == 0 then
      self.spend(BLOCK * STEP)
      if k > 1 then known[key .. text:sub(k)] = t end
    end
  end
  return t
end

--- Digits after the point, from the i-th on, that keep a number at most at a bound or below it;
--- those before were the bound's own.
function Numbers:digits_below(frac, i, closed)
  local b = self.b
  local last = closed and b:times(self.zero, 0, self.frac - math.max(#frac, i - 1)) or self.none
  local key = ("<%d%s:"):format(#frac, closed and "=" or "")
  return self:chain(self.fractions, key, frac, i, last, function(k, d, after)
    local t = self:on(d, after, self:last(0, d - 1, self.frac - k))
    return k > 1 and b:any(self.empty, t) or t -- what is cut off here was not 0
  end)
end

function Numbers:digits_above(frac, i, closed)
  local b, rest = self.b, self.frac - math.max(#frac, i - 1)
  local last = closed and b:times(self.digit, 0, rest) or self:some(rest)
  local key = (">%d%s:"):format(#frac, closed and "=" or "")
  return self:chain(self.fractions, key, frac, i, last, function(k, d, after)
    return self:on(d, after, self:last(d + 1, 9, self.frac - k))
  end)
end

--- Fractions, with their point, that keep a number whose whole part is that of the bound at most at
--- it, or below it.
function Numbers:fraction_below(frac, closed)
  local b = self.b
  if frac == "" then return closed and self.zeros or self.none end
  return b:any(self.empty, b:cat(self.point, self:digits_below(frac, 1, closed)))
end

function Numbers:fraction_above(frac, closed)
  if frac == "" and closed then return self.tail end
  return self.b:cat(self.point, self:digits_above(frac, 1, closed))
end

--- Fractions between two bounds whose digits are the same up to index i.
function Numbers:fraction_between(low, high, i)
  local b, f, g = self.b, low.frac, high.frac
  if i > #f and i > #g then
    return low.closed and high.closed and b:times(self.zero, 0, self.frac - i + 1) or self.none
  end
  local from, to = tonumber(f:sub(i, i)) or 0, tonumber(g:sub(i, i)) or 0
  local t
  self.spend(STEP)
  if from == to then
    t = b:cat(self:digits(from, from), self:fraction_between(low, high, i + 1))
  else
    t = b:any(self:last(from + 1, to - 1, self.frac - i),
      b:cat(self:digits(from, from), self:digits_above(f, i + 1, low.closed)),
      b:cat(self:digits(to, to), self:digits_below(g, i + 1, high.closed)))
  end
  -- It may end here if what is left of the lower bound is nothing.
  local ends = i > 1 and i > #f and low.closed
  return ends and b:any(self.empty, t) or t
end

--- What may follow the first i - 1 digits of a bound, in a number with as many digits before the
--- point.
function Numbers:suffix(d, above, i)
  local int, frac = d.int, d.frac
  local last = above and self:fraction_above(frac, d.closed) or self:fraction_below(frac, d.closed)
  local key = ("%s%s.%s:"):format(above and ">" or "<", d.closed and "=" or "", frac)
  return self:chain(self.chains, key, int, i, last, function(k, digit, after)
    local first = (k == 1 and #int > 1) and 1 or 0
    local other = above and self:other(digit + 1, 9, #int - k)
      or self:other(first, digit - 1, #int - k)
    return self:on(digit, after, other)
  end)
end

--- Numbers without sign between two bounds without sign; nil: unbounded above.
function Numbers:between(low, high)
  local b, n = self.b, #low.int
  if not high then
    local longer = n < self.int and b:cat(self.nonzero, b:times(self.digit, n, self.int - 1),
      self.tail) or self.none
    return b:any(self:suffix(low, true, 1), longer)
  end
  local m = #high.int
  if n > m then return self.none end
  if n < m then
    local list = { self:suffix(low, true, 1), self:suffix(high, false, 1) }
    if m - n > 1 then
      list[3] = b:cat(self.nonzero, b:times(self.digit, n, m - 2), self.tail)
    end
    return b:any(list)
  end
  local i = 1
  while i <= n and low.int:byte(i) == high.int:byte(i) do i = i + 1 end
  local before = b:text(low.int:sub(1, i - 1))
  if i > n then return b:cat(before, self:points_between(low, high)) end
  local from, to = tonumber(low.int:sub(i, i)), tonumber(high.int:sub(i, i))
  if from > to then return self.none end
  return b:cat(before, b:any(
    self:other(from + 1, to - 1, n - i),
    b:cat(self:digits(from, from), self:suffix(low, true, i + 1)),
    b:cat(self:digits(to, to), self:suffix(high, false, i + 1))))
end

--- What may follow the whole part that two bounds share.
function Numbers:points_between(low, high)
  local b = self.b
  if decimal.compare(low, high) > 0 then return self.none end
  local whole = low.frac == "" and low.closed and (high.frac ~= "" or high.closed)
  if low.frac == "" and high.frac == "" then return whole and self.zeros or self.none end
  local t = b:cat(self.point, self:fraction_between(low, high, 1))
  return whole and b:any(self.empty, t) or t
end

local function bound(d, closed)
  return { negative = d.negative, int = d.int, frac = d.frac, closed = closed }
end

local ZERO = { negative = false, int = "0", frac = "", closed = true }
local ONE = { negative = false, int = "1", frac = "", closed = true }

--- Numbers from low to high, each nil or a decimal with `closed`: the bound itself belongs to it.
function Numbers:signed(low, high)
  local b, list = self.b, {}
  if not (low and high and decimal.compare(low, high) > 0) then
    if not high or not high.negative then -- from zero up
      local from = low and not low.negative and low or ZERO
      list[1] = self:between(from, high)
    end
    if not low or low.negative or decimal.is_zero(low) and low.closed then -- from zero down
      local to = low and bound(decimal.negated(low), low.closed)
      local from = high and (high.negative or decimal.is_zero(high)) and
        bound(decimal.negated(high), high.closed) or ZERO
      if self.is_said and decimal.is_zero(from) then from = ONE end -- not -0
      list[#list + 1] = b:cat(self.minus, self:between(from, to))
    end
  end
  return b:any(list)
end

--- The same of whole numbers.
function Numbers:whole_range(low, high)
  low = low and bound(decimal.ceiling(low, low.closed), true)
  high = high and bound(decimal.negated(decimal.ceiling(decimal.negated(high), high.closed)), true)
  return self.all:signed(low, high), self.said:signed(low, high)
end

local function key_of(d) return d and decimal.text(d) .. (d.closed and "]" or ")") or "" end

--- The numbers of a range: all their spellings, and those that are offered. With `whole` only whole
--- ones, which are never offered as 1.0.
function Numbers:range(low, high, whole)
  local key = ("%s,%s%s"):format(key_of(low), key_of(high), whole and " whole" or "")
  local made = self.ranges[key]
  if not made then
    made = whole and { self:whole_range(low, high) } or { self:signed(low, high) }
    self.ranges[key] = made
  end
  return made[1], made[2] or made[1]
end

--- All spellings of one number, and the usual one.
function Numbers:exactly(d)
  local b = self.b
  local size = b:cat(b:text(d.int), d.frac == "" and self.zeros or
    b:cat(self.point, b:text(d.frac), b:times(self.zero, 0, self.frac - #d.frac)))
  local sign = decimal.is_zero(d) and self.sign or d.negative and self.minus or self.empty
  return b:cat(sign, size), b:text(decimal.text(d))
end

-- ---- divisors -----------------------------------------------------------------------------------

local function gcd(x, y)
  while y ~= 0 do x, y = y, x % y end
  return x
end

--- The inverse of 10 modulo m, which has no common factor with it.
local function inverse_of_ten(m)
  for x = 0, m - 1 do
    if 10 * x % m == 1 % m then return x end
  end
end

--- Digits that leave `rest` when divided by m, which 2 and 5 do not divide. A remainder continues a
--- number that precedes the digits, so there is one for each count of digits.
function Numbers:coprime_leaving(m, rest)
  local b, list, tenth = self.b, {}, inverse_of_ten(m)
  if rest == 0 then return b:remainder(m, 0) end
  local before = (m - rest) % m
  self.spend(self.int * STEP)
  for k = 1, self.int do
    before = before * tenth % m
    list[k] = b:both(b:times(self.digit, k, k), b:remainder(m, before))
  end
  return b:any(list)
end

--- Whole numbers that leave `rest` when divided by m, at most PARTS. What 2 and 5 divide is seen
--- from the last two digits.
function Numbers:leaving(m, rest)
  local b, ends, ten = self.b, {}, gcd(m, PARTS)
  if m == 1 then return self.whole end
  local term = self:coprime_leaving(m // ten, rest % (m // ten))
  for n = rest % ten, PARTS - 1, ten do
    ends[#ends + 1] = b:cat(b:times(self.digit, 0), b:text(("%02d"):format(n)))
    if n < 10 then ends[#ends + 1] = b:text(tostring(n)) end
  end
  return b:both(self.whole, term, b:any(ends))
end

--- Whole numbers that m divides. A remainder counts its digits itself: with & as many states as m
--- would be searched for those that may follow.
function Numbers:divided_by(m)
  local b, list = self.b, { self.zero }
  for digit = 1, 9 do
    list[#list + 1] = b:cat(self:digits(digit, digit), b:remainder(m, digit % m, self.int - 1))
  end
  return b:any(list)
end

--- Multiples of a number, as `multiple` has them.
function Numbers:multiples_of(d, whole)
  local b, places = self.b, #d.frac
  local factor = (d.int .. d.frac):gsub("^0+", "")
  if factor == "1" and places > 0 and not whole then -- 0.01: two digits, then zeros
    return b:cat(self.sign, self.whole, b:any(self.zeros, b:cat(self.point,
      b:times(self.digit, 1, places), b:times(self.zero, 0, self.frac - places))))
  end
  if #factor > 9 or places > 9 then return nil, "has more than 9 digits" end
  factor = math.tointeger(tonumber(factor))
  local scale = math.tointeger(10 ^ places)
  local common = gcd(factor, scale)
  local step = factor // common -- a whole number is a multiple if this divides it
  if step > DIVISOR then
    return nil, ("would need remainders of %d, at most %d"):format(step, DIVISOR)
  end
  if places == 0 or whole then
    local size = self:divided_by(step)
    return b:cat(self.sign, size, self.zeros), whole and b:cat(self.sign, size) or nil
  end
  if scale > PARTS or step > PARTS or gcd(step // gcd(step, PARTS), 10) > 1 then
    return nil, "has too many digits"
  end
  return b:cat(self.sign, self:parts(scale, common, step, places))
end

--- Multiples of a number: all spellings, and those that are offered; or nil and why not. With
--- `whole` only multiples that are whole.
function Numbers:multiple(d, whole)
  local key = decimal.text(d) .. (whole and " whole" or "")
  local made = self.multiples[key] or table.pack(self:multiples_of(d, whole))
  self.multiples[key] = made
  return table.unpack(made, 1, 2)
end

--- For every remainder of whole numbers the fractions that make them multiples.
function Numbers:parts(scale, common, step, places)
  local b, after, list, unit = self.b, {}, {}, scale // common % step
  for part = 0, scale - 1, common do
    local rest = 0 -- whole * scale + part is a multiple of step * common
    while step > 1 and (rest * unit + part // common) % step ~= 0 do rest = rest + 1 end
    local digits = ("%0" .. places .. "d"):format(part):gsub("0+$", "")
    after[rest] = after[rest] or {}
    table.insert(after[rest], digits == "" and self.zeros or
      b:cat(self.point, b:text(digits), b:times(self.zero, 0, self.frac - #digits)))
  end
  for rest, fractions in pairs(after) do
    list[#list + 1] = b:cat(self:leaving(step, rest), b:any(fractions))
  end
  return b:any(list)
end

return number
