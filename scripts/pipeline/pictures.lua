-- pictures: the pictures and videos of a request: from the URLs in its messages to features of the
-- model's vision tower.
--
--   take      the API has read the messages: URLs are replaced by short names, and kept
--   plan      the prompt has its ids: sources are fetched and their headers read, so the number of
--             tokens is known and placeholders become that many
--   (admission, which counts these tokens)
--   encode    pictures are decoded in the confined processes, the tower computes their features
--             on the engine thread, unless a cache has them
--
-- plan and encode wait, inside the task of the request; Run:cancel ends them. What they refuse is
-- a 400 (413 for too many bytes) that names the part, such as messages[2].content[1].image_url.
--
-- A model that takes pictures has one Pictures object (entry.pictures): its processor, the cache of
-- features, and the media that all models of a server share (engine/media.lua).
local async = require "lib.async"
local check = require "chat.check"
local errors = require "lib.errors"
local features = require "engine.features"
local gate = require "lib.gate"
local mrope = require "models.core.mrope"
local processors = require "models.processors"

local pictures = {}

local Pictures = {}
Pictures.__index = Pictures
Pictures.__name = "perigee.Pictures"

pictures.MOST = 128 -- pictures and frames of a request, unless config.limits.pictures is set

-- A request is worked on in groups of pictures: GROUP_ROWS patches, unless a single picture has
-- more, which is a step of the tower. SLOTS groups of all requests are in memory at a time, their
-- pixels being about 3 MB each; and TOWER of them as patches, which take four times as much: one is
-- computed, the next waits.
local GROUP_ROWS, SLOTS, TOWER = 4096, 8, 2
local WIDE = 4 -- pictures of one request that are fetched or decoded at a time

-- ---- a model ------------------------------------------------------------------------------------

--- The pictures of a model whose batch is started; nil without a vision tower, nil and why when its
--- processor cannot be opened. options: media (engine/media.lua), cache_bytes.
function pictures.open(model, batch, options)
  if not model.vision then return nil end
  local tok = model:tokenizer()
  local processor, why = processors.open(model.path, {
    ids = tok and function(name) return tok:id(name) end })
  if not processor then return nil, why end
  model.vision:attach(batch)
  return setmetatable({ model = model, processor = processor, media = options.media,
    cache = features.new { bytes = options.cache_bytes }, slots = gate.new(SLOTS),
    tower = gate.new(TOWER), counts = { image = 0, video = 0 } }, Pictures)
end

--- Detaches the tower: requests that wait for features get an error.
function Pictures:close()
  self.closed = true
  self.model.vision:detach()
  self.cache:clear()
end

--- Counters for metrics and status: image and video (pictures that were decoded), tower_seconds,
--- and those of the cache of features.
function Pictures:stats()
  local stats = self.cache:stats()
  stats.image, stats.video = self.counts.image, self.counts.video
  stats.tower_seconds = self.model.vision.seconds or 0
  return stats
end

-- ---- messages -----------------------------------------------------------------------------------

