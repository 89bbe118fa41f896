-- gguf: writes a GGUF file of a shape (scripts/cmd/bench/shapes.lua) with random weights and a
-- tokenizer of bytes, which both perigee and llama.cpp read. The same million bytes fill every
-- tensor again and again: speed does not depend on them.
local shapes = require "cmd.bench.shapes"

local gguf = {}

local ALIGNMENT, SOME = 32, 1 << 20

-- ---- blocks -------------------------------------------------------------------------------------

--- Type number, values and bytes of a block; parts: strings, or numbers of random bytes. Scales are
--- halves that make a weight about 0.03.
local types = {
  f32 = { 0, 1, 4 },
  q4_0 = { 2, 32, 18, parts = { "\x00\x20", 16 } },
  q8_0 = { 8, 32, 34, parts = { "\x00\x0c", 32 } },
  q4_k = { 12, 256, 144, parts = { "\x00\x08\x00\x14", 140 } },
  q6_k = { 14, 256, 210, parts = { 208, "\x00\x02" } },
  bf16 = { 30, 1, 2, parts = { 1, "\x3c" } },
}

local function random(n)
  local words = {}
  for i = 1, n // 8 + 1 do words[i] = ("<i8"):pack(math.random(0)) end
  return table.concat(words):sub(1, n)
end

local made = {}

