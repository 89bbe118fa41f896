-- engine.vision on a tower that is made up here: which lines of its results belong to which
-- picture, how much memory a step is asked for, and jobs of the engine thread.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"
local vision = require "engine.vision"

--- A result of n lines; rows() says which were taken.
local function tensor(name, n)
  local made = { name = name, shape = { n, 4 } }
  function made.rows(_, from, to)
    return { copy = function() return ("%s %d-%d"):format(name, from, to) end }
  end
  return made
end

--- Replaces towers and polls while body(vision, tower, poll) runs. deepstack: names of its planes.
local function with(t, options, body)
  local open, new_poll = perigee.tower.open, uv.new_poll
  local tower, poll = { fd = 9, asked = {}, jobs = {}, done = {}, cancelled = {} }, {}
  function tower.bytes(_, rows)
    tower.asked[#tower.asked + 1] = rows
    return 100
  end
  function tower.encode(_, tiles)
    tower.tiles = tiles
    if tower.broken then return nil, tower.broken end
    return tower.results
  end
  function tower.submit(_, tiles)
    if tower.refuse then return nil, tower.refuse end
    tower.jobs[#tower.jobs + 1] = tiles
    return #tower.jobs
  end
  function tower.drain()
    local done = tower.done
    tower.done = {}
    return done
  end
  function tower.cancel(_, ticket) tower.cancelled[#tower.cancelled + 1] = ticket end
  function tower.close() tower.closed = (tower.closed or 0) + 1 end
  perigee.tower.open = function(_, o)
    tower.options, tower.opened = o, (tower.opened or 0) + 1
    return tower
  end
  uv.new_poll = function(fd)
    poll.fd = fd
    return poll
  end
  function poll.start(_, _, fn) poll.wake = fn end
  function poll.ref() poll.held = true end
  function poll.unref() poll.held = false end
  function poll.stop() poll.stopped = true end
  function poll.close() poll.closed = true end
  local model = { weights = { bytes = 5 }, options = { threads = 3, memory = options.memory } }
  local own = vision.new(model, { graph = { close = function() end }, spec = { spec = true },
    deepstack = options.deepstack or {}, hidden = 8, merge = 2 })
  local ok, why = xpcall(body, debug.traceback, own, tower, poll)
  perigee.tower.open, uv.new_poll = open, new_poll
  if not ok then t.fail(why) end
end

local function picture(t, h, w) return { patches = "p", grid = { t, h, w } } end

test("each picture gets its own lines", function(t)
  with(t, { deepstack = { "d1", "d2" } }, function(own, tower)
    t.eq(own:tokens { 1, 4, 6 }, 6)
    -- 24 and 8 patches, and a picture of two tiles with 16 and 8: 14 features.
    local pictures = { picture(1, 4, 6), picture(1, 2, 4), { picture(1, 4, 4), picture(2, 2, 2) } }
    tower.results = { tensor("f", 14), tensor("d1", 14), tensor("d2", 14), tensor("x", 56),
      tensor("y", 14) }
    local out = own:encode_all(pictures, { tap = { "x", "y" } })
    local got = {}
    for i, one in ipairs(out) do
      got[i] = { one.features, one.deepstack[1], one.deepstack[2], one.taps.x, one.taps.y }
    end
    t.eq(got, { { "f 1-6", "d1 1-6", "d2 1-6", "x 1-24", "y 1-6" },
      { "f 7-8", "d1 7-8", "d2 7-8", "x 25-32", "y 7-8" },
      { "f 9-14", "d1 9-14", "d2 9-14", "x 33-56", "y 9-14" } })
    t.eq({ #tower.tiles, tower.options.taps, tower.options.threads, tower.options.spec,
      tower.closed }, { 4, { "d1", "d2", "x", "y" }, 3, true, 1 })
    tower.results = { tensor("f", 6), tensor("d1", 6), tensor("d2", 6) }
    local features, deepstack = own:encode(picture(1, 4, 6))
    t.ok(features == tower.results[1] and deepstack[2] == tower.results[3]) -- all of it: no copy
    own:encode(picture(1, 4, 6))
    t.eq({ tower.opened, tower.closed }, { 2, 1 }) -- kept for the next
    own:eval(picture(1, 4, 6), { threads = 1 })
    t.eq({ tower.opened, tower.closed, tower.options.threads }, { 3, 2, 1 })
    own:eval(picture(1, 4, 6), { fusion = false })
    t.eq({ tower.opened, tower.closed, tower.options.fusion }, { 4, 3, false })
    tower.broken = "no"
    t.raises(function() own:encode(picture(1, 4, 6)) end, "no")
    own:close()
    t.eq(tower.closed, 4)
  end)
end)

test("what is not a picture", function(t)
  with(t, {}, function(own)
    for _, case in ipairs {
      { {}, "a list of pictures expected" }, { 5, "a list of pictures expected" },
      { { {} }, "pictures[1] must be { patches =, grid = } or a list of those" },
      { { picture(1, 2, 2), 5 }, "attempt to index" },
      { { picture(1, 2, 2), { patches = "p" } }, "pictures[2].grid must be {frames, rows, cols}" },
      { { { patches = "p", grid = { 1, 2 } } }, "pictures[1].grid must be" },
      { { { patches = "p", grid = { 1, 2, 2.5 } } }, "pictures[1].grid must be" },
      { { { patches = "p", grid = { 1, 2, 2, 2 } } }, "pictures[1].grid must be" },
      { { { patches = "p", grid = "122" } }, "pictures[1].grid must be" },
    } do
      t.raises(function() own:encode_all(case[1]) end, case[2])
    end
    t.raises(function() own:submit { picture(1, 2, 2) } end, "is not attached to a batch")
  end)
end)

test("memory is asked for the largest step", function(t)
  with(t, {}, function(own, tower)
    tower.results = { tensor("f", 1 << 20) }
    local function asked(...)
      tower.asked = {}
      own:encode_all { ... }
      return tower.asked[1]
    end
    t.eq({ asked(picture(1, 4, 6)), asked(picture(1, 4, 6), picture(1, 2, 2)) }, { 24, 28 })
    local step = asked(picture(1, 64, 64), picture(1, 64, 64), picture(1, 2, 2))
    t.eq(step, 4096) -- pictures are put together up to a step
    t.eq(asked(picture(1, 64, 66), picture(1, 2, 2)), 4224) -- a larger one is a step by itself
    t.eq({ asked(picture(1, 1024, 1024)), asked(picture(1, 1024, 1026)) }, { 1 << 20 })
  end)
  with(t, { memory = 104 }, function(own, tower) -- 5 of the weights, 100 of the step
    tower.results = { tensor("f", 6) }
    t.raises(function() own:encode(picture(1, 4, 6)) end, "memory")
  end)
  with(t, { memory = 105 }, function(own, tower)
    tower.results = { tensor("f", 6) }
    t.ok(own:encode(picture(1, 4, 6)))
  end)
end)

test("jobs on the engine thread", function(t)
  with(t, {}, function(own, tower, poll)
    own:attach { core = "core" }
    t.eq({ tower.options.share, poll.fd, poll.held }, { "core", 9, false })
    t.raises(function() own:attach {} end, "the vision tower is attached already: detach it first")
    local got = {}
    local function job(name)
      return own:submit({ picture(1, 4, 6) }, function(results, err)
        got[#got + 1] = { name, results and results[1].features.name, err }
        if name == "raises" then error("raised", 0) end
      end)
    end
    local one = job "a"
    job "b"
    job "raises"
    job "c"
    job "d"
    t.eq({ poll.held, own.waiting }, { true, 5 })
    local f = tensor("f", 6)
    tower.done = { { ticket = 1, seconds = 0.5, f }, { ticket = 3, seconds = 0.25, f },
      { ticket = 2, seconds = 0, error = "broken" }, { ticket = 4, seconds = 0, f } }
    t.raises(poll.wake, "raised")
    t.eq(got, { { "a", "f" }, { "raises", "f" }, { "b", nil, "broken" }, { "c", "f" } })
    t.eq({ own.seconds, own.waiting, poll.held }, { 0.75, 1, true })
    one:cancel() -- it is finished
    local last = job "e"
    last:cancel()
    t.eq(tower.cancelled, { 6 })
    tower.done = { { ticket = 5, seconds = 0, f } }
    own:detach()
    t.eq({ got[5], got[6], #got, own.waiting, poll.closed, tower.closed },
      { { "d", "f" }, { "e", nil, "the vision tower was detached" }, 6, 0, true, 1 })
    own:detach()
    t.eq(tower.closed, 1)
    own:attach { core = "core" }
    job "f"
    tower.done = { { ticket = 7, seconds = 0, f } }
    poll.wake()
    t.eq({ own.waiting, poll.held }, { 0, false })
    t.raises(function() own:submit({}, print) end, "a list of pictures expected")
    tower.refuse = "full"
    t.eq({ job "g" }, { nil, "full" })
    t.eq(own.waiting, 0)
  end)
end)
