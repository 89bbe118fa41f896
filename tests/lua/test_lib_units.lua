-- lib: text, errors, hashes, gates, JSON lines and facts about models, each at its edges.
local args = require "lib.args"
local breaker = require "lib.breaker"
local command = require "lib.command"
local encode = require "lib.encode"
local errors = require "lib.errors"
local gate = require "lib.gate"
local async = require "lib.async"
local hash = require "lib.hash"
local jsonl = require "lib.jsonl"
local modeldir = require "lib.modeldir"
local perigee = require "perigee"
local script = require "lib.script"
local test = require("harness").test
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

test("large values are encoded in pieces, to the same text", function(t)
  t.unforced() -- a collection at every line would take minutes
  local function list(n, item)
    local out = {}
    for i = 1, n do out[i] = item(i) end
    return out
  end
  local function object(n, item)
    return json.object(list(n, function(i) return { ("k\"%d"):format(n - i), item(i) } end))
  end
  local function number(i) return i end
  local function row(i) return json.array { i, json.null, "é" .. i, json.object() } end
  local plain, holes = {}, json.array(list(4100, number))
  for i = 1, 5000 do plain["p" .. i] = i end
  holes[7] = nil
  local cases = { -- a value, and how often others get their turn
    { 5, 0 }, { "x", 0 }, { json.object(), 0 }, { json.array(), 0 }, { list(2000, number), 0 },
    { json.array(list(4096, number)), 2 }, { object(6000, number), 5 }, { plain, 5 }, { holes, 3 },
    { json.array(list(1000, row)), 3 }, { ("y"):rep(1 << 20), 0 },
    { json.array { "a", ("y"):rep(1 << 20), "b" }, 2 },
    { json.object { { "a", 1 }, { "b", object(3000, number) }, { "c", object(10, number) },
      { "d", json.array(list(2500, row)) }, { "e", "x" } }, 1 + 3 + 1 + 7 + 1 } }
  for i, case in ipairs(cases) do
    for _, options in ipairs { {}, { ascii = true, item_separator = ",", key_separator = ":" } } do
      local pauses = 0
      local got = encode(case[1], options, function() pauses = pauses + 1 end)
      t.ok(got == json.encode(case[1], options), "case " .. i)
      t.eq(pauses, case[2], "case " .. i)
    end
  end
  local itself = {}
  itself.x = itself
  t.raises(function() encode(itself, nil, function() end) end, "nested deeper than 200 levels")
end)

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
    shape = 400, unsatisfiable = 400, unsupported = 400, not_found = 404, cancelled = 409,
    memory = 503 } do
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

