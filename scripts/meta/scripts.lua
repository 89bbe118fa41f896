---@meta

---@class perigee.Delta  A part of an answer (scripts/pipeline/output.lua).
---@field type string        "text", "reasoning", "call", "finish"; parse: drop, relabel, other.
---@field text? string       Of text and reasoning.
---@field index? integer     Of a call, from 1 on.
---@field id? string         Of a call, in its first part only.
---@field name? string       Of a call, in its first part only.
---@field arguments? string  A piece of a call's JSON text.
---@field done? boolean      The call is complete; only in `parse`.
---@field finish? string     "stop", "length", "tool_calls", "content_filter" or "cancel".
---@field choice? integer    Index of the answer, from 0 on; only in `respond`.
---@field kind? string       Of other; only in `parse`.

---@class perigee.Script  What a file in hooks/ or policy/ of a site returns.
---@field name? string        The file's name, if given.
---@field version? integer    1 by default; must not go down from one load to the next.
---@field config? table       Defaults of hooks = { { "NAME", key = value } } in the configuration.
---@field params? table<string, string|table>  Parameters of requests: a type, or { type, default }.
---@field selftest? function|table<string, function>  Cases: each gets a perigee.Trial.
---@field state? fun(old?: table, from?: integer): table  Makes self.state, of that of `from`.
local Script = {}

-- Hooks are plain functions: the first argument is what they act on, the last one is `self`. Times
-- are CPU time; hooks that may wait can call perigee.sleep and perigee.http.request.

---50 ms, may wait. The first refusal wins.
---@param req perigee.Request
---@param self perigee.Self
---@return perigee.Rejection?
function Script.request(req, self) end

---50 ms, may wait. May replace the chat.
---@param req perigee.Request
---@param chat perigee.Chat
---@param self perigee.Self
---@return perigee.Chat?
function Script.normalize(req, chat, self) end

---50 ms. The first answer wins: perigee.template(name), or the prompt as a text (special tokens
---count) or as ids.
---@param req perigee.Request
---@param chat perigee.Chat
---@param self perigee.Self
---@return (table|string|integer[])?
function Script.template(req, chat, self) end

---5 ms. Tables become part of req.tag.
---@param req perigee.Request
---@param queue perigee.Queue
---@param self perigee.Self
---@return (table|perigee.Rejection)?
function Script.admit(req, queue, self) end

---50 ms between waits. Wraps what follows; run(req, options) does it.
---@param req perigee.Request
---@param run fun(req?: perigee.Request, options?: perigee.RunOptions): perigee.Output
---@param self perigee.Self
---@return perigee.Output?
function Script.generate(req, run, self) end

---10 ms. Policies only.
---@param step perigee.Step
---@param self perigee.Self
function Script.schedule(step, self) end

---2 ms. For sequences of requests that name the script; what it returns is seq.state.
---@param seq perigee.Seq
---@param params table
---@param self perigee.Self
---@return any
function Script.start(seq, params, self) end

---2 ms. "stop": the answer ends before this token; "detach": not called any more.
---@param seq perigee.Seq
---@param id integer
---@param text string
---@param self perigee.Self
---@return ("stop"|"detach")?
function Script.token(seq, id, text, self) end

---2 ms. The sequence waits for it at every token.
---@param seq perigee.Seq
---@param logits perigee.Logits
---@param self perigee.Self
function Script.logits(seq, logits, self) end

---5 ms. May replace what the parser made of a piece of text.
---@param req perigee.Request
---@param deltas perigee.Delta[]
---@param self perigee.Self
---@return perigee.Delta[]?
function Script.parse(req, deltas, self) end

---5 ms. May replace what is sent; false: not sent. A whole answer of which nothing is left is a
---403.
---@param req perigee.Request
---@param delta perigee.Delta
---@param self perigee.Self
---@return (perigee.Delta|perigee.Delta[]|false)?
function Script.respond(req, delta, self) end

---50 ms, may wait. The client has its answer.
---@param req perigee.Request
---@param usage table
---@param self perigee.Self
function Script.done(req, usage, self) end

---@class perigee.Self
---@field name string
---@field version integer
---@field config table   The script's config, with the server's settings.
---@field state table    Survives reloads.

