-- lib: text, errors, hashes, gates, JSON lines and facts about models, each at its edges.
local command = require "lib.command"
local errors = require "lib.errors"
local gate = require "lib.gate"
local async = require "lib.async"
local hash = require "lib.hash"
local jsonl = require "lib.jsonl"
local modeldir = require "lib.modeldir"
local perigee = require "perigee"
local test = require("harness").test
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

test("sizes and times", function(t)
  for n, want in pairs { [0] = "0 B", [1023] = "1023 B", [1024] = "1.0 KiB",
    [1024 * 1024 - 1] = "1024.0 KiB", [1 << 20] = "1.0 MiB", [1 << 40] = "1.0 TiB",
    [1 << 50] = "1024.0 TiB" } do
    t.eq(text.bytes(n), want)
  end
  for s, want in pairs { ["0"] = 0, ["7"] = 7, ["1k"] = 1024, ["1.5K"] = 1536, ["2 MB"] = 2 << 20,
    ["3GiB"] = 3 << 30, ["1T"] = 1 << 40, ["5b"] = 5, ["4194303T"] = 4194303 << 40 } do
    t.eq(text.parse_bytes(s), want, s)
  end
  for _, s in ipairs { "", "x", "-1", "1kk", "k", "1 2", "4194304T", "1e3" } do
    t.eq(text.parse_bytes(s), nil, s)
  end
  for s, want in pairs { [0.0005] = "500 µs", [0.001] = "1.0 ms", [0.5] = "500.0 ms",
    [1] = "1.00 s", [90] = "90.00 s" } do
    t.eq(text.seconds(s), want)
  end
end)

test("strings", function(t)
  t.eq({ text.trim "  a b \n", text.trim "", text.trim " \t ", text.trim "x" },
    { "a b", "", "", "x" })
  t.eq({ text.first_line "a\nb", text.first_line "\na", text.first_line(5) }, { "a", "", "5" })
  t.eq({ text.common_prefix { "abc", "abd", "ab" }, text.common_prefix { "x", "y" },
    text.common_prefix {}, text.common_prefix { "abc" } }, { "ab", "", "", "abc" })
  t.eq({ text.clean "aé", text.clean "a\xffb", text.clean "\xff\xfe", text.clean "é\xc3" },
    { "aé", "a\u{FFFD}b", "\u{FFFD}\u{FFFD}", "é\u{FFFD}" })
  t.eq({ text.characters "aé€", text.characters "\x80\x80", text.characters "" }, { 3, 0, 0 })
  t.eq({ text.dirname "a/b/c", text.dirname "/a", text.dirname "a", text.dirname "a/" },
    { "a/b", "/", ".", "a" })
  t.eq({ text.distance("", "abc"), text.distance("abc", ""), text.distance("kitten", "sitting"),
    text.distance("a", "a") }, { 3, 3, 3, 0 })
  t.eq({ text.nearest("prot", { "host", "port" }), text.nearest("zzzzzz", { "host" }),
    text.nearest(("x"):rep(65), { ("x"):rep(64) }) }, { "port" })
  t.eq(text.nearest(("x"):rep(64), { ("x"):rep(63) }), ("x"):rep(63))
  t.eq(text.nearest("ab", { "cd", "ax" }), "ax")
  t.eq({ text.nearest("ab", { "xyz" }), text.nearest("abcd", { "abxyz" }) }, { nil, "abxyz" })
  t.eq({ text.suggestion("prot", { "port" }), text.suggestion("prot", { "port" }, "--%s"),
    text.suggestion("q", { "long word" }) },
    { ", did you mean 'port'?", ", did you mean --port?", "" })
end)

test("plain tables", function(t)
  local a = { 1, { x = 2 } }
  local b = text.copy(a)
  t.ok(text.same(a, b) and a[2] ~= b[2])
  b[2].x = 3
  t.eq({ text.same(a, b), text.same({ 1 }, { 1, 2 }), text.same({ 1, 2 }, { 1 }), text.same(1, 1),
    text.same(1, {}) }, { false, false, false, true, false })
  t.eq(text.sorted_keys { b = 1, a = 2, [10] = 3, [9] = 4 }, { 10, 9, "a", "b" })
  local none, why = text.read_file "/nowhere/x"
  t.eq(none, nil)
  t.match(why, "^/nowhere/x: ")
  t.match(select(2, text.read_file "/"), "^/: ")
end)

