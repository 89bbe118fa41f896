-- best_of: the best of several answers by their mean logprob, judged here anew from answers that
-- were made alone.
local perigee = require "perigee"
local test = require("harness").test

local function open(name) return assert(perigee.open("tests/golden/" .. name, { threads = 2 })) end

local PROMPT = { 5, 9, 3, 77, 20, 41 }

local function request(more)
  local out = { prompt = PROMPT, max_tokens = 7, temperature = 1, seed = 30, ignore_eos = true }
  for k, v in pairs(more or {}) do out[k] = v end
  return out
end

--- Answers of `of` requests that run one after the other, the best first; and how many tokens all
--- of them have.
local function judged(model, of, more)
  local list, made = {}, 0
  for i = 1, of do
    local batch <close> = assert(model:batch { sequences = 1, cache_bytes = 0 })
    local r = request(more)
    r.seed, r.top_logprobs = r.seed + i - 1, 0
    local seq = assert(batch:add(r))
    assert(batch:run())
    local sum = 0
    for _, token in ipairs(seq.logprobs) do sum = sum + token.logprob end
    list[i] = { ids = seq.ids, mean = sum / #seq.ids, at = i }
    made = made + #seq.ids
  end
  table.sort(list, function(a, b)
    if a.mean ~= b.mean then return a.mean > b.mean end
    return a.at < b.at
  end)
  return list, made
end

for _, name in ipairs { "llama", "qwen3_5" } do
  test("the n best of best_of: " .. name, function(t)
    local model <close> = open(name)
    local want, made = judged(model, 6)
    t.eq(want[1].mean > want[6].mean, true)
    for _, options in ipairs { { sequences = 8 }, { sequences = 2, step_tokens = 3 } } do
      local batch <close> = assert(model:batch(options))
      local done = {}
      local answers = { batch:add(request { n = 2, best_of = 6,
        on_done = function(a) done[#done + 1] = a end }) }
      t.eq(#answers, 2)
      t.eq({ answers[1].finish, answers[1].text, #answers[1].ids }, { nil, "", 0 })
      assert(batch:run())
      t.eq(done, answers)
      t.eq({ answers[1].ids, answers[2].ids }, { want[1].ids, want[2].ids })
      t.near(answers[1].mean_logprob, want[1].mean, 1e-9)
      t.eq({ answers[1].finish, answers[1].prompt_tokens, answers[1].logprobs },
        { "length", #PROMPT, nil })
      t.eq(answers[1].completion_tokens + answers[2].completion_tokens, made)
      t.eq(answers[2].completion_tokens, #answers[2].ids)
    end
  end)
end

test("best_of with an early end, logprobs, and as many as n", function(t)
  local model <close> = open "llama"
  local want = judged(model, 4,
    { stop_ids = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } })
  local batch <close> = assert(model:batch { sequences = 4 })
  local best = assert(batch:add(request { best_of = 4, logprobs = true, max_tokens = 7,
    stop_ids = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 } }))
  assert(batch:run())
  t.eq(best.ids, want[1].ids)
  t.eq(#best.logprobs, #best.ids)
  local streamed = 0
  local sequences = { batch:add(request { n = 2, best_of = 2,
    on_token = function(e) if e.id then streamed = streamed + 1 end end }) }
  assert(batch:run())
  t.eq({ #sequences, streamed, sequences[1].completion_tokens }, { 2, 14, 7 })
  -- all alike: the first one
  local nothing = assert(batch:add(request { best_of = 3, max_tokens = 0 }))
  assert(batch:run())
  t.eq({ nothing.finish, nothing.completion_tokens, nothing.ids, nothing.mean_logprob },
    { "length", 0, {}, 0.0 })
  t.eq(model:generate(request { best_of = 4 }).ids, judged(model, 4)[1].ids)
end)

test("a best_of that is cancelled, and callbacks that raise", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 8 })
  local answer = assert(batch:add(request { best_of = 3 }))
  assert(batch:step())
  assert(answer:cancel())
  assert(batch:run())
  t.eq({ answer.finish, #answer.ids, answer.completion_tokens, batch:stats().cancelled },
    { "cancel", 1, 3, 3 })
  local told = 0
  assert(batch:add(request { n = 2, best_of = 3, on_done = function()
    told = told + 1
    error "of the callback"
  end }))
  t.raises(function() batch:run() end, "of the callback")
  t.eq({ told, batch.alive }, { 2, 0 })
end)

test("best_of that cannot be", function(t)
  local model <close> = open "llama"
  local batch <close> = assert(model:batch { sequences = 2 })
  local function refused(more, text) t.raises(function() batch:add(request(more)) end, text) end
  refused({ best_of = 0 }, "best_of must be between n, which is 1, and 128, got 0")
  refused({ best_of = -3 }, "best_of must be between n, which is 1, and 128, got -3")
  refused({ n = 3, best_of = 2 }, "best_of must be between n, which is 3, and 128, got 2")
  refused({ best_of = 129 }, "best_of must be between n, which is 1, and 128, got 129")
  refused({ best_of = 2.5 }, "best_of must be an integer, got 2.5")
  refused({ best_of = "2" }, "best_of must be an integer, got string")
  refused({ best_off = 2 }, "unknown key 'best_off', did you mean 'best_of'?")
  refused({ n = 2, best_of = 4, on_token = print },
    "best_of is 4 and n is 2: tokens cannot be streamed")
  refused({ best_of = 2, hold = true }, "best_of is 2: candidates cannot be held")
  t.raises(function() model:generate(request { best_of = 2, on_text = print }) end,
    "cannot be streamed")
  t.match(tostring(t.fails("argument", batch:add(request { best_of = 2, temperature = -1 }))),
    "temperature must be 0 or more, got %-1")
  t.eq({ #batch:sequences(), batch.alive }, { 0, 0 })
end)
