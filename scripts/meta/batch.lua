---@meta

---The batch of the runtime: sequences are numbers. model:batch{…} makes objects of them.
---@class perigee.batch
local batch = {}

---@class perigee.BatchOptions
---@field cache_tokens integer  Size of the KV cache in tokens.
---@field tokenizer? perigee.Tokenizer  Without one there is no text, and no stop strings.
---@field threads? integer
---@field sequences? integer  Sequences that run at once (64).
---@field step_tokens? integer  Rows of a step at most (512).
---@field context? integer  Tokens of one sequence at most (4096).
---@field precision? "exact"|"fast"  Of activations and KV cache: 32 or 16 bits (exact).
---@field device? "cpu"|"metal"|"auto"  The backend (auto: the best that this machine has).
---@field kv_bits? integer  32, 16, 8 or 4; by default 32, with fast 16.
---@field kv_block? integer  Tokens of a cache block, a power of two.
---@field stride? integer  Tokens of a prompt between snapshots of recurrent state (512).
---@field cache_bytes? integer  Budget of the prefix cache (1 GiB); 0: none.
---@field cache_folder? string  Directory of the on-disk prefix cache.
---@field cache_disk_bytes? integer  Its size limit.
---@field media_bytes? integer  Bytes of the features of all requests at most (0: no limit).
---@field end_ids? integer[]  Tokens that end an answer.
---@field progress? fun(done: integer, total: integer)  Hears how many bytes of weights are packed
---while it opens, and at the end that all are.
---@field share? perigee.BatchCore  A batch whose engine thread and compute threads this one uses.

---@param graph perigee.Graph
---@param options perigee.BatchOptions
---@return perigee.BatchCore? batch
---@return perigee.Error? err
function batch.open(graph, options) end

---Scalars are described in C (runtime/batch); batch.fields() lists them.
---@class perigee.BatchRequest : perigee.MediaPrompt
---@field prompt integer[]
---@field max_tokens? integer  Tokens to generate; without it, up to the end of the context.
---@field min_tokens? integer  End tokens and stop strings are ignored before this many tokens.
---@field n? integer  Choices: answers to the same prompt.
---@field ignore_eos? boolean  The model's end tokens do not end the answer.
---@field skip_special? boolean  Leaves special tokens out of the text.
---@field no_cache? boolean  Neither reads nor fills the prefix cache.
---@field hold? boolean  Every draw waits for sample.
---@field fast_forward? boolean  Where a grammar leaves one text only, appends it without steps.
---@field keep_logits? boolean  Keeps the logits of each step, from the first token on.
---@field salt? integer  Separates the prefix caches of tenants.
---@field temperature? number  Randomness of the draw; 0 always takes the best token.
---@field top_p? number  Samples from the best tokens whose probabilities reach this sum; 1 is off.
---@field top_k? integer  Samples from this many best tokens; 0 is off.
---@field min_p? number  Drops tokens below this fraction of the best token's probability; 0 is off.
---Samples from the tokens of most typical surprise that reach this sum; 1 is off.
---@field typical_p? number
---How often all tokens above xtc_threshold but the least likely are dropped; 0 is off.
---@field xtc_probability? number
---@field xtc_threshold? number  The probability that xtc looks for.
---@field repetition_penalty? number  Divides the logits of tokens in prompt and answer; 1 is off.
---Subtracted from the logits of tokens that the answer contains; 0 is off.
---@field presence_penalty? number
---Subtracted once for each time the answer contains the token; 0 is off.
---@field frequency_penalty? number
---@field penalty_window? integer  Penalties count this many last tokens; 0 counts all.
---@field seed? integer  Seed of the draw; choice i draws with seed + i.
---@field top_logprobs? integer  Reports logprobs, and this many alternatives for each token.
---@field logit_bias? table<integer, number>  Added to the logits of these tokens.
---@field banned? integer[]  Tokens that are never sampled.
---@field stop? string|string[]  The answer ends before the first of these strings.
---The answer ends with one of these tokens, in addition to the model's end tokens.
---@field stop_ids? integer[]
---@field bad_words? integer[][]  Token sequences that are never completed.
---Positions in the prompt where a message ends; prefixes may be resumed there.
---@field boundaries? integer[]
---@field keep_special? integer[]  Special tokens that stay in the text despite skip_special.
---What the answer may be, one phase after another; none: anything.
---@field phases? perigee.Phase[]

