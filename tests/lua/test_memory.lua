-- What a model needs against what the machine has: which limit counts, and both numbers in the
-- message.
local perigee = require "perigee"
local memory = require "engine.memory"
local test = require("harness").test

local MIB = 1 << 20

--- Runs f on a machine with this much memory; 0 is unknown, or no limit.
local function on(available, limit, f)
  local real = perigee.sys.machine
  perigee.sys.machine = function()
    return { memory_available = available, memory_limit = limit }
  end
  local ok, why = pcall(f)
  perigee.sys.machine = real
  if not ok then error(why, 0) end
end

local NEED = { kv = 3 * MIB, state = MIB, activations = 2 * MIB } -- 6 MiB

local function refused(t, options, text)
  local ok, why = memory.check(NEED, options)
  t.eq(ok, nil)
  t.eq(why, "not enough memory: " .. text)
end

test("a model needs what its caches and activations take", function(t)
  on(6 * MIB, 0, function() t.eq(memory.check(NEED, { tokens = 9 }), true) end)
  on(6 * MIB - 1, 0, function()
    refused(t, { tokens = 9 }, "6.0 MiB are needed (caches of 9 tokens 4.0 MiB, "
      .. "activations 2.0 MiB), but 6.0 MiB are available")
  end)
end)

test("weights count against a budget only", function(t)
  on(6 * MIB, 0, function()
    t.eq(memory.check(NEED, { tokens = 9, weights = 100 * MIB }), true)
    t.eq(memory.check(NEED, { tokens = 9, weights = 10 * MIB, budget = 4 * MIB }), nil)
    refused(t, { tokens = 9, weights = 10 * MIB, budget = 5 * MIB },
      "16.0 MiB are needed (weights 10.0 MiB, caches of 9 tokens 4.0 MiB, activations 2.0 MiB), "
      .. "but 5.0 MiB are the budget (--memory)")
  end)
  on(30 * MIB, 0, function()
    t.eq(memory.check(NEED, { tokens = 9, weights = 10 * MIB, budget = 16 * MIB }), true)
  end)
end)

test("the smallest limit counts", function(t)
  on(50 * MIB, 5 * MIB, function()
    refused(t, { tokens = 9 }, "6.0 MiB are needed (caches of 9 tokens 4.0 MiB, "
      .. "activations 2.0 MiB), but 5.0 MiB are allowed to this process")
  end)
  on(5 * MIB, 50 * MIB, function()
    t.eq(select(2, memory.check_step(6 * MIB, { rows = 7 })),
      "not enough memory: 6.0 MiB are needed for a step of 7 rows, but 5.0 MiB are available")
  end)
  on(50 * MIB, 0, function()
    t.eq(memory.check_step(6 * MIB, { rows = 7 }), true)
    t.eq(memory.check_step(6 * MIB, { rows = 7, budget = 8 * MIB, weights = 2 * MIB }), true)
    t.eq(memory.check_step(6 * MIB, { rows = 7, budget = 8 * MIB, weights = 3 * MIB }), nil)
  end)
end)

test("a machine that does not say how much it has refuses nothing", function(t)
  on(0, 0, function()
    t.eq(memory.check(NEED, { tokens = 9 }), true)
    t.eq(memory.check_step(1 << 50, { rows = 7 }), true)
    t.eq(memory.check_step(2 * MIB, { rows = 7, budget = MIB }), nil)
  end)
end)
