-- `perigee serve` as a process: first line, errors and exit status, signals, the on-disk prefix
-- cache.
local async = require "lib.async"
local harness = require "harness"
local http = require "http"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local forced = ...
local function test(name, body)
  if not forced then harness.test(name, body) end
end

local scripts = select(2, perigee.sys.scripts())

--- Reads a pipe to its end into out.text; out.line is set with the first line.
local function collect(pipe, out)
  out.text, out.line = "", async.signal()
  pipe:read_start(function(_, bytes)
    if not bytes then
      out.line:set(out.text:match "^([^\n]*)\n")
      return pipe:close()
    end
    out.text = out.text .. bytes
    if out.text:find("\n", 1, true) and not out.line.is_set then
      out.line:set(out.text:match "^([^\n]*)\n")
    end
  end)
end

--- Starts `perigee serve` with these arguments. The result has out and err (text so far), line(),
--- kill(signal) and wait(), which returns the status. words.stderr: a file descriptor; words.files:
--- the limit of open files.
local function spawn(words)
  local args = { "serve" }
  if scripts then args = { "--scripts", scripts, "serve" } end
  table.move(words, 1, #words, #args + 1, args)
  local out_pipe, err_pipe = uv.new_pipe(false), not words.stderr and uv.new_pipe(false)
  local self = { out = {}, err = { pipe = err_pipe }, exited = async.signal() }
  local handle
  local limit = uv.new_timer() -- no process is left behind, whatever a test does
  limit:start(harness.LIMIT_MS, 0, function() handle:kill "sigkill" end)
  local stdio = { nil, out_pipe, err_pipe or words.stderr }
  local program = uv.exepath()
  if words.files then -- with fewer open files
    table.move({ "-c", ('ulimit -n %d; exec "$0" "$@"'):format(words.files), program }, 1, 3, 1,
      table.move(args, 1, #args, 4))
    program = "/bin/sh"
  end
  handle = assert(uv.spawn(program, { args = args, stdio = stdio }, function(status, signal)
    handle:close()
    limit:close()
    self.exited:set { status = status, signal = signal }
  end))
  collect(out_pipe, self.out)
  if err_pipe then collect(err_pipe, self.err) end
  function self.line() return self.out.line:wait() end
  function self.kill(signal) handle:kill(signal) end
  function self.wait()
    local ended = self.exited:wait()
    self.out.line:wait()
    if err_pipe then self.err.line:wait() end
    return ended.signal ~= 0 and "signal " .. ended.signal or ended.status
  end
  return self
end

local function get(url) return http.request { url = url, timeout_ms = harness.LIMIT_MS } end

local function wait_ready(address)
  while true do
    local answer = get(address .. "/health")
    if answer and answer.status == 200 then return end
    async.sleep(10)
  end
end

local function chat(address, more)
  local body = { messages = { { role = "user", content = "Hello!" } }, temperature = 0 }
  for k, v in pairs(more or {}) do body[k] = v end
  return http.request { url = address .. "/v1/chat/completions", method = "POST",
    body = json.encode(body), timeout_ms = harness.LIMIT_MS }
end

local small = { "--port", "0", "--sequences", "4", "--context", "1024", "--cache-bytes", "16M" }

local function words(...)
  local list = { ... }
  return table.move(small, 1, #small, #list + 1, list)
end

--- Runs body in a task; an error in it fails the test.
local function task(t, body)
  async.run(function()
    local ok, why = xpcall(body, debug.traceback)
    if not ok then t.fail(why) end
  end)
end

test("the first line is the address; SIGTERM lets requests finish and exits with 0", function(t)
  task(t, function()
    local p = spawn(words("examples/moonlet", "--drain-s", tostring(harness.LIMIT_MS / 1000)))
    local address = p.line()
    t.match(address, "^http://127%.0%.0%.1:%d+$")
    wait_ready(address)
    local answer
    async.all {
      function() answer = chat(address, { max_tokens = 120, ignore_eos = true }) end,
      function()
        repeat
          async.sleep(2)
          local m = json.decode(get(address .. "/v1/status").body).models[1]
        until m.batch.running > 0
        p.kill "sigterm"
      end,
    }
    t.eq(answer and answer.status, 200)
    t.eq(json.decode(answer.body).usage.completion_tokens, 120)
    t.eq(p.wait(), 0)
    t.eq(p.out.text, address .. "\n")
    for _, word in ipairs { "address", "moonlet", "memory", "policy", "keys", "version 1",
      "curl " } do
      t.ok(p.err.text:find(word, 1, true), word)
    end
  end)
end)

test("SIGINT twice stops at once, SIGHUP does not", function(t)
  task(t, function()
    local p = spawn(words("m=examples/moonlet", "--no-log"))
    local address = p.line()
    wait_ready(address)
    p.kill "sighup"
    async.all {
      function() chat(address, { max_tokens = 1000, ignore_eos = true }) end,
      function()
        repeat
          async.sleep(2)
          local m = json.decode(get(address .. "/v1/status").body).models[1]
        until m.batch.running > 0
        p.kill "sigint"
        while get(address .. "/health").status ~= 503 do async.sleep(2) end
        p.kill "sigint"
      end,
    }
    t.eq(p.wait(), 0)
  end)
end)

test("a Unix socket: its path is the address, and the file is removed at the end", function(t)
  task(t, function()
    local path = ("%s/perigee-p%d.sock"):format(uv.os_tmpdir(), uv.os_getpid())
    local p = spawn { "examples/moonlet", "--socket", path, "--no-log", "--cache-bytes", "0" }
    t.eq(p.line(), path)
    local answer
    repeat
      async.sleep(10)
      answer = http.request { socket = path, target = "/health" }
    until answer and answer.status == 200
    t.eq(uv.fs_stat(path).mode & 511, 384) -- 0600
    local second = spawn { "examples/moonlet", "--socket", path, "--no-log" }
    t.eq(second.wait(), 1)
    t.match(second.err.text, "^perigee: serve: .*another server is listening\n")
    p.kill "sigterm"
    t.eq(p.wait(), 0)
    t.eq(uv.fs_stat(path), nil)
  end)
end)

--- Runs to the end and compares status and stderr.
local function fails(t, list, want)
  local p = spawn(list)
  t.eq(p.wait(), want.status, want.text)
  t.eq(p.out.text, want.out or "")
  t.ok(p.err.text:find(want.text, 1, true), ("%s\n      want %s"):format(p.err.text, want.text))
  t.eq(select(2, p.err.text:gsub("\n", "")), 1, p.err.text)
end

test("errors are one line", function(t)
  task(t, function()
    fails(t, {},
      { status = 2, text = "perigee: serve: no model: give MODEL, or `models` in --config\n" })
    fails(t, { "/nowhere" }, { status = 1, text = "perigee: serve: /nowhere: no such model\n" })
    fails(t, { "a=examples/moonlet", "a=examples/moonlet" },
      { status = 1, text = "perigee: serve: two models are named 'a'\n" })
    fails(t, { "examples/moonlet", "--port", "99999" },
      { status = 2, text = "--port: '99999' is not between 0 and 65535\n" })
    fails(t, { "examples/moonlet", "--prot", "1" },
      { status = 2, text = "--prot: unknown option, did you mean --port?\n" })
    fails(t, { "examples/moonlet", "--precision", "half" },
      { status = 2, text = "--precision: 'half' is not one of exact, fast\n" })
    fails(t, { "examples/moonlet", "--config", "/nowhere.lua" },
      { status = 1, text = "/nowhere.lua: " })
    fails(t, { "examples/moonlet", "--api-key", "a=1", "--api-key", "a=2" },
      { status = 2, text = "--api-key: two keys are named 'a'\n" })
    fails(t, { "examples/moonlet", "--api-key", "alice=" },
      { status = 2, text = "--api-key: no key after 'NAME='" })
    fails(t, { "examples/moonlet", "--api-key", "" },
      { status = 2, text = "--api-key: the key is empty\n" })
    fails(t, { "examples/moonlet", "--api-key-file", "/nowhere/keys" },
      { status = 1, text = "api_key_file: " })
    fails(t, { "examples/moonlet", "--log", "/nowhere/x.log" },
      { status = 1, text = "/nowhere/x.log" })
    fails(t, { "examples/moonlet", "--host", "no.such.name.invalid" },
      { status = 1, text = "no.such.name.invalid:" })
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write "return { limits = { bodi = 3 } }"
    f:close()
    local unknown = "perigee: serve: %s: limits: unknown key 'bodi', did you mean 'body'?\n"
    fails(t, { "examples/moonlet", "--config", path },
      { status = 1, text = unknown:format(path) })
    os.remove(path)
    local taken = uv.new_tcp()
    taken:bind("127.0.0.1", 0)
    taken:listen(1, function() end)
    local port = taken:getsockname().port
    local said = ("port %d of 127.0.0.1 is in use: choose another with --port N, or --port 0 for "
        .. "any free one\n"):format(port)
    fails(t, { "examples/moonlet", "--port", tostring(port) },
      { status = 1, text = "perigee: serve: " .. said })
    taken:close()
  end)
end)

test("a server exits if no model can be loaded", function(t)
  task(t, function()
    local p = spawn { "tests/lua", "--port", "0", "--no-log" }
    t.eq(p.wait(), 1)
    t.match(p.out.text, "^http://")
    t.match(p.err.text, "^perigee: serve: lua: [^\n]*tests/lua[^\n]*\n$")
  end)
end)

test("--print-config is a configuration", function(t)
  task(t, function()
    local p = spawn { "--print-config" }
    t.eq(p.wait(), 0)
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(p.out.text)
    f:close()
    local q = spawn(words("examples/moonlet", "--config", path, "--no-log"))
    t.match(q.line(), "^http://")
    q.kill "sigterm"
    t.eq(q.wait(), 0)
    os.remove(path)
  end)
end)

local function remove_folder(path)
  for name, kind in uv.fs_scandir_next, (assert(uv.fs_scandir(path))) do
    if kind == "directory" then
      remove_folder(path .. "/" .. name)
    else
      os.remove(path .. "/" .. name)
    end
  end
  uv.fs_rmdir(path)
end

--- The cache is written while the engine is idle: waits until the number of files stays the same.
local function wait_written(address)
  local before, now = -1, 0
  while now == 0 or now > before do
    async.sleep(50)
    before, now = now,
      json.decode(get(address .. "/v1/status").body).models[1].batch.prefix_cache.disk_writes
  end
end

test("the on-disk cache outlives the process, killed or not", function(t)
  task(t, function()
    local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-cache-XXXXXX"))
    local prompt = ("The moon goes around the earth, again and again. "):rep(12)
    local function cached(address)
      local body = json.encode { prompt = prompt, max_tokens = 4, temperature = 0 }
      local answer = http.request { url = address .. "/v1/completions", method = "POST",
        body = body, timeout_ms = harness.LIMIT_MS }
      local usage = json.decode(answer.body).usage
      return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens
    end
    for i, signal in ipairs { "sigkill", "sigterm", "sigterm" } do
      local p = spawn(words("examples/moonlet", "--cache-folder", folder, "--no-log"))
      local address = p.line()
      wait_ready(address)
      local hit, all = cached(address)
      t.ok(i == 1 and hit == 0 or i > 1 and hit > all / 2,
        ("start %d: %d of %d tokens were cached"):format(i, hit, all))
      if signal == "sigkill" then wait_written(address) end
      p.kill(signal)
      t.eq(p.wait(), signal == "sigkill" and "signal 9" or 0)
    end
    remove_folder(folder)
  end)
end)

test("a stderr that nobody reads neither stops the server nor its end", function(t)
  task(t, function()
    local path, ends = os.tmpname(), uv.pipe()
    for i, list in ipairs { words("examples/moonlet", "--log", path), words "examples/moonlet",
      words "examples/moonlet" } do
      if i < 3 then list.stderr = ends.write end -- the third has a socket
      local p = spawn(list)
      local address = p.line()
      wait_ready(address)
      if i == 3 then p.err.pipe:read_stop() end
      for _ = 1, 200 do -- at least 400 KB of log; a pipe holds 64
        get(address .. "/" .. ("x"):rep(2000))
      end
      p.kill "sigusr1"
      t.eq(get(address .. "/health").status, 200)
      local began = uv.hrtime()
      p.kill "sigterm"
      t.eq(p.wait(), 0)
      t.ok(uv.hrtime() - began < 8e9)
      if i == 3 then p.err.pipe:close() end
    end
    t.eq(uv.fs_stat(path).mode & 511, 384) -- as os.tmpname made it
    os.remove(path)
    uv.fs_close(ends.read)
    uv.fs_close(ends.write)
  end)
end)

-- ---- model files that change --------------------------------------------------------------------

local function read(path)
  local f <close> = assert(io.open(path, "rb"))
  return f:read "a"
end

--- Writes over a file in place, from a byte on. Without `at` it is truncated before.
local function write(path, bytes, at)
  local f <close> = assert(io.open(path, at and "r+b" or "wb"))
  f:seek("set", at or 0)
  f:write(bytes)
end

local FILES = { "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
  "model.safetensors" }

local function copy_model()
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-model-XXXXXX"))
  for _, name in ipairs(FILES) do
    write(folder .. "/" .. name, read("examples/moonlet/" .. name))
  end
  return folder
end

local function answer_text(answer)
  return answer and answer.status == 200 and json.decode(answer.body).choices[1].message.content
end

--- Asks until the model is ready again; the last refusal.
local function wait_again(address, model)
  local refusal
  while true do
    local answer = chat(address, { model = model, max_tokens = 1 })
    if answer.status == 200 then return refusal end
    refusal = answer
    async.sleep(100)
  end
end

--- Streams a long answer and damages the file after the first piece of it. Returns all pieces.
local function damaged_stream(address, damage)
  local pieces = {}
  http.request { url = address .. "/v1/chat/completions", method = "POST",
    timeout_ms = harness.LIMIT_MS, on_data = function(bytes)
      pieces[#pieces + 1] = bytes
      if damage and bytes:find("content", 1, true) then
        damage()
        damage = nil
      end
    end,
    body = json.encode { model = "a", stream = true, temperature = 0, max_tokens = 900,
      ignore_eos = true, messages = { { role = "user", content = "Hello!" } } } }
  return table.concat(pieces)
end

test("a model file that is truncated or overwritten ends its requests, not the server", function(t)
  task(t, function()
    local folder = copy_model()
    local file, cache = folder .. "/model.safetensors", folder .. "/cache"
    local whole = read(file)
    local p = spawn(words("a=" .. folder, "b=examples/moonlet", "--cache-folder", cache))
    local address = p.line()
    wait_ready(address)
    local question = { model = "a", max_tokens = 20, seed = 1 }
    local want = answer_text(chat(address, question))
    t.ok(want and #want > 0)

    -- truncated during an answer: that ends with an error which names the file
    local got = damaged_stream(address, function()
      local fd = assert(uv.fs_open(file, "r+", 0))
      assert(uv.fs_ftruncate(fd, 100000))
      uv.fs_close(fd)
    end)
    t.match(got, "model%.safetensors was truncated")
    t.ok(not got:find(folder, 1, true), "clients see no folders")
    t.eq(answer_text(chat(address, { model = "b", max_tokens = 20, seed = 1 })), want)
    write(file, whole)
    local refusal = wait_again(address, "a")
    t.eq(refusal.status, 503)
    t.ok(refusal.headers["retry-after"], "Retry-After")
    t.eq(answer_text(chat(address, question)), want)

    -- overwritten, with the same size: no read fails, but it is noticed
    local garbage = ("\x55\xaa\x12\x34"):rep(1000000)
    write(file, garbage, 200000)
    t.ok(chat(address, { model = "a", max_tokens = 2, ignore_eos = true }).status ~= 200)
    t.eq(answer_text(chat(address, { model = "b", max_tokens = 20, seed = 1 })), want)
    write(file, whole)
    wait_again(address, "a")
    t.eq(answer_text(chat(address, question)), want)

    -- replaced by renaming: nothing happens
    write(folder .. "/other", garbage)
    assert(uv.fs_rename(folder .. "/other", file))
    async.sleep(1500)
    t.eq(answer_text(chat(address, question)), want)
    p.kill "sigterm"
    t.eq(p.wait(), 0)
    t.match(p.err.text, "model a: model%.safetensors was truncated or overwritten")
    remove_folder(folder)
  end)
end)

test("connections follow the limit of open files, and refusals are logged", function(t)
  task(t, function()
    local list = words "examples/moonlet"
    list.files = 90
    local p = spawn(list)
    local address = p.line()
    wait_ready(address)
    t.match(p.err.text, "the limit of open files is 90: at most 23 connections, not 4096")
    local host, port = address:match "^http://([%d.]+):(%d+)$"
    local held = {}
    for i = 1, 120 do
      held[i] = uv.new_tcp()
      async.await(function(resume) held[i]:connect(host, math.tointeger(port), resume) end)
    end
    while not p.err.text:find("503.*too many connections") do async.sleep(5) end
    for _, one in ipairs(held) do one:close() end
    wait_ready(address)
    p.kill "sigterm"
    t.eq(p.wait(), 0)
  end)
end)

test("others cannot read the log", function(t)
  task(t, function()
    local path = os.tmpname()
    os.remove(path)
    local list = words "examples/moonlet"
    table.move({ "--log", path }, 1, 2, #list + 1, list)
    local p = spawn(list)
    wait_ready(p.line())
    t.eq(uv.fs_stat(path).mode & 23, 0) -- 027
    p.kill "sigterm"
    t.eq(p.wait(), 0)
    os.remove(path)
  end)
end)
