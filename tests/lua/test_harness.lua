-- The harness itself: the failures it must catch.
local harness = require "harness"
local perigee = require "perigee"
local test = harness.test
local uv = require "luv"

test("a forced collection frees unreachable values", function(t)
  local forced = debug.gethook() ~= nil
  local weak = setmetatable({}, { __mode = "v" })
  weak[1] = {}
  local a = "x"
  local b = a .. #weak -- reuses the register of the table, then allocates
  t.eq(#b, 2)
  if forced then t.eq(weak[1], nil) end
end)

test("expected callbacks are counted", function(t)
  local timer = uv.new_timer()
  timer:start(1, 0, t.expect(function() timer:close() end))
end)

test("deep comparison distinguishes integers from floats and finds missing keys", function(t)
  t.eq({ 1, { a = 2 } }, { 1, { a = 2 } })
  t.eq(0 / 0, 0 / 0)
  local function differs(a, b)
    local before = #t.failures
    t.eq(a, b)
    local caught = #t.failures == before + 1
    t.failures[#t.failures] = nil
    t.ok(caught, "a difference was not seen")
  end
  differs(1, 1.0)
  differs({ 1 }, { 1, 2 })
  differs({ 1, 2 }, { 1 })
  differs("1", 1)
end)

--- The outcome of a test run inside this one, and its first failure.
local function outcome_of(body)
  local outcome, inner = harness.run_case({ name = "inner", body = body }, false)
  return outcome, inner.failures[1]
end

test("leaks, errors and callbacks that are not called are failures", function(t)
  local function fails(body, part)
    local outcome, why = outcome_of(body)
    t.eq(outcome, "failed", part)
    t.match(why, part)
  end
  fails(function() uv.new_timer() end, "leaked handle: uv_timer_t")
  fails(function() _G.kept = perigee.tensor.zeros { 2 } end, "leaked: 1 perigee.Tensor")
  _G.kept:close()
  _G.kept = nil
  local open
  t.patch(harness, "SETTLE_MS", 1)
  fails(function() open = uv.fs_open("README.md", "r", 0) end,
    "leaked: 1 descriptors: %d+ %-> .*/README%.md$")
  uv.fs_close(open)
  fails(function(inner) inner.expect(print) end, "called 0 times, want 1")
  fails(function(inner)
    local timer = uv.new_timer()
    timer:start(1, 0, inner.expect(function()
      timer:close()
      error "inside a callback"
    end))
  end, "inside a callback")
  fails(function() error "plain" end, "plain")
  fails(function(inner) inner.raises(function() end, "x") end, "nothing raised")
  fails(function(inner) inner.raises(function() error "y" end, "x") end, "raised .*y")
  fails(function(inner) inner.fails("io", 1) end, "want nil and an error")
  fails(function(inner) inner.near(1, 2, 0.5) end, "within 0.5")
  t.eq(outcome_of(function(inner) inner.skip "later" end), "skipped")
  t.eq(outcome_of(function() end), "passed")
end)

test("a descriptor that is closed a moment later is not a leak", function(t)
  local real, looks, open = uv.fs_scandir, 0, nil
  t.patch(uv, "fs_scandir", function(path)
    looks = looks + 1
    if looks == 4 then uv.fs_close(open) end -- the third look after the test
    return real(path)
  end)
  t.eq(outcome_of(function() open = uv.fs_open("README.md", "r", 0) end), "passed")
  t.eq(looks, 4)
end)

test("patched functions are restored however a test ends", function(t)
  local object = setmetatable({ a = 1 }, { __newindex = error })
  local bodies = { function() end, function() error "plain" end,
    function(inner) inner.skip "later" end }
  for _, finish in ipairs(bodies) do
    outcome_of(function(inner)
      for value = 2, 3 do
        inner.patch(object, "a", value)
        inner.patch(object, "b", value)
      end
      t.eq({ object.a, object.b }, { 3, 3 })
      finish(inner)
    end)
    t.eq({ object.a, object.b }, { 1, nil })
  end
end)