---Without a grammar: any token, until one of the marks was written. With one: what it takes, and
---the answer ends when nothing can follow.
---@class perigee.Phase
---@field marks? (integer|string)[]  Token ids, and texts that tokens may split anywhere.
---@field ends? boolean  End tokens may come in a phase without a grammar.
---@field grammar? perigee.Grammar
---@field gap? boolean  Up to two line feeds may come before the grammar.
---@field back? integer  The phase that begins again after the grammar, instead of the end.

---@class perigee.BatchField  One scalar field of a request.
---@field name string
---@field type string  "number", "integer" or "boolean".
---@field min? number  The lowest valid value; none: any finite number.
---@field max? number  The highest valid value.
---@field above? boolean  min itself is not valid.
---The value of a request without the field; none: it has no effect then.
---@field default? number|boolean
---@field help string

---The scalar fields of a request, with their ranges and defaults.
---@return perigee.BatchField[]
function batch.fields() end

---Bytes of the KV cache of one sequence of this many tokens, stored with kv_bits (32, 16, 8 or 4).
---@param graph perigee.Graph
---@param tokens integer
---@param kv_bits? integer
---@return integer
function batch.kv_bytes(graph, tokens, kv_bits) end

---The commands of a batch; those about a sequence are also methods of perigee.Sequence.
---@return { name: string, sequence: boolean }[]
function batch.commands() end

---@class perigee.BatchEvent
---@field seq integer  The sequence.
---@field id? integer  A token was generated.
---@field logprob? number  Of the raw logits, if asked for; else 0.
---@field top? { id: integer, logprob: number }[]
---@field held? boolean  Its logits are ready, and it waits for sample.
---@field forced? boolean  The token came without a step, since a grammar left no other text.
---@field text string  Text that is certain now.
---@field finish? string  "stop", "length", "cancel" or "error": the sequence is done.
---@field stop? integer  Which stop string ended it.
---@field error? perigee.Error  With finish "error"; without a finish: a queued command failed.
---@field ticket? integer  The save or load that this answers.
---@field prompt_tokens? integer  With the finish, like the next three.
---@field completion_tokens? integer
---@field cached_tokens? integer
---@field forced_tokens? integer  Of the completion, those that came without a step.

---@class perigee.SeqInfo
---@field id integer
---@field state string  "waiting", "prefill", "decode" or "held".
---@field prompt integer  Tokens of the prompt.
---@field past integer  Tokens computed.
---@field generated integer  Tokens generated.
---@field cached integer  Tokens found in the prefix cache; waiting: that are there now.
---@field left integer  The largest useful grant.
---@field choice integer  Its number within the request, from 0 on.
---@field follows boolean  It waits for the prompt of the first choice.
---@field age number  Seconds since it was added.
---@field bytes integer  Of its caches.
---@field tag? any  Of its request; added by model:batch{…}.

---@class perigee.BatchCore
---@field running boolean  On the engine thread.
---@field threads integer
---@field step_tokens integer
---@field context integer
---@field vocabulary integer
---@field tokens perigee.TokenMask?  For the masks of phases; nil without a tokenizer. They are
---built for the first request with phases, unless somebody has done so before.
local Core = {}

