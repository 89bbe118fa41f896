---@meta

---@alias perigee.Dtype
---| "f64" | "f32" | "f16" | "bf16" | "i64" | "i32" | "i16" | "i8" | "u64" | "u32" | "u16" | "u8" | "bool"
---| "f8_e4m3" | "f8_e5m2" | "f8_e8m0"

---`perigee.tensor { {1, 2}, {3, 4} }` makes a tensor of a table, a number or a tensor: integers give i64, booleans bool,
---else f32; a second argument `{ dtype = "f16" }` says otherwise.
---@class perigee.tensor  Making tensors.
---@overload fun(value: table|number|boolean|perigee.Tensor, options?: { dtype?: perigee.Dtype }): perigee.Tensor
local tensor = {}

---Zeros. The list part is the shape: `zeros { 2, 3, dtype = "f16" }`.
---@param shape table  { dimension …, dtype = "f32" }
---@return perigee.Tensor
function tensor.zeros(shape) end

---Ones.
---@param shape table  { dimension …, dtype = "f32" }
---@return perigee.Tensor
function tensor.ones(shape) end

---A tensor of one value.
---@param shape table  { dimension …, dtype = "f32" }
---@param value number|boolean
---@return perigee.Tensor
function tensor.full(shape, value) end

---The identity matrix.
---@param n integer
---@param options? { dtype?: perigee.Dtype }
---@return perigee.Tensor
function tensor.eye(n, options) end

---The numbers a `for` runs through: `range(5)` is 1 … 5, `range(0, 1, { step = 0.25 })` includes both ends.
---@param from number  the end, when it stands alone
---@param to? number
---@param options? { step?: number, dtype?: perigee.Dtype }
---@return perigee.Tensor
function tensor.range(from, to, options) end

---Random numbers, low <= x < high; integers for integer dtypes. A function of seed and position: the same everywhere.
---@param shape table  { dimension …, low = 0, high = 1, seed = 0, dtype = "f32" }
---@return perigee.Tensor
function tensor.uniform(shape) end

---Random numbers of a normal distribution. A function of seed and position.
---@param shape table  { dimension …, mean = 0, std = 1, seed = 0, dtype = "f32" }
---@return perigee.Tensor
function tensor.normal(shape) end

---A tensor of raw bytes in the machine's order.
---@param bytes string
---@param options { shape?: integer[], dtype?: perigee.Dtype }  without a shape: a vector
---@return perigee.Tensor
function tensor.from_bytes(bytes, options) end

---Is the value a tensor, open or closed?
---@param value any
---@return boolean
function tensor.is(value) end

---Tensors one after another along an axis; they agree in all others.
---@param parts perigee.Tensor[]
---@param axis? integer  the first
---@return perigee.Tensor
function tensor.concat(parts, axis) end

---Tensors of one shape side by side along a new axis.
---@param parts perigee.Tensor[]
---@param axis? integer  of the result; the first
---@return perigee.Tensor
function tensor.stack(parts, axis) end

---Positions and axes count from 1, negative ones from the end. `t[i]` is the i-th row (a view), or a number of a vector,
---nil past the end; `t[i] = x` writes. `+ - * / // % ^` work element by element and broadcast; a number bends to the
---tensor's dtype. `==` asks for the same object: see `equal`.
---@class perigee.Tensor  Numbers with a shape.
---@field shape integer[]         The dimensions.
---@field strides integer[]       Elements from one to the next along each axis.
---@field dtype perigee.Dtype     The type of an element.
---@field rank integer            How many dimensions.
---@field size integer            How many elements.
---@field nbytes integer          Bytes of the elements.
---@field is_contiguous boolean   Do the elements lie in order, without gaps?
---@operator add(perigee.Tensor|number): perigee.Tensor
---@operator sub(perigee.Tensor|number): perigee.Tensor
---@operator mul(perigee.Tensor|number): perigee.Tensor
---@operator div(perigee.Tensor|number): perigee.Tensor
---@operator idiv(perigee.Tensor|number): perigee.Tensor
---@operator mod(perigee.Tensor|number): perigee.Tensor
---@operator pow(perigee.Tensor|number): perigee.Tensor
---@operator unm: perigee.Tensor
---@operator len: integer
local Tensor = {}

---Gives the bytes back now instead of at the next collection; also `local t <close> = …`. Views of it stay valid.
function Tensor:close() end

---The number in a tensor of one element.
---@return number|boolean
function Tensor:item() end

---Nested tables of numbers.
---@return table|number|boolean
function Tensor:totable() end

---The elements as raw bytes, in order.
---@return string
function Tensor:bytes() end

---@class perigee.TensorStats  Of the finite elements; NaN where there are none.
---@field count integer  Elements, of any kind.
---@field nan integer    How many are NaN.
---@field inf integer    How many are infinite.
---@field zero integer   How many are zero.
---@field min number     The smallest.
---@field max number     The largest.
---@field mean number    Their mean.
---@field std number     Standard deviation (divided by n).

