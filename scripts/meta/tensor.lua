---@meta

---@alias perigee.Dtype
---| "f64" | "f32" | "f16" | "bf16" | "i64" | "i32" | "i16" | "i8" | "u64" | "u32" | "u16" | "u8"
---| "bool" | "f8_e4m3" | "f8_e5m2" | "f8_e8m0"

---@alias perigee.TensorLike table|number|boolean|perigee.Tensor

---`perigee.tensor { {1, 2}, {3, 4} }` converts a table, a number or a tensor to a tensor: integers
---become i64, booleans bool, everything else f32, unless a second argument `{ dtype = "f16" }` says
---otherwise.
---@class perigee.tensor  Functions that create tensors.
---@overload fun(value: perigee.TensorLike, options?: { dtype?: perigee.Dtype }): perigee.Tensor
local tensor = {}

---Zeros. The list part is the shape: `zeros { 2, 3, dtype = "f16" }`.
---@param shape table  { dimension …, dtype = "f32" }
---@return perigee.Tensor
function tensor.zeros(shape) end

---Ones.
---@param shape table  { dimension …, dtype = "f32" }
---@return perigee.Tensor
function tensor.ones(shape) end

---A tensor filled with one value.
---@param shape table  { dimension …, dtype = "f32" }
---@param value number|boolean
---@return perigee.Tensor
function tensor.full(shape, value) end

---The identity matrix.
---@param n integer
---@param options? { dtype?: perigee.Dtype }
---@return perigee.Tensor
function tensor.eye(n, options) end

---The numbers of a `for` loop: `range(5)` is 1 … 5, `range(0, 1, { step = 0.25 })` includes both
---ends.
---@param from number  the end, if it is the only argument
---@param to? number
---@param options? { step?: number, dtype?: perigee.Dtype }
---@return perigee.Tensor
function tensor.range(from, to, options) end

---Random numbers, low <= x < high; integers for integer dtypes. They depend only on the seed and
---the position of the element.
---@param shape table  { dimension …, low = 0, high = 1, seed = 0, dtype = "f32" }
---@return perigee.Tensor
function tensor.uniform(shape) end

---Random numbers of a normal distribution. They depend only on the seed and the position of the
---element.
---@param shape table  { dimension …, mean = 0, std = 1, seed = 0, dtype = "f32" }
---@return perigee.Tensor
function tensor.normal(shape) end

---A tensor of raw bytes, in the machine's byte order.
---@param bytes string
---@param options { shape?: integer[], dtype?: perigee.Dtype }  without a shape: a vector
---@return perigee.Tensor
function tensor.from_bytes(bytes, options) end

---True if the value is a tensor, open or closed.
---@param value any
---@return boolean
function tensor.is(value) end

---Joins tensors along an axis; all other axes must agree.
---@param parts perigee.Tensor[]
---@param axis? integer  default: the first
---@return perigee.Tensor
function tensor.concat(parts, axis) end

---Joins tensors of the same shape along a new axis.
---@param parts perigee.Tensor[]
---@param axis? integer  an axis of the result; default: the first
---@return perigee.Tensor
function tensor.stack(parts, axis) end

---Positions and axes count from 1, negative ones from the end. `t[i]` is row i as a view, or a
---number if t is a vector, and nil past the end; `t[i] = x` writes. `+ - * / // % ^` work element
---by element and broadcast; a number adapts to the tensor's dtype. `==` is true only for the same
---object: see `equal`.
---@class perigee.Tensor  Numbers with a shape.
---@field shape integer[]         The dimensions.
---@field strides integer[]       Distance between neighbours along each axis, in elements.
---@field dtype perigee.Dtype     The type of an element.
---@field rank integer            Number of dimensions.
---@field size integer            Number of elements.
---@field nbytes integer          Bytes of the elements.
---@field is_contiguous boolean   True if the elements lie in order, without gaps.
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

---Frees the bytes now instead of at the next collection; also `local t <close> = …`. Views stay
---valid.
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

---@class perigee.PrintOptions
---@field width? integer      Columns of the terminal; default: 80.
---@field edge? integer       Elements shown at each end of a long axis; default: 3.
---@field threshold? integer  Most elements that are shown in full; default: 256.
---@field digits? integer     Digits after the decimal point; default: 4.
---@field ascii? boolean      Use ASCII characters only.

