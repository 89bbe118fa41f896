-- common: what the benchmarks share: a clock, numbers in order, prompts, and a model as a batch wants it.
local batches = require "engine.batch"
local uv = require "luv"

local common = {}

function common.now() return uv.hrtime() * 1e-9 end

--- The share-th of the values (0.5: the median), nearest rank.
function common.quantile(values, share)
  local sorted = table.move(values, 1, #values, 1, {})
  table.sort(sorted)
  return sorted[math.max(1, math.min(#sorted, math.ceil(share * #sorted)))]
end

function common.median(values) return common.quantile(values, 0.5) end

--- n ids that look random; another `seed` begins differently.
function common.ids(n, vocabulary, seed)
  local ids, state = {}, 12345 + (seed or 0) * 7919
  for i = 1, n do
    state = (state * 1103515245 + 12345) % 2147483648
    ids[i] = state // 65536 % vocabulary
  end
  return ids
end

--- A batch over a loaded model: prompts are ids, nothing ends an answer but its limit.
function common.batch(model, options)
  local plain = { graph = model.graph, config = model.config, weights = model.weights, options = model.options, stops = {},
    generation_config = {}, tokenizer = function() end, ids = function(_, ids) return ids end }
  local batch, why = batches.open(plain, options)
  if not batch then error(why, 0) end
  return batch
end

--- Bytes of weights that computing one token reads: of experts those that are chosen, of the embedding a row.
function common.bytes_per_token(model)
  local seen, total = {}, 0
  for _, v in ipairs(model.graph:values()) do
    local w = v.weight and v.op ~= "embed" and not seen[v.weight] and model.weights:find(v.weight)
    if w then
      seen[v.weight] = true
      total = total + (v.op == "expert_linear" and #w.shape == 3 and w.bytes * v.shape[1] // w.shape[1] or w.bytes)
    end
  end
  return total
end

--- Tokens that a sequence may have.
function common.context(model) return model.options.context or model.config.max_position_embeddings or math.maxinteger end

--- A greedy request that writes exactly so many tokens.
function common.request(ids, tokens)
  return { prompt = ids, max_tokens = tokens, temperature = 0, ignore_eos = true }
end

--- Steps until the row has written something.
function common.read(batch, row)
  while #row.ids == 0 do assert(batch:step()) end
end

return common
