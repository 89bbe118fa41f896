-- doctor: wrong numbers of a version of the kernels are found and named, and the environment stays
-- as it was. tests/sh/cli.sh runs the whole command.
local perigee = require "perigee"
local kernels = require "cmd.doctor.kernels"
local metal = require "cmd.doctor.metal"
local test = require("harness").test
local uv = require "luv"

local function numbers(...) return { perigee.tensor({ ... }) } end

test("logits are equal only with the same bits", function(t)
  local a = numbers(1, -2, 4)
  t.eq(kernels.distance(a, numbers(1, -2, 4)), 0)
  t.eq(kernels.distance(a, numbers(1, -2, 5)), 1 / 8)
  t.ok(kernels.distance(numbers(0.0, 1), numbers(-0.0, 1)) > 0, "zeros of different signs")
  local nan = 0 / 0
  t.eq(kernels.distance(numbers(nan, 1), numbers(nan, 1)), math.huge)
  t.eq(kernels.distance(numbers(1, 1), numbers(nan, 1)), math.huge)
  t.eq(kernels.distance(numbers(0, 0), numbers(0, 0)), math.huge, "a model that computes nothing")
end)

--- kernels.check on a machine with these versions and features, and without Metal, where
--- run(isa, case) gives the number that a case computes.
local function check(versions, features, run)
  local real, device = perigee.sys.machine, perigee.engine.device
  perigee.sys.machine = function() return { kernels = versions, features = features } end
  perigee.engine.device = function() end
  local result = table.pack(pcall(kernels.check, { logits = function(case)
    return numbers(run(uv.os_getenv "PERIGEE_ISA", case))
  end }))
  perigee.sys.machine, perigee.engine.device = real, device
  if not result[1] then error(result[2], 0) end
  return table.unpack(result, 2)
end

test("a version that is wrong is named, with the model and the difference", function(t)
  local versions, cases = check({ "new", "old", "scalar" }, {}, function(isa, case)
    return isa == "new" and case[1] == "mxfp4, fast" and 1.5 or 1
  end)
  t.ok(cases > 60, cases .. " cases")
  t.eq({ #versions, versions[1].name, versions[2].name }, { 2, "new", "old" })
  t.eq(versions[1].wrong, { "mxfp4, fast differs by 5.0e-01" })
  t.eq(versions[2].wrong, {})
end)

test("tiles may be near in fast, and are what runs without a choice", function(t)
  local function with(difference)
    local versions, cases = check({ "scalar" }, { "amx_tile", "amx_bf16" }, function(isa)
      return isa and 1 or 1 + difference
    end)
    t.eq({ #versions, versions[1].name }, { 1, "tiles" })
    return #versions[1].wrong, cases
  end
  t.eq(with(0), 0)
  local wrong, cases = with(1e-4)
  t.ok(wrong > 0 and wrong < cases, "all exact cases, and no other")
  t.eq(with(1e-3), cases)
end)

test("the choice of kernels is restored", function(t)
  local before = uv.os_getenv "PERIGEE_ISA"
  for _, given in ipairs { "avx2", false } do
    if given then uv.os_setenv("PERIGEE_ISA", given) else uv.os_unsetenv "PERIGEE_ISA" end
    check({ "new", "scalar" }, {}, function() return 1 end)
    t.eq(uv.os_getenv "PERIGEE_ISA" or false, given)
    local ok, why = pcall(check, { "new", "scalar" }, {}, function(isa)
      if isa == "new" then error("no memory", 0) end
      return 1
    end)
    t.eq(ok, false)
    t.match(why, "^kernels new, .*: no memory$")
    t.eq(uv.os_getenv "PERIGEE_ISA" or false, given)
  end
  if before then uv.os_setenv("PERIGEE_ISA", before) else uv.os_unsetenv "PERIGEE_ISA" end
end)

test("Metal's bandwidth is that of the first step that hides its latency", function(t)
  local latency, rate, seen = 0.001, 1e9, {}
  local function step(shape)
    local bytes = shape == "tiny" and 0 or 8e6 * shape[3] -- a layer has 8 MB
    seen[#seen + 1] = bytes
    return latency + bytes / rate, bytes
  end
  local function measured() return metal.measure(step) end
  local late, fast, bytes = measured()
  t.eq({ late, bytes, #seen }, { latency, 32e6, 3 }, "4 layers take 33 ms")
  t.ok(math.abs(fast / rate - 1) < 1e-9, fast)
  rate, seen = 1e12, {}
  late, fast, bytes = measured()
  t.eq(late, latency)
  t.eq({ bytes, #seen }, { 512e6, 5 }, "a fast device reads the largest")
  t.ok(math.abs(fast / rate - 1) < 1e-9, fast)
end)

test("the device of Metal is measured where there is one", function(t)
  local rows, wrong = metal.rows()
  if not perigee.engine.device "metal" then return t.eq({ #rows, wrong }, { 0, 0 }) end
  t.eq({ #rows, wrong }, { 4, 0 })
  t.match(rows[3][2], "^[%d.]+ ms$")
  t.match(rows[4][2], "^[%d.]+ GB/s$")
end)
