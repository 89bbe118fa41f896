-- perigee.tensor as scripts see it; the arithmetic itself is tested in C.
local perigee = require "perigee"
local plot = require "ui.plot"
local uv = require "luv"
local test = require("harness").test

local tensor = perigee.tensor

test("made of tables, numbers and tensors", function(t)
  local a = tensor { { 1, 2 }, { 3, 4 } }
  t.eq({ a.dtype, a.shape, a.strides, a.rank, a.size, a.nbytes, #a },
    { "i64", { 2, 2 }, { 2, 1 }, 2, 4, 32, 2 })
  t.eq(a:totable(), { { 1, 2 }, { 3, 4 } })
  t.eq(tensor({ 1, 2.5 }).dtype, "f32")
  t.eq(tensor({ true, false }):totable(), { true, false })
  t.eq(tensor({ 1.5, 300 }, { dtype = "u8" }):totable(), { 1, 255 })
  t.eq(tensor(7):item(), 7)
  t.eq(tensor(a, { dtype = "f16" }).dtype, "f16")
  t.eq(tensor({}).shape, { 0 })
  t.raises(function() tensor { { 1, 2 }, { 3 } } end,
    "axis 2 has 1 elements, but the first one has 2")
  t.raises(function() tensor { 1, "2" } end, "element 2 of shape [2] is a string")
  t.raises(function() tensor { { 1 }, 2 } end, "is a number, expected a table")
  t.raises(function() tensor "x" end, "table, number or tensor expected")
  t.raises(function() tensor({ 1 }, { dtyp = "f16" }) end, "did you mean 'dtype'?")
  t.raises(function() tensor({ 1 }, { dtype = "f17" }) end, "unknown dtype 'f17'")
  local deep = { 1 }
  for _ = 1, 10 do deep = { deep } end
  t.raises(function() tensor(deep) end, "nested more than 8 deep")
end)

test("made by recipe", function(t)
  t.eq(tensor.zeros({ 2, 1, dtype = "f16" }):totable(), { { 0.0 }, { 0.0 } })
  t.eq(tensor.ones({ 2, dtype = "i8" }):totable(), { 1, 1 })
  t.eq(tensor.full({ 2 }, 1.5):totable(), { 1.5, 1.5 })
  t.eq(tensor.eye(2, { dtype = "i64" }):totable(), { { 1, 0 }, { 0, 1 } })
  t.eq(tensor.range(3):totable(), { 1, 2, 3 })
  t.eq(tensor.range(0, 1, { step = 0.25 }):totable(), { 0.0, 0.25, 0.5, 0.75, 1.0 })
  t.eq(tensor.range(3, 1, { step = -1 }):totable(), { 3, 2, 1 })
  t.eq(tensor.range(3, 1).size, 0)
  t.raises(function() tensor.range(1, 2, { step = 0 }) end, "'step' must not be 0")
  t.ok(tensor.normal({ 9, seed = 1 }):equal(tensor.normal { 3, 3, seed = 1 }:flatten()))
  t.eq(tensor.uniform({ 100, low = 5, high = 6, dtype = "i32" }):max(), 5)
  t.raises(function() tensor.zeros { 2, 0.5 } end, "dimension 2: integer expected, got a fraction")
  t.raises(function() tensor.zeros { 1 << 50 } end, "this machine has")
  t.raises(function() tensor.zeros { -1 } end, "negative")
  t.ok(tensor.is(tensor(1)) and not tensor.is {})
end)

test("bytes in and out", function(t)
  local a = tensor.from_bytes(("<fff"):pack(1, -2, 0.5), { dtype = "f32", shape = { 3, 1 } })
  t.eq(a:totable(), { { 1.0 }, { -2.0 }, { 0.5 } })
  t.eq(a:bytes(), ("<fff"):pack(1, -2, 0.5))
  t.eq(tensor({ { 1, 2 }, { 3, 4 } }, { dtype = "u8" }):t():bytes(), "\1\3\2\4")
  t.raises(function() tensor.from_bytes("abc", { shape = { 2 }, dtype = "u16" }) end,
    "needs 4 bytes, got 3")
end)

test("indexing", function(t)
  local a = tensor { { 1, 2, 3 }, { 4, 5, 6 } }
  t.eq(a[1]:totable(), { 1, 2, 3 })
  t.eq(a[-1][-1], 6)
  t.eq(a[3], nil)
  t.eq(a[0], nil)
  t.eq(a.nonsense, nil)
  a[1] = 0
  a[2][1] = 40
  a[2] = tensor { 7 }
  t.eq(a:totable(), { { 0, 0, 0 }, { 7, 7, 7 } })
  t.raises(function() a[3] = 1 end, "position 3 is out of range: axis 1 has 2")
  t.raises(function() a.x = 1 end, "no field 'x'")
  t.raises(function() a[1] = tensor { 1, 2 } end, "[2] cannot become [3]")
  local sum = 0
  for i, x in ipairs(tensor { 1, 2, 3 }) do sum = sum + i * x end
  t.eq(sum, 14)
end)

test("views", function(t)
  local a = tensor.range(12):view { 3, 4 }
  t.eq(a:rows(2):totable(), { { 5, 6, 7, 8 }, { 9, 10, 11, 12 } })
  t.eq(a:rows(-1, 99).shape, { 1, 4 })
  t.eq(a:rows(3, 2).shape, { 0, 4 })
  t.eq(a:slice({ { 1, 2 }, { 4, 1, -2 } }):totable(), { { 4, 2 }, { 8, 6 } })
  t.eq(a:slice({ true, 2 }):totable(), { 2, 6, 10 })
  t.eq(a:slice({ -1, {} }):totable(), { 9, 10, 11, 12 })
  t.eq(a:select(2, -1):totable(), { 4, 8, 12 })
  t.eq(a:t().shape, { 4, 3 })
  t.eq(a:permute({ -1, 1 }).strides, { 1, 4 })
  t.eq(a:swap(1, 2)[2]:totable(), { 2, 6, 10 })
  t.eq(a:reshape({ 2, -1 }).shape, { 2, 6 })
  t.eq(a:t():flatten()[2], 5)
  t.eq(a:unsqueeze(-1).shape, { 3, 4, 1 })
  t.eq(a:unsqueeze(1):squeeze().shape, { 3, 4 })
  t.eq(a[1]:expand({ 2, 4 }):totable(), { { 1, 2, 3, 4 }, { 1, 2, 3, 4 } })
  t.eq({ a:t().is_contiguous, a:t():contiguous().is_contiguous }, { false, true })
  a:rows(1, 1):fill(0)
  t.eq(a[1]:totable(), { 0, 0, 0, 0 })
  t.raises(function() a:t():view { 12 } end, "without a copy")
  t.raises(function() a:view { 5, -1 } end, "[3, 4] (12 elements) cannot become [5, -1]")
  t.raises(function() a:slice { 1, 2, 3 } end, "more parts than the")
  t.raises(function() a:slice { { 1, 2, 0 } } end, "step must not be 0")
  t.raises(function() a:select(3, 1) end, "there is no axis 3, the tensor has rank 2")
  t.raises(function() a:permute { 1 } end, "1 axes given, the tensor has rank 2")
  t.raises(function() a:squeeze(1) end, "axis 1 must be 1, it is 3")
  t.raises(function() a:expand({ 2, 3, 4 }):fill(1) end, "elements of axis 1 share memory")
end)

test("arithmetic", function(t)
  local a = tensor { { 1, 2 }, { 3, 4 } }
  t.eq((a + 1):totable(), { { 2, 3 }, { 4, 5 } })
  t.eq((10 - a):totable(), { { 9, 8 }, { 7, 6 } })
  t.eq((a * tensor { 1, 10 }):totable(), { { 1, 20 }, { 3, 40 } })
  t.eq((a / 2):totable(), { { 0.5, 1.0 }, { 1.5, 2.0 } })
  t.eq((-a // 2):totable(), { { -1, -1 }, { -2, -2 } })
  t.eq((a % 2):totable(), { { 1, 0 }, { 1, 0 } })
  t.eq((2 ^ a):totable(), { { 2, 4 }, { 8, 16 } })
  t.eq((a + 0.5).dtype, "f32")
  t.eq((a:to "f16" + 0.5).dtype, "f16")
  t.eq(a:gt(2):where(a, -1):totable(), { { -1, -1 }, { 3, 4 } })
  t.eq(a:clamp(2, 3):totable(), { { 2, 2 }, { 3, 3 } })
  t.eq(a:clamp(nil, 3):max(), 3)
  t.ok(tensor({ 0.0, 1.0 }):exp():log():close_to(tensor { 0.0, 1.0 }))
  t.eq(a:matmul(a):totable(), { { 7, 10 }, { 15, 22 } })
  t.eq(a == a, true)
  t.eq(a == a:copy(), false)
  t.eq({ a:equal(a:copy()), a:equal(a + 1) }, { true, false })
  t.eq((a / 3):close_to(a / 3 + 1e-3, { atol = 1e-2 }), true)
  t.raises(function() return tensor.zeros { 2, 3 } + tensor.zeros { 4, 3 } end,
    "add: shapes [2, 3] and [4, 3] do not broadcast (axis 1: 2 and 4)")
  t.raises(function() return a // 0 end, "integer division by zero")
  t.raises(function() return a + {} end, "tensor or number expected, got table")
  t.raises(function() return a + "1" end, "tensor or number expected, got string")
  t.raises(function() a:matmul(tensor { 1, 2, 3 }) end, "do not match (2 columns, 3 rows)")
end)

test("reductions give numbers, along an axis tensors", function(t)
  local a = tensor { { 1, 5, 3 }, { 4, 2, 6 } }
  t.eq({ a:sum(), a:mean(), a:max(), a:argmax(), a:any(), a:prod() }, { 21, 3.5, 6, 6, true, 720 })
  t.eq(a:sum(1):totable(), { 5, 7, 9 })
  t.eq(a:sum(-1, { keep = true }):totable(), { { 9 }, { 12 } })
  t.eq(a:argmin(2):totable(), { 1, 2 })
  t.eq(a:std(1):totable(), { 1.5, 1.5, 1.5 })
  t.eq(a:var(1, { ddof = 1 }):totable(), { 4.5, 4.5, 4.5 })
  t.eq(a:sum(nil, { keep = true }).shape, { 1, 1 })
  t.raises(function() a:sum(3) end, "there is no axis 3, the tensor has rank 2")
  t.raises(function() a:sum(0) end, "axis 0")
  t.raises(function() a:sum(1, { keepdims = true }) end, "did you mean 'keep'?")
  t.raises(function() tensor.zeros({ 0 }):max() end, "the reduced axis of shape [0] is empty")
end)

test("order", function(t)
  local a = tensor { { 3, 1, 2 }, { 5, 5, 4 } }
  local values, positions = a:topk(2)
  t.eq(values:totable(), { { 3, 2 }, { 5, 5 } })
  t.eq(positions:totable(), { { 1, 3 }, { 1, 2 } })
  t.eq({ (select(2, a:topk(1, { axis = 1, smallest = true }))):totable() }, { { { 1, 1, 1 } } })
  t.eq(a:sort():totable(), { { 1, 2, 3 }, { 4, 5, 5 } })
  t.eq(a:argsort(2, { descending = true }):totable(), { { 1, 3, 2 }, { 1, 2, 3 } })
  t.eq(a:take({ 2, 1, -1 }):totable(), { { 5, 5, 4 }, { 3, 1, 2 }, { 5, 5, 4 } })
  t.eq(a:take(tensor { 3 }, 2):totable(), { { 2 }, { 4 } })
  t.eq(a:take({}).shape, { 0, 3 })
  t.eq(a:cumsum(1):totable(), { { 3, 1, 2 }, { 8, 6, 6 } })
  t.near(a:softmax()[1]:sum(), 1, 1e-6)
  t.eq(tensor.concat({ a, a[1]:unsqueeze(1) }).shape, { 3, 3 })
  t.eq(tensor.stack({ a, a }, 3).shape, { 2, 3, 2 })
  t.raises(function() a:take { 0 } end, "position 0 is out of range: axis 1 has 2")
  t.raises(function() a:topk(4) end, "topk: k is 4, but axis 2 has 3 elements")
  t.raises(function() tensor.concat { a, 1 } end, "part 2: open tensor expected, got number")
  t.raises(function() tensor.concat {} end, "list of tensors expected")
end)

test("statistics", function(t)
  local a = tensor { 1, 2, 3, 0 / 0, 1 / 0, 0.0 }
  local s = a:stats()
  t.eq({ s.count, s.nan, s.inf, s.zero, s.min, s.max, s.mean }, { 6, 1, 1, 1, 0.0, 3.0, 1.5 })
  t.eq(a:histogram(3), { counts = { 1, 1, 2 }, low = 0.0, high = 3.0 })
  t.eq(a:histogram(2, { low = 0, high = 2 }).counts, { 1, 2 })
  t.raises(function() a:histogram(0) end, "bins")
end)

test("closing", function(t)
  local a = tensor.zeros { 4 }
  local row = a:rows(1, 2)
  a:close()
  a:close()
  t.eq(tostring(a), "tensor (closed)")
  t.raises(function() return a.shape end, "closed")
  t.raises(function() return a + 1 end, "closed")
  t.raises(function() return 1 + a end, "closed")
  t.raises(function() return a[1] end, "closed")
  t.raises(function() return #a end, "closed")
  t.raises(function() return row:matmul(a) end, "closed")
  t.eq(row:totable(), { 0.0, 0.0 }) -- the view keeps the bytes alive
  do
    local b <close> = tensor.zeros { 2 }
    row = b
  end
  t.raises(function() return row:sum() end, "closed")
end)

test("a finalizer that closes an argument does not crash", function(t)
  for _ = 1, 20 do
    local a = tensor.zeros { 8 }
    setmetatable({}, { __gc = function() a:close() end })
    for _ = 1, 200 do
      local ok, err = pcall(function() return (a + 1):sum() + #a:totable() end)
      if not ok then
        t.ok(tostring(err):find "closed", err)
        break
      end
    end
    a:close()
  end
end)

-- Methods that allocate before they use their tensor, and what they take.
local ALLOCATE = { rows = { 1 }, slice = { { 1 } }, select = { 1, 1 }, view = { { 4 } },
  reshape = { { 4 } }, flatten = {}, t = {}, swap = { 1, 2 }, permute = { { 2, 1 } },
  expand = { { 2, 2, 2 } }, squeeze = {}, unsqueeze = { 1 }, contiguous = {}, copy = {},
  to = { "f64" }, take = { { 1 } }, softmax = {}, log_softmax = {}, cumsum = {}, sort = {},
  argsort = {}, topk = { 1 }, sum = {}, std = { 1 }, histogram = { 4 }, exp = {}, add = { 1 },
  clamp = { 0, 1 }, totable = {}, bytes = {} }

test("a tensor that a collection closes inside a method is refused there", function(t)
  debug.sethook()
  for name, args in pairs(ALLOCATE) do
    local a = tensor { { 1.0, 2.0 }, { 3.0, 4.0 } }
    local method, mt = a[name], { __gc = function() a:close() end }
    local function doom() setmetatable({}, mt) end
    collectgarbage()
    collectgarbage "stop"
    doom()
    collectgarbage("incremental", 1, 1000, 100) -- a whole cycle at the next allocation
    collectgarbage "restart"
    local ok, err = pcall(method, a, table.unpack(args))
    collectgarbage("incremental", 200, 100, 13)
    t.eq(ok, false, name)
    t.match(tostring(err), "closed", name)
  end
end)

test("printing", function(t)
  t.eq(tostring(tensor { { 1, -2.5 }, { 3, 4 } }),
    "tensor f32 [2, 2]\n[[ 1.0, -2.5],\n [ 3.0,  4.0]]")
  t.eq(tostring(tensor(2.5)), "tensor f32 [] 2.5")
  t.match(tostring(tensor.normal { 100, 100 }),
    "^tensor f32 %[100, 100%]  39%.1 KiB   %-[%d.]+ [^\n]*█[^\n]* mean [^\n]*$")
  t.eq(tensor.range(9):format { threshold = 8, edge = 2, ascii = true },
    "tensor i64 [9]\n[1, 2, ..., 8, 9]")
  t.match(tensor({ 1, 2 }):summary { ascii = true },
    "^tensor i64 %[2%]  16 B   1 #_+# 2   mean 1.5  std 0.5$")
  t.raises(function() tensor({ 1 }):format { width = 1 } end, "option 'width'")
end)

test("plots", function(t)
  t.eq(plot.spark({ 1, 2, 3, 4, 0 / 0 }, { ascii = true }), "_:+#?")
  t.eq(plot.spark({ 0, 7, 3.5 }, { ascii = false }), "▁█▅")
  t.eq(plot.spark({}, { ascii = true }), "")
  t.eq(plot.spark({ 5, 5 }, { ascii = true }), "__")
  t.eq(plot.histogram({ counts = { 1, 4, 0 }, low = 0, high = 3 }, { ascii = true, width = 4 }),
    "         0 .. 1          |#    1\n" ..
    "         1 .. 2          |#### 4\n" ..
    "         2 .. 3          |     0")
  t.match(plot.histogram(tensor.normal { 100, seed = 3 }, { ascii = false, bins = 4 }), "█")
  t.eq(plot.heat({ { 0, 1 }, { 2, 3 } }, { ascii = true, labels = { "a", "bb" } }),
    "[2 x 2]   0 to 3\n a |  --|\nbb |**@@|")
  local colored = plot.heat({ { 0, 1 }, { 2, 3 }, { 0, 0 } }, { ascii = false })
  t.match(colored, "\27%[38;5;17;48;5;148m▀\27%[38;5;44;48;5;196m▀\27%[0m\n")
  t.match(plot.heat(tensor.zeros { 500, 500 }, { ascii = true, width = 60 }),
    "1 of 8 rows, 1 of 25 columns")
  t.raises(function() plot.heat(tensor.zeros { 2, 2, 2 }) end, "rank 3")
end)

test("dropped tensors do not pile up", function(t)
  local before, most = uv.resident_set_memory(), 0
  for _ = 1, 2000 do
    tensor.zeros { 256, 256 } -- 256 KiB
    local _, bytes = perigee.live()
    most = math.max(most, bytes)
  end
  t.ok(most < 64 << 20, ("%d MiB alive at once"):format(most >> 20))
  -- Together they are 500 MiB; a sanitizer holds back half of that.
  local grown = uv.resident_set_memory() - before
  t.ok(grown < 384 << 20, ("%d MiB more in memory"):format(grown >> 20))
end)
