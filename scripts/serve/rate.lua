-- rate: how much a key may ask for in a minute: requests, and tokens of prompts and answers.
--
--   local rate = require("serve.rate").new(function() return config.rate end)
--   local ok, err, headers = rate:take(who)     -- before a request; err: a 429 (lib/errors.lua)
--   rate:charge(who, tokens)                    -- after it, when its tokens are known
--
-- Buckets: each holds at most a minute's worth, and refills evenly. A request costs one; its tokens are paid when they are
-- known, so a bucket of tokens may fall below zero, and the next request waits until it is above again. A bucket that is full
-- says nothing that a new one would not: those are forgotten, so clients cannot fill the memory with names.
local errors = require "lib.errors"
local uv = require "luv"

local MINUTE, SWEEP = 60, 1024

local Rate = {}
Rate.__index = Rate

--- Limits of a key: its own, else those of everyone; nil: none.
local function limits_of(self, who)
  local rate = self.settings()
  if not rate then return nil end
  local own = rate.keys and rate.keys[who.name] or {}
  return { requests = own.requests or rate.requests, tokens = own.tokens or rate.tokens }
end

--- The bucket with what has flowed in since the last time.
local function fill(self, id, limit)
  local now, bucket = self.clock(), self.buckets[id]
  if not bucket then
    bucket = { level = limit }
    self.buckets[id], self.count = bucket, self.count + 1
  else
    bucket.level = math.min(limit, bucket.level + (now - bucket.at) * limit / MINUTE)
  end
  bucket.at, bucket.limit = now, limit
  return bucket
end

local function sweep(self)
  if self.count < SWEEP + 2 * self.kept then return end
  local now, kept = self.clock(), 0
  for id, b in pairs(self.buckets) do
    if b.level + (now - b.at) * b.limit / MINUTE >= b.limit then self.buckets[id] = nil else kept = kept + 1 end
  end
  self.count, self.kept = kept, kept
end

local kinds = { { "requests", need = 1 }, { "tokens", need = 0 } }

local function id_of(kind, who) return kind .. "\0" .. (who.name and "key\0" .. who.name or "peer\0" .. (who.peer or "")) end

--- Headers as OpenAI's clients read them.
local function describe(headers, kind, bucket)
  headers["x-ratelimit-limit-" .. kind] = ("%d"):format(bucket.limit)
  headers["x-ratelimit-remaining-" .. kind] = ("%d"):format(math.max(0, math.floor(bucket.level)))
  headers["x-ratelimit-reset-" .. kind] = ("%.3fs"):format((bucket.limit - bucket.level) * MINUTE / math.max(bucket.limit, 1e-9))
end

--- Seconds until a bucket has enough; nil: it has.
local function lacks(bucket, need)
  if bucket.level > 0 and bucket.level >= need then return nil end
  return bucket.limit > 0 and (math.max(need, 1) - bucket.level) * MINUTE / bucket.limit or 24 * 3600
end

--- One request of who = { name = of the key or nil, peer = }. True and headers; or nil, an error and headers.
function Rate:take(who)
  local limits = limits_of(self, who)
  if not limits then return true end
  sweep(self)
  local headers, buckets, refusal = {}, {}, nil
  for i, kind in ipairs(kinds) do
    local name, limit = kind[1], limits[kind[1]]
    local bucket = limit and fill(self, id_of(name, who), limit)
    local wait = bucket and lacks(bucket, kind.need)
    buckets[i] = bucket or false
    if wait and not refusal then
      refusal = errors.new { status = 429, code = "rate_limit_exceeded", retry_after = wait,
        message = ("rate limit: %d %s per minute are allowed; try again in %.1f s"):format(limit, name, wait) }
    end
  end
  for i, kind in ipairs(kinds) do
    local bucket = buckets[i]
    if bucket then
      if not refusal then bucket.level = bucket.level - kind.need end
      describe(headers, kind[1], bucket)
    end
  end
  if refusal then return nil, refusal, headers end
  return true, nil, headers
end

--- The tokens of a request that is done.
function Rate:charge(who, tokens)
  local limits = limits_of(self, who)
  if not (limits and limits.tokens) or tokens <= 0 then return end
  local bucket = fill(self, id_of("tokens", who), limits.tokens)
  bucket.level = bucket.level - tokens
end

--- settings(): the table `rate` of the configuration, or nil. clock(): seconds, for tests.
local function new(settings, clock)
  return setmetatable({ settings = settings, clock = clock or function() return uv.hrtime() * 1e-9 end, buckets = {}, count = 0,
    kept = 0 }, Rate)
end

return { new = new }
