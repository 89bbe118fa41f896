-- qwen: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: pictures of any size, and videos.
--
-- A picture is resized to whole merge blocks (patch * merge), so that its area lies between
-- min_pixels and max_pixels and its shape stays; every merge block becomes one token. Two frames of
-- a video share their tokens.
--
--   Qwen2, 2.5   <|vision_start|> <|video_pad|> … <|vision_end|>, all pairs of frames in one block
--   Qwen3, 3.5   <0.2 seconds> <|vision_start|> <|video_pad|> … <|vision_end|> for each pair
local fit = require "models.processors.fit"

local Qwen = {}

Qwen.names = { "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe" }

local MIN_PIXELS, MAX_PIXELS = 3136, 1003520 -- the reference's; published configs have their own
local ASPECT = 200                           -- the reference refuses thinner pictures
local RATE = 4                               -- frames per second, if their times are not given
local CLIP_MEAN, CLIP_STD = { 0.48145466, 0.4578275, 0.40821073 },
  { 0.26862954, 0.26130258, 0.27577711 }

local function limits_of(settings)
  local size = settings:object "size" or {}
  return { min = settings:integer "min_pixels" or size.shortest_edge or MIN_PIXELS,
    max = settings:integer "max_pixels" or size.longest_edge or MAX_PIXELS }
end

function Qwen:open(settings, config)
  self.patch = settings:integer "patch_size" or 14
  self.merge = settings:integer "merge_size" or 2
  self.frames = settings:integer "temporal_patch_size" or 2
  self.scale, self.filter = settings:scale(), settings:filter "bicubic"
  self.mean, self.std = settings:mean(CLIP_MEAN), settings:std(CLIP_STD)
  self.limits = limits_of(settings)
  self.video_limits = settings.video and limits_of(settings.video) or self.limits
  self.stamped = not config.model_type:match "^qwen2"
  self.image_token, self.video_token = config.image_token_id, config.video_token_id
  self.first, self.last = config.vision_start_token_id, config.vision_end_token_id
end

local function plan_of(self, kind, pictures, width, height, limits, counted)
  if math.max(width, height) / math.min(width, height) > ASPECT then
    return nil, ("the picture has %d x %d pixels: one side is more than %d times the other")
      :format(width, height, ASPECT)
  end
  local w, h = fit.area(width, height, self.patch * self.merge, limits, counted)
  local groups = (pictures + self.frames - 1) // self.frames
  local rows, columns = h // self.patch, w // self.patch
  return { kind = kind, width = w, height = h, filter = self.filter,
    grid = { groups, rows, columns },
    tokens = groups * rows * columns // (self.merge * self.merge),
    targets = { { width = w, height = h, filter = self.filter } } }
end

function Qwen:plan(width, height)
  return plan_of(self, "image", 1, width, height, self.limits)
end

--- times: the second of each frame. plan.seconds has the time of each group of frames,
--- plan.seconds_per_grid what one group lasts.
function Qwen:plan_video(frames, width, height, times)
  local groups = (frames + self.frames - 1) // self.frames
  local plan, why = plan_of(self, "video", frames, width, height, self.video_limits,
    self.stamped and groups * self.frames or 1)
  if not plan then return nil, why end
  local function at(i)
    i = math.min(i, frames)
    return times and times[i] or (i - 1) / RATE
  end
  plan.frames, plan.seconds, plan.seconds_per_grid = frames, {}, self.frames / RATE
  for group = 1, groups do
    local first = (group - 1) * self.frames + 1
    plan.seconds[group] = (at(first) + at(first + self.frames - 1)) / 2
  end
  if times and frames > 1 then
    plan.seconds_per_grid = (times[frames] - times[1]) / (frames - 1) * self.frames
  end
  return plan
end

function Qwen:parts()
  return { { order = "cyx", patch = self.patch, merge = self.merge, frames = self.frames } }
end

--- Videos of later models have a start and an end of their own around each pair of frames instead
--- of those in the template.
function Qwen:strips(plan) return plan.kind == "video" and self.stamped end

function Qwen:expand(plan, out, encode)
  if plan.kind ~= "video" then return out:features(self.image_token, plan.tokens) end
  if not self.stamped then return out:features(self.video_token, plan.tokens) end
  for _, seconds in ipairs(plan.seconds) do
    if encode then out:ids(encode(("<%.1f seconds>"):format(seconds))) end
    out:ids { self.first }
    out:features(self.video_token, plan.tokens // #plan.seconds)
    out:ids { self.last }
  end
end

return Qwen
