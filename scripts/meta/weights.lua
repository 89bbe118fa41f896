---@meta

---@class perigee.weights  The tensors of a model's files, mapped, and decoded on demand.
local weights = {}

---Opens a model directory, a .safetensors or a .gguf file (any part of a split one).
---@param path string
---@return perigee.Weights? weights
---@return perigee.Error? err
function weights.open(path) end

---Writes a safetensors file: a temporary file next to the path, which is then renamed.
---@param path string
---@param list { name: string, dtype: string, shape: integer[], bytes: string }[]
---@return true? ok
---@return perigee.Error? err
function weights.save(path, list) end

---Weights without a file, with random values, for benchmarks. Kinds: "bf16", "affine4g64", "mxfp4",
---"q4_0", …
---@param list { name: string, kind: string, shape: integer[] }[]
---@return perigee.Weights? weights
---@return perigee.Error? err
function weights.synthetic(list) end

---@class perigee.Weights
---@field count integer  Number of tensors.
---@field bytes integer  Stored size of all tensors.
---@field path string    As opened.
local Weights = {}

---@class perigee.WeightInfo
---@field name string
---@field kind string      How values are stored: "BF16", "affine 4-bit group 64", "Q4_K", …
---@field shape integer[]  Outermost first; for a quantised tensor, the shape before quantisation.
---@field bytes integer    Includes scales and biases.
---@field rows integer     Product of all dimensions but the last.
---@field cols integer     The last dimension.
---@field file integer     Index in files().
---@field parts integer    Number of tensors in the file that make up this one.

---Names of all tensors, in the order of the files.
---@return string[]
function Weights:names() end

---@param name string
---@return perigee.WeightInfo?
function Weights:find(name) end

---Decodes some rows to numbers; the values of consecutive rows follow each other.
---@param name string
---@param options? { from?: integer, count?: integer }  1-based; one row by default
---@return number[]? values
---@return perigee.Error? err
function Weights:rows(name, options) end

---Metadata of a GGUF file, in its order. Arrays have at most `most` elements, and n is their full
---length.
---@param options? { most?: integer }
---@return { [1]: string, [2]: any }[]
function Weights:metadata(options) end

---The kinds of storage in use, most bytes first.
---@return { kind: string, count: integer, values: integer, bytes: integer }[]? kinds
---@return perigee.Error? err
function Weights:summary() end

---Reads the pages of a tensor into memory and returns its size in bytes. With a callback it reads
---on another thread, returns at once, and passes the size, or nil and an error, to the callback.
---@param index integer  Index in names().
---@param callback? fun(bytes: integer?, err: perigee.Error?)
---@return integer|true|nil bytes
---@return perigee.Error? err
function Weights:touch(index, callback) end

---Are the files as they were when they were opened? If one was truncated or overwritten, this is
---nil and an error that names it, and the model must be opened again: its steps fail from then on.
---With a callback it looks on another thread, returns at once, and passes the result to the
---callback.
---@param callback? fun(ok: true?, err: perigee.Error?)
---@return true? ok
---@return perigee.Error? err
function Weights:check(callback) end

---Paths of the files that were opened.
---@return string[]
function Weights:files() end

---Closes the files. A second call does nothing.
function Weights:close() end

return weights
