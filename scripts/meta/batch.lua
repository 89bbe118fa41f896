---@meta

---@class perigee.batch  The batch generator as C has it: sequences are numbers. model:batch{…} makes objects of them.
local batch = {}

---@class perigee.BatchOptions
---@field tokenizer? perigee.Tokenizer  Without one there is no text, and there are no stop strings.
---@field threads? integer
---@field sequences? integer           Sequences that run at once (64).
---@field step_tokens? integer    Tokens of a step at most (512).
---@field context? integer        Tokens of one seq at most (4096).
---@field cache_tokens? integer   Room in the caches; by default sequences times context, as far as memory goes.
---@field kv_bits? integer        32, 16, 8 or 4.
---@field kv_block? integer       Tokens of a cache block, a power of two.
---@field stride? integer         Snapshots of states every so many tokens of a prompt (512).
---@field cache_bytes? integer    Budget of the prefix cache (1 GiB); 0: none.
---@field cache_folder? string    Where evicted prefixes are kept.
---@field cache_disk_bytes? integer
---@field end_ids? integer[]      Tokens that end an answer.
---@field share? perigee.BatchCore  Whose engine thread and compute threads this one uses, too.

---@param graph perigee.Graph
---@param options? perigee.BatchOptions
---@return perigee.BatchCore? batch
---@return perigee.Error? err
function batch.open(graph, options) end

---@class perigee.BatchRequest  Scalars are described in C (runtime/batch); batch.fields() lists them.
---@field prompt integer[]
---@field max_tokens? integer  Tokens to generate; without it, up to the end of the context.
---@field min_tokens? integer  End tokens and stop strings are ignored before this many tokens.
---@field n? integer  Choices: answers to the same prompt.
---@field ignore_eos? boolean  The model's end tokens do not end the answer.
---@field skip_special? boolean  Leaves special tokens out of the text.
---@field no_cache? boolean  Neither reads nor fills the prefix cache.
---@field hold? boolean  Every draw waits for sample.
---@field keep_logits? boolean  Keeps the logits of each step, from the first token on.
---@field salt? integer  Separates the prefix caches of tenants.
---@field temperature? number  Randomness of the draw; 0 always takes the best token.
---@field top_p? number  Samples from the best tokens whose probabilities reach this sum; 1 is off.
---@field top_k? integer  Samples from this many best tokens; 0 is off.
---@field min_p? number  Drops tokens below this fraction of the best token's probability; 0 is off.
---@field typical_p? number  Samples from the tokens of most typical surprise that reach this sum; 1 is off.
---@field xtc_probability? number  How often all tokens above xtc_threshold but the least likely are dropped; 0 is off.
---@field xtc_threshold? number  The probability that xtc looks for.
---@field repetition_penalty? number  Divides the logits of tokens in prompt and answer; 1 is off.
---@field presence_penalty? number  Subtracted from the logits of tokens that the answer contains; 0 is off.
---@field frequency_penalty? number  Subtracted once for each time the answer contains the token; 0 is off.
---@field penalty_window? integer  Penalties count this many last tokens; 0 counts all.
---@field seed? integer  Seed of the draw; choice i draws with seed + i.
---@field top_logprobs? integer  Reports logprobs, and this many alternatives for each token.
---@field logit_bias? table<integer, number>  Added to the logits of these tokens.
---@field banned? integer[]  Tokens that are never sampled.
---@field stop? string|string[]  The answer ends before the first of these strings.
---@field stop_ids? integer[]  The answer ends with one of these tokens, in addition to the model's end tokens.
---@field bad_words? integer[][]  Token sequences that are never completed.
---@field boundaries? integer[]  Positions in the prompt where a message ends; prefixes may be resumed there.
---@field keep_special? integer[]  Special tokens that stay in the text despite skip_special.

---@class perigee.BatchField  One scalar field of a request.
---@field name string
---@field type string  "number", "integer" or "boolean".
---@field min? number  The lowest valid value; none: any finite number.
---@field max? number  The highest valid value.
---@field above? boolean  min itself is not valid.
---@field default? number|boolean  The value of a request without the field; none: it has no effect then.
---@field help string

---The scalar fields of a request, with their ranges and defaults.
---@return perigee.BatchField[]
function batch.fields() end

---@class perigee.BatchEvent
---@field seq integer           The sequence.
---@field id? integer             A token was made.
---@field logprob? number         Of the raw logits, when asked for; else 0.
---@field top? { id: integer, logprob: number }[]
---@field held? boolean           Its logits are there, and the seq waits for sample.
---@field text string             What is certain now.
---@field finish? string          "stop", "length", "cancel" or "error": the seq is done.
---@field stop? integer           Which stop string ended it.
---@field error? string           With finish "error"; without a finish, of a command that failed.
---@field code? string            Of the error of a command.
---@field ticket? integer         The save or load that this answers.
---@field prompt_tokens? integer  With the finish, as the next two.
---@field completion_tokens? integer
---@field cached_tokens? integer

