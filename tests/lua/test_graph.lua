-- perigee.Graph: every op with the options it takes, the defaults of those that are not given, and
-- what is refused.
local blocks = require "models.core.blocks"
local builder = require "models.core.graph"
local perigee = require "perigee"
local test = require("harness").test

local WEIGHTS = {
  { "embed", { 32, 16 } }, { "head", { 32, 16 } }, { "square", { 16, 16 } },
  { "other", { 16, 16 } },
  { "vector", { 16 } }, { "four", { 4 } }, { "router", { 4, 16 } },
  { "experts", { 4, 16, 16 } }, { "expert_bias", { 4, 16 } }, { "heads", { 4, 4, 4 } },
  { "conv", { 16, 1, 3 } }, { "wide", { 48, 16 } }, { "ssm", { 4 } }, { "dt", { 4, 16 } },
  { "small", { 4, 4 } },
}

local function open_weights()
  local list = {}
  for i, w in ipairs(WEIGHTS) do list[i] = { name = w[1], shape = w[2], kind = "f32" } end
  return assert(perigee.weights.synthetic(list))
end

local weights

--- The logits of three tokens by the graph whose middle is build(g, x, p), p(name) being a param.
local function logits(build)
  weights = weights or open_weights()
  local g <close> = assert(perigee.graph.open(weights))
  local function p(name) -- vectors are ones, so some are rows of matrices
    local matrix, n = name:match "^(%l+)(%d)$"
    if not n then return assert(g:param(name)) end
    return g:rows(assert(g:param(matrix)), { from = tonumber(n), count = 1 })
  end
  local x = g:embed(p "embed", {})
  local y = build(g, x, p)
  y = g:reshape(y, { 16 })
  g:finish(g:linear(g:output(y), { weight = p "head" }))
  local engine <close> = assert(perigee.engine.open(g, { threads = 1, tokens = 16, sequences = 1 }))
  engine:step { { seq = engine:add(), ids = { 3, 9, 27, 5, 1 }, outputs = 2 } }
  local out <close> = engine:logits()
  return out:totable()
end

local function heads(g, x, name) -- four heads of four
  return g:reshape(g:linear(x, { weight = name }), { 4, 4 })
end

--- An attention over x with these options.
local function attend(g, x, p, more)
  local o = { q = heads(g, x, p "square"), k = heads(g, x, p "other"), v = heads(g, x, p "square") }
  for k, v in pairs(more) do o[k] = v or nil end
  return (g:attention(o))
end

--- q and k turned by a rope with this spec; `one`: of one head instead of four.
local function turned(g, x, p, spec, options, one)
  spec.dims = spec.dims or one and 16 or 4
  options.table = g:rope_table(spec)
  local q, k = heads(g, x, p "square"), heads(g, x, p "other")
  if one then q, k = g:reshape(q, { 1, 16 }), g:reshape(k, { 1, 16 }) end
  return (g:attention { q = g:rope(q, options), k = g:rope(k, options), v = q, scale = 50 })
end

local function routed(g, x, p, more, expert)
  local o = { chosen = 2 }
  for k, v in pairs(more) do o[k] = type(v) == "string" and k ~= "kind" and p(v) or v end
  local route = g:route(g:linear(x, { weight = p "router" }), o)
  local e = { route = route, weight = p "experts" }
  for k, v in pairs(expert or {}) do e[k] = v == "expert_bias" and p(v) or v end
  return g:expert_sum(g:expert_linear(x, e), route)
end

local function state_space(g, x, p, more)
  local o = { x = heads(g, x, p "square"), b = g:reshape(x, { 1, 16 }),
    c = g:reshape(g:linear(x, { weight = p "other" }), { 1, 16 }),
    dt = g:linear(x, { weight = p "dt" }), a_log = p "ssm", dt_bias = p "four", d = p "ssm" }
  for k, v in pairs(more) do o[k] = v end
  return g:ssm(o)
end

