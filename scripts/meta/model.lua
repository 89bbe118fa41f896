---@meta

---What perigee.open gives.
---@class perigee.Model
---@field path string
---@field config table           One view of config.json in any dialect: heads, layers, rope, …
---@field weights perigee.Weights
---@field graph perigee.Graph
---@field builder table          What the graph was built with (models/core/graph.lua): more can be added to it, and tapped.
local Model = {}

---The tokenizer; nil and why when the model has none.
---@return perigee.Tokenizer? tokenizer
---@return perigee.Error? err
function Model:tokenizer() end

---Takes the model's tokenizer, opened by somebody else.
---@param tok perigee.Tokenizer
function Model:take_tokenizer(tok) end

---Ids of a prompt: a list as it is, text through the tokenizer.
---@param prompt string|integer[]
---@return integer[]
function Model:ids(prompt) end

---Runs a prompt. tap: names of values to return; greedy: so many more tokens; chunk: tokens of a step at most; last: logits
---of so many last rows (all).
---@param prompt string|integer[]
---@param options? { tap?: string[], greedy?: integer, chunk?: integer, last?: integer }
---@return { logits: perigee.Tensor, taps: table<string, perigee.Tensor>, greedy: integer[] }
function Model:eval(prompt, options) end

---@class perigee.Request: perigee.BatchRequest
---@field prompt string|integer[]
---@field bad_words? (string|integer[])[]
---@field stop_token_ids? integer[]   Another name of stop_ids.
---@field logprobs? boolean|integer   true: the logprob of each token; a number: as top_logprobs.
---@field on_token? fun(event: perigee.BatchEvent, seq: perigee.Sequence)
---@field on_done? fun(seq: perigee.Sequence)
---@field tag? any                    Of the caller: on the seq, and in what policies see of it.
---@field watch? boolean              Never granted ahead: what on_token does to the seq holds from the next token on.

---Many answers at once.
---@param options? { sequences?: integer, step_tokens?: integer, context?: integer, cache_tokens?: integer, kv_bits?: integer, policy?: function, share?: perigee.Batch }
---@return perigee.Batch? batch
---@return perigee.Error? err
function Model:batch(options) end

---Tokens after a prompt until an end token, a stop string, max_tokens, or the end of the context. Takes what batch:add
---takes but n, with on_text(piece), and on_token(id).
---@param request table
---@return { text: string, ids: integer[], finish_reason: string, prompt_tokens: integer, completion_tokens: integer, logprobs?: table }
function Model:generate(request) end

---What model:batch gives. Sequences and their events, in the foreground or on the engine thread.
---@class perigee.Batch
local Batch = {}

---Adds a request; gives its sequences, n of them.
---@param request perigee.Request
---@return perigee.Sequence? seq
---@return perigee.Sequence|perigee.Error ...
function Batch:add(request) end

---One step in the foreground. Without grants the policy decides.
---@param grants? { [1]: perigee.Sequence|integer, [2]: integer }[]
---@return perigee.BatchEvent[]? events
---@return integer|perigee.Error ran_or_err
function Batch:step(grants) end

---Steps in the foreground until every seq is done.
---@return boolean? ok
---@return perigee.Error? err
function Batch:run() end

---From now on steps run on the engine thread, and events come from the loop.
---@param policy? function|table
---@return boolean? ok
---@return perigee.Error? err
function Batch:start(policy) end

---Back to the foreground, after the step that runs.
---@return boolean? ok
---@return perigee.Error? err
function Batch:stop() end

---@return perigee.SeqInfo[]
function Batch:sequences() end

---@return table
function Batch:stats() end

---@param most? integer
---@return table[]
function Batch:trace(most) end

---@return integer free
---@return integer all
function Batch:room() end

---Reads what seq:save wrote into the prefix cache. On the engine thread the result comes to the callback.
---@param path string
---@param callback? fun(ok: boolean?, err: perigee.Error?)
---@return boolean? ok
---@return perigee.Error? err
function Batch:load(path, callback) end

---Lets go of everything; sequences that are not done never will be.
function Batch:close() end

---One answer.
---@class perigee.Sequence
---@field id integer             Its number.
---@field tag? any               Of its request.
---@field ids integer[]          So far.
---@field text string            When it is done.
---@field finish? string         "stop", "length", "cancel" or "error".
---@field error? string
---@field stop? integer          Which stop string ended it.
---@field prompt_tokens? integer
---@field completion_tokens? integer
---@field cached_tokens? integer
---@field logprobs? { id: integer, logprob: number, top?: table }[]
local Sequence = {}

---A copy that goes on with another seed.
---@param seed? integer
---@return perigee.Sequence? seq
---@return perigee.Error? err
function Sequence:fork(seed) end

---Forgets generated tokens behind the first n of prompt and answer together.
---@param n integer
function Sequence:trim(n) end

---The next tokens are these.
---@param ids integer[]
function Sequence:force(ids) end

---Replaces its logit_bias.
---@param bias table<integer, number>
function Sequence:bias(bias) end

---Keeps the logits of its steps from now on, or no longer.
---@param keep? boolean
function Sequence:keep_logits(keep) end

---Lets a held seq go on, as it would have gone, or with a bias, bans or tokens of the caller's for this draw.
---@param how? { bias?: table<integer, number>, banned?: integer[], force?: integer[] }
---@return boolean? ok
---@return perigee.Error? err
function Sequence:sample(how) end

---Those of its last step, when they are kept or it is held.
---@return perigee.Tensor?
function Sequence:logits() end

---Writes its caches to a file. On the engine thread the result comes to the callback.
---@param path string
---@param callback? fun(ok: boolean?, err: perigee.Error?)
function Sequence:save(path, callback) end

function Sequence:cancel() end

function Sequence:preempt() end

---Lets go of everything.
function Model:close() end

return Model
