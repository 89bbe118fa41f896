-- image: pictures per second through the vision tower of a model, and the first token of a
-- conversation with a picture, cold and again.
local perigee = require "perigee"
local common = require "cmd.bench.common"
local mrope = require "models.core.mrope"

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

-- ---- a conversation -----------------------------------------------------------------------------

local SIDE, TEXT = 32, 64 -- patches of a side; tokens of text before and after the picture

--- A request with this picture; the placeholder is the first id that the text does not have.
local function request_of(model, batch, shown, features)
  local tokens, ids = model.vision:tokens(shown.grid), common.ids(TEXT, batch.core.vocabulary - 1)
  local pad = batch.core.vocabulary - 1
  for i = 1, tokens do ids[TEXT + i] = pad end
  table.move(common.ids(TEXT, pad, 1), 1, TEXT, TEXT + tokens + 1, ids)
  local item = { at = TEXT + 1, tokens = tokens, grid = shown.grid, hash = ("p"):rep(32),
    features = features.features,
    deepstack = #features.deepstack > 0 and features.deepstack or nil }
  local request = common.request(ids, 1)
  request.media = { item }
  request.positions, request.rope_delta = mrope.positions(ids, request.media, model.config)
  return request
end

--- Time to first token of a conversation with a picture: cold, the tower and the whole prompt;
--- again, one token.
local function conversation(model, add)
  local vision = model.vision
  local side = SIDE // vision.merge * vision.merge
  if vision.spec.table == "raster" then side = vision.spec.side end
  local shown = picture(vision, side, 1)
  local most = 2 * TEXT + vision:tokens(shown.grid) + 2
  local batch <close> = common.batch(model,
    { sequences = 2, context = most, cache_bytes = 1 << 30 })
  local function first_token(features)
    local t = now()
    local request = request_of(model, batch, shown, features or vision:eval(shown))
    local seq = assert(batch:add(request))
    common.prefill(batch, seq)
    while not seq.finish do assert(batch:step()) end
    return now() - t, seq.cached_tokens, #request.prompt
  end
  local kept = vision:eval(shown) -- also provides the tower's memory
  local cold, _, tokens = first_token()
  local warm, cached = {}, nil
  for i = 1, 3 do warm[i], cached = first_token(kept) end
  local again = common.median(warm)
  add { test = "image", tokens = tokens, batch = 1, depth = 0, patches = side * side,
    first_ms = cold * 1e3, repeat_ms = again * 1e3, cached = cached, ratio = cold / again }
end

--- Sizes after one that takes longer than a measurement may are left out.
function image.run(model, opts, add)
  local vision, s = model.vision, 0
  if not vision then
    if opts.tests then error("the model has no vision tower for the test 'image'", 0) end
    return
  end
  conversation(model, add)
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