---Carries out a command, or queues it on the engine thread. Commands about a sequence take its
---number before their argument:
---  add request              new sequences, one per choice; returns the first number and the count
---  fork seq, seed           copies a sequence in decode or held; returns the number of the copy
---  cancel seq               ends it; its last event has finish "cancel"
---  preempt seq              frees its caches, it waits again; its tokens stay
---  force seq, ids           its next tokens, one a step
---  bias seq, {[id] = x}     replaces its logit_bias
---  trim seq, tokens         drops generated tokens after this many, prompt included
---  sample seq, how          continues a held one; how = { bias =, banned =, force = } for this
---                           draw
---  keep_logits seq, on      keeps the logits of its steps from now on, or no longer
---  save seq, path           writes its caches to a file
---  load path                reads such a file into the prefix cache
---  pin options              { prompt = ids, off =, salt =, media =, … }: protects what the prefix
---                           cache has of a prompt from eviction; returns how many tokens that are
---On the engine thread save and load return a ticket, and an event with that ticket follows; pin
---returns true. Commands without another result return true.
---@param verb string
---@param seq_or_argument any
---@param argument? any
---@return any result
---@return integer|perigee.Error|nil count_or_err
function Core:command(verb, seq_or_argument, argument) end

---The logits of the sequence's last step, if they were kept or it is held.
---@param seq integer
---@return perigee.Tensor?
function Core:logits(seq) end

---All sequences that are not done, oldest first. With tables by number: only these sequences, in
---their tables.
---@param tables? table<integer, table>
---@return perigee.SeqInfo[]
function Core:sequences(tables) end

---Tokens that fit into free and evictable blocks of the KV cache, and into all blocks.
---@return integer free
---@return integer all
function Core:room() end

---Counters since the batch was opened: steps, prefill_tokens, decode_tokens, cached_tokens; of
---decode_tokens, listed_tokens are those that a device's lists and sums of logits decided, and
---forced_tokens those that came without a step; added, finished, cancelled, failed and preempted
---sequences; running and waiting ones and media_bytes now; schedule, compute and sample in seconds;
---and those of the prefix cache.
---@return table
function Core:stats() end

---@class perigee.BatchTrace  One step; times in seconds.
---@field at number
---@field tokens integer  Rows of the step.
---@field prefill integer  Sequences in prefill.
---@field decode integer  Sequences in decode.
---@field schedule number
---@field compute number
---@field sample number

---The last steps, oldest first, 256 at most. With `since`: those that began later.
---@param most? integer
---@param since? number
---@return perigee.BatchTrace[]
function Core:trace(most, since) end

---One step in the foreground. Grants are pairs of a sequence and a number of tokens, the most
---important first; what a sequence cannot use is cut.
---@param grants integer[][]
---@return perigee.BatchEvent[]? events
---@return integer|perigee.Error ran_or_err
---@return perigee.BatchEvent[]? before  With an error: the events of commands before the step.
function Core:step(grants) end

---From now on steps run on the engine thread. Returns a file descriptor that becomes readable when
---something has happened.
---@return integer? fd
---@return perigee.Error? err
function Core:start() end

---Queues the grants of the next step. One may be queued while one computes.
---@param grants integer[][]
---@return boolean? ok
---@return perigee.Error? err
function Core:submit(grants) end

---Events since the last drain, the number of completed steps, whose events have all been drained by
---now, and the error of a step that failed as a whole. In the foreground: the events of commands
---since the last step alone.
---@return perigee.BatchEvent[] events
---@return integer? completed
---@return perigee.Error? err
function Core:drain() end

---Back to the foreground, after the running step; returns the events that were not drained.
---@return perigee.BatchEvent[] events
---@return perigee.Error? err
function Core:stop() end

---Closes the batch without waiting: its step ends and unsaved prefixes are written on another
---thread; then the callback is called on the loop. Everything else of the batch is refused.
---@param done fun(ok: boolean)
---@return true? ok, perigee.Error? err
function Core:retire(done) end

---A step is queued on the engine thread: another would be refused.
---@return boolean
function Core:pending() end

---Steps that the engine thread has completed and that sequences() shows.
---@return integer
function Core:completed() end

---Frees caches and threads. Harmless twice.
function Core:close() end

return batch
