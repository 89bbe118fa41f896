---@meta

---@class perigee.Script  What a file in hooks/ or policy/ of a site returns. Functions are hooks; each also gets `self`, last.
---@field name? string        The file's name, if it is given.
---@field version? integer    1; must not go down from one load to the next.
---@field config? table       Settings and their defaults; the server's configuration may set them: hooks = { { "NAME", key = value } }.
---@field params? table<string, string|table>  Parameters of requests that name the script: "integer", "number", "string", "boolean", or { type, default }.
---@field selftest? function|table<string, function>  Cases: each gets a perigee.Trial.
---@field state? fun(old?: table, from?: integer): table   What self.state starts with; old: that of version `from`, a copy. Plain data.
---@field request? fun(req: perigee.Request, self: perigee.Self): perigee.Rejection?   50 ms, may wait. The first refusal wins.
---@field normalize? fun(req: perigee.Request, chat: table, self: perigee.Self): table?   50 ms, may wait. May replace the chat.
---@field template? fun(req: perigee.Request, chat: table, self: perigee.Self): (table|string|integer[])?   50 ms. The first answer wins: perigee.template(name), or the prompt as a text (special tokens count) or as ids.
---@field admit? fun(req: perigee.Request, queue: perigee.Queue, self: perigee.Self): (table|perigee.Rejection)?   5 ms. Tables become part of req.tag.
---@field generate? fun(req: perigee.Request, run: (fun(req?: perigee.Request, options?: perigee.RunOptions): perigee.Output), self: perigee.Self): perigee.Output?   50 ms between waits. Wraps what follows.
---@field schedule? fun(step: perigee.Step, self: perigee.Self)   10 ms. Policies only.
---@field start? fun(seq: perigee.Seq, params: table, self: perigee.Self): any   2 ms. For sequences of requests that name the script; gives seq.state.
---@field token? fun(seq: perigee.Seq, id: integer, text: string, self: perigee.Self): ("stop"|"detach")?   2 ms.
---@field logits? fun(seq: perigee.Seq, logits: perigee.Logits, self: perigee.Self)   2 ms. The seq waits for it at every token.
---@field parse? fun(req: perigee.Request, events: table[], self: perigee.Self): table[]?   5 ms. May replace events of the parser.
---@field respond? fun(req: perigee.Request, chunk: table, self: perigee.Self): (table|false)?   5 ms. May replace what is sent; false: not at all.
---@field done? fun(req: perigee.Request, usage: table, self: perigee.Self)   50 ms, may wait.

---@class perigee.Self
---@field name string
---@field version integer
---@field config table   Of the script, with the server's settings.
---@field state table    Survives reloads.

---@class perigee.Request  One request. Scripts may change model, chat, sampling and ctx before `admit`.
---@field id string          Of the response.
---@field api string         "chat" or "completions".
---@field path string
---@field headers table<string, string>  Names in lower case.
---@field key? string        Name of the API key.
---@field user? string
---@field peer string
---@field received integer   Epoch seconds.
---@field stream boolean
---@field n integer
---@field model string       Name; a `request` script may choose another.
---@field body table         As it was sent.
---@field chat? { messages: table[], tools?: table[], tool_choice?: any, parallel_tool_calls?: boolean, add_generation_prompt?: boolean, continue_final_message?: boolean, kwargs: table }
---@field ids? integer[]     The prompt, from `admit` on.
---@field prompt_tokens? integer
---@field sampling table     What the generator takes: temperature, max_tokens, stop, …
---@field ctx table          Scratch of scripts.
---@field tag table          Plain data that policies see as seq.tag; has key, model and api.
local Request = {}

---Names a script for the sequences of this request: its start, token and logits run for them.
---@param name string
---@param params? table
function Request:attach(name, params) end

---@class perigee.RunOptions
---@field silent? boolean    Nothing of it is sent.
---@field n? integer         So many choices: a list of outputs.
---@field sampling? table    Over that of the request.

---@class perigee.Output
---@field text string        As the model wrote it.
---@field content? string
---@field reasoning? string
---@field calls table[]
---@field finish string
---@field ids integer[]
---@field logprob number     Sum over the tokens.
---@field usage table

---@class perigee.Queue  What `admit` sees.
---@field running integer         Sequences with caches.
---@field waiting integer
---@field waiting_tokens integer  That they are expected to take.
---@field free_tokens integer     Room in the caches, and in all.
---@field all_tokens integer
local Queue = {}

---Sequences, running or not, whose tags agree.
---@param filter table
---@return integer
function Queue:count(filter) end

