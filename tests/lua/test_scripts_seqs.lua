-- Scripts and sequences together, on moonlet: policies that die and templates that change while
-- answers are written, and scripts that sit on sequences. Every answer that no script means to
-- change is the one that moonlet always gives.
local chat = require "chat"
local harness = require "harness"
local perigee = require "perigee"
local scheduler = require "engine.scheduler"
local sandbox = require "hooks.sandbox"
local sites = require "sites"
local uv = require "luv"

local test = harness.test

local forced = ...

local answers = {}
do
  local f = assert(io.open "examples/moonlet/answers.json")
  for _, answer in ipairs(assert(perigee.json.decode(f:read "a"))) do
    if #answer.grids == 0 and not answer.tools and not answer.chat_template_kwargs then
      answers[#answers + 1] = answer
    end
  end
  f:close()
end

local function answer_of(name)
  for _, answer in ipairs(answers) do
    if answer.name == name then return answer end
  end
end

--- moonlet with a batch that is not started yet.
local function open(options)
  local model = assert(perigee.open("examples/moonlet", { threads = 2 }))
  local batch = assert(model:batch { sequences = options and options.sequences or 16,
    cache_tokens = 8192, cache_bytes = 4 << 20,
    report = function() end })
  local entry = { name = "moonlet", path = "examples/moonlet", model = model, batch = batch,
    tok = model:tokenizer(),
    words = assert(chat.open "examples/moonlet"), state = "ready" }
  return setmetatable(entry, { __close = function()
    batch:close()
    model:close()
  end })
end

--- Adds the question to the batch as a request of these scripts would; done(text) gets the answer.
local function ask(entry, gen, answer, done)
  local words = assert(gen:words(entry))
  local prompt = assert(words:prompt { messages = answer.messages })
  local ids = assert(words:encode(entry.tok, prompt))
  assert(entry.batch:add { prompt = ids, temperature = 0, max_tokens = 160,
    on_done = function(seq) done(seq.text, seq) end })
end

local function run_until(finished)
  local timer, deadline = uv.new_timer(), uv.hrtime() + harness.LIMIT_MS * 1e6
  timer:start(0, 5, function() end)
  while not finished() and uv.hrtime() < deadline do uv.run "once" end
  timer:close()
end

-- ---- policies -----------------------------------------------------------------------------------

local GOOD = "return { schedule = function(step) step:fill() end }"

--- Broken from the first step on: never serves.
local BROKEN = {
  "return function(step) this is no Lua", "return { schedule = function() error { odd = true } "
    .. "end }",
  "return { schedule = function() while true do end end }",
  "local function f(x) return 1 + f(x + 1) end return { schedule = function() f(1) end }",
  "return { schedule = function() local t = {} while true do t[#t + 1] = ('x'):rep(1 << 20) .. #t "
    .. "end end }",
  "return { schedule = function(step) step:give(99999, 5) return 7 end }", "while true do end",
    "return 5", "",
}

--- Fine while it is tried out, broken later.
local function later(body)
  return ("local n = 0 return { schedule = function(step) n = n + 1 if n > 4 then %s end "
    .. "step:fill() end }"):format(body)
end

local LATER = {
  later "error 'late'", later "while true do end",
    later "local function f() return 1 + f() end f()",
  later "local t = {} while true do t[#t + 1] = ('x'):rep(1 << 20) .. #t end", later "return",
  later("for _, seq in ipairs(step.list) do seq.left, seq.state = 1 << 40, 'x' end "
    .. "step.left = 1 << 40"),
  later "step.grants = { { 1, 1 << 40 }, 'x', { {}, {} } } return",
  later "step.list, step.sequences, step.preempted = nil",
  later "for _, seq in ipairs(step:running()) do step:preempt(seq) end return",
}

test("the policy dies and comes back while sequences write", function(t)
  if forced then return end
  local rounds = { BROKEN, LATER }
  for _, sources in ipairs(rounds) do
    local entry <close> = open()
    local app <close> = sites.open({ ["policy/mine.lua"] = GOOD },
      { forced = forced, models = { entry },
      config = { policy = "mine" } })
    -- until the site is closed; most of these wait for their deadline
    sandbox.LOAD_MS, scheduler.DEADLINE_MS = 50, 10
    assert(entry.batch:start(app.scripts:policy()))
    local left, wrong, turn, changes = 0, {}, 0, 0
    local asked = 24
    local at = 0
    local function more()
      while left < 12 and at < asked do
        at, left = at + 1, left + 1
        local answer = answers[(at - 1) % #answers + 1]
        ask(entry, app.scripts:current(), answer, function(text)
          left = left - 1
          if text ~= answer.text then wrong[#wrong + 1] = { answer.name, text } end
          more()
        end)
      end
    end
    more()
    local timer = uv.new_timer()
    timer:start(10, 30, function()
      turn = turn + 1
      local source = turn % 3 == 0 and GOOD .. "\n-- " .. turn or sources[turn % #sources + 1]
      app.write("policy/mine.lua", source)
      if app.scripts:reload() then changes = changes + 1 end
    end)
    run_until(function() return left == 0 and at == asked and turn > #sources end)
    timer:close()
    t.eq(left, 0, "sequences that never finished")
    t.eq(wrong, {})
    t.ok(changes > 0, "versions")
    assert(entry.batch:stop())
  end
end)

test("a policy's failures are seen, and a new one starts afresh", function(t)
  local entry <close> = open()
  local app <close> = sites.open({ ["policy/mine.lua"] = later "error 'late'" },
    { forced = forced, models = { entry },
    config = { policy = "mine" } })
  entry.batch.scheduler:reload(app.scripts:policy())
  local text
  ask(entry, app.scripts:current(), answer_of "count", function(said) text = said end)
  assert(entry.batch:run())
  t.eq(text, answer_of("count").text)
  local status = app.scripts:status()
  t.eq({ status.policy, status.scripts[1].kind, status.scripts[1].strikes[1].off },
    { "mine", "policy", true })
  t.match(status.scripts[1].strikes[1].text, "late")
  app.write("policy/mine.lua", GOOD)
  assert(app.scripts:reload())
  t.eq(entry.batch.scheduler.breaker.recent, 0)
  t.eq(app.scripts:status().scripts[1].strikes, {})
end)

test("policies that ship, and what they do with many sequences", function(t)
  if forced then return end
  for _, name in ipairs { "fifo", "lanes", "fair", "cache_first" } do
    local entry <close> = open { sequences = 4 }
    local app <close> = sites.open({}, { forced = forced, models = { entry },
      config = { policy = name } })
    entry.batch.scheduler:reload(app.scripts:policy())
    local wrong = {}
    for i, answer in ipairs(answers) do
      if i > 9 then break end
      ask(entry, app.scripts:current(), answer, function(text)
        if text ~= answer.text then wrong[#wrong + 1] = { answer.name, text } end
      end)
    end
    assert(entry.batch:run())
    t.eq(wrong, {}, name)
    t.eq(entry.batch.scheduler.breaker.last, nil, name)
  end
end)

-- ---- templates ----------------------------------------------------------------------------------

test("templates change while sequences write: each answer is that of its own", function(t)
  if forced then return end
  local f = assert(io.open "examples/moonlet/chat_template.jinja")
  local source = f:read "a"
  f:close()
  local entry <close> = open()
  local app <close> = sites.open({}, { forced = forced, models = { entry } })
  assert(entry.batch:start(app.scripts:policy()))
  local texts = { source, "{# another #}" .. source, "{% for x in %}", source .. "{{ '' }}",
    "shows nothing" }
  local left, wrong, kept, rounds = 0, {}, 0, 3 * #texts
  for round = 1, rounds do
    app.write("templates/moonlet.jinja", texts[(round - 1) % #texts + 1])
    if not app.scripts:reload() then kept = kept + 1 end
    local gen, answer = app.scripts:current():retain(), answers[(round - 1) % #answers + 1]
    left = left + 1
    ask(entry, gen, answer, function(text)
      left = left - 1
      gen:release()
      if text ~= answer.text then wrong[#wrong + 1] = { answer.name, text } end
    end)
    for _ = 1, 3 do uv.run "nowait" end
  end
  run_until(function() return left == 0 end)
  t.eq(left, 0)
  t.eq(wrong, {})
  t.eq(kept, 6, "versions that were not taken")
  t.eq(#app.scripts:status().alive, 1)
  assert(entry.batch:stop())
end)

-- ---- scripts on sequences -----------------------------------------------------------------------

--- The answer to a question with a script on its seq; foreground or on the engine thread.
local function with_script(t, name, o)
  local entry <close> = open()
  local app <close> = sites.open({ ["hooks/mine.lua"] = o.source },
    { forced = forced, models = { entry } })
  local gen, answer = app.scripts:current(), answer_of(name)
  local req = { id = "x", attached = { { name = "mine", params = o.params } } }
  local list = assert(gen:attached(req))
  local text, finish = "", nil
  local request = { prompt = answer.prompt_ids, temperature = 0, max_tokens = o.max_tokens or 40,
    on_token = function(event, seq) if seq.watcher:token(event, seq) then text = text
      .. event.text end end,
    on_done = function(seq)
      seq.watcher:done(seq)
      finish = seq.finish
    end }
  local watchers = gen.watch(req, list, request, { tok = entry.tok, words = entry.words })
  if o.thread then assert(entry.batch:start(app.scripts:policy())) end
  watchers[1]:join(assert(entry.batch:add(request)))
  if o.thread then
    run_until(function() return finish end)
    assert(entry.batch:stop())
  else
    assert(entry.batch:run())
  end
  t.ok(finish, "finished")
  local notes = {} -- of the script: policies and reloads are logged too
  for _, note in ipairs(app.notes) do
    if note:find("script mine", 1, true) then notes[#notes + 1] = note end
  end
  return text, finish, notes
end

local COUNT = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10."

local on_rows = {
  { "stops before a token", "token = function(_, _, text) if text:find '5' then return 'stop' end "
    .. "end", "1, 2, 3, 4, " },
  { "stops by itself", "token = function(seq) if #seq.ids == 4 then seq:stop() end end", nil },
  { "lets go", [[token = function(seq, _, _, self)
    self.state.n = (self.state.n or 0) + 1
    assert(self.state.n == 1)
    return 'detach'
  end]], COUNT },
  { "looks only", "logits = function(seq, logits) assert(logits[logits:argmax()] == "
    .. "logits:top(3)[1][2]) end", COUNT },
  { "fails at every token", "token = function() error 'no' end", COUNT, 2 },
  { "fails at every draw", "logits = function() error 'no' end", COUNT, 2 },
  { "fails at the start",
    "start = function() error 'no' end, token = function(seq) seq:stop() end", COUNT, 1 },
  { "bans the best once", "logits = function(seq, logits) if #seq.ids == 0 then logits:ban { "
    .. "logits:argmax() } end end", false },
  { "bias for one draw",
    "logits = function(seq, logits) if #seq.ids == 0 then logits:bias { [logits:argmax()] = -1000 "
      .. "} end end", false },
  { "an id that does not exist", "logits = function(seq, logits) logits:ban { -5, 1 << 40 } end",
    COUNT, 2 },
  { "forces an id that does not exist", "start = function(seq) seq:force { 99999 } end", COUNT, 1 },
  { "a bias that is not a number", "logits = function(seq, logits) logits:bias { [5] = 0 / 0 } end",
    COUNT, 2 },
  { "an infinite bias is a ban", "logits = function(seq, logits) if #seq.ids == 0 then "
    .. "logits:bias { [logits:argmax()] = -math.huge } end end", false },
  { "an infinite bias for good",
    "start = function(seq) seq:bias { [seq.vocab:encode('5')[1]] = -math.huge } end", false },
  { "bans all tokens", "logits = function(seq, logits) local all = {} for i = 1, seq.vocab.size do "
    .. "all[i] = i - 1 end logits:ban(all) end", nil, 2 },
  { "closes what it is lent", "start = function(seq) seq.vocab:close() end", COUNT, 1 },
  { "bias for good", "start = function(seq) seq:bias { [seq.vocab:encode('5')[1]] = -1000 } end",
    false },
  { "forces the beginning", "start = function(seq) seq:force(seq.vocab:encode('Well: ')) end",
    "^Well: " },
  { "forces the beginning of a seq that draws", [[
    start = function(seq) seq:force(seq.vocab:encode('Well: ')) end,
    logits = function() end]], "^Well: " },
  { "forces in the middle", "token = function(seq) if #seq.ids == 2 then "
    .. "seq:force(seq.vocab:encode(' stop')) end end", " stop" },
}

test("scripts on sequences: what they do holds from the next token on", function(t)
  if forced then return end
  for _, case in ipairs(on_rows) do
    local first
    for _, thread in ipairs { false, true } do
      local text, finish, notes = with_script(t, "count", { source = "return { " .. case[2]
        .. " }", thread = thread })
      local what = case[1] .. (thread and " on the engine thread" or "")
      if case[3] == false then
        t.ok(text ~= COUNT, what)
      elseif case[3] == COUNT then
        t.eq(text, COUNT, what)
      elseif case[3] then
        t.match(text, case[3], what)
      end
      if case[1]:find "^stops" then t.eq(finish, "stop", what) end
      t.eq(#notes, case[4] or 0, what .. ": " .. table.concat(notes, ", "))
      first = first or text
      t.eq(text, first, what .. ": as in the foreground")
    end
  end
end)

test("names and parameters of scripts on sequences are checked", function(t)
  local app <close> = sites.open({
    ["hooks/mine.lua"] = "return { params = { n = 'integer', word = { 'string', 'x' } }, token = "
      .. "function() end }",
    ["hooks/plain.lua"] = "return { request = function() end }",
  }, { forced = forced })
  local gen = app.scripts:current()
  local function attach(name, params)
    return gen:attached { attached = { { name = name, params = params } } }
  end
  t.eq(attach("mine", { n = 3 })[1].params, { n = 3, word = "x" })
  for _, case in ipairs {
    { "nothing", {}, "unknown script 'nothing' (requests may name: mine)" },
    { "plain", {}, "unknown script 'plain'" },
    { "mine", {}, "needs the parameter 'n' (integer)" },
    { "mine", { n = 1.5 }, "must be of type integer, got 1.5" },
    { "mine", { n = 1, wrod = "y" }, "has no parameter 'wrod', did you mean 'word'?" },
  } do
    local list, why = attach(case[1], case[2])
    t.eq(list, nil)
    if not why:find(case[3], 1, true) then
      t.fail(("got %s, want %s in it"):format(why, case[3]))
    end
  end
end)
