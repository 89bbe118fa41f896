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

---@class perigee.BatchRequest
---@field prompt integer[]
---@field max_tokens? integer     By default to the end of the context.
---@field min_tokens? integer
---@field n? integer              Choices; choice i draws with seed + i.
---@field temperature? number     0: always the best token.
---@field top_p? number
---@field top_k? integer
---@field min_p? number
---@field typical_p? number
---@field xtc_probability? number
---@field xtc_threshold? number
---@field repetition_penalty? number
---@field presence_penalty? number
---@field frequency_penalty? number
---@field penalty_window? integer  Last tokens that count for the penalties; 0: all.
---@field seed? integer
---@field top_logprobs? integer   So many alternatives beside each token's logprob, 20 at most; none: no logprobs.
---@field logit_bias? table<integer, number>
---@field banned? integer[]       Tokens that never come.
---@field stop? string|string[]
---@field stop_ids? integer[]
---@field bad_words? integer[][]
---@field boundaries? integer[]   Positions in the prompt where a message ends.
---@field ignore_eos? boolean
---@field skip_special? boolean   In the text (true).
---@field keep_special? integer[] Special tokens that are in the text all the same.
---@field no_cache? boolean
---@field salt? integer           Keeps the prefix caches of tenants apart.
---@field hold? boolean           Every draw waits for sample.
---@field keep_logits? boolean    Its logits can be had from its first token on.

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
