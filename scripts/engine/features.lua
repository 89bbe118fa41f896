-- features: what a vision tower computed, by the content of the picture, within a budget of bytes.
--
--   local cache = features.new { bytes = 256 << 20 }
--   local job = cache:get(items, compute, done)
--
-- items: a list of { hash = 32 bytes, … }; compute(missing, deliver): computes those of the items
-- that nobody has computed or is computing, and calls deliver(results, err) once, now or later;
-- done(results, err): gets the results in the order of the items. A result is { features = tensor,
-- deepstack = list of tensors } and is shared, so nobody may change it. Requests with the same
-- picture share one computation: the later ones wait for it. After job:cancel() its `done` is not
-- called; a computation that no job waits for is cancelled if compute returned an object with
-- cancel. Failures are not remembered.
--
-- A result that was evicted stays alive as long as a request uses it.
local Cache, Job = {}, {}
Cache.__index, Job.__index = Cache, Job
Cache.__name, Job.__name = "perigee.FeatureCache", "perigee.FeatureJob"

local BYTES = 256 << 20 -- 1024 tokens of width 4096 are 16 MiB: sixteen large pictures

--- options: bytes (256 MiB; 0: only concurrent requests share).
local function new(options)
  local ends = {} -- a ring: ends.newer is the oldest entry
  ends.newer, ends.older = ends, ends
  return setmetatable({ limit = options and options.bytes or BYTES, entries = {}, pending = {},
    ends = ends, bytes = 0, count = 0, hits = 0, misses = 0, shared = 0, evictions = 0 }, Cache)
end

-- ---- entries ------------------------------------------------------------------------------------

local function unlink(e) e.older.newer, e.newer.older = e.newer, e.older end

local function touch(self, e)
  if e.newer then unlink(e) end
  e.older, e.newer = self.ends.older, self.ends
  e.older.newer, self.ends.older = e, e
end

local function drop(self, e)
  unlink(e)
  self.entries[e.hash] = nil
  self.bytes, self.count = self.bytes - e.bytes, self.count - 1
end

local function size_of(result)
  local bytes = result.features.size * 4
  for _, plane in ipairs(result.deepstack or {}) do bytes = bytes + plane.size * 4 end
  return bytes
end

local function store(self, hash, result)
  local e = { hash = hash, result = result, bytes = size_of(result) }
  if e.bytes > self.limit then return end
  if self.entries[hash] then drop(self, self.entries[hash]) end
  self.entries[hash] = e
  touch(self, e)
  self.bytes, self.count = self.bytes + e.bytes, self.count + 1
  while self.bytes > self.limit do
    drop(self, self.ends.newer)
    self.evictions = self.evictions + 1
  end
end

-- ---- computations -------------------------------------------------------------------------------

--- One more result of a job, or its failure, unless it failed or was cancelled before. The job is
--- done with its last result.
local function settle(job, hash, result, err)
  if job.over then return end
  if not result then
    job.over = true
    return job.done(nil, err)
  end
  job.results[hash] = result
  job.left = job.left - 1
  if job.left > 0 then return end
  local list = {}
  for i, item in ipairs(job.items) do list[i] = job.results[item.hash] end
  job.done(list)
end

--- The end of one call of compute, once: all who wait for its pictures get them.
local function deliver(self, group, results, err)
  for i, hash in ipairs(group.hashes) do
    local waiting = self.pending[hash]
    if waiting and waiting.group == group then
      self.pending[hash] = nil
      local result = results and results[i]
      if result then store(self, hash, result) end
      for _, job in ipairs(waiting.jobs) do
        settle(job, hash, result, err or "the tower returned no features")
      end
    end
  end
end

local function start(self, job, missing, compute)
  local group = { hashes = {} }
  for i, item in ipairs(missing) do
    group.hashes[i] = item.hash
    self.pending[item.hash] = { group = group, jobs = { job } }
  end
  self.misses = self.misses + #missing
  local ok, handle = pcall(compute, missing, function(results, err)
    deliver(self, group, results, err)
  end)
  if not ok then return deliver(self, group, nil, handle) end
  group.handle = handle
end

function Cache:get(items, compute, done)
  local job = setmetatable({ cache = self, items = items, done = done, results = {}, left = 0 },
    Job)
  local missing, wanted, found = {}, {}, {}
  for _, item in ipairs(items) do
    if not wanted[item.hash] then -- else the same picture twice
      wanted[item.hash], job.left = true, job.left + 1
      local e, waiting = self.entries[item.hash], self.pending[item.hash]
      if e then
        touch(self, e)
        found[item.hash], self.hits = e.result, self.hits + 1
      elseif waiting then
        waiting.jobs[#waiting.jobs + 1], self.shared = job, self.shared + 1
      else
        missing[#missing + 1] = item
      end
    end
  end
  if #items == 0 then done({}) end
  for hash, result in pairs(found) do settle(job, hash, result) end
  if #missing > 0 then start(self, job, missing, compute) end
  return job
end

--- The same in the foreground: compute(missing) returns the results, or raises.
function Cache:fetch(items, compute)
  local list, why
  self:get(items, function(missing, give) give(compute(missing)) end, function(results, err)
    list, why = results, err
  end)
  if not list then error(why or "the features are being computed elsewhere", 0) end
  return list
end

--- Nobody waits for this job any more; `done` is not called.
function Job:cancel()
  if self.over then return end
  self.over = true
  local cache, groups = self.cache, {}
  for _, item in ipairs(self.items) do
    local waiting = cache.pending[item.hash]
    for i = waiting and #waiting.jobs or 0, 1, -1 do
      if waiting.jobs[i] == self then table.remove(waiting.jobs, i) end
    end
    if waiting then groups[waiting.group] = true end
  end
  for group in pairs(groups) do
    local needed = false
    for _, hash in ipairs(group.hashes) do
      local waiting = cache.pending[hash]
      needed = needed or waiting ~= nil and waiting.group == group and #waiting.jobs > 0
    end
    if not needed then
      deliver(cache, group, nil, "cancelled")
      if group.handle and group.handle.cancel then group.handle:cancel() end
    end
  end
end

function Cache:clear()
  while self.ends.newer ~= self.ends do drop(self, self.ends.newer) end
end

--- Counters: entries and bytes now; hits, misses (pictures computed), shared (requests that waited
--- for another's computation) and evictions so far.
function Cache:stats()
  return { entries = self.count, bytes = self.bytes, hits = self.hits, misses = self.misses,
    shared = self.shared, evictions = self.evictions }
end

return { new = new }
