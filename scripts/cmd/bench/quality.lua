-- quality: how far the logits of `fast`, and of each type of KV cache, are from those of `exact`
-- with a KV cache of 32 bits, over the same tokens.
--
-- All of them process the same chunk, then their logits are compared and dropped, so memory does
-- not grow with the text. KL is the mean over positions of the divergence from the exact
-- distribution, in nats, computed in float64.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local models = require "engine.model"
local preload = require "engine.preload"
local progress = require "ui.progress"
local text = require "lib.text"
local json = perigee.json

local quality = {}

local CHUNK = 32 -- tokens; their logits are 20 MB of float32 per variant for 152k tokens

quality.variants = {
  { precision = "exact", kv_bits = 32 }, -- the reference
  { precision = "exact", kv_bits = 16 },
  { precision = "exact", kv_bits = 8 },
  { precision = "exact", kv_bits = 4 },
  { precision = "fast", kv_bits = 32 },
  { precision = "fast", kv_bits = 16 }, -- the default of `fast`
  { precision = "fast", kv_bits = 8 },
  { precision = "fast", kv_bits = 4 },
}

-- ---- what to read -------------------------------------------------------------------------------

--- Prompts and answers of answers.json, which moonlet has: lists of ids.
local function answers(path)
  local source = text.read_file(path .. "/answers.json")
  local parsed = source and json.decode(source)
  local out = {}
  for _, a in ipairs(parsed or {}) do
    local pictures = a.grids and #a.grids > 0
    if a.prompt_ids and a.ids and not pictures then
      local ids = table.move(a.prompt_ids, 1, #a.prompt_ids, 1, {})
      out[#out + 1] = table.move(a.ids, 1, #a.ids, #ids + 1, ids)
    end
  end
  return #out > 0 and out or nil
end

--- Text and code that every perigee has: the descriptions of its own functions.
local function own_text()
  local parts = {}
  for _, name in ipairs { "meta/engine.lua", "meta/batch.lua", "meta/tensor.lua" } do
    parts[#parts + 1] = perigee.sys.script(name)
  end
  return table.concat(parts, "\n")
end

--- At most `most` tokens altogether, in lists of at least two.
local function cut(samples, most)
  local out, left = {}, most
  for _, ids in ipairs(samples) do
    local n = math.min(#ids, left)
    if n >= 2 then out[#out + 1] = table.move(ids, 1, n, 1, {}) end
    left = left - n
  end
  return out
end

local function samples_of(model, opts)
  local samples = not opts.text and answers(model.path)
  if not samples then
    local source = own_text()
    if opts.text then
      local why
      source, why = text.read_file(opts.text)
      if not source then error(why, 0) end
    end
    samples = { model:ids(source) }
  end
  local limit = model.options.context or model.config.max_position_embeddings or opts.tokens
  samples = cut(samples, math.min(opts.tokens, limit))
  if #samples == 0 then error("the text has less than two tokens", 0) end
  return samples
end

-- ---- comparing ----------------------------------------------------------------------------------

local function new_result(variant)
  return { precision = variant.precision, kv_bits = variant.kv_bits, kl = {}, same = 0, tokens = 0,
    nll = 0, scored = 0, error = 0 }
end

--- Adds the lines of a chunk. exact, other: logits; next_ids: the token after each line, if there
--- is one.
local function compare(result, exact, other, next_ids)
  local p, q = exact.log_probs, other.logits:to("f64"):log_softmax(-1)
  for _, kl in ipairs((p:exp() * (p - q)):sum(-1):totable()) do
    table.insert(result.kl, math.max(kl, 0))
  end
  local best = other.logits:argmax(-1):totable()
  for i, id in ipairs(exact.best) do
    if best[i] == id then result.same = result.same + 1 end
    local follows = next_ids[i]
    if follows then
      result.nll = result.nll - q[i][follows + 1]
      result.scored = result.scored + 1
    end
  end
  result.tokens = result.tokens + #best
  local off = (other.logits - exact.logits):abs():max()
  result.error = off ~= off and off or math.max(result.error, off)
end

local function logits_of(engine, seq, ids, length)
  assert(engine:step { { seq = seq, ids = ids, outputs = #ids, rope_length = length } })
  return { logits = engine:logits() }
end

--- One list of ids through all engines.
local function run_sample(engines, results, ids, advance)
  local seqs = {}
  for i, engine in ipairs(engines) do seqs[i] = assert(engine:add()) end
  for from = 1, #ids, CHUNK do
    local to = math.min(from + CHUNK - 1, #ids)
    local chunk = table.move(ids, from, to, 1, {})
    local follows = table.move(ids, from + 1, to + 1, 1, {})
    local exact
    for i, engine in ipairs(engines) do
      local got = logits_of(engine, seqs[i], chunk, #ids)
      if i == 1 then
        exact = got
        exact.log_probs = got.logits:to("f64"):log_softmax(-1)
        exact.best = got.logits:argmax(-1):totable()
      end
      compare(results[i], exact, got, follows)
      advance(#chunk)
    end
    collectgarbage() -- tensors of this chunk
  end
  for i, engine in ipairs(engines) do engine:remove(seqs[i]) end
end

local function summary(result)
  local kl = 0
  for _, x in ipairs(result.kl) do kl = kl + x end
  return { precision = result.precision, kv_bits = result.kv_bits, tokens = result.tokens,
    kl = kl / result.tokens, kl_p99 = common.quantile(result.kl, 0.99),
    kl_max = common.quantile(result.kl, 1), same = result.same / result.tokens,
    perplexity = math.exp(result.nll / math.max(1, result.scored)), logit_error = result.error }
end

local function measure(model, opts)
  local samples, total, longest = samples_of(model, opts), 0, 0
  for _, ids in ipairs(samples) do
    total, longest = total + #ids, math.max(longest, #ids)
  end
  local engines <close>, results = setmetatable({}, { __close = function(list)
    for _, engine in ipairs(list) do engine:close() end
  end }), {}
  for i, variant in ipairs(quality.variants) do
    local engine, why = perigee.engine.open(model.graph, { threads = opts.threads,
      tokens = longest, precision = variant.precision, kv_bits = variant.kv_bits,
      device = opts.device })
    if not engine then error(why, 0) end
    engines[i], results[i] = engine, new_result(variant)
  end
  local done = 0
  local bar <close> = progress.new("quality", total * #engines)
  for _, ids in ipairs(samples) do
    run_sample(engines, results, ids, function(n)
      done = done + n
      bar:update(done)
    end)
  end
  local out = {}
  for i, result in ipairs(results) do out[i] = summary(result) end
  return out
end

--- One result per variant, the reference first; or nil and why.
function quality.run(opts)
  local model <close>, why = models.open(opts[1], { threads = opts.threads,
    context = opts.context, memory = opts.memory })
  if not model then return nil, why end
  preload(model)
  local ok, rows = pcall(measure, model, opts)
  if not ok then return nil, rows end
  return rows
end

-- ---- output -------------------------------------------------------------------------------------

quality.columns = { "precision", "kv_bits", "tokens", "kl", "kl_p99", "kl_max", "same",
  "perplexity", "logit_error" }

--- Rows of a table for people.
function quality.cells(rows)
  local out = { { "precision", "KV bits", "KL mean", "p99", "largest", "same best token",
    "perplexity", "largest logit error" } }
  for i, r in ipairs(rows) do
    out[i + 1] = { r.precision, r.kv_bits, ("%.1e"):format(r.kl), ("%.1e"):format(r.kl_p99),
      ("%.1e"):format(r.kl_max), ("%.2f %%"):format(100 * r.same),
      ("%.4f"):format(r.perplexity), ("%.2g"):format(r.logit_error) }
  end
  return out
end

return quality
