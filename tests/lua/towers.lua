-- towers: for tests of vision towers: the patches of resized pictures as each family lays them
-- out, and the pictures of the golden directories (../shared/golden/vl_*).
local perigee = require "perigee"
local samples = require "samples"
local tensor = perigee.tensor

local towers = {}

local CLIP = { mean = { 0.48145466, 0.4578275, 0.40821073 },
  std = { 0.26862954, 0.26130258, 0.27577711 } }
local HALF = { mean = { 0.5, 0.5, 0.5 }, std = { 0.5, 0.5, 0.5 } }

--- Order of the values of a patch, and normalisation, by golden directory.
towers.families = {
  vl_gemma3 = { order = "chw", normal = HALF },
  vl_gemma4 = { order = "hwc" }, vl_gemma4_e = { order = "hwc" },
  vl_lfm2_vl = { order = "hwc", normal = HALF },
  vl_mistral3 = { order = "chw", normal = CLIP },
  vl_mistral3_ministral = { order = "chw", normal = CLIP },
  vl_pixtral = { order = "chw", normal = CLIP },
  vl_qwen2_vl = { order = "blocks", normal = CLIP },
  vl_qwen2_5_vl = { order = "blocks", normal = CLIP },
  vl_qwen3_vl = { order = "blocks", normal = HALF },
  vl_qwen3_vl_moe = { order = "blocks", normal = HALF },
  vl_qwen3_5 = { order = "blocks", normal = HALF },
  vl_qwen3_5_moe = { order = "blocks", normal = HALF },
}

local function normalised(x, normal)
  x = x:to "f32" * (1 / 255)
  if normal then x = (x - tensor(normal.mean):to "f32") / tensor(normal.std):to "f32" end
  return x:contiguous()
end

--- Two frames of [H, W, 3] as rows of (channel, frame, y, x), merge block by merge block.
local function blocks(both, patch, merge)
  local h, w = both.shape[2] // patch, both.shape[3] // patch
  return both:reshape { 2, h // merge, merge, patch, w // merge, merge, patch, 3 }
    :permute { 2, 5, 3, 6, 8, 1, 4, 7 }:contiguous():reshape { h * w, 6 * patch * patch }
end

--- The patches of frames, tensors [H, W, 3] of 0 to 255: { patches =, grid = }. o: order,
--- normal, patch, merge.
function towers.patches(frames, o)
  local h, w = frames[1].shape[1] // o.patch, frames[1].shape[2] // o.patch
  local list = {}
  for i, x in ipairs(frames) do list[i] = normalised(x, o.normal) end
  if o.order == "blocks" then
    if #list % 2 == 1 then list[#list + 1] = list[#list] end
    local parts = {}
    for i = 1, #list, 2 do
      parts[#parts + 1] = blocks(tensor.stack({ list[i], list[i + 1] }, 1), o.patch, o.merge)
    end
    return { patches = tensor.concat(parts, 1), grid = { #parts, h, w } }
  end
  local x = list[1]:reshape { h, o.patch, w, o.patch, 3 }
  x = o.order == "chw" and x:permute { 1, 3, 5, 2, 4 } or x:permute { 1, 3, 2, 4, 5 }
  return { patches = x:contiguous():reshape { h * w, 3 * o.patch * o.patch }, grid = { 1, h, w } }
end

--- The grids of picture i of case k: one, or one per tile.
local function grids_of(golden, k, i)
  local list, out = samples.read(golden, ("grid.%d.%d"):format(k, i)):flatten():totable(), {}
  for at = 1, #list, 3 do
    out[#out + 1] = {}
    for n = 1, 3 do out[#out][n] = math.tointeger(list[at + n - 1]) end
  end
  return out
end

--- A picture that was cut into tiles, side by side or in rows, and its thumbnail.
local function tiles(golden, name, grids, o)
  local whole = samples.read(golden, "resized." .. name)
  local side_h, side_w = grids[1][2] * o.patch, grids[1][3] * o.patch
  local out = {}
  for y = 1, whole.shape[1], side_h do
    for x = 1, whole.shape[2], side_w do
      local tile = whole:slice { { y, y + side_h - 1 }, { x, x + side_w - 1 } }
      out[#out + 1] = towers.patches({ tile:contiguous() }, o)
    end
  end
  out[#out + 1] = towers.patches({ (samples.read(golden, "thumb." .. name)) }, o)
  return out
end

--- All pictures of a golden directory, { name =, picture =, features =, deepstack = {…} }. The
--- first case has the tower's input itself; it must be what the pixels give.
function towers.golden(golden, o)
  local list = {}
  for k = 1, 3 do
    for i = 0, 1 do
      local name = ("%d.%d"):format(k, i)
      local resized = samples.read(golden, "resized." .. name)
      if resized then
        local grids = grids_of(golden, k, i)
        local item = { name = name, features = samples.read(golden, "features." .. name),
          grids = grids, deepstack = {}, pixels = samples.read(golden, "pixels." .. name) }
        item.picture = #grids > 1 and tiles(golden, name, grids, o)
          or towers.patches({ resized }, o)
        for j = 0, 9 do
          local plane = samples.read(golden, ("deepstack.%s.%d"):format(name, j))
          if not plane then break end
          item.deepstack[j + 1] = plane
        end
        list[#list + 1] = item
      end
    end
  end
  return list
end

return towers
