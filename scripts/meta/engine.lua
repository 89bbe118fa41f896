---@meta

---@class perigee.engine  A graph with caches and threads, run step by step in the foreground.
local engine = {}

---tokens: room in the caches, of all sequences together; taps: names of values to keep; kv_bits: 32, 16, 8 or 4, how keys
---and values are stored; kv_block: tokens of a block, a power of two; fusion: false runs every op apart, for the same numbers.
---@param graph perigee.Graph
---@param options? { threads?: integer, tokens?: integer, sequences?: integer, taps?: string[], kv_bits?: integer, kv_block?: integer, fusion?: boolean }
---@return perigee.Engine? engine
---@return perigee.Error? err
function engine.open(graph, options) end

---@class perigee.Engine
---@field vocabulary integer  Width of the logits.
---@field id_limit integer    Token ids are below this.
---@field threads integer
---@field outputs integer     Lines of logits that the last step gave.
---@field used integer        Blocks of the caches that are in use, shared ones once.
local Engine = {}

---A new, empty sequence.
---@return integer? sequence
---@return perigee.Error? err
function Engine:add() end

---Gives its caches back.
---@param sequence integer
function Engine:remove(sequence) end

---A sequence that remembers the same: blocks are shared until one of the two writes to them.
---@param sequence integer
---@return integer? sequence
---@return perigee.Error? err
function Engine:fork(sequence) end

---Forgets all but the first tokens. A model with recurrent states needs a snapshot that was taken there; what left a sliding
---window does not come back: then nothing is changed.
---@param sequence integer
---@param tokens integer
---@param options? { snapshot?: perigee.Snapshot }
---@return true? ok
---@return perigee.Error? err
function Engine:trim(sequence, tokens, options) end

---The recurrent states as they are now, for a later trim back to here.
---@param sequence integer
---@return perigee.Snapshot? snapshot
---@return perigee.Error? err
function Engine:snapshot(sequence) end

---Writes tokens and caches to a file.
---@param sequence integer
---@param path string
---@return true? ok
---@return perigee.Error? err
function Engine:save(sequence, path) end

---A sequence from a file, of the same model and kv_bits.
---@param path string
---@return integer? sequence
---@return perigee.Error? err
function Engine:load(path) end

---Its tokens so far, and the bytes of its caches (of shared blocks, too).
---@param sequence integer
---@return { ids: integer[], bytes: integer }
function Engine:info(sequence) end

---One step: new tokens of some sequences together. outputs: logits of so many last rows (1); rope_length: the prompt's
---length where the rope depends on it.
---@param runs { seq?: integer, ids: integer[], outputs?: integer, rope_length?: integer }[]
---@return integer? outputs
---@return perigee.Error? err
function Engine:step(runs) end

---The best token of a line of logits; ties go to the lowest id.
---@param line integer
---@return integer
function Engine:argmax(line) end

---A token drawn from a line of logits: a function of seed and position.
---@param line integer
---@param options? { temperature?: number, top_p?: number, top_k?: integer, min_p?: number, seed?: integer, position?: integer }
---@return integer? id
---@return perigee.Error? err
function Engine:sample(line, options) end

---All lines of logits of the last step.
---@return perigee.Tensor
function Engine:logits() end

---The index-th tapped value of the last step, one line per row.
---@param index integer
---@return perigee.Tensor
function Engine:tap(index) end

---Lets go of caches and threads. Harmless twice.
function Engine:close() end

---@class perigee.Snapshot  Recurrent states of a sequence at one position.
---@field position integer  Tokens that it has seen.
local Snapshot = {}

---Lets go of it. Harmless twice.
function Snapshot:close() end

return engine
