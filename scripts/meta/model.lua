---@meta

---What perigee.open returns.
---@class perigee.Model
---@field path string
---@field config table  config.json in one form, whatever its dialect: heads, layers, rope, …
---@field generation_config table  generation_config.json; empty when there is none.
---@field weights perigee.Weights
---@field graph perigee.Graph
---What the graph was built with (models/core/graph.lua); it can be extended and tapped.
---@field builder table
---@field vision? perigee.Vision  The vision tower; nil if the model has none.
local Model = {}

---The tokenizer; nil and an error if the model has none.
---@return perigee.Tokenizer? tokenizer
---@return perigee.Error? err
function Model:tokenizer() end

---Takes the model's tokenizer, opened elsewhere.
---@param tok perigee.Tokenizer
function Model:take_tokenizer(tok) end

---Token ids of a prompt: a list as it is, text through the tokenizer.
---@param prompt string|integer[]
---@return integer[]
function Model:ids(prompt) end

---Pictures and videos of prompts, from files; opened at the first call. Raises an error if the
---model takes none.
---@return perigee.Pictures
function Model:pictures() end

---@class perigee.EvalOptions
---@field prompt? string|integer[]  With eval { prompt =, … }.
---@field tap? string[]     Names of values to return.
---@field greedy? integer   Tokens to generate.
---@field chunk? integer    Rows of a step at most.
---@field last? integer     Logits of this many last rows (all).
---Paths, data URIs or bytes of pictures, in the order of their places in the prompt.
---@field images? (string|perigee.Bytes)[]
---@field videos? (string|perigee.Bytes)[][]  The frames of each video.
---@field vision_tap? string[]  Names of values inside the vision tower.

---@class perigee.EvalResult
---@field logits perigee.Tensor
---@field taps table<string, perigee.Tensor>
---@field greedy integer[]
---@field prompt? integer[]       With pictures: the prompt with their tokens,
---@field media? perigee.PlacedPicture[]  where they are in it,
---@field pictures? perigee.SeenPicture[]  and the pictures.

---Runs a prompt, also as eval { prompt =, … }. In a prompt with pictures each has one placeholder
---(<|image_pad|>, <image>, …) or all of its tokens.
---@param prompt string|integer[]|perigee.EvalOptions
---@param options? perigee.EvalOptions
---@return perigee.EvalResult
function Model:eval(prompt, options) end

---@class perigee.SeenPicture
---@field plan table             How the processor sees it: width, height, grid, tokens.
---@field pixels perigee.Pixels[]  Resized, as the tower gets them.
---@field hash string            Of its content.
---@field taps? table<string, perigee.Tensor>  Of vision_tap.

---@class perigee.PlacedPicture: perigee.MediaItem  Where a picture is in a prompt.
---@field last integer      Position of its last token, from 1.
---@field runs integer[][]  { at, count } of each stretch of its tokens.

---What model:pictures returns.
---@class perigee.Pictures
local Pictures = {}

---What a picture is, without decoding it.
---@param source string|perigee.Bytes
---@return { width: integer, height: integer, format: string, tokens: integer }
function Pictures:look(source) end

---Does the prompt have a place for a picture or a video?
---@param ids integer[]
---@return boolean
function Pictures:has_place(ids) end

---@class perigee.GivenPictures
---@field images? (string|perigee.Bytes)[]
---@field videos? (string|perigee.Bytes)[][]
---@field boundaries? integer[]
---@field vision_tap? string[]

---@class perigee.PreparedPrompt
---@field prompt integer[]
---@field media perigee.PlacedPicture[]
---@field positions? integer[][]
---@field rope_delta? integer
---@field boundaries? integer[]
---@field pictures perigee.SeenPicture[]

---The prompt with its pictures, as batch:add takes it.
---@param ids integer[]
---@param given perigee.GivenPictures
---@return perigee.PreparedPrompt
function Pictures:prepare(ids, given) end

---Ends the decoder processes.
function Pictures:close() end

---@class perigee.Request: perigee.BatchRequest
---@field prompt string|integer[]
---@field bad_words? (string|integer[])[]
---@field stop_token_ids? integer[]  Another name of stop_ids.
---@field logprobs? boolean|integer  true: the logprob of each token; a number: as top_logprobs.
---@field force? integer[]  The first tokens of the answers.
---@field on_token? fun(event: perigee.BatchEvent, seq: perigee.Sequence)
---@field on_done? fun(seq: perigee.Sequence)
---@field tag? any  The caller's: on the sequence, and visible to policies.
---Never granted ahead: what on_token does to the sequence affects the next token.
---@field watch? boolean

---Many answers at once. Options: those of perigee.batch.open except tokenizer and end_ids, with
---cache_tokens by default as many as the sequences can use and memory permits; policy; report.
---@param options? table
---@return perigee.Batch? batch
---@return perigee.Error? err
function Model:batch(options) end

---@class perigee.Generated
---@field text string
---@field ids integer[]
---@field finish_reason string
---@field prompt_tokens integer
---@field completion_tokens integer
---@field logprobs? table