--- Takes the sources of all pictures out of checked messages: each is replaced by a name. Returns
--- { [name] = { source, at (the path of the part), kind }, names… in order }. places: { [part] =
--- its path } where the client sent it at another place. So neither hooks nor
--- templates get to see megabytes, and a hook may move or drop a picture by its name.
function pictures.take(messages, places)
  local taken = {}
  for i, message in ipairs(messages) do
    async.breathe()
    local parts = type(message.content) == "table" and message.content or {}
    for k, part in ipairs(parts) do
      local known = type(part) == "table" and check.PARTS[part.type]
      if known and (known.kind == "image" or known.kind == "video") then
        local holder, key, name = check.source(part)
        local label = ("media:%d"):format(#taken + 1)
        taken[label] = { source = holder[key], kind = known.kind, fps = holder.fps,
          base64 = name == "base64" or nil,
          at = places and places[part]
            or ("messages[%d].content[%d].%s"):format(i - 1, k - 1, name) }
        taken[#taken + 1] = label
        holder[key] = label
      end
    end
  end
  return taken
end

--- Raises if the request cannot have its pictures: the model takes none, or there are too many.
function pictures.check(taken, entry, most)
  if #taken == 0 then return end
  local first = taken[taken[1]]
  if not entry.pictures then
    errors.refuse(first.at, "is %s, but the model '%s' takes no pictures",
      first.kind == "image" and "a picture" or "a video", entry.name)
  end
  most = most or pictures.MOST
  local count = 0
  for _, label in ipairs(taken) do
    local source = taken[label].source
    count = count + (type(source) == "table" and #source or 1)
    if count > most then
      errors.refuse(taken[label].at, "is one picture too many: a request may have %d", most)
    end
  end
end

-- ---- sources ------------------------------------------------------------------------------------

--- Raises an error about one picture.
local function fail(at, err, too_large)
  if type(err) ~= "table" then err = { message = tostring(err) } end
  if errors.is(err) or err.code == "cancelled" then error(err, 0) end
  local status = too_large and err.code == "limit" and 413 or err.code == "memory" and 503 or 400
  error(errors.new { status = status, field = at, message = ("%s: %s"):format(at, err.message),
    code = status == 503 and "overloaded" or "invalid_picture" }, 0)
end

--- The bytes of a picture's file, or of all frames of a video.
local function fetch(self, given, most)
  local source, list = given.source, {}
  if given.kind == "video" and type(source) ~= "table" then
    local frames, why = self.media:fetch_frames(source, most)
    if not frames then fail(given.at, why, true) end
    return frames
  end
  for i, one in ipairs(type(source) == "table" and source or { source }) do
    local bytes, why = self.media[given.base64 and "base64" or "fetch"](self.media, one)
    if not bytes then fail(given.at, why, true) end
    list[i] = bytes
  end
  return list
end

--- The seconds of a video's frames, if the client said how many there are in one.
local function times_of(given, frames)
  local fps = given.fps
  if type(fps) ~= "number" then return nil end
  if not (fps > 0 and fps <= 1000) then
    errors.refuse(given.at .. ".fps", "must be above 0 and at most 1000, got %s", tostring(fps))
  end
  local times = {}
  for i = 1, #frames do times[i] = (i - 1) / fps end
  return times
end

local function plan_one(self, given, most)
  local files = fetch(self, given, most)
  for _, one in ipairs(type(given.source) == "table" and given.source or { given.source }) do
    if type(one) == "userdata" then one:close() end -- a slice keeps the whole body in memory
  end
  given.source = nil
  local picture, why
  if given.kind == "video" then
    picture, why = self.media:plan_video(files, self.processor, times_of(given, files))
  else
    picture, why = self.media:plan(files[1], self.processor)
  end
  if not picture then fail(given.at, why) end
  return picture
end

-- ---- waiting ------------------------------------------------------------------------------------

local function cancelled()
  return errors.new { status = 409, code = "cancelled", message = "the request was cancelled" }
end

--- Runs fn in a task that Run:cancel ends, and waits for it. Raises its errors.
local function in_task(run, fn)
  if run.cancelled then error(cancelled(), 0) end
  local task = async.run(fn)
  run.stop = function() task:cancel() end
  local ok, result = task:join()
  run.stop = nil
  if ok then return result end
  if run.cancelled then error(cancelled(), 0) end
  error(result, 0)
end

--- Calls fn(entry) for all entries, WIDE at a time: so a request with many pictures does not keep
--- the decoder from those of others.
local function for_all(list, fn)
  local at, workers = 0, {}
  local function work()
    while at < #list do
      at = at + 1
      fn(list[at])
    end
  end
  for i = 1, math.min(WIDE, #list) do workers[i] = work end
  async.all(workers)
end

-- ---- plans --------------------------------------------------------------------------------------

--- What the parts of the rendered messages stand for, in their order. A hook may have added parts
--- with URLs, or repeated one.
local function given_of(parts, taken)
  local list = {}
  for _, part in ipairs(parts) do
    local holder, key = check.source(part)
    if holder then
      local source = holder[key]
      list[#list + 1] = taken and taken[source] or { source = source, fps = holder.fps,
        kind = check.PARTS[part.type].kind, at = "messages" }
    end
  end
  return list
end

--- The entries of a list, each once.
local function distinct(list)
  local out, seen = {}, {}
  for _, one in ipairs(list) do
    if not seen[one] then
      seen[one], out[#out + 1] = true, one
    end
  end
  return out
end

--- Replaces the placeholders of a prompt by the tokens of its pictures.
local function lay_out(self, prompt, tok)
  local plans = {}
  for i, picture in ipairs(prompt.pictures) do plans[i] = picture.plan end
  local ids, items, moved = self.processor:layout(prompt.ids, plans, function(text)
    return assert(tok:encode(text, { add_special = false }))
  end, prompt.boundaries)
  if not ids then errors.refuse("messages", "cannot be shown to the model: %s", items) end
  prompt.ids, prompt.items, prompt.image_tokens = ids, items, 0
  prompt.boundaries = prompt.boundaries and moved
  for _, item in ipairs(items) do prompt.image_tokens = prompt.image_tokens + item.tokens end
end

--- Gives a prepared prompt (pipeline/prompt.lua) the tokens of its pictures: its ids and boundaries
--- change; pictures, items and image_tokens are new. run: a Run, or what is like one: { app, req,
--- entry }.
function pictures.plan(run, prompt)
  local given = given_of(prompt.parts or {}, run.req.media)
  if #given == 0 then return end
  local self = run.entry.pictures
  if not self then
    errors.refuse(given[1].at, "is a picture, but the model '%s' takes none", run.entry.name)
  end
  local most = run.app.config.limits.pictures or pictures.MOST
  in_task(run, function()
    for_all(distinct(given), function(one)
      one.picture = one.picture or plan_one(self, one, most)
    end)
  end)
  prompt.pictures = {}
  for i, one in ipairs(given) do
    one.picture.at, one.picture.kind = one.at, one.kind
    prompt.pictures[i] = one.picture
  end
  lay_out(self, prompt, run.entry.tok)
end

-- ---- features -----------------------------------------------------------------------------------

local function rows_of(picture)
  local rows = 0
  for _, grid in ipairs(picture.plan.grids or { picture.plan.grid }) do
    rows = rows + grid[1] * grid[2] * grid[3]
  end
  return rows
end

--- Pictures in groups of at most GROUP_ROWS patches.
local function groups_of(list)
  local groups, rows = {}, GROUP_ROWS
  for _, picture in ipairs(list) do
    local own = rows_of(picture)
    if #groups == 0 or rows + own > GROUP_ROWS then
      groups[#groups + 1], rows = {}, 0
    end
    table.insert(groups[#groups], picture)
    rows = rows + own
  end
  return groups
end

local function close_all(list)
  for _, one in ipairs(list) do one:close() end
end

--- Patches of one group of pictures; done(list) or done(nil, err), later.
local function cut_patches(self, group, done)
  local tiles, left, failed = {}, #group, nil
  for i, picture in ipairs(group) do
    local function cut(parts, err)
      tiles[i], failed, left = parts, failed or err, left - 1
      close_all(picture.pixels)
      if left == 0 then done(not failed and tiles or nil, failed) end
    end
    -- An error raised here would leave the group running for good.
    local ok, why = pcall(self.processor.patches, self.processor, picture.pixels, picture.plan, cut)
    if not ok then cut(nil, why) end
  end
end

--- compute of the cache of features: patches, then the tower, in turn with other requests.
local function compute(self, missing, deliver)
  local job = {}
  function job.cancel()
    job.stopped = true
    if job.running then job.running:cancel() end
  end
  self.tower:enter(function(leave)
    local tiles
    local function finish(results, err)
      leave()
      for _, parts in ipairs(tiles or {}) do
        for _, tile in ipairs(parts) do tile.patches:close() end
      end
      deliver(results, err)
    end
    if job.stopped then return finish(nil, "cancelled") end
    cut_patches(self, missing, function(list, failed)
      tiles = list
      if failed or job.stopped or self.closed then return finish(nil, failed or "cancelled") end
      local ok, made, why = pcall(self.model.vision.submit, self.model.vision, tiles, finish)
      if not ok or not made then return finish(nil, ok and why or made) end
      job.running = made
    end)
  end)
  return job
end

local function decode(self, list)
  for_all(list, function(picture)
    local done, why = self.media:complete(picture, self.processor)
    if not done then fail(picture.at, why) end
    self.counts[picture.kind] = self.counts[picture.kind] + 1
    close_all(picture.frames)
    picture.frames = nil
  end)
end

--- Computes picture.result, the features of decoded pictures. salt: requests with another one share
--- nothing.
local function compute_features(self, list, salt)
  local keyed = {}
  for i, picture in ipairs(list) do
    keyed[i] = { hash = picture.hash .. (salt or ""), pixels = picture.pixels,
      plan = picture.plan }
  end
  local results, why = async.await(function(resume)
    local job = self.cache:get(keyed, function(missing, deliver)
      return compute(self, missing, deliver)
    end, resume)
    return function() job:cancel() end
  end)
  for _, picture in ipairs(list) do
    close_all(picture.pixels)
    picture.pixels = nil
  end
  if not results then
    error(errors.new { status = 503, code = "vision_failed",
      message = "the features of the pictures could not be computed: " .. tostring(why) }, 0)
  end
  for i, result in ipairs(results) do list[i].result = result end
end

--- Fills in the features of a planned prompt: media, positions and rope_delta, as batch:add takes
--- them. Waits; raises.
function pictures.encode(run, prompt, salt)
  local list, items = prompt.pictures, prompt.items
  if not list or prompt.media then return end
  local self = run.entry.pictures
  local fresh = {} -- a `generate` hook may show a picture again
  for _, picture in ipairs(distinct(list)) do
    if not picture.result then fresh[#fresh + 1] = picture end
  end
  if #fresh > 0 then
    in_task(run, function()
      for _, group in ipairs(groups_of(fresh)) do
        local _ <close> = self.slots:wait()
        decode(self, group)
        compute_features(self, group, salt)
      end
    end)
  end
  for i, item in ipairs(items) do
    local result = list[i].result
    item.hash, item.features = list[i].hash, result.features
    item.deepstack = #result.deepstack > 0 and result.deepstack or nil
  end
  prompt.media = items
  prompt.positions, prompt.rope_delta = mrope.positions(prompt.ids, items, self.model.config)
end

return pictures