---What is in it, in one pass.
---@return perigee.TensorStats
function Tensor:stats() end

---Counts of the finite elements in equal parts of low … high.
---@param bins? integer  16
---@param options? { low?: number, high?: number }  from the smallest to the largest
---@return { counts: integer[], low: number, high: number }
function Tensor:histogram(bins, options) end

---The numbers, aligned, with a header; long axes are shortened. `threshold`: how many elements are shown whole.
---@param options? { width?: integer, edge?: integer, threshold?: integer, digits?: integer, ascii?: boolean }
---@return string
function Tensor:format(options) end

---One line: dtype, shape, bytes, a histogram between the smallest and the largest, mean and deviation.
---@param options? { ascii?: boolean }
---@return string
function Tensor:summary(options) end

---Rows from … to of the first axis, as string.sub counts. A view.
---@param from integer
---@param to? integer  the last
---@return perigee.Tensor
function Tensor:rows(from, to) end

---A part of each axis: `{from, to, step}`, a position (the axis goes) or true for all of it. A view.
---@param parts table
---@return perigee.Tensor
function Tensor:slice(parts) end

---One position of an axis, which goes. A view.
---@param axis integer
---@param position integer
---@return perigee.Tensor
function Tensor:select(axis, position) end

---Another shape over the same bytes; one dimension may be -1. Raises where that needs a copy.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:view(shape) end

---Another shape for the same elements: a view where possible, else a copy.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:reshape(shape) end

---All elements as a vector: a view where possible, else a copy.
---@return perigee.Tensor
function Tensor:flatten() end

---The last two axes change places. A view.
---@return perigee.Tensor
function Tensor:t() end

---The axes in another order. A view.
---@param axes integer[]
---@return perigee.Tensor
function Tensor:permute(axes) end

---Two axes change places. A view.
---@param a integer
---@param b integer
---@return perigee.Tensor
function Tensor:swap(a, b) end

---Repeats axes of 1, and adds leading ones, without copying. Read only.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:expand(shape) end

---Drops an axis of 1, or all of them. A view.
---@param axis? integer
---@return perigee.Tensor
function Tensor:squeeze(axis) end

---A new axis of 1 at this place of the result. A view.
---@param axis integer
---@return perigee.Tensor
function Tensor:unsqueeze(axis) end

---The tensor with its elements in order: itself (a view) where they are, else a copy.
---@return perigee.Tensor
function Tensor:contiguous() end

---A copy.
---@return perigee.Tensor
function Tensor:copy() end

---A copy in another dtype. What does not fit saturates, fractions are cut, NaN becomes 0 in integers.
---@param dtype perigee.Dtype
---@return perigee.Tensor
function Tensor:to(dtype) end

---Sets every element; views see it. Returns the tensor itself.
---@param value number|boolean
---@return perigee.Tensor
function Tensor:fill(value) end

---Copies elements in, broadcasting and converting; views see it. Returns the tensor itself.
---@param from perigee.Tensor
---@return perigee.Tensor
function Tensor:write(from) end

---Rows of an axis by their positions; the shape of the positions takes the place of the axis.
---@param positions perigee.Tensor|integer[]
---@param axis? integer  the first
---@return perigee.Tensor
function Tensor:take(positions, axis) end

---The opposite of each element; the operator `-t`.
---@return perigee.Tensor
function Tensor:neg() end

---Absolute values.
---@return perigee.Tensor
function Tensor:abs() end

----1, 0 or 1; NaN stays.
---@return perigee.Tensor
function Tensor:sign() end

---Squares.
---@return perigee.Tensor
function Tensor:square() end

---Negative elements become 0.
---@return perigee.Tensor
function Tensor:relu() end

---Rounds down.
---@return perigee.Tensor
function Tensor:floor() end

---Rounds up.
---@return perigee.Tensor
function Tensor:ceil() end

---Rounds to the nearest integer, ties to even.
---@return perigee.Tensor
function Tensor:round() end

---e to the power of each element.
---@return perigee.Tensor
function Tensor:exp() end

---Natural logarithms.
---@return perigee.Tensor
function Tensor:log() end

---Square roots.
---@return perigee.Tensor
function Tensor:sqrt() end

---1 / sqrt(x).
---@return perigee.Tensor
function Tensor:rsqrt() end

---Sines.
---@return perigee.Tensor
function Tensor:sin() end

---Cosines.
---@return perigee.Tensor
function Tensor:cos() end

---Hyperbolic tangents.
---@return perigee.Tensor
function Tensor:tanh() end

---The error function.
---@return perigee.Tensor
function Tensor:erf() end

---1 / (1 + exp(-x)).
---@return perigee.Tensor
function Tensor:sigmoid() end

