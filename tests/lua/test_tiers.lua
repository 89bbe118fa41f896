-- The prefix cache, its disk tier and the engine's queue under pressure: what must survive it.
local perigee = require "perigee"
local tiny = require "tiny"
local test = require("harness").test
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
  local ended = 0
  for _ = 1, 2000 do
    for _, event in ipairs((batch:drain())) do
      if event.finish == "cancel" then ended = ended + 1 end
    end
    if ended == #ids then break end
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
