-- gemma3: every picture becomes a square of one size, whatever its shape, and N tokens.
--
--   \n\n <start_of_image> <image_soft_token> x N <end_of_image> \n\n
--
-- The template has <start_of_image> for a picture. Pan and scan (crops of wide pictures) is off in
-- the published configs and not supported.
local Gemma3 = {}

Gemma3.names = { "gemma3" }

local HALF = { 0.5, 0.5, 0.5 }

function Gemma3:open(settings, config)
  if settings:value "do_pan_and_scan" == true then return nil, "pan and scan is not supported" end
  local size, vision = settings:object "size" or {}, config.vision_config or {}
  self.width, self.height = size.width or vision.image_size or 896,
    size.height or vision.image_size or 896
  self.patch = vision.patch_size or 14
  self.scale, self.filter = settings:scale(), settings:filter "bilinear"
  self.mean, self.std = settings:mean(HALF), settings:std(HALF)
  self.count = config.mm_tokens_per_image or settings:integer "image_seq_length" or 256
  self.image_token = config.image_token_index or config.image_token_id
  self.first = config.boi_token_index or config.boi_token_id
  self.last = config.eoi_token_index or config.eoi_token_id
  self.placeholder = self.first
end

function Gemma3:plan()
  return { kind = "image", width = self.width, height = self.height, filter = self.filter,
    grid = { 1, self.height // self.patch, self.width // self.patch }, tokens = self.count,
    targets = { { width = self.width, height = self.height, filter = self.filter } } }
end

function Gemma3:parts() return { { order = "cyx", patch = self.patch } } end

function Gemma3:expand(plan, out, encode)
  local lines = encode and encode "\n\n" or {}
  out:ids(lines)
  out:ids { self.first }
  out:features(self.image_token, plan.tokens)
  out:ids { self.last }
  out:ids(lines)
end

return Gemma3
