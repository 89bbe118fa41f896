-- metrics: counters, gauges and histograms for Prometheus.
--
--   local metrics = require("serve.metrics").new()
--   metrics.ttft:observe(0.12, { model = "moonlet" })          -- a field per family below
--   local mine = metrics:counter("perigee_things_total", "Things.")
--   mine:add(1, { kind = "small" })
--   metrics:collect(function() … set gauges … end)              -- called before every text()
--
-- A family has one series per set of labels. Labels come from the server (model names, key names,
-- reasons), never from clients, whose values could be without number. Should a script get that
-- wrong, a family stops at SERIES sets and perigee_metrics_dropped_total counts the rest.
local metrics = { SERIES = 1000 }

local SECONDS = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
  120 }
local SIZES = { 1, 2, 4, 8, 16, 32, 64, 128, 256 }

-- Field, kind, name after "perigee_", help, buckets. The pipeline sets those of requests and
-- tokens, serve/status the gauges, hooks/phases those of scripts.
metrics.families = {
  { "requests", "counter", "http_requests_total", "HTTP requests by route, method and status." },
  { "rejected", "counter", "requests_rejected_total",
    "Requests refused before any work, by reason." },
  { "answers", "counter", "answers_total", "Finished sequences, by model and finish reason." },
  { "duration", "histogram", "request_duration_seconds",
    "From the first byte of the request to the last of the response.", SECONDS },
  { "ttft", "histogram", "time_to_first_token_seconds",
    "From the request to its first generated token.", SECONDS },
  { "inter_token", "histogram", "inter_token_latency_seconds",
    "Between two generated tokens of a sequence.", SECONDS },
  { "queue_time", "histogram", "queue_time_seconds",
    "From the request to the start of its prefill.", SECONDS },
  { "prompt_tokens", "counter", "prompt_tokens_total",
    "Prompt tokens of requests, cached ones included." },
  { "generated_tokens", "counter", "generated_tokens_total", "Generated tokens." },
  { "cached_tokens", "counter", "cached_prompt_tokens_total",
    "Prompt tokens found in the prefix cache." },
  { "prefill_tokens", "counter", "prefill_tokens_total", "Prompt tokens computed in steps." },
  { "decode_tokens", "counter", "decode_tokens_total", "Tokens generated in steps." },
  { "steps", "counter", "steps_total", "Engine steps." },
  { "step_seconds", "counter", "step_seconds_total",
    "Time in steps, by part: schedule, compute, sample, lua." },
  { "batch_sequences", "histogram", "batch_sequences", "Sequences per step.", SIZES },
  { "running", "gauge", "sequences_running", "Sequences in prefill or decode." },
  { "waiting", "gauge", "sequences_waiting", "Sequences in the queue." },
  { "preempted", "counter", "preemptions_total",
    "Sequences whose KV cache was taken away, to be recomputed." },
  { "cache_lookups", "counter", "prefix_cache_lookups_total",
    "Prompts looked up in the prefix cache." },
  { "cache_hits", "counter", "prefix_cache_hits_total", "Lookups that found a cached prefix." },
  { "cache_evictions", "counter", "prefix_cache_evictions_total",
    "Evicted entries of the prefix cache." },
  { "cache_bytes", "gauge", "prefix_cache_bytes",
    "Size of the prefix cache, by place: memory, disk." },
  { "cache_tokens", "gauge", "cache_tokens",
    "Capacity of the KV cache in tokens, by kind: all, free." },
  { "pictures", "counter", "pictures_total",
    "Decoded pictures and videos of requests, by model and kind." },
  { "tower_seconds", "counter", "vision_seconds_total", "Time in vision towers." },
  { "feature_hits", "counter", "picture_cache_hits_total",
    "Pictures whose features were cached, or were being computed for another request." },
  { "feature_misses", "counter", "picture_cache_misses_total",
    "Pictures whose features had to be computed." },
  { "feature_bytes", "gauge", "picture_cache_bytes", "Size of the cache of features." },
  { "decoder_jobs", "counter", "picture_decoder_jobs_total", "Jobs of the picture decoder." },
  { "decoder_restarts", "counter", "picture_decoder_restarts_total",
    "Processes of the picture decoder that died or were late and were replaced." },
  { "memory", "gauge", "memory_bytes",
    "Memory, by what: resident, heap (Lua), objects; per model: weights, caches, activations." },
  { "models", "gauge", "model_state", "1 for the current state of each model." },
  { "connections", "gauge", "http_connections", "Open connections." },
  { "uptime", "gauge", "uptime_seconds", "Time since the start." },
  { "draining", "gauge", "draining", "1 while the server shuts down." },
  { "strikes", "counter", "script_strikes_total", "Failures of scripts, by script and phase." },
  { "stale", "gauge", "script_stale",
    "1 if the scripts on disk could not be loaded and older ones are in use." },
  { "scripts_version", "gauge", "scripts_version", "Version of the scripts in use." },
  { "dropped", "counter", "metrics_dropped_total",
    "Observations dropped because a family has too many sets of labels." },
}

-- ---- series -------------------------------------------------------------------------------------

local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

--- model="a",key="b", sorted by name; "" without labels.
local function label_text(labels)
  if not labels then return "" end
  local names = {}
  for name in pairs(labels) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do
    names[i] = ('%s="%s"'):format(name, (tostring(labels[name]):gsub('[\\"\n]', escapes)))
  end
  return table.concat(names, ",")
