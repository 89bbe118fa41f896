-- Pictures and videos from files to logits, on every vision architecture: resized pixels byte
-- for byte, features, logits and greedy continuations of the reference, and any chunking.
local Pictures = require "engine.pictures"
local cases = require "vision_cases"
local perigee = require "perigee"
local samples = require "samples"
local test = require("harness").test
local text = require "lib.text"

local forced = ... -- with a collection at every step: a few are enough, the numbers are the same

--- The paths of the pictures of case k.
local function files_of(path, k)
  local notes = assert(perigee.json.decode(text.read_file(path .. "/golden.json")))
  local case, out = notes.cases[k + 1], { images = {} }
  local function full(name) return ("%s/%s/%s"):format(path, notes.image_folder, name) end
  for i, name in ipairs(case.images or {}) do out.images[i] = full(name) end
  if case.video_frames then
    out.videos = { {} }
    for i, name in ipairs(case.video_frames) do out.videos[1][i] = full(name) end
  end
  return out
end

local function check_stages(t, golden, k, given)
  for i, item in ipairs(given.media) do
    local what = ("case %d, picture %d"):format(k, i)
    local resized = samples.read(golden, ("resized.%d.%d"):format(k, i - 1))
    local pixels = given.pictures[i].pixels[1]:tensor()
    if resized then t.near((pixels:to "f32" - resized):abs():max(), 0, 0, what) end
    local features = samples.read(golden, ("features.%d.%d"):format(k, i - 1))
    t.near((item.features - features):abs():max(), 0, 1e-3, what)
  end
end

local function check_case(t, model, pictures, name, k)
  local case = cases.case(name, k)
  if not case then return end
  local path = cases.folder .. name
  local golden <close> = assert(perigee.weights.open(path .. "/golden.safetensors"))
  local given = pictures:prepare(case.ids, files_of(path, k))
  check_stages(t, golden, k, given)
  t.eq(given.prompt, case.ids)
  t.eq(given.positions, case.positions, ("case %d"):format(k))
  t.eq(given.rope_delta, case.rope_delta)
  given.greedy = case.greedy and #case.greedy
  local got = model:eval(given.prompt, given)
  local far = (got.logits:rows(#case.ids - 15, #case.ids) - case.logits):abs():max()
  t.near(far, 0, 5e-4, ("case %d"):format(k))
  if case.greedy then t.eq(got.greedy, case.greedy) end
  given.chunk = 7
  t.ok(model:eval(given.prompt, given).logits:bytes() == got.logits:bytes(), "chunks of 7")
end

local names = cases.models()
if forced then names = { names[#names] } end
if #names == 0 then
  test("vision models", function(t) t.skip("13 models: there is no " .. cases.folder) end)
end
for _, name in ipairs(names) do
  test(name, function(t)
    local model <close> = assert(perigee.open(cases.folder .. name))
    local pictures <close> = assert(Pictures.open(model, { children = 1 }))
    for k = 0, 4 do check_case(t, model, pictures, name, k) end
    local computed = pictures.cache:stats().misses
    check_case(t, model, pictures, name, 1)
    t.eq(pictures.cache:stats().misses, computed, "the tower ran again for the same picture")
  end)
end
