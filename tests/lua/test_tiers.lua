-- The prefix cache, its disk tier and the engine's queue under pressure: what must survive it.
local perigee = require "perigee"
local tiny = require "tiny"
local harness = require "harness"
local test = harness.test
local uv = require "luv"

local function temporary()
  return assert(uv.fs_mkdtemp((os.getenv "TMPDIR" or "/tmp") .. "/perigee-XXXXXX"))
end

local function list(folder)
  local names = {}
  for name in function(r) return uv.fs_scandir_next(r) end, assert(uv.fs_scandir(folder)) do
    names[#names + 1] = name
  end
  return names
end

local function remove(folder)
  for _, name in ipairs(list(folder)) do uv.fs_unlink(folder .. "/" .. name) end
  uv.fs_rmdir(folder)
end

local function numbers(n, k)
  local ids = {}
  for i = 1, n do ids[i] = (i * k * 31 + k) % 250 end
  return ids
end

--- Steps until a sequence is done; its last event, and its ids.
local function finish(batch, prompt, tokens)
  local id = assert(batch:command("add", { prompt = prompt, max_tokens = tokens, temperature = 0,
    ignore_eos = true }))
  local ids = {}
  for _ = 1, 1000 do
    for _, event in ipairs((batch:step { { id, 512 } })) do
      if event.id then ids[#ids + 1] = event.id end
      if event.finish then return event, ids end
    end
    uv.sleep(1)
  end
  error "the sequence does not end"
end

test("a sequence that fills the pool leaves the disk tier alone", function(t)
  local folder = temporary()
  local batch <close> = assert(perigee.batch.open(tiny.model().graph, { sequences = 1,
    context = 4096, cache_tokens = 256, threads = 1, cache_folder = folder, kv_block = 32 }))
  local _, all = batch:room()
  for k = 1, 6 do finish(batch, numbers(100, k), 2) end
  local before = #list(folder)
  t.ok(before > 4, "six prompts left files: " .. before)
  t.eq(finish(batch, numbers(all - 10, 17), 5).finish, "length")
  t.ok(#list(folder) >= before, ("%d files of %d are left"):format(#list(folder), before))
  batch:close()
  remove(folder)
end)

test("pinned prefixes reach the disk", function(t)
  local prompt = numbers(100, 3)
  local counts = {}
  for i, pin in ipairs { false, true } do
    local folder = temporary()
    local batch <close> = assert(perigee.batch.open(tiny.model().graph, { sequences = 1,
      context = 4096, cache_tokens = 1024, threads = 1, cache_folder = folder }))
    finish(batch, prompt, 0)
    if pin then t.ok(batch:command("pin", { prompt = prompt }) >= 96) end
    batch:close()
    counts[i] = #list(folder)
    remove(folder)
  end
  t.eq(counts, { 4, 4 })
end)

test("a pin is of its tenant", function(t)
  local prompt = numbers(100, 3)
  local batch <close> = assert(perigee.batch.open(tiny.model().graph, { sequences = 1,
    context = 4096, cache_tokens = 1024, threads = 1 }))
  local id = assert(batch:command("add", { prompt = prompt, max_tokens = 0, salt = 5 }))
  while #batch:sequences() > 0 do batch:step { { id, 512 } } end
  t.eq(batch:command("pin", { prompt = prompt }), 0)
  t.eq(batch:command("pin", { prompt = prompt, salt = 6 }), 0)
  t.ok(batch:command("pin", { prompt = prompt, salt = 5 }) >= 96)
end)

--- In pools of every size: one prompt is cached, one sequence runs, and a third one, which begins
--- with the cached prompt, waits for memory and is tried again at every step.
test("prefix hits are counted once", function(t)
  local model = tiny.model { layers = 1 }
  for blocks = 6, 22 do
    local batch <close> = assert(perigee.batch.open(model.graph, { sequences = 2, context = 256,
      cache_tokens = blocks * 4, kv_block = 4, threads = 1, step_tokens = 64 }))
    local function add(prompt, tokens)
      return assert(batch:command("add", { prompt = prompt, max_tokens = tokens, temperature = 0,
        ignore_eos = true }))
    end
    local prompt, long = numbers(10, 3), numbers(18, 3)
    local first = add(prompt, 1)
    while #batch:sequences() > 0 do assert(batch:step { { first, 64 } }) end
    local running = add(numbers(9, 5), 8)
    assert(batch:step { { running, 64 } })
    local third = add(long, 2)
    local cached = 0
    for _ = 1, 40 do
      for _, event in ipairs((assert(batch:step { { running, 64 }, { third, 64 } }))) do
        if event.finish then cached = cached + event.cached_tokens end
      end
    end
    local stats = batch:stats()
    t.eq(#batch:sequences(), 0, "blocks " .. blocks)
    t.eq(stats.prefix.lookups, 3 + stats.preempted, "blocks " .. blocks)
    if stats.preempted == 0 then t.eq(stats.prefix.hit_tokens, cached, "blocks " .. blocks) end
  end
end)

test("a cancel is never refused", function(t)
  local model = tiny.model { layers = 6, width = 256, ff = 1024 }
  local batch <close> = assert(perigee.batch.open(model.graph, { sequences = 8, context = 4096,
    cache_tokens = 16384, threads = 1, step_tokens = 4096 }))
  local ids = {}
  for i = 1, 4500 do
    ids[i] = assert(batch:command("add", { prompt = { i % 250, 2, 3 }, max_tokens = 4 }))
  end
  local long = assert(batch:command("add", { prompt = numbers(2000, 7), max_tokens = 1 }))
  assert(batch:start())
  assert(batch:submit { { long, 4096 } })
  uv.sleep(20) -- the step computes, and commands wait
  local refused = 0
  for round = 1, 2 do
    for _, id in ipairs(ids) do
      if not batch:command("cancel", id) then refused = refused + 1 end
    end
    t.eq(refused, 0, "round " .. round)
  end
  local ended, deadline = 0, uv.hrtime() + harness.LIMIT_MS * 1e6
  while ended < #ids and uv.hrtime() < deadline do
    for _, event in ipairs((batch:drain())) do
      if event.finish == "cancel" then ended = ended + 1 end
    end
    uv.sleep(5)
  end
  t.eq(ended, #ids)
  batch:stop()
end)

test("retiring a batch does not block the loop, and loses no prefix", function(t)
  local folder = temporary()
  local model = tiny.model { layers = 8, heads = 8, kv = 8, dim = 64 }
  local batch = assert(perigee.batch.open(model.graph, { sequences = 4, context = 4096,
    cache_tokens = 4096, threads = 1, step_tokens = 512, cache_folder = folder }))
  for k = 1, 4 do finish(batch, numbers(512, k), 0) end
  local before = #list(folder)
  assert(batch:start())
  local done
  local began = uv.hrtime()
  assert(batch:retire(function() done = uv.hrtime() end))
  local took = (uv.hrtime() - began) / 1e6
  t.ok(took < 50, ("retire took %.0f ms"):format(took))
  t.raises(function() batch:stats() end, "retired")
  while not done do uv.run "once" end
  t.ok(#list(folder) >= 4 * 16 and before < 64, #list(folder) .. " files, before " .. before)
  batch:close()
  remove(folder)
end)

--- Runs requests on the engine thread until all are done; the last event and the ids of each.
local function serve(batch, requests)
  local seqs, left = {}, #requests
  for i, request in ipairs(requests) do
    seqs[i] = { id = assert(batch:command("add", request)), ids = {} }
    seqs[seqs[i].id] = seqs[i]
  end
  local function submit()
    local grants = {}
    for _, info in ipairs(batch:sequences()) do
      if info.left > 0 then grants[#grants + 1] = { info.id, info.left } end
    end
    if #grants > 0 and not batch:pending() then assert(batch:submit(grants)) end
  end
  local ends = uv.hrtime() + harness.LIMIT_MS * 1e6
  while uv.hrtime() < ends do
    if left > 0 then submit() end
    for _, event in ipairs((batch:drain())) do
      local seq = seqs[event.seq]
      if event.id then seq.ids[#seq.ids + 1] = event.id end
      if event.finish then seq.event, left = event, left - 1 end
    end
    if left == 0 and not batch:pending() then return seqs end -- a step may be queued for nothing
    uv.sleep(1)
  end
  error "the sequences do not end"
end

test("a prefix that was being read is read again after stop and start", function(t)
  local folder = temporary()
  local model = tiny.model { layers = 8, heads = 8, kv = 8, dim = 64 }
  local function open()
    return assert(perigee.batch.open(model.graph, { sequences = 4, context = 4096,
      cache_tokens = 4096, threads = 1, step_tokens = 512, cache_folder = folder }))
  end
  local prompt = numbers(1400, 7)
  local batch = open()
  finish(batch, prompt, 6)
  batch:close()
  batch = open()
  assert(batch:start())
  local id = assert(batch:command("add", { prompt = prompt, max_tokens = 6, temperature = 0 }))
  assert(batch:submit { { id, 512 } }) -- begins to read its prefix
  while batch:completed() == 0 do uv.sleep(1) end
  batch:stop()
  assert(batch:start())
  for _ = 1, 20000 do
    local last
    if not batch:pending() then assert(batch:submit { { id, 512 } }) end
    for _, event in ipairs((batch:drain())) do last = event.finish and event or last end
    if last then
      t.ok(last.cached_tokens >= 1376, "cached " .. last.cached_tokens)
      break
    end
    uv.sleep(1)
  end
  batch:stop()
  batch:close()
  remove(folder)
end)

test("prefixes on disk are read beside the engine", function(t)
  local folder = temporary()
  local model = tiny.model { layers = 8, heads = 8, kv = 8, dim = 64 }
  local function open()
    return assert(perigee.batch.open(model.graph, { sequences = 4, context = 4096,
      cache_tokens = 4096, threads = 1, step_tokens = 512, cache_folder = folder }))
  end
  local prompt = numbers(1400, 7)
  local request = { prompt = prompt, max_tokens = 6, temperature = 0, ignore_eos = true }
  local batch = open()
  local _, cold = finish(batch, prompt, 6)
  batch:close()
  batch = open()
  assert(batch:start())
  local stream = { prompt = { 1, 2, 3 }, max_tokens = 60, temperature = 0, ignore_eos = true }
  local seqs = serve(batch, { stream, request, request })
  for i = 2, 3 do
    t.eq(seqs[i].ids, cold)
    t.ok(seqs[i].event.cached_tokens >= 1376, "cached " .. seqs[i].event.cached_tokens)
  end
  local stats = batch:stats().prefix
  t.ok(stats.disk_reads >= 43 and stats.disk_reads <= 50, "reads " .. stats.disk_reads)
  t.eq(stats.disk_errors, 0)
  -- a damaged file costs a computation, and nothing else
  local other = numbers(300, 11)
  local more = serve(batch, { { prompt = other, max_tokens = 4, temperature = 0,
    ignore_eos = true } })[1].ids
  batch:stop()
  batch:close()
  for _, name in ipairs(list(folder)) do
    local f = assert(io.open(folder .. "/" .. name, "r+b"))
    f:seek("end", -1000)
    f:write "damaged"
    f:close()
  end
  batch = open()
  assert(batch:start())
  seqs = serve(batch, { request, { prompt = other, max_tokens = 4, temperature = 0,
    ignore_eos = true } })
  t.eq({ seqs[1].ids, seqs[2].ids }, { cold, more })
  -- cancelled while its prefix is read
  local id = assert(batch:command("add", request))
  assert(batch:submit { { id, 512 } })
  assert(batch:command("cancel", id))
  batch:stop()
  batch:close()
  remove(folder)
end)

test("memory of unused blocks goes back to the system", function(t)
  local model = tiny.model { layers = 8, heads = 8, kv = 8, dim = 64 }
  local batch <close> = assert(perigee.batch.open(model.graph, { sequences = 2, context = 4096,
    cache_tokens = 4096, threads = 1, step_tokens = 512, cache_bytes = 0 }))
  local prompt = numbers(2000, 7) -- 64 MB of keys and values
  local _, cold = finish(batch, prompt, 4)
  local before = uv.resident_set_memory()
  t.ok(batch:command "relax")
  local freed = (before - uv.resident_set_memory()) / 1e6
  if uv.os_uname().sysname == "Linux" then t.ok(freed > 50, "freed " .. freed .. " MB") end
  local _, again = finish(batch, prompt, 4)
  t.eq(again, cold)
end)
