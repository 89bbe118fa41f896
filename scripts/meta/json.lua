---@meta

---@class perigee.json  JSON that keeps what it reads: order of keys, integers, empty arrays and objects, null, NUL.
---@field null lightuserdata  The sentinel that stands for null.
local json = {}

---An object that remembers the order of its keys. `pairs` walks in order, a new key goes to the end, a key set to nil is
---gone. The order lives under a private key, so use `pairs`, not `next`.
---@class perigee.json.Object : table

---Reads one value. Objects become ordered objects, arrays become marked sequences, null becomes `json.null`, integers stay
---integers. Takes the Infinity and NaN of Python; refuses lone surrogates, broken UTF-8, deep nesting and huge keys, and
---on demand more than max_size bytes or max_values values, each counted as the work that it makes: a number, true, false or
---null is one, a text four, a key, an array or an object eight. An integer beyond 64 bits is a float, or with `digits` a
---value that keeps its text: `encode` and `tostring` give it back.
---@param text string
---@param options? { max_depth?: integer, max_size?: integer, max_values?: integer, digits?: boolean }
---@return any value
---@return perigee.Error? err
function json.decode(text, options) end

---Writes a value with the spacing of Python's json.dumps. Plain tables: a sequence is an array, string keys are an object
---in sorted order, an empty one is an object. Raises for what JSON cannot say.
---@param value any
---@param options? { indent?: integer, ascii?: boolean, sort_keys?: boolean, compact?: boolean, item_separator?: string, key_separator?: string }
---@return string
function json.encode(value, options) end

---Marks a sequence (or a new empty table) as an array, so that it is written as one even when it is empty.
---@param list? any[]
---@return any[]
function json.array(list) end

---An ordered object made of {key, value} pairs.
---@param pairs? { [1]: string, [2]: any }[]
---@return perigee.json.Object
function json.object(pairs) end

---Would the value be written as an array?
---@param value any
---@return boolean
function json.is_array(value) end

---The text of an integer beyond 64 bits that was read with `digits`; nil for everything else.
---@param value any
---@return string?
function json.digits(value) end

---Would the value be written as an object?
---@param value any
---@return boolean
function json.is_object(value) end

return json
