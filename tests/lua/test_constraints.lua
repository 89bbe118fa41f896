-- Constrained answers of moonlet: 30 at once are those of one by one, in the foreground and on the
-- engine thread, among answers that are free; every complete one is a text of its grammar.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

local few = ... or os.getenv "SAN" -- a collection at every step, or a sanitizer: slow

local grammar = perigee.grammar

local JSON = [[
root   ::= object
object ::= "{" ( pair ( ", " pair )* )? "}"
pair   ::= string ": " value
value  ::= string | number | object | "[" ( value ( ", " value )* )? "]" | "true" | "null"
string ::= "\"" [a-z ]{0,12} "\""
number ::= "-"? [0-9]{1,3}
]]

--- { grammar, may end, further fields }
local function grammars()
  local list = {}
  local function add(made, more) list[#list + 1] = { assert(made), more or {} } end
  for i = 1, few and 1 or 6 do
    add(grammar.regex(("(yes|no|maybe){%d,%d}"):format(i, i + 2)))
    add(grammar.regex(([[\{"name": "[a-z]{1,%d}", "age": [0-9]{1,2}\}]]):format(i + 3)))
    add(grammar.choice { "red" .. i, "green" .. i, "greenish" .. i, "blue" .. i })
    add(grammar.gbnf(JSON), { temperature = 0.3 * i, seed = i })
    add(grammar.lark(([[
start: item ("," item)*
item: /[a-c]+/ "=" /[0-9]{%d}/
]]):format(i)), { temperature = 1, seed = 7 * i, top_p = 0.9, repetition_penalty = 1.1 })
  end
  return list
end

local function request_of(i, case)
  local request = { prompt = ("Number %d: "):format(i), max_tokens = 40, temperature = 0,
    phases = { { grammar = case[1] } } }
  for key, value in pairs(case[2]) do request[key] = value end
  return request
end

local function free_request(i)
  return { prompt = ("Tell me %d stories about"):format(i), max_tokens = 20, temperature = 1,
    seed = i }
end

local function open() return assert(perigee.open("examples/moonlet", { threads = 2 })) end

local function answer_of(seq)
  return { ids = seq.ids, text = seq.text, finish = seq.finish, forced = seq.forced_tokens }
end

local function alone(model, request)
  local batch <close> = assert(model:batch { sequences = 1, cache_bytes = 0 })
  local seq = assert(batch:add(request))
  assert(batch:run())
  return answer_of(seq)
end

--- Whether the text is one of the grammar, or the beginning of one.
local function fits(made, text, complete)
  local m <close> = made:matcher()
  if m:feed(text) ~= #text then return false end
  return not complete or m.complete
end

test("the tokens of masks are built for the first request that has phases, or before", function(t)
  local model <close> = open()
  local g <close> = assert(grammar.choice { "yes" })
  local function batch() return assert(model:batch { sequences = 1, cache_bytes = 0 }) end
  local one, other = batch(), batch()
  local first, second = one.core.tokens, other.core.tokens
  local before = first.memory
  assert(one:add(free_request(1)))
  assert(one:run())
  t.eq(first.memory, before)
  assert(one:add { prompt = "Say", max_tokens = 5, phases = { { grammar = g } } })
  assert(one:run())
  t.ok(first.memory > 1000 + before, first.memory)
  one:close()
  t.eq(second.memory, before)
  t.eq(second:build(t.expect(function(built)
    t.eq({ built, second.memory }, { true, first.memory })
    first:close()
    second:close()
    other:close()
  end)), true)
end)

test("30 constrained answers at once are those of one by one", function(t)
  local model <close> = open()
  local cases, alones = grammars(), {}
  for i, case in ipairs(cases) do alones[i] = alone(model, request_of(i, case)) end
  local frees = {}
  for i = 1, 4 do frees[i] = alone(model, free_request(i)) end
  local complete, forced = 0, 0
  for i, a in ipairs(alones) do
    t.eq(fits(cases[i][1], a.text, a.finish == "stop"), true, a.text)
    complete = complete + (a.finish == "stop" and 1 or 0)
    forced = forced + a.forced
  end
  t.eq(complete > #cases / 2, true)
  t.eq(forced > 0, true)
  for _, engine in ipairs { false, true } do
    local batch <close> = assert(model:batch { sequences = 40 })
    local seqs, others = {}, {}
    if engine then assert(batch:start()) end
    for i, case in ipairs(cases) do
      seqs[i] = assert(batch:add(request_of(i, case)))
      if i <= 4 then others[i] = assert(batch:add(free_request(i))) end
    end
    if engine then
      while batch.alive > 0 do uv.run "once" end
      batch:stop()
    else
      assert(batch:run())
    end
    for i, seq in ipairs(seqs) do t.eq(answer_of(seq), alones[i], "answer " .. i) end
    for i, a in ipairs(frees) do
      if others[i] then t.eq(answer_of(others[i]), a, "free answer " .. i) end
    end
  end
end)

test("choices, seeds, stop strings and limits beside a grammar", function(t)
  local model <close> = open()
  local list = assert(grammar.regex "(one|two|three)( (one|two|three))*")
  local batch <close> = assert(model:batch { sequences = 8 })
  local function add(more)
    more.prompt, more.phases = "Count: ", { { grammar = list } }
    more.max_tokens = more.max_tokens or 12
    return more
  end
  local seqs = { batch:add(add { n = 3, temperature = 1, seed = 5 }) }
  local stopped = assert(batch:add(add { stop = " ", temperature = 0 }))
  local logged = assert(batch:add(add { top_logprobs = 2, temperature = 0 }))
  assert(batch:run())
  t.eq(#seqs, 3)
  for i, seq in ipairs(seqs) do
    t.eq(fits(list, seq.text), true, seq.text)
    t.eq(alone(model, add { temperature = 1, seed = 4 + i }).ids, seq.ids)
  end
  t.eq(stopped.text:find " ", nil)
  t.eq(fits(list, stopped.text, true), true)
  t.eq(#logged.logprobs, #logged.ids)
  t.eq(logged.forced_tokens, 0) -- each token has its logits
end)

test("text that must come needs no steps", function(t)
  local model <close> = open()
  local made = assert(grammar.regex [[(a|b): the same words for everybody, whatever it was (1|2)]])
  local batch <close> = assert(model:batch { sequences = 4 })
  local events = {}
  local fast = assert(batch:add { prompt = "x", max_tokens = 60, temperature = 0,
    phases = { { grammar = made } },
    on_token = function(e) events[#events + 1] = e end })
  assert(batch:run())
  local steps = batch.core:stats().steps
  local slow = assert(batch:add { prompt = "x", max_tokens = 60, temperature = 0,
    fast_forward = false, phases = { { grammar = made } } })
  assert(batch:run())
  t.eq(fast.finish, "stop")
  t.eq(fits(made, fast.text, true), true)
  t.eq(fits(made, slow.text, true), true)
  t.eq(slow.forced_tokens, 0)
  t.eq(fast.forced_tokens > 5, true)
  t.eq(steps < #fast.ids, true)
  t.eq(batch.core:stats().forced_tokens, fast.forced_tokens)
  local forced, text = 0, {}
  for _, e in ipairs(events) do
    forced, text[#text + 1] = forced + (e.forced and 1 or 0), e.text
  end
  t.eq(forced, fast.forced_tokens)
  t.eq(table.concat(text), fast.text)
  t.eq(model:tokenizer():encode(fast.text), fast.ids) -- as the tokenizer writes it
end)

test("free text up to a mark, then a grammar, again and again", function(t)
  local model <close> = open()
  local call = assert(grammar.regex "[0-9]{2}!")
  local batch <close> = assert(model:batch { sequences = 4 })
  local seq = assert(batch:add { prompt = "Once upon a time", max_tokens = 80, temperature = 1,
    seed = 3, ignore_eos = true,
    phases = { { marks = { "e", "a" } }, { grammar = call, back = 1 } } })
  assert(batch:run())
  local calls, rest = 0, seq.text
  while true do
    local at = rest:find "[ea]"
    if not at then break end
    local head = rest:sub(at + 1, at + 3)
    t.eq(fits(call, head, #head == 3), true, head)
    calls, rest = calls + 1, rest:sub(at + 4)
  end
  t.eq(calls > 3, true)
end)

test("what phases must be", function(t)
  local model <close> = open()
  local batch <close> = assert(model:batch { sequences = 2 })
  local made = assert(grammar.regex "a")
  local function refused(phases, why)
    local ok, seq, err = pcall(batch.add, batch, { prompt = "x", phases = phases })
    t.eq(tostring(ok and err or seq):find(why, 1, true) ~= nil, true, tostring(ok and err or seq))
  end
  refused(3, "phases must be a list of phases, got number")
  refused({ 3 }, "phases[1] must be a table, got number")
  refused({ { grammer = made } }, "grammar")
  refused({ { grammar = "x" } }, "perigee.Grammar")
  refused({ { marks = "x" } }, "phases[1].marks must be a list of token ids and strings")
  refused({ { marks = { 1.5 } } }, "phases[1].marks[1] must be a token id or a string, got 1.5")
  refused({ { marks = { -1 } } }, "phases[1].marks[1] must be a token id or a string, got -1")
  assert(batch:add { prompt = "x", max_tokens = 1, -- the first id is one
    phases = { { marks = { 0 } }, { grammar = made, back = 1 } } })
  refused({ { marks = { "" } } }, "a mark must have 1 to 64 bytes, got 0")
  refused({ { marks = { 1 << 30 } } }, "phases: token id must be between 0 and")
  refused({ { grammar = made, ends = true } }, "phases[1] has a grammar")
  refused({ { grammar = made, back = 2 } }, "phases[1].back must be between 1 and 1, got 2")
  local many = {}
  for i = 1, 17 do many[i] = { grammar = made } end
  refused(many, "phases has 17 entries, the limit is 16")
end)
