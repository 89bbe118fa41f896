---@meta

---@class perigee  The C side of perigee: `local perigee = require "perigee"`.
---@field version string  The version of this program.
local perigee = {}

---@class perigee.Error  Returned after nil; prints and concatenates as its message.
---One word for programs: "io", "format", "argument", "limit", "memory", "deadline", "error", …
---@field code string
---@field message string    One line for people.
---@field field string?     The argument or option that is wrong, such as "top_p".
---@field traceback string? Where a script raised it.
---@field value any         What the script raised, if that was not a string.

---Limits of a guarded call; without one only those of the surrounding call hold.
---@class perigee.Limits
---@field deadline_ms number?    CPU time of the loop thread.
---@field memory integer?        Bytes that the call may add to the scripts' heap.
---@field interruptible boolean? Ctrl-C stops this call instead of the program.

---Calls a function under limits. It cannot escape them with pcall or coroutines.
---@param fn function
---@param limits perigee.Limits?
---@return true? ok  nil when it failed
---@return any ...   the results, or a perigee.Error
function perigee.guard(fn, limits) end

---The number of open C objects of each class.
---@return table<string, integer> counts
---@return integer bytes  of memory they own outside Lua's heap
---@return integer allocations  of C that were not freed
function perigee.live() end

---The members of the C classes: lists of methods, fields and metamethods for each.
---@return table<string, {methods: string[], fields: string[], meta: string[]}>
function perigee.classes() end

---Creates an error like those that C functions return.
---@param code string
---@param message string
---@param options {field: string?}?
---@return perigee.Error
function perigee.error(code, message, options) end

---The scripts' heap.
---@return integer used  bytes
---@return integer cap   bytes; 0: no cap
function perigee.heap() end

---How models of some types are built (scripts/models/init.lua).
---@class perigee.Architecture
---@field names string[]          Values of model_type in config.json.
---@field build fun(g: table, c: table): table   Builds the graph; returns the logits.
---@field extras? fun(c: table): string[]        Patterns of tensors that may stay unused.
---@field defaults? table         Values of config keys that are missing.

---Opens a model directory or a GGUF file: weights, graph and tokenizer. architectures win over
---those that ship.
---@param path string
---@param options? { threads?: integer, architectures?: perigee.Architecture[] }
---@return perigee.Model? model
---@return string|perigee.Error? err
function perigee.open(path, options) end

return perigee
