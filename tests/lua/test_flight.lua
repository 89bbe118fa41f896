-- engine.flight: what the next policy sees while steps run.
local flights = require "engine.flight"
local test = require("harness").test

--- Sequences as the core lists them, from "state:left" texts.
local function listed(...)
  local sequences = {}
  for id, text in ipairs { ... } do
    local state, left = text:match "^(%a+):(%d+)$"
    sequences[id] = { id = id, state = state, left = tonumber(left) }
  end
  return sequences
end

local function shown(sequences)
  local out = {}
  for i, info in ipairs(sequences) do out[i] = info.state .. ":" .. info.left end
  return table.concat(out, " ")
end

local function expected(slots, grants, ...)
  local flight = flights.new(slots)
  for _, g in ipairs(grants) do flight:add(g) end
  local sequences = listed(...)
  flight:expect(sequences)
  return shown(sequences)
end

test("granted tokens count as computed", function(t)
  local one = { { { 1, 4 }, { 2, 6 }, { 3, 1 } } }
  t.eq(expected(8, one, "prefill:10", "waiting:6", "decode:1"), "prefill:6 decode:1 decode:1")
  local two = { { { 1, 4 } }, { { 1, 4 } } }
  t.eq(expected(8, two, "waiting:10"), "prefill:2")
  t.eq(expected(8, {}, "waiting:10"), "waiting:10")
  t.eq(expected(8, { { { 1, 1 }, { 7, 5 } } }, "held:1"), "held:1") -- 7 has ended
end)

test("a waiting sequence runs only where a slot is free", function(t)
  local grants = { { { 1, 1 }, { 2, 1 }, { 4, 9 }, { 3, 2 } } }
  t.eq(expected(2, grants, "decode:1", "decode:1", "waiting:2", "waiting:9"),
    "decode:1 decode:1 waiting:2 waiting:9")
  t.eq(expected(3, grants, "decode:1", "decode:1", "waiting:2", "waiting:9"),
    "decode:1 decode:1 waiting:2 decode:1") -- in the order of the grants
  t.eq(expected(1, { { { 1, 3 }, { 2, 3 } }, { { 1, 3 }, { 2, 3 } } }, "waiting:9", "waiting:9"),
    "prefill:3 waiting:9")
end)

test("steps are forgotten when they are done", function(t)
  local flight = flights.new(4)
  t.eq({ flight:add {}, flight:add {} }, { 1, 2 })
  flight:forget(0)
  t.eq(#flight, 2)
  flight:forget(1)
  t.eq({ #flight, flight[1].number }, { 1, 2 })
  flight:forget(5)
  t.eq({ #flight, flight:add {} }, { 0, 3 })
end)