-- What is built with options, the defaults, and values that must change the logits.
local CASES = {
  embed = { function(g, _, p, o) return g:embed(p "embed", o) end, { scale = 1 }, { scale = 2 } },
  linear = { function(g, x, p, o)
    return g:linear(x, { weight = p "square", bias = o.bias and p(o.bias) })
  end, {}, { bias = "vector" } },
  norm = { function(g, x, p, o)
    o.weight = p "vector"
    return g:norm(x, o)
  end, { eps = 1e-6, offset = 0, scale = 1, width = 16, l2 = false, layer = false },
    { eps = 1 }, { offset = 1 }, { scale = 2 }, { width = 8 }, { l2 = true }, { layer = true } },
  bare = { function(g, x, p, o)
    return g:norm(x, { weight = o.weight and p(o.weight) })
  end, {}, { weight = "square1" } },
  layer_norm = { function(g, x, p, o)
    return g:layer_norm(x, { eps = o.eps, weight = o.weight and p(o.weight),
      bias = o.bias and p(o.bias) })
  end, { eps = 1e-6 }, { eps = 1 }, { weight = "square1" }, { bias = "square2" } },
  slice = { function(g, x, p, o)
    o.count = 4
    local y = g:slice(g:reshape(g:linear(x, { weight = p "square" }), { 8, 2 }), o)
    return g:concat { g:reshape(y, { 8 }), g:reshape(y, { 8 }) }
  end, { from = 1, last = false }, { from = 2 }, { from = 5 } },
  last = { function(g, x, p, o)
    o.count, o.last = 2, true
    local y = g:slice(g:reshape(g:linear(x, { weight = p "square" }), { 4, 4 }), o)
    return g:concat { g:reshape(y, { 8 }), g:reshape(y, { 8 }) }
  end, { from = 1 }, { from = 2 }, { from = 3 } },
  number = { function(g, x, _, o) return g:binary("add", { a = x, number = o.number }) end,
    { number = 0 }, { number = 1 } },
  head_linear = { function(g, x, p, o)
    o.weight = p "heads"
    return g:head_linear(g:reshape(x, { 4, 4 }), o)
  end, { transposed = false }, { transposed = true } },
  conv = { function(g, x, p, o)
    return g:conv(x, { weight = p "conv", bias = o.bias and p(o.bias), activation = o.activation })
  end, {}, { bias = "vector" }, { activation = "silu" }, { activation = "relu" } },
  rope = { function(g, x, p, o) return turned(g, x, p, {}, o) end,
    { pairs = false, skip = 0 }, { pairs = true } },
  skip = { function(g, x, p, o) return turned(g, x, p, { dims = 2 }, o) end, { skip = 0 },
    { skip = 2 } },
  rope_table = { function(g, x, p, o) return turned(g, x, p, o, {}) end,
    { kind = "default", theta = 10000, turning = 4 }, { theta = 5 }, { dims = 2 } },
  linear_rope = { function(g, x, p, o)
    o.kind = "linear"
    return turned(g, x, p, o, {})
  end, { factor = 1, theta = 10000 }, { factor = 4 } },
  llama3 = { function(g, x, p, o)
    o.kind, o.original, o.factor, o.theta = "llama3", o.original or 8, o.factor or 8, 3
    return turned(g, x, p, o, {})
  end, { low_freq_factor = 1, high_freq_factor = 4 }, { low_freq_factor = 2 },
    { high_freq_factor = 8 }, { factor = 2 }, { original = 64 } },
  yarn = { function(g, x, p, o)
    o.kind, o.original, o.factor, o.theta = "yarn", o.original or 64, o.factor or 8, 1000
    return turned(g, x, p, o, {}, true)
  end, { beta_fast = 32, beta_slow = 1, mscale = 0, mscale_all_dim = 0, truncate = true,
    attention_factor = 0 }, { beta_fast = 4 }, { beta_slow = 5 },
    { mscale = 2, mscale_all_dim = 1 }, { truncate = false }, { attention_factor = 2 } },
  longrope = { function(g, x, p, o)
    o.kind, o.original = "longrope", 4
    o.short_factor = o.short_factor or { 1, 2 }
    o.long_factor = o.long_factor or { 3, 4 }
    return turned(g, x, p, o, {})
  end, { attention_factor = 0 }, { attention_factor = 2 }, { long_factor = { 3, 9 } },
    { factor = 8 } },
  short = { function(g, x, p, o)
    o.kind, o.original, o.long_factor = "longrope", 64, { 1, 1 }
    o.short_factor = o.short_factor or { 1, 2 }
    return turned(g, x, p, o, {})
  end, { factor = 1 }, { short_factor = { 5, 2 } } },
  divisor = { function(g, x, p, o) return turned(g, x, p, o, {}) end, { divisor = { 1, 1 } },
    { divisor = { 1, 5 } }, { divisor = { 2, 1 } } },
  softcap = { function(g, x, p, o)
    return attend(g, x, p, { scale = 50, softcap = o.softcap })
  end, { softcap = 0 }, { softcap = 0.001 } },
  attention = { attend, { window = 0, scale = 1, softcap = 0, spans = false }, { window = 2 },
    { scale = 2 } },
  sinks = { function(g, x, p, o) return attend(g, x, p, { sinks = o.sinks and p(o.sinks) }) end, {},
    { sinks = "small1" } },
  part = { function(g, x, p, o) -- the values are the first floats of the keys
    o.value = o.value or 4
    local y = g:attention { q = heads(g, x, p "square"), k = heads(g, x, p "other"),
      value = o.value }
    return o.value == 4 and y or g:concat { g:reshape(y, { 8 }), g:reshape(y, { 8 }) }
  end, { value = 4 }, { value = 2 } },
  share = { function(g, x, p, o)
    local _, layer = g:attention { q = heads(g, x, p "square"), k = heads(g, x, p "square"),
      v = heads(g, x, p "other") }
    return attend(g, x, p, o.share and { share = layer, k = false, v = false } or {})
  end, {}, { share = 1 } },
  delta = { function(g, x, p, o)
    local in_ = { q = heads(g, x, p "square"), k = heads(g, x, p "other"),
      v = heads(g, x, p "square"), decay = g:linear(x, { weight = p "router" }),
      beta = g:linear(x, { weight = p "dt" }) }
    if o.swap then in_[o.swap], in_.x = in_[o.with], nil end
    return g:delta(in_)
  end, {}, { swap = "q", with = "k" }, { swap = "k", with = "q" }, { swap = "v", with = "k" },
    { swap = "decay", with = "beta" }, { swap = "beta", with = "decay" } },
  route = { routed, { kind = "softmax", groups = 1, groups_kept = 0, group_max = false,
    normalize = false, scale = 1, eps = 0 }, { kind = "topk" }, { kind = "sigmoid" },
    { normalize = true }, { scale = 2 }, { chosen = 3 }, { factor = "small1" } },
  groups = { function(g, x, p, o)
    o.kind, o.groups, o.groups_kept, o.bias = "sigmoid", 2, o.groups_kept or 1, "small2"
    return routed(g, x, p, o)
  end, { group_max = false }, { groups_kept = 2 } },
  kept = { function(g, x, p, o)
    o.kind, o.groups, o.bias = "sigmoid", 2, "small2"
    return routed(g, x, p, o)
  end, { groups_kept = 2 }, { groups_kept = 1 } },
  expert = { function(g, x, p, o) return routed(g, x, p, {}, o) end, { transposed = false },
    { transposed = true }, { bias = "expert_bias" } },
  ssm = { state_space, { dt_min = 0, dt_max = 3e38 }, { dt_min = 5 }, { dt_max = 0.01 } },
}

