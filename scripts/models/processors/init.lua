-- processors: how a model wants its pictures: their size, their patches, their place in the prompt.
--
--   local p = assert(processors.open(path, { ids = function(name) … end }))
--   local plan = assert(p:plan(info.width, info.height))     -- sizes and tokens, before any work
--   local parts = p:patches(pixels, plan)                    -- pixels: those of plan.targets
--   local ids, items = p:layout(ids, plans, encode)          -- placeholders become their tokens
--
-- A family is one file of this folder. It returns a table:
--
--   names       model types (config.json)
--   open        (self, settings, config, ids): reads its settings; nil and why, if it cannot
--   plan        (self, width, height) -> plan
--   plan_video  (self, frames, width, height, times) -> plan (optional)
--   parts       (self, plan) -> what perigee.image.patches needs, one table for each part
--   expand      (self, plan, out, encode): writes the tokens of a picture (place.lua)
--   strips      (self, plan): its own start and end replace those of the template (optional)
--
-- A plan is { kind = "image" or "video", width, height, filter, grid = { frames, rows, columns } in
-- patches, tokens, targets = { { width, height, filter }, … } }; one with several parts has grids.
-- settings are those of preprocessor_config.json and processor_config.json; settings.video those of
-- video_preprocessor_config.json.
local perigee = require "perigee"
local modeldir = require "lib.modeldir"
local place = require "models.processors.place"
local text = require "lib.text"
local json = perigee.json

local processors = {}

local FAMILIES = {}
for _, name in ipairs { "qwen", "gemma3", "gemma4", "pixtral", "lfm2_vl" } do
  for _, model_type in ipairs(require("models.processors." .. name).names) do
    FAMILIES[model_type] = name
  end
end

--- A copy of a JSON object without its nulls, which count as absent; nil if it is not an object.
local function present(object)
  if not json.is_object(object) then return nil end
  local copy = {}
  for k, v in pairs(object) do
    if v ~= json.null then copy[k] = v end
  end
  return copy
end

-- ---- settings -----------------------------------------------------------------------------------

local Settings = {}
Settings.__index = Settings

--- The value of a key; null counts as absent.
function Settings:value(key)
  local v = self.map[key]
  if v ~= json.null then return v end
end

function Settings:integer(key)
  local v = self:value(key)
  return type(v) == "number" and math.tointeger(v) or nil
end

function Settings:object(key) return present(self:value(key)) end

local FILTERS = { [1] = "lanczos", [2] = "bilinear", [3] = "bicubic" } -- Pillow's numbers

function Settings:filter(absent)
  local v = self:value "resample"
  if v == nil then return absent end
  return FILTERS[v] or error(perigee.error("unsupported",
    ("resample must be 1, 2 or 3, got %s"):format(tostring(v))), 0)
end

function Settings:scale()
  if self:value "do_rescale" == false then return 1.0 end
  return self:value "rescale_factor" or 1 / 255
end

local function three(self, key, absent, off)
  if self:value "do_normalize" == false then return { off, off, off } end
  local v = self:value(key)
  if type(v) == "number" then return { v, v, v } end
  if type(v) ~= "table" or #v ~= 3 then return absent end
  return { v[1], v[2], v[3] }
end

function Settings:mean(absent) return three(self, "image_mean", absent, 0) end
function Settings:std(absent) return three(self, "image_std", absent, 1) end

--- The JSON object in a file of the model's directory; nil if there is none, nil and why if it is
--- damaged.
local function read(path, name)
  local source = text.read_file(path .. "/" .. name)
  if not source then return nil end
  local object, why = json.decode(source)
  if not object then return nil, ("%s/%s: %s"):format(path, name, tostring(why)) end
  if not json.is_object(object) then return nil, ("%s/%s: not a JSON object"):format(path, name) end
  return object
end

--- Keys of later maps win.
local function settings_of(...)
  local map = {}
  for i = 1, select("#", ...) do
    local more = select(i, ...)
    if json.is_object(more) then
      for k, v in pairs(more) do map[k] = v end
    end
  end
  return next(map) and setmetatable({ map = map }, Settings) or nil
end

local function read_settings(path)
  local image, why = read(path, "preprocessor_config.json")
  if why then return nil, why end
  local processor, wrong = read(path, "processor_config.json")
  if wrong then return nil, wrong end
  local video, bad = read(path, "video_preprocessor_config.json")
  if bad then return nil, bad end
  local settings = settings_of(image, processor, processor and processor.image_processor)
  if settings then
    settings.video = settings_of(video, processor and processor.video_processor)
  end
  return settings
end

-- ---- checks -------------------------------------------------------------------------------------

-- What families compute with, and the largest value: published models stay far below these, and
-- neither a plan nor its tokens take long with them.
local SIZES = { { "patch", 4096 }, { "merge", 64 }, { "frames", 64 }, { "pool", 64 },
  { "tile", 16384 }, { "min_tiles", 256 }, { "max_tiles", 256 }, { "width", 16384 },
  { "height", 16384 }, { "longest", 1 << 20 }, { "count", 1 << 16 }, { "least", 1 << 16 },
  { "most", 1 << 20 } }
