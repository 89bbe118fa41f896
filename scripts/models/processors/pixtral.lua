-- pixtral: Pixtral (model type llava) and Mistral 3: a picture shrinks until its longest side fits,
-- then both sides are rounded up to whole blocks (patch * merge). It is never enlarged.
--
--   [IMG] x columns [IMG_BREAK] for each row of blocks; the last break is [IMG_END]
local Pixtral = {}

Pixtral.names = { "llava", "mistral3", "pixtral" }

local CLIP_MEAN, CLIP_STD = { 0.48145466, 0.4578275, 0.40821073 },
  { 0.26862954, 0.26130258, 0.27577711 }

function Pixtral:open(settings, config, ids)
  local vision = config.vision_config or {}
  if config.model_type == "llava" and vision.model_type ~= "pixtral" then
    return nil, ("llava models with a %s tower are not supported"):format(vision.model_type)
  end
  local size, patch = settings:object "size" or {}, settings:value "patch_size"
  self.longest = size.longest_edge or vision.image_size or 1024
  self.patch = vision.patch_size or type(patch) == "table" and patch.height or patch or 16
  self.merge = config.spatial_merge_size or settings:integer "spatial_merge_size" or 1
  self.scale, self.filter = settings:scale(), settings:filter "bicubic"
  self.mean, self.std = settings:mean(CLIP_MEAN), settings:std(CLIP_STD)
  self.image_token = config.image_token_index or config.image_token_id
  self.row_end = ids and ids(settings:value "image_break_token" or "[IMG_BREAK]") or 12
  self.last = ids and ids(settings:value "image_end_token" or "[IMG_END]") or 13
end

function Pixtral:plan(width, height)
  local ratio = math.max(height / self.longest, width / self.longest)
  if ratio > 1 then
    height = math.max(1, math.tointeger(height / ratio // 1))
    width = math.max(1, math.tointeger(width / ratio // 1))
  end
  local block = self.patch * self.merge
  local rows, columns = (height - 1) // block + 1, (width - 1) // block + 1
  return { kind = "image", width = columns * block, height = rows * block, filter = self.filter,
    grid = { 1, rows * self.merge, columns * self.merge }, tokens = rows * columns,
    targets = { { width = columns * block, height = rows * block, filter = self.filter } } }
end

function Pixtral:parts() return { { order = "cyx", patch = self.patch } } end

function Pixtral:expand(plan, out)
  local rows = plan.grid[2] // self.merge
  for row = 1, rows do
    out:features(self.image_token, plan.tokens // rows)
    out:ids { row < rows and self.row_end or self.last }
  end
end

return Pixtral
