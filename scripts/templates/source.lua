-- source: finds the chat templates of a model, and the special tokens that they use.
--
-- A directory has chat_template.jinja (chat_template.json in older ones) and
-- additional_chat_templates/, or `chat_template` in tokenizer_config.json: a string, or a list of
-- {name, template}. A GGUF file has tokenizer.chat_template and tokenizer.chat_template.NAME. A
-- file that ends in .jinja is itself a template.
local perigee = require "perigee"
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

local source = {}

local TOKENS = { "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token",
  "mask_token" }

--- A special token is a string, or the object of an added token.
local function token_text(v)
  if type(v) == "string" then return v end
  if json.is_object(v) and type(v.content) == "string" then return v.content end
end

local function read_json(path)
  local content = text.read_file(path)
  if not content then return nil end
  local value, why = json.decode(content)
  if why then return nil, path .. ": " .. tostring(why) end
  if not json.is_object(value) then return nil, path .. ": not a JSON object" end
  return value
end

--- Collects templates by name from a `chat_template` field.
local function named(field, into)
  if type(field) == "string" then
    into.default = into.default or field
  elseif json.is_array(field) then
    for _, entry in ipairs(field) do
      if json.is_object(entry) and type(entry.name) == "string"
        and type(entry.template) == "string" then
        into[entry.name] = into[entry.name] or entry.template
      end
    end
  end
end

local function add_tokens(config, tokens)
  for _, name in ipairs(TOKENS) do tokens[name] = tokens[name] or token_text(config[name]) end
end

local function additional(folder, into)
  local request = uv.fs_scandir(folder)
  while request do
    local name = uv.fs_scandir_next(request)
    if not name then break end
    local word = name:match "^(.+)%.jinja$"
    if word then into[word] = text.read_file(folder .. "/" .. name) end
  end
end

local function of_directory(dir)
  local set = { templates = {}, tokens = {} }
  set.templates.default = text.read_file(dir .. "/chat_template.jinja")
  additional(dir .. "/additional_chat_templates", set.templates)
  for _, file in ipairs { "chat_template.json", "tokenizer_config.json",
    "special_tokens_map.json" } do
    local config, why = read_json(dir .. "/" .. file)
    if why then return nil, why end
    if config then
      named(config.chat_template, set.templates)
      add_tokens(config, set.tokens)
    end
  end
  return set
end

local IDS = { -- "seperator" is the format's spelling
  bos_token = "bos", eos_token = "eos", unk_token = "unknown", sep_token = "seperator",
  pad_token = "padding", cls_token = "cls", mask_token = "mask",
}

local function of_gguf(path)
  local weights, why = perigee.weights.open(path)
  if not weights then return nil, why end
  local set, ids = { templates = {}, tokens = {} }, {}
  for _, pair in ipairs(weights:metadata { most = 0 }) do
    local name = pair[1]:match "^tokenizer%.chat_template%.(.+)$"
    if pair[1] == "tokenizer.chat_template" then name = "default" end
    if name and type(pair[2]) == "string" then set.templates[name] = pair[2] end
    for token, id in pairs(IDS) do
      if pair[1] == "tokenizer.ggml." .. id .. "_token_id" then
        ids[token] = math.type(pair[2]) == "integer" and pair[2] or nil -- of a damaged file
      end
    end
  end
  weights:close()
  if not next(ids) then return set end
  local tokenizer, bad = perigee.tokenizer.open(path)
  if not tokenizer then return nil, bad end
  for token, id in pairs(ids) do set.tokens[token] = tokenizer:token(id) end
  tokenizer:close()
  return set
end

local function kind_of(path)
  local info = uv.fs_stat(path)
  return info and info.type
end

--- { templates = { default = …, tool_use = … }, tokens = { bos_token = …, … } } of a model
--- directory, a GGUF file or a template file; nil and one line if there is no template. `instead`:
--- the source of a template that replaces all others.
function source.open(path, instead)
  local kind = kind_of(path)
  if not kind then return nil, path .. ": no such file or directory" end
  local set, why
  if kind == "directory" then
    set, why = of_directory(path)
  elseif path:match "%.gguf$" then
    set, why = of_gguf(path)
  else
    local content
    content, why = text.read_file(path)
    if content then set = { templates = { default = content }, tokens = {} } end
  end
  if not set then return nil, why end
  if instead then set.templates = { default = instead } end
  if not next(set.templates) then return nil, path .. ": the model has no chat template" end
  return set
end

--- The name of the template for a request: request.name; with request.tools, tool_use; else
--- default.
function source.choose(set, request)
  if request.name then
    if set.templates[request.name] then return request.name end
    return nil, ("there is no template named '%s'"):format(request.name)
  end
  if request.tools and set.templates.tool_use then return "tool_use" end
  if set.templates.default then return "default" end
  local names = text.sorted_keys(set.templates)
  if #names == 1 then return names[1] end
  return nil, "there is no default template, name one of: " .. table.concat(names, ", ")
end

return source
