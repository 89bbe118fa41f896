-- batch: many answers of one model at once. What model:batch{…} returns.
--
--   local batch <close> = model:batch { sequences = 16 }
--   local seq = assert(batch:add { prompt = "Once", max_tokens = 20,
--     on_token = function(event, seq) … end })
--   batch:run()                        -- steps in the foreground until every sequence is done
--   print(seq.text, seq.finish)
--
-- Or on the engine thread, while the loop goes on: after batch:start(policy) events come to
-- on_token and on_done as the loop runs, and batch:stop() brings the batch back. The policy
-- (engine/scheduler.lua) is asked once per step, for the next step while one computes. So the next
-- step is decided before the tokens of the running one are known, and what on_token does to its
-- sequence takes effect a token late. A sequence added with watch = true is never granted ahead: it
-- is not offered to the policy until its events have been handled, and seq:force, seq:bias and
-- seq:cancel in on_token affect the very next token, as in the foreground. That costs this sequence
-- the time between steps, and the others nothing.
--
-- A sequence added with hold = true does not sample by itself: whenever its logits are ready,
-- on_token gets an event { held = true }, and the sequence waits for seq:sample. It is also
-- watched.
--
--   batch:add { prompt = …, hold = true, on_token = function(event, seq)
--     if event.held then seq:sample { banned = { seq:best() } } end
--   end }
--
-- A sequence is an object with id, tag, ids, text, finish and error, and the methods below. Its
-- tag, given with the request, is visible to policies. A request with force = ids begins its
-- answers with these tokens; with keep_logprobs = false, logprobs are in events only.
--
-- Files (seq:save, batch:load) are written and read at once. When steps run on the engine thread,
-- another thread does that meanwhile, and the result comes later, to the callback. Batches of
-- several models share one engine thread and its compute threads when each later one is opened with
-- share = the first: they take turns, step by step.
local async = require "lib.async"
local best = require "engine.best"
local flights = require "engine.flight"
local inbox = require "engine.inbox"
local memory = require "engine.memory"
local perigee = require "perigee"
local requests = require "engine.request"
local scheduler = require "engine.scheduler"
local share = require "engine.share"
local text = require "lib.text"
local uv = require "luv"
local window = require "engine.window"

local Sequence = {}
Sequence.__index = Sequence
Sequence.__name = "perigee.Sequence"

local Batch = {}
Batch.__index = Batch
Batch.__name = "perigee.Batch"

-- ---- sequences --------------------------------------------------------------------------------

--- `like`: the request, or the sequence that it was forked from. The window has to know it, too.
local function new_sequence(batch, id, like)
  local seq = setmetatable({ batch = batch, id = id, ids = {}, text = "", pieces = {},
    on_token = like.on_token, on_done = like.on_done, tag = like.tag, watch = like.watch,
    request = like.request, logprobs = like.logprobs and {} }, Sequence)
  batch.live[id] = seq
  batch.alive = batch.alive + 1
  return seq
end

-- Every command about a sequence is a method: seq:cancel(), seq:force(ids), seq:bias{[id] = x},
-- seq:trim(n), seq:keep_logits(on), seq:preempt(). Those that need more are below.
for _, command in ipairs(perigee.batch.commands()) do
  local name = command.name
  if command.sequence then
    Sequence[name] = function(self, argument)
      return self.batch.core:command(name, self.id, argument)
    end
  end
end

