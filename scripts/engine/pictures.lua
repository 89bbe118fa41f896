-- pictures: the pictures and videos of a prompt, from files to rows of a batch, in the foreground.
--
--   local pictures <close> = assert(Pictures.open(model))
--   local given = pictures:prepare(ids, { images = { "cat.png" }, videos = { { "0.png", … } } })
--   model:batch():add(given)
--
--   local given = Pictures.talk(model, words, { messages = … })   -- through the chat template
--
--   files ── engine/media ── processor ── model.vision ── items
--            pixels, hash    patches      features        with their places and positions
--
-- The tokens of the pictures may stand in the prompt already, as many as they have, or each picture
-- has one placeholder, which is replaced by its tokens. The features of a picture that was seen
-- before come from a cache (engine/features.lua).
--
-- A source is the path of a file, a data URI, or the bytes of a file (perigee.Bytes). Paths are for
-- the command line and scripts: nothing here may be called with the text of a client of a server.
local Media = require "engine.media"
local features = require "engine.features"
local mrope = require "models.core.mrope"
local perigee = require "perigee"
local processors = require "models.processors"
local json = perigee.json

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

-- ---- sources ------------------------------------------------------------------------------------

local function fail(format, ...) error(format:format(...), 0) end

--- What messages call a source.
local function name_of(source)
  if type(source) ~= "string" then return "picture" end
  return source:sub(1, 5):lower() == "data:" and "data URI" or source
end

local function read(self, source)
  if type(source) ~= "string" then return source end
  local bytes, why
  if source:find "^[dD][aA][tT][aA]:" or source:find "^%a+://" then
    bytes, why = self.media:fetch(source)
    if not bytes then fail("%s: %s", name_of(source), tostring(why)) end
  else
    bytes, why = Media.read(source)
    if not bytes then error(why, 0) end
  end
  return bytes
end

local function load_image(self, source)
  local picture, why = self.media:load(read(self, source), self.processor)
  if not picture then fail("%s: %s", name_of(source), tostring(why)) end
  return picture
end

--- The frames of a video: a list of sources, or one data URI that has them all.
local function read_frames(self, sources)
  local frames, all = {}, sources[1]
  if #sources == 1 and type(all) == "string" and all:find "^[dD][aA][tT][aA]:" then
    local list, why = self.media:fetch_frames(all)
    if not list then fail("%s: %s", name_of(all), tostring(why)) end
    return list
  end
  for i, source in ipairs(sources) do frames[i] = read(self, source) end
  return frames
end

local function load_video(self, sources)
  local frames = read_frames(self, sources)
  local video, why = self.media:load_video(frames, self.processor)
  if not video then fail("%s: %s", name_of(sources[1] or "video"), tostring(why)) end
  return video
end

local function is_source(v)
  return type(v) == "string" or type(v) == "userdata" and v ~= json.null
end

local function check_list(list, where, check)
  if type(list) ~= "table" then fail("%s must be a list, got %s", where, type(list)) end
  for i, v in ipairs(list) do check(v, ("%s[%d]"):format(where, i)) end
end

local function check_source(v, where)
  if not is_source(v) then fail("%s must be a path or a data URI, got %s", where, type(v)) end
end

--- Raises unless images is a list of sources and videos a list of lists of them.
local function check_given(given)
  if given.images then check_list(given.images, "images", check_source) end
  if given.videos then
    check_list(given.videos, "videos", function(frames, where)
      check_list(frames, where, check_source)
    end)
  end
end

--- What a picture is, without decoding it: { width, height, format, tokens }. Raises one line.
function Pictures:look(source)
  local info, why = self.media:probe(read(self, source))
  if not info then fail("%s: %s", name_of(source), tostring(why)) end
  local plan, refused = self.processor:plan(info.width, info.height)
  if not plan then fail("%s: %s", name_of(source), tostring(refused)) end
  return { width = info.width, height = info.height, format = info.format, tokens = plan.tokens }
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

--- The text that stands for one picture in a prompt; nil without a tokenizer.
local function mark(self)
  local tok, p = self.model:tokenizer(), self.processor
  return tok and tok:token(p.placeholder or p.image_token)
end

--- Does the prompt have a place for a picture or a video?
function Pictures:has_place(ids)
  local p = self.processor
  for _, id in ipairs(ids) do
    if id == p.image_token or id == p.placeholder or id == p.video_token then return true end
  end
  return false
end