---@class perigee.TensorStats  min, max, mean and std are those of the finite elements, or NaN.
---@field count integer  Number of elements.
---@field nan integer    Number of NaNs.
---@field inf integer    Number of infinities.
---@field zero integer   Number of zeros.
---@field min number     The smallest.
---@field max number     The largest.
---@field mean number    The mean.
---@field std number     Standard deviation (divided by n).

---Statistics of the elements.
---@return perigee.TensorStats
function Tensor:stats() end

---Counts the elements in equal parts of low … high.
---@param bins? integer  default: 16
---@param options? { low?: number, high?: number }  default: the smallest and the largest element
---@return { counts: integer[], low: number, high: number }
function Tensor:histogram(bins, options) end

---The numbers, aligned, with a header; long axes are shortened.
---@param options? perigee.PrintOptions
---@return string
function Tensor:format(options) end

---One line: dtype, shape, bytes, a histogram, mean and standard deviation.
---@param options? { ascii?: boolean }
---@return string
function Tensor:summary(options) end

---Rows from … to of the first axis, counted as in string.sub. A view.
---@param from integer
---@param to? integer  default: the last
---@return perigee.Tensor
function Tensor:rows(from, to) end

---A part of each axis: `{from, to, step}`, a position (the axis disappears) or true for all. A
---view.
---@param parts table
---@return perigee.Tensor
function Tensor:slice(parts) end

---One position of an axis; the axis disappears. A view.
---@param axis integer
---@param position integer
---@return perigee.Tensor
function Tensor:select(axis, position) end

---Another shape over the same bytes; one dimension may be -1. Raises if that needs a copy.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:view(shape) end

---Another shape for the same elements: a view if possible, else a copy.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:reshape(shape) end

---All elements as a vector: a view if possible, else a copy.
---@return perigee.Tensor
function Tensor:flatten() end

---Swaps the last two axes. A view.
---@return perigee.Tensor
function Tensor:t() end

---The axes in another order. A view.
---@param axes integer[]
---@return perigee.Tensor
function Tensor:permute(axes) end

---Swaps two axes. A view.
---@param a integer
---@param b integer
---@return perigee.Tensor
function Tensor:swap(a, b) end

---Repeats axes of 1 and adds leading axes, without copying. The result is read-only.
---@param shape integer[]
---@return perigee.Tensor
function Tensor:expand(shape) end

---Drops an axis of 1, or all of them. A view.
---@param axis? integer
---@return perigee.Tensor
function Tensor:squeeze(axis) end

---Inserts an axis of 1 at this position of the result. A view.
---@param axis integer
---@return perigee.Tensor
function Tensor:unsqueeze(axis) end

---The tensor with its elements in order: a view if they already are, else a copy.
---@return perigee.Tensor
function Tensor:contiguous() end

---A copy.
---@return perigee.Tensor
function Tensor:copy() end

---A copy in another dtype. Values out of range saturate; for integers, fractions are truncated and
---NaN becomes 0.
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

---Rows of an axis at the given positions; the shape of the positions replaces the axis.
---@param positions perigee.Tensor|integer[]
---@param axis? integer  default: the first
---@return perigee.Tensor
function Tensor:take(positions, axis) end

---Negates each element; the operator `-t`.
---@return perigee.Tensor
function Tensor:neg() end

---Absolute values.
---@return perigee.Tensor
function Tensor:abs() end

---The sign, -1, 0 or 1; NaN stays.
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

---True where an element is zero (bool).
---@return perigee.Tensor
function Tensor:logical_not() end

---True where an element is NaN (bool).
---@return perigee.Tensor
function Tensor:isnan() end

---True where an element is infinite (bool).
---@return perigee.Tensor
function Tensor:isinf() end

---True where an element is finite (bool).
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

---Quotient, f32 for integers; the operator `/`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:div(other) end

---Quotient rounded down; the operator `//`. An integer divided by 0 raises.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:idiv(other) end

---Remainder of `idiv`, with the sign of the divisor; the operator `%`.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:mod(other) end

