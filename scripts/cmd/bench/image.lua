-- image: pictures per second through the vision tower of a model.
local perigee = require "perigee"
local common = require "cmd.bench.common"

local image = {}
local now = common.now

-- Sides of the pictures, in patches (of 16 pixels in most towers), and how many of them at once.
local SIZES = { { 16, 1 }, { 16, 8 }, { 32, 1 }, { 64, 1 } }

--- A square picture of noise.
local function picture(vision, side, seed)
  return { grid = { 1, side, side }, patches = perigee.tensor.uniform { side * side,
    vision.spec.patch, seed = seed, low = -1, high = 1 } }
end

--- Seconds for these pictures: the best of up to six runs, of which the first provides the memory.
local function encode(vision, list, seconds)
  local best, started = math.huge, now()
  for _ = 1, 6 do
    local t = now()
    vision:encode_all(list)
    best = math.min(best, now() - t)
    if now() - started > seconds then break end
  end
  return best
end

--- Sizes after one that takes longer than a measurement may are left out.
function image.run(model, opts, add)
  local vision, s = model.vision, 0
  if not vision then
    if opts.tests then error("the model has no vision tower for the test 'image'", 0) end
    return
  end
  for _, size in ipairs(SIZES) do
    if s > opts.seconds then return end
    local side, count = size[1] // vision.merge * vision.merge, size[2]
    if vision.spec.table == "raster" then side = vision.spec.side end -- the only one it takes
    local list = {}
    for i = 1, count do list[i] = picture(vision, side, i) end
    s = encode(vision, list, opts.seconds)
    local tokens = vision:tokens(list[1].grid)
    add { test = "image", tokens = tokens, batch = count, depth = 0, patches = side * side,
      tokens_per_s = count * tokens / s, images_per_s = count / s }
  end
end

return image