---x * sigmoid(x).
---@return perigee.Tensor
function Tensor:silu() end

---x * Φ(x), with the error function.
---@return perigee.Tensor
function Tensor:gelu() end

---gelu in the approximation with tanh.
---@return perigee.Tensor
function Tensor:gelu_tanh() end

---Is the element zero? (bool)
---@return perigee.Tensor
function Tensor:logical_not() end

---Is it NaN? (bool)
---@return perigee.Tensor
function Tensor:isnan() end

---Is it infinite? (bool)
---@return perigee.Tensor
function Tensor:isinf() end

---Is it a number that is finite? (bool)
---@return perigee.Tensor
function Tensor:isfinite() end

---Sum; the operator `+`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:add(other) end

---Difference; the operator `-`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:sub(other) end

---Product; the operator `*`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:mul(other) end

---Quotient, of integers f32; the operator `/`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:div(other) end

---Quotient rounded down; the operator `//`. An integer divided by 0 raises.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:idiv(other) end

---Rest of `idiv`, with the sign of the divisor; the operator `%`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:mod(other) end

---Power; the operator `^`. A negative power of an integer raises.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:pow(other) end

---The smaller of each two; NaN wins.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:minimum(other) end

---The larger of each two; NaN wins.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:maximum(other) end

---Equal? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:eq(other) end

---Different? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:ne(other) end

---Less? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:lt(other) end

---Less or equal? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:le(other) end

---Greater? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:gt(other) end

---Greater or equal? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:ge(other) end

---Are both not zero? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:logical_and(other) end

---Is one of the two not zero? (bool)
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:logical_or(other) end

---Sum. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:sum(axis, options) end

---Mean. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:mean(axis, options) end

---Product. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:prod(axis, options) end

---Largest element; NaN wins. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:max(axis, options) end

---Smallest element; NaN wins. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:min(axis, options) end

---Is one element not zero? Of all elements it is a boolean, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return boolean|perigee.Tensor
function Tensor:any(axis, options) end

---Is no element zero? Of all elements it is a boolean, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return boolean|perigee.Tensor
function Tensor:all(axis, options) end

---Position of the largest element or first NaN; ties to the lowest. Of all elements it is a position, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return integer|perigee.Tensor
function Tensor:argmax(axis, options) end

---Position of the smallest element or first NaN; ties to the lowest. Of all elements it is a position, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return integer|perigee.Tensor
function Tensor:argmin(axis, options) end

---Variance; option ddof: divide by n - ddof. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean, ddof?: integer }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:var(axis, options) end

---Standard deviation; option ddof: divide by n - ddof. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean, ddof?: integer }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:std(axis, options) end

---Square root of the sum of squares. Of all elements it is a number, along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:norm(axis, options) end

---Elements below low become low, above high high; either may be nil.
---@param low? number|perigee.Tensor
---@param high? number|perigee.Tensor
---@return perigee.Tensor
function Tensor:clamp(low, high) end

---Of a bool tensor: a where it is true, b where it is false.
---@param a perigee.Tensor|number
---@param b perigee.Tensor|number
---@return perigee.Tensor
function Tensor:where(a, b) end

---The product of matrices [..., m, k] and [..., k, n]; vectors are a row on the left and a column on the right.
---@param other perigee.Tensor
---@return perigee.Tensor
function Tensor:matmul(other) end

---exp(x) / sum of exp(x) along an axis.
---@param axis? integer  the last
---@return perigee.Tensor
function Tensor:softmax(axis) end

---The logarithm of softmax.
---@param axis? integer  the last
---@return perigee.Tensor
function Tensor:log_softmax(axis) end

---Running sums along an axis.
---@param axis? integer  the last
---@return perigee.Tensor
function Tensor:cumsum(axis) end

---Sorted along an axis; stable, NaN is greater than every number.
---@param axis? integer  the last
---@param options? { descending?: boolean }
---@return perigee.Tensor
function Tensor:sort(axis, options) end

---The positions that sort.
---@param axis? integer  the last
---@param options? { descending?: boolean }
---@return perigee.Tensor
function Tensor:argsort(axis, options) end

---The k largest along an axis, in order, and their positions; ties to the lowest position.
---@param k integer
---@param options? { axis?: integer, smallest?: boolean }
---@return perigee.Tensor values
---@return perigee.Tensor positions
function Tensor:topk(k, options) end

---The same shape and values? NaN equals nothing.
---@param other perigee.Tensor
---@return boolean
function Tensor:equal(other) end

---Is |a - b| <= atol + rtol * |b| everywhere? NaN is close to NaN.
---@param other perigee.Tensor
---@param options? { atol?: number, rtol?: number }  1e-6, 1e-5
---@return boolean
---@return number worst  the largest |a - b|
function Tensor:close_to(other, options) end

return tensor