---Power; the operator `^`. A negative power of an integer raises.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:pow(other) end

---The smaller of two elements; NaN wins.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:minimum(other) end

---The larger of two elements; NaN wins.
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:maximum(other) end

---True where elements are equal (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:eq(other) end

---True where elements differ (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:ne(other) end

---True where an element is less than the other (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:lt(other) end

---True where an element is less than or equal to the other (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:le(other) end

---True where an element is greater than the other (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:gt(other) end

---True where an element is greater than or equal to the other (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:ge(other) end

---True where both elements are not zero (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:logical_and(other) end

---True where at least one element is not zero (bool).
---@param other perigee.Tensor|number
---@return perigee.Tensor
function Tensor:logical_or(other) end

---Sum. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:sum(axis, options) end

---Mean. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:mean(axis, options) end

---Product. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:prod(axis, options) end

---Largest element; NaN wins. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:max(axis, options) end

---Smallest element; NaN wins. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:min(axis, options) end

---True if any element is not zero. A boolean, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return boolean|perigee.Tensor
function Tensor:any(axis, options) end

---True if no element is zero. A boolean, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return boolean|perigee.Tensor
function Tensor:all(axis, options) end

---Position of the largest element or the first NaN; ties go to the lowest position. An integer, or
---along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return integer|perigee.Tensor
function Tensor:argmax(axis, options) end

---Position of the smallest element or the first NaN; ties go to the lowest position. An integer, or
---along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return integer|perigee.Tensor
function Tensor:argmin(axis, options) end

---Variance; option ddof: divide by n - ddof. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean, ddof?: integer }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:var(axis, options) end

---Standard deviation; option ddof: divide by n - ddof. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean, ddof?: integer }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:std(axis, options) end

---Square root of the sum of squares. A number, or along an axis a tensor.
---@param axis? integer
---@param options? { keep?: boolean }  keep the axis as 1
---@return number|perigee.Tensor
function Tensor:norm(axis, options) end

---Elements below low become low, elements above high become high; either may be nil.
---@param low? number|perigee.Tensor
---@param high? number|perigee.Tensor
---@return perigee.Tensor
function Tensor:clamp(low, high) end

---For a bool tensor: a where it is true, b where it is false.
---@param a perigee.Tensor|number
---@param b perigee.Tensor|number
---@return perigee.Tensor
function Tensor:where(a, b) end

---The product of matrices [..., m, k] and [..., k, n]; a vector is a row on the left and a column
---on the right.
---@param other perigee.Tensor
---@return perigee.Tensor
function Tensor:matmul(other) end

---exp(x) / sum of exp(x) along an axis.
---@param axis? integer  default: the last
---@return perigee.Tensor
function Tensor:softmax(axis) end

---The logarithm of softmax.
---@param axis? integer  default: the last
---@return perigee.Tensor
function Tensor:log_softmax(axis) end

---Cumulative sums along an axis.
---@param axis? integer  default: the last
---@return perigee.Tensor
function Tensor:cumsum(axis) end

---Sorts along an axis; stable, NaN is greater than every number.
---@param axis? integer  default: the last
---@param options? { descending?: boolean }
---@return perigee.Tensor
function Tensor:sort(axis, options) end

---The positions that would sort the axis.
---@param axis? integer  default: the last
---@param options? { descending?: boolean }
---@return perigee.Tensor
function Tensor:argsort(axis, options) end

---The k largest along an axis, in order, and their positions; ties go to the lowest position.
---@param k integer
---@param options? { axis?: integer, smallest?: boolean }
---@return perigee.Tensor values
---@return perigee.Tensor positions
function Tensor:topk(k, options) end

---True if shapes and values are the same; NaN equals nothing.
---@param other perigee.Tensor
---@return boolean
function Tensor:equal(other) end

---True if |a - b| <= atol + rtol * |b| everywhere; NaN is close to NaN.
---@param other perigee.Tensor
---@param options? { atol?: number, rtol?: number }  defaults: 1e-6, 1e-5
---@return boolean
---@return number worst  the largest |a - b|
function Tensor:close_to(other, options) end

return tensor