---@class perigee.Request  Hooks may change model, chat, sampling, grammar and ctx
---before `admit`.
---@field id string          Of the response.
---@field api string         "chat", "completions", "messages" or "responses".
---@field path string
---@field headers table<string, string>  Names in lower case.
---@field key? string        Name of the API key.
---@field user? string
---@field peer string
---@field received integer   Epoch seconds.
---@field stream boolean
---@field n integer
---@field model string       Name; a `request` hook may choose another.
---@field body table         As it was sent.
---@field chat? perigee.Chat  nil for plain prompts.
---@field prompts? table     Plain prompts: strings and lists of ids.
---@field ids? integer[]     The prompt, from `admit` on.
---@field prompt_tokens? integer
---@field sampling table     Sampling fields: temperature, max_tokens, stop, …
---@field grammar? table     What the answer is: { schema = … }, { regex = … }, { choice = … } or
---                          { grammar = "GBNF or Lark" }. Hooks may set or replace it.
---@field fast_forward? boolean  Append text that must come without steps of the model.
---@field ctx table          Scratch space for scripts.
---@field session? string    Name of the conversation that the client says it continues.
---@field tag table          Plain data that policies see as seq.tag; has key, model, api, session.
---@field scripts table      The version of the scripts that the request started with.
local Request = {}

---@class perigee.Chat
---@field messages table[]  The URLs of pictures and videos are names: "media:1", "media:2", …
---@field tools? table[]
---@field tool_choice? any
---@field parallel_tool_calls? boolean
---@field add_generation_prompt? boolean
---@field continue_final_message? boolean
---@field kwargs table       Variables of the template.

---Names a script for the sequences of this request: its start, token and logits hooks run for them.
---@param name string
---@param params? table
function Request:attach(name, params) end

---@class perigee.RunOptions
---@field silent? boolean    Nothing of it is sent.
---@field n? integer         Number of choices: run returns a list of outputs.
---@field sampling? table    Overrides that of the request.

---@class perigee.Output
---@field text string        As the model wrote it.
---@field content? string
---@field reasoning? string
---@field calls table[]      { id, name, arguments } each.
---@field finish string
---@field ids integer[]
---@field logprob number     Sum over the tokens.
---@field usage table

---@class perigee.Queue  The queue that `admit` sees.
---@field running integer         Sequences with caches.
---@field waiting integer
---@field waiting_tokens integer  Tokens that waiting sequences are predicted to need.
---@field free_tokens integer     Tokens that the caches have room for now.
---@field all_tokens integer      Tokens that the caches hold in all.
local Queue = {}

---Sequences, running or waiting, whose tags have these values.
---@param filter table
---@return integer
function Queue:count(filter) end

---Seconds until the waiting sequences are predicted to be done.
---@return number
function Queue:eta() end

---@class perigee.Step  One step of a batch, as a policy sees it; see scripts/engine/step.lua.
---@field tokens integer    Tokens that it may have.
---@field left integer      Tokens not given yet.
---@field timing table      What recent steps took: decode, prefill.
---@field free integer      Tokens that the caches have room for.
---@field now number        Seconds.
local Step = {}

---Sequences that have caches, oldest first.
---@param filter? table|fun(seq: perigee.SeqInfo): boolean
---@return perigee.SeqInfo[]
function Step:running(filter) end

---@param filter? table|fun(seq: perigee.SeqInfo): boolean
---@return perigee.SeqInfo[]
function Step:waiting(filter) end

---Sequences with prompt tokens left: those in prefill, then those that wait.
---@param filter? table|fun(seq: perigee.SeqInfo): boolean
---@return perigee.SeqInfo[]
function Step:prompts(filter) end

---Gives every sequence that decodes its token.
---@return integer tokens
function Step:decode() end

---Prompt tokens that may still be computed in this step.
---@param factor? number  The step may take this many times as long as without them.
---@return integer
function Step:room(factor) end

---Gives the sequence as much of its prompt as there is room for.
---@param seq perigee.SeqInfo
---@param most? integer
---@return integer tokens
function Step:prefill(seq, most) end

---@param seq perigee.SeqInfo|integer
---@param n? integer
---@return integer tokens
function Step:give(seq, n) end

---@param by perigee.SeqInfo[]|fun(seq: perigee.SeqInfo): number
function Step:order(by) end

