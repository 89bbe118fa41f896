-- request: what a caller asks of a model, checked and as the batch generator takes it: text becomes ids, what is left out
-- comes from generation_config.json.
local text = require "lib.text"

local request = {}

-- What each key must be. Numbers are judged by the sampler, which says what they may be.
local kinds = {
  temperature = "number", top_p = "number", min_p = "number", typical_p = "number", xtc_probability = "number",
  xtc_threshold = "number", repetition_penalty = "number", presence_penalty = "number", frequency_penalty = "number",
  top_k = "integer", penalty_window = "integer", top_logprobs = "integer", max_tokens = "count", min_tokens = "count",
  n = "count", best_of = "integer", seed = "long", salt = "long", ignore_eos = "boolean", skip_special = "boolean",
  no_cache = "boolean", hold = "boolean", keep_logits = "boolean", stop_ids = "ids", stop_token_ids = "ids",
  keep_special = "ids", banned = "ids", boundaries = "ids", prompt = "any", stop = "any", logit_bias = "any",
  bad_words = "any", logprobs = "any",
}
local own = { prompt = true, seed = true, stop_ids = true, stop_token_ids = true, bad_words = true, logprobs = true,
  top_logprobs = true, best_of = true }
local defaulted = { "temperature", "top_p", "top_k", "min_p", "repetition_penalty" }

local names = {}
for key in pairs(kinds) do names[#names + 1] = key end
table.sort(names)

local function fail(format, ...) error(format:format(...), 0) end

local function check_ids(key, list)
  if type(list) ~= "table" then fail("'%s' must be a list of token ids, not %s", key, type(list)) end
  for i, id in ipairs(list) do
    if math.type(id) ~= "integer" then fail("token %d of '%s' is no id: %s", i, key, tostring(id)) end
  end
end

local function is_number(key, value) if type(value) ~= "number" then fail("'%s' must be number, not %s", key, type(value)) end end

local function is_long(key, value)
  is_number(key, value)
  if math.type(value) ~= "integer" then fail("'%s' must be integer, not number", key) end
end

local function is_integer(key, value)
  is_long(key, value)
  if value < -0x80000000 or value > 0x7fffffff then fail("%s is %d, which is out of range", key, value) end
end

local checks = {
  number = is_number, long = is_long, integer = is_integer, ids = check_ids, any = function() end,
  count = function(key, value)
    is_integer(key, value)
    if value < 0 then fail("%s is %d, it must be 0 or more", key, value) end
  end,
  call = function(key, value) if type(value) ~= "function" then fail("'%s' must be a function, not %s", key, type(value)) end end,
  boolean = function(key, value) if type(value) ~= "boolean" then fail("'%s' must be boolean, not %s", key, type(value)) end end,
}

--- The known key that is nearest to one that is not.
local function nearest_key(key, also)
  local all = table.move(names, 1, #names, 1, {})
  for name in pairs(also or {}) do all[#all + 1] = name end
  table.sort(all)
  return text.nearest(key, all)
end

--- Raises one line when a key is not known, naming the nearest one, or its value cannot be; `also`: keys of the caller, each
--- with what it must be.
function request.check(given, also)
  for key, value in pairs(given) do
    local kind = kinds[key] or (also and also[key])
    if kind then
      checks[kind](key, value)
    else
      local nearest = type(key) == "string" and nearest_key(key, also)
      fail("unknown key '%s'%s", tostring(key), nearest and (", is it '" .. nearest .. "'?") or "")
    end
  end
  if given.prompt == nil then fail "'prompt' is missing" end
  if type(given.prompt) == "table" then check_ids("prompt", given.prompt)
  elseif type(given.prompt) ~= "string" then fail "'prompt' must be text or a list of ids" end
end

--- Stop strings as a list.
local function stop_strings(given)
  if type(given) == "string" then return { given } end
  if given ~= nil and type(given) ~= "table" then fail("'stop' must be text or a list of texts, not %s", type(given)) end
  for i, s in ipairs(given or {}) do
    if type(s) ~= "string" then fail("entry %d of 'stop' is no text: %s", i, tostring(s)) end
  end
  return given
end

local function logit_bias(map)
  if map ~= nil and type(map) ~= "table" then fail("'logit_bias' must be a table of ids and numbers, not %s", type(map)) end
  for id, bias in pairs(map or {}) do
    if math.type(id) ~= "integer" or type(bias) ~= "number" then fail("logit_bias: '%s': %s is no token id with a number",
      tostring(id), tostring(bias)) end
  end
  return map
end

--- Words that must not come: lists of ids as they are, text with and without a space before it.
local function bad_words(model, list)
  if list == nil then return nil end
  if type(list) ~= "table" then fail("'bad_words' must be a list, not %s", type(list)) end
  local out, seen = {}, {}
  local function put(ids)
    local key = table.concat(ids, " ")
    if not seen[key] then
      seen[key] = true
      out[#out + 1] = ids
    end
  end
  for _, word in ipairs(list) do
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
      fail("bad_words: %s is neither text nor a list of ids", tostring(word))
    end
  end
  return out
end

local function top_logprobs(given)
  if given.top_logprobs then return given.top_logprobs end
  if math.type(given.logprobs) == "integer" then return given.logprobs end
  if given.logprobs ~= nil and type(given.logprobs) ~= "boolean" then fail "'logprobs' must be boolean or integer" end
  return given.logprobs and 0 or nil
end

--- The request for the batch, checked. `also`: keys of the caller, which are left out.
function request.prepare(model, given, also)
  request.check(given, also)
  local out = {}
  for key in pairs(kinds) do
    if not own[key] then out[key] = given[key] end
  end
  for _, key in ipairs(defaulted) do
    local default = model.generation[key]
    if out[key] == nil and type(default) == "number" then out[key] = default end
  end
  if model.generation.do_sample == false and given.temperature == nil then out.temperature = 0 end
  out.prompt = model:ids(given.prompt)
  out.seed = given.seed or math.random(0, math.maxinteger)
  out.stop, out.logit_bias, out.top_logprobs = stop_strings(given.stop), logit_bias(given.logit_bias), top_logprobs(given)
  out.stop_ids = given.stop_ids or given.stop_token_ids
  out.bad_words = bad_words(model, given.bad_words)
  return out
end

return request
