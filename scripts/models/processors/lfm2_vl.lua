-- lfm2_vl: a picture keeps its shape and becomes min_image_tokens to max_image_tokens tokens. One
-- that is much larger is also cut into square tiles, and comes last as a thumbnail.
--
--   <|image_start|> tokens <|image_end|>
--   <|image_start|> (<|img_row_1_col_1|> tokens) … <|img_thumbnail|> tokens <|image_end|>
--
-- The template has <image> for a picture.
local fit = require "models.processors.fit"

local Lfm2 = {}

Lfm2.names = { "lfm2_vl" }

local HALF = { 0.5, 0.5, 0.5 }

function Lfm2:open(settings, config, ids)
  local function integer(key, absent) return settings:integer(key) or absent end
  self.patch = integer("encoder_patch_size", 16)
  self.merge = integer("downsample_factor", config.downsample_factor or 2)
  self.least, self.most = integer("min_image_tokens", 64), integer("max_image_tokens", 256)
  self.min_tiles, self.max_tiles = integer("min_tiles", 2), integer("max_tiles", 10)
  self.tile = integer("tile_size", 512)
  self.tolerance = settings:value "max_pixels_tolerance" or 2.0
  self.splits = settings:value "do_image_splitting" ~= false
    and not (self.min_tiles == 1 and self.max_tiles == 1)
  self.thumbnail = settings:value "use_thumbnail" ~= false
  self.scale, self.filter = settings:scale(), settings:filter "bilinear"
  self.mean, self.std = settings:mean(HALF), settings:std(HALF)
  self.image_token = config.image_token_id or config.image_token_index
  self.id = ids
end

--- Columns and rows of tiles whose shape is closest to the picture's.
local function tiles_of(self, width, height)
  local best, columns, rows = math.huge, 1, 1
  for area = self.min_tiles, self.max_tiles do -- of two equally close ones, the smaller comes first
    for w = 1, area do
      local h = area // w
      if w * h == area then
        local away = math.abs(width / height - w / h)
        local larger = away == best and width * height > 0.5 * self.tile * self.tile * area
        if away < best or larger then best, columns, rows = away, w, h end
      end
    end
  end
  return columns, rows
end

local function is_large(self, width, height)
  local block = self.patch * self.merge
  local h = math.max(self.patch, fit.round(height / block) * block)
  local w = math.max(self.patch, fit.round(width / block) * block)
  return h * w > self.most * block * block * self.tolerance
end

--- Tokens of a part: pixel unshuffle pads an odd side.
local function tokens_of(self, width, height)
  local block = self.patch * self.merge
  return ((height + block - 1) // block) * ((width + block - 1) // block)
end

local function grid_of(self, width, height)
  return { 1, height // self.patch, width // self.patch }
end

local function split(self, plan, columns, rows)
  local side, thumb = self.tile, plan.targets[1]
  plan.width, plan.height = columns * side, rows * side
  plan.targets = { { width = plan.width, height = plan.height, filter = self.filter } }
  plan.tiles, plan.grids = { columns = columns, rows = rows }, {}
  local each = tokens_of(self, side, side)
  for i = 1, columns * rows do plan.grids[i] = grid_of(self, side, side) end
  plan.tokens = columns * rows * each
  if self.thumbnail then
    plan.targets[2] = thumb
    plan.grids[#plan.grids + 1] = grid_of(self, thumb.width, thumb.height)
    plan.tokens = plan.tokens + tokens_of(self, thumb.width, thumb.height)
  end
end

function Lfm2:plan(width, height)
  local block = self.patch * self.merge
  local area = block * block
  local w, h = fit.area(width, height, block, { min = self.least * area, max = self.most * area })
  local plan = { kind = "image", width = w, height = h, filter = self.filter,
    grid = grid_of(self, w, h), tokens = tokens_of(self, w, h),
    targets = { { width = w, height = h, filter = self.filter } } }
  if self.splits and is_large(self, width, height) then
    local columns, rows = tiles_of(self, width, height)
    if columns * rows > 1 then split(self, plan, columns, rows) end
  end
  return plan
end

function Lfm2:parts(plan)
  local parts = {}
  local tiles = plan.tiles
  if not tiles then return { { order = "yxc", patch = self.patch } } end
  for i = 0, tiles.rows * tiles.columns - 1 do
    parts[#parts + 1] = { order = "yxc", patch = self.patch, x = i % tiles.columns * self.tile,
      y = i // tiles.columns * self.tile, width = self.tile, height = self.tile }
  end
  if plan.targets[2] then
    parts[#parts + 1] = { order = "yxc", patch = self.patch, target = 2 }
  end
  return parts
end

local function mark(self, out, name)
  local id = self.id and self.id(name)
  if id then out:ids { id } end
end

function Lfm2:expand(plan, out)
  mark(self, out, "<|image_start|>")
  local tiles = plan.tiles or { rows = 0, columns = 0 }
  local each = tokens_of(self, self.tile, self.tile)
  for row = 1, tiles.rows do
    for column = 1, tiles.columns do
      mark(self, out, ("<|img_row_%d_col_%d|>"):format(row, column))
      out:features(self.image_token, each)
    end
  end
  local rest = plan.tokens - tiles.rows * tiles.columns * each
  if rest > 0 then
    if plan.tiles then mark(self, out, "<|img_thumbnail|>") end
    out:features(self.image_token, rest)
  end
  mark(self, out, "<|image_end|>")
end

return Lfm2
