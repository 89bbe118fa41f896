-- Nothing that one client does stops the loop or takes all of it.
local async = require "lib.async"
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local tools = require "http_tools"
local uv = require "luv"

local serve, connect = tools.serve, tools.connect
local forced = ...

local function ms_since(at) return (uv.hrtime() - at) / 1e6 end

local function spin(ms)
  local began = uv.hrtime()
  while ms_since(began) < ms do end
end

test("tasks that wake each other forever let the loop turn", function(t)
  local a, b, stopped, steps = async.signal(), async.signal(), false, 0
  local function player(mine, other)
    return function()
      while not stopped do
        mine:wait()
        mine:reset()
        steps = steps + 1
        other:set()
      end
    end
  end
  async.run(player(a, b))
  async.run(player(b, a))
  local began, timer = uv.hrtime(), uv.new_timer()
  timer:start(20, 0, t.expect(function()
    timer:close()
    stopped = true
    a:set()
    b:set()
    t.ok(ms_since(began) < 2000, ms_since(began))
    t.ok(steps > 0, steps)
  end))
  a:set()
end)

test("a template with many values lets the loop turn", function(t)
  if forced then return end -- a collection at every line would take minutes
  local template = assert(templates.compile "{% for k in d %}{{ k }}={{ d[k] }};{% endfor %}")
  local values, last, worst = perigee.json.object(), nil, 0
  for i = 1, 60000 do values["key" .. i] = "value" .. i end
  local watch = uv.new_check()
  local function look()
    local now = perigee.sys.cpu_ns()
    worst, last = math.max(worst, last and now - last or 0), now
  end
  watch:start(look)
  async.run(t.expect(function()
    async.sleep(0)
    local text, info = template:render({ d = values }, { spans = true })
    look()
    watch:close()
    t.match(text, "key60000=value60000;")
    t.eq(info.spans[#info.spans], { #text, #text, true })
    -- All of it in one turn would take several times this. Sanitizers are slower.
    t.ok(worst < (os.getenv "SAN" and 600e6 or 60e6), ("%.0f ms"):format(worst * 1e-6))
  end))
end)

test("tasks that one turn wakes late go on in the next ones, new tasks begin at once", function(t)
  local wakes, order, over = {}, {}, false
  t.patch(async, "is_over", function() return over end)
  for i = 1, 3 do
    async.run(function()
      async.await(function(resume) wakes[i] = resume end)
      order[#order + 1] = i
    end)
  end
  local timer = uv.new_timer()
  timer:start(1, 0, t.expect(function()
    timer:close()
    wakes[1]()
    t.eq(order, { 1 })
    over = true
    wakes[2]()
    wakes[3]()
    async.run(function() order[#order + 1] = "new" end)
    t.eq(order, { 1, "new" })
    local check, turns = uv.new_check(), 0
    check:start(function()
      turns = turns + 1
      if turns == 1 then t.eq(order, { 1, "new", 2 }) end -- one in a turn that is over
      if turns < 2 then return end
      check:close()
      t.eq(order, { 1, "new", 2, 3 })
    end)
  end))
end)

test("deferred functions are called in order, after a poll, unless cancelled", function(t)
  local order = {}
  async.run(t.expect(function()
    async.defer(function() order[#order + 1] = "one" end)
    local cancel = async.defer(function() order[#order + 1] = "cancelled" end)
    async.defer(function()
      order[#order + 1] = "two"
      async.defer(function() order[#order + 1] = "three" end)
    end)
    cancel()
    t.eq(order, {})
    while #order < 3 do async.sleep(0) end
    t.eq(order, { "one", "two", "three" })
  end))
end)

test("an error in a deferred function is reported, the others are called", function(t)
  local reported, on_error = nil, async.on_error
  async.on_error = function(err) reported = tostring(err) end
  async.run(t.expect(function()
    local called
    async.defer(function() error("oops", 0) end)
    async.defer(function() called = true end)
    while not called do async.sleep(0) end
    async.on_error = on_error
    t.eq(reported, "oops")
  end))
end)

test("pipelined requests do not keep others from being answered", function(t)
  local served = 0
  local function handler(request, response)
    if request.path == "/flood" then
      served = served + 1
      spin(0.3)
    end
    response:send(200, nil, "x")
  end
  serve(t, { handler = handler }, function(at)
    local flood = ("GET /flood HTTP/1.1\r\nHost: h\r\n\r\n"):rep(2000)
    local rude = {}
    for i = 1, 8 do
      rude[i] = connect(at)
      async.run(function() rude[i]:send(flood) end)
    end
    while served == 0 do async.sleep(1) end
    local worst, asked = 0, 0
    for _ = 1, 10 do
      local began = uv.hrtime()
      local got = tools.talk(at, "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
      t.eq(tools.statuses(got), { 200 })
      worst, asked = math.max(worst, ms_since(began)), asked + 1
    end
    t.ok(worst < 1000, worst) -- about 25 ms; the flood takes 4.8 s
    t.ok(served < 16000, served)
    for _, peer in ipairs(rude) do peer:close() end
  end)
end)

-- ---- sequences of keys --------------------------------------------------------------------------

local share = require "engine.share"

local function sequences_of(list)
  local out = {}
  for i, one in ipairs(list) do
    out[i] = { id = i, state = one[1], left = 1, tag = { key = one[2] } }
  end
  return out
end

local function ids(list)
  local out = {}
  for i, info in ipairs(list) do out[i] = info.id end
  return out
end

test("a key runs more than its limit only while nobody else waits", function(t)
  local alone = sequences_of { { "decode", "a" }, { "decode", "a" }, { "decode", "a" },
    { "decode", "a" }, { "waiting", "a" } }
  local o = { slots = 4, limit = 2 }
  local list, preempted = share.apply(alone, o)
  t.eq({ #list, preempted }, { 5, nil })
  local mixed = sequences_of { { "decode", "a" }, { "decode", "a" }, { "prefill", "a" },
    { "decode", "a" }, { "waiting", "a" }, { "waiting", "b" } }
  list, preempted = share.apply(mixed, o)
  t.eq({ ids(list), preempted }, { { 1, 2, 3, 6 }, { 4 } })
  -- Room for the other: nobody is preempted, but the key gets no more slots.
  mixed[4].state = "waiting"
  list, preempted = share.apply(mixed, o)
  t.eq({ ids(list), preempted }, { { 1, 2, 3, 6 }, {} })
  -- Both at their limit: nobody is disturbed.
  local both = sequences_of { { "decode", "a" }, { "decode", "a" }, { "decode", "b" },
    { "decode", "b" }, { "waiting", "b" }, { "waiting", "a" } }
  list, preempted = share.apply(both, o)
  t.eq({ #list, preempted }, { 6, nil })
end)