--- About a million bytes of whole blocks.
local function some_blocks(kind)
  if made[kind] then return made[kind] end
  local t, blocks = types[kind], {}
  local noise, at = random(SOME), 1
  for i = 1, SOME // t[3] do
    for _, part in ipairs(t.parts) do
      if type(part) == "number" then
        at = at + part > SOME and 1 or at
        blocks[#blocks + 1], at = noise:sub(at, at + part - 1), at + part
      elseif kind == "bf16" then
        blocks[#blocks + 1] = i % 3 == 0 and "\xbc" or part -- both signs
      else
        blocks[#blocks + 1] = part
      end
    end
  end
  made[kind] = table.concat(blocks)
  return made[kind]
end

-- ---- tensors ------------------------------------------------------------------------------------

--- What llama-quantize makes of a tensor: `recipe` is "q4_0", "q4_k_m", "q8_0", "bf16", or
--- "q4_0 all" without exceptions for the head. Rows that are not whole blocks of 256 get 8 bits.
local function kind_of(recipe, name, columns, s)
  local base = recipe:match "^%S+"
  local layer, kind = math.tointeger(tonumber(name:match "^blk%.(%d+)")), base
  if base == "q4_k_m" then
    local eighth = s.layers // 8
    local more = layer and (layer < eighth or layer >= 7 * s.layers // 8
      or (layer - eighth) % 3 == 2)
    kind = more and (name:find "attn_v" or name:find "ffn_down") and "q6_k" or "q4_k"
  end
  local head = name == (s.tied and "token_embd.weight" or "output.weight")
  if head and recipe:match "^q4" and recipe ~= "q4_0 all" then kind = "q6_k" end
  return columns % types[kind][2] == 0 and kind or "q8_0"
end

--- { name, kind, rows, columns } of every tensor.
local function tensors(s, recipe)
  local list = {}
  local function add(name, rows, columns)
    list[#list + 1] = { name, kind_of(recipe, name, columns, s), rows, columns }
  end
  local function vector(name, n) list[#list + 1] = { name, "f32", 1, n } end
  add("token_embd.weight", s.vocabulary, s.width)
  for i = 0, s.layers - 1 do
    local function at(name) return ("blk.%d.%s"):format(i, name) end
    vector(at "attn_norm.weight", s.width)
    for _, m in ipairs { { "q", s.heads }, { "k", s.kv_heads }, { "v", s.kv_heads } } do
      add(at("attn_" .. m[1] .. ".weight"), m[2] * s.head, s.width)
      if s.biases then vector(at("attn_" .. m[1] .. ".bias"), m[2] * s.head) end
    end
    if s.norms then
      vector(at "attn_q_norm.weight", s.head)
      vector(at "attn_k_norm.weight", s.head)
    end
    add(at "attn_output.weight", s.width, s.heads * s.head)
    vector(at "ffn_norm.weight", s.width)
    add(at "ffn_gate.weight", s.feed_forward, s.width)
    add(at "ffn_up.weight", s.feed_forward, s.width)
    add(at "ffn_down.weight", s.width, s.feed_forward)
  end
  vector("output_norm.weight", s.width)
  if not s.tied then add("output.weight", s.vocabulary, s.width) end
  return list
end

-- ---- metadata -----------------------------------------------------------------------------------

local U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9

local function str(s) return ("<s8"):pack(s) end

local writers = {
  [U32] = function(v) return ("<I4"):pack(v) end,
  [I32] = function(v) return ("<i4"):pack(v) end,
  [F32] = function(v) return ("<f"):pack(v) end,
  [BOOL] = function(v) return v and "\1" or "\0" end,
  [STRING] = str,
}

local function pair(key, kind, value)
  return str(key) .. ("<I4"):pack(kind) .. writers[kind](value)
end

local function array(key, kind, values)
  local parts = { str(key), ("<I4I4I8"):pack(ARRAY, kind, #values) }
  for i, v in ipairs(values) do parts[i + 2] = writers[kind](v) end
  return table.concat(parts)
end

--- How GPT-2's tokenizer writes a byte: printable ones as they are, the others from U+0100 on.
local function byte_names()
  local names, others = {}, 0
  for b = 0, 255 do
    local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    names[b + 1] = utf8.char(plain and b or 256 + others)
    if not plain then others = others + 1 end
  end
  return names
end

--- A token per byte, one merge, an end token, and words that no text has.
local function tokenizer(vocabulary)
  local tokens, kinds = byte_names(), {}
  tokens[257], tokens[258] = "ab", "<|end|>"
  for i = 259, vocabulary do tokens[i] = ("<%d>"):format(i - 1) end
  for i = 1, vocabulary do kinds[i] = i == 258 and 3 or 1 end
  local list = { pair("tokenizer.ggml.model", STRING, "gpt2") }
  list[2] = pair("tokenizer.ggml.pre", STRING, "gpt-2")
  list[3] = array("tokenizer.ggml.tokens", STRING, tokens)
  list[4] = array("tokenizer.ggml.token_type", I32, kinds)
  list[5] = array("tokenizer.ggml.merges", STRING, { "a b" })
  list[6] = pair("tokenizer.ggml.eos_token_id", U32, 257)
  list[7] = pair("tokenizer.ggml.add_bos_token", BOOL, false)
  return list
end

local function metadata(s)
  local list = { pair("general.architecture", STRING, s.type),
    pair("general.name", STRING, "random weights") }
  local function add(key, kind, value)
    list[#list + 1] = pair(s.type .. "." .. key, kind, value)
  end
  add("block_count", U32, s.layers)
  add("context_length", U32, 40960)
  add("embedding_length", U32, s.width)
  add("feed_forward_length", U32, s.feed_forward)
  add("attention.head_count", U32, s.heads)
  add("attention.head_count_kv", U32, s.kv_heads)
  add("attention.key_length", U32, s.head)
  add("attention.value_length", U32, s.head)
  add("attention.layer_norm_rms_epsilon", F32, 1e-6)
  add("rope.dimension_count", U32, s.head)
  add("rope.freq_base", F32, 1e6)
  add("vocab_size", U32, s.vocabulary)
  local words = tokenizer(s.vocabulary)
  return table.move(words, 1, #words, #list + 1, list)
end

-- ---- writing ------------------------------------------------------------------------------------

local function padding(n) return ("\0"):rep(-n % ALIGNMENT) end

local function write_data(file, tensor, bytes)
  local kind = tensor[2]
  if kind == "f32" then -- norms are 1, biases 0
    local one = tensor[1]:find "bias" and 0.0 or 1.0
    file:write((("<f"):pack(one):rep(tensor[4])))
  else
    local some, left = some_blocks(kind), bytes
    while left > 0 do
      file:write(left >= #some and some or some:sub(1, left))
      left = left - #some
    end
  end
  file:write(padding(bytes))
end

--- Writes the file, if it is not there yet.
function gguf.write(path, name, recipe)
  local there = io.open(path, "rb")
  if there then return there:close() end
  local s = assert(shapes.dense(name), name)
  local list, meta, at = tensors(s, recipe), metadata(s), 0
  local head = { ("<c4I4I8I8"):pack("GGUF", 3, #list, #meta), table.concat(meta) }
  local sizes = {}
  for i, t in ipairs(list) do
    local kind = types[t[2]]
    local vector = t[2] == "f32"
    local shape = vector and ("<I4I8"):pack(1, t[4]) or ("<I4I8I8"):pack(2, t[4], t[3])
    head[#head + 1] = str(t[1]) .. shape .. ("<I4I8"):pack(kind[1], at)
    sizes[i] = t[3] * t[4] // kind[2] * kind[3]
    at = at + sizes[i] + #padding(sizes[i])
  end
  local file = assert(io.open(path .. ".part", "wb"))
  local start = table.concat(head)
  file:write(start, padding(#start))
  for i, t in ipairs(list) do write_data(file, t, sizes[i]) end
  assert(file:close())
  assert(os.rename(path .. ".part", path))
end

return gguf
