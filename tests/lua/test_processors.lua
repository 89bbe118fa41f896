-- Processors: sizes, tokens and patches of pictures, against the golden models where they are, and
-- by rules on configs made here.
local perigee = require "perigee"
local pictures = require "picture_files"
local processors = require "models.processors"
local text = require "lib.text"
local Media = require "engine.media"
local test = require("harness").test
local forced = ...
local json = perigee.json

local GOLDEN = "../shared/golden/"
local NAMES = { "gemma3", "gemma4", "gemma4_e", "lfm2_vl", "mistral3", "mistral3_ministral",
  "pixtral", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe" }

local function decode(path) return assert(json.decode(assert(text.read_file(path)))) end

--- Ids of special tokens as golden.json gives them.
local function ids_of(layout)
  local named = { ["<|image_start|>"] = layout.start, ["<|image_end|>"] = layout["end"],
    ["<|img_thumbnail|>"] = layout.thumbnail, ["[IMG_BREAK]"] = layout.row_break,
    ["[IMG_END]"] = layout["end"] }
  return function(name)
    local row, column = name:match "^<|img_row_(%d+)_col_(%d+)|>$"
    if row then return layout.row_column_tokens[row .. "," .. column] end
    return named[name]
  end
end

--- The ids of a case before its pictures were laid out: what expand writes becomes one placeholder.
local function folded(p, ids, items)
  local out, i, n = {}, 1, 1
  while i <= #ids do
    local item = items[n]
    if item and i == item.from then
      local video = item.plan.kind == "video"
      out[#out + 1] = video and p.video_token or p.placeholder or p.image_token
      i, n = item.to, n + 1
    else
      out[#out + 1] = ids[i]
    end
    i = i + 1
  end
  return out
end

--- The range of ids that expand wrote for an item.
local function widen(p, ids, item)
  local from, to = item.at, item.last
  if p.family == "gemma3" then from, to = from - 2, to + 2 end
  if p.family == "gemma4" then from, to = from - 1, to + 1 end
  if p.family == "pixtral" then to = to + 1 end
  if p.family == "lfm2_vl" then
    from, to = from - (ids[from - 2] == p.id "<|image_start|>" and 2 or 1), to + 1
  end
  item.from, item.to = from, to
end

--- Compares one case; returns the number of pictures.
local function check_case(t, p, media, golden, about, k, layout)
  local plans = {}
  local list = about.video_frames and { about.video_frames } or about.images
  for i, name in ipairs(list) do
    local picture, err
    if about.video_frames then
      local frames = {}
      for j, file in ipairs(name) do
        frames[j] = assert(Media.read(GOLDEN .. "images/" .. file))
      end
      picture, err = media:load_video(frames, p)
    else
      picture, err = media:load(assert(Media.read(GOLDEN .. "images/" .. name)), p)
    end
    if not picture then return t.fail(tostring(err)) end
    plans[i] = picture.plan
    local key = ("%d.%d"):format(k, i - 1)
    local want = golden["resized." .. key]
    if want then
      t.ok(picture.pixels[1]:tensor():equal(want), "resized." .. key)
    end
    local thumb = golden["thumb." .. key]
    if thumb then t.ok(picture.pixels[2]:tensor():equal(thumb), "thumb." .. key) end
    local parts = assert(p:patches(picture.pixels, picture.plan))
    local grids = golden["grid." .. key]:totable()
    if type(grids[1]) ~= "table" then grids = { grids } end
    for n, part in ipairs(parts) do t.eq(part.grid, grids[n], "grid." .. key) end
    t.eq(#parts, #grids)
    local pixels = golden["pixels." .. key]
    if pixels and #pixels.shape == 2 then
      t.ok(parts[1].patches:equal(pixels), "pixels." .. key)
    elseif pixels then
      local whole = perigee.image.patches { pixels = picture.pixels[1], patch = picture.plan.width,
        patch_height = picture.plan.height, scale = p.scale, mean = p.mean, std = p.std }
      t.ok(whole:flatten():equal(pixels:flatten()), "pixels." .. key)
    end
    if about.image_tokens then t.eq(picture.plan.tokens, about.image_tokens[i]) end
  end
  local ids = golden["ids." .. k]:totable()
  local items = assert(p:locate(ids, plans))
  if about.video_frames and p.stamped then return #list end -- the ids of time stamps are invented
  for _, item in ipairs(items) do widen(p, ids, item) end
  local again, found = p:layout(folded(p, ids, items), plans, function()
    return { layout.double_newline }
  end)
  t.eq(again, ids, "layout of case " .. k)
  for i, item in ipairs(found or {}) do t.eq(item.runs, items[i].runs) end
  return #list
end

for _, name in ipairs(forced and { "lfm2_vl" } or NAMES) do
  test("golden pictures of " .. name, function(t)
    local folder = GOLDEN .. "vl_" .. name
    if not text.read_file(folder .. "/golden.json") then
      return t.skip(("%s is missing (4 or 5 cases)"):format(folder))
    end
    local about = decode(folder .. "/golden.json")
    local golden = pictures.tensors(folder .. "/golden.safetensors")
    local p = assert(processors.open(folder, { ids = ids_of(about.layout) }))
    local media <close> = assert(Media.open { children = 1 })
    local seen = 0
    for i, case in ipairs(about.cases) do
      if (case.images and #case.images > 0) or case.video_frames then
        seen = seen + (check_case(t, p, media, golden, case, i - 1, about.layout) or 0)
      end
    end
    t.ok(seen >= 4)
  end)
end

-- ---- rules --------------------------------------------------------------------------------------

--- Opens a processor from tables instead of files.
local function open(config, preprocessor)
  local folder = os.tmpname()
  os.remove(folder)
  assert(require("luv").fs_mkdir(folder, 448))
  local f = assert(io.open(folder .. "/preprocessor_config.json", "w"))
  f:write(json.encode(preprocessor))
  f:close()
  local p, why = processors.open(folder, { config = config })
  os.remove(folder .. "/preprocessor_config.json")
  os.remove(folder)
  return p, why
end

local QWEN = { model_type = "qwen3_vl", image_token_id = 1, video_token_id = 2,
  vision_start_token_id = 3, vision_end_token_id = 4 }

test("qwen: sizes", function(t)
  local p = assert(open(QWEN, { patch_size = 16, merge_size = 2, temporal_patch_size = 2,
    size = { shortest_edge = 65536, longest_edge = 16777216 } }))
  local function size(w, h)
    local plan = assert(p:plan(w, h))
    return { plan.width, plan.height, plan.tokens }
  end
  t.eq(size(1, 1), { 256, 256, 64 })
  t.eq(size(640, 480), { 640, 480, 300 })
  t.eq(size(1000, 500), { 992, 512, 496 }) -- 31.25 and 15.625 blocks
  t.eq(size(48, 48), { 256, 256, 64 })
  t.eq(size(10000, 8000), { 4576, 3648, 16302 })
  t.eq(size(50 * 200, 50), { 9984, 64, 624 }) -- 312.5 blocks: half to even
  local plan, why = p:plan(10000, 1)
  t.eq(plan, nil)
  t.match(why, "10000 x 1 pixels: one side is more than 200 times the other")
end)

test("qwen: layout of pictures and videos", function(t)
  local p = assert(open(QWEN, { patch_size = 16, merge_size = 2, temporal_patch_size = 2,
    size = { shortest_edge = 1024, longest_edge = 65536 } }))
  local a, b = assert(p:plan(64, 32)), assert(p:plan_video(3, 32, 32, { 0, 1, 2 }))
  t.eq(b.grid, { 2, 2, 2 })
  t.eq(b.seconds, { 0.5, 2.0 })
  t.eq(b.seconds_per_grid, 2.0)
  local plain = assert(p:plan_video(4, 32, 32))
  t.eq({ plain.seconds, plain.seconds_per_grid }, { { 0.125, 0.625 }, 0.5 })
  local texts = {}
  local ids, items = p:layout({ 9, 3, 1, 4, 9, 3, 2, 4, 9 }, { a, b }, function(s)
    texts[#texts + 1] = s
    return { 7, 8 }
  end)
  t.eq(ids, { 9, 3, 1, 1, 4, 9, 7, 8, 3, 2, 4, 7, 8, 3, 2, 4, 9 })
  t.eq(texts, { "<0.5 seconds>", "<2.0 seconds>" })
  t.eq(items[1].runs, { { 3, 2 } })
  t.eq(items[2].runs, { { 10, 1 }, { 15, 1 } })
  t.eq({ items[2].at, items[2].last, items[2].tokens }, { 10, 15, 2 })
  t.eq(p:locate(ids, { a, b })[2].runs, items[2].runs)
  local none, why = p:layout({ 9, 1 }, { a, a })
  t.eq(none, nil)
  t.eq(why, "the prompt has places for 1 of 2 pictures")
  none, why = p:locate({ 1, 9 }, { a })
  t.eq(none, nil)
  t.eq(why, "picture 1 needs 2 tokens, the prompt has 1")
  -- A placeholder without a picture is an ordinary token.
  t.eq((p:layout({ 1, 1 }, {})), { 1, 1 })
end)

test("other sizes", function(t)
  local g = assert(open({ model_type = "gemma4", image_token_id = 1 }, { patch_size = 16 }))
  local plan = assert(g:plan(1, 10000))
  t.eq({ plan.width, plan.height, plan.tokens }, { 48, 13440, 280 })
  plan = assert(g:plan(1000, 1000))
  t.eq({ plan.width, plan.height, plan.tokens }, { 768, 768, 256 })
  local m = assert(open({ model_type = "mistral3", spatial_merge_size = 2,
    vision_config = { patch_size = 14 } }, { size = { longest_edge = 1540 } }))
  plan = assert(m:plan(3000, 1))
  t.eq({ plan.width, plan.height, plan.tokens }, { 1540, 28, 55 })
  local l = assert(open({ model_type = "lfm2_vl", image_token_id = 1 }, { max_tiles = 10 }))
  plan = assert(l:plan(2000, 1000))
  t.eq({ plan.width, plan.height, plan.tiles.columns, plan.tiles.rows }, { 2048, 1024, 4, 2 })
  t.eq(plan.tokens, 8 * 256 + plan.targets[2].width * plan.targets[2].height // 1024)
end)

test("settings that are missing or not supported", function(t)
  local p, why = open({ model_type = "llama" }, { patch_size = 16 })
  t.eq({ p, why }, {})
  p, why = open({ model_type = "gemma3", vision_config = {} }, { do_pan_and_scan = true })
  t.eq(p, nil)
  t.match(why, "pan and scan is not supported")
  p, why = open(QWEN, { resample = 0 })
  t.eq(p, nil)
  t.match(why, "resample must be 1, 2 or 3, got 0")
  p, why = open({ model_type = "llava", vision_config = { model_type = "clip" } }, { size = {} })
  t.eq(p, nil)
  t.match(why, "clip tower")
  p, why = processors.open("tests/images", { config = QWEN })
  t.eq(p, nil)
  t.match(why, "preprocessor_config.json is missing")
end)

test("the key has every setting", function(t)
  local a = assert(open(QWEN, { patch_size = 16 }))
  local b = assert(open(QWEN, { patch_size = 16 }))
  t.eq(a.key, b.key)
  for _, more in ipairs { { patch_size = 14 }, { patch_size = 16, max_pixels = 9999 },
    { patch_size = 16, image_mean = { 0, 0, 0.5 } }, { patch_size = 16, resample = 2 } } do
    t.ok(assert(open(QWEN, more)).key ~= a.key)
  end
end)
