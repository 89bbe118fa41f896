---@meta

---JSON without loss: order of keys, integers, empty arrays and objects, null, NUL.
---@class perigee.json
---@field null lightuserdata  Stands for null.
local json = {}

---An object that remembers the order of its keys. `pairs` follows it, a new key goes to the end,
---a key set to nil is removed. The order is stored under a private key, so use `pairs`, not
---`next`.
---@class perigee.json.Object : table

---@class perigee.json.DecodeOptions
---@field max_depth? integer
---@field max_size? integer
---@field max_values? integer
---@field digits? boolean

---Reads one value. Objects become ordered objects, arrays become marked sequences, null becomes
---`json.null`, integers stay integers. Accepts Python's Infinity and NaN. Refuses lone
---surrogates, invalid UTF-8, deep nesting, huge keys, and more than max_size bytes or max_values
---values, weighted by cost: a number, true, false or null counts 1, a string 4, a key, an array
---or an object 8. An integer beyond 64 bits becomes a float or, with `digits`, a value that keeps
---its text, which `encode` and `tostring` return.
---@param text string
---@param options? perigee.json.DecodeOptions
---@return any value
---@return perigee.Error? err
function json.decode(text, options) end

---@class perigee.json.ReadOptions
---@field max_depth? integer
---@field max_values? integer
---@field max_text? integer
---@field digits? boolean
---@field slices? string[]
---@field stop? perigee.Stop

---Reads a long text by a background job; the callback gets a tape, of which `Tape:build` makes the
---value of `decode`. The bytes do not grow any more. Strings over 64 KB at the places in `slices`,
---each "PARENT.KEY" (the key, and that of the nearest object around it), become perigee.Bytes; all
---other strings and keys together may have max_text bytes.
---@param bytes perigee.Bytes
---@param options? perigee.json.ReadOptions
---@param callback fun(tape: perigee.Tape?, err: perigee.Error?)
---@return boolean? started
---@return perigee.Error? err
function json.read(bytes, options, callback) end

---@class perigee.Tape  A text that json.read has read.
local Tape = {}

---Builds the value, for about `ms` milliseconds: true and the value, or false if it needs more; nil
---and an error if it has more text than it may.
---@param ms number
---@return boolean? done
---@return any value
function Tape:build(ms) end

---Frees the tape.
function Tape:close() end

---@class perigee.json.EncodeOptions
---@field indent? integer
---@field ascii? boolean
---@field sort_keys? boolean
---@field compact? boolean
---@field item_separator? string
---@field key_separator? string

---Writes a value with the spacing of Python's json.dumps. A plain sequence is an array; a plain
---table with string keys is an object with sorted keys; an empty plain table is an object. Raises
---for values that JSON does not have.
---@param value any
---@param options? perigee.json.EncodeOptions
---@return string
function json.encode(value, options) end

---Marks a sequence (default: a new table) as an array, so that it is written as one even if
---empty.
---@param list? any[]
---@return any[]
function json.array(list) end

---Creates an ordered object from {key, value} pairs.
---@param pairs? { [1]: string, [2]: any }[]
---@return perigee.json.Object
function json.object(pairs) end

---Is the value written as an array?
---@param value any
---@return boolean
function json.is_array(value) end

---The text of an integer beyond 64 bits that was read with `digits`; nil for other values.
---@param value any
---@return string?
function json.digits(value) end

---Is the value written as an object?
---@param value any
---@return boolean
function json.is_object(value) end

return json
