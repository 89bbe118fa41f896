-- pictures: the pictures and videos of a prompt, from files to rows of a batch, in the foreground.
--
--   local pictures <close> = assert(Pictures.open(model))
--   local given = pictures:prepare(ids, { images = { "cat.png" }, videos = { { "0.png", … } } })
--   model:eval(given.prompt, given)           -- or model:batch():add(given)
--
--   files ── engine/media ── processor ── model.vision ── items
--            pixels, hash    patches      features        with their places and positions
--
-- The tokens of the pictures may stand in the prompt already, as many as they have, or each picture
-- has one placeholder, which is replaced by its tokens. The features of a picture that was seen
-- before come from a cache (engine/features.lua).
local Media = require "engine.media"
local features = require "engine.features"
local mrope = require "models.core.mrope"
local processors = require "models.processors"

local Pictures = {}
Pictures.__index = Pictures

--- Options: children (decoder processes), bytes (of the cache of features). nil and why for a model
--- without pictures.
function Pictures.open(model, options)
  options = options or {}
  if not model.vision then return nil, ("%s: the model takes no pictures"):format(model.path) end
  local tok = model:tokenizer()
  local processor, why = processors.open(model.path, {
    ids = tok and function(name) return tok:id(name) end })
  if not processor then
    return nil, why or ("%s: the model takes no pictures"):format(model.path)
  end
  local media, broken = Media.open { children = options.children }
  if not media then return nil, broken end
  return setmetatable({ model = model, processor = processor, media = media,
    cache = features.new { bytes = options.bytes } }, Pictures)
end

function Pictures:close() self.media:close() end
Pictures.__close = Pictures.close

-- ---- files --------------------------------------------------------------------------------------

local function read(path)
  local bytes, why = Media.read(path)
  if not bytes then error(why, 0) end
  return bytes
end

local function load_image(self, path)
  local picture, why = self.media:load(read(path), self.processor)
  if not picture then error(("%s: %s"):format(path, tostring(why)), 0) end
  return picture
end

local function load_video(self, paths)
  local frames = {}
  for i, path in ipairs(paths) do frames[i] = read(path) end
  local video, why = self.media:load_video(frames, self.processor)
  if not video then error(("%s: %s"):format(paths[1] or "video", tostring(why)), 0) end
  return video
end

-- ---- places -------------------------------------------------------------------------------------

--- Images and videos in the order in which their tokens come in the prompt. laid_out: each has all
--- of its tokens there, else one placeholder.
local function ordered(self, ids, loaded, laid_out)
  local p, list = self.processor, {}
  local image = laid_out and p.image_token or p.placeholder or p.image_token
  local next_of, left = { image = 1, video = 1 }, { image = 0, video = 0 }
  for _, id in ipairs(ids) do
    local kind = id == image and "image" or id == p.video_token and "video"
    if kind and left[kind] == 0 then
      local picture = loaded[kind][next_of[kind]]
      if picture then
        list[#list + 1], next_of[kind] = picture, next_of[kind] + 1
        left[kind] = laid_out and picture.plan.tokens or 1
      end
    end
    if kind then left[kind] = math.max(0, left[kind] - 1) end
  end
  return list
end

local function plans_of(list)
  local plans = {}
  for i, picture in ipairs(list) do plans[i] = picture.plan end
  return plans
end

--- The prompt with all tokens of its pictures, their items, and the pictures in order.
local function place(self, ids, loaded)
  local all = #loaded.image + #loaded.video
  local list = ordered(self, ids, loaded, true)
  local items = #list == all and self.processor:locate(ids, plans_of(list))
  if items then return ids, items, list end
  local tok = self.model:tokenizer()
  list = ordered(self, ids, loaded, false)
  if #list < all then
    error(("the prompt has places for %d of %d pictures"):format(#list, all), 0)
  end
  local longer, placed = self.processor:layout(ids, plans_of(list), tok and function(text)
    return assert(tok:encode(text))
  end)
  if not longer then error(placed, 0) end
  return longer, placed, list
end

-- ---- features -----------------------------------------------------------------------------------

--- The features of all pictures; those that are not cached are computed in one step.
local function encode(self, list)
  return self.cache:fetch(list, function(missing)
    local tiles = {}
    for i, picture in ipairs(missing) do
      local parts, why = self.processor:patches(picture.pixels, picture.plan)
      if not parts then error(why, 0) end
      tiles[i] = parts
    end
    return self.model.vision:encode_all(tiles)
  end)
end

--- What batch:add and model:eval need for a prompt with pictures: { prompt = ids, media =,
--- positions =, rope_delta = }, and for those who look at them: pictures, in their order in the
--- prompt. given: images (paths), videos (lists of paths, the frames). Raises one line.
function Pictures:prepare(ids, given)
  local loaded = { image = {}, video = {} }
  for i, path in ipairs(given.images or {}) do loaded.image[i] = load_image(self, path) end
  for i, paths in ipairs(given.videos or {}) do loaded.video[i] = load_video(self, paths) end
  local prompt, items, list = place(self, ids, loaded)
  for i, result in ipairs(#list > 0 and encode(self, list) or {}) do
    local item = items[i]
    item.hash, item.features = list[i].hash, result.features
    item.deepstack = #result.deepstack > 0 and result.deepstack or nil
  end
  local positions, delta = mrope.positions(prompt, items, self.model.config)
  return { prompt = prompt, media = items, positions = positions, rope_delta = delta,
    pictures = list }
end

return Pictures
