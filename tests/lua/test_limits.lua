-- Every limit at its edge: the last value that is allowed, and the first one that is refused.
local args = require "lib.args"
local async = require "lib.async"
local command = require "lib.command"
local commands = require "cmd"
local config = require "serve.config"
local fields = require "api.openai.fields"
local main = require "main"
local perigee = require "perigee"
local schema = require "api.schema"
local templates = require "templates"
local tiny = require "tiny"

local test = require("harness").test

local json, tensor = perigee.json, perigee.tensor

if ... then return end -- it only counts: forced collection would find nothing here

local LARGE, INT = 1 << 40, 0x7fffffff

-- ---- commands -----------------------------------------------------------------------------------

-- The numbers of operands: least and most.
local OPERANDS = {
  bench = { 0, 1 }, chat = { 1, 1 }, check = { 1 }, detokenize = { 1 }, doctor = { 0, 0 },
  eval = { 1, 1 }, generate = { 1, 2 }, grammar = { 0, 1 }, help = { 0, 1 }, inspect = { 1, 1 },
  normalize = { 0, 0 }, parse = { 0, 0 }, render = { 1, 1 }, repl = { 0, 0 }, run = { 1 },
  serve = { 0 }, tokenize = { 1, 2 }, version = { 0, 0 },
}

--- Runs a command line with a command that only reports its options, or the refusal.
local function dry_run(words)
  local c, got, why = commands.load(words[1]), nil, nil
  local run, fail = c.run, command.fail
  c.run = function(opts) got = opts end
  command.fail = function(status, _, text)
    why = text
    return status
  end
  local status = main(words)
  c.run, command.fail = run, fail
  return got, why, status
end

test("commands take as many operands as they name", function(t)
  for _, name in ipairs(commands.names()) do
    local least, most = table.unpack(OPERANDS[name] or {})
    t.ok(least, name .. " is not listed")
    for n = 0, 5 do
      local words = { name }
      for i = 1, n do words[i + 1] = "w" .. i end
      local opts, why, status = dry_run(words)
      local what = ("%s with %d operands"):format(name, n)
      if n >= least and n <= (most or n) then
        t.eq(opts and { table.unpack(opts) }, { table.unpack(words, 2) }, what)
        t.eq(status, command.OK, what)
      else
        t.eq(opts, nil, what)
        t.eq(status, command.USAGE, what)
        t.match(why, n < least and "^missing arguments" or "^unexpected argument 'w"
          .. most + 1 .. "'", what)
      end
    end
  end
end)

-- The integers: least and most, false for none.
local INTEGERS = {
  common = { threads = { 1, 4096 }, context = { 1, LARGE } },
  bench = { prompt = { 16, 1 << 20 }, tokens = { 2, 1 << 20 } },
  chat = { ["max-tokens"] = { 1, false }, seed = { false, false } },
  generate = { sequences = { 1, 65536 }, ["max-tokens"] = { 0, false }, ["top-k"] = { 0, false },
    seed = { false, false } },
  serve = { port = { 0, 65535 }, sequences = { 1, 65536 }, ["step-tokens"] = { 1, 1 << 20 } },
}

local function option_lists()
  local lists = { common = args.common }
  for _, name in ipairs(commands.names()) do lists[name] = commands.load(name).options or {} end
  return lists
end

test("integers of the command line at their bounds", function(t)
  for name, list in pairs(option_lists()) do
    for _, option in ipairs(list) do
      local bounds = (INTEGERS[name] or {})[option.name]
      local what = name .. " --" .. option.name
      t.eq(bounds ~= nil, option.kind == "integer", what .. " is listed")
      local function read(n)
        return (args.parse({ list }, { ("--%s=%d"):format(option.name, n) }, {}) or {})[
          option.name:gsub("-", "_")]
      end
      for i, far in pairs(bounds and { math.mininteger, math.maxinteger } or {}) do
        local edge = bounds[i] or far
        t.eq(read(edge), edge, what)
        if bounds[i] then t.eq(read(edge + (i == 1 and -1 or 1)), nil, what) end
      end
    end
  end
end)

