---@meta

---@class perigee.graph  Graphs of models. Architecture scripts use objects that wrap them.
local graph = {}

---An empty graph over opened weights.
---@param weights perigee.Weights
---@return perigee.Graph? graph
---@return perigee.Error? err
function graph.open(weights) end

---Values and params are numbers that this graph returned. Errors are raised as a perigee.Error that
---names the tensor or value, what was expected and what was found.
---@class perigee.Graph
local Graph = {}

---@alias perigee.ValueId integer
---@alias perigee.ParamId integer

---@class perigee.ExpertOptions
---@field route perigee.ValueId
---@field weight perigee.ParamId
---@field bias? perigee.ParamId
---@field transposed? boolean

---@class perigee.NormOptions
---@field weight? perigee.ParamId
---@field eps? number
---@field offset? number   Added to the weight.
---@field scale? number
---@field width? integer   Values that are normalised together; the last dimension by default.
---@field l2? boolean      Divide by the norm instead of the root mean square.
---@field layer? boolean   Subtract the mean first (layer norm).

---@class perigee.AttentionOptions
---@field q perigee.ValueId
---@field k? perigee.ValueId      Required unless `share` is given.
---@field v? perigee.ValueId      By default the first `value` floats of the keys.
---@field sinks? perigee.ParamId
---@field window? integer         0: unlimited.
---@field value? integer
---@field scale? number
---@field softcap? number
---@field share? integer          Read the keys and values of this cache layer.

---@class perigee.RouteOptions
---@field chosen integer          Experts per row.
---@field kind? "softmax"|"topk"|"sigmoid"|"softmax_biased"
---@field groups? integer
---@field groups_kept? integer
---@field group_max? boolean
---@field normalize? boolean
---@field scale? number
---@field eps? number
---@field bias? perigee.ParamId
---@field factor? perigee.ParamId

---@class perigee.DeltaOptions
---@field q perigee.ValueId
---@field k perigee.ValueId
---@field v perigee.ValueId
---@field decay perigee.ValueId
---@field beta perigee.ValueId

---@class perigee.SsmOptions
---@field x perigee.ValueId
---@field b perigee.ValueId
---@field c perigee.ValueId
---@field dt perigee.ValueId
---@field a_log perigee.ParamId
---@field dt_bias perigee.ParamId
---@field d perigee.ParamId
---@field dt_min? number
---@field dt_max? number

---@class perigee.ValueInfo
---@field name string
---@field op string
---@field shape integer[]
---@field inputs string[]
---@field weight? string
---@field steps? string[]   Of a map.
---@field scale? number     Of an attention.
---@field window? integer   Of an attention.

---@class perigee.CacheGroup  Attention layers of the same shape.
---@field layers integer
---@field window integer  0: all tokens.
---@field heads integer
---@field key integer     Floats of a key.
---@field value integer   Floats of a value; 0: the values are part of the keys.

---@class perigee.Instruction
---@field name string
---@field op string
---@field shape integer[]
---@field weight? string
---@field steps? string[]  Of a map.
---@field scale? number    Of an attention.
---@field window? integer  Of an attention.
---@field fused table[]    Values that it computes on the way.
---@field place? integer   Place of its value, in floats per row.

---A tensor as a param; nil if no tensor has this name. A tensor of rank 3 is one matrix per first
---index.
---@param name string
---@return perigee.ParamId?
function Graph:param(name) end

---@param param perigee.ParamId
---@return integer matrices
---@return integer rows
---@return integer cols
---@return boolean quantised
function Graph:param_shape(param) end

---Every step-th row of every matrix, beginning with row `from`, counted from 1.
---@param param perigee.ParamId
---@param options { from?: integer, count?: integer, step?: integer }
---@return perigee.ParamId
function Graph:rows(param, options) end

---Splits one matrix into `count` matrices of equal height.
---@param param perigee.ParamId
---@param count integer
---@return perigee.ParamId
function Graph:split(param, count) end

---Joins params of one matrix each into one param.
---@param params perigee.ParamId[]
---@return perigee.ParamId
function Graph:stack(params) end

---The shape of one row of a value.
---@param value perigee.ValueId
---@return integer[]
function Graph:shape(value) end

---Names a value, for taps and errors.
---@param value perigee.ValueId
---@param name string
function Graph:name(value, name) end

---The rows of an embedding table for the tokens of the step. Rows of pictures take their features
---instead, unscaled; with `media`, the row of that token.
---@param param perigee.ParamId
---@param options? { scale?: number, media?: integer }
---@return perigee.ValueId
function Graph:embed(param, options) end

---Adds plane `plane` (from 1) of the features to the rows of pictures.
---@param value perigee.ValueId
---@param plane integer
---@return perigee.ValueId
function Graph:deepstack(value, plane) end

---@param value perigee.ValueId
---@param options { weight: perigee.ParamId, bias?: perigee.ParamId }
---@return perigee.ValueId
function Graph:linear(value, options) end

---One matrix per expert, for the experts that the route chose. transposed: the matrices are stored
---as [in, out], and cannot be quantised.
---@param value perigee.ValueId
---@param options perigee.ExpertOptions
---@return perigee.ValueId
function Graph:expert_linear(value, options) end

---One matrix per head.
---@param value perigee.ValueId
---@param options { weight: perigee.ParamId, transposed?: boolean }
---@return perigee.ValueId
function Graph:head_linear(value, options) end

---@param value perigee.ValueId
---@param options perigee.NormOptions
---@return perigee.ValueId
function Graph:norm(value, options) end

