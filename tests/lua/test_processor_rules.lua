-- Processors by rules: defaults, limits, sizes and tokens of every family, on settings made here.
local perigee = require "perigee"
local processors = require "models.processors"
local fit = require "models.processors.fit"
local place = require "models.processors.place"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

local FILES = { "preprocessor_config.json", "processor_config.json",
  "video_preprocessor_config.json" }

--- Opens a processor from the texts (or tables) of its files.
local function open(config, image, processor, video, ids)
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/XXXXXX"))
  for i, name in ipairs(FILES) do
    local source = ({ image, processor, video })[i]
    if source then
      local f <close> = assert(io.open(folder .. "/" .. name, "w"))
      f:write(type(source) == "string" and source or json.encode(source))
    end
  end
  local p, why = processors.open(folder, { config = config, ids = ids })
  for _, name in ipairs(FILES) do os.remove(folder .. "/" .. name) end
  os.remove(folder)
  return p, why and why:gsub("^" .. folder:gsub("%p", "%%%0"), "DIR")
end

local function of(model_type, more)
  local config = { model_type = model_type, image_token_id = 1 }
  for k, v in pairs(more or {}) do config[k] = v end
  return config
end

local ANY = { any = true } -- settings without a word for the processor
local CLIP_MEAN, CLIP_STD = { 0.48145466, 0.4578275, 0.40821073 },
  { 0.26862954, 0.26130258, 0.27577711 }
local HALF = { 0.5, 0.5, 0.5 }

test("every family has the defaults of its reference", function(t)
  local pixels = { min = 56 * 56, max = 28 * 28 * 1280 }
  local qwen = { family = "qwen", filter = "bicubic", frames = 2, image_token = 1, limits = pixels,
    video_limits = pixels, mean = CLIP_MEAN, std = CLIP_STD, merge = 2, patch = 14,
    scale = 1 / 255, stamped = true }
  local want = {
    qwen3_vl = qwen, qwen3_vl_moe = qwen, qwen3_5 = qwen, qwen3_5_moe = qwen,
    gemma3 = { family = "gemma3", filter = "bilinear", count = 256, width = 896, height = 896,
      patch = 14, image_token = 1, mean = HALF, std = HALF, scale = 1 / 255 },
    gemma4 = { family = "gemma4", filter = "bicubic", most = 280 * 9, patch = 16, pool = 3,
      image_token = 1, mean = { 0, 0, 0 }, std = { 1, 1, 1 }, scale = 1 / 255 },
    lfm2_vl = { family = "lfm2_vl", filter = "bilinear", least = 64, most = 256, min_tiles = 2,
      max_tiles = 10, tile = 512, tolerance = 2.0, splits = true, thumbnail = true, merge = 2,
      patch = 16, image_token = 1, mean = HALF, std = HALF, scale = 1 / 255 },
    mistral3 = { family = "pixtral", filter = "bicubic", longest = 1024, merge = 1, patch = 16,
      row_end = 12, last = 13, image_token = 1, mean = CLIP_MEAN, std = CLIP_STD,
      scale = 1 / 255 },
  }
  want.pixtral = want.mistral3
  want.qwen2_vl = setmetatable({ stamped = false }, { __index = qwen })
  want.qwen2_5_vl = want.qwen2_vl
  for model_type, fields in pairs(want) do
    local p, got, all = assert(open(of(model_type), ANY)), {}, {}
    for k, v in pairs(p) do if k ~= "key" then got[k] = v end end
    for k in pairs(qwen) do all[k] = fields[k] end
    for k, v in pairs(fields) do all[k] = v end
    t.eq(got, all, model_type)
  end
  t.eq({ open(of "llama", ANY) }, {})
end)

test("the key names every value that changes pixels or tokens", function(t)
  local function key(image) return assert(open(of "gemma4", image)).key end
  t.eq(key { image_std = { 1, 2, 0.1 } }, "gemma4.family=gemma4 gemma4.filter=bicubic "
    .. "gemma4.image_token=1 gemma4.mean.1=0 gemma4.mean.2=0 gemma4.mean.3=0 gemma4.most=2520 "
    .. "gemma4.patch=16 gemma4.pool=3 gemma4.scale=0.0039215686274509803 gemma4.std.1=1 "
    .. "gemma4.std.2=2 gemma4.std.3=0.10000000000000001")
end)

