---@meta

---@class perigee.bytes  Long byte strings outside of Lua's heap.
local bytes = {}

---Empty bytes that may grow to `most`. Memory is taken as they grow.
---@param most integer
---@return perigee.Bytes? bytes
---@return perigee.Error? err
function bytes.new(most) end

---Decompresses on a helper thread; the callback gets the bytes, or nil and an error: "limit", there
---are more than options.limit; "format", they are not what options.packing says.
---@param packed perigee.Bytes
---@param options { packing: "gzip"|"zstd", limit?: integer }
---@param callback fun(bytes?: perigee.Bytes, err?: perigee.Error)
---@return boolean? started
---@return perigee.Error? err
function bytes.inflate(packed, options, callback) end

---A range of bytes that other objects may share. `#bytes` is its length. Slices of a body keep all
---of it in memory until they are closed or collected.
---@class perigee.Bytes
local Bytes = {}

---Appends text:sub(i, j). Raises if there is no room, and for slices.
---@param text string
---@param i? integer  Default: 1.
---@param j? integer  Default: -1.
function Bytes:put(text, i, j) end

---The number of bytes.
---@return integer
function Bytes:len() end

---A part as a string, as string.sub counts.
---@param i integer
---@param j? integer  Default: -1.
---@return string
function Bytes:sub(i, j) end

---A part that shares the memory.
---@param i integer
---@param j? integer  Default: -1.
---@return perigee.Bytes
function Bytes:slice(i, j) end

---All of it as a string.
---@return string
function Bytes:text() end

---Gives the memory back, unless slices or jobs still use it.
function Bytes:close() end

return bytes