---Generates after a prompt until an end token, a stop string, max_tokens or the end of the context.
---Takes the fields of batch:add except n, on_text(piece), on_token(id), and images and videos as
---eval does.
---@param request table
---@return perigee.Generated
function Model:generate(request) end

---What model:batch returns: sequences and their events, in the foreground or on the engine thread.
---@class perigee.Batch
local Batch = {}

---Adds a request; returns its sequences, n of them.
---@param request perigee.Request
---@return perigee.Sequence? seq
---@return perigee.Sequence|perigee.Error ...
function Batch:add(request) end

---One step in the foreground. Without grants the policy decides.
---@param grants? { [1]: perigee.Sequence|integer, [2]: integer }[]
---@return perigee.BatchEvent[]? events
---@return integer|perigee.Error ran_or_err
function Batch:step(grants) end

---Steps in the foreground until every sequence is done.
---@return boolean? ok
---@return perigee.Error? err
function Batch:run() end

---From now on steps run on the engine thread, and events come from the loop.
---@param policy? function|table
---@return boolean? ok
---@return perigee.Error? err
function Batch:start(policy) end

---Back to the foreground, after the running step.
---@return boolean? ok
---@return perigee.Error? err
function Batch:stop() end

---The sequences that are not done.
---@return perigee.SeqInfo[]
function Batch:sequences() end

---Counters (perigee.BatchCore.stats), with lua (seconds in policies) and histogram (steps by
---milliseconds).
---@return table
function Batch:stats() end

---The last steps (perigee.BatchTrace), each with lua: seconds in the policy.
---@param most? integer
---@return table[]
function Batch:trace(most) end

---Tokens that fit into free and evictable blocks of the KV cache, and into all blocks.
---@return integer free
---@return integer all
function Batch:room() end

---Protects what the prefix cache has of a prompt from eviction; off: no longer.
---@param prompt string|integer[]
---@param options? { off?: boolean, salt?: integer }
---@return integer|boolean|nil tokens
---@return perigee.Error? err
function Batch:pin(prompt, options) end

---Reads a file of seq:save into the prefix cache. On the engine thread the result comes to the
---callback.
---@param path string
---@param callback? fun(ok: boolean?, err: perigee.Error?)
---@return boolean? ok
---@return perigee.Error? err
function Batch:load(path, callback) end

---Frees everything; sequences that are not done never will be.
function Batch:close() end

---Closes without blocking the loop: the running step ends and unsaved prefixes are written on
---another thread; then `done` is called.
---@param done fun(ok: boolean)
---@return true? ok, perigee.Error? err
function Batch:retire(done) end

---One answer. Its methods are the commands of perigee.BatchCore.command about a sequence, and more.
---@class perigee.Sequence
---@field id integer  Its number.
---@field tag? any  Of its request.
---@field ids integer[]  Tokens so far.
---@field text string  When it is done.
---@field finish? string  "stop", "length", "cancel" or "error".
---@field error? perigee.Error
---@field stop? integer  Which stop string ended it.
---@field prompt_tokens? integer
---@field completion_tokens? integer
---@field cached_tokens? integer
---@field forced_tokens? integer  Of the completion, those that a grammar forced without steps.
---@field logprobs? { id: integer, logprob: number, top?: table }[]
local Sequence = {}

---A copy that continues with another seed.
---@param seed? integer
---@return perigee.Sequence? seq
---@return perigee.Error? err
function Sequence:fork(seed) end

---Drops generated tokens after the first n of prompt and answer together.
---@param n integer
---@return boolean? ok
---@return perigee.Error? err
function Sequence:trim(n) end

---Its next tokens are these.
---@param ids integer[]
---@return boolean? ok
---@return perigee.Error? err
function Sequence:force(ids) end

---Replaces its logit_bias.
---@param bias table<integer, number>
---@return boolean? ok
---@return perigee.Error? err
function Sequence:bias(bias) end

---Keeps the logits of its steps from now on, or no longer.
---@param keep? boolean
---@return boolean? ok
---@return perigee.Error? err
function Sequence:keep_logits(keep) end

---Continues a held sequence, as it would have continued or with a bias, bans or tokens for this
---draw.
---@param how? { bias?: table<integer, number>, banned?: integer[], force?: integer[] }
---@return boolean? ok
---@return perigee.Error? err
function Sequence:sample(how) end

---The logits of its last step, if they were kept or it is held. Entry i belongs to token id i - 1.
---@return perigee.Tensor?
function Sequence:logits() end

---The token id with the highest of these logits.
---@return integer?
function Sequence:best() end

---Writes its caches to a file. On the engine thread the result comes to the callback.
---@param path string
---@param callback? fun(ok: boolean?, err: perigee.Error?)
---@return boolean? ok
---@return perigee.Error? err
function Sequence:save(path, callback) end

---Ends it.
---@return boolean? ok
---@return perigee.Error? err
function Sequence:cancel() end

---Frees its caches; it waits again, with its tokens.
---@return boolean? ok
---@return perigee.Error? err
function Sequence:preempt() end

---Frees everything.
function Model:close() end

return Model
