-- many: several answers at once, with a custom scheduling policy.
--
--   build/perigee run examples/many.lua [MODEL]
--
-- Every request is a sequence of one batch, with its own sampling. The policy lets the shortest
-- prompt go first and leaves the rest to step:fill().
local perigee = require "perigee"
local tables = require "ui.table"

local model <close> = assert(perigee.open(arg[1] or "examples/moonlet"))

local function shortest_first(step)
  local sequences = step:waiting()
  table.sort(sequences, function(a, b)
    return a.prompt < b.prompt or a.prompt == b.prompt and a.id < b.id
  end)
  step:order(sequences)
  step:fill()
end

local function ask(words)
  return ("<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"):format(words)
end

local batch <close> = assert(model:batch { sequences = 8, policy = shortest_first })
local out = { { "request", "finish", "tokens", "text" } }
local function add(name, request)
  request.on_done = function(seq)
    out[#out + 1] = { name, seq.finish, seq.completion_tokens, (seq.text:gsub("%s+", " ")) }
  end
  assert(batch:add(request))
end

add("greedy", { prompt = ask "Count from 1 to 10.", temperature = 0, max_tokens = 40 })
add("drawn", { prompt = ask "Tell me a story about Luna.", temperature = 0.8, top_p = 0.9, seed = 1,
  max_tokens = 20 })
add("stopped", { prompt = ask "Count from 1 to 10.", temperature = 0, stop = { "5" } })
add("two choices", { prompt = ask "Who are you?", temperature = 1, seed = 2, n = 2,
  max_tokens = 12 })
assert(batch:run())

print(tables.render(out, { header = true }))
local stats = batch:stats()
print(("%d prompt tokens computed, %d found in the prefix cache, %d generated, in %d steps"):format(
  stats.prefill_tokens, stats.cached_tokens, stats.decode_tokens, stats.steps))