---neg, abs, exp, sigmoid, silu, tanh, relu, relu2, gelu, gelu_tanh, softplus, sqrt, rsqrt, log.
---@param op string
---@param value perigee.ValueId
---@return perigee.ValueId
function Graph:unary(op, value) end

---add, sub, mul, div, min, max. `number` takes the place of a missing a or b.
---@param op string
---@param operands { a?: perigee.ValueId, b?: perigee.ValueId, number?: number }
---@return perigee.ValueId
function Graph:binary(op, operands) end

---A param's values as a constant vector.
---@param param perigee.ParamId
---@return perigee.ValueId
function Graph:constant(param) end

---@param value perigee.ValueId
---@param shape integer[]
---@return perigee.ValueId
function Graph:reshape(value, shape) end

---A part of the first dimension, or with `last` of the last one; from counts from 1.
---@param value perigee.ValueId
---@param options { from: integer, count: integer, last?: boolean }
---@return perigee.ValueId
function Graph:slice(value, options) end

---Joins along the last dimension.
---@param values perigee.ValueId[]
---@return perigee.ValueId
function Graph:concat(values) end

---cos and sin of every position, shared by all layers with the same numbers.
---@param spec table
---@return perigee.ValueId
function Graph:rope_table(spec) end

---@param value perigee.ValueId
---@param options { table: perigee.ValueId, pairs?: boolean, skip?: integer }
---@return perigee.ValueId
function Graph:rope(value, options) end

---Stores keys and values in the KV cache and attends to them and all earlier ones.
---@param options perigee.AttentionOptions
---@return perigee.ValueId value
---@return integer layer  the cache layer, for `share`
function Graph:attention(options) end

---@param value perigee.ValueId
---@param options perigee.RouteOptions
---@return perigee.ValueId
function Graph:route(value, options) end

---@param value perigee.ValueId
---@param route perigee.ValueId
---@return perigee.ValueId
function Graph:expert_sum(value, route) end

---@param value perigee.ValueId
---@param options { weight: perigee.ParamId, bias?: perigee.ParamId, activation?: string }
---@return perigee.ValueId
function Graph:conv(value, options) end

---@param options perigee.DeltaOptions
---@return perigee.ValueId
function Graph:delta(options) end

---@param options perigee.SsmOptions
---@return perigee.ValueId
function Graph:ssm(options) end

---The dimensions of a tensor in another order, as one matrix; order counts from 1.
---@param param perigee.ParamId
---@param options { shape: integer[], order: integer[] }
---@return perigee.ParamId
function Graph:permute(param, options) end

---Subtracts the mean, divides by the standard deviation.
---@param value perigee.ValueId
---@param options { weight?: perigee.ParamId, bias?: perigee.ParamId, eps?: number }
---@return perigee.ValueId
function Graph:layer_norm(value, options) end

---The patches of the step of a tower, `width` floats each.
---@param width integer
---@return perigee.ValueId
function Graph:patches(width) end

---Lines of a table of positions, summed for each patch as the tower's options say.
---@param param perigee.ParamId
---@return perigee.ValueId
function Graph:lookup(param) end

---Patches to outputs: `count` are joined, or averaged.
---@param value perigee.ValueId
---@param options { count: integer, mean?: boolean }
---@return perigee.ValueId
function Graph:merge(value, options) end

---@class perigee.RegionAttentionOptions
---@field q perigee.ValueId
---@field k perigee.ValueId
---@field v perigee.ValueId
---@field regions? "frame"|"window"
---@field scale? number

---Attention of every patch to all patches of its frame or window.
---@param options perigee.RegionAttentionOptions
---@return perigee.ValueId
function Graph:region_attention(options) end

---Keeps only the rows whose logits are wanted.
---@param value perigee.ValueId
---@return perigee.ValueId
function Graph:output(value) end

---Declares the logits.
---@param value perigee.ValueId
function Graph:finish(value) end

---All values of the graph, in order.
---@return perigee.ValueInfo[]
function Graph:values() end

---Names of the tensors that no param refers to.
---@return string[]
function Graph:unused() end

---Plans the graph. fusion = false: one instruction per op.
---@param options? { fusion?: boolean }
---@return perigee.Plan? plan
---@return perigee.Error? err
function Graph:plan(options) end

---What the caches store of a sequence.
---@return { groups: perigee.CacheGroup[], state_floats: integer }
function Graph:caches() end

---Closes the graph. A second call does nothing.
function Graph:close() end

---@class perigee.Plan
---@field row_floats integer       Floats per row of a step.
---@field output_floats integer    Additional floats per row whose logits are wanted.
---@field unshared_floats integer  The sum of both without sharing.
local Plan = {}

---One entry per instruction, in order.
---@return perigee.Instruction[]
function Plan:instructions() end

---Closes the plan. A second call does nothing.
function Plan:close() end

---@class perigee.MetalCost
---@field op string
---@field dispatches integer  0: the step does not run it
---@field barriers integer  before its dispatches
---@field weights number  bytes, as often as the kernels read them
---@field cache number  bytes of the KV cache or of states
---@field values number  bytes of lines that it reads and writes
---@field macs number  multiply-adds
---@field once number  bytes of weights and caches, each read once

---@class perigee.MetalLoad
---@field rows? integer       Of each sequence (1).
---@field past? integer       Tokens before them (0).
---@field sequences? integer  1
---@field kv_bits? integer    16
---@field kv_block? integer   64

---What a step costs on Metal, instruction by instruction; needs no GPU.
---@param options? perigee.MetalLoad
---@return perigee.MetalCost[]? costs
---@return string? err
function Plan:count(options) end

return graph