test("options that are not given have their defaults", function(t)
  local want = { check = { deadline = 1000 },
    bench = { quant = "affine4g64", prompt = 4000, seconds = 5, tokens = 1500 },
    parse = { format = "auto", reasoning = "none" } }
  for name, list in pairs(option_lists()) do
    t.eq(args.defaults({ list }, {}), want[name] or {}, name)
  end
end)

-- ---- configuration ------------------------------------------------------------------------------

-- Path; least and most; the step to the next value.
local SETTINGS = {
  { "port", 0, 65535, 1 }, { "sequences", 1, 65536, 1 }, { "sequences_per_key", 1, 65536, 1 },
  { "step_tokens", 1, 1 << 20, 1 }, { "context", 1, LARGE, 1 }, { "threads", 1, 4096, 1 },
  { "drain_s", 0, 86400, 0.5 }, { "cors.max_age", 0, 86400, 1 },
  { "rate.requests", 0, 1000000000, 1 }, { "rate.tokens", 0, LARGE, 1 },
  { "queue.requests", 0, LARGE, 1 }, { "queue.memory", 0, 1e6, 0.5 },
  { "queue.sequences", 1, LARGE, 1 }, { "defaults.max_tokens", 1, INT, 1 },
  { "models.m.sequences", 1, 65536, 1 }, { "models.m.step_tokens", 1, 1 << 20, 1 },
  { "models.m.context", 1, LARGE, 1 }, { "models.m.threads", 1, 4096, 1 },
  { "limits.body", 1, 1 << 53, 1 }, { "limits.values", 1, 1 << 53, 1 },
  { "limits.text", 64 << 10, LARGE, 1 },
  { "limits.pictures", 0, 1 << 20, 1 }, { "limits.picture_pixels", 1, 1 << 30, 1 },
  { "picture_processes", 1, 64, 1 },
}

local function settings_with(path, value)
  for key in path:reverse():gmatch "[^.]+" do value = { [key:reverse()] = value } end
  if value.models then value.models.m.path = "x" end
  return value
end

test("settings at their bounds", function(t)
  for _, s in ipairs(SETTINGS) do
    local path, least, most, step = table.unpack(s)
    t.ok(config.check(settings_with(path, least)), path)
    t.ok(config.check(settings_with(path, most)), path)
    t.eq(config.check(settings_with(path, least - step)), nil, path)
    t.eq(config.check(settings_with(path, most + step)), nil, path)
  end
  for _, key in ipairs { "cache_bytes", "cache_disk_bytes", "memory", "picture_cache_bytes" } do
    t.eq(config.check { [key] = 0 }, { [key] = 0 })
    t.eq(config.check { [key] = -1 }, nil, key)
  end
  for bits = 1, 64 do
    local known = bits == 32 or bits == 16 or bits == 8 or bits == 4
    for _, path in ipairs { "kv_bits", "models.m.kv_bits" } do
      t.eq(config.check(settings_with(path, bits)) ~= nil, known, path .. " " .. bits)
    end
  end
  t.ok(config.check { defaults = { top_k = -1 } })
  t.eq(config.check { defaults = { top_k = -2 } }, nil)
end)

