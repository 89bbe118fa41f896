-- picture_map: where a model looks in a picture. Taps the queries and keys of an attention layer of
-- the text model and draws the picture, brighter where the last token of the prompt attends to it.
--
--   build/perigee run examples/picture_map.lua [MODEL [PICTURE [QUESTION [LAYER]]]]
--
-- LAYER counts the attention layers, from 1; by default it is the last one.
local perigee = require "perigee"
local chat = require "chat"
local plot = require "ui.plot"
local term = require "ui.term"

local path = arg[1] or "examples/moonlet"
local picture = arg[2] or "examples/moonlet/images/blue_square_yellow_star.png"
local question = arg[3] or "Where is the star in the picture?"
local layer = math.tointeger(tonumber(arg[4]))

local model <close> = assert(perigee.open(path))

-- The prompt has one placeholder for the picture, as the chat template writes it.
local words = assert(chat.open(path))
local said = assert(words:prompt { messages = { { role = "user", content = {
  { type = "image", image = picture }, { type = "text", text = question } } } } })
local ids = assert(words:encode(assert(model:tokenizer()), said))

--- The attention layer, and the names of its queries and keys. Its second input is the store of its
--- keys and values; a layer that shares those of another has none.
local function find()
  local byname, found, store = {}, {}, nil
  for _, v in ipairs(model.graph:values()) do
    byname[v.name] = v
    if v.op == "attention" then
      store = byname[v.inputs[2]] or store
      found[#found + 1] = { v, v.inputs[1], store.inputs[1] }
    end
  end
  local chosen = found[layer or #found]
  if not chosen then error(("the model has no attention layer %d"):format(layer), 0) end
  return table.unpack(chosen)
end

local attention, q_name, k_name = find()
local out = model:eval { prompt = ids, images = { picture }, tap = { q_name, k_name }, last = 1,
  greedy = 24 }
local q, k = out.taps[q_name], out.taps[k_name] -- [tokens, heads, width], rotated already
local n, item = #out.prompt, out.media[1]
if #k.shape == 2 then k = k:reshape { n, 1, k.shape[2] } end
local shared = q.shape[2] // k.shape[2] -- query heads per key head

--- How much the last token attends to each token: the mean of all heads.
local function weights()
  local sum
  for head = 1, q.shape[2] do
    local keys = k:select(2, (head - 1) // shared + 1)
    local scores = q:select(2, head):rows(n, n):matmul(keys:t()) * attention.scale
    local one = scores:softmax(2)
    sum = sum and sum + one or one
  end
  return (sum / q.shape[2]):reshape { n }
end

-- The tokens of the picture stand row by row, merge x merge patches each; in some models other
-- tokens separate them.
local all, parts = weights(), {}
for i, run in ipairs(item.runs) do parts[i] = all:rows(run[1], run[1] + run[2] - 1) end
local merge = model.vision.merge
local rows, columns = item.grid[2] // merge, item.grid[3] // merge
local map = perigee.tensor.concat(parts, 1):reshape { rows, columns }

local answer = {}
for _, id in ipairs(out.greedy) do
  if model.stops[id] then break end
  answer[#answer + 1] = id
end

--- Half blocks: each character shows two cells, one above the other.
local function draw()
  local pixels = out.pictures[1].pixels[1]:tensor():to "f32"
  local height, width = pixels.shape[1], pixels.shape[2]
  local side = height // rows -- pixels of a token
  local cell = side
  while cell % 2 == 0 and width // (cell // 2) <= term.columns() do cell = cell // 2 end
  local h, w = height // cell, width // cell
  local small = pixels:reshape { h, cell, w, cell, 3 }:mean(4):mean(2)
  local light = (map / map:max() * 0.85 + 0.15):reshape { rows, 1, columns, 1, 1 }
  small = small:reshape { rows, h // rows, columns, w // columns, 3 } * light
  local colors = small:reshape { h, w, 3 }:to "i64":totable()
  for y = 1, h, 2 do
    local line = {}
    for x = 1, w do
      local above, below = colors[y][x], (colors[y + 1] or colors[y])[x]
      line[x] = ("\27[38;2;%d;%d;%dm\27[48;2;%d;%d;%dm▀"):format(above[1], above[2], above[3],
        below[1], below[2], below[3])
    end
    print(table.concat(line) .. "\27[0m")
  end
end

print(("%s\n%s, %s"):format(question, picture, attention.name))
if term.has_color(1) then draw() else print(plot.heat(map)) end
print(("the picture gets %.1f %% of the attention; the answer: %s"):format(100 * map:sum(),
  model:tokenizer():decode(answer)))
