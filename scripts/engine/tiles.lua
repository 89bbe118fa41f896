-- tiles: how Metal's kernels cut their work: sizes of tiles, and from where on another kernel is
-- taken. No value changes a bit of a result. The defaults are guesses until somebody measures on a
-- real device: --metal-tiles NAME=VALUE,... sets others for a run.
--
-- The build reads this list too (kernels/metal/tiles.awk): one tile per line.
local perigee = require "perigee"

local tiles = {}

-- name, default, least, most, meaning
tiles.list = {
  { "linear_rows_2", 2, 1, 65536, "products: from this many rows on, a lane takes 2 at once," },
  { "linear_rows_4", 3, 1, 65536, "4," },
  { "linear_rows_8", 5, 1, 65536, "8," },
  { "linear_rows_wide", 16, 1, 65536, "and a group decodes weights once for many:" },
  { "linear_simdgroups", 4, 1, 8, "simdgroups of such a group, 8 rows each" },
  { "join_rows", 8, 0, 65536, "up to this many rows, a dispatch computes several instructions," },
  { "norm_rows", 1, 0, 65536, "and products normalize their input" },
  { "expert_sort_pairs", 32, 1, 1048576, "from this many pairs (row, expert) on, sort by expert" },
  { "attention_split", 256, 1, 1048576, "from this many keys on, attention takes two passes," },
  { "attention_tiles", 64, 1, 65536, "if there are no more tiles of queries than this" },
}

--- Takes "name=value,...". Returns nil and a line about what is wrong.
function tiles.set(line)
  local values = {}
  for word in (line .. ","):gmatch "([^,]*)," do
    local name, value = word:match "^([%w_]+)=(%d+)$"
    value = math.tointeger(tonumber(value))
    if not value then return nil, ("'%s' is not NAME=VALUE"):format(word) end
    values[name] = value
  end
  local _, why = perigee.engine.tiles(values)
  if why then return nil, why.message end
  return true
end

return tiles