---Seconds until what waits is expected to be done.
---@return number
function Queue:eta() end

---@class perigee.Step  One step of a batch, as a policy sees it; see scripts/engine/step.lua.
---@field tokens integer    It may hold.
---@field left integer      Not given yet.
---@field timing table      What steps took lately: decode, read.
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

---Sequences whose prompts are to be read: those that are being read, then those that wait.
---@param filter? table|fun(seq: perigee.SeqInfo): boolean
---@return perigee.SeqInfo[]
function Step:prompts(filter) end

---Every seq that writes gets its token.
---@return integer tokens
function Step:decode() end

---Prompt tokens that may still be read in this step.
---@param factor? number  The step may take so many times as long as without them (2).
---@return integer
function Step:room(factor) end

---Gives the seq as much of its prompt as there is room for.
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

---The built-in policy gives the rest.
---@return fun(): perigee.SeqInfo?, integer?
function Step:fill() end

---@class perigee.Seq  One seq, for a script that a request named.
---@field id string          Of the request.
---@field seq integer
---@field params table
---@field state any          What `start` returned.
---@field prompt_tokens integer
---@field ids integer[]      Of the answer, so far.
---@field text string        Of the answer, so far.
---@field thinking boolean   Is the answer still in its thinking?
---@field vocab perigee.Tokenizer
local Seq = {}

---The next tokens are these.
---@param ids integer[]
function Seq:force(ids) end

---From now on, on top of the request's own.
---@param biases table<integer, number>
function Seq:bias(biases) end

---The answer ends before this token.
function Seq:stop() end

---@class perigee.Logits  What is to be drawn from, for one token. [id] reads one.
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

---@class perigee.Rejection
---@field status integer
---@field message string
---@field retry_after? number
---@field code? string
---@field type? string

---@class perigee.Site  `require "perigee"` inside a script of a site.
---@field version string
---@field json perigee.json
---@field shared table   Of all scripts; survives reloads.
local Site = {}

---Refuses a request: what `request` and `admit` return.
---@param status integer
---@param message string
---@param options? { retry_after?: number, code?: string, type?: string }
---@return perigee.Rejection
function Site.reject(status, message, options) end

---Epoch seconds.
---@return number
function Site.now() end

---A number that is the same for the same texts everywhere; 0 or more.
---@param ... any
---@return integer
function Site.hash(...) end

---A line of the log.
---@param text string
---@param fields? table<string, string|number|boolean>
function Site.log(text, fields) end

---One more value of perigee_script_NAME, a histogram at /metrics.
---@param name string
---@param value number
---@param labels? table<string, string>
function Site.metric(name, value, labels) end

---Counts perigee_script_NAME.
---@param name string
---@param n? number
---@param labels? table<string, string>
function Site.count(name, n, labels) end

---What `template` returns to have the conversation rendered by templates/NAME.jinja of the site.
---@param name string
---@return table
function Site.template(name) end

---The models of the server.
---@return { name: string, state: string, context: integer, running: integer, waiting: integer }[]
function Site.models() end

---Calls fn every so many seconds while the script serves. Only at load. fn may wait.
---@param seconds number
---@param fn fun(self: perigee.Self)
function Site.every(seconds, fn) end

---Where a hook may wait.
---@param seconds number
function Site.sleep(seconds) end

---@class perigee.SiteHttp
local SiteHttp = {}

---perigee.http.request: asks another server, where a hook may wait. url, method, headers, body, timeout_ms.
---@param options table
---@return { status: integer, headers: table, body: string }? answer
---@return any err
function SiteHttp.request(options) end

---@class perigee.Trial  What a case of a self-test gets. try.PHASE(…) calls the script's hook.
---@field self perigee.Self
---@field said string[]      What was logged.
---@field counted table[]    Metrics.
---@field http? fun(options: table): table?   Answers perigee.http.request.
local Trial = {}

---@param fields table
---@return perigee.Request
function Trial.req(fields) end

---@param fields? table
---@return perigee.Queue
function Trial.queue(fields) end

---step.given[i] tells what seq i got.
---@param sequences table[]
---@param options? { tokens?: integer }
---@return perigee.Step
function Trial.step(sequences, options) end

---Ids are bytes; forced, biases and stopped tell what was done.
---@param fields? table
---@return perigee.Seq
function Trial.seq(fields) end

---biased and banned tell what was done.
---@param values table<integer, number>
---@return perigee.Logits
function Trial.scores(values) end

return Site