--- A copy that continues with another seed. It has the tokens and text of the original so far.
function Sequence:fork(seed)
  local id, why = self.batch.core:command("fork", self.id, seed or math.random(0, math.maxinteger))
  if not id then return nil, why end
  local child = new_sequence(self.batch, id, self)
  self.batch.window:show(id, self.tag)
  table.move(self.ids, 1, #self.ids, 1, child.ids)
  table.move(self.pieces, 1, #self.pieces, 1, child.pieces)
  self.batch:pump()
  return child
end

--- Continues a held sequence; how = { bias = {[id] = number}, banned = ids, force = ids }, for this
--- draw alone and in addition to its own. Forced tokens follow without being held.
function Sequence:sample(how)
  local ok, why = self.batch.core:command("sample", self.id, how)
  if ok then self.batch:pump() end
  return ok, why
end

--- The logits of its last step as a new tensor, if they were kept or the sequence is held; else
--- nil. Entry i belongs to token id i - 1.
function Sequence:logits() return self.batch.core:logits(self.id) end

--- The token id with the highest logit of its last step; nil where seq:logits() is.
function Sequence:best()
  local logits = self:logits()
  return logits and math.tointeger(logits:argmax()) - 1
end

--- The result of a command about a file: at once, or on the engine thread later, to callback(ok,
--- err).
local function answer(batch, callback, result, why)
  if math.type(result) == "integer" then
    batch.tickets[result] = callback
    batch:pump() -- the loop waits for it
    return true
  end
  if callback then callback(result, why) end
  return result, why
end

local function check_callback(batch, callback)
  if callback == nil and batch.poll then
    error("a function for the result is needed on the engine thread", 3)
  end
  if callback ~= nil and type(callback) ~= "function" then
    error(("a function for the result expected, got %s"):format(type(callback)), 3)
  end
end

--- Writes its caches to a file; batch:load reads it into the prefix cache.
function Sequence:save(path, callback)
  check_callback(self.batch, callback)
  return answer(self.batch, callback, self.batch.core:command("save", self.id, path))
end

-- ---- events -----------------------------------------------------------------------------------

local function note(seq, e)
  if e.id then seq.ids[#seq.ids + 1] = e.id end
  if e.text ~= "" then seq.pieces[#seq.pieces + 1] = e.text end
  if e.id and seq.logprobs then
    seq.logprobs[#seq.logprobs + 1] = { id = e.id, logprob = e.logprob, top = e.top }
  end
  if not e.finish then return end
  seq.finish, seq.error, seq.stop = e.finish, e.error, e.stop
  seq.prompt_tokens, seq.completion_tokens = e.prompt_tokens, e.completion_tokens
  seq.cached_tokens, seq.forced_tokens = e.cached_tokens, e.forced_tokens
  seq.text = table.concat(seq.pieces)
end

--- Calls a function that may be nil. Returns the earlier error, else what this call raises.
local function call(failed, f, ...)
  if not f then return failed end
  local ok, why = pcall(f, ...)
  return failed or not ok and why or nil
end

--- Passes an event to its sequence; returns the first error of its callbacks.
local function tell(self, e)
  if e.ticket then
    local callback = self.tickets[e.ticket]
    self.tickets[e.ticket] = nil
    return call(nil, callback, not e.error or nil, e.error)
  end
  local seq = self.live[e.seq]
  if not seq then return nil end
  note(seq, e)
  if e.finish then
    self.live[e.seq] = nil
    self.window:drop(e.seq)
    self.alive = self.alive - 1
  end
  local failed = call(nil, seq.on_token, e, seq)
  if e.finish then failed = call(failed, seq.on_done, seq) end
  return failed
end

--- Passes events to their sequences, after those that still wait. If a callback raises, the other
--- sequences still get theirs; the first error is raised at the end.
local function dispatch(self, events)
  self.inbox:put(events)
  local _, failed = self.inbox:deliver()
  if failed then error(failed, 0) end
  return events
end

-- ---- opening ----------------------------------------------------------------------------------

local option_names = { "threads", "sequences", "step_tokens", "context", "cache_tokens", "kv_bits",
  "kv_block", "stride", "cache_bytes", "cache_folder", "cache_disk_bytes", "share", "media_bytes",
  "precision", "device" }

-- Defaults. Steps of fewer rows leave the matrix kernels idle, larger ones delay streams; fewer
-- sequences compute less at once, more make every stream slower; 4096 is for models that do not say
-- their context.
local STEP_TOKENS, SEQUENCES, CONTEXT = 512, 64, 4096

--- Tokens that the KV cache gets: all that the sequences may want, if the memory is there (half of
--- it without a budget: the weights want to stay in memory too). nil and why if not one block fits.
local function cache_tokens(model, o, budget)
  local want, block = o.sequences * o.context, memory.kv_block(o)
  local plan <close> = assert(model.graph:plan())
  local slots = o.sequences + 1 -- one for loading files; each may fill its last block in part
  local rows = math.min(o.step_tokens, o.context)
  local need = { state = slots * memory.state(model.graph),
    activations = memory.activations(plan, rows, { outputs = o.sequences }) }
  local function fits(tokens)
    need.kv = memory.kv(model.graph, tokens + slots * block, memory.kv_bits(o))
    return memory.check(need, { tokens = tokens, budget = budget, weights = model.weights.bytes })
  end
  if fits(budget and want or 2 * want) then return want end
  local least, most = block, want
  local ok, why = fits(least)
  if not ok then return nil, why end
  while most - least > block do
    local middle = (least + most) // 2
    if fits(budget and middle or 2 * middle) then least = middle else most = middle end
  end
  return least
end

--- Splits the options: those of perigee.batch.open, filled with the model's, and the rest.
local function split_options(model, options)
  local given = model.options or {}
  local o = { tokenizer = model:tokenizer() or nil, threads = given.threads,
    kv_bits = given.kv_bits, precision = given.precision, device = given.device,
    progress = given.progress, sequences = SEQUENCES, step_tokens = STEP_TOKENS,
    context = given.context or model.config.max_position_embeddings or CONTEXT }
  o.end_ids = text.sorted_keys(model.stops) -- after the tokenizer: they may come from it
  local rest = {}
  for key, value in pairs(options) do rest[key] = value end
  for _, key in ipairs(option_names) do
    if rest[key] ~= nil then o[key] = rest[key] end
    rest[key] = nil
  end
  if getmetatable(o.share) == Batch then
    o.share, o.threads = o.share.core, options.threads
  end
  return o, rest
end

--- Opens a batch over a model (weights, graph, tokenizer). Options: those of perigee.batch.open
--- except tokenizer and end_ids; policy; report (a function that is told about a failing policy);
--- share (a batch whose engine thread this one uses); and key_limit (a function that returns how
--- many sequences of one API key run while others wait, engine/share.lua; nil: any number).
local function open(model, options)
  local o, rest = split_options(model, options or {})
  local asks = scheduler.new(rest.policy, { report = rest.report })
  local key_limit = rest.key_limit
  rest.policy, rest.report, rest.key_limit = nil, nil, nil
  local unknown = next(rest)
  if unknown ~= nil then
    error(("unknown option '%s'%s"):format(tostring(unknown),
      text.suggestion(unknown, option_names)), 3)
  end
  local why, core
  local budget = model.options and model.options.memory
  if not o.cache_tokens then o.cache_tokens, why = cache_tokens(model, o, budget) end
  if not o.cache_tokens then return nil, why end
  o.cache_bytes = o.cache_bytes or memory.prefix(model.graph, o)
  core, why = perigee.batch.open(model.graph, o)
  if not core then return nil, why end
  local self = setmetatable({ model = model, core = core, live = {}, window = window.new(),
    alive = 0, scheduler = asks, slots = o.sequences, key_limit = key_limit,
    timing = scheduler.timing(), tickets = {}, handled = 0, seen_at = -1, lua = 0,
    asked = {}, lua_at = {}, lua_took = {}, lua_steps = 0, histogram = {} }, Batch)
  self.inbox = inbox.new(function(e) return tell(self, e) end)
  return self
end

-- ---- requests ---------------------------------------------------------------------------------

-- Keys of a request that the core does not know.
local own_keys = { on_token = "call", on_done = "call", tag = "any", watch = "boolean",
  force = "ids", keep_logprobs = "boolean" }

--- The first tokens of new sequences, before anything of them can have been computed. If they are
--- refused, the sequences end.
local function force_all(sequences, ids)
  for _, seq in ipairs(ids and sequences or {}) do
    local ok, why = seq:force(ids)
    if not ok then
      for _, other in ipairs(sequences) do other:cancel() end
      return nil, why
    end
  end
  return true
end

--- Adds a request; returns its n sequences (with best_of: answers, engine/best.lua), or nil and an
--- error. Unknown keys and wrong types raise.
function Batch:add(given)
  if best.chooses(given) then return best.add(self, given, own_keys) end
  local prepared = requests.prepare(self.model, given, own_keys)
  local first, n = self.core:command("add", prepared)
  if not first then return nil, n end
  local sequences, like = {}, { on_token = given.on_token, on_done = given.on_done, tag = given.tag,
    watch = given.watch or given.hold, request = {},
    logprobs = given.keep_logprobs ~= false and prepared.top_logprobs }
  for i = 1, n do sequences[i] = new_sequence(self, first + i - 1, like) end
  self.window:add(first, n, given.tag)
  local ok, why = force_all(sequences, given.force)
  if not ok then return nil, why end
  self:pump()
  return table.unpack(sequences)
end

-- ---- steps ------------------------------------------------------------------------------------

local TRACED = 256 -- as many steps as the core keeps

--- One more step in the counters: its time, by powers of two of a millisecond, and Lua's share of
--- it.
local function count(self, t, seconds)
  local bucket = 2 ^ math.max(-3, math.ceil(math.log(seconds * 1e3, 2)))
  self.histogram[bucket] = (self.histogram[bucket] or 0) + 1
  local at = self.lua_steps % TRACED + 1
  self.lua_steps = self.lua_steps + 1
  self.lua_at[at], self.lua_took[at] = t.at, table.remove(self.asked, 1) or 0
end

--- Looks at the steps since the last time.
local function observe(self)
  for _, t in ipairs(self.core:trace(4, self.seen_at)) do
    self.seen_at = t.at
    local seconds = t.schedule + t.compute + t.sample
    count(self, t, seconds)
    self.timing:observe(seconds, t.prefill > 0 and t.tokens - t.decode or 0, t.decode)
  end
end

--- The sequences, with their tags. `infos`: tables to fill, by id.
local function sequences_of(self, infos)
  local sequences = self.core:sequences(infos)
  for i = 1, #sequences do
    local info = sequences[i]
    local seq = self.live[info.id]
    if seq then info.tag = seq.tag end
  end
  return sequences
end

--- The sequences that the policy sees. Each has one table for its whole life, refilled for each
--- step, since there are many of both.
local function seen_sequences(self)
  local sequences
  repeat sequences = sequences_of(self, self.window.infos) until not self.window:look(sequences)
  return sequences
end

--- Asks the policy about sequences as batch:sequences() lists them.
local function schedule(self, sequences)
  local started = uv.hrtime()
  observe(self)
  local limit = self.key_limit and self.key_limit()
  if limit then
    local surplus
    sequences, surplus = share.apply(sequences, { slots = self.slots, limit = limit })
    for _, id in ipairs(surplus or {}) do self.core:command("preempt", id) end
  end
  local grants, preempted = self.scheduler:grants(sequences, { tokens = self.core.step_tokens,
    timing = self.timing, free = self.core:room(), slots = self.slots })
  for id in pairs(preempted) do self.core:command("preempt", id) end
  local took = (uv.hrtime() - started) * 1e-9
  self.lua, self.asked[#self.asked % 4 + 1] = self.lua + took, took
  return grants
end

--- One step in the foreground. grants: a list of {sequence or id, tokens}; nil: the policy's.
--- Returns the events and how many sequences ran, or nil and an error.
function Batch:step(grants)
  if not grants then
    grants = schedule(self, seen_sequences(self))
  else
    local plain = {}
    for i, g in ipairs(grants) do
      local id = type(g[1]) == "table" and g[1].id or g[1]
      if self.live[id] then self.window:show(id) end
      plain[i] = { id, g[2] }
    end
    grants = plain
  end
  local events, ran, before = self.core:step(grants)
  if not events then
    dispatch(self, before)
    return nil, ran
  end
  return dispatch(self, events), ran
end

--- Why no sequence can run.
local function stuck(self)
  for _, info in ipairs(self.core:sequences()) do
    if info.state == "held" then
      local why = ("sequence %d is held, and nothing samples it"):format(info.id)
      return perigee.error("argument", why)
    end
  end
  return perigee.error("argument", ("%d sequences are left, and none can run"):format(self.alive))
end

--- Steps until every sequence is done; nil and an error if only held sequences are left.
function Batch:run()
  while self.alive > 0 do
    local events, ran = self:step()
    if not events then return nil, ran end
    if ran == 0 and #events == 0 then return nil, stuck(self) end
  end
  return true
end

-- ---- on the engine thread ---------------------------------------------------------------------

--- The sequences as they will be after the steps in flight.
local function expected_sequences(self)
  local core = self.core
  local sequences, completed
  repeat
    completed = core:completed()
    sequences = seen_sequences(self)
  until core:completed() == completed
  self.flight:forget(completed)
  self.flight:expect(sequences)
  return sequences
end

--- The last step that a sequence has events of. One that was never granted anything gets its first
--- token in the step that ends the prompt of its request, which another one was granted.
local function last_step(seq) return seq.granted or seq.request.granted or 0 end

--- The sequences that may be granted something: not watched ones with a step in flight or events
--- that have not been handled.
local function offered(self, sequences)
  local out, n = {}, 0
  for i = 1, #sequences do
    local seq = self.live[sequences[i].id]
    if not (seq.watch and last_step(seq) > self.handled) then
      n = n + 1
      out[n] = sequences[i]
    end
  end
  return out
end

local function remember(self, grants)
  local number = self.flight:add(grants)
  for _, g in ipairs(grants) do
    local seq = self.live[g[1]]
    if seq then
      seq.granted, seq.granted_at = number, seq.granted_at or uv.hrtime()
      seq.request.granted = number
    end
  end
end

--- Submits the next step if there is something to run and none is queued. Not while callbacks run:
--- their commands belong into the next step.
function Batch:pump()
  if not self.poll or self.telling then return end
  if self.alive > 0 or next(self.tickets) then self.poll:ref() else self.poll:unref() end
  if self.alive == 0 or self.core:pending() or #self.flight >= 2 then return end
  local grants = schedule(self, offered(self, expected_sequences(self)))
  if #grants == 0 then return end
  local ok, why = self.core:submit(grants)
  if not ok then error(why, 0) end
  remember(self, grants)
end

--- Tells events for a slice of time. Those that are left go on in the next turn of the loop; when
--- none is, the next step is submitted.
local function go_on(self)
  local done, failed = self.inbox:deliver(async.SLICE_NS)
  if not self.poll then return end
  if not done then
    if not self.idle:is_active() then self.idle:start(function() go_on(self) end) end
    return
  end
  self.idle:stop()
  self.telling, self.handled = nil, self.drained
  self:pump()
  if failed then error(failed, 0) end
end

--- The engine thread has events. Not before all earlier ones are told: it waits for the loop then,
--- so that events do not pile up.
local function on_wake(self)
  if not self.poll or self.telling then return end
  local events, completed, why = self.core:drain()
  self.drained = completed
  self.flight:forget(completed)
  self.telling = true
  self.inbox:put(events)
  local ok, failed = pcall(go_on, self)
  if why then error(why, 0) end
  if not ok then error(failed, 0) end
end

--- From now on steps run on the engine thread, and sequences get their events from the loop.
function Batch:start(given)
  if given then self.scheduler:reload(given) end
  dispatch(self, self.core:drain())
  local fd, why = self.core:start()
  if not fd then return nil, why end
  self.flight, self.handled, self.drained = flights.new(self.slots), 0, 0
  for _, seq in pairs(self.live) do seq.granted, seq.request.granted = nil, nil end
  self.poll, self.idle = uv.new_poll(fd), uv.new_idle()
  self.poll:start("r", function() on_wake(self) end)
  self:pump()
  return true
end

--- Stops listening to the engine thread.
local function deafen(self)
  if not self.poll then return end
  self.poll:stop()
  self.poll:close()
  self.idle:close()
  self.poll, self.idle, self.telling = nil, nil, nil
end

--- Back to the foreground after the running step. Events that were not dispatched are now.
function Batch:stop()
  deafen(self)
  local events, why = self.core:stop()
  dispatch(self, events)
  if why then return nil, why end
  return true
end

-- ---- state ------------------------------------------------------------------------------------

--- The sequences that are not done, oldest first: { id =, state =, tag =, … }.
function Batch:sequences() return sequences_of(self) end

--- Counters of the batch, with lua (seconds in policies) and histogram (steps by their time: {[ms]
--- = how many took at most ms and more than half of it}).
function Batch:stats()
  observe(self)
  local stats = self.core:stats()
  stats.lua, stats.histogram = self.lua, {}
  for ms, n in pairs(self.histogram) do stats.histogram[ms] = n end
  return stats
end

--- The last steps, with the time of Lua for each.
function Batch:trace(most)
  observe(self)
  local trace = self.core:trace(most)
  local took = {}
  for i, at in ipairs(self.lua_at) do took[at] = self.lua_took[i] end
  for _, t in ipairs(trace) do t.lua = took[t.at] or 0 end
  return trace
end

function Batch:room() return self.core:room() end

--- What the prefix cache has of a prompt (text or ids) in memory is never evicted. Options: off (it
--- may be evicted again), salt; media, positions and rope_delta as in batch:add. Returns how many
--- tokens that are; on the engine thread, where it happens between two steps, true.
function Batch:pin(prompt, options)
  local pin = { prompt = self.model:ids(prompt) }
  for key, value in pairs(options or {}) do pin[key] = value end
  return self.core:command("pin", pin)
end

--- Reads a file of seq:save into the prefix cache.
function Batch:load(path, callback)
  check_callback(self, callback)
  return answer(self, callback, self.core:command("load", path))
end

--- Stops listening. Events that came are told; commands that still wait for an answer get none.
--- Returns the first error of a callback.
local function leave(self)
  deafen(self)
  local _, failed = self.inbox:deliver()
  local tickets = self.tickets
  self.tickets = {}
  for _, callback in pairs(tickets) do
    pcall(callback, nil, perigee.error("cancelled", "the batch was closed"))
  end
  return failed
end

function Batch:close()
  local failed = leave(self)
  self.core:close()
  if failed then error(failed, 0) end
end

--- Closes without blocking the loop: the running step ends and unsaved prefixes are written on
--- another thread. Then `done` is called.
function Batch:retire(done)
  local failed = leave(self)
  local ok, why = self.core:retire(done)
  if failed then error(failed, 0) end
  return ok, why
end

Batch.__close = Batch.close

return { open = open }
