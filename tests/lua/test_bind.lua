-- C objects: closed once, counted while open, collected when unreachable.
local perigee = require "perigee"
local test = require("harness").test

local function live() return (perigee.live())["perigee.Tensor"] or 0 end

test("an object is open until it is closed, and closing twice is fine", function(t)
  local before = live()
  local x = perigee.tensor.zeros { 2, 3 }
  t.eq(live(), before + 1)
  x:close()
  x:close()
  t.eq(live(), before)
  t.raises(function() return x:sum() end, "closed")
  t.raises(function() return x.shape end, "closed")
  t.match(tostring(x), "closed")
end)

test("<close> and the collector close objects", function(t)
  local before = live()
  do
    local x <close> = perigee.tensor.zeros { 2 }
    t.eq(x.shape[1], 2)
    t.eq(live(), before + 1)
  end
  t.eq(live(), before)
  for _ = 1, 10 do perigee.tensor.zeros { 2 } end
  collectgarbage()
  t.eq(live(), before)
end)

test("memory outside Lua's heap drives the collector", function(t)
  local peak = 0
  for _ = 1, 400 do
    perigee.tensor.zeros { 256 * 1024 } -- 1 MiB each
    peak = math.max(peak, select(2, perigee.live()))
  end
  t.ok(peak < 200 << 20, ("%d MiB were alive at once"):format(peak >> 20))
end)

test("a self of the wrong class is refused", function(t)
  local x <close> = perigee.tensor.zeros { 2 }
  t.raises(function() x.close({}) end, "perigee.Tensor expected")
  t.raises(function() x.sum(io.stdout) end, "perigee.Tensor expected")
  t.eq(x.no_such_field, nil)
end)

test("classes are listed with their members", function(t)
  local class = perigee.classes()["perigee.Tensor"]
  local methods = {}
  for _, name in ipairs(class.methods) do methods[name] = true end
  t.ok(methods.close and methods.sum)
end)