---@param seq perigee.SeqInfo|integer
function Step:preempt(seq) end

---The built-in policy gives the rest of the step.
---@return fun(): perigee.SeqInfo?, integer?
function Step:fill() end

---@class perigee.Seq  One sequence, for a script that its request names.
---@field request string     Id of the request.
---@field id integer         Of the sequence; nil in `start`.
---@field params table
---@field state any          What `start` returned.
---@field prompt_tokens integer
---@field ids integer[]      Of the answer, so far.
---@field text string        Of the answer, so far.
---@field thinking boolean   Is the answer still in its reasoning?
---@field closing? integer[]  The ids that end its reasoning, to be forced.
---@field vocab perigee.Tokenizer
local Seq = {}

---The next tokens are these.
---@param ids integer[]
function Seq:force(ids) end

---Adds to the logits from now on, in addition to the request's own bias.
---@param biases table<integer, number>
function Seq:bias(biases) end

---The answer ends before this token.
function Seq:stop() end

---@class perigee.Logits  The logits of one token. [id] reads one.
---@field [integer] number
local Logits = {}

---@param biases table<integer, number>
function Logits:bias(biases) end

---@param ids integer[]
function Logits:ban(ids) end

---The k best: { id, logit } each.
---@param k integer
---@return { [1]: integer, [2]: number }[]
function Logits:top(k) end

---@return integer id
function Logits:argmax() end

---@class perigee.Rejection: perigee.Error  A refusal with an HTTP status.
---@field status integer
---@field retry_after? number

---@class perigee.Site  `require "perigee"` inside a script of a site.
---@field version string
---@field json perigee.json
---@field shared table   Shared by all scripts; survives reloads.
local Site = {}

---Makes a refusal, for `request` and `admit` to return.
---@param status integer
---@param message string
---@param options? { retry_after?: number, code?: string, field?: string }
---@return perigee.Rejection
function Site.reject(status, message, options) end

---Epoch seconds.
---@return number
function Site.now() end

---A number that is the same for the same strings on every machine; 0 or more.
---@param ... any
---@return integer
function Site.hash(...) end

---Writes a line to the log.
---@param text string
---@param fields? table<string, string|number|boolean>
function Site.log(text, fields) end

---Adds a value to perigee_script_NAME, a histogram at /metrics.
---@param name string
---@param value number
---@param labels? table<string, string>
function Site.metric(name, value, labels) end

---Adds to perigee_script_NAME, a counter at /metrics.
---@param name string
---@param n? number
---@param labels? table<string, string>
function Site.count(name, n, labels) end

---For `template` to return: the conversation is rendered by templates/NAME.jinja of the site.
---@param name string
---@return table
function Site.template(name) end

---The models of the server: { name, state, context, running, waiting } each.
---@return table[]
function Site.models() end

---Calls fn every `seconds` seconds while the script serves. Only at load. fn may wait.
---@param seconds number
---@param fn fun(self: perigee.Self)
function Site.every(seconds, fn) end

---Waits. Only in hooks that may wait.
---@param seconds number
function Site.sleep(seconds) end

---@class perigee.SiteHttp
local SiteHttp = {}

---perigee.http.request: sends a request to another server. Only in hooks that may wait. options:
---url, method, headers, body, timeout_ms.
---@param options table
---@return { status: integer, headers: table, body: string }? answer
---@return any err
function SiteHttp.request(options) end

---@class perigee.Trial  The argument of a self-test case. try.PHASE(…) calls the script's hook.
---@field self perigee.Self
---@field said string[]      Lines that were logged.
---@field counted table[]    Metrics.
---@field http? fun(options: table): table?   Answers perigee.http.request.
local Trial = {}

---@param fields table
---@return perigee.Request
function Trial.req(fields) end

---@param fields? table
---@return perigee.Queue
function Trial.queue(fields) end

---step.given[i] is what sequence i was given.
---@param sequences table[]
---@param options? { tokens?: integer }
---@return perigee.Step
function Trial.step(sequences, options) end

---Ids are bytes; forced, biases and stopped record what was done.
---@param fields? table
---@return perigee.Seq
function Trial.seq(fields) end

---biased and banned record what was done.
---@param values table<integer, number>
---@return perigee.Logits
function Trial.scores(values) end

return Site
