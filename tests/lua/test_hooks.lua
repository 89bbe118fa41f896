-- What hooks do to sequences while they write: tags that policies see, watched sequences, in the
-- foreground and on the engine thread.
local perigee = require "perigee"
local test = require("harness").test

local function open(name)
  return assert(perigee.open("tests/golden/" .. name, { threads = 2 }))
end

local samples = require "samples"
local function ids_of(n, seed) return samples.ids(n, seed, 100) end

local function with(request, more)
  local out = {}
  for k, v in pairs(request) do out[k] = v end
  for k, v in pairs(more or {}) do out[k] = v end
  return out
end

--- Runs requests in the foreground and on the engine thread, each in a batch of its own;
--- check(sequences, batch, threaded) is called when all sequences are done.
local function both(t, name, requests, check)
  for _, threaded in ipairs { false, true } do
    local model = open(name)
    local batch = assert(model:batch { sequences = 4, step_tokens = 16, kv_block = 8 })
    local sequences = {}
    local finish = t.expect(function()
      check(sequences, batch, threaded)
      if threaded then assert(batch:stop()) end
      batch:close()
      model:close()
    end)
    if threaded then assert(batch:start()) end
    local function on_done() if batch.alive == 0 and threaded then finish() end end
    for i, request in ipairs(requests) do
      sequences[i] = assert(batch:add(with(request, { on_done = on_done })))
    end
    if not threaded then
      assert(batch:run())
      finish()
    end
  end
end

local plain = { prompt = ids_of(20, 3), max_tokens = 14, temperature = 1, seed = 7,
  ignore_eos = true }

test("tags are on sequences, forks and what policies see", function(t)
  local model <close> = open "llama"
  local seen, tag = {}, { of = "a client" }
  local batch <close> = assert(model:batch { sequences = 4, policy = function(step)
    for _, list in ipairs { step:waiting(), step:running() } do
      for _, info in ipairs(list) do seen[info.id] = info.tag end
    end
    step:fill()
  end })
  local seq = assert(batch:add(with(plain, { tag = tag })))
  local other = assert(batch:add(with(plain, { tag = 5 })))
  local bare = assert(batch:add(plain))
  t.eq({ seq.tag, other.tag, bare.tag }, { tag, 5 })
  t.eq(batch:sequences()[1].tag, tag)
  for _ = 1, 3 do batch:step() end
  local child = assert(seq:fork(1))
  assert(batch:run())
  t.eq(rawequal(child.tag, tag), true)
  -- a policy need not ask whether there is a tag: without one that is a table it sees an empty one
  t.eq({ rawequal(seen[seq.id], tag), seen[other.id], seen[bare.id],
    rawequal(seen[child.id], tag) }, { true, {}, {}, true })
end)

test("keys of hooks are checked", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 2 })
  t.raises(function() batch:add { prompt = { 1 }, watch = 1 } end,
    "watch must be a boolean, got number")
  t.raises(function() batch:add { prompt = { 1 }, on_token = 1 } end,
    "on_token must be a function, got number")
  t.raises(function() batch:add { prompt = { 1 }, on_tokens = print } end,
    "unknown key 'on_tokens', did you mean 'on_token'?")
  t.raises(function() batch:add { prompt = { 1 }, wach = true } end, "did you mean 'watch'?")
end)

--- Every third token is not the model's choice but the one behind its last.
local function meddle(e, seq)
  if e.id and not e.finish and #seq.ids % 3 == 1 then assert(seq:force { (e.id + 1) % 100 }) end
end

