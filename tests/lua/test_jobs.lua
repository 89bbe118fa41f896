-- Whose turn it is on the helper threads (lib/jobs.lua).
local async = require "lib.async"
local harness = require "harness"
local jobs = require "lib.jobs"
local perigee = require "perigee"

local SMALL, LARGE = 100, 2 << 20

--- The tests look at what a job that ends has woken.
local function test(name, fn)
  harness.test(name, function(t)
    t.at_once()
    fn(t)
  end)
end

--- A client of the tests, which may leave.
local function client(owner)
  local self = { owner = owner, hooks = {} }
  function self.on_abort(_, fn) self.hooks[#self.hooks + 1] = fn end
  function self.leave()
    self.aborted = true
    for _, fn in ipairs(self.hooks) do fn() end
  end
  return self
end

--- Starts a job that ends when the test says so; `log` gets its name when it begins.
local function begin(log, who, name, bytes)
  local job = {}
  job.task = async.run(function()
    job.result = table.pack(jobs.run(who, bytes, function(stop, callback)
      log[#log + 1] = name
      job.stop = stop
      function job.finish(...)
        job.finish = nil
        callback(...)
      end
      return true
    end))
  end)
  return job
end

--- Ends everything that runs and is left.
local function drain(t, list)
  for _ = 1, #list do
    for _, job in ipairs(list) do
      if job.finish then job.finish "end" end
    end
  end
  t.eq(jobs.stats(), { running = 0, waiting = 0, owners = 0 })
end

test("clients take turns, and long work leaves a thread for short", function(t)
  local log, list, a, b, c = {}, {}, client "a", client "b", client "c"
  local function add(who, name, bytes)
    list[name] = begin(log, who, name, bytes)
    list[#list + 1] = list[name]
  end
  add(a, "a1", LARGE)
  add(a, "a2", LARGE)
  add(a, "a3", LARGE)
  t.eq(log, { "a1", "a2" }) -- nobody else is there; the third thread is not for large ones
  add(b, "b1", SMALL)
  t.eq(log[3], "b1")
  add(a, "a4", SMALL)
  add(a, "a5", SMALL)
  add(c, "c1", SMALL)
  add(b, "b2", LARGE)
  t.eq(jobs.stats(), { running = 3, waiting = 5, owners = 3 })
  list.b1.finish "done"
  t.eq(list.b1.result[1], "done")
  t.eq(log[4], "a4")
  list.a1.finish "done"
  t.eq(log[5], "b2") -- the second large one is not a's again
  list.a2.finish "done"
  t.eq(log[6], "c1")
  list.a4.finish "done"
  t.eq(log[7], "a3")
  list.c1.finish "done"
  t.eq(log[8], "a5")
  drain(t, list)
end)

test("a second large job waits while another client has one waiting", function(t)
  local log, list, a, b = {}, {}, client "a", client "b"
  for i = 1, 3 do list[i] = begin(log, a, "a" .. i, LARGE) end
  list[4] = begin(log, b, "b1", LARGE)
  list[1].finish "done"
  t.eq(log, { "a1", "a2", "b1" })
  drain(t, list)
end)

test("a job of 1 MiB is small, one of a byte more is large", function(t)
  for _, case in ipairs { { 1 << 20, 3 }, { (1 << 20) + 1, 2 } } do
    local log, list, a = {}, {}, client "a"
    for i = 1, 3 do list[i] = begin(log, a, i, case[1]) end
    t.eq(#log, case[2])
    drain(t, list)
  end
end)

test("jobs that have ended leave nothing behind", function(t)
  local log, list, a = {}, {}, client "a"
  local function stops() return (perigee.live())["perigee.Stop"] or 0 end
  local before = stops()
  collectgarbage "stop" -- they are closed, not collected
  for i = 1, 5 do list[i] = begin(log, a, i, SMALL) end
  t.eq({ stops() - before, #a.hooks }, { 5, 1 })
  list[4].task:cancel() -- waits
  list[1].finish "done"
  t.eq(stops() - before, 3)
  a.leave() -- the others are stopped, and end when their threads do
  drain(t, list)
  t.eq({ stops() - before, next(a.jobs) }, { 0 })
  local c = client "c"
  for i = 1, 5 do list[i] = begin(log, c, i, SMALL) end
  c.leave() -- two wait
  t.eq(stops() - before, 3)
  drain(t, list)
  t.eq({ stops() - before, next(c.jobs) }, { 0 })
  collectgarbage "restart"
end)

test("a job that cannot start fails alone", function(t)
  async.run(t.expect(function()
    local none, why = jobs.run(nil, SMALL, function() return nil, "no" end)
    t.eq({ none, why }, { nil, "no" })
    none, why = jobs.run(nil, SMALL, function() error("raised", 0) end)
    t.eq({ none, why }, { nil, "raised" })
    t.eq(jobs.run(nil, SMALL, function(_, callback)
      callback "at once"
      return true
    end), "at once")
    t.eq(jobs.stats(), { running = 0, waiting = 0, owners = 0 })
  end))
end)

test("jobs of a client that leaves are dropped or stopped", function(t)
  local log, list, gone, other = {}, {}, client "gone", client "other"
  for i = 1, 4 do list[i] = begin(log, gone, i, LARGE) end
  list[5] = begin(log, other, "other", LARGE)
  t.eq(log, { 1, 2 })
  local tok <close> = assert(perigee.tokenizer.open "tests/tokenizers/bpe-qwen2")
  gone.leave()
  tok:encode("x", { stop = list[1].stop }, t.expect(function(_, why)
    t.eq(why.code, "cancelled")
  end))
  for i = 3, 4 do t.eq(list[i].result[2].code, "cancelled") end
  t.eq(#log, 2)
  list[1].finish "stopped"
  t.eq(log[3], "other")
  drain(t, list)
  local none
  async.run(t.expect(function()
    none = table.pack(jobs.run(gone, SMALL, error))
    t.eq(none[2].code, "cancelled")
  end))
end)

test("a task that is cancelled gives its turn back", function(t)
  local log, list, a = {}, {}, client "a"
  for i = 1, 4 do list[i] = begin(log, a, i, SMALL) end
  list[4].task:cancel()
  t.eq(jobs.stats(), { running = 3, waiting = 0, owners = 1 })
  list[1].task:cancel()
  t.eq(jobs.stats().running, 3) -- it ends when its thread does
  list[1].finish()
  t.eq(jobs.stats().running, 2)
  drain(t, list)
end)

test("a client's queue is bounded", function(t)
  local log, list, a = {}, {}, client "a"
  for i = 1, 67 do list[i] = begin(log, a, i, SMALL) end
  t.eq(jobs.stats(), { running = 3, waiting = 64, owners = 1 })
  async.run(t.expect(function()
    local ok, err = pcall(jobs.run, a, SMALL, error)
    t.eq({ ok, err.status, err.code, err.retry_after }, { false, 429, "queue_full", 1 })
    t.eq(err.message, "64 long texts are waiting to be read, the limit is 64")
  end))
  list[68] = begin(log, client "b", "b", SMALL)
  t.eq(jobs.stats().waiting, 65)
  drain(t, list)
end)