-- Field, how it is set (model type, settings, config), its largest value.
local SIZES = {
  { "patch", "qwen2_vl", function(v) return { patch_size = v } end, 4096 },
  { "patch", "pixtral", function(v) return { patch_size = v } end, 4096 },
  { "patch", "pixtral", function(v) return { patch_size = { height = v, width = 7 } } end, 4096 },
  { "merge", "qwen2_vl", function(v) return { merge_size = v } end, 64 },
  { "frames", "qwen2_vl", function(v) return { temporal_patch_size = v } end, 64 },
  { "pool", "gemma4", function(v) return { pooling_kernel_size = v, max_soft_tokens = 1 } end, 64 },
  { "tile", "lfm2_vl", function(v) return { tile_size = v } end, 16384 },
  { "min_tiles", "lfm2_vl", function(v) return { min_tiles = v } end, 256 },
  { "max_tiles", "lfm2_vl", function(v) return { max_tiles = v } end, 256 },
  { "width", "gemma3", function(v) return { size = { width = v } } end, 16384 },
  { "height", "gemma3", function(v) return { size = { height = v } } end, 16384 },
  { "longest", "pixtral", function(v) return { size = { longest_edge = v } } end, 1 << 20 },
  { "count", "gemma3", function(v) return { image_seq_length = v } end, 1 << 16 },
  { "least", "lfm2_vl", function(v) return { min_image_tokens = v } end, 1 << 16 },
  { "most", "lfm2_vl", function(v) return { max_image_tokens = v } end, 1 << 20 },
}