test("errors of requests", function(t)
  for code, status in pairs { argument = 400, format = 400, limit = 400, no_token = 400,
    shape = 400, unsupported = 400, not_found = 404, cancelled = 409, memory = 503 } do
    local err = errors.from(perigee.error(code, "m", { field = "f" }), "other")
    t.eq({ err.status, err.code, err.message, err.field }, { status, code, "m", "f" })
  end
  local err = errors.from(perigee.error("io", "secret"), "f")
  t.eq({ err.status, err.code, err.message, err.field },
    { 500, "internal_error", "the server failed to answer" })
  t.eq({ errors.from("x").status, errors.from(perigee.error("limit", "m"), "f").field },
    { 500, "f" })
  t.eq({ errors.new { message = "m" }.code, errors.new { message = "m", status = 401 }.code,
    errors.new { message = "m" }.status }, { "argument", "refused", 400 })
  local mine = errors.new { message = "m", status = 418 }
  t.ok(rawequal(errors.from(mine), mine))
  t.eq({ errors.is(mine), errors.is(perigee.error("io", "m")), errors.is {} },
    { true, false, false })
  err = t.raises(function() errors.refuse("a.b", "must be %d", 5) end, "a.b must be 5")
  t.eq({ err.field, err.status }, { "a.b", 400 })
  local function after(status, seconds)
    return errors.retry_after { status = status, retry_after = seconds }
  end
  t.eq({ after(429), after(503), after(400, 2.1), after(400, 0), after(400, 1e9), after(429, 7) },
    { 1, 1, 3, 1, 86400, 7 })
  t.eq(after(400), nil)
end)

test("hashes are the same everywhere", function(t)
  t.eq(hash(1, true), hash("1", "true"))
  t.eq({ hash(), hash "", hash "perigee" },
    { 5472609001614131137, 3414980088891349282, 5284293668582070731 })
  t.ok(hash("ab", "c") ~= hash("a", "bc") and hash "a" ~= hash "b" and hash "" ~= hash())
  for i = 1, 100 do t.ok(hash(i) >= 0) end
end)