local TOKENS = { "image_token", "video_token", "first", "last", "row_end", "placeholder" }

local function is_number(v) return type(v) == "number" and v == v and math.abs(v) < math.huge end

local function misfit(key, wanted, v)
  return ("the settings of pictures do not fit: %s must be %s, got %s"):format(key, wanted,
    type(v) == "table" and "a table" or tostring(v))
end

--- What is wrong with the values that a family has read, or nil.
local function problem_of(self)
  for _, size in ipairs(SIZES) do
    local key, most = table.unpack(size)
    local v = self[key]
    if v ~= nil and (math.type(v) ~= "integer" or v < 1 or v > most) then
      return misfit(key, ("an integer between 1 and %d"):format(most), v)
    end
  end
  for _, key in ipairs(TOKENS) do
    local v = self[key]
    if v ~= nil and (math.type(v) ~= "integer" or v < 0) then
      return misfit(key, "a token id", v)
    end
  end
  for _, key in ipairs { "scale", "tolerance" } do
    if self[key] ~= nil and not is_number(self[key]) then
      return misfit(key, "a number", self[key])
    end
  end
  for _, key in ipairs { "mean", "std" } do
    for _, v in ipairs(self[key]) do
      if not is_number(v) then return misfit(key, "three numbers", v) end
    end
  end
  for _, limits in ipairs { self.limits or {}, self.video_limits or {} } do
    for key, v in pairs(limits) do
      if not is_number(v) or v < 1 then
        return misfit(key .. "_pixels", "a number of 1 or more", v)
      end
    end
  end
end

-- ---- a processor --------------------------------------------------------------------------------

--- All settings that change pixels or tokens, as text: a part of the key of a picture's content.
local function key_of(self)
  local parts = {}
  local function put(name, v)
    if type(v) == "table" then
      local keys = {}
      for k in pairs(v) do keys[#keys + 1] = k end
      table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
      for _, k in ipairs(keys) do put(name .. "." .. tostring(k), v[k]) end
    elseif type(v) ~= "function" then
      parts[#parts + 1] = ("%s=%s"):format(name,
        math.type(v) == "float" and ("%.17g"):format(v) or tostring(v))
    end
  end
  put(self.family, self)
  return table.concat(parts, " ")
end

--- The options of perigee.image.patches for each part.
local function part_options(self, pixels, plan)
  local list = {}
  for i, part in ipairs(self:parts(plan)) do
    local pictures = pixels
    if plan.kind ~= "video" then pictures = pixels[part.target or 1] end
    local options = { pixels = pictures, scale = self.scale, mean = self.mean, std = self.std }
    for k, v in pairs(part) do
      if k ~= "target" then options[k] = v end
    end
    list[i] = options
  end
  return list
end

--- The rows that the tower reads: a list of { patches = tensor, grid }, one for each part. With a
--- callback it gets the list, or nil and an error, and the loop goes on meanwhile.
local function patches(self, pixels, plan, callback)
  local list, out = part_options(self, pixels, plan), {}
  if not callback then
    for i, options in ipairs(list) do
      local rows, grid = perigee.image.patches(options)
      if not rows then return nil, grid end
      out[i] = { patches = rows, grid = grid }
    end
    return out
  end
  local missing, failed = #list, nil
  for i, options in ipairs(list) do
    local started, why = perigee.image.patches(options, function(rows, grid)
      missing = missing - 1
      if rows then out[i] = { patches = rows, grid = grid } else failed = failed or grid end
      if missing > 0 then return end
      if failed then callback(nil, failed) else callback(out) end
    end)
    if not started then
      missing = missing - 1
      failed = failed or why
      if missing == 0 then callback(nil, failed) end
    end
  end
end

--- Opens the processor of a model directory. Returns nil for a model without pictures; nil and why
--- for one whose settings are missing or not supported. Options: config (of config.json), ids (a
--- function: the id of a special token by its text).
function processors.open(path, options)
  options = options or {}
  local config, why = options.config, nil
  if not config then config, why = modeldir.config(path) end
  if not config then return nil, why end
  local family = FAMILIES[config.model_type]
  if not family then return nil end
  local settings, wrong = read_settings(path)
  if not settings then
    return nil, wrong or ("%s: preprocessor_config.json is missing"):format(path)
  end
  local class = require("models.processors." .. family)
  local methods = { patches = patches, layout = place.layout, locate = place.locate }
  for k, v in pairs(class) do methods[k] = v end
  local self = setmetatable({ family = family }, { __index = methods })
  config = present(config)
  config.vision_config = present(config.vision_config)
  local ok, refused, reason = pcall(self.open, self, settings, config, options.ids)
  if not ok then -- a string is an error of Lua's own: a setting has another type
    local why_not = type(refused) == "string" and "the settings of pictures have another type"
    return nil, ("%s: %s"):format(path, why_not or tostring(refused))
  end
  reason = reason or problem_of(self)
  if reason then return nil, ("%s: %s"):format(path, reason) end
  self.key = key_of(self)
  return self
end

return processors
