-- Every operation of tensors in every kind of number, against Lua's own arithmetic.
local perigee = require "perigee"
local test = require("harness").test
local tensor = perigee.tensor

local VALUES = { -3.25, -2.5, -1.0, -0.25, 0.0, 0.25, 0.5, 1.0, 1.5, 2.5, 3.0 }
local POSITIVE = { 0.25, 0.5, 1.0, 2.0, 6.25 }

local function tanh(x) return 1 - 2 / (math.exp(2 * x) + 1) end

--- The error function as a series.
local function erf(x)
  local sum, term = x, x
  for n = 1, 60 do
    term = -term * x * x / n
    sum = sum + term / (2 * n + 1)
  end
  return 2 / math.sqrt(math.pi) * sum
end

local function sign(x) return x > 0 and 1 or x < 0 and -1 or 0 end
local function sigmoid(x) return 1 / (1 + math.exp(-x)) end

local function round(x) -- half to even
  local low = math.floor(x)
  local rest = x - low
  return low + ((rest > 0.5 or rest == 0.5 and low % 2 == 1) and 1 or 0)
end

-- Of floats.
local UNARY = {
  neg = function(x) return -x end, abs = math.abs, sign = sign,
  square = function(x) return x * x end, relu = function(x) return math.max(x, 0) end,
  floor = math.floor, ceil = math.ceil, round = round, exp = math.exp, sin = math.sin,
  cos = math.cos, tanh = tanh, erf = erf, sigmoid = sigmoid,
  silu = function(x) return x * sigmoid(x) end,
  gelu = function(x) return 0.5 * x * (1 + erf(x / math.sqrt(2))) end,
  gelu_tanh = function(x)
    return 0.5 * x * (1 + tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ^ 3)))
  end,
  logical_not = function(x) return x == 0 and 1 or 0 end, isnan = function() return 0 end,
  isinf = function() return 0 end, isfinite = function() return 1 end,
}
local OF_POSITIVE = { log = math.log, sqrt = math.sqrt,
  rsqrt = function(x) return 1 / math.sqrt(x) end }

local function truth(v) return v == true and 1 or v == false and 0 or v end

local function compare(t, got, want, tolerance, what)
  for i, v in ipairs(got:totable()) do
    t.near(truth(v), want[i], tolerance * math.max(1, math.abs(want[i])), what .. " " .. i)
  end
end

test("unary operations of floats", function(t)
  for dtype, tolerance in pairs { f32 = 3e-6, f64 = 1e-12 } do
    for _, case in ipairs { { UNARY, VALUES }, { OF_POSITIVE, POSITIVE } } do
      local x = tensor(case[2]):to(dtype)
      for name, f in pairs(case[1]) do
        local want = {}
        for i, v in ipairs(case[2]) do want[i] = f(v) end
        compare(t, x[name](x), want, tolerance, name .. " " .. dtype)
      end
    end
    local odd = tensor { 0 / 0, 1 / 0, -1 / 0, 1.0 }:to(dtype)
    for name, want in pairs { isnan = { 1, 0, 0, 0 }, isinf = { 0, 1, 1, 0 },
      isfinite = { 0, 0, 0, 1 } } do
      compare(t, odd[name](odd), want, 0, name .. " " .. dtype)
    end
    t.ok(odd:sign():totable()[1] ~= odd:sign():totable()[1], "the sign of NaN")
  end
end)

test("unary operations of integers", function(t)
  local values = { -5, -1, 0, 1, 2, 100 }
  for _, dtype in ipairs { "i8", "i16", "i32", "i64" } do
    local x = tensor(values):to(dtype)
    for name, f in pairs { neg = UNARY.neg, abs = math.abs, sign = sign, relu = UNARY.relu,
      floor = math.floor, ceil = math.ceil, round = round, logical_not = UNARY.logical_not,
      isnan = UNARY.isnan, isinf = UNARY.isinf, isfinite = UNARY.isfinite } do
      local want = {}
      for i, v in ipairs(values) do want[i] = f(v) end
      compare(t, x[name](x), want, 0, name .. " " .. dtype)
    end
  end
  local x = tensor { 0, 1, 2, 15 }:to "u8"
  for name, want in pairs { abs = { 0, 1, 2, 15 }, sign = { 0, 1, 1, 1 }, square = { 0, 1, 4, 225 },
    relu = { 0, 1, 2, 15 }, logical_not = { 1, 0, 0, 0 }, isfinite = { 1, 1, 1, 1 } } do
    compare(t, x[name](x), want, 0, name .. " u8")
  end
end)

local A = { -7, -7, 7, 7, 6, 0, 2, 3, 0, 4 }
local B = { 2, -2, 2, -2, 3, 5, 2, 3, 1, 4 }

local function bool(v) return v and 1 or 0 end
local BINARY = {
  add = function(x, y) return x + y end, sub = function(x, y) return x - y end,
  mul = function(x, y) return x * y end, idiv = function(x, y) return x // y end,
  mod = function(x, y) return x % y end, minimum = math.min, maximum = math.max,
  eq = function(x, y) return bool(x == y) end, ne = function(x, y) return bool(x ~= y) end,
  lt = function(x, y) return bool(x < y) end, le = function(x, y) return bool(x <= y) end,
  gt = function(x, y) return bool(x > y) end, ge = function(x, y) return bool(x >= y) end,
  logical_and = function(x, y) return bool(x ~= 0 and y ~= 0) end,
  logical_or = function(x, y) return bool(x ~= 0 or y ~= 0) end,
}

test("binary operations of every kind", function(t)
  for _, dtype in ipairs { "f32", "f64", "i8", "i16", "i32", "i64", "u8" } do
    local a, b = {}, {}
    for i = 1, #A do
      local abs = dtype == "u8"
      a[i], b[i] = abs and math.abs(A[i]) + 5 or A[i], abs and math.abs(B[i]) or B[i]
    end
    local x, y = tensor(a):to(dtype), tensor(b):to(dtype)
    for name, f in pairs(BINARY) do
      local want = {}
      for i = 1, #a do want[i] = f(a[i], b[i]) end
      compare(t, x[name](x, y), want, 0, name .. " " .. dtype)
    end
  end
  for _, dtype in ipairs { "f32", "f64" } do
    local x, y = tensor { 7.5, -7.5, 7.5, 2.0 }:to(dtype), tensor { 2.0, 2.0, -2.0, 0.5 }:to(dtype)
    compare(t, x:div(y), { 3.75, -3.75, -3.75, 4.0 }, 0, "div " .. dtype)
    compare(t, x:mod(y), { 1.5, 0.5, -0.5, 0.0 }, 0, "mod " .. dtype)
    compare(t, x:idiv(y), { 3, -4, -4, 4 }, 0, "idiv " .. dtype)
    compare(t, y:pow(tensor { 3.0, -1.0, 2.0, 2.0 }:to(dtype)), { 8, 0.5, 4, 0.25 }, 1e-6,
      "pow " .. dtype)
  end
  local two = tensor { 2, 3, -2, 1, 0 }:to "i32"
  compare(t, two:pow(tensor { 10, 4, 3, 0, 0 }:to "i32"), { 1024, 81, -8, 1, 1 }, 0, "pow i32")
end)

test("what integers cannot compute is an error", function(t)
  local x, zero = tensor { 1, 2 }:to "i32", tensor { 1, 0 }:to "i32"
  for _, name in ipairs { "idiv", "mod" } do
    t.raises(function() assert(x[name](x, zero)) end, "zero")
  end
  t.raises(function() assert(x:pow(tensor { 1, -1 }:to "i32")) end, "negative")
end)
