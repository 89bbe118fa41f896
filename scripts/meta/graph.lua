---@meta

---@class perigee.graph  Graphs of models, in numbers: architectures use the objects of models/graph.lua over them.
local graph = {}

---A new graph over opened weights.
---@param weights perigee.Weights
---@return perigee.Graph? graph
---@return perigee.Error? err
function graph.open(weights) end

---Values and params are numbers that this graph gave. What does not fit raises a perigee.Error that names the tensor or
---value, what was expected and what was found.
---@class perigee.Graph
local Graph = {}

---@alias perigee.ValueId integer
---@alias perigee.ParamId integer

---A tensor as a param; nil when there is none of that name. A tensor of rank 3 is one matrix per first index.
---@param name string
---@return perigee.ParamId?
function Graph:param(name) end

---@param param perigee.ParamId
---@return integer matrices
---@return integer rows
---@return integer cols
---@return boolean quantised
function Graph:param_shape(param) end

---Every step-th row of every matrix; from counts from 1.
---@param param perigee.ParamId
---@param options { from?: integer, count?: integer, step?: integer }
---@return perigee.ParamId
function Graph:rows(param, options) end

---One matrix as `count` of equal height.
---@param param perigee.ParamId
---@param count integer
---@return perigee.ParamId
function Graph:split(param, count) end

---Params of one matrix each as one of many.
---@param params perigee.ParamId[]
---@return perigee.ParamId
function Graph:stack(params) end

---Sizes of one row of a value.
---@param value perigee.ValueId
---@return integer[]
function Graph:shape(value) end

---Names a value, for taps and errors.
---@param value perigee.ValueId
---@param name string
function Graph:name(value, name) end

---Rows of a table for the step's tokens.
---@param param perigee.ParamId
---@param options? { scale?: number }
---@return perigee.ValueId
function Graph:embed(param, options) end

---@param value perigee.ValueId
---@param options { weight: perigee.ParamId, bias?: perigee.ParamId }
---@return perigee.ValueId
function Graph:linear(value, options) end

---One matrix per expert, for the experts that the route chose. transposed: they are stored as [in, out], and not quantised.
---@param value perigee.ValueId
---@param options { route: perigee.ValueId, weight: perigee.ParamId, bias?: perigee.ParamId, transposed?: boolean }
---@return perigee.ValueId
function Graph:expert_linear(value, options) end

---One matrix per head.
---@param value perigee.ValueId
---@param options { weight: perigee.ParamId, transposed?: boolean }
---@return perigee.ValueId
function Graph:head_linear(value, options) end

---@param value perigee.ValueId
---@param options { weight?: perigee.ParamId, eps?: number, offset?: number, scale?: number, width?: integer, l2?: boolean, layer?: boolean }
---@return perigee.ValueId
function Graph:norm(value, options) end

---neg, abs, exp, sigmoid, silu, tanh, relu, relu2, gelu, gelu_tanh, softplus, sqrt, rsqrt, log.
---@param op string
---@param value perigee.ValueId
---@return perigee.ValueId
function Graph:unary(op, value) end

---add, sub, mul, div, min, max. One of a and b may be left out for a number.
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

---A part of the first dimension, or with `last` of every head; from counts from 1.
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

---Stores keys and values and attends to all that came before.
---@param options { q: perigee.ValueId, k?: perigee.ValueId, v?: perigee.ValueId, sinks?: perigee.ParamId, window?: integer, value?: integer, scale?: number, softcap?: number, share?: integer }
---@return perigee.ValueId value
---@return integer layer  of the cache, to share
function Graph:attention(options) end

---@param value perigee.ValueId
---@param options { kind?: string, chosen: integer, groups?: integer, groups_kept?: integer, group_max?: boolean, normalize?: boolean, scale?: number, eps?: number, bias?: perigee.ParamId, factor?: perigee.ParamId }
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

---@param options { q: perigee.ValueId, k: perigee.ValueId, v: perigee.ValueId, decay: perigee.ValueId, beta: perigee.ValueId }
---@return perigee.ValueId
function Graph:delta(options) end

---@param options { x: perigee.ValueId, b: perigee.ValueId, c: perigee.ValueId, dt: perigee.ValueId, a_log: perigee.ParamId, dt_bias: perigee.ParamId, d: perigee.ParamId, dt_min?: number, dt_max?: number }
---@return perigee.ValueId
function Graph:ssm(options) end

---From here on only the rows whose logits are wanted.
---@param value perigee.ValueId
---@return perigee.ValueId
function Graph:output(value) end

---Declares the logits.
---@param value perigee.ValueId
function Graph:finish(value) end

---Everything in the graph, in order. steps: what a map does; scale, window: of an attention.
---@return { name: string, op: string, shape: integer[], inputs: string[], weight?: string, steps?: string[], scale?: number, window?: integer }[]
function Graph:values() end

---Tensors that no param was made of.
---@return string[]
function Graph:unused() end

---The instructions that the graph becomes; fusion: false leaves every op apart.
---@param options? { fusion?: boolean }
---@return perigee.Plan? plan
---@return perigee.Error? err
function Graph:plan(options) end

---What attention and recurrent layers keep of a sequence. Groups are layers of the same shape; window 0: all tokens;
---value 0: values are a part of the keys.
---@return { groups: { layers: integer, window: integer, heads: integer, key: integer, value: integer }[], state_floats: integer }
function Graph:caches() end

---Lets go of the graph. Harmless twice.
function Graph:close() end

---@class perigee.Plan
---@field row_floats integer       Of a row of a step: values that do not live at the same time share them.
---@field output_floats integer    Of a row whose logits are wanted, besides.
---@field unshared_floats integer  What both would take without sharing.
local Plan = {}

---One entry per instruction. fused: values that it computes on the way; folds: a norm that only products read, norm: the
---one that such a product reads; place: of its value, in floats of a row.
---@return { name: string, op: string, shape: integer[], weight?: string, steps?: string[], fused: table[], folds: boolean, norm?: string, place?: integer }[]
function Plan:instructions() end

---Lets go of the plan. Harmless twice.
function Plan:close() end

return graph
