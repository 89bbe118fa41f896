-- graph: the builder that architectures use; objects with operators over perigee.graph.
--
-- A value is the result of an op, one row per token. Values add, multiply and so on with values,
-- numbers and weights. A weight is found by name: p "self_attn.q_proj" is that module of the layer,
-- in whichever naming dialect the file uses. A bias is added if the file has one. C checks shapes;
-- an error names the tensor and both shapes.
local perigee = require "perigee"

local Graph, Value, Weight = {}, {}, {}
Graph.__index, Value.__index, Weight.__index = Graph, Value, Weight

-- ---- weights ------------------------------------------------------------------------------------

--- Finds a module's tensor under any of its names. Returns the param and the name, or nil.
local function find(g, path, tensor)
  for _, name in ipairs(g.spell(path, tensor)) do
    local id = g.c:param(name)
    if id then return id, name end
  end
end

local function missing(g, path, tensor)
  error(("missing tensor %s"):format(g.spell(path, tensor)[1]), 0)
end

--- The param of a weight: that of a derived weight, or the tensor "weight" of its module.
local function param(w)
  if type(w) == "string" then error(("'%s' is not a weight: use g:weight or p"):format(w), 3) end
  return w:exists() and w.id or missing(w.g, w.path, "weight")
end

--- A weight that is part of another or stacked from others; it has no bias.
local function derive(w, id)
  return setmetatable({ g = w.g, path = w.path, id = id, derived = true }, Weight)
end

--- A module inside a module: p "self_attn" "q_proj".
Weight.__call = function(w, name) return w.g:weight(w.path .. "." .. name) end

--- The bias of a weight: the tensor "bias" of its module, or X_bias for a matrix stored as X.
local function bias_of(w)
  if w.derived then return nil end
  return find(w.g, w.path, "bias") or find(w.g, w.path .. "_bias", "")
end

--- Is the module, or this tensor of it, in the file?
function Weight:exists(tensor)
  if tensor then return find(self.g, self.path, tensor) ~= nil end
  for _, name in ipairs { "weight", "" } do
    if not self.id then self.id, self.tensor_name = find(self.g, self.path, name) end
  end
  return self.id ~= nil
end

--- Another tensor of the module: p("mlp.gate"):tensor "e_score_correction_bias".
function Weight:tensor(name)
  local id = find(self.g, self.path, name)
  return id and derive(self, id) or nil
end

--- Returns the number of matrices, rows and columns, and whether the weight is quantized.
function Weight:shape() return self.g.c:param_shape(param(self)) end

--- Raises unless the matrix is { rows, cols }; without cols any width is fine. words: where the
--- config says so, for the message.
function Weight:expect(shape, words)
  local _, rows, cols = self:shape()
  local want = shape[2] or cols
  if rows ~= shape[1] or cols ~= want then
    error(("tensor %s is [%d, %d], expected [%d, %d]: the config says %s"):format(self.tensor_name,
      rows, cols, shape[1], want, words), 0)
  end
end

--- Every step-th row starting at `from`, of each matrix.
function Weight:rows(from, options)
  options = options or {}
  local id = self.g.c:rows(param(self), { from = from, count = options.count, step = options.step })
  return derive(self, id)
end

--- One matrix as `count` matrices of equal height.
function Weight:split(count) return derive(self, self.g.c:split(param(self), count)) end

function Graph:weight(path) return setmetatable({ g = self, path = path }, Weight) end

--- Of two modules with the same meaning, the one that is in the file.
function Graph.either(_, a, b) return b:exists() and b or a end

--- Single matrices as one stacked weight, for files that store experts one by one.
function Graph:stack(list)
  local ids = {}
  for i, w in ipairs(list) do ids[i] = param(w) end
  return derive(list[1], self.c:stack(ids))
end

-- ---- values -------------------------------------------------------------------------------------

--- Every op ends here. `pause` lets the loop of a server turn during a long build.
local function wrap(g, id)
  if g.pause then g.pause() end
  g.latest = setmetatable({ g = g, id = id }, Value)
  g.made[id] = g.made[id] or g.prefix
  return g.latest
end

--- The value of this name in a finished graph, to continue from there.
function Graph:value(name)
  for i, v in ipairs(self.c:values()) do
    if v.name == name then return wrap(self, i - 1) end
  end
  error(("the graph has no value '%s'"):format(name), 2)
end

--- Names a value; a second value of the same name gets a number as suffix.
local function set_name(x, name)
  local taken, unique, n = x.g.names, name, 1
  if x.name then taken[x.name] = nil end
  x.g.made[x.id] = false
  while taken[unique] do
    n = n + 1
    unique = ("%s:%d"):format(name, n)
  end
  taken[unique], x.name = true, unique
  x.g.c:name(x.id, unique)
