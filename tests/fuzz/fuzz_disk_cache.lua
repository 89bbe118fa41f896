-- Damaged files in the folder of the prefix cache, read through the disk tier of a batch: answers
-- and the probabilities of their tokens are those of a batch without a cache, hit or not.
--
-- An input is a list of edits of the files that two prompts left, SIZE bytes each: what to do, to
-- which file, where (two bytes), a value and a length.
package.path = package.path .. ";tests/lua/?.lua"
local driver = require "driver"
local perigee = require "perigee"
local tiny = require "tiny"
local uv = require "luv"

local SIZE, EDITS = 6, 12
local CONTEXT, TOKENS = 256, 4

local shm = uv.fs_access("/dev/shm", "W")
local place = shm and "/dev/shm" or uv.os_tmpdir()
local folder = assert(uv.fs_mkdtemp(place .. "/perigee-fuzz-XXXXXX"))
local model = tiny.model { layers = 1, width = 32, heads = 2, kv = 1, ff = 32 }

local function empty()
  local request = assert(uv.fs_scandir(folder))
  for name, kind in function() return uv.fs_scandir_next(request) end do
    local path = folder .. "/" .. name
    if kind == "directory" then uv.fs_rmdir(path) else uv.fs_unlink(path) end
  end
end

-- ---- answers ------------------------------------------------------------------------------------

local function numbers(n, k)
  local ids = {}
  for i = 1, n do ids[i] = (i * k * 31 + k) % 250 end
  return ids
end

-- The second begins like the first.
local PROMPTS = { numbers(100, 3), numbers(70, 3) }
for i = 71, 110 do PROMPTS[2][i] = i end

local function open(with_cache)
  return assert(perigee.batch.open(model.graph, { sequences = 1, context = CONTEXT,
    cache_tokens = 512, threads = 1, kv_block = 16, step_tokens = 128,
    cache_bytes = with_cache and 1 << 20 or 0, cache_folder = with_cache and folder or nil }))
end

--- The answer to a prompt as one text, and how many of its tokens came from the cache.
local function answer(batch, prompt)
  local id = assert(batch:command("add", { prompt = prompt, max_tokens = TOKENS, temperature = 0,
    ignore_eos = true, top_logprobs = 1 }))
  local out, cached = {}, 0
  for _ = 1, 20000 do
    local events = batch:step { { id, 128 } }
    for _, event in ipairs(events) do
      if event.id then out[#out + 1] = ("%d %.17g"):format(event.id, event.logprob or 0) end
      cached = math.max(cached, event.cached_tokens or 0)
      if event.finish then
        out[#out + 1] = event.finish
        return table.concat(out, ", "), cached
      end
    end
    if #events == 0 then uv.sleep(1) end -- for the thread that reads the disk
  end
  error "the sequence does not end"
end

local function answers(with_cache)
  local batch <close> = open(with_cache)
  local list, cached = {}, 0
  for i, prompt in ipairs(PROMPTS) do
    local hit
    list[i], hit = answer(batch, prompt)
    if i == 1 then cached = hit end -- the second one finds the first in memory
  end
  return list, cached
end

local right = answers(false)
answers(true)
local names, files = {}, {}
for _, path in ipairs(driver.files_of(folder)) do
  names[#names + 1] = path:match "[^/]+$"
  files[#files + 1] = driver.read_file(path)
end
if #names < 4 then error(("the prompts left %d files"):format(#names)) end

-- ---- edits --------------------------------------------------------------------------------------

--- Each changes the list of files: { name, bytes } with bytes nil for a folder, false for none.
local edits = {
  function(f, at, value) -- another byte
    return f:sub(1, at - 1) .. string.char(value) .. f:sub(at + 1)
  end,
  function(f, at, value) -- another bit
    local byte = (f:byte(at) or 0) ~ (1 << value % 8)
    return f:sub(1, at - 1) .. string.char(byte) .. f:sub(at + 1)
  end,
  function(f, at) return f:sub(1, at - 1) end,
  function(f, at, _, n) return f:sub(1, at - 1) .. f:sub(at + n) end,
  function(f, at, value, n) -- inserted
    return f:sub(1, at - 1) .. string.char(value):rep(n) .. f:sub(at)
  end,
  function(f, at, _, n) -- zeros
    return f:sub(1, at - 1) .. ("\0"):rep(n) .. f:sub(at + n)
  end,
  function(f, at, value, n) -- a part of another file at the same place
    local other = files[value % #files + 1]
    return f:sub(1, at - 1) .. other:sub(at, at + n * 16) .. f:sub(at + n * 16 + 1)
  end,
  function(_, _, value) return files[value % #files + 1] end, -- another file under this name
  function() return false end,
  function() return nil end,
  function(f, _, value, n) return f .. string.char(value):rep(n * 64) end,
  function(f, at) return f:sub(at) .. f:sub(1, at - 1) end,
}

local function write_all(input)
  empty()
  local now = {}
  for i, bytes in ipairs(files) do now[i] = bytes end
  for k = 0, math.min(#input // SIZE, EDITS) - 1 do
    local op, file, high, low, value, n = input:byte(k * SIZE + 1, k * SIZE + SIZE)
    local i = file % #files + 1
    if now[i] then
      local at = (high << 8 | low) % math.max(#now[i], 1) + 1
      local changed = edits[op % #edits + 1](now[i], at, value, n)
      now[i] = changed
    end
  end
  for i, name in ipairs(names) do
    local path = folder .. "/" .. name
    if now[i] then
      driver.write_file(path, now[i])
    elseif now[i] == nil then
      uv.fs_mkdir(path, 448)
    end
  end
end

-- ---- the target ---------------------------------------------------------------------------------

driver.main {
  name = "disk_cache", most = SIZE * EDITS,
  generate = function(r) return r:bytes(SIZE * r:below(4)) end,
  run = function(input)
    write_all(input)
    local got, cached = answers(true)
    for i, text in ipairs(got) do
      if text ~= right[i] then
        error(("prompt %d, %d tokens cached: got %s, want %s"):format(i, cached, text, right[i]))
      end
    end
    if #input < SIZE and cached == 0 then error "whole files give no hit" end
  end,
  close = function()
    empty()
    uv.fs_rmdir(folder)
    model.graph:close()
  end,
}
