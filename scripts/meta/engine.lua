---@meta

---@class perigee.MediaItem  A picture or a video of a prompt.
---@field at integer       Index of its first placeholder token in the prompt.
---@field tokens integer   Its rows: the next so many tokens that equal the one at `at`.
---@field hash string      32 bytes: of its content and of everything done to it before the tower.
---@field features perigee.Tensor     f32 [tokens, hidden]; must not be changed while it is in use.
---@field deepstack? perigee.Tensor[] Features that layers 1, 2, … add, like `features`.
---@field bidirectional? boolean      Its rows see each other; by default as the model does it.
---@field grid? integer[]             Frames, rows and columns of patches.

---@class perigee.MediaPrompt
---@field prompt? integer[]
---@field media? perigee.MediaItem[]
---@field positions? integer[][]  Three lists, as long as the prompt.
---@field rope_delta? integer     A generated token at index i (from 0) has position i + rope_delta.

---@class perigee.EngineOptions
---@field threads? integer
---@field tokens? integer
---@field sequences? integer
---@field taps? string[]
---@field precision? "exact"|"fast"
---@field kv_bits? integer
---@field kv_block? integer
---@field fusion? boolean
---@field profile? boolean
---@field device? "cpu"|"metal"|"auto"  The backend (auto: the best that this machine has).
---@field progress? fun(done: integer, total: integer)  As that of perigee.batch.open.

---@class perigee.engine  A graph with caches and threads, run step by step in the foreground.
local engine = {}

---tokens: capacity of the KV cache, for all sequences together; taps: names of values to keep;
---precision: "exact" (the default) computes with 32-bit activations, "fast" with 16-bit ones;
---kv_bits: 32, 16, 8 or 4 bits per value of the KV cache (32, with fast 16); kv_block: tokens of a
---block, a power of two; fusion: false runs every op separately, with the same numbers; profile:
---counts where the time of steps goes.
---@param graph perigee.Graph
---@param options? perigee.EngineOptions
---@return perigee.Engine? engine
---@return perigee.Error? err
function engine.open(graph, options) end

---The backend that `device` of the options means on this machine: "auto" is one of the others.
---@param device "cpu"|"metal"|"auto"
---@return string? name
---@return perigee.Error? err
function engine.device(device) end

---@class perigee.MetalInfo
---@field name string           Of the device.
---@field working_set integer   Bytes that Metal recommends to use at most.
---@field most_bytes integer    Of one buffer.
---@field metal3 boolean        It says that it is of the family Metal 3,
---@field apple7 boolean        and of Apple 7.
---@field residency boolean     It has residency sets.
---@field tensors boolean       It has tensor operations; no kernel uses them.
---@field methods integer       That perigee calls.
---@field differences integer   Of these methods to what perigee expects.
---@field lines string          A line about each difference.

---What the Metal of this machine says about itself, and a self-test of its methods.
---@return perigee.MetalInfo? info
---@return perigee.Error? err
function engine.metal() end

---Sets how Metal's kernels cut their work (engine/tiles.lua), for all that is opened from now on.
---@param values table<string, integer>  The tiles to change.
---@return table<string, integer>? all   Every tile.
---@return perigee.Error? err            There is no such tile, or the value is out of its range.
function engine.tiles(values) end

---@class perigee.EngineSampling
---@field temperature? number
---@field top_p? number
---@field top_k? integer
---@field min_p? number
---@field seed? integer
---@field position? integer

---@class perigee.Engine
---@field vocabulary integer  Width of the logits.
---@field id_limit integer    Token ids are below this.
---@field threads integer
---@field outputs integer     Lines of logits of the last step.
---@field used integer        Blocks of the KV cache in use; a shared block counts once.
local Engine = {}

---A new, empty sequence. With media or positions, the steps must bring the ids of `prompt`.
---@param given? perigee.MediaPrompt
---@return integer? sequence
---@return perigee.Error? err
function Engine:add(given) end

---The picture that a step would cut if it ended with this token, although its rows see each other:
---its first and last token. nil: none.
---@param sequence integer
---@param token integer
---@return integer? first
---@return integer? last
function Engine:span(sequence, token) end

---Releases its caches.
---@param sequence integer
function Engine:remove(sequence) end

---A copy of a sequence: blocks are shared until one of the two writes to them.
---@param sequence integer
---@return integer? sequence
---@return perigee.Error? err
function Engine:fork(sequence) end

---Drops all but the first `tokens` tokens. A model with recurrent layers needs a snapshot taken at
---that position, and tokens that left a sliding window do not come back: if trimming is impossible,
---it returns an error and changes nothing.
---@param sequence integer
---@param tokens integer
---@param options? { snapshot?: perigee.Snapshot }
---@return true? ok
---@return perigee.Error? err
function Engine:trim(sequence, tokens, options) end

---The current recurrent states, for a later trim back to this position.
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

---Loads a sequence from a file of the same model and kv_bits.
---@param path string
---@param given? perigee.MediaPrompt  As for add: the prompt that goes on.
---@return integer? sequence
---@return perigee.Error? err
function Engine:load(path, given) end

---Its tokens, and the bytes of its caches, including shared blocks.
---@param sequence integer
---@return { ids: integer[], bytes: integer }
function Engine:info(sequence) end

---Runs one step with new tokens of one or more sequences. outputs: the number of last rows to
---compute logits for (default 1); rope_length: length of the prompt, for ropes that depend on it.
---@param runs { seq?: integer, ids: integer[], outputs?: integer, rope_length?: integer }[]
---@return integer? outputs
---@return perigee.Error? err
function Engine:step(runs) end

---The best token of a line of logits; ties go to the lowest id.
---@param line integer
---@return integer
function Engine:argmax(line) end

---Samples a token from a line of logits; the draw depends on seed and position only.
---@param line integer
---@param options? perigee.EngineSampling
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

---@class perigee.ProfileJob  An op of the program, summed over steps and threads.
---@field op string       "round": the input of `value` becomes 16-bit numbers.
---@field value string    The value that it computes.
---@field packed boolean  It multiplies integers.
---@field busy number     Seconds of work,
---@field wait number     and of waiting for the ops that it depends on.
---@field weights number  Bytes of weights,
---@field cache number    of the KV cache or recurrent states,
---@field values number   and of the rows that it reads and writes.
---@field macs number     Multiply-adds; 0 where it is not a product.

---@class perigee.Profile
---@field steps integer
---@field threads integer
---@field wall number  Seconds of all steps.
---@field waits integer  Places in all steps where threads need what others compute.
---@field jobs perigee.ProfileJob[]

---Where the time of the steps since the last call went. Needs the option `profile`.
---@return perigee.Profile
function Engine:profile() end

---What the threads of this engine reach together, measured for half a second: bytes read from
---memory and multiply-adds of float32 (fma) and of 16-bit integers (dot) per second; and the
---seconds of one load from memory that waits for the one before (latency).
---@return { name: string, read: number, fma: number, dot: number, latency: number }? limits
---@return perigee.Error? err
function Engine:limits() end

---Releases caches and threads. May be called twice.
function Engine:close() end

---@class perigee.Snapshot  Recurrent states of a sequence at one position.
---@field position integer  Number of tokens that the states have processed.
local Snapshot = {}

---Releases it. May be called twice.
function Snapshot:close() end

return engine
