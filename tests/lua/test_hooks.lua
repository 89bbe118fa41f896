-- What hooks do to rows while they write: tags that policies see, watched rows, in the foreground and on the engine thread.
local perigee = require "perigee"
local test = require("harness").test

local function open(name)
  return assert(perigee.open("tests/golden/" .. name, { threads = 2 }))
end

local function ids_of(n, seed)
  local ids = {}
  for i = 1, n do ids[i] = (i * 7919 + seed * 104729 + i * i * seed) % 100 end
  return ids
end

local function with(request, more)
  local out = {}
  for k, v in pairs(request) do out[k] = v end
  for k, v in pairs(more or {}) do out[k] = v end
  return out
end

--- Runs requests in the foreground and on the engine thread, each in a batch of its own; check(rows, batch, threaded) is called
--- when all rows are done.
local function both(t, name, requests, check)
  for _, threaded in ipairs { false, true } do
    local model = open(name)
    local batch = assert(model:batch { rows = 4, step_tokens = 16, kv_block = 8 })
    local rows = {}
    local finish = t.expect(function()
      check(rows, batch, threaded)
      if threaded then assert(batch:stop()) end
      batch:close()
      model:close()
    end)
    if threaded then assert(batch:start()) end
    local function on_done() if batch.alive == 0 and threaded then finish() end end
    for i, request in ipairs(requests) do rows[i] = assert(batch:add(with(request, { on_done = on_done }))) end
    if not threaded then
      assert(batch:run())
      finish()
    end
  end
end

local plain = { prompt = ids_of(20, 3), max_tokens = 14, temperature = 1, seed = 7, ignore_eos = true }

test("tags are on rows, forks and what policies see", function(t)
  local model <close> = open "llama"
  local seen, tag = {}, { of = "a client" }
  local batch <close> = assert(model:batch { rows = 4, policy = function(step)
    for _, list in ipairs { step:waiting(), step:running() } do
      for _, info in ipairs(list) do seen[info.row] = info.tag end
    end
    step:fill()
  end })
  local row = assert(batch:add(with(plain, { tag = tag })))
  local other = assert(batch:add(with(plain, { tag = 5 })))
  local bare = assert(batch:add(plain))
  t.eq({ row.tag, other.tag, bare.tag }, { tag, 5 })
  t.eq(batch:rows()[1].tag, tag)
  for _ = 1, 3 do batch:step() end
  local child = assert(row:fork(1))
  assert(batch:run())
  t.eq(rawequal(child.tag, tag), true)
  -- a policy need not ask whether there is a tag: without one that is a table it sees an empty one
  t.eq({ rawequal(seen[row.row], tag), seen[other.row], seen[bare.row], rawequal(seen[child.row], tag) }, { true, {}, {}, true })
end)

test("keys of hooks are checked", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { rows = 2 })
  t.raises(function() batch:add { prompt = { 1 }, watch = 1 } end, "'watch' must be boolean, not number")
  t.raises(function() batch:add { prompt = { 1 }, on_token = 1 } end, "'on_token' must be a function, not number")
  t.raises(function() batch:add { prompt = { 1 }, on_tokens = print } end, "unknown key 'on_tokens', is it 'on_token'?")
  t.raises(function() batch:add { prompt = { 1 }, wach = true } end, "is it 'watch'?")
end)

--- Every third token is not the model's choice but the one behind its last.
local function meddle(e, row)
  if e.id and not e.finish and #row.ids % 3 == 1 then assert(row:force { (e.id + 1) % 100 }) end
end

test("what a watched row's hook forces is the very next token", function(t)
  local neighbours = with(plain, { max_tokens = 40, seed = 8 })
  local first
  local list = { with(plain, { watch = true, on_token = meddle }), neighbours, with(neighbours, { seed = 9 }) }
  both(t, "llama", list, function(rows)
    local ids = rows[1].ids
    t.eq(#ids, 14)
    for i = 2, 14, 3 do t.eq(ids[i], (ids[i - 1] + 1) % 100) end
    first = first or ids
    t.eq(ids, first)
  end)
end)

test("a watched row that is cancelled says no token more, and its bias holds at once", function(t)
  local function stop_at_three(_, row) if #row.ids == 3 and not row.finish then assert(row:cancel()) end end
  local function bias_at_two(_, row) if #row.ids == 2 then assert(row:bias { [9] = 1000 }) end end
  both(t, "llama", { with(plain, { watch = true, on_token = stop_at_three }), with(plain, { max_tokens = 30, seed = 1 }),
    with(plain, { watch = true, on_token = bias_at_two, n = 1 }) }, function(rows)
    t.eq({ rows[1].finish, #rows[1].ids }, { "cancel", 3 })
    t.eq(rows[3].ids[2] == 9, false)
    for i = 3, 14 do t.eq(rows[3].ids[i], 9) end
  end)
end)

test("a fork of a watched row is watched", function(t)
  local child
  local function fork(e, row)
    if #row.ids == 4 and not child then child = assert(row:fork(3)) end
    meddle(e, row)
  end
  local want
  local list = { with(plain, { watch = true, on_token = fork, max_tokens = 10 }), with(plain, { seed = 2, max_tokens = 30 }) }
  both(t, "llama", list, function()
    for i = 8, #child.ids, 3 do t.eq(child.ids[i], (child.ids[i - 1] + 1) % 100) end
    want = want or child.ids
    t.eq(child.ids, want)
    child = nil
  end)
end)
