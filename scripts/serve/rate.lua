-- rate: rate limits per API key and minute: requests, and prompt and completion tokens.
--
--   local rate = require("serve.rate").new(function() return config.rate end)
--   local ok, err, headers = rate:take(who)     -- before a request; err: a 429 (lib/errors.lua)
--   rate:charge(who, tokens)                    -- after it, when its tokens are known
--
-- Token buckets: each holds at most one minute's worth and refills evenly. A request costs one. Its
-- tokens are charged when they are known, so their bucket may fall below zero; requests are refused
-- until it is positive again. A full bucket is the same as a new one, so full buckets are removed
-- and clients with many addresses cannot fill the memory.
local errors = require "lib.errors"
local peers = require "http.peer"
local uv = require "luv"

local MINUTE = 60
local SWEEP = 1024 -- buckets at which full ones are first removed

local Rate = {}
Rate.__index = Rate

--- The limits of a key: its own or the general ones; nil for none.
local function limits_of(self, who)
  local rate = self.settings()
  if not rate then return nil end
  local own = rate.keys and rate.keys[who.name] or {}
  return { requests = own.requests or rate.requests, tokens = own.tokens or rate.tokens }
end

--- The bucket, refilled for the time since its last use.
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
    if b.level + (now - b.at) * b.limit / MINUTE >= b.limit then
      self.buckets[id] = nil
    else
      kept = kept + 1
    end
  end
  self.count, self.kept = kept, kept
end

local kinds = { { "requests", need = 1 }, { "tokens", need = 0 } }

local function id_of(kind, who)
  return kind .. "\0" .. (who.name and "key\0" .. who.name
    or "peer\0" .. peers.network(who.peer or ""))
end

--- The x-ratelimit headers of OpenAI's API.
local function describe(headers, kind, bucket)
  headers["x-ratelimit-limit-" .. kind] = ("%d"):format(bucket.limit)
  headers["x-ratelimit-remaining-" .. kind] = ("%d"):format(math.max(0, math.floor(bucket.level)))
  local seconds = (bucket.limit - bucket.level) * MINUTE / math.max(bucket.limit, 1e-9)
  headers["x-ratelimit-reset-" .. kind] = ("%.3fs"):format(seconds)
end

--- Seconds until a bucket has enough; nil if it has.
local function lacks(bucket, need)
  if bucket.level > 0 and bucket.level >= need then return nil end
  if bucket.limit <= 0 then return 24 * 3600 end -- nothing is ever allowed: try again tomorrow
  return (math.max(need, 1) - bucket.level) * MINUTE / bucket.limit
end

--- Takes one request of who = { name of the key or nil, peer }. Returns true, nil and headers; or
--- nil, an error and headers.
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
        message = ("rate limit of %d %s per minute exceeded, try again in %.1f s"):format(limit,
          name, wait) }
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

--- Charges the tokens of a finished request.
function Rate:charge(who, tokens)
  local limits = limits_of(self, who)
  if not (limits and limits.tokens) or tokens <= 0 then return end
  local bucket = fill(self, id_of("tokens", who), limits.tokens)
  bucket.level = bucket.level - tokens
end

--- settings() returns the table `rate` of the configuration, or nil. clock() is given by tests.
local function new(settings, clock)
  clock = clock or function() return uv.hrtime() * 1e-9 end
  return setmetatable({ settings = settings, clock = clock, buckets = {}, count = 0, kept = 0 },
    Rate)
end

return { new = new }
