-- A 4-bit model in a file: open and idle it costs next to nothing beside the mapping, running it
-- never expands it, and a server that has unloaded it gives the memory back.
local perigee = require "perigee"
local async = require "lib.async"
local config = require "serve.config"
local models = require "models"
local run = require "engine.run"
local serve = require "serve"
local text = require "lib.text"
local uv = require "luv"
local test = require("harness").test
local forced = ...

local WIDTH, HEAD, INNER, VOCAB = 1024, 64, 1024, 32000
local MIB = 1 << 20

--- Tensors of a llama of one layer: matrices of 4 bits in groups of 64, norms of bf16.
local function tensors(vocab)
  local list = {}
  local function plain(name, shape, pattern)
    local n = 1
    for _, d in ipairs(shape) do n = n * d end
    list[#list + 1] = { name = name, dtype = "bf16", shape = shape, bytes = pattern:rep(n) }
  end
  local function matrix(name, sequences, cols)
    list[#list + 1] = { name = name .. ".weight", dtype = "u32", shape = { sequences, cols // 8 },
      bytes = ("\x9a\x37\xc5\x81"):rep(sequences * cols // 8) }
    plain(name .. ".scales", { sequences, cols // 64 }, "\x80\x3b")
    plain(name .. ".biases", { sequences, cols // 64 }, "\x00\xbd")
  end
  local p = "model.layers.0."
  for _, name in ipairs { p .. "input_layernorm", p .. "post_attention_layernorm", "model.norm" } do
    plain(name .. ".weight", { WIDTH }, "\x80\x3f")
  end
  for _, name in ipairs { "q", "k", "v", "o" } do
    matrix(p .. "self_attn." .. name .. "_proj", WIDTH, WIDTH)
  end
  matrix(p .. "mlp.gate_proj", INNER, WIDTH)
  matrix(p .. "mlp.up_proj", INNER, WIDTH)
  matrix(p .. "mlp.down_proj", WIDTH, INNER)
  matrix("model.embed_tokens", vocab, WIDTH)
  matrix("lm_head", vocab, WIDTH)
  return list
end

local function write_model(folder, vocab)
  assert(perigee.weights.save(folder .. "/model.safetensors", tensors(vocab)))
  local f <close> = assert(io.open(folder .. "/config.json", "w"))
  f:write(perigee.json.encode { model_type = "llama", hidden_size = WIDTH,
    intermediate_size = INNER, num_hidden_layers = 1,
    num_attention_heads = WIDTH // HEAD, num_key_value_heads = WIDTH // HEAD, head_dim = HEAD,
      vocab_size = vocab,
    rms_norm_eps = 1e-5, max_position_embeddings = 256, tie_word_embeddings = false,
    quantization = { group_size = 64, bits = 4 } })
end

--- Bytes of this process in memory: its own, and those of files.
local function measured()
  local status = text.read_file "/proc/self/status"
  local function kilobytes(key) return tonumber(status and status:match(key .. ":%s*(%d+) kB")) end
  local own, file = kilobytes "RssAnon", kilobytes "RssFile"
  return own and own * 1024, file and file * 1024
end

local function resident()
  collectgarbage()
  return measured()
end

local function less(t, got, most, what)
  if got > most then
    t.fail(("%s: %s more, at most %s expected"):format(what, text.bytes(got), text.bytes(most)))
  end
end

local function remove_model(folder)
  os.remove(folder .. "/model.safetensors")
  os.remove(folder .. "/config.json")
  uv.fs_rmdir(folder)
end

if not forced then
  test("a 4-bit model stays in its file", function(t)
    if not resident() then t.skip "the system does not tell" end
    if uv.exepath():match "san%-thread" then
      t.skip "the thread sanitizer keeps notes about every byte"
    end
    local folder = assert(uv.fs_mkdtemp((os.getenv "TMPDIR" or "/tmp") .. "/perigee-XXXXXX"))
    write_model(folder, VOCAB)
    local own, file = resident()
    local model = assert(models.load(folder))
    local size = model.weights.bytes
    t.ok(size > 36 * MIB and size < 48 * MIB, "the file's size")
    local open_own, open_file = resident()
    less(t, math.max(open_own - own, 0), 4 * MIB, "open and idle, own memory")
    less(t, open_file - file, size + 4 * MIB, "open and idle, files")
    local runner = run.new(model, { threads = 2 })
    runner:eval({ 1, 2, 3, 31999 }, { last = 1, greedy = 2 })
    local ran_own, ran_file = resident()
    less(t, math.max(ran_own - own, 0), 16 * MIB, "after a run, own memory")
    less(t, ran_file - file, size + 8 * MIB, "after a run, files")
    runner:close()
    model.graph:close()
    model.weights:close()
    remove_model(folder)
  end)

  test("memory comes back after a model is unloaded", function(t)
    if not resident() then t.skip "the system does not tell" end
    if uv.exepath():match "san%-" then t.skip "sanitizers keep what was freed" end
    local folder = assert(uv.fs_mkdtemp((os.getenv "TMPDIR" or "/tmp") .. "/perigee-XXXXXX"))
    write_model(folder, 190000)
    local function all()
      local own, file = resident()
      return own + file
    end
    local app = assert(serve.new { models = { { name = "large", path = folder,
      options = { load = false } } }, config = config.merge({ port = 0, log = false }, nil) })
    assert(app:start())
    async.run(function()
      perigee.sys.trim()
      local before = all()
      assert(app.models:load "large")
      local entry = assert(app.models:find "large")
      async.await(function(done)
        local prompt = {}
        for i = 1, 200 do prompt[i] = i end
        assert(entry.batch:add { prompt = prompt, max_tokens = 8, n = 2, on_done = function(seq)
          if entry.batch.alive == 0 then done(seq) end
        end })
      end)
      t.ok(entry.memory.weights > 200 * MIB, "the file's size")
      t.ok(all() - before > 150 * MIB, "most of it was in memory")
      assert(app.models:unload "large")
      local began = uv.hrtime()
      local after
      repeat -- without help: the server at rest collects
        async.sleep(200)
        local own, file = measured()
        after = own + file
      until after <= before * 1.2 or uv.hrtime() - began > 10e9
      less(t, after - before, before // 5, "ten seconds after it was unloaded")
      app:stop()
      remove_model(folder)
    end)
  end)
end