test("sizes have limits", function(t)
  local text = "DIR: the settings of pictures do not fit: %s must be %s, got %s"
  for _, case in ipairs(SIZES) do
    local field, model_type, settings, most = table.unpack(case)
    for _, v in ipairs { 1, most } do
      local p, why = open(of(model_type), settings(v))
      t.eq(p and p[field], v, why)
    end
    for _, v in ipairs { 0, most + 1 } do
      local _, why = open(of(model_type), settings(v))
      t.eq(why, text:format(field, ("an integer between 1 and %d"):format(most), v))
    end
  end
  local function refused(want, config, image)
    t.eq(select(2, open(config, image or ANY)), want)
  end
  refused(text:format("width", "an integer between 1 and 16384", 1.5), of "gemma3",
    { size = { width = 1.5 } })
  refused(text:format("width", "an integer between 1 and 16384", "a table"), of "gemma3",
    { size = { width = {} } })
  for field, config in pairs {
    image_token = of("qwen2_vl", { image_token_id = -1 }),
    video_token = of("qwen2_vl", { video_token_id = -1 }),
    first = of("qwen2_vl", { vision_start_token_id = -1 }),
    last = of("qwen2_vl", { vision_end_token_id = -1 }) } do
    refused(text:format(field, "a token id", -1), config)
  end
  for name, field in pairs { ["[IMG_BREAK]"] = "row_end", ["[IMG_END]"] = "last" } do
    local _, why = open(of "pixtral", ANY, nil, nil, function(n) return n == name and -1 or 1 end)
    t.eq(why, text:format(field, "a token id", -1))
  end
  t.ok(open(of("qwen2_vl", { image_token_id = 0 }), ANY))
  refused(text:format("scale", "a number", "x"), of "qwen2_vl", { rescale_factor = "x" })
  refused(text:format("tolerance", "a number", "x"), of "lfm2_vl", { max_pixels_tolerance = "x" })
  for _, v in ipairs { 1 / 0, -1 / 0 } do
    refused(text:format("scale", "a number", v), of "qwen2_vl", { rescale_factor = v })
  end
  t.match(select(2, open(of "qwen2_vl", { rescale_factor = 0 / 0 })), "scale must be a number, got")
  for _, field in ipairs { "mean", "std" } do
    refused(text:format(field, "three numbers", "x"), of "gemma4",
      { ["image_" .. field] = { 1, 2, "x" } })
  end
  refused(text:format("min_pixels", "a number of 1 or more", 0), of "qwen2_vl", { min_pixels = 0 })
  refused(text:format("max_pixels", "a number of 1 or more", 0), of "qwen2_vl", { max_pixels = 0 })
  local pixels = { min_pixels = 1, max_pixels = 1 }
  for i = 1, 2 do -- of pictures, of videos
    local none = { min_pixels = 0, max_pixels = 1 }
    local _, why = open(of "qwen2_vl", i == 1 and none or pixels, nil, i == 2 and none or pixels)
    t.eq(why, text:format("min_pixels", "a number of 1 or more", 0))
  end
  refused("DIR: pan and scan is not supported", of "gemma3", { do_pan_and_scan = true })
  t.ok(open(of "gemma3", { do_pan_and_scan = false }))
  local g = assert(open(of("gemma3", { mm_tokens_per_image = json.null,
    vision_config = { patch_size = json.null, image_size = 28 } }), ANY))
  t.eq({ g.count, g.patch, g.width, g.height }, { 256, 14, 28, 28 }) -- null counts as absent
  t.eq(assert(open(of("gemma3", { vision_config = json.null }), ANY)).patch, 14)
  t.eq(assert(open(of "qwen2_vl", { min_pixels = 1, max_pixels = 1 })).limits, { min = 1, max = 1 })
  t.eq(select(2, open(of "pixtral", { image_break_token = 1 }, nil, nil,
    function(name) return #name end)), "DIR: the settings of pictures have another type")
end)

test("settings come from three files, and later ones win", function(t)
  local p = assert(open(of "qwen3_vl", { patch_size = 1, merge_size = 1, temporal_patch_size = 1 },
    { merge_size = 2, temporal_patch_size = 2, image_processor = { temporal_patch_size = 3 } },
    { size = { shortest_edge = 5, longest_edge = 6 } }))
  t.eq({ p.patch, p.merge, p.frames, p.video_limits }, { 1, 2, 3, { min = 5, max = 6 } })
  p = assert(open(of "qwen3_vl", nil, { image_processor = { min_pixels = 7 },
    video_processor = { max_pixels = 8 } }))
  t.eq({ p.limits.min, p.video_limits.max }, { 7, 8 })
  t.eq(assert(open(of "qwen3_vl", '{"patch_size": null, "merge_size": 3}')).patch, 14)
  for i = 1, 3 do
    local files = { i ~= 1 and ANY or "{", i == 2 and "[1]" or nil, i == 3 and "{" or nil }
    local _, why = open(of "qwen3_vl", files[1], files[2], files[3])
    t.match(why, "^DIR/" .. FILES[i]:gsub("%p", "%%%0") .. ": ")
  end
  t.eq(select(2, open(of "qwen3_vl", ANY, "[1]")), "DIR/processor_config.json: not a JSON object")
  t.eq(select(2, open(of "qwen3_vl")), "DIR: preprocessor_config.json is missing")
  t.match(select(2, processors.open "/nowhere"), "/nowhere/config.json")
end)

test("values of pixels", function(t)
  local function fields(image)
    local p = assert(open(of "gemma3", image))
    return { p.scale, p.mean, p.std, p.filter }
  end
  t.eq(fields { do_rescale = false, resample = 1 }, { 1.0, HALF, HALF, "lanczos" })
  t.eq(fields { rescale_factor = 0.5, resample = 2 }, { 0.5, HALF, HALF, "bilinear" })
  t.eq(fields { do_normalize = false, image_mean = { 1, 2, 3 }, resample = 3 },
    { 1 / 255, { 0, 0, 0 }, { 1, 1, 1 }, "bicubic" })
  t.eq(fields { image_mean = 0.25, image_std = { 1, 2, 3 } },
    { 1 / 255, { 0.25, 0.25, 0.25 }, { 1, 2, 3 }, "bilinear" })
  t.eq(fields { image_mean = { 1, 2 }, image_std = { 1, 2, 3, 4 } },
    { 1 / 255, HALF, HALF, "bilinear" })
  t.match(select(2, open(of "gemma3", { resample = 4 })), "resample must be 1, 2 or 3, got 4")
end)

test("rounding is half to even", function(t)
  local got = {}
  for i, x in ipairs { 0, 0.49, 0.5, 0.51, 1.5, 2.5, 3.5, 7.999 } do got[i] = fit.round(x) end
  t.eq(got, { 0, 0, 0, 1, 2, 2, 4, 8 })
end)

test("areas stay within their limits", function(t)
  local function area(...) return { fit.area(...) } end
  local limits = { min = 400, max = 1600 }
  t.eq(area(40, 40, 10, limits), { 40, 40 }) -- exactly the largest
  t.eq(area(20, 20, 10, limits), { 20, 20 }) -- exactly the smallest
  t.eq(area(41, 44, 10, limits), { 40, 40 })
  t.eq(area(50, 40, 10, limits), { 40, 30 })
  t.eq(area(10, 10, 10, limits), { 20, 20 })
  t.eq(area(3, 7, 10, limits), { 20, 40 })
  t.eq(area(1000, 1, 10, limits), { 1260, 10 })
  t.eq(area(20, 20, 10, limits, 4), { 20, 20 })
  t.eq(area(30, 20, 10, limits, 4), { 20, 10 })
  t.eq(area(10, 10, 10, limits, 2), { 20, 20 })
end)

--- Size, grid, tokens; and that the targets have the size.
local function plan_of(t, p, w, h)
  local plan, why = p:plan(w, h)
  if not plan then return why end
  t.eq({ plan.kind, plan.filter }, { "image", p.filter })
  local first = plan.targets[1]
  t.eq(first, { width = plan.width, height = plan.height, filter = p.filter })
  return { plan.width, plan.height, plan.grid, plan.tokens }
end

test("plans of pictures", function(t)
  local function check(p, cases)
    for _, case in ipairs(cases) do
      t.eq(plan_of(t, p, case[1], case[2]), case[3], ("%d x %d"):format(case[1], case[2]))
    end
  end
  check(assert(open(of "qwen2_vl", ANY)), {
    { 28 * 3, 28 * 2, { 84, 56, { 1, 4, 6 }, 6 } },
    { 200 * 28, 28, { 5600, 28, { 1, 2, 400 }, 200 } },
    { 201 * 28, 28, "the picture has 5628 x 28 pixels: one side is more than 200 times the other" },
    { 28, 201 * 28, "the picture has 28 x 5628 pixels: one side is more than 200 times the other" },
  })
  check(assert(open(of "gemma3", ANY)), { { 1, 9, { 896, 896, { 1, 64, 64 }, 256 } } })
  check(assert(open(of("gemma3", { mm_tokens_per_image = 9, vision_config = { patch_size = 8 } }),
    { size = { width = 32, height = 16 } })), { { 5, 5, { 32, 16, { 1, 2, 4 }, 9 } } })
  check(assert(open(of "gemma4", { max_soft_tokens = 4, patch_size = 2 })), { -- blocks of 6
    { 12, 12, { 12, 12, { 1, 6, 6 }, 4 } },
    { 100, 100, { 12, 12, { 1, 6, 6 }, 4 } },
    { 1, 1, { 12, 12, { 1, 6, 6 }, 4 } },
    { 24, 6, { 24, 6, { 1, 3, 12 }, 4 } },
    { 100, 1, { 24, 6, { 1, 3, 12 }, 4 } },
    { 1, 100, { 6, 24, { 1, 12, 3 }, 4 } },
    { 70, 10, { 24, 6, { 1, 3, 12 }, 4 } },
  })
  check(assert(open(of "gemma4", { max_soft_tokens = 1, patch_size = 2 })), {
    { 9, 8, { 6, 6, { 1, 3, 3 }, 1 } }, { 8, 9, { 6, 6, { 1, 3, 3 }, 1 } },
    -- sqrt(36 / 17²) * 17 is less than 6; the reference refuses it, too
    { 17, 17, "a picture of 17 x 17 pixels cannot be resized to whole blocks" } })
  local m = assert(open(of("mistral3", { spatial_merge_size = 2,
    vision_config = { patch_size = 4, image_size = 32 } }), ANY)) -- blocks of 8
  check(m, { { 1, 1, { 8, 8, { 1, 2, 2 }, 1 } }, { 8, 8, { 8, 8, { 1, 2, 2 }, 1 } },
    { 9, 16, { 16, 16, { 1, 4, 4 }, 4 } }, { 32, 32, { 32, 32, { 1, 8, 8 }, 16 } },
    { 33, 32, { 32, 32, { 1, 8, 8 }, 16 } }, { 64, 16, { 32, 8, { 1, 2, 8 }, 4 } },
    { 6400, 1, { 32, 8, { 1, 2, 8 }, 4 } }, { 1, 6400, { 8, 32, { 1, 8, 2 }, 4 } } })
end)

test("lfm2_vl: tiles and a thumbnail", function(t)
  local p = assert(open(of "lfm2_vl", { encoder_patch_size = 2, tile_size = 16, max_tiles = 6,
    min_image_tokens = 4, max_image_tokens = 16 })) -- blocks of 4; more than 512 pixels are large
  local function look(w, h)
    local plan = assert(p:plan(w, h))
    local tiles = plan.tiles or {}
    return { plan.width, plan.height, tiles.columns, tiles.rows, #plan.targets, plan.tokens,
      #(plan.grids or {}) }
  end
  for size, want in pairs {
    ["8x8"] = { 8, 8, nil, nil, 1, 4, 0 },
    ["1x1"] = { 8, 8, nil, nil, 1, 4, 0 },
    ["16x32"] = { 8, 20, nil, nil, 1, 10, 0 }, -- exactly 512
    ["20x28"] = { 32, 48, 2, 3, 2, 6 * 16 + 12, 7 },
    ["40x40"] = { 32, 32, 2, 2, 2, 4 * 16 + 16, 5 },
    ["60x20"] = { 48, 16, 3, 1, 2, 3 * 16 + 12, 4 },
    ["20x60"] = { 16, 48, 1, 3, 2, 3 * 16 + 12, 4 },
    ["48x32"] = { 48, 32, 3, 2, 2, 6 * 16 + 12, 7 },
    ["200x10"] = { 96, 16, 6, 1, 2, 6 * 16 + 17, 7 },
  } do
    local w, h = size:match "(%d+)x(%d+)"
    t.eq(look(math.tointeger(w), math.tointeger(h)), want, size)
  end
  local plan = assert(p:plan(60, 20))
  t.eq(plan.grids, { { 1, 8, 8 }, { 1, 8, 8 }, { 1, 8, 8 },
    { 1, plan.targets[2].height // 2, plan.targets[2].width // 2 } })
  local parts = p:parts(assert(p:plan(20, 28)))
  t.eq({ #parts, parts[3].x, parts[3].y, parts[4].x, parts[4].y, parts[4].width, parts[4].height,
    parts[7].target, parts[7].x }, { 7, 0, 16, 16, 16, 16, 16, 2 })
  t.eq(p:parts(assert(p:plan(8, 8))), { { order = "yxc", patch = 2 } })
  for _, off in ipairs { { do_image_splitting = false }, { min_tiles = 1, max_tiles = 1 } } do
    t.eq(assert(open(of "lfm2_vl", off)).splits, false)
  end
  t.eq(assert(open(of "lfm2_vl", { min_tiles = 1, max_tiles = 2 })).splits, true)
  local bare = assert(open(of "lfm2_vl", { encoder_patch_size = 2, tile_size = 16,
    use_thumbnail = false, min_image_tokens = 4, max_image_tokens = 16 }))
  plan = assert(bare:plan(60, 20))
  t.eq({ #plan.targets, plan.tokens, #plan.grids, #bare:parts(plan) }, { 1, 48, 3, 3 })
end)

--- The ids that a picture becomes.
local function expanded(p, plan, encode)
  return (assert(p:layout({ 90, p.placeholder or p.image_token, 91 }, { plan }, encode)))
end

test("tokens of pictures", function(t)
  local named = { ["<|image_start|>"] = 50, ["<|image_end|>"] = 51, ["<|img_thumbnail|>"] = 52,
    ["<|img_row_1_col_1|>"] = 53, ["<|img_row_1_col_2|>"] = 54, ["[IMG_BREAK]"] = 60,
    ["[IMG_END]"] = 61 }
  local function ids(name) return named[name] end
  local l = assert(open(of "lfm2_vl", { encoder_patch_size = 2, tile_size = 4, max_tiles = 2,
    min_image_tokens = 1, max_image_tokens = 2 }, nil, nil, ids))
  t.eq(expanded(l, assert(l:plan(4, 4))), { 90, 50, 1, 51, 91 })
  t.eq(expanded(l, assert(l:plan(40, 20))), { 90, 50, 53, 1, 54, 1, 52, 1, 1, 51, 91 })
  local m = assert(open(of("pixtral", { vision_config = { patch_size = 4 } }), ANY, nil, nil, ids))
  t.eq(expanded(m, assert(m:plan(8, 12))), { 90, 1, 1, 60, 1, 1, 60, 1, 1, 61, 91 })
  local g = assert(open(of("gemma3", { boi_token_index = 70, eoi_token_index = 71,
    mm_tokens_per_image = 2 }), ANY))
  t.eq(expanded(g, g:plan()), { 90, 70, 1, 1, 71, 91 })
  t.eq(expanded(g, g:plan(), function(s) return s == "\n\n" and { 8 } or {} end),
    { 90, 8, 70, 1, 1, 71, 8, 91 })
  local f = assert(open(of("gemma4", { boi_token_id = 70, eoi_token_id = 71 }),
    { max_soft_tokens = 4, patch_size = 2 }))
  t.eq(expanded(f, assert(f:plan(12, 12))), { 90, 70, 1, 1, 1, 1, 71, 91 })
  local q = assert(open(of("qwen2_vl", { video_token_id = 2, vision_start_token_id = 3,
    vision_end_token_id = 4 }), ANY))
  local video = assert(q:plan_video(5, 56, 56))
  t.eq({ video.grid, video.tokens, video.seconds, video.seconds_per_grid, video.frames },
    { { 3, 4, 4 }, 12, { 0.125, 0.625, 1.0 }, 0.5, 5 })
  t.eq(#assert(q:layout({ 3, 2, 4 }, { video })), 14)
  t.eq(assert(q:plan_video(1, 56, 56, { 3 })).seconds_per_grid, 0.5)
  t.eq(assert(q:plan_video(2, 56, 56, { 3, 4 })).seconds_per_grid, 2.0)
  t.match(select(2, q:plan_video(2, 5628, 28)), "5628 x 28 pixels")
end)

test("positions in a prompt move with the pictures before them", function(t)
  local self = { image_token = 1, expand = function(_, plan, out)
    out:ids { 5 }
    out:features(1, plan.tokens)
  end }
  local plans = { { tokens = 2 }, { tokens = 3 } }
  local ids, items, moved = place.layout(self, { 9, 1, 8, 1, 7 }, plans, nil,
    { 0, 1, 2, 3, 4, 5, 5 })
  t.eq(ids, { 9, 5, 1, 1, 8, 5, 1, 1, 1, 7 })
  t.eq(moved, { 0, 1, 4, 5, 9, 10, 10 })
  t.eq({ items[1].at, items[1].last, items[2].at, items[2].last }, { 3, 4, 7, 9 })
  t.eq(place.locate(self, ids, plans)[2].runs, { { 7, 3 } })
  local split = place.locate(self, { 1, 2, 1, 1 }, { { tokens = 3 } })
  t.eq({ split[1].runs, split[1].at, split[1].last }, { { { 1, 1 }, { 3, 2 } }, 1, 4 })
end)

test("patches in the background are those of the foreground, or the first failure", function(t)
  local p = assert(open(of "lfm2_vl", { encoder_patch_size = 2, tile_size = 16,
    min_image_tokens = 4, max_image_tokens = 16 }))
  local plan = assert(p:plan(60, 20))
  local function pixels(target)
    local n = target.width * target.height * 3
    return perigee.image.pixels(perigee.tensor.from_bytes(("abcdefg"):rep(n):sub(1, n),
      { dtype = "u8", shape = { target.height, target.width, 3 } }))
  end
  local list = { pixels(plan.targets[1]), pixels(plan.targets[2]) }
  local want = assert(p:patches(list, plan))
  t.eq(#want, 4)
  p:patches(list, plan, t.expect(function(got)
    for i, part in ipairs(want) do
      t.eq(got[i].grid, part.grid)
      t.ok(got[i].patches:equal(part.patches))
    end
  end))
  -- Pixels of another size: the last part cannot be cut.
  list[2] = pixels { width = 3, height = 3 }
  t.fails("shape", p:patches(list, plan))
  p:patches(list, plan, t.expect(function(none, why) t.fails("shape", none, why) end))
  list[1] = list[2]
  p:patches(list, plan, t.expect(function(none, why) t.ok(not none and why) end))
end)
