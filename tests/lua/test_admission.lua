-- pipeline.admission on a batch that is made up here: predictions, and every refusal at its limit.
local admission = require "pipeline.admission"
local test = require("harness").test
local uv = require "luv"

--- A batch of these sequences with caches of `all` tokens.
local function batch_of(sequences, all)
  return { alive = #sequences, now = sequences, core = { context = 100 },
    sequences = function(self) return self.now end,
    room = function() return 7, all or 200 end,
    stats = function()
      return { prefill_tokens = 30, decode_tokens = 10, schedule = 1.0, compute = 2.0,
        sample = 1.0, other = 99 } -- 0.1 s for each token
    end }
end

local function seq(id, state, key, more)
  local info = { id = id, state = state, prompt = 20, tag = { key = key, lane = "l" } }
  for k, v in pairs(more or {}) do info[k] = v end
  return info
end

local function told(err)
  return err and { err.status, err.code, err.message, err.retry_after, err.field } or "ok"
end

test("predictions follow recent answers", function(t)
  local batch = batch_of {}
  t.eq(admission.predict(batch, 10, {}), 10 + 256)
  t.eq(admission.predict(batch, 10, { n = 3, max_tokens = 4 }), 22)
  t.eq(admission.predict(batch, 10, { max_tokens = 1000 }), 266)
  admission.joined(batch, 1, 50)
  t.eq(batch.ledger[1], 50)
  admission.left(batch, 1, 56)
  t.eq(batch.ledger[1], nil)
  t.near(batch.ledger.answer, 0.9 * 256 + 0.1 * 56, 1e-9)
  t.eq(admission.predict(batch, 1, {}), 1 + 236)
  admission.left(batch, 1)
  t.near(batch.ledger.answer, 236, 1e-9)
end)

test("the queue as hooks see it", function(t)
  local batch = batch_of { seq(1, "decode", "a"), seq(2, "prefill", "a"), seq(3, "waiting", "a"),
    seq(4, "waiting", "b"), seq(5, "waiting", "b", { follows = true }),
    seq(6, "held", nil, { tag = 5 }) }
  admission.joined(batch, 3, 55)
  local queue = admission.queue(batch)
  t.eq({ queue.running, queue.waiting, queue.waiting_tokens, queue.free_tokens, queue.all_tokens },
    { 3, 2, 75, 7, 200 })
  t.eq({ queue:count(), queue:count {}, queue:count { key = "a" }, queue:count { lane = "l" },
    queue:count { key = "a", lane = "x" } }, { 6, 6, 3, 5, 0 })
  t.eq(queue.eta(), 8) -- 75 tokens, 0.1 s each
  admission.joined(batch, 3, 5)
  batch.now = {}
  t.eq(admission.queue(batch).eta(), 1) -- never less than a second
  admission.left(batch, 3)
  batch.now = { seq(1, "waiting", "a", { prompt = 100000 }) }
  t.eq(admission.queue(batch).eta(), 60) -- nor more than a minute
  batch.stats = function()
    return { prefill_tokens = 0, decode_tokens = 0, schedule = 1, compute = 1, sample = 1 }
  end
  t.eq(admission.queue(batch).eta(), 1)
end)

test("sequences are listed once in a turn, unless some join or leave", function(t)
  local batch, now, lists = batch_of { seq(1, "waiting", "a"), seq(2, "waiting", "a") }, 5, 0
  local real = batch.sequences
  function batch.sequences(self)
    lists = lists + 1
    return real(self)
  end
  t.patch(uv, "now", function() return now end)
  local app = { config = { queue = { requests = 2, memory = 4, sequences = 1 } } }
  local function refused()
    local early = admission.early(app, { batch = batch }, "a")
    local late = admission.late(app, { batch = batch }, { key = "a", tokens = 1, sequences = 1 })
    t.eq({ early.status, late.status }, { 429, 429 })
    return lists
  end
  local got = {}
  for i = 1, 100 do got[i] = refused() end
  t.eq({ got[1], got[100] }, { 1, 1 })
  admission.queue(batch).waiting = 0 -- a hook's copy
  t.eq(admission.queue(batch).waiting, 2)
  admission.joined(batch, 3, 5)
  got[1] = refused()
  admission.left(batch, 3)
  got[2] = refused()
  now = 6
  t.eq({ got[1], got[2], refused() }, { 2, 3, 4 })
end)

