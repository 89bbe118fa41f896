-- Vision towers against the features of the reference, and against themselves: alone or in company,
-- any number of threads, fused or not, in the foreground or on the engine thread, bit for bit.
local perigee = require "perigee"
local engine_vision = require "engine.vision"
local samples = require "samples"
local text = require "lib.text"
local towers = require "towers"
local uv = require "luv"
local vision = require "models.vision"
local test = require("harness").test
local json, tensor = perigee.json, perigee.tensor

local TOLERANCE = 2e-4 -- of the largest value
-- Of `fast` from `exact`: with AMX, products of bf16 weights split activations (amx16.h); without,
-- plain weights have the same bits, and quantized ones are at 2e-5.
local FAST = 2e-4
local forced = ... -- with a collection at every step: a few models are enough
local here = arg[0]:match "^(.*)/[^/]*$" or "."
local GOLDEN = here .. "/../../../shared/golden/"
local MOONLET = here .. "/../../examples/moonlet"

-- ---- towers of the golden directories -----------------------------------------------------------

--- The tower of a directory as model.vision would be, without its text model. change: function of
--- the parsed config. precision: nothing for exact.
local function open(path, change, precision)
  local weights = assert(perigee.weights.open(path))
  local parsed = assert(json.decode(assert(text.read_file(path .. "/config.json"))))
  if change then change(parsed) end
  local made, why = vision.build(weights, parsed)
  if not made then
    weights:close()
    return nil, why
  end
  return engine_vision.new({ weights = weights, options = { precision = precision } }, made), parsed
end

local function close(v)
  v:close()
  v.model.weights:close()
end

local function layout_of(name, parsed)
  local family, c = towers.families[name], parsed.vision_config
  return { order = family.order, normal = family.normal, patch = c.patch_size,
    merge = c.spatial_merge_size or 1 }
end

--- The distance of two tensors, relative to the largest value of the second.
local function distance(got, want)
  return (got - want):abs():max() / want:abs():max()
end

local function contains(t, got, part)
  if not got:find(part, 1, true) then t.fail(("'%s' does not contain '%s'"):format(got, part)) end
end