test("settings that can change while serving", function(t)
  local live = {}
  for _, key in ipairs(config.keys) do live[#live + 1] = key.live and key[1] or nil end
  t.eq(live, { "hosts", "proxies", "default", "aliases", "keys", "api_key_file", "metrics_key",
    "cors", "rate", "picture_urls", "queue", "sequences_per_key", "cache_per_key", "policy",
    "hooks", "drain_s", "thinking_budgets", "tool_grammar", "fast_forward", "defaults" })
end)

test("settings that are not given have their defaults", function(t)
  local got = config.merge(nil, nil)
  got.given = nil
  t.eq(got, { host = "127.0.0.1", port = 8080, keys = {}, limits = { values = 400000,
    text = 8 << 20, pictures = 128, picture_bytes = 32 << 20, picture_pixels = 50000000 },
    picture_cache_bytes = 256 << 20,
    responses = { count = 4096, bytes = 64 << 20, seconds = 86400, disk_bytes = 1 << 30,
      disk_seconds = 2592000 },
    queue = { requests = 256, memory = 4.0, sequences = 1024 }, sequences = 64, step_tokens = 512,
    precision = "fast", device = "auto", cache_per_key = "auto",
    preload = true, policy = "fifo", watch = true, drain_s = 30, thinking_budgets = {},
    tool_grammar = "frame", fast_forward = true, defaults = {} })
end)

-- ---- fields of requests -------------------------------------------------------------------------

--- A value of this size and kind.
local function sized(kind, n)
  if kind == "string" then return ("x"):rep(n) end
  if kind == "integer" or kind == "number" then return n end
  local list, one = json.array {}, kind == "strings" and "x" or kind == "words" and "x" or 1
  for i = 1, n do list[i] = one end
  return list
end

-- Kind, least and most; open: the least itself is refused.
local SAMPLING = {
  temperature = { "number", 0 }, top_p = { "number", 0, 1, open = true },
  typical_p = { "number", 0, 1, open = true }, min_p = { "number", 0, 1 },
  top_k = { "integer", -1, INT }, xtc_probability = { "number", 0, 1 },
  xtc_threshold = { "number", 0, 1 }, repetition_penalty = { "number", 0, open = true },
  presence_penalty = { "number", -2, 2 }, frequency_penalty = { "number", -2, 2 },
  penalty_window = { "integer", 0, INT }, min_tokens = { "integer", 0, INT },
  stop = { "strings", 0, 64 }, stop_token_ids = { "ids", 0, 1024 },
  bad_words = { "words", 0, 1024 }, banned = { "ids", 0, 100000 },
  n = { "integer", 1, 128 }, model = { "string", 0, 256 }, user = { "string", 0, 1024 },
}
local OWN = {
  chat = { messages = { "array", 1 }, tools = { "array", 0, 1024 },
    reasoning_effort = { "string", 1, 64 }, prompt_cache_key = { "string", 0, 1024 },
    thinking_token_budget = { "integer", 0, INT }, max_tokens = { "integer", 1, INT },
    max_completion_tokens = { "integer", 1, INT }, top_logprobs = { "integer", 0, 20 } },
  completions = { max_tokens = { "integer", 0, INT }, max_completion_tokens = { "integer", 0, INT },
    logprobs = { "integer", 0, 20 }, best_of = { "integer", 1, 128 } },
}
for _, own in pairs(OWN) do
  own.guided_regex, own.guided_grammar = { "string", 1 }, { "string", 1 }
end
local COUNTED = { integer = true, number = true, string = true, strings = true, ids = true,
  words = true }

local function check_field(t, list, what, name, f)
  local kind, least, most = table.unpack(f)
  local whole = kind ~= "number"
  local countable = kind ~= "integer" and whole
  local function allowed(n, want)
    if countable and n < 0 then return end
    local ok = pcall(schema.read, { [name] = sized(kind, n) }, list)
    t.eq(ok, want, ("%s.%s of %s"):format(what, name, n))
  end
  local step = whole and 1 or 2 ^ -30
  if least then
    allowed(least, not f.open)
    allowed(least + step, true)
    allowed(least - step, false)
  end
  if most then
    allowed(most, true)
    allowed(most + step, false)
  end
end

test("fields of requests at their bounds", function(t)
  async.run(t.expect(function()
    for what, own in pairs(OWN) do
      local list = fields[what]
      for name, f in pairs(SAMPLING) do check_field(t, list, what, name, f) end
      for name, f in pairs(own) do check_field(t, list, what, name, f) end
      for _, f in ipairs(list) do -- a bounded field that is not listed above
        local bounded = COUNTED[f[2]] and (f.from or f.to)
        t.ok(not bounded or SAMPLING[f[1]] or own[f[1]], f[1] .. " is not listed")
      end
    end
  end))
end)

test("entries of lists in requests at their bounds", function(t)
  local function allowed(name, value, want)
    t.eq(pcall(schema.read, { [name] = value }, fields.chat), want, name)
  end
  async.run(t.expect(function()
    for length, want in pairs { [0] = false, true, [1024] = true, [1025] = false } do
      allowed("stop", json.array { ("x"):rep(length) }, want)
      allowed("bad_words", json.array { ("x"):rep(length) }, want)
      allowed("bad_words", json.array { sized("ids", length) }, want)
    end
    for id, want in pairs { [-1] = false, [0] = true, [INT] = true, [INT + 1] = false } do
      allowed("stop_token_ids", json.array { id }, want)
    end
    for bias, want in pairs { [-100.5] = false, [-100] = true, [100] = true, [100.5] = false } do
      allowed("logit_bias", json.object { { "7", bias } }, want)
    end
    allowed("logit_bias", json.object { { "9999999", 1 } }, true)
    allowed("logit_bias", json.object { { "10000000", 1 } }, false)
    local words = json.array {}
    for i = 1, 32 do words[i] = ("x"):rep(1024) end
    allowed("bad_words", words, true)
    words[33] = "x"
    allowed("bad_words", words, false)
    local biases = json.object()
    for i = 1, 10000 do biases[tostring(i)] = 1 end
    allowed("logit_bias", biases, true)
    biases["0"] = 1
    allowed("logit_bias", biases, false)
  end))
end)

-- ---- templates ----------------------------------------------------------------------------------

local function around(open, inner, close)
  return function(n) return open:rep(n) .. inner .. close:rep(n) end
end

local function expression(make)
  return function(n) return "{{ " .. make(n) .. " }}" end
end

local function chain(first, link)
  return expression(function(n) return first .. link:rep(n) end)
end

--- A namespace whose value x (and y) is nested in n lists or tuples, and what is done with it.
local function nested(empty, wrapped, use)
  return function(n)
    return ("{%% set ns = namespace(x=%s, y=%s) %%}{%% for i in range(%d) %%}{%% set ns.x = %s %%}"
      .. "{%% set ns.y = ns.x %%}{%% endfor %%}{{ %s }}"):format(empty, empty, n - 1, wrapped, use)
  end
end

-- What is made; the last number that is allowed; the refusal of the next one.
local DEEP = "a value is nested deeper than 200 levels"
local TEMPLATES = {
  { expression(around("(", "1", ")")), 119, "nested deeper than 120 levels" },
  { expression(around("-", "1", "")), 119, "nested deeper than 120 levels" },
  { expression(around("not ", "1", "")), 119, "nested deeper than 120 levels" },
  { expression(around("[", "1", "]")), 119, "nested deeper than 120 levels" },
  { around("{% if 1 %}", "", "{% endif %}"), 120, "nested deeper than 120 levels" },
  { around("{% for a in [1] %}", "", "{% endfor %}"), 10, "loops are nested deeper than 10" },
  { chain("x", "|upper"), 149, "more than 150 operations in a row" },
  { chain("1", " * 1"), 150, "more than 150 operations in a row" },
  { chain("0", " or 1"), 1999, "more than 2000 operations in a row" },
  { chain("1", " == 1"), 1000, "more than 2000 operations in a row" },
  { function(n) return ("{{ range(%d) | length }}"):format(n) end, 100000, "the limit is 100000" },
  { function(n) return ("{{ '%%%dd' %% 1 }}"):format(n) end, 100000, "too large" },
  { function(n) return ("{{ '%%.%dd' %% 1 }}"):format(n) end, 100000, "too large" },
  { function(n) return ("{{ '%%*d' %% (%d, 1) }}"):format(n) end, 100000, "wants an integer" },
  { function(n) return ("{{ '%%*d' %% (-%d, 1) }}"):format(n) end, 100000, "wants an integer" },
  { function(n) return ("{{ '{:%d}'.format(1) }}"):format(n) end, 100000, "too large" },
  { expression(function(n) return "'" .. ("0"):rep(n) .. "' | int" end), 4300, "4301 digits" },
  { expression(function(n) return ("0"):rep(n) end), 4300, "4301 digits" },
  { expression(function(n) return "{} | tojson(indent=" .. n .. ")" end), 1000, "at most 1000" },
  { expression(function(n) return "range(" .. ("1,"):rep(n - 1) .. "1) if 0" end), 100,
    "a call has 101 arguments, the limit is 100" },
  { function(n)
    local names = {}
    for i = 1, n do names[i] = "p" .. i end
    return "{% macro m(" .. table.concat(names, ", ") .. ") %}{% endmacro %}"
  end, 50, "a macro has 51 parameters, the limit is 50" },
  { function(n)
    return "{% macro m(n) %}{% if n > 1 %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m("
      .. n .. ") }}"
  end, 100, "nested deeper than 100 levels" },
  { nested("[]", "[ns.x]", "ns.x"), 201, DEEP },
  { nested("[]", "[ns.x]", "ns.x | tojson"), 201, DEEP },
  { nested("[]", "[ns.x]", "ns.x | pprint"), 201, DEEP },
  { nested("()", "(ns.x,)", "{ns.x: 1} | length"), 200, DEEP },
}

test("templates at their limits", function(t)
  for i, case in ipairs(TEMPLATES) do
    local make, most, refusal = table.unpack(case)
    local function render(n)
      local template, why = templates.compile(make(n))
      if not template then return nil, why end
      return template:render {}
    end
    local got, why = render(most)
    t.ok(got, ("template %d at %d: %s"):format(i, most, tostring(why)))
    got, why = render(most + 1)
    t.eq(got, nil, ("template %d at %d"):format(i, most + 1))
    t.match(tostring(why), refusal)
  end
end)

-- ---- values in C --------------------------------------------------------------------------------

local function nest(n, value)
  for _ = 1, n do value = { value } end
  return value
end

-- What is done; the last number that is allowed; the refusal of the next one.
local VALUES = {
  { function(n) return json.decode(("["):rep(n) .. ("]"):rep(n)) end, 200,
    "column 201: nested deeper than 200 levels" },
  { function(n) return json.encode(nest(n, 1)) end, 200, "nested deeper than 200 levels" },
  { function(n) return json.decode(("1"):rep(n), { digits = true }) end, 4300, "4301 characters" },
  { function(n) return json.decode("1." .. ("1"):rep(n - 2)) end, 4300, "4301 characters" },
  { function(n) -- an array counts as 8, a number as 1
    return json.decode("[" .. ("1,"):rep(n - 9) .. "1]", { max_values = 100 })
  end, 100, "101 values" },
  { function(n) return ("x"):find(("()"):rep(n)) end, 32, "too many captures" },
  { function(n) return tensor.zeros(table.move({ 1, 1, 1, 1, 1, 1, 1, 1, 1 }, 1, n, 1, {})) end, 8,
    "at most 8 dimensions, got 9" },
  { function(n) return tensor(nest(n, 1)) end, 8, "nested more than 8 deep" },
  { function(n) return tensor.zeros({ 2 }):histogram(n) end, 1 << 20, "1 and 1048576 bins" },
}

test("values in C at their limits", function(t)
  for i, case in ipairs(VALUES) do
    local make, most, refusal = table.unpack(case)
    local ok, value, why = pcall(make, most)
    t.ok(ok and value, ("value %d at %d: %s"):format(i, most, tostring(why or value)))
    ok, value, why = pcall(make, most + 1)
    t.ok(not (ok and value), ("value %d at %d"):format(i, most + 1))
    t.match(tostring(ok and why or value), refusal)
  end
  t.raises(function() tensor.zeros({ 2 }):histogram(0) end, "between 1 and 1048576 bins")
end)

-- ---- options of C functions ---------------------------------------------------------------------

local INT32 = math.tointeger(2 ^ 31) - 1
local FAR = math.maxinteger

-- What is called with options; those that are integers, with their bounds.
local function options_of_c(graph, weights)
  return {
    { function(o) return tensor.zeros({ 2 }):format(o) end, width = { 10, 10000 },
      edge = { 1, 1000 }, threshold = { 1, 1000000 }, digits = { 1, 17 } },
    { function(o) return json.decode("1", o) end, max_size = { 0, 1 << 30 },
      max_values = { 1, FAR }, max_depth = { 1, 200 } },
    { function(o) return json.encode({}, o) end, indent = { 0, 64 } },
    { function(o) return tensor.zeros({ 2 }):var(1, o) end, ddof = { 0, 1 << 20 } },
    { function(o) return perigee.guard(function() end, o) end, memory = { 0, FAR } },
    { function(o) return weights:metadata(o) end, most = { 0, INT32 } },
    { function(o) return weights:rows("a", o) end, from = { 1, 2 }, count = { 0, 2 } },
    { function(o) return graph:rows(0, o) end, refused = true, from = { 1, FAR // 4 },
      step = { 1, 1 << 20 }, count = { 1, FAR // 4 } },
    { function(o) return perigee.batch.open(graph, o) end, refused = true,
      sequences = { 1, 1 << 16 }, step_tokens = { 1, 1 << 20 }, context = { 2, INT32 // 2 },
      cache_tokens = { 1, LARGE }, kv_bits = { 4, 32 }, kv_block = { 1, 4096 },
      stride = { 1, INT32 }, cache_bytes = { 0, FAR }, cache_disk_bytes = { 0, FAR },
      threads = { 0, 1024 } },
    { function(o) return perigee.engine.open(graph, o) end, refused = true, kv_bits = { 4, 32 },
      kv_block = { 1, 4096 }, tokens = { 1, INT32 }, threads = { 0, 1024 },
      sequences = { 1, 1 << 20 } },
  }
end

test("integers among the options of C functions at their bounds", function(t)
  local model = tiny.model()
  local weights <close> = assert(perigee.weights.synthetic {
    { name = "a", shape = { 2, 4 }, kind = "f32" } })
  for _, case in ipairs(options_of_c(model.graph, weights)) do
    local f, refused = case[1], case.refused
    for name, bounds in pairs(case) do
      local least, most = table.unpack(type(bounds) == "table" and bounds or {})
      local range = least
        and ("option '%s' must be between %d and %d, got"):format(name, least, most)
      local function accepts(n) return pcall(f, { [name] = n }) end
      if least and not refused then -- large caches are not opened
        t.ok(accepts(least), range)
        t.ok(accepts(most), range)
      end
      if least then t.raises(function() f { [name] = least - 1 } end, range) end
      if least and most < FAR then t.raises(function() f { [name] = most + 1 } end, range) end
    end
  end
end)

test("options of printing that are not given have their defaults", function(t)
  local all = tensor.range(0, 1, { step = 1 / 256 })
  local most = all:rows(1, 256) -- as many as are shown up to the width
  t.eq(all:format(), "tensor f32 [257]\n[0.0000, 0.0039, 0.0078, …, 0.9922, 0.9961, 1.0000]")
  t.eq(most:format(), "tensor f32 [256]\n[0.0000, 0.0039, 0.0078, 0.0117, …, "
    .. "0.9844, 0.9883, 0.9922, 0.9961]")
  for _, x in ipairs { all, most } do
    t.eq(x:format { width = 80, edge = 3, threshold = 256, digits = 4, ascii = false }, x:format())
  end
  t.eq(all:format { ascii = true }, (all:format():gsub("…", "...")))
  local ones = {}
  for i = 1, 26 do ones[i] = 1 end -- they need all 80 columns
  local x = tensor(ones)
  t.eq(x:format():find "…", nil)
  t.eq(x:format { width = 80 }, x:format())
  t.ok(x:format { width = 79 }:find "…")
end)
