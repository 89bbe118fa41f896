-- The cache of a vision tower's features: computed once, shared, evicted by bytes, cancelled.
local features = require "engine.features"
local perigee = require "perigee"
local test = require("harness").test

local function item(name) return { hash = ("%-32s"):format(name) } end

--- A tower that computes when it is told to; results have 40 bytes.
local function tower()
  local self = { calls = {} }
  function self.compute(missing, deliver)
    local call = { names = {}, cancelled = false }
    for i, m in ipairs(missing) do call.names[i] = m.hash:gsub(" +$", "") end
    function call.finish(err)
      local list = {}
      for i in ipairs(missing) do
        list[i] = { features = perigee.tensor.zeros { 2, 5 }, name = call.names[i] }
      end
      deliver(not err and list or nil, err)
    end
    function call.cancel() call.cancelled = true end
    self.calls[#self.calls + 1] = call
    return call
  end
  return self
end

--- Asks and returns a table that will have the names of the results, or why there are none.
local function ask(cache, t, names)
  local out, items = {}, {}
  for i, name in ipairs(names) do items[i] = item(name) end
  out.job = cache:get(items, t.compute, function(results, err)
    if out.names then error "told twice" end
    out.names, out.err = {}, err
    for i, r in ipairs(results or {}) do out.names[i] = r.name end
  end)
  return out
end

test("a picture is computed once, and others wait for it", function(t)
  local cache, w = features.new(), tower()
  local a = ask(cache, w, { "x", "y", "x" })
  local b = ask(cache, w, { "y", "z" })
  t.eq(#w.calls, 2)
  t.eq(w.calls[1].names, { "x", "y" })
  t.eq(w.calls[2].names, { "z" })
  w.calls[2].finish()
  t.eq(b.names, nil)
  w.calls[1].finish()
  w.calls[1].finish() -- a second time does nothing
  t.eq(a.names, { "x", "y", "x" })
  t.eq(b.names, { "y", "z" })
  t.eq(ask(cache, w, { "z", "x" }).names, { "z", "x" })
  t.eq(#w.calls, 2)
  t.eq(cache:stats(), { entries = 3, bytes = 120, hits = 2, misses = 3, shared = 1, evictions = 0 })
  t.eq(ask(cache, w, {}).names, {})
end)

test("the least recently used go when bytes run out", function(t)
  local cache, w = features.new { bytes = 100 }, tower()
  for i, name in ipairs { "a", "b" } do
    ask(cache, w, { name })
    w.calls[i].finish()
  end
  ask(cache, w, { "a" }) -- b is now the oldest
  ask(cache, w, { "c" })
  w.calls[3].finish()
  t.eq(cache:stats().evictions, 1)
  t.eq(ask(cache, w, { "a" }).names, { "a" })
  t.eq(ask(cache, w, { "b" }).names, nil)
  t.eq(#w.calls, 4)
  cache:clear()
  t.eq(cache:stats().bytes, 0)
  local none = features.new { bytes = 0 }
  ask(none, w, { "a" })
  w.calls[5].finish()
  t.eq(none:stats().entries, 0)
end)

test("failures reach all who wait and are not remembered", function(t)
  local cache, w = features.new(), tower()
  local a, b = ask(cache, w, { "x", "y" }), ask(cache, w, { "y" })
  w.calls[1].finish "no memory"
  t.eq(a.err, "no memory")
  t.eq(b.err, "no memory")
  local c = ask(cache, w, { "y" })
  w.calls[2].finish()
  t.eq(c.names, { "y" })
  local failed
  cache:get({ item "q" }, function() error("broken", 0) end, function(_, err) failed = err end)
  t.eq(failed, "broken")
  t.raises(function() cache:fetch({ item "q" }, function() error("broken", 0) end) end, "broken")
  local got = cache:fetch({ item "q" }, function(missing)
    return { { features = perigee.tensor.zeros { 1, 1 }, name = #missing } }
  end)
  t.eq(got[1].name, 1)
end)

test("a computation is cancelled when nobody waits for it", function(t)
  local cache, w = features.new(), tower()
  local a, b = ask(cache, w, { "x", "y" }), ask(cache, w, { "y" })
  a.job:cancel()
  t.eq(w.calls[1].cancelled, false)
  b.job:cancel()
  b.job:cancel()
  t.eq(w.calls[1].cancelled, true)
  w.calls[1].finish()
  t.eq({ a.names, b.names }, {})
  local c = ask(cache, w, { "y" })
  t.eq(#w.calls, 2)
  w.calls[2].finish()
  t.eq(c.names, { "y" })
end)
