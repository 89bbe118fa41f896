-- mrope: positions on three axes (frame, row, column) of a prompt with pictures: Qwen's models.
--
-- Text counts up on all axes. A picture at position p has (p, p + row, p + column) for each of its
-- tokens, and text goes on after the largest of these. The frames of a video follow each other on
-- the first axis if their tokens are in one run (Qwen2-VL, Qwen2.5-VL); where other tokens stand
-- between them (Qwen3-VL, Qwen3.5), each frame is a separate picture. A generated token at index i
-- (from 0) has position i + delta: they count up from the largest position of the prompt.
local config = require "models.core.config"

local mrope = {}

--- Rows and columns of tokens of an item.
local function size_of(item, merge)
  local grid = item.grid
  if type(grid) ~= "table" or #grid ~= 3 then error("media: grid must be {t, h, w}", 0) end
  return grid[2] // merge, grid[3] // merge
end

--- The position of a frame on the first axis, relative to the first frame: by its time, if the
--- model goes by time (Qwen2.5-VL) and the times are known.
local function frame_at(frame, rate, item)
  if not rate or not item.seconds_per_grid then return frame end
  return math.tointeger(math.floor(frame * rate * item.seconds_per_grid))
end

--- The positions of prompt `ids` with these media items (as batch:add takes them, with grid and,
--- for videos, seconds_per_grid), and the delta; nil if the model has one axis. c: the config.
function mrope.positions(ids, media, c)
  if not c.rope.sections then return nil end
  local vision = config.object(c.vision_config) or {}
  local merge = config.get(vision, "spatial_merge_size") or 2
  local rate = config.get(vision, "tokens_per_second")
  local axes, next_item, left, item = { {}, {}, {} }, 1, 0, nil
  local position, largest, i = 0, -1, 1
  local function put(t, h, w)
    axes[1][i], axes[2][i], axes[3][i] = t, h, w
    largest, i = math.max(largest, t, h, w), i + 1
  end
  while i <= #ids do
    if media and media[next_item] and media[next_item].at == i then
      item, next_item = media[next_item], next_item + 1
      left = item.tokens
    end
    if left > 0 and ids[i] == ids[item.at] then
      local rows, columns = size_of(item, merge)
      local start, k, id = position, 0, ids[i]
      while left > 0 and ids[i] == id do -- one run
        local frame, place = k // (rows * columns), k % (rows * columns)
        put(start + frame_at(frame, rate, item), start + place // columns, start + place % columns)
        k, left = k + 1, left - 1
      end
      position = largest + 1
    else
      put(position, position, position)
      position = position + 1
    end
  end
  return axes, largest + 1 - #ids
end

return mrope
