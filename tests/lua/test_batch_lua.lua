-- engine.batch, engine.share and engine.preload on a core, keys and weights that are made up here:
-- defaults of a batch, which steps are submitted, what callbacks get, counters, and who is
-- preempted for whom.
local async = require "lib.async"
local batches = require "engine.batch"
local memory = require "engine.memory"
local perigee = require "perigee"
local preload = require "engine.preload"
local progress = require "ui.progress"
local requests = require "engine.request"
local share = require "engine.share"
local test = require("harness").test
local uv = require "luv"

-- ---- a core -------------------------------------------------------------------------------------

--- A core that does what it is told: core.infos are its sequences, core.events the next ones.
local function core_of()
  local core = { infos = {}, events = {}, traced = {}, told = {}, next_id = 1, step_tokens = 512,
    done = 0, submitted = {}, is_pending = false }
  function core.command(_, name, ...)
    core.told[#core.told + 1] = { name, ... }
    if core.refuse == name then return nil, "refused" end
    if name == "add" then
      local first, n = core.next_id, (...).n or 1
      core.next_id = first + n
      return first, n
    end
    return core.result ~= nil and core.result or true
  end
  function core.sequences() return core.infos end
  function core.step(_, grants)
    core.granted = grants
    if core.broken then return nil, core.broken, core.events end
    return core.events, core.ran or #grants
  end
  function core.trace(_, most, since)
    local list = {}
    for _, t in ipairs(core.traced) do
      if not since or t.at > since then list[#list + 1] = t end
    end
    return table.move(list, math.max(1, #list - most + 1), #list, 1, {})
  end
  function core.stats() return { steps = #core.traced } end
  function core.room() return 100, 200 end
  function core.completed() return core.done end
  function core.pending() return core.is_pending end
  function core.submit(_, grants)
    core.submitted[#core.submitted + 1] = grants
    return true
  end
  function core.drain()
    local events = core.events
    core.events = {}
    return events, core.done
  end
  function core.start() return 5 end
  function core.stop() return (core.drain()) end
  function core.close() core.closed = true end
  return core
end

local function model_of(more)
  local model = { options = {}, config = {}, stops = { [7] = true, [3] = true }, graph = {},
    generation_config = {}, tokenizer = function() return "tok" end,
    ids = function(_, prompt) return prompt end }
  for key, value in pairs(more or {}) do model[key] = value end
  return model
end

--- Opens a batch over a made up core; returns it, the core and the options that the core got.
local function open(options, model)
  local real, core, given = perigee.batch.open, core_of(), nil
  perigee.batch.open = function(_, o)
    given = o
    return core
  end
  options = options or {}
  options.cache_tokens = options.cache_tokens or 1000
  options.cache_bytes = options.cache_bytes or 0
  local ok, batch = pcall(batches.open, model or model_of(), options)
  perigee.batch.open = real
  if not ok then error(batch, 0) end
  return batch, core, given
end

test("defaults of a batch, and whose options win", function(t)
  local _, _, o = open()
  t.eq({ o.sequences, o.step_tokens, o.context, o.end_ids, o.tokenizer, o.threads, o.kv_bits },
    { 64, 512, 4096, { 3, 7 }, "tok" })
  _, _, o = open({}, model_of { config = { max_position_embeddings = 77 },
    options = { threads = 3, kv_bits = 8 } })
  t.eq({ o.context, o.threads, o.kv_bits }, { 77, 3, 8 })
  _, _, o = open({ kv_bits = 4, threads = 1, sequences = 2, step_tokens = 9, context = 5 },
    model_of { config = { max_position_embeddings = 77 }, options = { context = 50, kv_bits = 8 } })
  t.eq({ o.context, o.threads, o.kv_bits, o.sequences, o.step_tokens }, { 5, 1, 4, 2, 9 })
  _, _, o = open({}, model_of { config = { max_position_embeddings = 77 },
    options = { context = 50 } })
  t.eq(o.context, 50)
  local first, core = open()
  _, _, o = open({ share = first }, model_of { options = { threads = 3 } })
  t.eq({ o.share == core, o.threads }, { true }) -- the threads are the first's
  t.raises(function() open { sequence = 5 } end,
    "unknown option 'sequence', did you mean 'sequences'?")
end)

test("a batch is as large as the memory allows, down to one block", function(t)
  local model <close> = assert(perigee.open("examples/moonlet", { threads = 1 }))
  local function tokens(budget, o)
    model.options.memory = budget
    o = o or {}
    o.sequences, o.context = 2, 512
    local batch, why = model:batch(o)
    if not batch then return nil, tostring(why) end
    local _, all = batch:room()
    batch:close()
    return all
  end
  local all = tokens(1 << 33)
  t.eq(all, 2 * 512 + 3 * 32) -- with a block more for each sequence, and for loading
  -- The least budget with which everything fits: one byte less, and it does not.
  local low, high = 1 << 20, 1 << 33
  while high - low > 1 do
    local middle = (low + high) // 2
    if (tokens(middle) or 0) == all then high = middle else low = middle end
  end
  local less = tokens(low)
  t.ok(less < all and less >= all - 64, less)
  local none, why = tokens(1 << 20)
  t.eq(none, nil)
  t.match(why, "caches of 32 tokens")
  t.match(select(2, tokens(1 << 20, { precision = "fast" })), "caches of 64 tokens")
  t.match(select(2, tokens(1 << 20, { kv_block = 16 })), "caches of 16 tokens")
end)

test("by default the prefix cache holds a whole context, if there is memory for it", function(t)
  local model <close> = assert(perigee.open("examples/moonlet", { threads = 1 }))
  local available
  t.patch(perigee.sys, "machine", function()
    return { memory_available = available, memory_limit = 0 }
  end)
  local function prefix(context, free)
    available = free
    return memory.prefix(model.graph, { context = context, kv_block = 64, kv_bits = 16 })
  end
  local token = memory.kv(model.graph, 1, 16)
  t.eq(prefix(8192, 1 << 40), 1 << 30) -- less would do
  t.eq(prefix(1 << 24, 1 << 40), ((1 << 24) + 64) * token)
  t.eq(prefix(1 << 24, 12 << 30), 3 << 30)
  t.eq(prefix(1 << 24, 1 << 20), 1 << 30)
  local given = {}
  t.patch(perigee.batch, "open", function(_, o)
    given[#given + 1] = o.cache_bytes
    return nil, "not now"
  end)
  available = 1 << 40
  model:batch {}
  model:batch { cache_bytes = 5 }
  t.eq(given, { 1 << 30, 5 })
end)

-- ---- requests -----------------------------------------------------------------------------------

test("sequences of a request, and the first tokens that are forced", function(t)
  local batch, core = open()
  local one, two = batch:add { prompt = { 1 }, n = 2, tag = "x", force = { 4 } }
  t.eq({ one.id, two.id, one.tag, batch.alive, one.watch, one.logprobs }, { 1, 2, "x", 2 })
  t.eq({ core.told[2], core.told[3] }, { { "force", 1, { 4 } }, { "force", 2, { 4 } } })
  core.refuse = "force"
  t.eq({ batch:add { prompt = { 1 }, n = 2, force = { 4 } } }, { nil, "refused" })
  t.eq({ core.told[#core.told - 1], core.told[#core.told] }, { { "cancel", 3 }, { "cancel", 4 } })
  core.refuse = "add"
  t.eq({ batch:add { prompt = { 1 } } }, { nil, "refused" })
  core.refuse = nil
  t.eq({ batch:add({ prompt = { 1 }, hold = true }).watch,
    batch:add({ prompt = { 1 }, watch = true }).watch,
    batch:add({ prompt = { 1 }, top_logprobs = 1 }).logprobs,
    batch:add({ prompt = { 1 }, top_logprobs = 1, keep_logprobs = false }).logprobs },
    { true, true, {}, false })
end)

test("requests: defaults of the model, stop strings, logprobs and bad words", function(t)
  local tok = { encode = function(_, text) return { text:byte(1, -1) } end }
  local model = model_of { tokenizer = function() return tok end,
    generation_config = { temperature = 0.5, top_k = 9, top_p = "x" } }
  local function prepared(fields)
    fields.prompt = fields.prompt or { 1 }
    return requests.prepare(model, fields)
  end
  local out = prepared { top_k = 3, stop = "a", stop_token_ids = { 5 }, seed = 8,
    logit_bias = { [1] = 2.0 }, bad_words = { "b", { 7 }, { 98 } } }
  t.eq({ out.temperature, out.top_k, out.top_p, out.stop, out.stop_ids, out.seed, out.logit_bias,
    out.bad_words, out.stop_token_ids, out.best_of }, { 0.5, 3, nil, { "a" }, { 5 }, 8,
    { [1] = 2.0 }, { { 98 }, { 32, 98 }, { 7 } } })
  t.eq({ prepared({ logprobs = true }).top_logprobs, prepared({ logprobs = 4 }).top_logprobs,
    prepared({ logprobs = false }).top_logprobs,
    prepared({ logprobs = 4, top_logprobs = 2 }).top_logprobs }, { 0, 4, nil, 2 })
  t.eq({ prepared({ stop_ids = { 1 }, stop_token_ids = { 2 } }).stop_ids, prepared({}).bad_words,
    prepared({}).logprobs }, { { 1 } })
  local seed = prepared({}).seed
  t.ok(math.type(seed) == "integer" and seed >= 0 and seed ~= prepared({}).seed)
  model.generation_config = { do_sample = false, temperature = 0.5 }
  t.eq({ prepared({}).temperature, prepared({ temperature = 0.7 }).temperature }, { 0, 0.7 })
  for _, case in ipairs {
    { { stop = 5 }, "stop must be a string or a list of strings, got number" },
    { { stop = { "a", 5 } }, "stop[2] must be a string, got 5" },
    { { logit_bias = 5 }, "logit_bias must be a table {[token id] = number}, got number" },
    { { logit_bias = { [1.5] = 2 } }, "logit_bias must map token ids to numbers, got [1.5] = 2" },
    { { logit_bias = { "a" } }, "logit_bias must map token ids to numbers, got [1] = a" },
    { { bad_words = "x" }, "bad_words must be a list, got string" },
    { { bad_words = { "a", "" } }, "bad_words[2] must be a string or a list of token ids, got " },
    { { bad_words = { { "a" } } }, "bad_words[1] must be a token id, got a" },
    { { logprobs = "x" }, "logprobs must be a boolean or an integer, got string" },
    { { top_k = 1.5 }, "top_k must be an integer, got 1.5" },
    { { top_k = "1" }, "top_k must be an integer, got string" },
    { { temperature = "1" }, "temperature must be a number, got string" },
    { { stop_ids = 5 }, "stop_ids must be a list of token ids, got number" },
    { { stop_ids = { 1, 2.5 } }, "stop_ids[2] must be a token id, got 2.5" },
    { { prompt = 5 }, "prompt must be a string or a list of token ids, got number" },
    { { prompt = { "a" } }, "prompt[1] must be a token id, got a" },
    { { topk = 5 }, "unknown key 'topk', did you mean 'top_k'?" },
  } do
    t.raises(function() prepared(case[1]) end, case[2])
  end
  t.raises(function() requests.check {} end, "prompt is missing")
end)

-- ---- events and steps ---------------------------------------------------------------------------

test("events go to their sequences, whatever a callback raises", function(t)
  local batch, core = open()
  local said = {}
  local function callbacks(name)
    return { prompt = { 1 }, top_logprobs = 0,
      on_token = function(e, seq)
        said[#said + 1] = ("%s %s %d"):format(name, e.text, seq.id)
        if e.text == "bad" then error(name .. " raised", 0) end
      end, on_done = function(seq) said[#said + 1] = name .. " done " .. seq.text end }
  end
  local a, b = batch:add(callbacks "a"), batch:add(callbacks "b")
  core.infos = { { id = 1, state = "decode", left = 1 }, { id = 2, state = "decode", left = 1 } }
  core.events = { { seq = 1, id = 8, text = "bad", logprob = -1.0 },
    { seq = 2, id = 9, text = "", logprob = -2.0, top = { 5 } }, { seq = 9, text = "x" },
    { seq = 2, text = "end", finish = "stop", stop = "s", prompt_tokens = 1, completion_tokens = 2,
      cached_tokens = 3 } }
  t.raises(function() batch:step { { a, 1 }, { 2, 5 } } end, "a raised")
  t.eq(core.granted, { { 1, 1 }, { 2, 5 } })
  t.eq(said, { "a bad 1", "b  2", "b end 2", "b done end" })
  t.eq({ a.ids, a.text, a.logprobs, b.ids, b.logprobs, b.finish, b.stop, b.prompt_tokens,
    b.completion_tokens, b.cached_tokens, batch.alive, batch.live[2] },
    { { 8 }, "", { { id = 8, logprob = -1.0 } }, { 9 }, { { id = 9, logprob = -2.0, top = { 5 } } },
      "stop", "s", 1, 2, 3, 1 })
  -- A step that fails: its events come first.
  core.events, core.broken = { { seq = 1, text = "z", finish = "error", error = "why" } }, "broken"
  t.eq({ batch:step {} }, { nil, "broken" })
  t.eq({ a.finish, a.error, a.text, batch.alive }, { "error", "why", "badz", 0 })
end)

test("a batch that cannot go on says why", function(t)
  local batch, core = open()
  batch:add { prompt = { 1 } }
  core.infos, core.ran = { { id = 1, state = "held", left = 0 } }, 0
  local ok, why = batch:run()
  t.eq({ ok, why.message }, { nil, "sequence 1 is held, and nothing samples it" })
  core.infos = { { id = 1, state = "waiting", left = 0 } }
  ok, why = batch:run()
  t.eq({ ok, why.message }, { nil, "1 sequences are left, and none can run" })
  core.events = { { seq = 1, text = "", finish = "stop" } }
  t.eq(batch:run(), true)
end)

test("counters: times of steps by powers of two, and Lua's share of the last 256", function(t)
  local batch, core = open()
  local function step(at, ms)
    core.traced[#core.traced + 1] = { at = at, schedule = ms / 4000, compute = ms / 2000,
      sample = ms / 4000, tokens = 5, decode = 1, prefill = 0 }
  end
  for i, ms in ipairs { 1, 1.5, 2, 2.5, 0.01 } do
    step(i, ms)
    batch:stats() -- the core is asked about the last four
  end
  t.eq(batch:stats().histogram, { [1.0] = 1, [2.0] = 2, [4.0] = 1, [0.125] = 1 })
  t.eq({ batch.lua_steps, batch:stats().lua, batch:stats().steps }, { 5, 0, 5 })
  for i = 6, 260 do
    step(i, 1)
    batch.asked[1] = i / 1000
    batch:stats()
  end
  t.eq({ #batch.lua_at, batch.lua_at[256], batch.lua_at[1], batch.lua_at[4], batch.lua_at[5] },
    { 256, 256, 257, 260, 5 })
  local trace = batch:trace(2)
  t.eq({ trace[1].lua, trace[2].lua, #trace }, { 0.259, 0.26, 2 })
  t.eq(batch:trace(300)[1].lua, 0) -- forgotten
end)

-- ---- on the engine thread -----------------------------------------------------------------------

--- A started batch, with a poll that is made up. event(): the engine thread has something; turn():
--- the loop turns, nil when nobody waits for that; wake(): both, until all is done.
local function started(options)
  local batch, core = open(options)
  local real, poll, idle = uv.new_poll, { refs = 0 }, {}
  uv.new_poll = function(fd)
    poll.fd = fd
    return poll
  end
  local real_idle = uv.new_idle
  uv.new_idle = function() return idle end
  function idle.start(_, fn) poll.turn = fn end
  function idle.stop() poll.turn = nil end
  function idle.is_active() return poll.turn ~= nil end
  function idle.close() poll.turn = nil end
  function poll.start(_, _, fn) poll.event = fn end
  function poll.wake()
    poll.event()
    while poll.turn do poll.turn() end
  end
  function poll.ref() poll.held = true end
  function poll.unref() poll.held = false end
  function poll.stop() end
  function poll.close() poll.closed = true end
  assert(batch:start())
  uv.new_poll, uv.new_idle = real, real_idle
  return batch, core, poll
end

test("two steps are on their way at a time", function(t)
  local batch, core, poll = started()
  t.eq({ poll.fd, poll.held, #core.submitted }, { 5, false, 0 })
  core.infos = { { id = 1, state = "waiting", left = 600, prompt = 600 } }
  batch:add { prompt = { 1 } }
  t.eq({ core.submitted, poll.held }, { { { { 1, 512 } } }, true })
  batch:pump() -- what was granted counts as computed
  t.eq({ core.submitted[2], #batch.flight }, { { { 1, 88 } }, 2 })
  core.infos[1].left, core.infos[1].state = 600, "waiting"
  batch:pump()
  t.eq(#core.submitted, 2)
  core.done = 1
  core.infos[1].left, core.infos[1].state = 88, "prefill"
  poll.wake()
  t.eq({ #core.submitted, core.submitted[3], batch.handled }, { 3, { { 1, 1 } }, 1 })
  core.is_pending = true
  core.done = 3
  core.infos[1].left, core.infos[1].state = 1, "decode"
  poll.wake()
  t.eq({ #core.submitted, #batch.flight }, { 3, 0 })
  core.is_pending = false
  core.events = { { seq = 1, text = "", finish = "stop" } }
  core.infos = {}
  poll.wake()
  t.eq({ batch.alive, poll.held, #core.submitted }, { 0, false, 3 })
  batch:stop()
  t.eq({ poll.closed, batch.poll }, { true })
  batch:pump() -- nothing: steps are called for in the foreground
  t.eq(#core.submitted, 3)
end)

test("a watched sequence waits until its events are handled", function(t)
  local batch, core, poll = started()
  core.infos = { { id = 1, state = "decode", left = 1 }, { id = 2, state = "decode", left = 1 } }
  core.is_pending = true
  local watched = batch:add { prompt = { 1 }, watch = true }
  local plain = batch:add { prompt = { 1 } }
  core.is_pending = false
  batch:pump()
  t.eq(core.submitted[1], { { 1, 1 }, { 2, 1 } })
  t.eq({ watched.granted, plain.granted, math.type(watched.granted_at) ~= nil }, { 1, 1, true })
  batch:pump()
  t.eq(core.submitted[2], { { 2, 1 } })
  local first = watched.granted_at
  core.done = 1
  poll.wake()
  t.eq({ core.submitted[3], watched.granted, watched.granted_at == first },
    { { { 1, 1 }, { 2, 1 } }, 3, true })
  local drain = core.drain
  function core.drain() -- a step ends just now, without another wake-up
    core.done = 3
    return drain()
  end
  poll.wake()
  t.eq({ core.submitted[4], watched.granted }, { { { 1, 1 }, { 2, 1 } }, 4 })
end)

test("watched answers of one prompt wait for the step that ended it", function(t)
  local batch, core, poll = started()
  core.infos = { { id = 1, state = "prefill", left = 1 } }
  core.is_pending = true
  local first, second = batch:add { prompt = { 1 }, n = 2, watch = true }
  core.is_pending = false
  batch:pump()
  t.eq({ core.submitted[1], first.granted, second.granted }, { { { 1, 1 } }, 1 })
  core.infos = { { id = 1, state = "decode", left = 1 }, { id = 2, state = "decode", left = 1 } }
  core.done = 1 -- both have a token, and nobody was told
  batch:pump()
  t.eq(#core.submitted, 1)
  poll.wake()
  t.eq(core.submitted[2], { { 1, 1 }, { 2, 1 } })
end)

test("commands of callbacks belong into the next step; an error does not stop it", function(t)
  local batch, core, poll = started()
  core.infos = { { id = 1, state = "decode", left = 1 } }
  local within
  batch:add { prompt = { 1 }, on_token = function()
    batch:pump()
    within = #core.submitted
    error("raised", 0)
  end }
  t.eq(#core.submitted, 1)
  core.done, core.events = 1, { { seq = 1, id = 1, text = "x" } }
  t.raises(poll.wake, "raised")
  t.eq({ within, #core.submitted, batch.telling }, { 1, 2 })
end)

--- A started batch of three sequences whose events are told one in a turn, and the list of what
--- they were told. on_token: callbacks by sequence.
local function slow(t, on_token)
  t.patch(async, "SLICE_NS", -1)
  local batch, core, poll = started()
  local said = {}
  for id = 1, 3 do
    core.infos[id] = { id = id, state = "decode", left = 1 }
    batch:add { prompt = { 1 }, on_token = function(e, seq)
      said[#said + 1] = id .. e.text
      if (on_token or {})[id] then on_token[id](batch, seq) end
    end, on_done = function() said[#said + 1] = id .. " done" end }
  end
  core.done = 1
  core.events = { { seq = 1, id = 8, text = "a" }, { seq = 2, id = 8, text = "a" },
    { seq = 3, id = 8, text = "a" } }
  poll.event()
  return batch, core, poll, said
end

test("events that take long are told in several turns of the loop", function(t)
  local batch, core, poll, said = slow(t)
  local submitted = #core.submitted
  t.eq({ said, batch.handled }, { { "1a" }, 0 })
  core.done = 2
  core.events = { { seq = 1, id = 9, text = "b" }, { seq = 2, text = "", finish = "stop" } }
  core.infos = { { id = 1, state = "decode", left = 1 } }
  poll.event() -- later events wait where they are
  t.eq({ said, #core.events }, { { "1a" }, 2 })
  poll.turn()
  batch:pump() -- nor is a step submitted before all are told
  t.eq({ said, batch.handled, #core.submitted }, { { "1a", "2a" }, 0, submitted })
  poll.turn()
  t.eq({ said, batch.handled, #core.submitted, poll.turn },
    { { "1a", "2a", "3a" }, 1, submitted + 1 })
  poll.event()
  poll.turn()
  t.eq(said, { "1a", "2a", "3a", "1b", "2", "2 done" })
  t.eq({ batch.handled, batch.alive, poll.turn }, { 2, 2 })
end)

test("an error of a callback is raised when the events of all are told", function(t)
  local _, _, poll, said = slow(t, { function() error("raised", 0) end })
  poll.turn()
  t.raises(function() poll.turn() end, "raised")
  t.eq({ said, poll.turn }, { { "1a", "2a", "3a" } })
end)

test("a batch that is stopped or closed between two turns tells what came", function(t)
  for _, name in ipairs { "stop", "close", "retire" } do
    local batch, core, poll, said = slow(t)
    function core.retire() return true end
    core.events = name == "stop" and { { seq = 1, id = 9, text = "b" } } or {}
    batch[name](batch)
    t.eq({ said, poll.turn, poll.closed, batch.telling },
      { { "1a", "2a", "3a", name == "stop" and "1b" or nil }, nil, true })
  end
end)

test("a callback may close, stop, cancel and fork in the middle", function(t)
  for _, name in ipairs { "stop", "close" } do
    local batch, _, poll, said = slow(t, { [2] = function(batch) batch[name](batch) end })
    poll.turn()
    t.eq({ said, poll.turn, batch.telling }, { { "1a", "2a", "3a" } })
  end
  local child
  local batch, core, poll, said = slow(t, { [2] = function(batch, seq)
    if child then return end
    batch.core.result, batch.core.infos = 4, {}
    child = seq:fork(1)
    seq:cancel()
  end })
  poll.turn()
  t.eq({ child.id, child.ids, core.told[#core.told] }, { 4, { 8 }, { "cancel", 2 } })
  poll.turn()
  core.events = { { seq = 2, text = "", finish = "cancel" }, { seq = 4, id = 9, text = "b" } }
  poll.event()
  poll.turn()
  t.eq({ said, child.ids, batch.alive }, { { "1a", "2a", "3a", "2", "2 done", "2b" }, { 8, 9 }, 3 })
end)

test("files are answered later, and when the batch closes", function(t)
  local batch, core, poll = started()
  local got = {}
  local function callback(name)
    return function(ok, err) got[#got + 1] = { name, ok, err and (err.message or err) } end
  end
  t.raises(function() batch:load "f" end, "a function for the result is needed")
  t.raises(function() batch:load("f", 5) end, "a function for the result expected, got number")
  core.result = 77 -- a ticket
  t.eq({ batch:load("f", callback "a"), poll.held }, { true, true })
  core.result = 78
  batch:load("g", callback "b")
  core.result = 79
  batch:load("h", callback "c")
  core.events = { { ticket = 77, text = "" }, { ticket = 78, error = "no file", text = "" } }
  poll.wake()
  t.eq({ got, (next(batch.tickets)) }, { { { "a", true }, { "b", nil, "no file" } }, 79 })
  batch:close()
  t.eq({ got[3], core.closed, poll.closed }, { { "c", nil, "the batch was closed" }, true, true })
  batch, core = open()
  core.result = true
  t.eq({ batch:load "f", batch:load("f", callback "d"), got[4] }, { true, true, { "d", true } })
end)

test("a limit of sequences by key is asked for at every step", function(t)
  local limit
  local batch, core = open { sequences = 2, key_limit = function() return limit end }
  for i = 1, 3 do batch:add { prompt = { 1 }, tag = { key = i < 3 and "a" or "b" } } end
  local function step()
    core.infos, core.told = {}, {}
    for i = 1, 3 do
      core.infos[i] = { id = i, state = i < 3 and "decode" or "waiting", left = 1, prompt = 1 }
    end
    batch:step()
    return core.told, core.granted
  end
  t.eq(#step(), 0)
  limit = 1
  local told, granted = step()
  t.eq({ told, granted[1][1] }, { { { "preempt", 2 } }, 1 })
end)

-- ---- shares -------------------------------------------------------------------------------------

test("who makes room for whom", function(t)
  --- "a a b. c.": sequences by key, the oldest first; a dot waits, ' follows, + is held.
  local function apply(text, limit, slots)
    local list = {}
    for key, mark in text:gmatch "(%a)([.'+]?)" do
      local state = mark == "." and "waiting" or mark == "'" and "waiting" or mark == "+" and "held"
        or #list % 2 == 0 and "decode" or "prefill"
      list[#list + 1] = { id = #list + 1, state = state, follows = mark == "'",
        tag = key ~= "x" and { key = key } or 5 }
    end
    local out, preempted = share.apply(list, { limit = limit, slots = slots or 4 })
    local left = {}
    for i, info in ipairs(out) do left[i] = info.id end
    return { left, preempted }
  end
  t.eq(apply("aaaa", 2), { { 1, 2, 3, 4 } }) -- nobody waits
  t.eq(apply("aaaab'", 2), { { 1, 2, 3, 4, 5 } }) -- a choice that follows another is not waiting
  t.eq(apply("aaaab.", 2), { { 1, 2, 3, 5 }, { 4 } }) -- the youngest goes
  t.eq(apply("aaaab.b.", 2), { { 1, 2, 5, 6 }, { 4, 3 } })
  t.eq(apply("aaaab.b.b.", 2), { { 1, 2, 5, 6, 7 }, { 4, 3 } }) -- b may have two
  t.eq(apply("aaaab.a.", 2), { { 1, 2, 3, 5 }, { 4 } }) -- and no more of a come
  t.eq(apply("aab.a.", 2, 2), { { 1, 2, 3 }, {} }) -- at the limit: none goes, none comes
  t.eq(apply("aab.a.", 3, 4), { { 1, 2, 3, 4 } }) -- below it
  t.eq(apply("aaab.", 2, 4), { { 1, 2, 3, 4 }, {} }) -- a slot is free
  t.eq(apply("aaaaa.", 2), { { 1, 2, 3, 4, 5 } }) -- its own
  t.eq(apply("aabb a.c.", 1, 4), { { 1, 3, 6 }, { 4, 2 } }) -- both are beyond
  t.eq(apply("aaa+b.", 2, 3), { { 1, 3, 4 }, { 2 } }) -- a held one is not taken
  t.eq(apply("xxxxb.", 2), { { 1, 2, 3, 5 }, { 4 } }) -- those without a key are one
  t.eq(apply("aaabbb c.", 3, 6), { { 1, 2, 3, 4, 5, 6, 7 }, {} })
  local many, waits = ("a"):rep(20), ("b."):rep(20)
  t.eq(#apply(many .. waits, 10, 20)[2], 8) -- not all at once
end)

-- ---- preloading ---------------------------------------------------------------------------------

test("weights that fit are read and packed with bars", function(t)
  local new, machine = progress.new, perigee.sys.machine
  local visible, updates, available = true, {}, 1 << 40
  progress.new = function(label, total, after_ms)
    updates = { label, total, after_ms }
    local bar = { visible = visible, update = function(_, done, said)
      updates[#updates + 1] = { done, said }
    end, close = function() updates.closed = true end }
    return setmetatable(bar, { __close = bar.close })
  end
  perigee.sys.machine = function() return { memory_available = available } end
  local model = { options = {}, weights = { bytes = 300, count = 2,
    touch = function(_, i) return i * 100 end } }
  t.eq({ preload(model), updates }, { 300, { "loading", 300, 300, { 100, "100 B of 300 B" },
    { 300, "300 B of 300 B" }, closed = true } })
  for _ = 1, 2 do -- the second batch has a bar of its own
    updates = {}
    model.options.progress(1024, 4096)
    model.options.progress(2048, 4096)
    t.eq(updates, { "packing", 4096, 300, { 1024, "1.0 KiB of 4.0 KiB" },
      { 2048, "2.0 KiB of 4.0 KiB" } })
    model.options.progress(4096, 4096)
    t.eq(updates.closed, true)
  end
  available = 299
  t.eq(preload(model), 0)
  available, visible = 300, false
  t.eq(preload(model), 0)
  progress.new, perigee.sys.machine = new, machine
end)

test("chat reads the weights before it opens a batch", function(t)
  local name = "engine.preload"
  package.loaded[name] = function(model) error(("%d bytes"):format(model.weights.bytes), 0) end
  local command = require "cmd.chat"
  package.loaded[name], package.loaded["cmd.chat"] = preload, nil
  local ok, why = pcall(command.run, { "examples/moonlet" })
  t.eq(ok, false)
  t.match(why, "^%d%d%d+ bytes$")
end)
