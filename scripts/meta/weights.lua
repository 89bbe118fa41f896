---@meta

---@class perigee.weights  The tensors of a model's files, mapped and described; nothing is decoded before it is asked for.
local weights = {}

---Opens a model directory, a .safetensors or a .gguf file (any part of a split one).
---@param path string
---@return perigee.Weights? weights
---@return perigee.Error? err
function weights.open(path) end

---Writes a safetensors file, beside the path first and then renamed.
---@param path string
---@param list { name: string, dtype: string, shape: integer[], bytes: string }[]
---@return true? ok
---@return perigee.Error? err
function weights.save(path, list) end

---Weights that are in no file, with random content, for benchmarks. Kinds: "bf16", "affine4g64", "mxfp4", "q4_0", …
---@param list { name: string, kind: string, shape: integer[] }[]
---@return perigee.Weights? weights
---@return perigee.Error? err
function weights.synthetic(list) end

---@class perigee.Weights
---@field count integer  How many tensors.
---@field bytes integer  Of all of them as stored.
---@field path string    As opened.
local Weights = {}

---@class perigee.WeightInfo
---@field name string
---@field kind string      How values are stored: "BF16", "affine 4-bit group 64", "Q4_K", …
---@field shape integer[]  Outermost first; of a quantised tensor, the shape before it was.
---@field bytes integer    With scales and biases.
---@field rows integer     All leading dimensions together.
---@field cols integer     The last dimension.
---@field file integer     Which of files().
---@field parts integer    Tensors of the file it is made of.

---Names of all tensors, in the order of the files.
---@return string[]
function Weights:names() end

---@param name string
---@return perigee.WeightInfo?
function Weights:find(name) end

---Values of some rows, decoded to numbers, one row behind the other.
---@param name string
---@param options? { from?: integer, count?: integer }  1-based; one row by default
---@return number[]? values
---@return perigee.Error? err
function Weights:rows(name, options) end

---Metadata of a GGUF file in its order; arrays hold at most `most` elements and their real count as n.
---@param options? { most?: integer }
---@return { [1]: string, [2]: any }[]
function Weights:metadata(options) end

---What there is of each kind of storage, most bytes first.
---@return { kind: string, count: integer, values: integer, bytes: integer }[]? kinds
---@return perigee.Error? err
function Weights:summary() end

---Reads the index-th tensor into memory, where it is not there yet; returns its bytes. With a callback it is read beside the
---loop, and the callback gets them.
---@param index integer  Of names().
---@param callback? fun(bytes: integer)
---@return integer|true|nil bytes
---@return perigee.Error? err
function Weights:touch(index, callback) end

---Paths of the files that were opened.
---@return string[]
function Weights:files() end

---Lets go of the files. Harmless twice.
function Weights:close() end

return weights