end

local Family = {}
Family.__index = Family

local function series(self, labels)
  local key = label_text(labels)
  local found = self.series[key]
  if found then return found end
  if self.count >= metrics.SERIES then
    if self.dropped then self.dropped:add(1) end
    return nil
  end
  found = self.kind == "histogram" and { sum = 0, n = 0 } or { value = 0 }
  for i = 1, #(self.buckets or {}) do found[i] = 0 end
  self.series[key], self.count = found, self.count + 1
  return found
end

--- Adds n to a counter or a gauge; to a gauge n may be negative.
function Family:add(n, labels)
  local s = series(self, labels)
  if s then s.value = s.value + (n or 1) end
end

--- Sets a gauge, or a counter that is kept elsewhere.
function Family:set(n, labels)
  local s = series(self, labels)
  if s then s.value = n end
end

local function observe(buckets, s, x)
  s.sum, s.n = s.sum + x, s.n + 1
  for i = 1, #buckets do
    if x <= buckets[i] then
      s[i] = s[i] + 1
      return
    end
  end
end

--- Adds a value to a histogram.
function Family:observe(x, labels)
  local s = series(self, labels)
  if s then observe(self.buckets, s, x) end
end

--- Returns observe(x) for fixed labels, for values too frequent to look up their series each time.
function Family:observer(labels)
  local buckets, s = self.buckets, series(self, labels)
  return function(x)
    if s then observe(buckets, s, x) end
  end
end

--- Removes every series, for gauges whose labels change.
function Family:clear() self.series, self.count = {}, 0 end

-- ---- the text -----------------------------------------------------------------------------------

local function number(x)
  if math.type(x) == "integer" then return tostring(x) end
  if x ~= x then return "NaN" end
  if x == math.huge then return "+Inf" end
  if x == -math.huge then return "-Inf" end
  return ("%.14g"):format(x)
end

local function write_histogram(put, family, key, s)
  local inner = key == "" and "" or key .. ","
  local outer = key == "" and "" or "{" .. key .. "}"
  local below = 0
  for i, limit in ipairs(family.buckets) do
    below = below + s[i]
    put(('%s_bucket{%sle="%s"} %d'):format(family.name, inner, ("%.14g"):format(limit), below))
  end
  put(('%s_bucket{%sle="+Inf"} %d'):format(family.name, inner, s.n))
  put(("%s_sum%s %s"):format(family.name, outer, number(s.sum)))
  put(("%s_count%s %d"):format(family.name, outer, s.n))
end

local function write_family(put, family)
  put(("# HELP %s %s"):format(family.name, (family.help:gsub("[\\\n]", escapes))))
  put(("# TYPE %s %s"):format(family.name, family.kind))
  local keys = {}
  for key in pairs(family.series) do keys[#keys + 1] = key end
  table.sort(keys)
  for _, key in ipairs(keys) do
    local s = family.series[key]
    if family.kind == "histogram" then
      write_histogram(put, family, key, s)
    else
      put(("%s%s %s"):format(family.name, key == "" and "" or "{" .. key .. "}", number(s.value)))
    end
  end
end

local Metrics = {}
Metrics.__index = Metrics

local function add_family(self, family)
  if not family.name:match "^perigee_[%w_]+$" then
    error(("the name of a metric must begin with perigee_, got '%s'"):format(family.name), 3)
  end
  local known = self.by_name[family.name]
  if known then
    if known.kind == family.kind then return known end
    error(("%s is already a %s, it cannot be a %s"):format(family.name, known.kind, family.kind), 3)
  end
  family.series, family.count, family.dropped = {}, 0, self.dropped
  setmetatable(family, Family)
  self.by_name[family.name] = family
  self.list[#self.list + 1] = family
  return family
end

function Metrics:counter(name, help)
  return add_family(self, { kind = "counter", name = name, help = help })
end

function Metrics:gauge(name, help)
  return add_family(self, { kind = "gauge", name = name, help = help })
end

--- buckets: ascending upper bounds; by default those for seconds.
function Metrics:histogram(name, help, buckets)
  return add_family(self,
    { kind = "histogram", name = name, help = help, buckets = buckets or SECONDS })
end

--- Registers a function to call before every text(). Its errors go to on_error.
function Metrics:collect(fn) self.collectors[#self.collectors + 1] = fn end

--- The exposition format, version 0.0.4.
function Metrics:text()
  for _, fn in ipairs(self.collectors) do
    local ok, why = pcall(fn)
    if not ok then self.on_error(why) end
  end
  local lines = {}
  local function put(line) lines[#lines + 1] = line end
  for _, family in ipairs(self.list) do
    if next(family.series) then write_family(put, family) end
  end
  return table.concat(lines, "\n") .. "\n"
end

--- Creates all families of this file. options.on_error(err) is called if a collector raises.
function metrics.new(options)
  local self = setmetatable({ list = {}, by_name = {}, collectors = {},
    on_error = options and options.on_error or error }, Metrics)
  for _, f in ipairs(metrics.families) do
    self[f[1]] = add_family(self,
      { kind = f[2], name = "perigee_" .. f[3], help = f[4], buckets = f[5] })
  end
  for _, family in ipairs(self.list) do
    if family ~= self.dropped then family.dropped = self.dropped end
  end
  return self
end

return metrics
