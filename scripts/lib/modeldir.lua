-- modeldir: facts about a model from its files: config.json of a directory, metadata of a GGUF
-- file.
local perigee = require "perigee"
local text = require "lib.text"
local json = perigee.json

local modeldir = {}

--- config.json as a table, or nil and why. `path` is a model directory, or a .safetensors file in
--- one.
function modeldir.config(path)
  local folder = path:match "%.safetensors$" and text.dirname(path) or path
  local file = folder .. "/config.json"
  local source, why = text.read_file(file)
  if not source then return nil, why end
  local config, err = json.decode(source)
  if not config then return nil, file .. ": " .. tostring(err) end
  if not json.is_object(config) then return nil, file .. ": not a JSON object" end
  return config
end

--- GGUF metadata as a map. Arrays keep at most `most` elements, and their real length as n.
function modeldir.metadata(weights, most)
  local map = {}
  for _, pair in ipairs(weights:metadata { most = most }) do map[pair[1]] = pair[2] end
  return map
end

local function first_integer(...)
  for i = 1, select("#", ...) do
    local v = select(i, ...)
    if math.type(v) == "integer" then return v end
  end
end

local function string_of(v) return type(v) == "string" and v or nil end

local function of_gguf(meta, weights)
  local arch = tostring(meta["general.architecture"])
  local vocab = meta["tokenizer.ggml.tokens"]
  local embedding = weights:find "token_embd.weight"
  return {
    architecture = arch,
    context_length = first_integer(meta[arch .. ".context_length"]),
    vocab_size = first_integer(meta[arch .. ".vocab_size"], type(vocab) == "table" and vocab.n,
      embedding and embedding.shape[1]),
    layers = first_integer(meta[arch .. ".block_count"]),
    width = first_integer(meta[arch .. ".embedding_length"]),
    heads = first_integer(meta[arch .. ".attention.head_count"]),
    kv_heads = first_integer(meta[arch .. ".attention.head_count_kv"]),
    chat_template = meta["tokenizer.chat_template"] ~= nil,
    tokenizer = string_of(meta["tokenizer.ggml.model"]),
    name = string_of(meta["general.name"]),
  }
end

local function object(v) return json.is_object(v) and v or {} end

local function of_config(config)
  local inner = object(config.text_config or config.llm_config)
  local function get(key) return first_integer(config[key], inner[key]) end
  return {
    architecture = config.model_type,
    context_length = get "max_position_embeddings" or get "max_seq_len",
    vocab_size = get "vocab_size",
    layers = get "num_hidden_layers",
    width = get "hidden_size",
    heads = get "num_attention_heads",
    kv_heads = get "num_key_value_heads",
  }
end

local function exists(path)
  local f = io.open(path)
  if f then f:close() end
  return f ~= nil
end

--- Facts about opened weights: architecture, context_length, vocab_size, layers, width, heads,
--- kv_heads, chat_template, tokenizer, name; nil where the files do not have them.
function modeldir.facts(weights)
  local meta = modeldir.metadata(weights, 1)
  if meta["general.architecture"] then return of_gguf(meta, weights) end
  local dir = weights.path
  if not exists(dir .. "/config.json") then dir = text.dirname(dir) end
  local config = modeldir.config(dir)
  local facts = config and of_config(config) or {}
  local tokenizer_config = json.decode(text.read_file(dir .. "/tokenizer_config.json") or "{}")
  facts.chat_template = exists(dir .. "/chat_template.jinja")
    or object(tokenizer_config).chat_template ~= nil
  facts.tokenizer = exists(dir .. "/tokenizer.json") and "tokenizer.json" or nil
  return facts
end

return modeldir
