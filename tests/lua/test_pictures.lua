-- Pictures as rows of a batch, on every vision architecture, from the features of the reference:
-- its logits and greedy continuations; and bit for bit the same tokens and logprobs alone, in
-- company, in any chunks, from a warm cache, forked, preempted, saved and loaded, with any number
-- of threads.
local mrope = require "models.core.mrope"
local perigee = require "perigee"
local pictures = require "vision_cases"
local test = require("harness").test
local uv = require "luv"

local forced = ... -- with a collection at every step: a few are enough, the numbers are the same

local TOLERANCE = 5e-4

local function given(case, options)
  options.media, options.positions = case.media, case.positions
  options.rope_delta = case.rope_delta
  return options
end

-- ---- the reference ----------------------------------------------------------------------------

local function check_reference(t, model, case, what)
  local greedy = case.greedy
  local got = model:eval(case.ids, given(case, { last = 16, greedy = greedy and #greedy }))
  t.near((got.logits - case.logits):abs():max(), 0, TOLERANCE, what)
  if greedy then t.eq(got.greedy, greedy, what) end
end

local function check_positions(t, model, case, what)
  local positions, delta = mrope.positions(case.ids, case.media, model.config)
  t.eq(positions, case.positions, what)
  t.eq(delta, case.rope_delta, what)
end

local function check_chunks(t, model, case, what)
  local whole = model:eval(case.ids, given(case, {})).logits:bytes()
  for _, chunk in ipairs { 1, 5, 32 } do
    local got = model:eval(case.ids, given(case, { chunk = chunk })).logits:bytes()
    if got ~= whole then t.fail(("%s: chunks of %d give other bits"):format(what, chunk)) end
  end
end

-- ---- batches ----------------------------------------------------------------------------------

--- One request per case; the first has no picture.
local function requests(cases)
  local list = {}
  for i, case in ipairs(cases) do
    list[i] = given(case, { prompt = case.ids, max_tokens = 8, ignore_eos = true, seed = 10 + i,
      temperature = i % 2 == 0 and 0.8 or 0, logprobs = true })
  end
  return list
end

local function add(batch, request, more)
  local copy = {}
  for k, v in pairs(request) do copy[k] = v end
  for k, v in pairs(more or {}) do copy[k] = v end
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

--- Few at once in small steps, then all again from the cache: all but one token of each, or up to
--- the picture that the prompt ends with, if its rows see each other.
local function check_company(t, model, list, want, cases)
  local batch <close> = assert(model:batch { sequences = 3, step_tokens = 7, kv_block = 4,
    threads = 2, stride = 8 })
  for turn = 1, 2 do
    local sequences = {}
    for i = #list, 1, -1 do sequences[i] = add(batch, list[i]) end
    assert(batch:run())
    for i, seq in ipairs(sequences) do
      same(t, ("request %d in company, turn %d"):format(i, turn), seq, want[i])
      local most = cases[i].resumes or #list[i].prompt - 1
      if turn == 2 then t.eq(seq.cached_tokens, most, "cached") end
    end
  end
end

--- Sequences come and go while others run; the pool is too small for all; one is preempted by hand
--- while its picture is being computed, and one while it generates.
local function check_coming_and_going(t, model, list, want)
  local longest = 0
  for _, r in ipairs(list) do longest = math.max(longest, #r.prompt) end
  local batch <close> = assert(model:batch { sequences = 4, step_tokens = 16, kv_block = 4,
    threads = 2, cache_bytes = 0, cache_tokens = longest + 40, context = longest + 30 })
  local sequences = { add(batch, list[1]), add(batch, list[2]) }
  local goes = add(batch, list[3])
  for step = 1, 8 do
    assert(batch:step())
    if step == 1 or step == 5 then assert(sequences[1]:preempt()) end
    if step == 3 then assert(sequences[2]:preempt()) end
    if step == 4 then assert(goes:cancel()) end
  end
  for i = 3, #list do sequences[i] = add(batch, list[i]) end
  assert(batch:run())
  for i, seq in ipairs(sequences) do
    same(t, ("request %d, coming and going"):format(i), seq, want[i])
  end
  t.eq(goes.finish, "cancel")
end

--- The request with more tokens in its prompt.
local function extended(request, more)
  local longer = {}
  for k, v in pairs(request) do longer[k] = v end
  longer.prompt = table.move(more, 1, #more, #request.prompt + 1,
    table.move(request.prompt, 1, #request.prompt, 1, {}))
  for axis = 1, request.positions and 3 or 0 do
    local list = table.move(request.positions[axis], 1, #request.prompt, 1, {})
    for i = #request.prompt + 1, #longer.prompt do list[i] = i - 1 + request.rope_delta end
    longer.positions = axis == 1 and {} or longer.positions
    longer.positions[axis] = list
  end
  return longer
end

--- A child goes another way and a twin as its parent; one goes back, one to the beginning; what was
--- saved half way is found by another batch.
local function check_by_hand(t, model, request, want)
  local path = os.tmpname()
  local batch <close> = assert(model:batch { sequences = 4, kv_block = 8, threads = 2 })
  local parent = add(batch, request)
  while #parent.ids < 3 do assert(batch:step()) end
  assert(parent:save(path))
  local child, twin = assert(parent:fork(99)), assert(parent:fork(request.seed))
  local anew = assert(parent:fork(request.seed))
  assert(anew:trim(#request.prompt))
  assert(child:bias { [5] = 1000 })
  assert(batch:step())
  t.eq(child.ids[4], 5)
  while #twin.ids < 6 do assert(batch:step()) end
  assert(twin:trim(#request.prompt + 4))
  assert(batch:run())
  same(t, "a parent", parent, want)
  t.eq(table.move(twin.ids, 7, #twin.ids, 5, table.move(twin.ids, 1, 4, 1, {})), want.ids,
    "a twin that went back")
  t.eq(table.move(anew.ids, 4, #anew.ids, 1, {}), want.ids, "one that began again")
  local other <close> = assert(model:batch { sequences = 1, kv_block = 8, threads = 1 })
  assert(other:load(path))
  os.remove(path)
  local longer = extended(request, table.move(parent.ids, 1, 3, 1, {}))
  local seq = add(other, longer)
  assert(other:run())
  same(t, "from a file", seq, alone(model, longer))
  t.eq(seq.cached_tokens, #request.prompt + 2, "found in the file")
end

--- The same words with another picture find nothing of the first one; the same picture again does.
local function check_identity(t, model, request, want)
  local batch <close> = assert(model:batch { sequences = 2, kv_block = 4, threads = 2 })
  add(batch, request)
  assert(batch:run())
  local media, first = {}, request.media[1]
  for i, item in ipairs(request.media) do
    media[i] = {}
    for k, v in pairs(item) do media[i][k] = v end
    media[i].hash = ("%-32s"):format("another " .. i)
    media[i].features = item.features * 0.5
  end
  local other = add(batch, request, { media = media })
  assert(batch:run())
  t.eq(other.cached_tokens < first.at, true, "another picture was found in the cache")
  local cold = {}
  for k, v in pairs(request) do cold[k] = v end
  cold.media = media
  same(t, "another picture", other, alone(model, cold))
  local again = add(batch, request)
  assert(batch:run())
  same(t, "the same picture", again, want)
  t.eq(again.cached_tokens, #request.prompt - 1, "the same picture")
end

local function folder()
  return assert(uv.fs_mkdtemp(os.tmpname() .. ".XXXXXX"))
end

local function remove(path)
  for name in uv.fs_scandir_next, assert(uv.fs_scandir(path)) do os.remove(path .. "/" .. name) end
  assert(uv.fs_rmdir(path))
end

--- What one batch wrote to disk another one finds, the same picture and no other.
local function check_disk(t, model, request, want)
  local path = folder()
  local options = { sequences = 2, kv_block = 4, threads = 2, stride = 8, cache_folder = path }
  do
    local batch <close> = assert(model:batch(options))
    add(batch, request)
    assert(batch:run())
  end
  local batch <close> = assert(model:batch(options))
  local media = {}
  for i, item in ipairs(request.media) do
    media[i] = { hash = ("%-32s"):format("another " .. i) }
    for k, v in pairs(item) do media[i][k] = media[i][k] or v end
  end
  local other = add(batch, request, { media = media })
  assert(batch:run())
  t.eq(other.cached_tokens < request.media[1].at, true, "another picture was found on disk")
  local seq = add(batch, request)
  assert(batch:run())
  same(t, "from disk", seq, want)
  t.eq(seq.cached_tokens, #request.prompt - 1, "from disk")
  t.eq(batch:stats().prefix.disk_errors, 0)
  batch:close()
  remove(path)
end

--- Pinned pictures stay while others come; features are held while a request lives, and no more
--- of them than the limit.
local function check_room(t, model, list, want)
  local request, bytes = list[2], 0
  for _, item in ipairs(request.media) do
    bytes = bytes + 4 * item.features.size * (1 + #(item.deepstack or {}))
  end
  local batch <close> = assert(model:batch { sequences = 2, kv_block = 4, threads = 2,
    cache_tokens = 2 * #list[3].prompt, context = #list[3].prompt + 30, media_bytes = bytes })
  local seq = add(batch, request)
  t.eq(batch:stats().media_bytes, bytes)
  local none, why = batch:add(given(list[2], { prompt = request.prompt, max_tokens = 1 }))
  t.eq(none, nil)
  t.match(tostring(why), "bytes of features, which do not fit: " .. bytes .. " of " .. bytes)
  assert(seq:cancel())
  t.eq(batch:stats().media_bytes, 0)
  add(batch, request)
  assert(batch:run())
  local pinned = batch:pin(request.prompt, given(request, {}))
  t.eq(pinned >= #request.prompt - 1, true, "pinned")
  for i = 1, 3 do
    local prompt = {}
    for k = 1, #list[3].prompt do prompt[k] = (k * i) % 100 end
    add(batch, { prompt = prompt, max_tokens = 2, ignore_eos = true, temperature = 0 })
    assert(batch:run())
  end
  local again = add(batch, request)
  assert(batch:run())
  same(t, "pinned", again, want[2])
  t.eq(again.cached_tokens, #request.prompt - 1, "pinned")
  t.eq(batch:pin(request.prompt, given(request, { off = true })) > 0, true)
end

--- On the engine thread, with choices, grants of one to three tokens, and cancels on the way.
local function check_thread(t, model, list, want)
  local turn = 0
  local batch <close> = assert(model:batch { sequences = 4, kv_block = 8, threads = 2,
    policy = function(step)
      turn = turn + 1
      step:decode()
      for i, seq in ipairs(step:prompts()) do
        local n = math.min(seq.left, step.left, 1 + (turn + i) % 3)
        if n > 0 then step:give(seq, n) end
      end
    end })
  assert(batch:start())
  local sequences, goes = {}, {}
  for i, r in ipairs(list) do
    goes[i] = add(batch, r)
    local first, second = add(batch, r, { n = 2 })
    sequences[i] = { first, second }
    assert(goes[i]:cancel())
  end
  while batch.alive > 0 do uv.run "once" end
  assert(batch:stop())
  for i, pair in ipairs(sequences) do
    same(t, ("request %d on the engine thread"):format(i), pair[1], want[i])
    if list[i].temperature == 0 then same(t, "its second choice", pair[2], want[i]) end
  end
  t.eq(batch:stats().media_bytes, 0)
end

local names = pictures.models()
if forced then names = { names[1], names[#names] } end
if #names == 0 then
  test("vision models", function(t) t.skip("13 models: there is no " .. pictures.folder) end)
end

local function check_invariants(t, model, cases)
  check_chunks(t, model, cases[2], "case 1")
  check_chunks(t, model, cases[3], "case 2")
  local list, want = requests(cases), {}
  for i, r in ipairs(list) do want[i] = alone(model, r) end
  check_company(t, model, list, want, cases)
  check_coming_and_going(t, model, list, want)
  for i = 2, #list do check_by_hand(t, model, list[i], want[i]) end
  check_identity(t, model, list[2], want[2])
  check_identity(t, model, list[4], want[4])
  check_disk(t, model, list[3], want[3])
  check_disk(t, model, list[4], want[4])
  check_room(t, model, list, want)
  check_thread(t, model, list, want)
end

for _, name in ipairs(names) do
  test(name, function(t)
    local model <close> = assert(perigee.open(pictures.folder .. name))
    local cases = {}
    for k = 0, 4 do cases[#cases + 1] = pictures.case(name, k) end
    for k, case in ipairs(cases) do
      check_positions(t, model, case, ("case %d"):format(k - 1))
      check_reference(t, model, case, ("case %d"):format(k - 1))
    end
    check_invariants(t, model, cases)
  end)
end

-- Models of the project that see text only: their rows take features all the same.
for _, name in ipairs { "gemma3_text", "llama", "qwen3_5_text", "gpt_oss", "lfm2-mlx4" } do
  test("invented pictures in " .. name, function(t)
    local model <close> = assert(perigee.open("tests/golden/" .. name))
    check_invariants(t, model, pictures.invented(model, name == "gemma3_text"))
  end)
end

test("refusals name the item and both numbers", function(t)
  local model <close> = assert(perigee.open "tests/golden/llama")
  local batch <close> = assert(model:batch { sequences = 1 })
  local width, hash = model.config.hidden_size, ("x"):rep(32)
  local function add_with(item, more)
    local request = { prompt = { 1, 9, 9, 9, 2 }, media = { { at = 2, tokens = 3, hash = hash,
      features = perigee.tensor.zeros { 3, width } } } }
    for k, v in pairs(item or {}) do request.media[1][k] = v end
    for k, v in pairs(more or {}) do request[k] = v end
    return batch:add(request)
  end
  local function refused(code, text, item, more)
    local seq, why = add_with(item, more)
    t.fails(code, seq, why)
    t.match(tostring(why), text)
  end
  local function raises(text, item, more)
    t.raises(function() add_with(item, more) end, text)
  end
  refused("argument", "at must be between 1 and the prompt's 5 tokens, got 6", { at = 6 })
  refused("argument", "has 4 tokens, but the prompt has 3 placeholders %(id 9%) from token 2",
    { tokens = 4, features = perigee.tensor.zeros { 4, width } })
  refused("argument", "media%[2%] starts at token 3, inside media%[1%]", nil, { media = {
    { at = 2, tokens = 3, hash = hash, features = perigee.tensor.zeros { 3, width } },
    { at = 3, tokens = 1, hash = hash, features = perigee.tensor.zeros { 1, width } } } })
  refused("argument", "rope_delta must be between %-5 and",
    nil, { positions = { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } },
    rope_delta = -6 })
  raises("media[1]: features are [2, 64], expected [3, " .. width .. "]",
    { features = perigee.tensor.zeros { 2, 64 } })
  raises("media[1]: features must be a tensor, got boolean", { features = false })
  raises("contiguous f32 matrix", { features = perigee.tensor.zeros { width, 3 }:t() })
  raises("media[1]: hash must have 32 bytes, got 3", { hash = "abc" })
  raises("media[1] has 1 deepstack tensors, the model takes 0",
    { deepstack = { perigee.tensor.zeros { 3, width } } })
  raises("positions[2] has 4 entries, the prompt has 5 tokens",
    nil, { positions = { { 0, 0, 0, 0, 0 }, { 0, 0, 0, 0 }, { 0, 0, 0, 0, 0 } } })
  raises("positions must be three lists", nil, { positions = { {} } })
  raises("media[1] must be a table, got number", nil, { media = { 5 } })
  raises("media must be a list of items, got string", nil, { media = "x" })
  t.ok(add_with())
  assert(batch:run())
end)
