-- Any files as a model directory: `perigee inspect` describes them or gives an error of one line,
-- and a model that can be opened computes a few tokens. An error is never one of Lua's own.
--
-- An input has the files one after another, each after a line "== NAME". Weights have only their
-- header there: zeros follow it in the file.
local chat = require "chat"
local driver = require "driver"
local inspect = require "cmd.inspect"
local perigee = require "perigee"
local processors = require "models.processors"
local uv = require "luv"

local WEIGHTS = 1 << 20 -- bytes of zeros after a header
local LONGEST = 255     -- bytes of a file's name, as the file systems of Linux and macOS allow

local shm = uv.fs_access("/dev/shm", "W")
local place = shm and "/dev/shm" or uv.os_tmpdir()
local folder = assert(uv.fs_mkdtemp(place .. "/perigee-fuzz-XXXXXX"))

local function empty()
  for _, path in ipairs(driver.files_of(folder)) do uv.fs_unlink(path) end
end

local function put(name, bytes)
  local path = folder .. "/" .. name
  local zeros = 0
  if name:find "%.safetensors$" then
    bytes, zeros = string.pack("<s8", bytes), WEIGHTS
  elseif name:find "%.gguf$" then
    zeros = WEIGHTS
  end
  driver.write_file(path, bytes)
  if zeros > 0 then
    local fd = assert(uv.fs_open(path, "r+", 420))
    uv.fs_ftruncate(fd, #bytes + zeros)
    uv.fs_close(fd)
  end
end

--- Writes the files of an input. Returns the path of the model.
local function unpack_files(input)
  empty()
  local at = ("\n" .. input):find("\n== ", 1, true)
  local path, n = folder, 0
  while at and n < 8 do
    local name, from = input:match("^== ([%w._%-]+)\n()", at)
    if not name then break end
    local next_at = input:find("\n== ", from, true)
    if #name <= LONGEST and not name:find "^%.+$" then
      put(name, input:sub(from, (next_at or #input + 1) - 1))
    end
    if name:find "%.gguf$" then path = folder .. "/" .. name end
    at, n = next_at and next_at + 1, n + 1
  end
  return path
end

-- ---- properties ---------------------------------------------------------------------------------

--- Messages of Lua's own: an operation on a value that nobody had checked.
local OWN = { "attempt to ", "bad argument #", "stack overflow", "stack traceback",
  "has no integer representation", "too many results to unpack", "invalid value (at index",
  "invalid order function", "error in error handling", "not enough memory" }

local function check_message(why)
  why = tostring(why)
  if why:find "[\n\r]" then error(("an error of several lines: %q"):format(why), 0) end
  for _, part in ipairs(OWN) do
    if why:find(part, 1, true) then error(("an error of Lua's own: %s"):format(why), 0) end
  end
end

local write = io.write

--- What a command prints. Raises when it raises.
local function printed(options)
  local out = {}
  io.write = function(...) -- luacheck: ignore 122
    for i = 1, select("#", ...) do out[#out + 1] = tostring((select(i, ...))) end
  end
  local ok, result, why = pcall(inspect.run, options)
  io.write = write -- luacheck: ignore 122
  if not ok then
    check_message(result)
    error("inspect raised: " .. tostring(result), 0)
  end
  if why then check_message(why) end
  return table.concat(out)
end

local function check_inspect(path)
  printed { path }
  local out = printed { path, json = true }
  if out == "" then return end
  local value = assert(perigee.json.decode(out))
  if value.problem then return check_message(value.problem) end
  printed { path, json = true, graph = true }
end

local function check_model(path)
  local model, why = perigee.open(path, { threads = 1, context = 64, memory = 256 << 20 })
  if not model then return check_message(why) end
  local ok, result = pcall(model.eval, model, { 1, 2, 3 }, { greedy = 2 })
  if not ok then check_message(result) end
  model:close()
end

local function check_words(path)
  local tok, why = perigee.tokenizer.open(path)
  if not tok then check_message(why) end
  local words, wrong = chat.open(path)
  if not words then
    check_message(wrong)
  else
    local prompt, problem = words:prompt { messages = { { role = "user", content = "Hello!" } } }
    if not prompt then check_message(problem) elseif tok then words:encode(tok, prompt) end
  end
  if tok then tok:close() end
end

--- How the model would take pictures of a few shapes, without their pixels.
local function check_pictures(path)
  local processor, why = processors.open(path)
  if not processor then return why and check_message(why) end
  for _, size in ipairs { { 64, 48 }, { 1, 2000 }, { 3000, 2000 } } do
    local plan, wrong = processor:plan(size[1], size[2])
    if not plan then check_message(wrong) else processor:parts(plan) end
  end
end

-- ---- generated inputs ---------------------------------------------------------------------------

local VALUES = { "null", "true", "false", "0", "1", "-1", "2", "3", "7", "64", "1073741824",
  "4294967296", "9223372036854775807", "1e308", "-1e308", "0.5", "1e-30", '""', '"a"', "[]", "{}",
  "[1]", "[[]]", '["full_attention"]', '{"__float__":"Infinity"}', '{"__float__":"NaN"}',
  '"sliding_attention"', '"yarn"', '"longrope"', '"llama3"', '"F32"', '"U8"' }

--- Another value for a random key of the JSON in a text, or another name: then the key, or the
--- tensor, is absent.
local function change_json(s, r)
  if r:below(4) == 1 then
    local at = s:match('"[%w_.]+()":', r:below(#s))
    return at and s:sub(1, at - 1) .. "_" .. s:sub(at) or s
  end
  local from, to = s:match('":%s*()[^,{}%[%]]*()[,}]', r:below(#s))
  if not from then return s end
  return s:sub(1, from - 1) .. r:pick(VALUES) .. s:sub(to)
end

--- Another type or another value, of four bytes as before, for a random key of GGUF metadata, or
--- another name of the same length.
local function change_gguf(s, r)
  local after = s:match("%l[%w_]+%.[%w_.]+()[\4-\8]\0\0\0", r:below(#s))
  if not after then return s end
  if r:below(4) == 1 then return s:sub(1, after - 2) .. "?" .. s:sub(after) end
  local kind = string.pack("<I4", r:pick { 4, 5, 6, 7, 10 })
  local value = string.pack("<I4", r:pick { 0, 1, 2, 3, 5, 1 << 20, 1 << 31, 0xffffffff,
    0x7fc00000, 0x7f800000 })
  local whole = r:below(2) == 1
  return s:sub(1, after - 1) .. (whole and s:sub(after, after + 3) or kind)
    .. (r:below(2) == 1 and value or s:sub(after + 4, after + 7)) .. s:sub(after + 8)
end

local function generate(r, corpus)
  local s = r:pick(corpus)
  for _ = 1, r:below(3) do s = (s:find("GGUF", 1, true) and change_gguf or change_json)(s, r) end
  return s
end

driver.main {
  name = "model", most = 1 << 16, generate = generate,
  dictionary = { "\n== config.json\n", "\n== model.safetensors\n", "\n== tokenizer.json\n",
    "\n== model.safetensors.index.json\n", "\n== preprocessor_config.json\n",
    "\n== model.gguf\n", "null", "true", "[]", "{}", "\"\"",
    "\"model_type\"", "\"layer_types\"", "\"rope_scaling\"", "\"rope_parameters\"",
    "\"quantization\"", "\"text_config\"", "\"num_hidden_layers\"", "\"head_dim\"",
    "\"sliding_window\"", "\"num_experts\"", "\"vocab_size\"", "\"BF16\"", "\"F32\"", "\"U32\"",
    "\"shape\":[", "\"data_offsets\":[0,", "-1", "1e400", "0.5", "\"a\"", "[[[" },
  run = function(input)
    local path = unpack_files(input)
    check_inspect(path)
    check_model(path)
    check_words(path)
    check_pictures(path)
  end,
  close = function()
    empty()
    uv.fs_rmdir(folder)
  end,
}