test("a command fails with one line", function(t)
  local out = {}
  t.patch(io, "stderr", { write = function(_, ...) out[#out + 1] = table.concat { ... } end })
  t.patch(io, "stdout", { flush = function() out[#out + 1] = "flushed" end })
  local status = command.fail(command.USAGE, "here", perigee.error("io", "a \n  b\nc"))
  t.eq({ status, out }, { 2, { "flushed", "perigee: here: a; b; c\n" } })
end)

test("what this build cannot compute", function(t)
  t.eq({ command.OK, command.FAILED, command.USAGE }, { 0, 1, 2 })
  t.eq({ command.check_compute {}, command.check_compute { precision = "exact", device = "cpu" } },
    { true, true })
  t.eq(command.check_compute { precision = "fast" }, true)
  t.match(select(2, command.check_compute { device = "metal" }),
    "^device metal: there is no Metal on this system$")
end)

test("the precision is the one given, that of the command, or exact", function(t)
  t.eq({ command.model_options({}).precision, command.model_options({}, "fast").precision,
    command.model_options({ precision = "exact" }, "fast").precision },
    { "exact", "fast", "exact" })
  t.eq(command.model_options({ threads = 3, context = 5, memory = 7, kv_bits = "8",
    device = "cpu" }),
    { threads = 3, context = 5, memory = 7, kv_bits = 8, precision = "exact", device = "cpu" })
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

-- ---- stderr -------------------------------------------------------------------------------------

--- lib.stderr over another luv: takes(bytes) returns how many of them are taken, or nil and the
--- name of an error. Returns the module and what happened.
local function new_stderr(kind, takes)
  local seen = { written = "", timers = {}, polls = 0, closed = 0 }
  local function write(_, bytes, offset, done)
    seen.offset = offset
    seen.writes = (seen.writes or 0) + 1
    if done then
      seen.written, seen.done = seen.written .. bytes, done
      return {}
    end
    local n, name = takes(bytes)
    if not n then return nil, "why", name end
    seen.written = seen.written .. bytes:sub(1, n)
    return n
  end
  local fake = {
    constants = { O_WRONLY = 1, O_NONBLOCK = 2, O_NOCTTY = 4 },
    fs_fstat = function(fd) return fd == 2 and kind and { type = kind } or nil end,
    fs_open = function(path, flags, mode)
      seen.open = { path, flags, mode }
      return kind ~= "socket" and 7 or nil
    end,
    fs_write = function(fd, ...)
      seen.fd = fd
      return write(fd, ...)
    end,
    new_poll = function(fd)
      seen.polls = seen.polls + (fd == 2 and 1 or 0)
      return { close = function() seen.closed = seen.closed + 1 end }
    end,
    new_timer = function()
      local timer = {}
      function timer:start(ms, again, fn)
        self.ms, self.again, self.fn, self.fresh = ms, again, fn, seen.fresh
        seen.timers[#seen.timers + 1] = self
      end
      function timer:unref() self.unrefed = true end
      function timer:close() self.is_closed = true end
      function timer:is_closing() return self.is_closed end
      return timer
    end,
    update_time = function() seen.fresh = true end,
  }
  local env = setmetatable({ require = function() return fake end }, { __index = _G })
  local chunk = assert(load(perigee.sys.script "lib/stderr.lua", "@stderr", "t", env))
  return chunk(), seen
end

test("stderr: a pipe takes what it can, the rest waits", function(t)
  local room = 5
  local stderr, seen = new_stderr("fifo", function(bytes)
    if room == 0 then return nil, "EAGAIN" end
    local n = math.min(room, #bytes)
    room = room - n
    return n
  end)
  t.eq(stderr.write("ab", "c"), true)
  t.eq({ seen.open, seen.fd, seen.written, #seen.timers, seen.offset },
    { { "/dev/stderr", 7, 0 }, 7, "abc", 0, -1 })
  t.eq(stderr.write "defgh", true)
  t.eq({ seen.written, #seen.timers, seen.timers[1].ms, seen.timers[1].again,
    seen.timers[1].unrefed }, { "abcde", 1, 20, 0, true })
  stderr.write "ij" -- waits for the timer
  t.eq({ seen.writes, #seen.timers }, { 2, 1 })
  local ended = 0
  stderr.close(function() ended = ended + 1 end)
  t.eq({ ended, seen.timers[2].ms, seen.timers[2].fresh }, { 0, 1000, true })
  seen.timers[1].fn() -- still full
  t.eq({ seen.timers[1].is_closed, #seen.timers, seen.written }, { true, 3, "abcde" })
  room = 100
  seen.timers[3].fn()
  t.eq({ seen.written, ended, seen.timers[2].is_closed }, { "abcdefghij", 1, true })
  t.eq({ seen.polls, #seen.timers }, { 0, 3 })
end)

test("stderr: what is too much is dropped and counted; the end does not wait forever", function(t)
  local full = true
  local stderr, seen = new_stderr("char", function(bytes)
    if full then return nil, "EAGAIN" end
    return #bytes
  end)
  local most = 4 << 20
  t.eq({ stderr.write(("x"):rep(most)), stderr.write "y", stderr.write "z" },
    { true, false, false })
  full = false
  seen.timers[1].fn()
  t.eq(#seen.written, most)
  t.eq(stderr.write "end\n", true)
  t.eq(seen.written:sub(most + 1), "perigee: 2 lines to stderr were dropped\nend\n")
  stderr.write "again\n"
  t.eq(seen.written:sub(-10), "end\nagain\n")
  full = true
  stderr.write "lost"
  local ended = 0
  stderr.close(function() ended = ended + 1 end)
  seen.timers[3].fn() -- a second has passed
  t.eq({ ended, seen.timers[3].is_closed }, { 1, true })
  full = false
  seen.timers[2].fn()
  t.eq({ seen.written:sub(-6), ended }, { "again\n", 1 })
  local late, log = new_stderr("char", function() return nil, "EIO" end) -- nobody will read it
  t.eq({ late.write "x", #log.timers, log.writes }, { true, 0, 1 })
end)

test("stderr: files are written by threads, sockets as they are", function(t)
  local stderr, seen = new_stderr "file"
  local ended = 0
  t.eq({ stderr.write "a", seen.written, seen.fd, seen.open }, { true, "a", 2 })
  stderr.write "b"
  stderr.write "c"
  stderr.close(function() ended = ended + 1 end)
  t.eq({ seen.written, seen.writes, ended }, { "a", 1, 0 })
  seen.done()
  t.eq({ seen.written, seen.writes, ended }, { "abc", 2, 0 })
  seen.done()
  t.eq({ seen.writes, ended }, { 2, 1 })
  for kind, want in pairs { socket = { 2, 1, 1 }, fifo = { 7, 0, 0 } } do
    local module, log = new_stderr(kind, function(bytes) return #bytes end)
    module.write "x"
    t.eq({ log.fd, log.polls, log.closed }, want, kind)
  end
  local closed, log = new_stderr(nil) -- there is no stderr at all
  closed.write "x"
  t.eq({ log.fd, log.open }, { 2 })
end)

-- ---- breakers, scripts, options -----------------------------------------------------------------

test("three failures within a minute switch a script off", function(t)
  local function strikes(times, options)
    local b, out = breaker.new(options), {}
    for i, at in ipairs(times) do
      local off = b:strike("m" .. i, at)
      out[i] = (off and "off " or "") .. b.recent
    end
    t.eq({ b.total, b.last }, { #times, "m" .. #times })
    return out, b
  end
  t.eq((strikes { 0, 30, 59.9 }), { "1", "2", "off 3" })
  t.eq((strikes { 0, 30, 60, 89, 90 }), { "1", "2", "2", "off 3", "off 3" })
  t.eq((strikes { 0, 61, 122 }), { "1", "1", "1" })
  t.eq((strikes({ 0, 1 }, { strikes = 2 })), { "1", "off 2" })
  t.eq((strikes({ 0, 5, 9, 10 }, { strikes = 2, window_s = 5 })), { "1", "1", "off 2", "off 2" })
  local _, b = strikes { 0, 1, 2, 500 }
  t.eq({ b.off, b.recent }, { true, 1 }) -- until it is reset
  t.ok(rawequal(b:reset(), b))
  t.eq({ b.off, b.recent, b.total, b.last, #b.times }, { false, 0, 0, nil, 0 })
  t.eq(b:strike "now", false)
end)

test("a script's file", function(t)
  local path = os.tmpname()
  local function put(source)
    local f <close> = assert(io.open(path, "w"))
    f:write(source)
  end
  put "return ..."
  t.eq(script.load(path)(5), 5)
  put "x = = 1"
  local none, why = script.load(path)
  t.eq({ none, why }, { nil, path .. ":1: unexpected symbol near '='" })
  put "x = 1 [[a\nb]]"
  t.eq(select(2, script.load(path)), path .. ":2: unexpected symbol near '[[a")
  put ""
  t.eq(type(script.load(path)), "function")
  put(("("):rep(300))
  t.eq(select(2, script.load(path)):sub(1, #path + 1), path .. ":")
  t.eq(select(2, script.load(path)):find(path, 2, true), nil)
  os.remove(path)
  t.match(select(2, script.load(path)), "No such file")
  t.eq({ script.load "tests" }, { nil, "tests: Is a directory" })
  t.eq({ script.describe { message = "m", traceback = "t" },
    script.describe(perigee.error("io", "m")) }, { "m\nt", "m" })
  local before, paths = package.path, {}
  for i, variables in ipairs { { false, false }, { "/a/?.lua;;/b", false }, { "/a", "/c;/d" } } do
    for k, name in ipairs { "LUA_PATH", "LUA_PATH_5_4" } do
      if variables[k] then uv.os_setenv(name, variables[k]) else uv.os_unsetenv(name) end
    end
    script.set_path "my/site.lua"
    paths[i] = package.path
  end
  uv.os_unsetenv "LUA_PATH"
  uv.os_unsetenv "LUA_PATH_5_4"
  script.set_path "site.lua"
  paths[4], package.path = package.path, before
  local here = "my/?.lua;my/?/init.lua"
  t.eq(paths, { here, here .. ";/a/?.lua;/b", here .. ";/c;/d", "./?.lua;./?/init.lua" })
end)

test("options at their bounds, and several times", function(t)
  local options = { { { name = "n", kind = "integer", min = -2, max = 3 },
    { name = "least", kind = "integer", min = 5 }, { name = "most", kind = "integer", max = 5 },
    { name = "any", kind = "integer" }, { name = "name", kind = "string", many = true },
    { name = "x", kind = "number" } } }
  local function parse(...) return args.parse(options, { ... }, {}) end
  for value, want in pairs { ["-2"] = -2, ["3"] = 3, ["+1"] = 1, ["0"] = 0 } do
    t.eq(parse("--n", value), { n = want }, value)
  end
  t.eq({ parse("--n", "-3") }, { nil, "--n: '-3' is not between -2 and 3" })
  t.eq({ parse("--n", "4") }, { nil, "--n: '4' is not between -2 and 3" })
  t.eq({ parse("--least", "4") }, { nil, "--least: '4' is not between 5 and any" })
  t.eq({ parse("--most", "6") }, { nil, "--most: '6' is not between any and 5" })
  t.eq({ parse("--x", "y") }, { nil, "--x: 'y' is not a number" })
  t.eq({ parse("--any", "1.0") }, { nil, "--any: '1.0' is not an integer" })
  t.eq({ parse("--least=5"), parse("--most=5"), parse("--any=-9"), parse("--x=-.5") },
    { { least = 5 }, { most = 5 }, { any = -9 }, { x = -0.5 } })
  t.eq(parse("--name", "a", "--name=b=c", "d"), { "d", name = { "a", "b=c" } })
  local common = { args.common }
  local function given(...) return args.parse(common, { ... }, {}) end
  for name, bounds in pairs { threads = { 1, 4096 }, context = { 1, 1 << 40 } } do
    for _, n in ipairs(bounds) do
      t.eq(given("--" .. name, tostring(n)), { [name] = n })
    end
    t.eq(given("--" .. name, "0"), nil)
    t.eq(given("--" .. name, tostring(bounds[2] + 1)), nil)
  end
  t.eq(given("--memory", "8G", "--kv-bits", "16", "--device=cpu", "--help"),
    { memory = 8 << 30, kv_bits = "16", device = "cpu", help = true })
  t.eq(args.defaults(common, {}), {})
  t.eq(args.help { { name = "a", kind = "flag", help = "one" },
    { name = "bb", kind = "string", value = "V", help = "two", default = false },
    { name = "c", kind = "choice", choices = { "x", "y" }, help = "three", shown = "x" },
    { name = "d", kind = "integer", help = "four" } },
    "  --a      one\n  --bb V   two (default: false)\n  --c x|y  three (default: x)\n"
    .. "  --d      four")
end)
