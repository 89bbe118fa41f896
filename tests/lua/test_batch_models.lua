-- Every architecture through batches, bit for bit: a request alone, in company, cut into any
-- chunks, joining late, preempted, forked, trimmed, from a warm cache, from a file, with one thread
-- and with two gives the same tokens and logprobs.
local perigee = require "perigee"
local test = require("harness").test

local forced = ... -- with a collection at every step: a few are enough, the numbers are the same

local samples = require "samples"
local ids_of = samples.ids

local function join(head, tail)
  return table.move(tail, 1, #tail, #head + 1, table.move(head, 1, #head, 1, {}))
end

--- Two that begin alike, one that is short, one that is drawn otherwise; none ends by itself.
local function requests(vocab)
  local shared = ids_of(18, 1, vocab)
  local list = {
    { prompt = join(shared, ids_of(5, 3, vocab)), temperature = 1, seed = 11, top_logprobs = 1 },
    { prompt = join(shared, ids_of(9, 4, vocab)), temperature = 0.7, seed = 12, top_p = 0.9,
      repetition_penalty = 1.3,
      logprobs = true },
    { prompt = ids_of(3, 2, vocab), temperature = 0, logprobs = true },
    { prompt = ids_of(21, 5, vocab), temperature = 1.3, seed = 13, top_k = 20,
      presence_penalty = 0.6, logprobs = true },
  }
  for _, r in ipairs(list) do r.max_tokens, r.ignore_eos = 8, true end
  list[1].boundaries, list[2].boundaries = { 7, 18 }, { 7, 18 }
  return list
end

local function add(batch, request)
  local copy = {}
  for k, v in pairs(request) do copy[k] = v end
  return assert(batch:add(copy))
end

local function alone(model, request)
  local batch <close> = assert(model:batch { sequences = 1, cache_bytes = 0, kv_block = 16,
    threads = 1 })
  local seq = add(batch, request)
  assert(batch:run())
  return seq
end

local function same(t, what, seq, want)
  t.eq(seq.ids, want.ids, what)
  t.eq(seq.logprobs, want.logprobs, what)
  t.eq(seq.finish, want.finish, what)
end

--- Few sequences at once in steps of few tokens, the last first; then all of it again, from what
--- the cache remembers.
local function check_company(t, model, list, want)
  local batch <close> = assert(model:batch { sequences = 3, step_tokens = 7, kv_block = 4,
    threads = 2, stride = 8 })
  for turn = 1, 2 do
    local sequences, cached = {}, 0
    for i = #list, 1, -1 do sequences[i] = add(batch, list[i]) end
    assert(batch:run())
    for i, seq in ipairs(sequences) do
      same(t, ("request %d in company, turn %d"):format(i, turn), seq, want[i])
      cached = cached + seq.cached_tokens
    end
    if turn == 2 then -- exact repeats: all but one token of each
      local all = 0
      for _, r in ipairs(list) do all = all + #r.prompt - 1 end
      t.eq(cached, all, "cached")
    end
  end
  t.eq(#batch:sequences(), 0)
end

--- Sequences come and go while others run; one is preempted by hand; the pool is too small for all
--- of them.
local function check_coming_and_going(t, model, list, want)
  local batch <close> = assert(model:batch { sequences = 4, step_tokens = 16, kv_block = 4,
    threads = 2, cache_bytes = 0,
    cache_tokens = 60, context = 40 })
  local sequences = { add(batch, list[1]) }
  local goes = add(batch, list[4])
  for step = 1, 6 do
    assert(batch:step())
    if step == 2 then sequences[2] = add(batch, list[2]) end
    if step == 3 then assert(sequences[1]:preempt()) end
    if step == 4 then assert(goes:cancel()) end
  end
  sequences[3], sequences[4] = add(batch, list[3]), add(batch, list[4])
  assert(batch:run())
  for i, seq in ipairs(sequences) do
    same(t, ("request %d, coming and going"):format(i), seq, want[i])
  end
  t.eq(goes.finish, "cancel")
  t.eq(batch:stats().preempted > 0, true)
end

--- A child goes another way, a twin goes on as its parent does, and the parent as if nothing had
--- been; one goes back and draws the same again; what is saved half way is found by another batch,
--- all of it that was computed.
local function check_by_hand(t, model, list, want)
  local path = os.tmpname()
  local batch <close> = assert(model:batch { sequences = 4, kv_block = 8, threads = 2 })
  local parent = add(batch, list[1])
  while #parent.ids < 3 do assert(batch:step()) end
  assert(parent:save(path))
  local child, twin = assert(parent:fork(99)), assert(parent:fork(list[1].seed))
  assert(child:bias { [5] = 1000 })
  assert(batch:step())
  t.eq(child.ids[4], 5)
  while #twin.ids < 6 do assert(batch:step()) end
  assert(twin:trim(#list[1].prompt + 4))
  assert(batch:run())
  same(t, "a parent", parent, want[1])
  t.eq(table.move(twin.ids, 7, #twin.ids, 5, table.move(twin.ids, 1, 4, 1, {})), want[1].ids,
    "a twin that went back")
  local other <close> = assert(model:batch { sequences = 1, kv_block = 8, threads = 1 })
  assert(other:load(path))
  os.remove(path)
  local longer = { prompt = join(list[1].prompt, table.move(parent.ids, 1, 3, 1, {})),
    max_tokens = 8, temperature = 1, seed = 4,
    ignore_eos = true, logprobs = true }
  local seq = add(other, longer)
  assert(other:run())
  same(t, "from a file", seq, alone(model, longer))
  t.eq(seq.cached_tokens, #list[1].prompt + 2, "found in the file")
end

local some = forced and { "gemma3_text", "qwen3_5" }
local function check_model(name, precision)
  test(("%s, %s"):format(name, precision), function(t)
    local model <close> = assert(perigee.open("tests/golden/" .. name, { precision = precision }))
    local list, want = requests(model.config.vocab_size), {}
    for i, r in ipairs(list) do want[i] = alone(model, r) end
    t.eq(#want[1].ids, 8)
    check_company(t, model, list, want)
    check_coming_and_going(t, model, list, want)
    check_by_hand(t, model, list, want)
  end)
end

for _, name in ipairs(some or samples.directories "config.json") do
  check_model(name, "exact")
  check_model(name, "fast")
end