test("a gate lets in as many as it has room for, in order", function(t)
  local g, log, leaves = gate.new(2), {}, {}
  local give_up = {}
  for i = 1, 5 do
    give_up[i] = g:enter(function(leave)
      log[#log + 1], leaves[i] = i, leave
    end)
  end
  t.eq({ log, g.free }, { { 1, 2 }, 0 })
  give_up[3]()
  give_up[1]() -- is in already
  leaves[2]()
  leaves[2]() -- once
  t.eq({ log, g.free }, { { 1, 2, 4 }, 0 })
  leaves[1]()
  leaves[4]()
  leaves[5]()
  t.eq({ log, g.free, #g.waiting }, { { 1, 2, 4, 5 }, 2, 0 })
  local one, order = gate.new(1), {}
  local function visit(name)
    return async.run(function()
      local _ <close> = one:wait()
      order[#order + 1] = name
      async.sleep(1)
    end)
  end
  visit "a"
  local b = visit "b"
  visit "c"
  b:cancel()
  async.run(t.expect(function()
    local _ <close> = one:wait()
    t.eq(order, { "a", "c" })
  end))
end)

test("fields of JSON lines", function(t)
  local request = assert(json.decode
    '{"a": [1], "o": {}, "i": 1, "f": 1.5, "s": "x", "b": true, "n": null}')
  local function field(key, kind, more)
    local options = { kind = kind }
    for k, v in pairs(more or {}) do options[k] = v end
    local ok, v = pcall(jsonl.field, request, key, options)
    return ok and { v } or v
  end
  for key, kind in pairs { a = "array", o = "object", i = "integer", f = "number", s = "string",
    b = "boolean" } do
    t.eq(field(key, kind), { request[key] }, key)
    for _, other in ipairs { "array", "object", "integer", "string", "boolean" } do
      if other ~= kind then
        t.eq(field(key, other), ("'%s' must be %s, not %s"):format(key, other, kind))
      end
    end
  end
  t.eq(field("i", "number"), { 1 })
  t.eq({ field("n", "string", { default = 5 }), field("x", "string") }, { { 5 }, {} })
  t.eq({ field("n", "string", { required = true }), field("x", "string", { required = true }) },
    { "'n' is missing", "'x' is missing" })
  jsonl.known(request, { "a", "o", "i", "f", "s", "b", "n" })
  t.raises(function() jsonl.known({ abd = 1 }, { "abc" }) end,
    "unknown key 'abd', did you mean 'abc'?")
  t.eq(jsonl.failure("x").error, "x")
end)

test("what this build cannot compute", function(t)
  t.eq({ command.OK, command.FAILED, command.USAGE }, { 0, 1, 2 })
  t.eq({ command.check_compute {}, command.check_compute { precision = "exact", device = "cpu" } },
    { true, true })
  t.eq(command.check_compute { precision = "fast" }, true)
  t.match(select(2, command.check_compute { device = "metal" }), "the CPU only")
end)

test("the precision is the one given, that of the command, or exact", function(t)
  t.eq({ command.model_options({}).precision, command.model_options({}, "fast").precision,
    command.model_options({ precision = "exact" }, "fast").precision },
    { "exact", "fast", "exact" })
  t.eq(command.model_options({ threads = 3, context = 5, memory = 7, kv_bits = "8" }),
    { threads = 3, context = 5, memory = 7, kv_bits = 8, precision = "exact" })
end)

test("facts about a directory", function(t)
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/XXXXXX"))
  local function put(name, source)
    local f <close> = assert(io.open(folder .. "/" .. name, "w"))
    f:write(source)
  end
  local function facts()
    return modeldir.facts { path = folder, metadata = function() return {} end }
  end
  t.match(select(2, modeldir.config(folder)), "config.json: No such file")
  put("config.json", "{")
  t.match(select(2, modeldir.config(folder)), "/config.json: ")
  put("config.json", "[]")
  t.match(select(2, modeldir.config(folder)), "/config.json: not a JSON object$")
  put("config.json", [[{"model_type": "m", "max_position_embeddings": 1, "vocab_size": 2,
    "text_config": {"num_hidden_layers": 3, "hidden_size": 4, "num_attention_heads": 5,
    "num_key_value_heads": 6, "vocab_size": 7}}]])
  t.eq(facts(), { architecture = "m", context_length = 1, vocab_size = 2, layers = 3, width = 4,
    heads = 5, kv_heads = 6, chat_template = false })
  t.eq(modeldir.config(folder .. "/x.safetensors").model_type, "m")
  put("tokenizer.json", "{}")
  put("tokenizer_config.json", '{"chat_template": "x"}')
  local got = facts()
  t.eq({ got.tokenizer, got.chat_template }, { "tokenizer.json", true })
  os.remove(folder .. "/tokenizer_config.json")
  put("chat_template.jinja", "x")
  t.eq(facts().chat_template, true)
  put("config.json", '{"max_seq_len": 8, "llm_config": {"vocab_size": 9}}')
  got = facts()
  t.eq({ got.context_length, got.vocab_size }, { 8, 9 })
  -- A file inside the folder.
  got = modeldir.facts { path = folder .. "/x.safetensors", metadata = function() return {} end }
  t.eq(got.context_length, 8)
  for _, name in ipairs { "config.json", "tokenizer.json", "chat_template.jinja" } do
    os.remove(folder .. "/" .. name)
  end
  t.eq(facts(), { chat_template = false })
  os.remove(folder)
end)

test("facts about a GGUF file", function(t)
  local function facts(pairs_of, embedding)
    local list = {}
    for k, v in pairs(pairs_of) do list[#list + 1] = { k, v } end
    return modeldir.facts { path = "x", metadata = function(_, o)
      t.eq(o, { most = 1 })
      return list
    end, find = function(_, name)
      return name == "token_embd.weight" and embedding and { shape = embedding } or nil
    end }
  end
  t.eq(facts { ["general.architecture"] = "llama", ["llama.context_length"] = 1,
    ["llama.vocab_size"] = 2, ["llama.block_count"] = 3, ["llama.embedding_length"] = 4,
    ["llama.attention.head_count"] = 5, ["llama.attention.head_count_kv"] = 6,
    ["tokenizer.chat_template"] = "x", ["tokenizer.ggml.model"] = "gpt2",
    ["general.name"] = "n" }, { architecture = "llama", context_length = 1, vocab_size = 2,
    layers = 3, width = 4, heads = 5, kv_heads = 6, chat_template = true, tokenizer = "gpt2",
    name = "n" })
  local base = { ["general.architecture"] = "x" }
  t.eq(facts(base), { architecture = "x", chat_template = false })
  t.eq(facts(base, { 7, 8 }).vocab_size, 7)
  base["tokenizer.ggml.tokens"] = { n = 9 }
  t.eq(facts(base, { 7, 8 }).vocab_size, 9)
end)
