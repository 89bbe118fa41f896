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
  for _, key in ipairs { "images", "videos" } do
    local list = jsonl.field(request, key, { kind = "array" })
    if list and #list > 0 then error(("'%s': there is no image input yet"):format(key), 0) end
  end
  local ids = jsonl.field(request, "ids", { kind = "array" })
  local prompt = jsonl.field(request, "prompt", { kind = "string" })
  if (ids ~= nil) == (prompt ~= nil) then error("expected 'ids' or 'prompt', one of the two", 0) end
  return ids or model:ids(prompt)
end

local function answer_with(model, runner, saved)
  return function(request, line)
    jsonl.known(request, keys)
    local ids, greedy = token_ids(model, request), at_least(0, request, "greedy")
    local result = runner:eval(ids, { greedy = greedy, chunk = at_least(1, request, "chunk"),
      last = at_least(1, request, "last") })
    if saved then
      local logits = result.logits
      saved[#saved + 1] = { name = ("logits.%d"):format(line), dtype = "f32",
        shape = logits.shape, bytes = logits:bytes() }
    end
    local out = json.object { { "n", #ids } }
    if greedy then out.greedy = json.array(result.greedy) end
    return out
  end
end

local function main(opts)
  local possible, unable = command.check_compute(opts)
  if not possible then return nil, unable end
  local model, why = models.open(opts[1], { threads = opts.threads, context = opts.context,
    memory = opts.memory, kv_bits = tonumber(opts.kv_bits or 32) })
  if not model then return nil, why end
  preload(model.weights)
  local runner, saved = model:runner(), opts.out and {}
  jsonl.serve(answer_with(model, runner, saved))
  runner:close()
  if saved then
    local ok, err = perigee.weights.save(opts.out, saved)
    if not ok then return nil, err end
  end
  return command.OK
end

return {
  summary = "compute logits and greedy continuations of prompts",
  usage = "MODEL --jsonl",
  details = [[
Reads JSON lines {"ids": […] or "prompt": "…", "greedy": N, "chunk": N, "last": N} and writes
{"n": tokens, "greedy": […]} for each.
  greedy    generate N tokens, also past an end token
  chunk     prefill at most N tokens per step
  last      keep the logits of the last N tokens only]],
  options = {
    { name = "jsonl", kind = "flag", help = "read and write JSON lines" },
    { name = "out", kind = "string", value = "FILE",
      help = "write the logits of line K (from 0) as logits.K to this safetensors file" },
  },
  min = 1,
  max = 1,
  run = main,
}
