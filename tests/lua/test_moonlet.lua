-- The model that ships answers as the reference does: every text request of its answers.json,
-- greedily, token for token.
local perigee = require "perigee"
local text = require "lib.text"
local test = require("harness").test
-- with a collection at every step, or under a sanitizer: a few are enough
local few = ... or os.getenv "SAN"

local answers = assert(perigee.json.decode(assert(text.read_file "examples/moonlet/answers.json")))

test("moonlet's text answers are the reference's", function(t)
  local model = assert(perigee.open("examples/moonlet", { threads = 2 }))
  local asked = 0
  for _, a in ipairs(answers) do
    if #a.grids == 0 and (not few or asked < 2) then
      asked = asked + 1
      local got = model:generate { prompt = a.prompt_ids, max_tokens = #a.ids + 4 }
      t.eq(got.ids, setmetatable(a.ids, nil), a.name)
      if a.finish == "stop" then t.eq(got.finish_reason, "stop", a.name) end
      t.eq(model:tokenizer():encode(a.prompt), setmetatable(a.prompt_ids, nil), a.name)
    end
  end
  t.eq(asked >= 2, true)
  model:close()
end)

test("generate hands over tokens and pieces of text as they come", function(t)
  local model <close> = assert(perigee.open "examples/moonlet")
  local function ask(more)
    more.prompt, more.max_tokens, more.temperature = "The caf\u{e9} at sea \u{1f30a}", 12, 0
    return model:generate(more)
  end
  local ids, pieces = {}, {}
  local out = ask { on_token = function(id) ids[#ids + 1] = id end,
    on_text = function(piece) pieces[#pieces + 1] = piece end }
  t.eq({ ids, table.concat(pieces) }, { out.ids, out.text })
  for i, piece in ipairs(pieces) do t.ok(piece ~= "", "piece " .. i) end
  ids = {}
  t.eq({ ask({ on_token = function(id) ids[#ids + 1] = id end }).ids, ids }, { out.ids, out.ids })
end)

test("a draw is the same for those whose logits are kept, and lists decide some", function(t)
  local model <close> = assert(perigee.open "examples/moonlet")
  local listed, drawn = 0, 0
  local function draw(more, keep)
    local batch <close> = assert(model:batch { sequences = 1, cache_bytes = 0 })
    local seq = assert(batch:add { prompt = "The moon", max_tokens = 6,
      ignore_eos = true, logprobs = true, seed = 5, keep_logits = keep, temperature = more[1],
      top_p = more[2], min_p = more[3], top_k = more[4], repetition_penalty = more[5] })
    assert(batch:run())
    local stats = batch:stats()
    listed, drawn = listed + stats.listed_tokens, drawn + stats.decode_tokens
    return { seq.ids, seq.logprobs }
  end
  for i, more in ipairs { { 0.8 }, { 1, 0.9 }, { 2, 0.99 }, { 1.2, 1, 0.02 },
    { 1, 1, 0, 5, 1.3 } } do
    t.eq(draw(more, true), draw(more, false), i)
  end
  local metal = perigee.engine.device "auto" == "metal"
  t.eq(listed > 0 and 2 * listed < drawn, metal) -- those that keep them have no lists
end)

test("a seed draws the same tokens, another one others", function(t)
  local model = assert(perigee.open "examples/moonlet")
  local function draw(seed)
    return model:generate { prompt = "Tell me a story about", max_tokens = 24, temperature = 1.3,
      seed = seed,
      ignore_eos = true }.ids
  end
  local a = draw(7)
  t.eq(draw(7), a)
  t.eq(table.concat(draw(8), " ") ~= table.concat(a, " "), true)
  local best = model:generate { prompt = "Tell me", max_tokens = 8, temperature = 0 }.ids
  t.eq(model:generate { prompt = "Tell me", max_tokens = 8, temperature = 2, top_k = 1 }.ids, best)
  t.eq(model:generate { prompt = "Tell me", max_tokens = 8, temperature = 2, top_p = 1e-6 }.ids,
    best)
  t.raises(function() model:generate { prompt = "x", temperature = -1 } end,
    "temperature must be 0 or more, got -1")
  t.raises(function() model:generate { prompt = "x", top_p = 0 } end,
    "top_p must be above 0 and at most 1, got 0")
  t.raises(function() model:generate { prompt = "x", tmperature = 1 } end,
    "unknown key 'tmperature', did you mean 'temperature'?")
  t.raises(function() model:generate { prompt = { 999999 } } end,
    "prompt: token id must be between 0 and 2303, got 999999")
  t.raises(function() model:generate { prompt = "" } end, "the prompt is empty")
  model:close()
end)

test("taps give values by name", function(t)
  local model = assert(perigee.open "examples/moonlet")
  local name
  for _, v in ipairs(model.graph:values()) do
    if v.op == "attention" then name = v.name break end
  end
  local out = model:eval("Hello!", { tap = { name }, chunk = 1 })
  t.eq(out.taps[name].shape[1], #model:ids "Hello!")
  t.eq(out.logits.shape[2], model.config.vocab)
  t.raises(function() model:eval("x", { tap = { "no such value" } }) end, "no value is named")
  model:close()
end)
