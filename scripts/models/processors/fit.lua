-- fit: sizes of pictures in whole blocks, as the references compute them.
local fit = {}

--- Python's round: half to even.
function fit.round(x)
  local low = math.floor(x)
  local rest = x - low
  if rest > 0.5 or rest == 0.5 and low % 2 == 1 then low = low + 1 end
  return math.tointeger(low)
end

local function floor(x) return math.tointeger(math.floor(x)) end
local function ceil(x) return math.tointeger(math.ceil(x)) end

--- Width and height as multiples of `factor` that keep the shape, with an area between `min` and
--- `max`; `frames` counts towards the area of a video.
function fit.area(width, height, factor, limits, frames)
  frames = frames or 1
  local h = math.max(factor, fit.round(height / factor) * factor)
  local w = math.max(factor, fit.round(width / factor) * factor)
  if frames * h * w > limits.max then
    local beta = math.sqrt(frames * height * width / limits.max)
    h = math.max(factor, floor(height / beta / factor) * factor)
    w = math.max(factor, floor(width / beta / factor) * factor)
  elseif frames * h * w < limits.min then
    local beta = math.sqrt(limits.min / (frames * height * width))
    h, w = ceil(height * beta / factor) * factor, ceil(width * beta / factor) * factor
  end
  return w, h
end

return fit
