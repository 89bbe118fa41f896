-- common: shared by the benchmarks: a clock, quantiles, prompts, and a batch over a model.
local batches = require "engine.batch"
local uv = require "luv"

local common = {}

function common.now() return uv.hrtime() * 1e-9 end

--- A quantile of the values (share 0.5: the median), by nearest rank.
function common.quantile(values, share)
  local sorted = table.move(values, 1, #values, 1, {})
  table.sort(sorted)
  return sorted[math.max(1, math.min(#sorted, math.ceil(share * #sorted)))]
end

function common.median(values) return common.quantile(values, 0.5) end

function common.sum(values)
  local all = 0
  for _, v in ipairs(values) do all = all + v end
  return all
end

--- n pseudo-random ids; each seed gives other ones.
function common.ids(n, vocabulary, seed)
  local ids, state = {}, 12345 + (seed or 0) * 7919
  for i = 1, n do
    state = (state * 1103515245 + 12345) % 2147483648
    ids[i] = state // 65536 % vocabulary
  end
  return ids
end

--- "1,2,4" -> { 1, 2, 4 }; raises for anything else. option: its name, for the message.
function common.numbers(list, option)
  local out = {}
  for word in (list .. ","):gmatch "([^,]*)," do
    local n = math.tointeger(tonumber(word))
    if not n or n < 0 then
      error(("%s: '%s' is not a list of numbers such as 1,8"):format(option, list), 0)
    end
    out[#out + 1] = n
  end
  return out
end

--- A batch over a loaded model: prompts are ids, and only max_tokens ends a sequence. tokenizer:
--- where grammars need one.
function common.batch(model, options, tokenizer)
  local plain = { graph = model.graph, config = model.config, weights = model.weights,
    options = model.options, stops = {}, generation_config = {},
    tokenizer = function() return tokenizer end, ids = function(_, ids) return ids end }
  local batch, why = batches.open(plain, options)
  if not batch then error(why, 0) end
  return batch
end

--- Bytes of weights read to compute one token: of the experts only the chosen ones, of the
--- embedding nothing (one row).
function common.bytes_per_token(model)
  local seen, total = {}, 0
  for _, v in ipairs(model.graph:values()) do
    local w = v.weight and v.op ~= "embed" and not seen[v.weight] and model.weights:find(v.weight)
    if w then
      seen[v.weight] = true
      local chosen = v.op == "expert_linear" and #w.shape == 3
      total = total + (chosen and w.bytes * v.shape[1] // w.shape[1] or w.bytes)
    end
  end
  return total
end

--- The context length in tokens.
function common.context(model)
  return model.options.context or model.config.max_position_embeddings or math.maxinteger
end

--- A greedy request that generates exactly `tokens` tokens.
function common.request(ids, tokens)
  return { prompt = ids, max_tokens = tokens, temperature = 0, ignore_eos = true }
end

--- Steps until the sequence has its first token.
function common.prefill(batch, seq)
  while #seq.ids == 0 do assert(batch:step()) end
end

return common
