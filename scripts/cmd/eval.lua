-- eval: logits and greedy continuations of prompts, as JSON lines and a safetensors file.
local perigee = require "perigee"
local command = require "lib.command"
local jsonl = require "lib.jsonl"
local models = require "engine.model"
local preload = require "engine.preload"
local json = perigee.json

local keys = { "ids", "prompt", "images", "videos", "greedy", "chunk", "last" }

local function at_least(least, request, key)
  local n = jsonl.field(request, key, { kind = "integer" })
  if n and n < least then error(("'%s' must be at least %d, not %d"):format(key, least, n), 0) end
  return n
end

--- The token ids of a request: `ids`, or those of `prompt`.
local function token_ids(model, request)
  local ids = jsonl.field(request, "ids", { kind = "array" })
  local prompt = jsonl.field(request, "prompt", { kind = "string" })
  if (ids ~= nil) == (prompt ~= nil) then error("expected 'ids' or 'prompt', one of the two", 0) end
  return ids or model:ids(prompt)
end

--- The prompt of a request, with its pictures if it has any.
local function prepare(model, request)
  local ids = token_ids(model, request)
  local images = jsonl.field(request, "images", { kind = "array" })
  local videos = jsonl.field(request, "videos", { kind = "array" })
  if #(images or {}) == 0 and #(videos or {}) == 0 then return { prompt = ids } end
  return model:pictures():prepare(ids, { images = images, videos = videos })
end

local function save(saved, name, tensor)
  saved[#saved + 1] = { name = name, dtype = tensor.dtype, shape = tensor.shape,
    bytes = tensor:contiguous():bytes() }
end

local function answer_with(model, runner, saved)
  return function(request, line)
    jsonl.known(request, keys)
    local given, greedy = prepare(model, request), at_least(0, request, "greedy")
    local result = runner:eval(given.prompt, { greedy = greedy, last = at_least(1, request, "last"),
      chunk = at_least(1, request, "chunk"), media = given.media, positions = given.positions,
      rope_delta = given.rope_delta })
    if saved then save(saved, ("logits.%d"):format(line), result.logits) end
    for i, item in ipairs(saved and given.media or {}) do
      save(saved, ("features.%d.%d"):format(line, i - 1), item.features)
      save(saved, ("resized.%d.%d"):format(line, i - 1), given.pictures[i].pixels[1]:tensor())
    end
    local out = json.object { { "n", #given.prompt } }
    if greedy then out.greedy = json.array(result.greedy) end
    return out
  end
end

local function main(opts)
  local possible, unable = command.check_compute(opts)
  if not possible then return nil, unable end
  local model, why = models.open(opts[1], command.model_options(opts))
  if not model then return nil, why end
  preload(model)
  local runner, saved = model:runner(), opts.out and {}
  jsonl.serve(answer_with(model, runner, saved))
  runner:close()
  if saved then
    local ok, err = perigee.weights.save(opts.out, saved)
    if not ok then return nil, err end
  end
  model:close()
  return command.OK
end

return {
  summary = "compute logits and greedy continuations of prompts",
  usage = "MODEL --jsonl",
  details = [[
Reads JSON lines {"ids": […] or "prompt": "…", "greedy": N, "chunk": N, "last": N} and writes
{"n": tokens, "greedy": […]} for each.
  images    paths of pictures, in the order of their tokens in the prompt; each has all of them
            there, or one placeholder
  videos    lists of paths, the frames of each video
  greedy    generate N tokens, also past an end token
  chunk     prefill at most N tokens per step
  last      keep the logits of the last N tokens only]],
  options = {
    { name = "jsonl", kind = "flag", help = "read and write JSON lines" },
    { name = "out", kind = "string", value = "FILE",
      help = "write the logits of line K (from 0) as logits.K to this safetensors file; of "
        .. "pictures, also features.K.I and resized.K.I" },
  },
  min = 1,
  max = 1,
  run = main,
}