test("too many prompts of a key wait", function(t)
  local function early(sequences, most, more)
    local app = { config = { queue = { requests = most }, drain_s = 9 } }
    for k, v in pairs(more or {}) do app[k] = v end
    return told(admission.early(app, { batch = batch_of(sequences) }, "a"))
  end
  local two = { seq(1, "waiting", "a"), seq(2, "waiting", "a"), seq(3, "waiting", "b"),
    seq(4, "waiting", "a", { follows = true }), seq(5, "decode", "a") }
  t.eq(early(two, 3), "ok")
  t.eq(early(two, 2),
    { 429, "queue_full", "the queue is full: 2 requests are waiting, the limit is 2", 6 })
  t.eq(early({ seq(1, "decode", "a") }, 0), "ok") -- nothing waits
  t.eq(early({ seq(1, "waiting", "b") }, 0), "ok")
  t.eq(early({}, 5, { draining = true }), { 503, "draining", "the server is shutting down", 9 })
  local app = { draining = true, config = { queue = {} } }
  t.eq(told(admission.early(app, {}, "a"))[4], 1)
end)

test("too many requests with pictures are being prepared", function(t)
  local function pictures(live, most)
    return told(admission.pictures({ live = live, config = { queue = { requests = most } } },
      { batch = batch_of {} }, "a"))
  end
  local live = { { stop = true, req = { key = "a" } }, { stop = true, req = { key = "a" } },
    { stop = true, req = { key = "b" } }, { req = { key = "a" } } }
  t.eq(pictures(live, 3), "ok")
  t.eq(pictures(live, 2), { 429, "queue_full",
    "2 requests with pictures are being prepared, the limit is 2", 1 })
  t.eq(pictures({}, 0), "ok")
end)

test("what can never fit", function(t)
  local entry = { batch = batch_of({}, 200) }
  t.eq(admission.most(entry), 99)
  t.eq(admission.most { context = 1000, batch = entry.batch }, 200)
  t.eq(told(admission.bytes(10, 320, "prompt")), "ok")
  t.eq(told(admission.bytes(10, 321, "prompt")), { 400, "context_length_exceeded",
    "prompt has 321 bytes; there is room for 10 tokens of at most 32 bytes each", nil, "prompt" })
  t.eq(told(admission.fits(entry, 99, "prompt")), "ok")
  t.eq(told(admission.fits(entry, 100, "messages")), { 400, "context_length_exceeded",
    "the conversation has 100 tokens and does not fit: this model's maximum context length is 100 "
      .. "tokens and one must be left for the answer", nil, "messages" })
  local large = { context = 1000, batch = entry.batch }
  t.eq(told(admission.fits(large, 200, "prompt")), "ok")
  t.eq(told(admission.fits(large, 201, "prompt", true)), { 400, "context_length_exceeded",
    "the prompt has at least 201 tokens and does not fit: the caches of this server hold 200 "
      .. "tokens", nil, "prompt" })
end)

test("what does not fit now", function(t)
  local batch = batch_of({ seq(1, "waiting", "a"), seq(2, "decode", "a"), seq(3, "waiting", "b") },
    100)
  local function late(need, queue)
    local err, seen = admission.late({ config = { queue = queue } }, { batch = batch }, need)
    return err and told(err) or seen.waiting
  end
  t.eq(late({ key = "a", tokens = 1, sequences = 1 }, { memory = 4.0, sequences = 3 }), 2)
  t.eq(late({ key = "a", tokens = 1, sequences = 2 }, { memory = 4.0, sequences = 3 }), { 429,
    "queue_full", "2 answers are in progress and 2 more were requested, the limit is 3", 4 })
  t.eq(late({ key = "c", tokens = 1, sequences = 9 }, { memory = 4.0, sequences = 3 }), 2)
  t.eq(late({ key = "a", tokens = 1, sequences = 9 }, { memory = 4.0 }), 2)
  t.eq(late({ key = "a", tokens = 130, sequences = 1 }, { memory = 1.5 }), 2)
  t.eq(late({ key = "a", tokens = 131, sequences = 1 }, { memory = 1.5 }), { 503, "overloaded",
    "waiting requests need about 20 tokens and this one 131, the limit is 150", 4 })
  t.eq(late({ key = "c", tokens = 1000, sequences = 1 }, { memory = 1.5 }), 2) -- none waits
end)
