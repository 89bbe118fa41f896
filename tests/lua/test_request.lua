-- engine.request: what a caller's request becomes for the batch, and what is wrong with others.
local request = require "engine.request"
local test = require("harness").test

--- A model whose tokenizer gives the bytes of a text.
local function model_of(config)
  local tok = { encode = function(_, text)
    if text:find "!" then return nil, "no token for !" end
    return { text:byte(1, -1) }
  end }
  return { generation_config = config or {}, tokenizer = function() return tok end,
    ids = function(_, prompt) return type(prompt) == "table" and prompt or tok:encode(prompt) end }
end

local function prepared(given, config)
  given.prompt = given.prompt or { 1 }
  return request.prepare(model_of(config), given, { mine = "boolean" })
end

test("fields that are translated", function(t)
  local r = prepared { prompt = "ab", stop = "x", stop_token_ids = { 5 }, logprobs = true, seed = 7,
    logit_bias = { [3] = 0.5 }, bad_words = { "b", { 9, 8 }, "b", { 98 } }, mine = true,
    max_tokens = 4, banned = { 2 }, best_of = 3 }
  t.eq({ r.prompt, r.stop, r.stop_ids, r.top_logprobs, r.seed, r.logit_bias, r.bad_words, r.mine,
    r.max_tokens, r.banned, r.best_of, r.logprobs, r.stop_token_ids },
    { { 97, 98 }, { "x" }, { 5 }, 0, 7, { [3] = 0.5 }, { { 98 }, { 32, 98 }, { 9, 8 } }, nil, 4,
      { 2 } })
  t.eq(prepared { stop = { "a", "b" } }.stop, { "a", "b" })
  t.eq(prepared { stop_ids = { 1 }, stop_token_ids = { 2 } }.stop_ids, { 1 })
  t.eq({ prepared({ logprobs = 3 }).top_logprobs, prepared({ logprobs = false }).top_logprobs,
    prepared({ top_logprobs = 2, logprobs = 5 }).top_logprobs }, { 3, nil, 2 })
  t.eq(prepared({}).top_logprobs, nil)
  local seed = prepared({}).seed
  t.ok(math.type(seed) == "integer" and seed >= 0)
  t.ok(seed ~= prepared({}).seed)
  t.eq({ prepared({}).bad_words, prepared({}).stop, prepared({}).logit_bias }, {})
end)

test("defaults of the model", function(t)
  local config = { temperature = 0.5, top_p = 0.9, top_k = 7, min_p = 0.1,
    repetition_penalty = 1.5, max_tokens = 3 }
  local r = prepared({ top_k = 1 }, config)
  t.eq({ r.temperature, r.top_p, r.top_k, r.min_p, r.repetition_penalty, r.max_tokens },
    { 0.5, 0.9, 1, 0.1, 1.5 })
  t.eq(prepared({}, { temperature = "x" }).temperature, nil)
  t.eq(prepared({}, { temperature = 0.5, do_sample = false }).temperature, 0)
  t.eq(prepared({ temperature = 1 }, { do_sample = false }).temperature, 1)
  t.eq(prepared({}, { do_sample = true }).temperature, nil)
end)

test("what is wrong is said in one line", function(t)
  for want, given in pairs {
    ["unknown key 'temprature', did you mean 'temperature'?"] = { temprature = 1 },
    ["unknown key 'min', did you mean 'mine'?"] = { min = 1 },
    ["temperature must be a number, got string"] = { temperature = "x" },
    ["max_tokens must be an integer, got 1.5"] = { max_tokens = 1.5 },
    ["max_tokens must be an integer, got string"] = { max_tokens = "x" },
    ["mine must be a boolean, got number"] = { mine = 1 },
    ["stop_ids must be a list of token ids, got number"] = { stop_ids = 1 },
    ["stop_ids[2] must be a token id, got x"] = { stop_ids = { 1, "x" } },
    ["prompt[1] must be a token id, got 1.5"] = { prompt = { 1.5 } },
    ["prompt must be a string or a list of token ids, got number"] = { prompt = 5 },
    ["stop must be a string or a list of strings, got number"] = { stop = 1 },
    ["stop[1] must be a string, got 1"] = { stop = { 1 } },
    ["logit_bias must be a table {[token id] = number}, got string"] = { logit_bias = "x" },
    ["logit_bias must map token ids to numbers, got [a] = 1"] = { logit_bias = { a = 1 } },
    ["logit_bias must map token ids to numbers, got [1] = a"] = { logit_bias = { "a" } },
    ["bad_words must be a list, got string"] = { bad_words = "x" },
    ["bad_words[1] must be a string or a list of token ids, got 5"] = { bad_words = { 5 } },
    ["bad_words[1] must be a string or a list of token ids, got "] = { bad_words = { "" } },
    ["bad_words[1] must be a token id, got x"] = { bad_words = { { "x" } } },
    ["no token for !"] = { bad_words = { "!" } },
    ["logprobs must be a boolean or an integer, got string"] = { logprobs = "x" },
    ["logprobs must be a boolean or an integer, got number"] = { logprobs = 1.5 },
  } do
    local ok, why = pcall(prepared, given)
    t.eq({ ok, why }, { false, want })
  end
  t.raises(function() request.check {} end, "prompt is missing")
end)
