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

--- What { from, to, step } of a list picks, counted in Lua; absent ends are those of the direction.
local function picked(list, from, to, step)
  local n, out = #list, {}
  step = step or 1
  from, to = from or (step > 0 and 1 or -1), to or (step > 0 and -1 or 1)
  if from < 0 then from = from + n + 1 end
  if to < 0 then to = to + n + 1 end
  if step > 0 then from, to = math.max(from, 1), math.min(to, n) end
  if step < 0 then from, to = math.min(from, n), math.max(to, 1) end
  for i = from, to, step do out[#out + 1] = list[i] end
  return out
end

test("parts of an axis", function(t)
  t.unforced() -- thousands of small tensors
  for n = 0, 4 do
    local list = {}
    for i = 1, n do list[i] = 10 * i end
    local x = tensor(list, { dtype = "i64" })
    for from = -6, 6 do
      for to = -6, 6 do
        for _, step in ipairs { -3, -1, 1, 2 } do
          t.eq(x:slice({ { from, to, step } }):totable(), picked(list, from, to, step),
            ("%d: %d %d %d"):format(n, from, to, step))
        end
        t.eq(x:rows(from, to):totable(), picked(list, from, to, 1))
      end
      t.eq(x:rows(from):totable(), picked(list, from))
      t.eq(x:slice({ { from } }):totable(), picked(list, from))
      t.eq(x:slice({ { nil, from, -1 } }):totable(), picked(list, nil, from, -1))
      local at = from < 0 and from + n + 1 or from
      t.eq(x[from], list[at])
      if list[at] then
        t.eq({ x:select(1, from):item(), x:slice({ from }):item() }, { list[at], list[at] })
      else
        t.raises(function() x:select(1, from) end,
          ("position %d is out of range: axis 1 has %d"):format(from, n))
        t.raises(function() x[from] = 1 end, "is out of range")
      end
    end
  end
end)

test("axes, positions and parts that are refused", function(t)
  local a = tensor.range(6):view { 2, 3 }
  local one = tensor(5)
  for call, why in pairs {
    [function() a:sum(3) end] = "there is no axis 3, the tensor has rank 2",
    [function() a:sum(-3) end] = "there is no axis -3", [function() a:sum(0) end] = "no axis 0",
    [function() a:swap(1, 3) end] = "no axis 3", [function() a:swap(1) end] = "number expected",
    [function() a:unsqueeze(4) end] = "there is no axis 4, the tensor has rank 3",
    [function() a:unsqueeze() end] = "number expected", [function() a:select() end] = "number",
    [function() a:slice { "x" } end] = "a part must be a position, {from, to, step} or true",
    [function() a:slice { false } end] = "a part must be a position",
    [function() a:slice { 1.5 } end] = "a part must be a position",
    [function() a:slice { { 1, "x" } } end] = "a part must be {from, to, step}, all integers",
    [function() a:slice { { 1.5 } } end] = "all integers",
    [function() a:slice { { 1, 2, math.mininteger } } end] = "the step must not be 0",
    [function() a:slice { true, true, true, 1 } end] = "more parts than the tensor has axes (2)",
    [function() one:rows(1) end] = "rows: a tensor of rank 0 has no rows",
    [function() return #one end] = "a tensor of rank 0 has no first dimension",
    [function() return one[1] end] = "a tensor of rank 0 has no positions",
    [function() one[1] = 1 end] = "a tensor of rank 0 has no positions",
    [function() a[1.5] = 1 end] = "a tensor is indexed by integers, got number",
    [function() a[1] = "x" end] = "number expected, got string",
    [function() a:item() end] = "item: the tensor must have one element, its shape is [2, 3]",
    [function() a:clamp() end] = "clamp: low or high is required",
    [function() a:permute { 1, 3 } end] = "there is no axis 3",
    [function() tensor.zeros { 1, "2" } end] = "dimension 2: integer expected, got string",
    [function() tensor.zeros { 2, nme = 1 } end] = "unknown option 'nme'",
    [function() tensor.zeros { 2, [5] = 1 } end] = "option names must be strings, got number",
    [function() tensor.concat({ a, a }, 3) end] = "there is no axis 3, the tensor has rank 2",
    [function() tensor.stack({ a, a }, 4) end] = "there is no axis 4, the tensor has rank 3",
    [function() tensor.range(0, 1 << 60, { step = 0.5 }) end] = "more than 2^53 numbers",
    [function() tensor.range(1, 0 / 0) end] = "gives NaN",
    [function() tensor.from_bytes("abcd") end] = "table expected",
    [function() a:to "f3" end] = "unknown dtype 'f3'", [function() a:histogram(0) end] = "1 and",
    [function() a:write(5) end] = "perigee.Tensor expected",
  } do
    t.raises(call, why)
  end
  t.eq(a:slice({ true, true, true }):totable(), a:totable())
  t.eq({ a[1.0]:totable(), a[1.5], a.x, a["1"] }, { { 1, 2, 3 } })
  t.eq({ tensor.ones({ 1, 1 }):item(), one:item(), tensor(true):item() }, { 1.0, 5, true })
end)

test("a scalar is ordered like a list of one", function(t)
  local a = tensor { 3 }:reshape {}
  local values, positions = a:topk(1)
  t.eq({ a:sort():item(), a:argsort():item(), values:item(), positions:item() }, { 3, 1, 3, 1 })
end)

test("defaults of axes and options", function(t)
  local a = tensor { { 3.0, 1.0 }, { 4.0, 5.0 } }
  for name, axis in pairs { softmax = 2, log_softmax = 2, cumsum = 2, sort = 2, argsort = 2 } do
    t.eq(a[name](a):totable(), a[name](a, axis):totable(), name)
    t.ok(perigee.json.encode(a[name](a, 1):totable()) ~= perigee.json.encode(a[name](a):totable()))
  end
  t.eq(a:sort(1, { descending = false }):totable(), { { 3.0, 1.0 }, { 4.0, 5.0 } })
  t.eq(a:take({ 2 }):totable(), a:take({ 2 }, 1):totable())
  t.eq({ (a:topk(1)):totable(), (a:topk(1, { axis = 1 })):totable(),
    (a:topk(1, { smallest = true })):totable() },
    { { { 3.0 }, { 5.0 } }, { { 4.0, 5.0 } }, { { 1.0 }, { 4.0 } } })
  t.eq({ tensor.concat({ a, a }).shape, tensor.stack({ a, a }).shape }, { { 4, 2 }, { 2, 2, 2 } })
  t.eq({ a:var(), a:var(nil, { ddof = 0 }), a:var(nil, { ddof = 1 }) == a:var() },
    { 2.1875, 2.1875, false })
  t.eq(#a:histogram().counts, 16)
  local none = tensor { 0 / 0 }
  t.eq({ none:histogram(2).low, none:histogram(2).high }, { 0.0, 1.0 })
  t.eq({ tensor({ 1.0 }):close_to(tensor { 1.0 + 1e-5 }) }, { true, 1.0013580322265625e-05 })
  t.eq({ (tensor({ 1.0 }):close_to(tensor { 1.00003 })),
    (tensor({ 0.0 }):close_to(tensor { 2e-6 })), (tensor({ 0.0 }):close_to(tensor { 9e-7 })) },
    { false, false, true })
  local u = tensor.uniform { 1000 }
  t.ok(u:min() >= 0 and u:max() < 1 and u:max() > 0.9 and u:min() < 0.1)
  local n = tensor.normal { 1000 }
  t.ok(math.abs(n:mean()) < 0.2 and math.abs(n:std() - 1) < 0.2)
  t.ok(u:equal(tensor.uniform { 1000, seed = 0, low = 0, high = 1 }))
  t.eq({ tensor.from_bytes("\0\0\128\63", {}):totable(), tensor.from_bytes("ab", { dtype = "u8" })
    :totable() }, { { 1.0 }, { 97, 98 } })
end)

test("ranges of numbers", function(t)
  t.unforced() -- hundreds of small tensors
  for from = -3, 3 do
    for to = -3, 3 do
      for _, step in ipairs { -2, -1, 1, 2, 0.5, -0.5 } do
        local want = {}
        for x = from, to, step do want[#want + 1] = x end
        t.eq(tensor.range(from, to, { step = step }):totable(), want,
          ("%d %d %s"):format(from, to, step))
      end
    end
  end
  t.eq({ tensor.range(0).size, tensor.range(2):totable(), tensor.range(1.5):totable() },
    { 0, { 1, 2 }, { 1 } })
  t.eq({ tensor.range(1, 2).dtype, tensor.range(1, 2.5).dtype, tensor.range(1.0, 2).dtype,
    tensor.range(1, 2, { step = 0.5 }).dtype, tensor.range(1, 2, { dtype = "u8" }).dtype },
    { "i64", "i64", "f32", "f32", "u8" })
end)

test("what is shared and what is copied", function(t)
  local a = tensor { { 1, 2 }, { 3, 4 } }
  local function bytes() return (select(2, perigee.live())) end
  collectgarbage()
  collectgarbage "stop"
  local before = bytes()
  for name, args in pairs { rows = { 1 }, slice = { { 1 } }, select = { 1, 1 }, view = { { 4 } },
    reshape = { { 4 } }, flatten = {}, t = {}, swap = { 1, 2 }, permute = { { 2, 1 } },
    expand = { { 2, 2, 2 } }, squeeze = {}, unsqueeze = { 1 }, contiguous = {} } do
    local x <close> = a[name](a, table.unpack(args))
    t.ok(x.size > 0)
    t.eq(bytes(), before, name)
  end
  for name, size in pairs { copy = 32, exp = 16, isnan = 4 } do
    local x <close> = a[name](a)
    t.eq({ x.nbytes, bytes() - before }, { size, size }, name)
  end
  local turned <close> = a:t()
  local flat <close> = turned:flatten()
  t.eq({ bytes() - before, flat:totable() }, { 32, { 1, 3, 2, 4 } })
  collectgarbage "restart"
  local v = tensor { 1, 2 }
  t.eq({ v:t():totable(), a:squeeze().shape, tensor.zeros({ 1, 2, 1 }):squeeze(1).shape,
    tensor.zeros({ 1, 2, 1 }):squeeze(-1).shape, tensor.zeros({ 1, 2, 1 }):squeeze().shape },
    { { 1, 2 }, { 2, 2 }, { 2, 1 }, { 1, 2 }, { 2 } })
  t.ok(rawequal(a:fill(0), a) and rawequal(a:write(v), a))
  t.eq(a:totable(), { { 1, 2 }, { 1, 2 } })
end)
