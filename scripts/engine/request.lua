-- request: checks a caller's request and prepares it for the batch: text becomes token ids, missing
-- fields come from generation_config.json.
local perigee = require "perigee"
local text = require "lib.text"

local request = {}

-- The type of each key. Scalars and their ranges come from C, which checks the ranges; here are the
-- lists, and the keys that only scripts know.
local kinds = {
  best_of = "integer", stop_ids = "ids", stop_token_ids = "ids", keep_special = "ids",
    banned = "ids",
  boundaries = "ids", prompt = "any", stop = "any", logit_bias = "any", bad_words = "any",
    logprobs = "any", media = "any", positions = "any", rope_delta = "integer", phases = "any",
}
for _, field in ipairs(perigee.batch.fields()) do kinds[field.name] = field.type end

-- Keys that `prepare` translates instead of copying.
local translated = { prompt = true, seed = true, stop_ids = true, stop_token_ids = true,
  bad_words = true,
  logprobs = true, top_logprobs = true, best_of = true }
local defaulted = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" }

local names = {}
for key in pairs(kinds) do names[#names + 1] = key end
table.sort(names)

local function fail(format, ...) error(format:format(...), 0) end

local function check_ids(key, list)
  if type(list) ~= "table" then fail("%s must be a list of token ids, got %s", key, type(list)) end
  for i, id in ipairs(list) do
    if math.type(id) ~= "integer" then
      fail("%s[%d] must be a token id, got %s", key, i, tostring(id))
    end
  end
end

local function is_a(wanted)
  local article = wanted == "integer" and "an" or "a"
  return function(key, value)
    local got = type(value) == "number" and wanted == "integer" and math.type(value) or type(value)
    if got == "float" then got = tostring(value) end
    if got ~= wanted then fail("%s must be %s %s, got %s", key, article, wanted, got) end
  end
end

local checks = { number = is_a "number", integer = is_a "integer", boolean = is_a "boolean",
  call = is_a "function", ids = check_ids, any = function() end }

local function unknown_key(key, also)
  local all = table.move(names, 1, #names, 1, {})
  for name in pairs(also or {}) do all[#all + 1] = name end
  table.sort(all)
  fail("unknown key '%s'%s", tostring(key), text.suggestion(key, all))
end

--- Raises one line about an unknown key (with the nearest known one) or a value of the wrong type.
--- `also`: further keys that the caller accepts, with their kinds.
function request.check(given, also)
  for key, value in pairs(given) do
    local kind = kinds[key] or (also and also[key])
    if kind then
      checks[kind](key, value)
    else
      unknown_key(key, also)
    end
  end
  if given.prompt == nil then fail "prompt is missing" end
  if type(given.prompt) == "table" then check_ids("prompt", given.prompt)
  elseif type(given.prompt) ~= "string" then
    fail("prompt must be a string or a list of token ids, got %s", type(given.prompt))
  end
end

--- Stop strings as a list.
local function stop_strings(given)
  if type(given) == "string" then return { given } end
  if given ~= nil and type(given) ~= "table" then
    fail("stop must be a string or a list of strings, got %s", type(given))
  end
  for i, s in ipairs(given or {}) do
    if type(s) ~= "string" then fail("stop[%d] must be a string, got %s", i, tostring(s)) end
  end
  return given
end

local function logit_bias(map)
  if map ~= nil and type(map) ~= "table" then
    fail("logit_bias must be a table {[token id] = number}, got %s", type(map))
  end
  for id, bias in pairs(map or {}) do
    if math.type(id) ~= "integer" or type(bias) ~= "number" then
      fail("logit_bias must map token ids to numbers, got [%s] = %s", tostring(id), tostring(bias))
    end
  end
  return map
end

--- Bad words as lists of ids: lists as they are, text with and without a leading space.
local function bad_words(model, list)
  if list == nil then return nil end
  if type(list) ~= "table" then fail("bad_words must be a list, got %s", type(list)) end
  local out, seen = {}, {}
  local function put(ids)
    local key = table.concat(ids, " ")
    if not seen[key] then
      seen[key] = true
      out[#out + 1] = ids
    end
  end
  for i, word in ipairs(list) do
    if type(word) == "table" then
      check_ids("bad_words", word)
      put(word)
    elseif type(word) == "string" and word ~= "" then
      local tok, why = model:tokenizer()
      if not tok then error(why, 0) end
      for _, spelling in ipairs { word, " " .. word } do
        local ids, wrong = tok:encode(spelling)
        if not ids then error(wrong, 0) end
        put(ids)
      end
    else
      fail("bad_words[%d] must be a string or a list of token ids, got %s", i, tostring(word))
    end
  end
  return out
end

local function top_logprobs(given)
  if given.top_logprobs then return given.top_logprobs end
  if math.type(given.logprobs) == "integer" then return given.logprobs end
  if given.logprobs ~= nil and type(given.logprobs) ~= "boolean" then
    fail("logprobs must be a boolean or an integer, got %s", type(given.logprobs))
  end
  return given.logprobs and 0 or nil
end

--- The request for the batch, checked. `also`: further keys that the caller accepts; they are left
--- out.
function request.prepare(model, given, also)
  request.check(given, also)
  local out = {}
  for key in pairs(kinds) do
    if not translated[key] then out[key] = given[key] end
  end
  local config = model.generation_config
  for _, key in ipairs(defaulted) do
    if out[key] == nil and type(config[key]) == "number" then out[key] = config[key] end
  end
  if config.do_sample == false and given.temperature == nil then out.temperature = 0 end
  out.prompt = model:ids(given.prompt)
  out.seed = given.seed or math.random(0, math.maxinteger)
  out.stop, out.logit_bias = stop_strings(given.stop), logit_bias(given.logit_bias)
  out.top_logprobs = top_logprobs(given)
  out.stop_ids = given.stop_ids or given.stop_token_ids
  out.bad_words = bad_words(model, given.bad_words)
  return out
end

return request
