-- gemma4: a picture keeps its shape and fills a budget of patches; a pooling window of patches
-- (3 x 3) becomes one token.
--
--   <|image> <|image|> x N <image|>
--
-- The template has <|image|> for a picture. Values are only scaled to 0 … 1; the tower computes
-- 2x - 1.
local Gemma4 = {}

Gemma4.names = { "gemma4" }

function Gemma4:open(settings, config)
  self.patch = settings:integer "patch_size" or 16
  self.pool = settings:integer "pooling_kernel_size" or 3
  self.most = (settings:integer "max_soft_tokens" or 280) * self.pool * self.pool -- patches
  self.scale, self.filter = settings:scale(), settings:filter "bicubic"
  self.mean, self.std = settings:mean { 0, 0, 0 }, settings:std { 1, 1, 1 }
  self.image_token = config.image_token_id or config.image_token_index
  self.first = config.boi_token_id or config.boi_token_index
  self.last = config.eoi_token_id or config.eoi_token_index
end

--- The largest multiples of `side` with at most `most` patches; a very thin picture has one block
--- on its short side.
local function fit(self, width, height)
  local side, area = self.pool * self.patch, self.most * self.patch * self.patch
  local factor = math.sqrt(area / (height * width))
  local h = math.tointeger(factor * height // side) * side
  local w = math.tointeger(factor * width // side) * side
  local longest = self.most // (self.pool * self.pool) * side
  if h == 0 and w == 0 then return nil end
  if h == 0 then h, w = side, math.min(width // height * side, longest) end
  if w == 0 then w, h = side, math.min(height // width * side, longest) end
  return w, h
end

function Gemma4:plan(width, height)
  local w, h = fit(self, width, height)
  if not w then
    return nil, ("a picture of %d x %d pixels cannot be resized to whole blocks"):format(width,
      height)
  end
  local rows, columns = h // self.patch, w // self.patch
  return { kind = "image", width = w, height = h, filter = self.filter,
    grid = { 1, rows, columns }, tokens = rows * columns // (self.pool * self.pool),
    targets = { { width = w, height = h, filter = self.filter } } }
end

function Gemma4:parts() return { { order = "yxc", patch = self.patch } } end

function Gemma4:expand(plan, out)
  out:ids { self.first }
  out:features(self.image_token, plan.tokens)
  out:ids { self.last }
end

return Gemma4
