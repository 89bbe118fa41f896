-- The policies that ship, on steps that are made up here: who gets how many tokens.
local phases = require "hooks.phases"
local steps = require "engine.step"
local test = require("harness").test

--- A policy with its own config and state.
local function policy(name)
  local p = require("policy." .. name)
  return p, { config = p.config, state = p.state and p.state() or {} }
end

local function seq(id, state, left, more)
  local info = { id = id, state = state, left = left, age = 0, cached = 0, tag = {} }
  for k, v in pairs(more or {}) do info[k] = v end
  return info
end

--- What a policy gives: "id:tokens …", and what it preempts.
local function given(p, self, sequences, options)
  local step = steps.new(sequences, options)
  if options.now then step.now = options.now end
  p.schedule(step, self)
  local out = {}
  for i, grant in ipairs(step.grants) do out[i] = grant[1] .. ":" .. grant[2] end
  local gone = {}
  for id in pairs(step.preempted) do gone[#gone + 1] = id end
  table.sort(gone)
  return table.concat(out, " ") .. (#gone > 0 and " -" .. table.concat(gone, " -") or "")
end

test("fifo: streams, then prompts in order of arrival, as many tokens as there is room for",
  function(t)
    local p = policy "fifo"
    local list = { seq(3, "waiting", 50), seq(1, "decode", 1), seq(2, "prefill", 40) }
    t.eq(given(p, nil, list, { tokens = 64 }), "1:1 2:32") -- no room is left for 3
    t.eq(given(p, nil, { list[1], list[3] }, { tokens = 64 }), "2:40 3:24")
    t.eq(given(p, nil, list, { tokens = 1 }), "1:1")
    t.eq(given(p, nil, { list[1], list[3] }, { tokens = 41 }), "2:40 3:1") -- the last one as well
  end)

test("cache_first: the longest cached prefix, after requests that have waited", function(t)
  local p, self = policy "cache_first"
  local list = { seq(1, "waiting", 10, { cached = 5 }), seq(2, "waiting", 10, { cached = 9 }),
    seq(3, "waiting", 10, { age = 10 }), seq(4, "waiting", 10, { age = 10.5 }) }
  t.eq(given(p, self, list, { tokens = 100 }), "4:10 2:10 1:10 3:10")
  t.eq(self.config.patience_s, 10)
end)

test("cache_first: sessions that are at work before those that begin, for keep_s", function(t)
  local p, self = policy "cache_first"
  local function of(id, state, session, more)
    more = more or {}
    more.tag = { session = session, key = more.key }
    return seq(id, state, state == "decode" and 1 or 10, more)
  end
  t.eq(given(p, self, { of(1, "decode", "a") }, { tokens = 100, now = 1000 }), "1:1")
  local function waiting(now)
    return given(p, self, { of(2, "waiting", "b", { cached = 9 }), of(3, "waiting", "a"),
      of(4, "waiting", "a", { key = "other", cached = 5 }) }, { tokens = 100, now = now })
  end
  t.eq(waiting(1060), "3:10 2:10 4:10")
  t.eq(next(self.state.last), "\0a")
  t.eq(waiting(1061), "2:10 4:10 3:10")
  waiting(1200)
  t.eq(next(self.state.last), nil)
end)

test("lanes: shares of a step, and the rest to the most urgent", function(t)
  local p, self = policy "lanes"
  local function lane(id, name, more)
    more = more or {}
    more.tag = { lane = name }
    return seq(id, "waiting", 900, more)
  end
  t.eq(given(p, self, { lane(1, "batch"), lane(2, "normal"), lane(3, "urgent") },
    { tokens = 100 }), "3:60 2:30 1:10")
  t.eq(given(p, self, { lane(1, "batch"), seq(2, "waiting", 5, { tag = { lane = "urgent" } }),
    seq(3, "waiting", 8), lane(4, "normal") }, { tokens = 100 }), "2:5 4:30 1:10 3:8")
  t.eq(given(p, self, { lane(1, "urgent"), lane(2, "batch", { age = 60 }) }, { tokens = 100 }),
    "1:60 2:10")
  t.eq(given(p, self, { lane(1, "urgent"), lane(2, "batch", { age = 60.5 }) }, { tokens = 100 }),
    "2:100")
  t.eq(p.config, { lanes = { { name = "urgent", share = 0.6, depth = 64 },
    { name = "normal", share = 0.3, depth = 256 }, { name = "batch", share = 0.1, depth = 8192 } },
    patience_s = 60 })
end)

test("lanes: streams continue before anything else", function(t)
  local p, self = policy "lanes"
  local first = self.config.lanes[1].name
  local list = { seq(1, "waiting", 50, { age = 1e6 }),
    seq(2, "waiting", 50, { tag = { lane = first } }), seq(3, "decode", 1), seq(4, "decode", 1) }
  t.match(given(p, self, list, { tokens = 2 }), "^3:1 4:1$")
  t.match(given(p, self, list, { tokens = 3 }), "^3:1 4:1 1:1$")
end)

test("lanes: the lane of a request, and how many it may hold", function(t)
  local p, self = policy "lanes"
  local asked
  local function admit(tag, header, priority, n)
    local queue = { count = function(_, filter)
      asked = filter.lane
      return n or 0
    end, eta = function() return 7 end }
    local answer = p.admit({ tag = { lane = tag }, headers = { ["x-lane"] = header },
      body = { priority = priority } }, queue, self)
    return answer.lane or { answer.status, answer.message, answer.retry_after }
  end
  t.patch(package.loaded.perigee, "reject", phases.reject)
  t.eq({ admit("urgent", "batch", "normal"), admit(nil, "batch", "urgent"),
    admit(nil, nil, "batch"), admit(nil, nil, -1), admit(nil, nil, 1), admit(nil, nil, 0),
    admit(nil, "unknown") },
    { "urgent", "batch", "batch", "urgent", "batch", "normal", "normal" })
  t.eq(admit("urgent", nil, nil, 63), "urgent")
  t.eq({ admit("urgent", nil, nil, 64), asked },
    { { 429, "the urgent lane is full: 64 requests waiting", 7 }, "urgent" })
end)

test("fair: the key that has used least comes first", function(t)
  local p, self = policy "fair"
  local function key(id, name, state, left)
    return seq(id, state or "waiting", left or 10, { tag = { key = name } })
  end
  t.eq(given(p, self, { key(1, "a"), key(2, "b") }, { tokens = 10, now = 0 }), "1:10")
  t.eq(self.state.used, { a = 10.0 })
  t.eq(given(p, self, { key(3, "a"), key(2, "b") }, { tokens = 10, now = 0 }), "2:10")
  -- Half is forgotten after half_life_s, and one token or less altogether.
  given(p, self, { key(4, "c", "waiting", 4) }, { tokens = 10, now = 300 })
  t.eq(self.state.used, { a = 5.0, b = 5.0, c = 4.0 })
  given(p, self, { key(4, "c", "waiting", 4) }, { tokens = 10, now = 1200 })
  t.eq(self.state.used, { c = 4.0 })
  self.config = { weights = { default = 1, gold = 4 }, half_life_s = 300 }
  given(p, self, { key(5, "gold", "waiting", 8) }, { tokens = 10, now = 1200 })
  t.eq(self.state.used.gold, 2.0)
end)

test("fair: running sequences are shared, the youngest of the largest share goes", function(t)
  local p, self = policy "fair"
  local function key(id, name, state) return seq(id, state, 1, { tag = { key = name } }) end
  local running = { key(1, "a", "decode"), key(2, "a", "decode"), key(3, "a", "decode"),
    key(4, "b", "decode"), key(5, "b", "decode") }
  local function with(...)
    return table.move({ ... }, 1, select("#", ...), #running + 1,
      table.move(running, 1, #running, 1, {}))
  end
  local full = { tokens = 64, slots = 5 }
  t.match(given(p, self, with(key(6, "c", "waiting")), full), " %-3$")
  t.match(given(p, self, with(key(6, "c", "waiting"), key(7, "c", "waiting")), full), " %-3$")
  t.match(given(p, self, with(key(6, "c", "waiting"), key(7, "d", "waiting")), full), "1 %-2 %-3$")
  t.ok(not given(p, self, with(key(6, "a", "waiting")), full):find "-")
  t.ok(not given(p, self, with(key(6, "c", "waiting")), { tokens = 64, slots = 6 }):find "-")
  self.config = { weights = { default = 1, a = 4 }, half_life_s = 300 } -- a may have more
  t.match(given(p, self, with(key(6, "c", "waiting")), full), " %-5$")
  t.ok(not given(p, self, { key(1, "a", "decode"), key(4, "b", "decode"), key(6, "c", "waiting") },
    { tokens = 64, slots = 2 }):find "-") -- nobody runs several
end)

test("fair: one sequence goes for each key that waits, from the largest share of the moment",
  function(t)
    local function keys(text, weights)
      local p, self = policy "fair"
      self.config = { half_life_s = 60, weights = weights or { default = 1 } }
      local list = {}
      for key, waits in text:gmatch "(%a)(%.?)" do
        list[#list + 1] = seq(#list + 1, waits == "." and "waiting" or "decode", 1,
          { tag = { key = key } })
      end
      local running = #text:gsub("[%a]%.", ""):gsub("%s", "")
      return given(p, self, list, { tokens = 64, slots = running, now = 0 }):match " (%-.*)$"
    end
    t.eq(keys "aaa b.b.", "-3") -- once for a key
    t.eq(keys "aaabbb c.d.", "-3 -6") -- a has less after the first
    t.eq(keys "aaab c.d.", "-2 -3")
    t.eq(keys "ab c.", nil) -- nobody runs several
    t.eq(keys("aaabb c.", { default = 1, a = 3 }), "-5") -- b has more for its weight
    t.eq(keys("aaaabbb c.d.", { default = 1, a = 2 }), "-4 -7") -- then they are equal
  end)

test("fair: a key that comes back starts level with the least of the active ones", function(t)
  local p, self = policy "fair"
  local function admit(used, active, name)
    self.state.used = used
    p.admit({ key = name }, { count = function(_, f) return active[f.key] or 0 end }, self)
    return self.state.used[name or ""]
  end
  t.eq(admit({ a = 50, b = 30, c = 5 }, { a = 1, b = 1 }, "x"), 30)
  t.eq(admit({ a = 50, x = 90 }, { a = 1 }, "x"), 90)
  t.eq(admit({ a = 50 }, {}, "x"), 0)
  t.eq(admit({ a = 50 }, { a = 1, x = 1 }, "x"), nil) -- it is active already
  t.eq(admit({ a = 50 }, { a = 1 }, nil), 50)
end)