end

local function is_value(x) return getmetatable(x) == Value end

--- A weight used as an operand is a constant vector.
local function operand(g, x)
  if getmetatable(x) == Weight then return wrap(g, g.c:constant(param(x))) end
  return x
end

local function binary(op)
  return function(a, b)
    local g = (is_value(a) and a or b).g
    a, b = operand(g, a), operand(g, b)
    if is_value(a) and is_value(b) then return wrap(g, g.c:binary(op, { a = a.id, b = b.id })) end
    if is_value(a) then return wrap(g, g.c:binary(op, { a = a.id, number = b })) end
    return wrap(g, g.c:binary(op, { b = b.id, number = a }))
  end
end

Value.__add, Value.__sub = binary "add", binary "sub"
Value.__mul, Value.__div = binary "mul", binary "div"
Value.__unm = function(x) return wrap(x.g, x.g.c:unary("neg", x.id)) end

--- Names the value, for taps and errors; returns it. Inside a layer the name is prefixed with the
--- layer's path: model.layers.0.attention.
function Value:named(name)
  local prefix = self.g.prefix
  if name:sub(1, #prefix) ~= prefix then name = prefix .. name end
  set_name(self, name)
  return self
end

--- The dimensions of one row: { heads, width }, say.
function Value:shape() return self.g.c:shape(self.id) end
function Value:width()
  local n = 1
  for _, d in ipairs(self:shape()) do n = n * d end
  return n
end

local unary = { "exp", "sigmoid", "silu", "tanh", "relu", "relu2", "gelu", "gelu_tanh", "softplus",
  "sqrt", "rsqrt" }
for _, op in ipairs(unary) do
  Graph[op] = function(g, x) return wrap(g, g.c:unary(op, operand(g, x).id)) end
end

--- x limited to [low, high]; either may be nil.
function Graph.clamp(_, x, options)
  if options.high then x = binary "min"(x, options.high) end
  if options.low then x = binary "max"(x, options.low) end
  return x
end

--- x limited to (-cap, cap) by tanh; x itself without a cap.
function Graph:softcap(x, cap) return cap and self:tanh(x / cap) * cap or x end

-- ---- modules ------------------------------------------------------------------------------------

--- Rows of an embedding table for the tokens of the step, times options.scale; rows of pictures are
--- their features, or with options.media the row of that token. The first table also serves as the
--- head of a model that has none.
function Graph:embed(w, options)
  if type(w) == "string" then w = self:weight(w) end
  local c, name = self.config, self.embedding and w.path or "embed"
  if not self.embedding then
    self.embedding = w
    if c.vocab and c.hidden then
      w:expect({ c.vocab, c.hidden }, ("%d tokens of width %d"):format(c.vocab, c.hidden))
    end
  end
  options = options or {}
  return wrap(self, self.c:embed(param(w), { scale = options.scale, media = options.media }))
    :named(name)
end

--- Adds plane `plane` (from 1) of the features of pictures to their rows (Qwen3-VL's deepstack).
function Graph:deepstack(x, plane) return wrap(self, self.c:deepstack(x.id, plane)) end

--- x W' + b, with the bias if the file has one.
function Graph:linear(x, w)
  local y = wrap(self, self.c:linear(x.id, { weight = param(w), bias = bias_of(w) })):named(w.path)
  y.weight = not w.derived and w or nil
  return y
end

--- Like linear, with one matrix per expert and only for the experts that the route chose. Options:
--- route, transposed (stored as [in, out]).
function Graph:expert_linear(x, w, options)
  return wrap(self, self.c:expert_linear(x.id, { route = options.route.id, weight = param(w),
    bias = bias_of(w), transposed = options.transposed })):named(w.path)
end

--- One matrix per head; transposed: stored as [in, out].
function Graph:head_linear(x, w, options)
  local transposed = options and options.transposed
  return wrap(self, self.c:head_linear(x.id, { weight = param(w), transposed = transposed }))
end

--- RMS norm over the last dimension (or `width` values), times the weight (plus `offset`).
function Graph:rms_norm(x, w, options)
  options = options or {}
  if type(w) == "string" then w = self:weight(w) end
  local y = wrap(self, self.c:norm(x.id, { weight = w and param(w),
    eps = options.eps or self.config.eps, offset = options.offset or self.norm_offset,
    width = options.width, scale = options.scale }))
  return w and y:named(w.path) or y
end

--- x / |x|, times scale.
function Graph:l2_norm(x, options)
  options = options or {}
  return wrap(self, self.c:norm(x.id, { l2 = true, eps = 1e-6, scale = options.scale }))
end

local projections = { q_proj = true, k_proj = true, v_proj = true }

--- Reshapes a row to `n` heads. The output of q_proj, k_proj or v_proj must have heads as wide as
--- options.dim, by default the config's head_dim.
function Graph:heads(x, n, options)
  local w, dim = x.weight, options and options.dim or self.config.head_dim
  if w and dim and projections[w.path:match "[^.]*$"] then
    w:expect({ n * dim }, ("%d heads of %d"):format(n, dim))
  end
  return self:reshape(x, { n, x:width() // n })
end
--- Reshapes heads back to one row.
function Graph:flat(x) return self:reshape(x, { x:width() }) end
function Graph:reshape(x, shape) return wrap(self, self.c:reshape(x.id, shape)) end

--- Splits the first dimension into parts of these sizes, one value each. Nothing is copied.
function Graph:split(x, sizes)
  local parts, from = {}, 1
  for i, size in ipairs(sizes) do
    parts[i] = wrap(self, self.c:slice(x.id, { from = from, count = size }))
    from = from + size
  end
  return table.unpack(parts)
end

--- Splits every head into parts of these sizes.
function Graph:split_heads(x, sizes)
  local parts, from = {}, 1
  for i, size in ipairs(sizes) do
    parts[i] = wrap(self, self.c:slice(x.id, { from = from, count = size, last = true }))
    from = from + size
  end
  return table.unpack(parts)
end

--- Joins values along the last dimension; a value with one head is joined to every head.
function Graph:concat(list)
  local ids = {}
  for i, x in ipairs(list) do ids[i] = x.id end
  return wrap(self, self.c:concat(ids))
end

--- Rotates the heads of x by position. spec: from config.rope; options.pairs: rotate neighbouring
--- values instead of halves.
function Graph:rope(x, spec, options)
  options = options or {}
  local t = self.c:rope_table(spec)
  local together = options.pairs
  if together == nil then together = self.rope_pairs end
  return wrap(self, self.c:rope(x.id, { table = t, pairs = together, skip = options.skip }))
end

--- Attention: { q =, k =, v =, window =, scale =, sinks =, softcap =, share =, value =, spans = }.
--- share: read the cache of that layer instead of storing k and v; value: the first `value` columns
--- of k are v; spans: the rows of a bidirectional picture see all of it. The default scale is the
--- head width ^ -0.5. Returns the value and its cache layer.
function Graph:attention(a)
  local width = a.q:shape()[2]
  local y, layer = self.c:attention { q = a.q.id, k = a.k and a.k.id, v = a.v and a.v.id,
    window = a.window, value = a.value, scale = a.scale or width ^ -0.5, softcap = a.softcap,
    sinks = a.sinks and param(a.sinks), share = a.share, spans = a.spans }
  return wrap(self, y):named(a.name or "attention"), layer
end

--- Chooses experts by logits: { kind =, chosen =, normalize =, scale =, eps =, groups =,
--- groups_kept =, bias = weight, factor = weight }.
function Graph:route(logits, o)
  return wrap(self, self.c:route(logits.id, { kind = o.kind, chosen = o.chosen,
    normalize = o.normalize, scale = o.scale, eps = o.eps, groups = o.groups,
    groups_kept = o.groups_kept, group_max = o.group_max, bias = o.bias and param(o.bias),
    factor = o.factor and param(o.factor) })):named "route"
end

--- The outputs of the experts, weighted and summed in order of rank.
function Graph:expert_sum(x, route)
  return wrap(self, self.c:expert_sum(x.id, route.id)):named "experts"
end

--- Causal depthwise convolution over the sequence.
function Graph:conv(x, w, options)
  return wrap(self, self.c:conv(x.id, { weight = param(w), bias = bias_of(w),
    activation = options and options.activation })):named(w.path)
end

--- Gated delta rule: { q =, k =, v =, decay =, beta = }.
function Graph:delta(o)
  return wrap(self, self.c:delta { q = o.q.id, k = o.k.id, v = o.v.id, decay = o.decay.id,
    beta = o.beta.id }):named "delta"
end

--- Mamba 2: { x =, b =, c =, dt =, dt_min =, dt_max = } and the weights { a_log =, dt_bias =, d =
--- }.
function Graph:ssm(o)
  return wrap(self, self.c:ssm { x = o.x.id, b = o.b.id, c = o.c.id, dt = o.dt.id,
    a_log = param(o.a_log), dt_bias = param(o.dt_bias), d = param(o.d), dt_min = o.dt_min,
    dt_max = o.dt_max }):named "ssm"
end

-- ---- towers -------------------------------------------------------------------------------------

--- The dimensions of a tensor in another order, as one matrix: { shape =, order = }.
function Weight:permuted(options) return derive(self, self.g.c:permute(param(self), options)) end

--- The tensor as one matrix of rows of this width, in the order of the file.
function Weight:flattened(width)
  local count, rows, cols = self:shape()
  return self:permuted { shape = { count * rows * cols // width, width }, order = { 1, 2 } }
end

--- The patches of the step through their embedding, a convolution whose stride is its width. w:
--- stored as [out, channels, (frames,) height, width], with the channels last in converted files,
--- or as a matrix. o: patch (side in pixels), frames (default 1), channels (default 3), adjust
--- (function of the patches, before the embedding).
function Graph:patch_embed(w, o)
  local frames, channels = o.frames or 1, o.channels or 3
  local values = channels * frames * o.patch * o.patch
  local count, rows, cols = w:shape()
  local out = count * rows * cols // values
  local matrix = w
  if cols == channels then
    matrix = w:permuted { shape = { out, frames, o.patch, o.patch, channels },
      order = { 1, 5, 2, 3, 4 } }
  elseif cols ~= values then
    matrix = w:flattened(values)
  end
  local x = wrap(self, self.c:patches(values)):named "patches"
  if o.adjust then x = o.adjust(x) end
  return wrap(self, self.c:linear(x.id, { weight = param(matrix), bias = bias_of(w) }))
    :named(w.path)
end

--- Lines of a table of positions, one row per patch; how a row finds them is part of the tower's
--- layout.
function Graph:lookup(w)
  local y = wrap(self, self.c:lookup(param(w)))
  return y:named(w.path)
end

--- Blocks of `side` x `side` patches as one row each: joined, or with mean = true averaged.
function Graph:merge(x, side, options)
  return wrap(self, self.c:merge(x.id, { count = side * side, mean = options and options.mean }))
end

--- Attention of every patch to all patches of its frame, or with regions = "window" of its window:
--- { q =, k =, v =, scale =, regions = }. The default scale is the head width ^ -0.5.
function Graph:region_attention(a)
  return wrap(self, self.c:region_attention { q = a.q.id, k = a.k.id, v = a.v.id,
    regions = a.regions, scale = a.scale or a.q:shape()[2] ^ -0.5 }):named "attention"
end

--- Layer norm, with the bias if the file has one.
function Graph:layer_norm(x, w, eps)
  return wrap(self, self.c:layer_norm(x.id, { weight = param(w), bias = bias_of(w), eps = eps }))
    :named(w.path)
end

--- The cheap approximation of GELU: x * sigmoid(1.702 x).
function Graph:gelu_quick(x) return x * self:sigmoid(x * 1.702) end

-- ---- the end ------------------------------------------------------------------------------------

--- Logits of the rows that want them, by lm_head or, if the file has none, by the embedding.
function Graph:head(x, options)
  local w = self:weight(options and options.weight or "lm_head")
  if not w:exists() then w = self.embedding end
  local vocab = self.config.vocab
  if vocab then w:expect({ vocab }, ("%d tokens"):format(vocab)) end
  return self:linear(wrap(self, self.c:output(x.id)), w)
end

--- Iterates over the layers of a module list: i (from 1) and the layer p; p "mlp" is its module of
--- that name. The last value of a layer is its output and gets the layer's name.
function Graph:layers(path, count)
  local i = 0
  count = count or self.config.layers
  return function()
    local x = self.latest
    if i > 0 and x and not x.name then set_name(x, self.prefix:sub(1, -2)) end
    i = i + 1
    self.prefix = i <= count and ("%s.%d."):format(path, i - 1) or ""
    if i <= count then return i, self:weight(self.prefix:sub(1, -2)) end
  end
end

--- Declares the logits. Values without a name get one from their layer, their op and a count, so
--- that equal layers have equal names: model.layers.3.add.2.
function Graph:finish(logits)
  self.c:finish(logits.id)
  local values, counts, prefix = self.c:values(), {}, ""
  -- C inserts more values, a store before an attention; they belong to the next value's
  -- layer.
  for i = #values, 1, -1 do
    local mine = self.made[i - 1]
    prefix = mine or prefix
    self.made[i - 1] = mine == nil and (values[i].op == "rope_table" and "" or prefix) or mine
  end
  for i, v in ipairs(values) do
    if self.made[i - 1] then
      local name = self.made[i - 1] .. (v.steps and v.steps[1] or v.op)
      counts[name] = (counts[name] or 0) + 1
      set_name({ g = self, id = i - 1 }, ("%s.%d"):format(name, counts[name]))
    end
  end
end

--- options.spell(path, tensor): the names that a tensor may have in the file, in order of
--- preference.
local function new(weights, c, options)
  local handle, why = perigee.graph.open(weights)
  if not handle then return nil, why end
  return setmetatable({ c = handle, config = c, spell = options.spell, prefix = "", names = {},
    made = {}, norm_offset = 0, rope_pairs = false }, Graph)
end

return { new = new }