local function check_features(t, v, items)
  for _, item in ipairs(items) do
    local features, deepstack = v:encode(item.picture)
    t.eq(features.shape, item.features.shape)
    t.near(distance(features, item.features), 0, TOLERANCE, item.name)
    t.eq(#deepstack, #item.deepstack)
    for j, plane in ipairs(item.deepstack) do
      t.near(distance(deepstack[j], plane), 0, TOLERANCE, ("%s deepstack %d"):format(item.name, j))
    end
    local tokens = 0
    for _, grid in ipairs(item.grids) do tokens = tokens + v:tokens(grid) end
    t.eq(tokens, features.shape[1])
  end
end

--- The towers' own input, where the file has it, is what its pixels give.
local function check_pixels(t, items)
  for _, item in ipairs(items) do
    local pixels = item.pixels
    if pixels and #pixels.shape == 2 then
      t.near((item.picture.patches - pixels):abs():max(), 0, 1e-6, item.name)
    end
  end
end

local function bytes_of(result)
  local list = { result.features:bytes() }
  for _, plane in ipairs(result.deepstack) do list[#list + 1] = plane:bytes() end
  return table.concat(list)
end

local function check_bits(t, v, items)
  local all, alone = {}, {}
  for i, item in ipairs(items) do
    all[i] = item.picture
    alone[i] = bytes_of(v:eval(item.picture))
  end
  local ways = { {}, { threads = 1 }, { threads = 3 }, { fusion = false } }
  for n, way in ipairs(ways) do
    for i, result in ipairs(v:encode_all(all, way)) do
      if bytes_of(result) ~= alone[i] then
        t.fail(("%s: other bits in company, way %d"):format(items[i].name, n))
      end
    end
  end
end

for _, name in ipairs(text.sorted_keys(towers.families)) do
  if not forced or name == "vl_qwen3_vl" then
    test("features of " .. name, function(t)
      if not uv.fs_stat(GOLDEN .. name) then t.skip("no ../shared/golden/" .. name) end
      local v, parsed = open(GOLDEN .. name)
      local golden <close> = assert(perigee.weights.open(GOLDEN .. name .. "/golden.safetensors"))
      local items = towers.golden(golden, layout_of(name, parsed))
      t.eq(#items, 4)
      check_pixels(t, items)
      check_features(t, v, items)
      check_bits(t, v, items)
      close(v)
    end)
  end
end

for _, name in ipairs(forced and {} or text.sorted_keys(towers.families)) do
  test("features of fast: " .. name, function(t)
    if not uv.fs_stat(GOLDEN .. name) then t.skip("no ../shared/golden/" .. name) end
    local v, parsed = open(GOLDEN .. name, nil, "fast")
    local golden <close> = assert(perigee.weights.open(GOLDEN .. name .. "/golden.safetensors"))
    local items = towers.golden(golden, layout_of(name, parsed))
    for _, item in ipairs(items) do
      local exact = v:eval(item.picture, { precision = "exact" })
      local fast = v:eval(item.picture)
      t.near(distance(fast.features, exact.features), 0, FAST, item.name)
      for j, plane in ipairs(exact.deepstack) do
        t.near(distance(fast.deepstack[j], plane), 0, FAST,
          ("%s deepstack %d"):format(item.name, j))
      end
    end
    check_bits(t, v, items)
    close(v)
  end)
end

--- A picture file through the decoder and the model's processor to its features.
local function check_file(t, o, files, want)
  local load = #files > 1 and o.media.load_video or o.media.load
  local bytes = {}
  for i, file in ipairs(files) do
    bytes[i] = assert(o.media.read(GOLDEN .. "images/" .. file))
  end
  local picture = assert(load(o.media, #files > 1 and bytes or bytes[1], o.processor))
  local features = o.vision:encode(o.processor:patches(picture.pixels, picture.plan))
  t.near(distance(features, want), 0, TOLERANCE, files[1])
end

test("features of picture files and videos", function(t)
  local here_too, Media = pcall(require, "engine.media")
  if forced or not here_too then t.skip "no picture decoder" end
  if not uv.fs_stat(GOLDEN) then t.skip "no ../shared/golden" end
  local processors = require "models.processors"
  local media <close> = assert(Media.open { children = 1 })
  for _, name in ipairs(text.sorted_keys(towers.families)) do
    local path = GOLDEN .. name
    local v = assert(open(path))
    local golden <close> = assert(perigee.weights.open(path .. "/golden.safetensors"))
    local o = { media = media, vision = v, processor = assert(processors.open(path)) }
    local cases = assert(json.decode(text.read_file(path .. "/golden.json"))).cases
    for k, case in ipairs(cases) do
      local function want(i) return samples.read(golden, ("features.%d.%d"):format(k - 1, i)) end
      for i, file in ipairs(case.images or {}) do check_file(t, o, { file }, want(i - 1)) end
      if case.video_frames then check_file(t, o, case.video_frames, want(0)) end
    end
    close(v)
  end
end)

-- ---- files --------------------------------------------------------------------------------------

--- Writes the tensors of a golden directory to a new one. edit(name, t): another name and tensor,
--- or nothing to leave it out.
local function rewritten(name, edit)
  local folder = assert(uv.fs_mkdtemp(os.tmpname():match "^(.*)/" .. "/perigee-vision-XXXXXX"))
  local weights <close> = assert(perigee.weights.open(GOLDEN .. name))
  local list = {}
  for _, old in ipairs(weights:names()) do
    local new, t = edit(old, samples.read(weights, old))
    if new then
      t = t:to("bf16"):contiguous()
      list[#list + 1] = { name = new, dtype = "bf16", shape = t.shape, bytes = t:bytes() }
    end
  end
  assert(perigee.weights.save(folder .. "/model.safetensors", list))
  local config = io.open(folder .. "/config.json", "wb")
  config:write(assert(text.read_file(GOLDEN .. name .. "/config.json")))
  config:close()
  return folder
end

local function remove(folder)
  os.remove(folder .. "/model.safetensors")
  os.remove(folder .. "/config.json")
  uv.fs_rmdir(folder)
end

--- How converted files name and store the tensors of a tower: channels last.
local converted = {
  vl_qwen3_vl = function(name, t)
    if name:match "patch_embed.proj.weight$" then t = t:permute { 1, 3, 4, 5, 2 } end
    return name:gsub("^model%.visual%.", "vision_tower."), t
  end,
  vl_gemma3 = function(name, t)
    if name:match "patch_embedding.weight$" then t = t:permute { 1, 3, 4, 2 } end
    return name, t
  end,
  vl_mistral3 = function(name, t)
    if name:match "patch_conv.weight$" then t = t:permute { 1, 3, 4, 2 } end
    return name:gsub("^vision_tower%.", "vision_tower.vision_model."), t
  end,
  vl_gemma4_e = function(name, t) return name:gsub("^model%.", ""), t end,
}

for _, name in ipairs(forced and {} or text.sorted_keys(converted)) do
  test("converted files give the same features: " .. name, function(t)
    if not uv.fs_stat(GOLDEN .. name) then t.skip("no ../shared/golden/" .. name) end
    local folder = rewritten(name, function(old, values)
      local new, changed = converted[name](old, values)
      return new, changed
    end)
    local v, parsed = open(GOLDEN .. name)
    local other = assert(open(folder))
    local golden <close> = assert(perigee.weights.open(GOLDEN .. name .. "/golden.safetensors"))
    for _, item in ipairs(towers.golden(golden, layout_of(name, parsed))) do
      if bytes_of(v:eval(item.picture)) ~= bytes_of(other:eval(item.picture)) then
        t.fail(item.name .. ": other features")
      end
    end
    close(v)
    close(other)
    remove(folder)
  end)
end

test("a model without its tower is a text model, an incomplete tower is an error", function(t)
  local name = "vl_qwen3_5"
  if not uv.fs_stat(GOLDEN .. name) then t.skip("no ../shared/golden/" .. name) end
  local function without(pattern)
    local folder = rewritten(name, function(old, values)
      if not old:find(pattern) then return old, values end
    end)
    local v, why = open(folder)
    remove(folder)
    return v, why
  end
  local v, why = without "visual%."
  t.eq(v, nil)
  t.eq(why, nil)
  v, why = without "blocks%.1%.norm2%.weight"
  t.eq(v, nil)
  contains(t, tostring(why), "missing tensor model.visual.blocks.1.norm2.weight")
  v, why = open(GOLDEN .. name, function(parsed) parsed.vision_config.depth = 2 end)
  t.eq(v, nil)
  contains(t, tostring(why), "unused tensor model.visual.blocks.2.")
end)

-- ---- moonlet ------------------------------------------------------------------------------------

--- A picture of this grid with random patches, for a tower of merge 2.
local function noise(v, h, w, seed)
  return { patches = tensor.uniform { h * w, v.spec.patch, seed = seed, low = -1, high = 1 },
    grid = { 1, h, w } }
end

local function with_moonlet(f)
  local model <close> = assert(perigee.open(MOONLET))
  return f(model, model.vision)
end

test("moonlet has a tower", function(t)
  with_moonlet(function(_, v)
    t.eq(v.hidden, 256)
    local list = {}
    for i, side in ipairs { 2, 8, 12 } do list[i] = noise(v, side, 14 - side, i) end
    local together = v:encode_all(list)
    for i, picture in ipairs(list) do
      local features, deepstack = v:encode(picture)
      t.eq(features.shape, { v:tokens(picture.grid), 256 })
      t.eq(deepstack, {})
      t.ok(features:isfinite():all())
      t.ok(features:bytes() == together[i].features:bytes())
    end
  end)
end)

test("moonlet's tower in fast: the same bits in company, close to exact", function(t)
  with_moonlet(function(model, v)
    model.options.precision = "fast"
    local list = {}
    for i, side in ipairs { 2, 8, 12, 32 } do list[i] = noise(v, side, math.abs(14 - side), i) end
    local together, exact = v:encode_all(list), v:encode_all(list, { precision = "exact" })
    for i, picture in ipairs(list) do
      local features = v:encode(picture)
      t.ok(features:bytes() == together[i].features:bytes())
      t.near(distance(features, exact[i].features), 0, FAST)
    end
    for n, way in ipairs { { threads = 1 }, { threads = 3 }, { fusion = false } } do
      for i, result in ipairs(v:encode_all(list, way)) do
        if result.features:bytes() ~= together[i].features:bytes() then
          t.fail(("other bits, way %d, picture %d"):format(n, i))
        end
      end
    end
  end)
end)

test("taps inside a tower, in the order of the patches", function(t)
  with_moonlet(function(_, v)
    local picture = noise(v, 4, 6, 1)
    local names = { "patches", "visual.blocks.1", "visual.blocks.2.attention" }
    local taps = v:eval(picture, { tap = names }).taps
    t.ok(taps.patches:bytes() == picture.patches:bytes())
    t.eq(taps["visual.blocks.1"].shape, { 24, 128 })
    t.eq(taps["visual.blocks.2.attention"].shape, { 24, 4, 32 })
    t.raises(function() v:eval(picture, { tap = { "no.such" } }) end, "no value is named 'no.such'")
  end)
end)

test("pictures that do not fit are refused", function(t)
  with_moonlet(function(model, v)
    local patches = noise(v, 2, 2, 1).patches
    t.raises(function() v:encode { patches = patches, grid = { 1, 2, 4 } } end,
      "must be contiguous float32 [8, 1536], got f32 [4, 1536]")
    t.raises(function() v:encode { patches = patches, grid = { 1, 1, 4 } } end,
      "1 x 4 patches cannot be merged in blocks of 2 x 2")
    t.raises(function() v:encode { patches = patches, grid = { 4 } } end, "{frames, rows, cols}")
    t.raises(function() v:encode { patches = "x", grid = { 1, 2, 2 } } end, "must be a tensor")
    t.raises(function() v:encode_all {} end, "a list of pictures expected")
    model.options.memory = 1 << 20
    t.raises(function() v:encode(noise(v, 32, 32, 1)) end, "not enough memory")
    model.options.memory = nil
  end)
end)

test("the engine thread gives the same features", function(t)
  local model = assert(perigee.open(MOONLET))
  local v, batch = model.vision, assert(model:batch { sequences = 2, cache_bytes = 0 })
  local list, want, done = {}, {}, 0
  for i = 1, 6 do
    list[i] = noise(v, 2 * i, 4, i)
    want[i] = v:encode(list[i]):bytes()
  end
  local answer
  local function finish()
    if done < 6 or not answer then return end
    v:detach()
    batch:stop()
    batch:close()
    model:close()
  end
  v:attach(batch)
  assert(batch:start())
  assert(batch:add { prompt = { 5, 6, 7 }, max_tokens = 8, temperature = 0,
    on_done = t.expect(function(seq)
      answer = seq.ids
      t.eq(#answer, 8)
      finish()
    end) })
  for i = 1, 6, 2 do
    assert(v:submit({ list[i], list[i + 1] }, t.expect(function(results, err)
      t.eq(err, nil)
      for k = 0, 1 do t.ok(results[k + 1].features:bytes() == want[i + k]) end
      done = done + 2
      finish()
    end)))
  end
end)

test("jobs of a tower are cancelled, and dropped when it is detached", function(t)
  local model = assert(perigee.open(MOONLET))
  local v, batch = model.vision, assert(model:batch { sequences = 1, cache_bytes = 0 })
  t.raises(function() v:submit({ noise(v, 2, 2, 1) }, print) end, "not attached")
  v:attach(batch)
  t.raises(function() v:attach(batch) end, "attached already")
  local refused, why = v:submit({ { patches = noise(v, 2, 2, 1).patches, grid = { 1, 2, 3 } } },
    print)
  t.eq(refused, nil)
  contains(t, tostring(why), "cannot be merged")
  -- large enough that it still runs when the next job is cancelled; a fake Metal is slow
  local side = perigee.engine.device "auto" == "metal" and 16 or 64
  local big = noise(v, side, side, 1)
  assert(v:submit({ big }, t.expect(function(results) t.eq(#results, 1) end)))
  local job = assert(v:submit({ big, big }, t.expect(function(results, err)
    t.eq(results, nil)
    contains(t, tostring(err), "cancelled")
    assert(v:submit({ big, big, big }, t.expect(function(late, reason)
      t.eq(late, nil)
      contains(t, tostring(reason), "detached")
    end)))
    v:detach()
    batch:close()
    model:close()
  end)))
  job:cancel()
end)

-- ---- configs ------------------------------------------------------------------------------------

--- What published configs may leave out has the value of their publishers' config classes.
test("towers have the defaults of their publishers", function(t)
  local siglip = { hidden_size = 1152, image_size = 896, num_attention_heads = 16,
    num_hidden_layers = 27, patch_size = 14, num_channels = 3, layer_norm_eps = 1e-6,
    hidden_act = "gelu_pytorch_tanh" }
  local want = {
    gemma3 = siglip,
    gemma4 = { rope_theta = 100.0, pooling_kernel_size = 3, position_embedding_size = 10240 },
    lfm2_vl = { hidden_size = 768, num_hidden_layers = 12, num_attention_heads = 12,
      patch_size = 16, num_channels = 3, num_patches = 256, layer_norm_eps = 1e-6,
      hidden_act = "gelu_pytorch_tanh" },
    pixtral = { hidden_size = 1024, num_hidden_layers = 24, num_attention_heads = 16,
      patch_size = 16, num_channels = 3, hidden_act = "silu", rope_theta = 10000.0 },
    qwen2_vl = { depth = 32, embed_dim = 1280, num_heads = 16, patch_size = 14,
      spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, hidden_act = "quick_gelu" },
    qwen2_5_vl = { depth = 32, hidden_size = 1280, num_heads = 16, patch_size = 14,
      spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3, hidden_act = "silu",
      window_size = 112, fullatt_block_indexes = { 7, 15, 23, 31 } },
    qwen3_vl = { depth = 27, hidden_size = 1152, num_heads = 16, patch_size = 16,
      spatial_merge_size = 2, temporal_patch_size = 2, in_channels = 3,
      hidden_act = "gelu_pytorch_tanh", num_position_embeddings = 48 * 48,
      deepstack_visual_indexes = {} },
  }
  for name, defaults in pairs(want) do
    t.eq(require("models.vision." .. name).defaults, defaults, name)
  end
end)
