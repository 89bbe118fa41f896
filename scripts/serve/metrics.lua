-- metrics: what the server counts, as Prometheus reads it.
--
--   local metrics = require("serve.metrics").new()
--   metrics.ttft:observe(0.12, { model = "moonlet" })          -- the families below are fields of it
--   local mine = metrics:counter("perigee_things_total", "Things.")
--   mine:add(1, { kind = "small" })
--   metrics:collect(function() … gauges set … end)              -- before every text()
--
-- A family has one series per set of labels. Labels come from the server (model names, key names, reasons), never from what
-- a client writes; should a script get that wrong, a family stops at SERIES sets and counts the rest in
-- perigee_metrics_dropped_total. Loop thread only, like all Lua.
local metrics = { SERIES = 1000 }

local SECONDS = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120 }
local SIZES = { 1, 2, 4, 8, 16, 32, 64, 128, 256 }

-- field, kind, name behind "perigee_", help, buckets. Who sets them: the pipeline those of requests and tokens, serve/status
-- the gauges, serve/phases those of scripts.
metrics.families = {
  { "requests", "counter", "http_requests_total", "HTTP requests by route, method and status." },
  { "rejected", "counter", "requests_rejected_total", "Requests refused before any work, by reason." },
  { "answers", "counter", "answers_total", "Generations that ended, by model and finish reason." },
  { "duration", "histogram", "request_duration_seconds", "From the request's first byte to the answer's last.", SECONDS },
  { "ttft", "histogram", "time_to_first_token_seconds", "From the request to its first token.", SECONDS },
  { "inter_token", "histogram", "inter_token_latency_seconds", "Between two tokens of one answer.", SECONDS },
  { "queue_time", "histogram", "queue_time_seconds", "From the request to the first prompt token that was read.", SECONDS },
  { "prompt_tokens", "counter", "prompt_tokens_total", "Prompt tokens of requests, cached ones too." },
  { "generated_tokens", "counter", "generated_tokens_total", "Tokens of answers." },
  { "cached_tokens", "counter", "cached_prompt_tokens_total", "Prompt tokens that the prefix cache held." },
  { "prefill_tokens", "counter", "prefill_tokens_total", "Prompt tokens that were computed." },
  { "decode_tokens", "counter", "decode_tokens_total", "Tokens that steps wrote." },
  { "steps", "counter", "steps_total", "Steps of the engine." },
  { "step_seconds", "counter", "step_seconds_total", "Seconds in steps, by part: plan, compute, sample, lua." },
  { "batch_sequences", "histogram", "batch_sequences", "Sequences of a step.", SIZES },
  { "running", "gauge", "rows_running", "Sequences with caches." },
  { "waiting", "gauge", "rows_waiting", "Sequences that wait for room." },
  { "preempted", "counter", "preemptions_total", "Sequences that had to give their caches back." },
  { "cache_lookups", "counter", "prefix_cache_lookups_total", "Prompts looked up in the prefix cache." },
  { "cache_hits", "counter", "prefix_cache_hits_total", "Lookups that found something." },
  { "cache_evictions", "counter", "prefix_cache_evictions_total", "Cached beginnings that were given up." },
  { "cache_bytes", "gauge", "prefix_cache_bytes", "Bytes of the prefix cache, by place: memory, disk." },
  { "cache_tokens", "gauge", "cache_tokens", "Tokens that the caches hold at most, and that are free, by kind." },
  { "memory", "gauge", "memory_bytes", "Memory by what: resident, heap (scripts), objects; and per model: weights, caches." },
  { "models", "gauge", "model_state", "1 for the state a model is in." },
  { "connections", "gauge", "http_connections", "Open connections." },
  { "uptime", "gauge", "uptime_seconds", "Since the start." },
  { "draining", "gauge", "draining", "1 while the server finishes what runs." },
  { "strikes", "counter", "script_strikes_total", "Failures of scripts, by script and phase." },
  { "stale", "gauge", "script_stale", "1 when the scripts on disk could not be loaded and older ones serve." },
  { "scripts_version", "gauge", "scripts_version", "Version of the scripts that serve." },
  { "dropped", "counter", "metrics_dropped_total", "Observations dropped because a family has too many sets of labels." },
}

-- ---- series --------------------------------------------------------------------------------------------------------

local escapes = { ["\\"] = "\\\\", ['"'] = '\\"', ["\n"] = "\\n" }

--- {model="a",key="b"} in the order of the names; "" for none.
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

--- A counter or a gauge goes up (a gauge also down) by n.
function Family:add(n, labels)
  local s = series(self, labels)
  if s then s.value = s.value + (n or 1) end
end

--- Of a gauge, or of a counter that is kept elsewhere.
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

--- One more value of a histogram.
function Family:observe(x, labels)
  local s = series(self, labels)
  if s then observe(self.buckets, s, x) end
end

--- observe(x) for labels that stay the same: for values that come too often to look the series up each time.
function Family:observer(labels)
  local buckets, s = self.buckets, series(self, labels)
  return function(x)
    if s then observe(buckets, s, x) end
  end
end

--- Forgets every series, for gauges whose label sets come and go.
function Family:clear() self.series, self.count = {}, 0 end

-- ---- the text ------------------------------------------------------------------------------------------------------

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
    error(("the name of a metric begins with perigee_, unlike '%s'"):format(family.name), 3)
  end
  local known = self.by_name[family.name]
  if known then
    if known.kind == family.kind then return known end
    error(("%s is a %s already, not a %s"):format(family.name, known.kind, family.kind), 3)
  end
  family.series, family.count, family.dropped = {}, 0, self.dropped
  setmetatable(family, Family)
  self.by_name[family.name] = family
  self.list[#self.list + 1] = family
  return family
end

function Metrics:counter(name, help) return add_family(self, { kind = "counter", name = name, help = help }) end
function Metrics:gauge(name, help) return add_family(self, { kind = "gauge", name = name, help = help }) end

--- buckets: ascending limits; those of seconds when none are given.
function Metrics:histogram(name, help, buckets)
  return add_family(self, { kind = "histogram", name = name, help = help, buckets = buckets or SECONDS })
end

--- fn is called before every text(). One that raises is left out of that text, and counted.
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

--- All families of this file. options.on_error: told about a collector that raised.
function metrics.new(options)
  local self = setmetatable({ list = {}, by_name = {}, collectors = {}, on_error = options and options.on_error or error },
    Metrics)
  for _, f in ipairs(metrics.families) do
    self[f[1]] = add_family(self, { kind = f[2], name = "perigee_" .. f[3], help = f[4], buckets = f[5] })
  end
  for _, family in ipairs(self.list) do
    if family ~= self.dropped then family.dropped = self.dropped end
  end
  return self
end

return metrics