test("what a watched seq's hook forces is the very next token", function(t)
  local neighbours = with(plain, { max_tokens = 40, seed = 8 })
  local first
  local list = { with(plain, { watch = true, on_token = meddle }), neighbours,
    with(neighbours, { seed = 9 }) }
  both(t, "llama", list, function(sequences)
    local ids = sequences[1].ids
    t.eq(#ids, 14)
    for i = 2, 14, 3 do t.eq(ids[i], (ids[i - 1] + 1) % 100) end
    first = first or ids
    t.eq(ids, first)
  end)
end)

test("a watched seq that is cancelled says no token more, and its bias holds at once", function(t)
  local function stop_at_three(_, seq)
    if #seq.ids == 3 and not seq.finish then assert(seq:cancel()) end
  end
  local function bias_at_two(_, seq) if #seq.ids == 2 then assert(seq:bias { [9] = 1000 }) end end
  both(t, "llama", { with(plain, { watch = true, on_token = stop_at_three }),
    with(plain, { max_tokens = 30, seed = 1 }),
    with(plain, { watch = true, on_token = bias_at_two, n = 1 }) }, function(sequences)
    t.eq({ sequences[1].finish, #sequences[1].ids }, { "cancel", 3 })
    t.eq(sequences[3].ids[2] == 9, false)
    for i = 3, 14 do t.eq(sequences[3].ids[i], 9) end
  end)
end)

test("a fork of a watched seq is watched", function(t)
  local child
  local function fork(e, seq)
    if #seq.ids == 4 and not child then child = assert(seq:fork(3)) end
    meddle(e, seq)
  end
  local want
  local list = { with(plain, { watch = true, on_token = fork, max_tokens = 10 }),
    with(plain, { seed = 2, max_tokens = 30 }) }
  both(t, "llama", list, function()
    for i = 8, #child.ids, 3 do t.eq(child.ids[i], (child.ids[i - 1] + 1) % 100) end
    want = want or child.ids
    t.eq(child.ids, want)
    child = nil
  end)
end)

-- ---- held sequences ---------------------------------------------------------------------------

local function go_on(e, seq) if e.held then assert(seq:sample()) end end

local kinds = {
  plain, with(plain, { temperature = 0.8, top_p = 0.9, repetition_penalty = 1.3, seed = 3 }),
  with(plain, { temperature = 0, min_tokens = 5, logit_bias = { [3] = 4 }, ignore_eos = false }),
  with(plain, { temperature = 1.3, seed = 4, presence_penalty = 0.5, top_logprobs = 2,
    bad_words = { { 4 }, { 9, 2 } } }),
}

for _, name in ipairs { "llama", "nemotron_h" } do
  test("a held seq that is let go on says what it would have said: " .. name, function(t)
    local want = {}
    do
      local model <close> = open(name)
      local batch <close> = assert(model:batch { sequences = 4 })
      for i, request in ipairs(kinds) do want[i] = assert(batch:add(request)) end
      assert(batch:run())
    end
    local list = {}
    for i, request in ipairs(kinds) do
      list[i] = with(request, { hold = i ~= 2, on_token = go_on })
    end
    both(t, name, list, function(sequences)
      for i, seq in ipairs(sequences) do
        t.eq(seq.ids, want[i].ids)
        t.eq({ seq.finish, seq.logprobs }, { want[i].finish, want[i].logprobs })
      end
    end)
  end)
end

test("logits of a held seq are there, and what is given holds for one draw", function(t)
  local first
  local function hook(e, seq)
    if not e.held then return end
    local logits = seq:logits()
    t.eq(logits.shape, { 128 })
    local best = seq:best()
    local n = #seq.ids
    seq.bests = seq.bests or {}
    seq.bests[n + 1] = best
    if n == 1 then assert(seq:sample { bias = { [best] = -1000 } })
    elseif n == 3 then assert(seq:sample { banned = { best } })
    elseif n == 5 then assert(seq:sample { force = { 7, 8, 9 }, bias = { [5] = 100 } })
    else assert(seq:sample {}) end
  end
  local neighbour = with(plain, { max_tokens = 30, seed = 8 })
  both(t, "llama", { with(plain, { hold = true, temperature = 0, on_token = hook }), neighbour },
    function(sequences)
    local seq = sequences[1]
    for i, id in ipairs(seq.ids) do
      if i == 2 or i == 4 then t.eq(id == seq.bests[i], false)
      elseif i == 7 or i == 8 then t.eq(seq.bests[i], nil) -- forced ones are not held
      elseif i ~= 6 then t.eq(id, seq.bests[i]) end
    end
    t.eq({ table.unpack(seq.ids, 6, 8) }, { 7, 8, 9 })
    first = first or seq.ids
    t.eq(seq.ids, first)
  end)
end)

test("held sequences are preempted, forked, trimmed and cancelled", function(t)
  local model <close> = open "llama"
  local want
  do
    local batch <close> = assert(model:batch { sequences = 2 })
    want = assert(batch:add(plain))
    assert(batch:run())
  end
  local batch <close> = assert(model:batch { sequences = 4 })
  local seq = assert(batch:add(with(plain, { hold = true })))
  local function state(of)
    for _, info in ipairs(batch:sequences()) do
      if info.id == of.id then return info.state, info.left end
    end
  end
  batch:step()
  t.eq({ state(seq) }, { "held", 0 })
  assert(seq:preempt())
  t.eq({ (state(seq)), #seq:logits() }, { "held", 128 })
  local child = assert(seq:fork(plain.seed))
  t.eq(state(child), "held")
  t.eq(select(2, batch:step()), 0)
  local ok, why = batch:run()
  t.eq(ok, nil)
  t.match(tostring(why), "sequence 1 is held")
  assert(seq:sample())
  assert(child:sample())
  t.eq({ (state(seq)), (state(child)) }, { "waiting", "waiting" })
  for _ = 1, 3 do
    batch:step()
    if state(seq) == "held" then assert(seq:sample()) end
    if state(child) == "held" then assert(child:sample()) end
  end
  batch:step()
  t.eq({ table.unpack(want.ids, 1, #seq.ids) }, seq.ids)
  t.eq(child.ids, seq.ids)
  local before = #seq.ids
  t.eq({ before > 2, (state(seq)) }, { true, "held" })
  assert(seq:trim(#plain.prompt + 1))
  t.eq(state(seq) == "held", false)
  assert(child:cancel())
  t.eq(tostring(select(2, seq:sample())), "sample: sequence 1 is not held")
  t.fails("argument", seq:sample())
  seq.on_token = go_on
  assert(batch:run())
  t.eq(child.finish, "cancel")
  t.eq({ table.unpack(seq.ids, before + 1) }, { table.unpack(want.ids, 2) })
  t.raises(function() seq:sample { biass = {} } end, "did you mean 'bias'?")
end)

test("a hook may take its time", function(t)
  local model = open "llama"
  local batch = assert(model:batch { sequences = 2 })
  local uv = require "luv"
  assert(batch:start())
  local request = with(plain, { hold = true, max_tokens = 4, temperature = 0 })
  request.on_token = function(e, seq)
    if not e.held then return end
    local timer = uv.new_timer()
    timer:start(1, 0, function()
      timer:close()
      assert(seq:sample { bias = { [3] = 1e4 } })
    end)
  end
  request.on_done = t.expect(function(seq)
    t.eq(seq.ids, { 3, 3, 3, 3 })
    batch:close()
    model:close()
  end)
  local seq = assert(batch:add(request))
  t.fails("argument", seq:sample { bias = { [5000] = 1 } })
end)

-- ---- files and kept logits on the engine thread -----------------------------------------------

test("caches are saved and loaded between steps", function(t)
  local model = open "llama"
  local batch, other = assert(model:batch { sequences = 2 }), assert(model:batch { sequences = 2 })
  local path = os.tmpname()
  local request = with(plain, { max_tokens = 8, watch = true })
  local function finish(first, again)
    t.eq(again.ids, first.ids)
    t.eq(again.cached_tokens > 0, true)
    os.remove(path)
    for _, b in ipairs { batch, other } do b:close() end
    model:close()
  end
  local function saved(seq)
    assert(other:start())
    assert(other:load("/nowhere/at/all", t.expect(function(...) t.fails("io", ...) end)))
    assert(other:load(path, t.expect(function(ok, err)
      t.eq({ ok, err }, { true })
      assert(other:add(with(request,
        { on_done = t.expect(function(again) finish(seq, again) end) })))
    end)))
  end
  local left = 3 -- three answers, in any order: other threads write files and look for sequences
  local function one_less(seq)
    left = left - 1
    if left == 0 then saved(seq) end
  end
  request.on_token = function(_, seq)
    if #seq.ids ~= 4 or seq.saving then return end
    seq.saving = true
    t.raises(function() seq:save(path) end, "a function for the result is needed")
    assert(seq:save(path, t.expect(function(ok, err)
      t.eq({ ok, err }, { true })
      one_less(seq)
    end)))
    assert(seq:save("/nowhere/at/all", t.expect(function(...)
      t.fails("io", ...)
      one_less(seq)
    end)))
  end
  assert(batch:start())
  assert(batch:add(with(request, { on_done = t.expect(function(seq)
    assert(seq:save(path, t.expect(function(...)
      t.fails("not_found", ...)
      one_less(seq)
    end)))
  end) })))
  request.on_token = nil
end)

test("kept logits come with the events", function(t)
  local model = open "llama"
  local batch = assert(model:batch { sequences = 2 })
  assert(batch:start())
  local request = with(plain, { temperature = 0, max_tokens = 6, watch = true, keep_logits = true })
  request.on_token = function(e, seq)
    if e.finish then return end
    if #seq.ids < 4 then t.eq(seq:best(), e.id) else t.eq({ seq:logits(), seq:best() }, {}) end
    if #seq.ids == 3 then assert(seq:keep_logits(false)) end
  end
  request.on_done = t.expect(function()
    batch:close()
    model:close()
  end)
  assert(batch:add(request))
end)

test("a batch that is closed answers for what it did not write", function(t)
  local model <close> = open "llama"
  local batch = assert(model:batch { sequences = 2 })
  assert(batch:start())
  assert(batch:load("/nowhere/at/all", t.expect(function(...) t.fails("cancelled", ...) end)))
  batch:close()
end)

-- ---- one engine thread ------------------------------------------------------------------------

test("batches of several models share an engine thread", function(t)
  local models = { open "llama", open "qwen3_5", open "llama" }
  local want, batches, left = {}, {}, 6
  for i = 1, 2 do
    local batch <close> = assert(models[i]:batch { sequences = 2 })
    want[i] = assert(batch:add(plain))
    assert(batch:run())
  end
  batches[1] = assert(models[1]:batch { sequences = 2 })
  for i = 2, 3 do batches[i] = assert(models[i]:batch { sequences = 2, share = batches[1] }) end
  t.eq(batches[2].core.threads, batches[1].core.threads)
  t.raises(function() models[1]:batch { share = batches[1], threads = 1 } end, "'threads'")
  t.raises(function() models[1]:batch { share = 5 } end, "must be an open batch")
  local function finish()
    for i = 1, 3 do
      batches[i]:close()
      models[i]:close()
    end
  end
  for i, batch in ipairs(batches) do
    assert(batch:start())
    for _ = 1, 3 do
      local request = with(plain)
      request.on_done = i < 3 and t.expect(function(seq)
        t.eq(seq.ids, want[i].ids)
        left = left - 1
        if left == 3 then batches[3]:close() end -- in the middle: the others go on
        if left == 0 then finish() end
      end) or nil
      assert(batch:add(request))
    end
  end
end)
