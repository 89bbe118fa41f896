-- model: what perigee.open returns: weights, graph and tokenizer of one model, with eval and
-- generate.
--
--   local model = assert(perigee.open "examples/moonlet")
--   local out = model:generate { prompt = "…", max_tokens = 20, on_text = io.write }
--   local taps = model:eval(ids, { tap = { "model.layers.0.mlp.down_proj" } }).taps
--   local seen = model:eval { prompt = "<|image_pad|> shows", images = { "cat.png" }, greedy = 8 }
local perigee = require "perigee"
local async = require "lib.async"
local batches = require "engine.batch"
local models = require "models"
local requests = require "engine.request"
local run = require "engine.run"
local text = require "lib.text"
local towers = require "models.vision"
local vision = require "engine.vision"
local json = perigee.json

local Model = {}
Model.__index = Model
Model.__name = "perigee.Model"

--- generation_config.json as a table; empty when there is none.
local function read_generation_config(path)
  local source = text.read_file(path .. "/generation_config.json")
  local parsed = source and json.decode(source)
  return json.is_object(parsed) and parsed or {}
end

local function as_set(ids, set)
  if math.type(ids) == "integer" then ids = { ids } end
  for _, id in ipairs(type(ids) == "table" and ids or {}) do set[id] = true end
  return set
end

--- The options of a runner.
local function settings(self, more)
  local o = self.options
  local out = { threads = o.threads, context = o.context, memory = o.memory, kv_bits = o.kv_bits,
    precision = o.precision, device = o.device, progress = o.progress }
  for k, v in pairs(more or {}) do out[k] = v end
  return out
end

--- Opens a model directory or a GGUF file. Options: threads, context (tokens at most), memory
--- (bytes at most), precision ("exact" or "fast"), kv_bits (32, 16, 8 or 4; the default is 32, with
--- fast 16), device ("cpu", "metal" or "auto", the default), progress (hears how many bytes of
--- weights are packed when a batch or a runner is opened), architectures (a list; they win over
--- those that ship, see models/init.lua).
local function open(path, options)
  local loaded, why = models.load(path, { pause = async.breathe,
    architectures = options and options.architectures })
  if not loaded then return nil, why end
  local tower, broken = towers.build(loaded.weights, loaded.parsed, { pause = async.breathe })
  if broken then return nil, broken end
  local generation = read_generation_config(path)
  local self = setmetatable({ path = path, weights = loaded.weights, graph = loaded.graph,
    builder = loaded.builder, config = loaded.config, model_type = loaded.model_type,
    generation_config = generation,
    options = options or {}, stops = {} }, Model)
  local runner, wrong = run.new(self, settings(self))
  if not runner then return nil, ("%s: %s"):format(path, wrong) end
  self.vision = tower and vision.new(self, tower)
  as_set(generation.eos_token_id or loaded.config.eos_token_id, self.stops)
  return self
end

--- Takes the model's tokenizer, opened elsewhere (off the loop thread).
function Model:take_tokenizer(tok)
  self.tok = tok
  if not next(self.stops) and tok.eos then self.stops[tok.eos] = true end
end

--- The tokenizer, opened at the first call; nil and an error if the model has none.
function Model:tokenizer()
  if not self.tok then
    local tok, why = perigee.tokenizer.open(self.path)
    if not tok then return nil, why end
    self:take_tokenizer(tok)
  end
  return self.tok
end

--- Token ids of a prompt: a list as it is, text through the tokenizer with its special tokens.
function Model:ids(prompt)
  if type(prompt) == "table" then return prompt end
  local tok, why = self:tokenizer()
  if not tok then error(why, 0) end
  local ids, err = tok:encode(prompt, { add_special = true })
  if not ids then error(err, 0) end
  return ids
end

--- A runner of this model; options: taps.
function Model:runner(options) return assert(run.new(self, settings(self, options))) end

