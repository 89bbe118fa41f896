-- vision_cases: cases with pictures of the vision models in ../shared/golden: prompts, features,
-- positions and the logits of the reference. The folder is not part of the project: tests skip
-- without it.
local perigee = require "perigee"
local samples = require "samples"
local text = require "lib.text"
local uv = require "luv"

local cases = { folder = "../shared/golden/" }

--- The names of the vision models, sorted; empty without the folder.
function cases.models()
  local list, dir = {}, uv.fs_scandir(cases.folder)
  for name in uv.fs_scandir_next, dir or uv.fs_scandir "tests/lua" do
    if dir and name:match "^vl_" then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

--- The next `count` tokens that equal `id`, from index `at` on: the first of them, and the index
--- after the last.
local function placeholders(ids, id, at, count)
  local first
  while count > 0 do
    if ids[at] == id then first, count = first or at, count - 1 end
    at = at + 1
    if at > #ids + 1 then error(("no place for a picture: token %d"):format(id)) end
  end
  return first, at
end

--- The planes after the first of one picture, or nil.
local function deepstack_of(golden, k, i)
  local list = {}
  for j = 0, 14 do
    local plane = samples.read(golden, ("deepstack.%d.%d.%d"):format(k, i, j))
    if not plane then break end
    list[j + 1] = plane
  end
  return #list > 0 and list or nil
end

--- Case k of a model: { ids =, media =, positions =, rope_delta =, logits =, greedy = }; nil: none.
function cases.case(name, k)
  local path = cases.folder .. name
  local golden <close> = assert(perigee.weights.open(path .. "/golden.safetensors"))
  local notes = assert(perigee.json.decode(text.read_file(path .. "/golden.json")))
  local layout, case = notes.layout, notes.cases[k + 1]
  local ids, at, media = samples.read_ids(golden, "ids." .. k), 1, {}
  if not ids then return end
  for i = 0, 99 do
    local features = samples.read(golden, ("features.%d.%d"):format(k, i))
    if not features then break end
    local tokens, first = features.shape[1]
    first, at = placeholders(ids, k == 4 and layout.video_token or layout.image_token, at, tokens)
    local grid = samples.read_ids(golden, ("grid.%d.%d"):format(k, i))
    media[i + 1] = { at = first, tokens = tokens, features = features, grid = grid,
      deepstack = deepstack_of(golden, k, i), seconds_per_grid = case.second_per_grid_ts,
      hash = ("%-32s"):format(("%s %d %d"):format(name, k, i)) }
  end
  local positions, axes = samples.read(golden, "positions." .. k), nil
  for axis = 1, positions and 3 or 0 do
    axes = axes or {}
    axes[axis] = {}
    for i, v in ipairs(positions:select(1, axis):totable()) do axes[axis][i] = math.tointeger(v) end
  end
  return { ids = ids, media = #media > 0 and media or nil, positions = axes,
    rope_delta = axes and samples.read_ids(golden, "delta." .. k)[1],
    logits = (samples.read(golden, "logits." .. k)),
    greedy = samples.read_ids(golden, "greedy." .. k) }
end

-- ---- pictures of our own ----------------------------------------------------------------------

--- Cases of a text model with invented features, so that the rows of pictures are tested on models
--- that are part of the project: a text, a picture in the middle, two pictures of which one is in
--- several runs, one at the beginning and one at the end. whole: the model lets the rows of a
--- picture see each other; then a repeat of the last case resumes before the picture.
function cases.invented(model, whole)
  local width, vocab = model.config.hidden_size, model.config.vocab_size
  local image, mark, seed = vocab - 1, vocab - 2, 0
  local function item(ids, runs)
    seed = seed + 1
    local at, tokens = #ids + 1, 0
    for i, run in ipairs(runs) do
      if i > 1 then ids[#ids + 1] = mark end
      for _ = 1, run do ids[#ids + 1] = image end
      tokens = tokens + run
    end
    return { at = at, tokens = tokens, hash = ("%-32s"):format("picture " .. seed),
      features = perigee.tensor.normal { tokens, width, seed = seed } }
  end
  local function words(ids, n)
    for _, id in ipairs(samples.ids(n, 3, vocab - 2)) do ids[#ids + 1] = id end
    return ids
  end
  local list = { { ids = words({}, 20) } }
  local shapes = { { 9, { 11 }, 6 }, { 5, { 9 }, 2, { 3, 3, 4 }, 4 }, { 0, { 17 }, 30 },
    { 14, { 18 } } }
  for i, shape in ipairs(shapes) do
    local ids, media = {}, {}
    for k, part in ipairs(shape) do
      if k % 2 == 0 then media[#media + 1] = item(ids, part) else words(ids, part) end
    end
    list[i + 1] = { ids = ids, media = media }
  end
  list[#list].resumes = whole and 14 or nil
  return list
end

return cases