test("defaults of options, and options that count", function(t)
  for name, case in pairs(CASES) do
    local build, defaults = case[1], case[2]
    local function made(options)
      local copy = {}
      for k, v in pairs(options) do copy[k] = v end
      return logits(function(g, x, p) return build(g, x, p, copy) end)
    end
    local plain = made {}
    t.eq(made(defaults), plain, name)
    for key, value in pairs(defaults) do t.eq(made { [key] = value }, plain, name .. "." .. key) end
    for i = 3, #case do
      local key = next(case[i])
      local same = perigee.json.encode(made(case[i])) == perigee.json.encode(plain)
      t.eq(same, false, ("%s.%s"):format(name, key))
    end
  end
  weights:close()
  weights = nil
end)

test("arguments that no value or param has", function(t)
  local w <close> = open_weights()
  local g <close> = assert(perigee.graph.open(w))
  local matrix = assert(g:param "square")
  local x = g:embed(assert(g:param "embed"), {})
  local count = #g:values()
  local calls = { -- by value, then by param
    { "shape", "rows" }, { "name", "split", 2 }, { "deepstack", "constant", 1 },
    { "linear", "param_shape", { weight = matrix } }, { "norm", "embed", {} },
    { "reshape", "lookup", { 16 } }, { "slice", "permute", { count = 1 } }, { "output" },
    { "finish" }, { "layer_norm", false, {} }, { "merge", false, {} },
    { "route", false, { chosen = 1 } }, { "head_linear", false, { weight = matrix } },
    { "conv", false, { weight = matrix } }, { "expert_sum", false, x }, { "rope", false,
      { table = x } }, { "expert_linear", false, { route = x, weight = matrix } },
  }
  for _, call in ipairs(calls) do
    for _, wrong in ipairs { -1, count, 1 << 40 } do
      t.raises(function() g[call[1]](g, wrong, call[3]) end, "no such value")
    end
    for _, wrong in ipairs { -1, 2, 1 << 40 } do
      if call[2] then
        t.raises(function() g[call[2]](g, wrong, call[3]) end, "no such param")
      end
    end
    t.raises(function() g[call[1]](g, "x", call[3]) end, "number expected, got string")
  end
  for _, wrong in ipairs { -1, count } do
    t.raises(function() g:unary("silu", wrong) end, "bad argument #2 to 'unary' (no such value)")
    t.raises(function() g:expert_sum(x, wrong) end, "bad argument #2 to 'expert_sum'")
    t.raises(function() g:concat { x, wrong } end, "no such value")
    t.raises(function() g:stack { matrix, wrong < 0 and -1 or 2 } end, "no such param")
    t.raises(function() g:binary("add", { a = x, b = wrong }) end, "option 'b' must be between 0")
    t.raises(function() g:linear(x, { weight = wrong < 0 and -1 or 2 }) end,
      "must be between 0 and 1")
  end
  t.eq(#g:values(), count)
  for name, missing in pairs { linear = "weight", head_linear = "weight", conv = "weight",
    rope = "table", expert_linear = "route" } do
    t.raises(function() g[name](g, x, {}) end, ("option '%s' is required"):format(missing))
  end
  for name, first in pairs { attention = "q", delta = "q", ssm = "x", region_attention = "q" } do
    t.raises(function() g[name](g, {}) end, ("option '%s' is required"):format(first))
    t.raises(function() g[name](g, { [first] = x }) end, "is required")
  end
  t.raises(function() g:binary("add", { number = 1 }) end, "'a' or 'b' must be a value")
  t.raises(function() g:binary("silu", { a = x }) end, "this op takes one operand")
  t.raises(function() g:unary("add", x) end, "this op takes two operands")
  t.raises(function() g:unary("what", x) end, "invalid option 'what'")
  t.raises(function() g:reshape(x, {}) end, "list of 1 to 3 integers expected, got 0")
  t.raises(function() g:reshape(x, { 4, 2, 2, 1 }) end,
    "list of 1 to 3 integers expected, got 4")
  t.raises(function() g:reshape(x, { 4, "x" }) end, "list of integers expected")
  t.raises(function() g:reshape(x, { 4, 1 << 31 }) end, "list of integers expected")
  t.raises(function() g:reshape(x, 5) end, "table expected")
  t.raises(function() g:stack {} end, "list of 1 to 4096 integers expected, got 0")
  for _, plane in ipairs { 0, 16, -1 } do
    t.raises(function() g:deepstack(x, plane) end, "no such plane of features")
  end
  t.raises(function() g:patches(0) end, "a number of values expected")
  t.raises(function() g:patches(1 << 31) end, "a number of values expected")
  t.raises(function() g:rope_table { kind = "bent" } end, "unknown rope type 'bent'")
  t.raises(function() g:rope_table { dims = 4, divisor = { 1 } } end,
    "option 'divisor': list of 2 numbers expected")
  t.raises(function() g:rope_table { dims = 4, sections = { 1, 1 } } end,
    "option 'sections': list of 3 numbers expected")
  t.raises(function() g:rope_table { dims = 4, divisor = { 1, "x" } } end, "number expected")
  t.raises(function() g:permute(matrix, { shape = { 4, 4, 16 } }) end,
    "option 'order': list of integers expected")
  t.raises(function() g:permute(matrix, { shape = { 4, 4, 16 }, order = { 1, 2 } }) end,
    "option 'order' must name 3 dimensions")
  t.raises(function() g:permute(matrix, { shape = { 1, 1, 1, 1, 1, 1 } }) end, "at most 5 integers")
  for _, order in ipairs { { 0, 1 }, { 1, 3 }, { 1, 1 } } do
    t.raises(function() g:permute(matrix, { shape = { 16, 16 }, order = order }) end,
      "each of them once")
  end
end)

test("what a graph tells about itself", function(t)
  local w <close> = open_weights()
  local g <close> = assert(perigee.graph.open(w))
  local function p(name) return assert(g:param(name)) end
  t.eq(g:param "nothing", nil)
  t.eq({ { g:param_shape(p "square") }, { g:param_shape(p "experts") },
    { g:param_shape(g:rows(p "wide", {})) }, { g:param_shape(g:rows(p "wide", { from = 5 })) },
    { g:param_shape(g:rows(p "wide", { from = 2, step = 3 })) },
    { g:param_shape(g:rows(p "wide", { step = 47 })) },
    { g:param_shape(g:split(p "wide", 3)) }, { g:param_shape(g:stack { p "square", p "other" }) },
    { g:param_shape(g:permute(p "square", { shape = { 4, 4, 16 }, order = { 3, 1, 2 } })) } },
    { { 1, 16, 16, false }, { 4, 16, 16, false }, { 1, 48, 16, false }, { 1, 44, 16, false },
      { 1, 16, 16, false }, { 1, 2, 16, false }, { 3, 16, 16, false }, { 2, 16, 16, false },
      { 1, 16, 16, false } })
  local x = g:embed(p "embed", {})
  g:name(x, "tokens")
  local y = g:unary("silu", g:binary("mul", { b = x, number = 2 }))
  local q = g:reshape(g:linear(y, { weight = p "square" }), { 4, 4 })
  t.eq({ g:shape(x), g:shape(q) }, { { 16 }, { 4, 4 } })
  local a, layer = g:attention { q = q, k = q, v = q, scale = 0.5, window = 7 }
  local b, second = g:attention { q = q, k = q, v = q, window = 7 }
  local _, third = g:attention { q = q, k = q, value = 2 }
  t.eq({ layer, second, third }, { 0, 1, 2 })
  g:conv(x, { weight = p "conv" })
  g:finish(g:linear(g:output(g:reshape(g:binary("add", { a = a, b = b }), { 16 })),
    { weight = p "head" }))
  local values = g:values()
  t.eq(values[1], { name = "tokens", op = "embed", shape = { 16 }, weight = "embed", inputs = {} })
  local attention = {}
  for _, v in ipairs(values) do
    if v.scale then attention[#attention + 1] = { v.scale, v.window, #v.inputs > 0 } end
  end
  t.eq(attention, { { 0.5, 7, true }, { 1.0, 7, true }, { 1.0, 0, true } })
  t.eq({ values[2].steps, values[3].steps, values[2].inputs },
    { { "mul" }, { "silu" }, { "tokens" } })
  t.eq(values[4].weight, "square")
  local unused = {}
  for _, name in ipairs(g:unused()) do unused[name] = true end
  t.eq({ unused.dt, unused.ssm, unused.square, unused.embed, #g:unused() }, { true, true, nil, nil,
    #WEIGHTS - 7 })
  local caches = g:caches()
  t.eq(caches, { groups = { { layers = 2, window = 7, heads = 4, key = 4, value = 4 },
    { layers = 1, window = 0, heads = 4, key = 4, value = 0 } }, state_floats = 32 })
  local plan <close> = assert(g:plan())
  local apart <close> = assert(g:plan { fusion = false })
  local list, all = plan:instructions(), apart:instructions()
  t.ok(plan.unshared_floats > plan.row_floats)
  local fused, places = 0, 0
  for _, i in ipairs(list) do
    fused = fused + #i.fused
    for _, v in ipairs(i.fused) do t.ok(#v.name > 0 and v.op) end
    places = places + (i.place and i.place >= 0 and 1 or 0)
    t.eq(i.steps ~= nil, i.op == "map", i.name)
  end
  t.ok(fused > 0 and places > 0)
  for _, i in ipairs(all) do t.eq(i.fused, {}) end
end)

test("taps are named", function(t)
  local w <close> = open_weights()
  local g <close> = assert(perigee.graph.open(w))
  local x = g:embed(g:param "embed", {})
  g:name(x, "tokens")
  g:finish(g:linear(g:output(x), { weight = g:param "head" }))
  local function open(taps)
    return perigee.engine.open(g, { threads = 1, tokens = 8, taps = taps })
  end
  t.raises(function() open { "nothing" } end, "no value is named 'nothing'")
  t.raises(function() open "tokens" end, "option 'taps' must be a list of names")
  t.raises(function() open { {} } end, "string expected")
  local engine <close> = assert(open { "tokens" })
  engine:step { { seq = engine:add(), ids = { 3, 4 }, outputs = 1 } }
  local tap <close> = engine:tap(1)
  t.eq(tap.shape, { 2, 16 })
  t.eq(tap:select(1, 2):totable(), perigee.tensor(w:rows("embed", { from = 5 })):totable())
end)

-- ---- the builder of architectures ---------------------------------------------------------------

--- A builder over these tensors, { name = shape }.
local function build_over(t, tensors, config)
  local list = {}
  for name, shape in pairs(tensors) do
    list[#list + 1] = { name = name, shape = shape, kind = "f32" }
  end
  local w = assert(perigee.weights.synthetic(list))
  local g = assert(builder.new(w, config or {}, { spell = function(path, tensor)
    return { tensor == "" and path or path .. "." .. tensor }
  end }))
  t.ok(g)
  return g
end

test("names of values", function(t)
  local g = build_over(t, { ["e.weight"] = { 8, 4 }, ["l.0.a.weight"] = { 4, 4 },
    ["l.1.a.weight"] = { 4, 4 }, ["l.1.a.bias"] = { 4 }, ["n.weight"] = { 4 },
    ["p.weight"] = { 4, 3, 2, 2 } }, { eps = 1e-5 })
  local x = g:embed "e"
  for _, p in g:layers("l", 2) do
    local y = g:silu(g:linear(x, p "a")):named "act"
    x = x + y * 2 + y
  end
  local a, b, c = g:rms_norm(x, "n"), g:rms_norm(x, "n"), g:rms_norm(x, "n")
  g:finish(g:head(a + b + c))
  local names = {}
  for i, v in ipairs(g.c:values()) do names[i] = v.name end
  t.eq(names, { "embed", "l.0.a", "l.0.act", "l.0.mul.1", "l.0.add.1", "l.0", "l.1.a", "l.1.act",
    "l.1.mul.1", "l.1.add.1", "l.1", "n", "n:2", "n:3", "add.1", "add.2", "output.1", "e" })
  t.eq(g:value "l.0".id, 5)
  t.raises(function() g:value "nothing" end, "the graph has no value 'nothing'")
  t.eq(x:named("again").name, "again")
  t.eq({ x:width(), x:shape(), g:heads(x, 2):shape() }, { 4, { 4 }, { 2, 2 } })
  t.eq({ g:weight "n":exists(), g:weight "n":exists "bias", g:weight "l" "1" "a":exists "bias",
    g:weight "none":exists() }, { true, false, true, false })
  t.raises(function() g:linear(x, g:weight "none") end, "missing tensor none.weight")
  t.raises(function() g:linear(x, "n") end, "'n' is not a weight: use g:weight or p")
  local w = g:weight "l.0.a"
  t.raises(function() w:expect({ 5 }, "five") end,
    "tensor l.0.a.weight is [4, 4], expected [5, 4]: the config says five")
  t.raises(function() w:expect({ 4, 3 }, "three") end, "expected [4, 3]: the config says three")
  w:expect({ 4 }, "")
  t.eq({ { w:rows(2):shape() }, { w:rows(1, { count = 2 }):shape() },
    { w:rows(1, { step = 2 }):shape() }, { w:split(2):shape() } },
    { { 1, 3, 4, false }, { 1, 2, 4, false }, { 1, 2, 4, false }, { 2, 2, 4, false } })
  t.eq({ g:softcap(x) == x, g:softcap(x, 5) == x, g:clamp(x, {}) == x }, { true, false, true })
  g.c:close()
end)

test("what is made before the layers has the name of its op", function(t)
  local g = build_over(t, { ["e.weight"] = { 8, 4 }, ["l.0.a.weight"] = { 4, 4 } })
  local x = g:embed "e" * 2
  for _, p in g:layers("l", 1) do x = g:linear(x, p "a") + x end
  g:finish(g:head(x))
  local names = {}
  for i, v in ipairs(g.c:values()) do names[i] = v.name end
  t.eq(names, { "embed", "mul.1", "l.0.a", "l.0", "output.1", "e" })
  g.c:close()
end)

test("names of a tower's values", function(t)
  local g = build_over(t, { ["t.p.weight"] = { 4, 3, 2, 2 }, ["t.p.bias"] = { 4 },
    ["t.e.weight"] = { 9, 4 }, ["t.n.weight"] = { 4 }, ["t.n.bias"] = { 4 } })
  local x = g:patch_embed(g:weight "t.p", { patch = 2 })
  x = x + g:lookup(g:weight "t.e")
  x = g:layer_norm(x, g:weight "t.n", 1e-5)
  local h = g:reshape(x, { 2, 2 })
  x = g:merge(g:flat(g:region_attention { q = h, k = h, v = h }), 2)
  g:finish(x)
  local names = {}
  for i, v in ipairs(g.c:values()) do names[i] = v.name end
  t.eq(names, { "patches", "t.p", "t.e", "add.1", "t.n", "view.1", "attention", "view.2",
    "merge.1" })
  t.eq(g.c:unused(), {})
  t.eq(x:shape(), { 16 })
  local function twice(y) return y * 2 end
  t.eq(g:patch_embed(g:weight "t.p", { patch = 2, adjust = twice }).name, "t.p:2")
  g.c:close()
end)

test("an expert that is missing is named", function(t)
  local tensors = { ["e.weight"] = { 8, 4 }, ["m.gate.weight"] = { 3, 4 } }
  for i = 0, 2 do
    for _, role in ipairs { "gate_proj", "up_proj", "down_proj" } do
      tensors[("m.experts.%d.%s.weight"):format(i, role)] = { 4, 4 }
    end
  end
  for _, missing in ipairs { "m.experts.1.gate_proj", "m.experts.2.up_proj",
    "m.experts.0.down_proj" } do
    local kept = tensors[missing .. ".weight"]
    tensors[missing .. ".weight"] = nil
    local g = build_over(t, tensors)
    t.raises(function() blocks.moe(g, g:embed "e", g:weight "m", { chosen = 2 }) end,
      "missing tensor " .. missing .. ".weight")
    g.c:close()
    tensors[missing .. ".weight"] = kept
  end
  local g = build_over(t, tensors)
  t.eq(blocks.moe(g, g:embed "e", g:weight "m", { chosen = 2 }):shape(), { 4 })
  g.c:close()
end)

-- ---- towers -------------------------------------------------------------------------------------

test("a tower in the foreground: defaults, and pictures that are refused", function(t)
  local w <close> = open_weights()
  local g <close> = assert(perigee.graph.open(w))
  local x = g:patches(1)
  g:name(x, "values")
  g:finish(g:merge(x, {}))
  local tower <close> = assert(perigee.tower.open(g, { threads = 1, taps = { "values" } }))
  t.eq({ tower.width, tower.fd, tower:outputs { 1, 2, 3 }, tower:outputs { 2, 1, 1 } },
    { 1, nil, 6, 2 })
  local patches = perigee.tensor { { 1.0 }, { 2.0 }, { 3.0 } }
  local one = { patches = patches, grid = { 1, 1, 3 } }
  local function values(list)
    local out = {}
    for i, tensor in ipairs(list) do out[i] = tensor:totable() end
    return out
  end
  local got = values(tower:encode { one, { patches = patches:rows(2, 2), grid = { 1, 1, 1 } } })
  t.eq(got, { { { 1.0 }, { 2.0 }, { 3.0 }, { 2.0 } }, { { 1.0 }, { 2.0 }, { 3.0 }, { 2.0 } } })
  local function encode(change)
    local picture = { patches = patches, grid = { 1, 1, 3 } }
    for k, v in pairs(change) do picture[k] = v end
    return function() return assert(tower:encode { one, picture }) end
  end
  for call, why in pairs {
    [function() tower:encode(5) end] = "table expected",
    [function() tower:encode {} end] = "a list of 1 to 4096 pictures expected",
    [function() tower:encode { 5 } end] = "pictures[1] must be {patches =, grid =}",
    [function() tower:outputs(5) end] = "table expected",
    [function() tower:outputs { 1, 1 } end] = "pictures[1].grid must be {frames, rows, cols}",
    [function() tower:submit { one } end] = "the tower works in the foreground: open it with",
    [function() tower:drain() end] = "works in the foreground",
    [function() tower:cancel(1) end] = "works in the foreground",
    [function() tower:bytes(-1) end] = "a number of patches expected",
    [encode { grid = 5 }] = "pictures[2].grid must be {frames, rows, cols}",
    [encode { grid = { 1, 1 } }] = "pictures[2].grid must be {frames, rows, cols}",
    [encode { patches = 5 }] = "pictures[2].patches must be a tensor, got number",
    [encode { grid = { 1, 2, 2 } }] =
      "pictures[2].patches must be contiguous float32 [4, 1], got f32 [3, 1]",
    [encode { patches = patches:to "f64" }] = "contiguous float32 [3, 1], got f64 [3, 1]",
    [encode { patches = patches:flatten() }] = "got f32 [3]",
    [encode { patches = perigee.tensor.zeros { 3, 2 } }] = "got f32 [3, 2]",
    [function() perigee.tower.open(g, { share = 5 }) end] = "'share' must be an open batch",
    [function() perigee.tower.open(g, { taps = { "x" } }) end] = "no value is named 'x'",
  } do
    t.raises(call, why)
  end
  for _, wrong in ipairs { { 0, 1, 1 }, { 1, -1, 1 }, { 1, 1, 1 << 40 }, { "x", 1, 1 } } do
    t.eq(tower:outputs(wrong), nil)
  end
  t.ok(tower:bytes(0) <= tower:bytes(100))
  t.eq(values(tower:encode { one })[1], patches:totable())
end)