--- Pictures and videos of prompts, from files (engine/pictures.lua); opened at the first call.
--- Raises one line if the model takes none.
function Model:pictures()
  if not self.seeing then
    local why
    self.seeing, why = require("engine.pictures").open(self) -- 5 ms that text does not need
    if not self.seeing then error(why, 0) end
  end
  return self.seeing
end

--- The prompt as ids; with the tokens and features of given.images and given.videos, if there are
--- any.
local function with_pictures(self, prompt, given)
  local ids = self:ids(prompt)
  if not given.images and not given.videos then return { prompt = ids } end
  return self:pictures():prepare(ids, given)
end

--- Runs a prompt (text or ids), also as eval { prompt =, … }. Options: tap (names of values),
--- greedy, chunk, last; images (paths) and videos (lists of paths), whose places are in the prompt,
--- and vision_tap (names of values inside the tower). Returns { logits = tensor, taps =, greedy =
--- ids }, and of a prompt with pictures { prompt = ids, media = where they are in it, pictures =
--- each with plan, pixels and taps }.
function Model:eval(prompt, options)
  if type(prompt) == "table" and prompt.prompt then prompt, options = prompt.prompt, prompt end
  options = options or {}
  local seen = with_pictures(self, prompt, options)
  local how = { media = options.media, positions = options.positions,
    rope_delta = options.rope_delta, greedy = options.greedy, chunk = options.chunk,
    last = options.last }
  for key, value in pairs(seen) do how[key] = value end
  local runner = self:runner { taps = options.tap }
  local ok, result = pcall(runner.eval, runner, seen.prompt, how)
  runner:close()
  if not ok then error(result, 0) end
  if seen.media then
    result.prompt, result.media, result.pictures = seen.prompt, seen.media, seen.pictures
  end
  return result
end

--- Many answers at once (engine/batch.lua). Options: sequences, step_tokens, context, cache_tokens,
--- kv_bits, kv_block, stride, cache_bytes, cache_folder, cache_disk_bytes, media_bytes, threads,
--- policy, report.
function Model:batch(options)
  return batches.open(self, options)
end

local generate_keys = { on_text = "call", on_token = "call", images = "any", videos = "any" }

--- Generates after a prompt until an end token, a stop string, the limit, or the end of the
--- context. Calls on_token(id) and on_text(piece) as they come. Takes the fields of batch:add
--- except n, and images and videos as eval does; best_of returns the best of that many answers, and
--- nothing is streamed. Returns { ids =, text =, finish_reason =, prompt_tokens =,
--- completion_tokens =, logprobs = }.
function Model:generate(given)
  requests.check(given, generate_keys)
  if given.n and given.n ~= 1 then
    error(("n must be 1, got %s: generate returns one answer, a batch many"):format(given.n), 0)
  end
  local request = {}
  for key, value in pairs(given) do
    if not generate_keys[key] then request[key] = value end
  end
  if given.images or given.videos then
    local seen = with_pictures(self, given.prompt, given)
    for _, key in ipairs { "prompt", "media", "positions", "rope_delta", "boundaries" } do
      request[key] = seen[key]
    end
  end
  if given.on_token or given.on_text then
    request.on_token = function(event)
      if event.id and given.on_token then given.on_token(event.id) end
      if event.text ~= "" and given.on_text then given.on_text(event.text) end
    end
  end
  local batch <close>, failed = self:batch { sequences = 1, cache_bytes = 0 }
  if not batch then error(failed, 0) end
  local seq, why = batch:add(request)
  if not seq then error(why, 0) end
  local ok, broken = batch:run()
  if not ok then error(broken, 0) end
  if seq.error then error(seq.error, 0) end
  return { ids = seq.ids, text = seq.text, finish_reason = seq.finish,
    prompt_tokens = seq.prompt_tokens, completion_tokens = seq.completion_tokens,
    logprobs = seq.logprobs }
end

function Model:close()
  if self.tok then self.tok:close() end
  if self.seeing then self.seeing:close() end
  if self.vision then self.vision:close() end
  self.graph:close()
  self.weights:close()
end
Model.__close = Model.close

return { open = open }