--- The prompt with all tokens of its pictures, their items, the pictures in order, and where the
--- boundaries are now.
local function place(self, ids, loaded, boundaries)
  local all = #loaded.image + #loaded.video
  local list = ordered(self, ids, loaded, true)
  local items = #list == all and self.processor:locate(ids, plans_of(list))
  if items then return ids, items, list, boundaries end
  local tok = self.model:tokenizer()
  list = ordered(self, ids, loaded, false)
  if #list < all then
    local text = mark(self)
    fail("the prompt has places for %d of %d pictures%s", #list, all,
      text and (": write %s where one belongs"):format(text) or "")
  end
  local longer, placed, moved = self.processor:layout(ids, plans_of(list), tok and function(text)
    return assert(tok:encode(text))
  end, boundaries)
  if not longer then error(placed, 0) end
  return longer, placed, list, boundaries and moved
end

-- ---- features -----------------------------------------------------------------------------------

local function patches_of(self, picture)
  local parts, why = self.processor:patches(picture.pixels, picture.plan)
  if not parts then error(why, 0) end
  return parts
end

--- The features of all pictures; those that are not cached are computed in one step. taps: names of
--- values inside the tower; then all are computed.
local function encode(self, list, taps)
  local function compute(missing, options)
    local tiles = {}
    for i, picture in ipairs(missing) do tiles[i] = patches_of(self, picture) end
    return self.model.vision:encode_all(tiles, options)
  end
  if taps then return compute(list, { tap = taps }) end
  return self.cache:fetch(list, compute)
end

--- What batch:add and model:eval need for a prompt with pictures: { prompt = ids, media =,
--- positions =, rope_delta =, boundaries = }, and for those who look at them: pictures, in their
--- order in the prompt, each with plan, pixels and taps. given: images (sources), videos (lists of
--- sources, the frames), boundaries (of the prompt as it is given), vision_tap (names of values
--- inside the tower). Raises one line.
function Pictures:prepare(ids, given)
  check_given(given)
  local loaded = { image = {}, video = {} }
  for i, source in ipairs(given.images or {}) do loaded.image[i] = load_image(self, source) end
  for i, frames in ipairs(given.videos or {}) do loaded.video[i] = load_video(self, frames) end
  local prompt, items, list, boundaries = place(self, ids, loaded, given.boundaries)
  for i, result in ipairs(#list > 0 and encode(self, list, given.vision_tap) or {}) do
    local item = items[i]
    item.hash, item.features = list[i].hash, result.features
    item.deepstack = #result.deepstack > 0 and result.deepstack or nil
    list[i].taps = given.vision_tap and result.taps
  end
  local positions, delta = mrope.positions(prompt, items, self.model.config)
  return { prompt = prompt, media = items, positions = positions, rope_delta = delta,
    pictures = list, boundaries = boundaries }
end

-- ---- conversations ------------------------------------------------------------------------------

local function value_of(part, kind)
  for _, key in ipairs { kind .. "_url", kind, "url", "path" } do
    local v = part[key]
    if json.is_object(v) then v = v.url or v.path end
    if v ~= nil and v ~= json.null then return v end
  end
end

--- The sources of the parts of messages, in order; a part without one takes the next of given.
local function sources(parts, given)
  local out, from = { image = {}, video = {} }, { image = 1, video = 1 }
  local lists = { image = given.images or {}, video = given.videos or {} }
  for _, part in ipairs(parts) do
    local kind = part.type:match "image" or part.type:match "video"
    if not kind then
      fail("message part of type '%s': only text, pictures and videos are supported", part.type)
    end
    local value = value_of(part, kind)
    if value == nil then value, from[kind] = lists[kind][from[kind]], from[kind] + 1 end
    if value == nil then fail("message part of type '%s' has no %s", part.type, kind) end
    if kind == "video" and is_source(value) then value = { value } end
    table.insert(out[kind], value)
  end
  for kind, list in pairs(lists) do
    if from[kind] <= #list then
      fail("the messages have places for %d of %d %ss", from[kind] - 1, #list, kind)
    end
  end
  return { images = out.image, videos = out.video }
end

--- The prompt of a conversation. words: the model's (see chat); request: of words:prompt, and
--- images and videos for parts that do not name their own. Returns what batch:add needs, and the
--- prompt of words:prompt. Raises one line.
function Pictures.talk(model, words, request)
  local prompt, why = words:prompt(request)
  if not prompt then error(why, 0) end
  local given = sources(prompt.media, request)
  local tok, none = model:tokenizer()
  if not tok then error(none, 0) end
  local ids, boundaries = words:encode(tok, prompt)
  if not ids then error(boundaries, 0) end
  if #prompt.media == 0 then return { prompt = ids, boundaries = boundaries }, prompt end
  given.boundaries = boundaries
  local out = model:pictures():prepare(ids, given)
  out.pictures = nil
  return out, prompt
end

return Pictures