---@class perigee.SeqInfo
---@field id integer
---@field state string            "waiting", "prefill", "decode" or "held".
---@field prompt integer          Its tokens, as in the next three: computed; made; found in the prefix cache (of a waiting seq: there now).
---@field past integer
---@field generated integer
---@field cached integer
---@field left integer            A grant makes sense up to so many tokens.
---@field choice integer          Of its request, from 0 on.
---@field follows boolean         It waits for the prompt of the first choice.
---@field age number              Seconds since it was added.
---@field bytes integer           Of its caches.
---@field tag? any                Of its request; added by model:batch{…}.

---@class perigee.BatchCore
---@field running boolean         On the engine thread.
---@field threads integer
---@field step_tokens integer
---@field context integer
---@field vocabulary integer
local Core = {}

---Adds a request. Choice i is seq + i.
---@param request perigee.BatchRequest
---@return integer? seq
---@return integer|perigee.Error n_or_err
function Core:add(request) end

---Ends a seq; its event says "cancel".
---@param seq integer
---@return boolean? ok
---@return perigee.Error? err
function Core:cancel(seq) end

---A running seq waits again; its tokens stay.
---@param seq integer
---@return boolean? ok
---@return perigee.Error? err
function Core:preempt(seq) end

---The seq's next tokens are these.
---@param seq integer
---@param ids integer[]
---@return boolean? ok
---@return perigee.Error? err
function Core:force(seq, ids) end

---A copy of a writing or held seq that draws with another seed.
---@param seq integer
---@param seed? integer
---@return integer? seq
---@return perigee.Error? err
function Core:fork(seq, seed) end

---Forgets generated tokens behind the first so many of prompt and answer together.
---@param seq integer
---@param tokens integer
---@return boolean? ok
---@return perigee.Error? err
function Core:trim(seq, tokens) end

---Replaces the seq's logit_bias.
---@param seq integer
---@param bias table<integer, number>
---@return boolean? ok
---@return perigee.Error? err
function Core:bias(seq, bias) end

---Lets a held seq go on: with a bias and bans for this draw, or with tokens that come instead.
---@param seq integer
---@param how? { bias?: table<integer, number>, banned?: integer[], force?: integer[] }
---@return boolean? ok
---@return perigee.Error? err
function Core:sample(seq, how) end

---The logits of the seq's last step, when they are kept or it is held.
---@param seq integer
---@return perigee.Tensor?
function Core:logits(seq) end

---Keeps the logits of the seq's steps from now on.
---@param seq integer
---@param keep? boolean
---@return boolean? ok
---@return perigee.Error? err
function Core:keep_logits(seq, keep) end

---Writes the caches of a seq to a file. On the engine thread it gives a ticket, and an event with that ticket follows; so
---does load.
---@param seq integer
---@param path string
---@return boolean|integer|nil ok
---@return perigee.Error? err
function Core:save(seq, path) end

---The beginning of a prompt that the prefix cache has in memory is never evicted, until it is pinned `off` with the same ids.
---Returns how many tokens that are; on the engine thread true.
---@param ids integer[]
---@param options? { off?: boolean, salt?: integer }
---@return integer|boolean|nil found
---@return perigee.Error? err
function Core:pin(ids, options) end

---Reads such a file into the prefix cache.
---@param path string
---@return boolean|integer|nil ok
---@return perigee.Error? err
function Core:load(path) end

---All sequences that are not done, oldest first. With tables by the numbers of sequences: these sequences only, told in their tables.
---@param tables? table<integer, table>
---@return perigee.SeqInfo[]
function Core:sequences(tables) end

---Tokens that the caches have room for, with what could be evicted; and in all.
---@return integer free
---@return integer all
function Core:room() end

---Counters since the batch was opened: steps, read_tokens, written_tokens, cached_tokens, added, finished, cancelled, failed,
---preempted, running, waiting; plan, compute and sample in seconds; and those of the prefix cache.
---@return table
function Core:stats() end

---The last steps, oldest first, 256 at most; times in seconds. With `since`: of these, those that began later.
---@param most? integer
---@param since? number
---@return { at: number, tokens: integer, reading: integer, writing: integer, plan: number, compute: number, sample: number }[]
function Core:trace(most, since) end

---One step in the foreground: grants are pairs of a seq and a number of tokens, the most important first. What a seq cannot
---use is cut.
---@param grants integer[][]
---@return perigee.BatchEvent[]? events
---@return integer|perigee.Error ran_or_err
---@return perigee.BatchEvent[]? before   With an error: what had happened all the same.
function Core:step(grants) end

---From now on steps run on the engine thread. Returns a file descriptor that becomes readable when something has happened.
---@return integer? fd
---@return perigee.Error? err
function Core:start() end

---The grants of the next step. One may wait while one computes.
---@param grants integer[][]
---@return boolean? ok
---@return perigee.Error? err
function Core:submit(grants) end

---Events since the last time, and the error of a step that failed as a whole. In the foreground, those of cancels since the
---last step.
---@return perigee.BatchEvent[] events
---@return perigee.Error? err
function Core:drain() end

---Back to the foreground, after the step that runs; gives what was not drained.
---@return perigee.BatchEvent[] events
---@return perigee.Error? err
function Core:stop() end

---A step waits on the engine thread: another would be refused.
---@return boolean
function Core:pending() end

---Steps that the engine thread has done and that sequences() shows.
---@return integer
function Core:completed() end

---Lets go of caches and threads. Harmless twice.
function Core:close() end

return batch
