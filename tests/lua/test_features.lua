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

test("bytes are those of all planes, and a limit may be reached exactly", function(t)
  t.eq(features.new().limit, 256 << 20)
  local function result(deep)
    local r = { features = perigee.tensor.zeros { 2, 5 }, deepstack = {} } -- 40 bytes
    for i = 1, deep do r.deepstack[i] = perigee.tensor.zeros { 1, 5 } end -- 20 bytes each
    return r
  end
  --- The entries, bytes and evictions after pictures with these numbers of planes.
  local function after(limit, ...)
    local cache = features.new { bytes = limit }
    for i, deep in ipairs { ... } do
      cache:fetch({ item(tostring(i)) }, function() return { result(deep) } end)
    end
    local s = cache:stats()
    return { s.entries, s.bytes, s.evictions }
  end
  t.eq(after(1000, 0, 1, 3), { 3, 200, 0 })
  t.eq(after(80, 0, 0), { 2, 80, 0 })
  t.eq(after(79, 0, 0), { 1, 40, 1 })
  t.eq(after(80, 0, 0, 0, 0), { 2, 80, 2 })
  t.eq(after(80, 0, 2), { 1, 80, 1 }) -- as large as the cache: all others go
  t.eq(after(80, 0, 3), { 1, 40, 0 }) -- larger: it is not kept
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
  local told
  cache:get({ item "r", item "s" }, function(_, give)
    give { { features = perigee.tensor.zeros { 1, 1 } } } -- one of two
  end, function(_, err) told = err end)
  t.eq(told, "the tower returned no features")
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
  b.job:cancel() -- long over
  c.job:cancel()
  t.eq(cache:stats().entries, 1)
end)

test("what is cancelled or finished twice touches no later computation", function(t)
  local cache, w = features.new { bytes = 0 }, tower()
  local a = ask(cache, w, { "x" })
  a.job:cancel() -- call 1 is cancelled, but still running
  local b = ask(cache, w, { "x", "y" })
  t.eq(w.calls[2].names, { "x", "y" })
  w.calls[1].finish()
  t.eq({ a.names, b.names }, {})
  w.calls[2].finish()
  t.eq(b.names, { "x", "y" })
  local c = ask(cache, w, { "x" })
  w.calls[2].finish() -- again
  b.job:cancel()
  t.eq({ c.names, w.calls[3].cancelled }, { nil, false })
  w.calls[3].finish()
  t.eq(c.names, { "x" })
  local told, second = 0, nil
  cache:get({ item "p" }, w.compute, function() second:cancel() end) -- while both are told
  second = cache:get({ item "p" }, w.compute, function() told = told + 1 end)
  w.calls[4].finish()
  t.eq(told, 0)
  -- Half of a job is there, half is computed: the computation is cancelled with the job. One that
  -- cannot be cancelled is left alone.
  cache = features.new()
  ask(cache, w, { "x" })
  w.calls[5].finish()
  local d = ask(cache, w, { "x", "y" })
  d.job:cancel()
  t.eq({ w.calls[6].names, w.calls[6].cancelled }, { { "y" }, true })
  for _, handle in ipairs { false, {} } do
    cache:get({ item "z" }, function() return handle or nil end, error):cancel()
  end
end)
