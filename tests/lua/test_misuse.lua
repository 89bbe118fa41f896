-- Every phase, every misuse: whatever a hook does, /health answers, and so do requests.
--
-- One server for each phase, whose site has one script for each misuse. A script does its worst
-- only for the request that names it in a header.
local async = require "lib.async"
local harness = require "harness"
local http = require "http"
local perigee = require "perigee"
local sandbox = require "hooks.sandbox"
local scheduler = require "engine.scheduler"
local sites = require "sites"
local uv = require "luv"
local json = perigee.json

local forced = ...
local function test(name, body)
  if not forced then harness.test(name, body) end
end

-- Milliseconds in which /health must answer. A sanitizer makes everything slower by an order of
-- magnitude, and a hook still gets its CPU time.
local HEALTH_MS = os.getenv "SAN" and 3000 or 100
local REQUEST_MS = os.getenv "SAN" and 60000 or 10000

-- ---- misuses ------------------------------------------------------------------------------------

-- Bodies of a hook whose arguments are in A; `L` is a function that never returns.
local ANYWHERE = {
  loop = "L()",
  loop_in_pcall = "while true do pcall(L) end",
  loop_in_coroutine = "coroutine.wrap(L)()",
  loop_in_handler = "xpcall(error, L)",
  loop_in_close = "local x <close> = setmetatable({}, { __close = L })",
  loop_in_index = "return setmetatable({}, { __index = L }).x",
  loop_in_tostring = "return tostring(setmetatable({}, { __tostring = L }))",
  finalizer = "setmetatable({}, { __gc = L }) for i = 1, 1e5 do local t = {} end",
  rep = "return (''):rep(1 << 40)",
  rep_large = "return ('x'):rep(1 << 40)",
  move = "table.move({}, 1, 1 << 40, 2)",
  insert = "table.insert(setmetatable({}, { __len = function() return 1 << 40 end }), 1, 1)",
  concat = "return table.concat(setmetatable({}, { __index = function() return '' end }), '', 1, "
    .. "1 << 40)",
  find = "return (('a'):rep(30000)):find '.-.-.-.-b'",
  gsub = "return (('a'):rep(3000)):gsub('a*a*a*a*b', '')",
  sort = "local t = {} for i = 1, 2e5 do t[i] = i * 7919 % 65537 end table.sort(t) "
    .. "table.sort(t, math.ult)",
  pack = "return string.pack('c2000000000', '')",
  date = "return os.date(('%c'):rep(1000000))",
  load = "return load(('x = 1 '):rep(4000000))",
  load_loop = "return load(function() return 'x = 1 ' end)",
  error_nil = "error(nil)",
  error_table = "error {}",
  error_tostring = "error(setmetatable({}, { __tostring = L }))",
  error_long = "error((' '):rep(1000000))",
  error_lines = "error(('\\n '):rep(1000000))",
  memory = "local t = {} for i = 1, 1e9 do t[i] = {} end",
  memory_text = "local s = 'x' while true do s = s .. s end",
  recursion = "local function f() return 1 + f() end f()",
  yield = "coroutine.yield(1)",
  yield_wish = "coroutine.yield({}, L)",
  yield_eq_loop = "coroutine.yield(setmetatable({}, { __eq = L }), L)",
  yield_eq_true = "coroutine.yield(setmetatable({}, { __eq = function() return true end }), L)",
  returns_number = "return 5",
  returns_function = "return L",
  returns_thread = "return coroutine.create(L)",
  returns_index = "return setmetatable({}, { __index = function() return 1 end })",
  returns_filling = "return setmetatable({}, { __index = function(t, k) local v = { type = 'text', "
    .. "text = 'x' } rawset(t, k, v) return v end })",
  returns_index_loop = "return setmetatable({ type = 'text' }, { __index = L })",
  returns_len_loop = "return setmetatable({ 1 }, { __len = L })",
  returns_pairs_loop = "return setmetatable({ a = 1 }, { __pairs = L })",
  returns_inner_loop = "local trap = setmetatable({}, { __index = L, __pairs = L, __len = L }) "
    .. "return { type = trap, text = trap, messages = trap, template = trap, calls = trap, trap }",
  returns_itself = "local t = { type = 'text' } t.t, t[1], t.messages = t, t, t return t",
  returns_deep = "local t = {} local r = t for i = 1, 1e5 do t.x = {} t[1] = t.x t = t.x end "
    .. "return r",
  returns_many = "local t = {} for i = 1, 3e5 do t[i] = { i } end return t",
  returns_long = "return { type = 'text', text = ('x'):rep(3e7), content = ('x'):rep(1e7) }",
  logs_loop = "require 'perigee'.log('x', setmetatable({}, { __pairs = L }))",
  logs_itself = "local t = {} t.t = t require 'perigee'.log('x', t)",
  clears_first = "if type(A[1]) == 'table' then for k in pairs(A[1]) do A[1][k] = nil end end",
  clears_second = "if type(A[2]) == 'table' then for k in pairs(A[2]) do A[2][k] = nil end end",
  marks_first = "setmetatable(A[1], { __index = L, __pairs = L, __len = L })",
  marks_second = "setmetatable(A[2], { __index = L, __pairs = L, __len = L })",
}

local WITH_REQUEST = {
  n = "A[1].n = 1 << 40",
  n_text = "A[1].n = 'x'",
  sampling = "A[1].sampling = 5",
  sampling_loop = "A[1].sampling = setmetatable({}, { __index = L, __pairs = L })",
  fields_loop = "local trap = setmetatable({}, { __index = L, __pairs = L, __len = L }) "
    .. "for k in pairs(A[1]) do A[1][k] = trap end",
  chat_loop = "A[1].chat.messages[1] = setmetatable({}, { __index = L, __pairs = L })",
  tag_loop = "A[1].tag.x = setmetatable({}, { __index = L, __pairs = L, __eq = L })",
  attach_loop = "A[1]:attach(setmetatable({}, { __tostring = L }))",
  id = "A[1].id = {}",
}

local WITH_RUN = {
  many = "return A[2](A[1], { n = 1000000 })",
  endless = "return A[2](A[1], { n = 1 << 40 })",
  negative = "return A[2](A[1], { n = -1 })",
  text = "return A[2](A[1], { n = 'x' })",
  options_loop = "return A[2](A[1], setmetatable({}, { __index = L, __pairs = L }))",
  sampling = "return A[2](A[1], { sampling = setmetatable({}, { __pairs = L }) })",
  sampling_text = "return A[2](A[1], { sampling = 'x' })",
  chat = "return A[2](A[1], { chat = setmetatable({}, { __index = L }) })",
  calls_loop = "local out = A[2](A[1]) out.calls = setmetatable({}, { __index = L }) return out",
  ids_loop = "local out = A[2](A[1]) out.ids = setmetatable({}, { __len = L }) return out",
  mark_output = "return setmetatable(A[2](A[1]), { __index = L })",
}

local WITH_SEQ = {
  close_vocab = "A[1].vocab:close()",
  close_vocab_later = "local v <close> = A[1].vocab",
  reach_vocab = "getmetatable(A[1].vocab).__index = L",
  encode_long = "A[1].vocab:encode(('a'):rep(2e7))",
  encode_callback = "A[1].vocab:encode(('a'):rep(1e5), {}, L)",
  decode_loop = "A[1].vocab:decode(setmetatable({}, { __len = L, __index = L }))",
  reach_on = "rawget(A[1], 'on').seq:cancel()",
  force_wrong = "A[1]:force { 1 << 40, -1, 'x', 1.5 }",
  force_unknown = "A[1]:force { 99999 }",
  force_loop = "A[1]:force(setmetatable({}, { __len = L, __index = L }))",
  force_many = "local t = {} for i = 1, 2e5 do t[i] = 70 end A[1]:force(t)",
  bias_wrong = "A[1]:bias { [1 << 40] = 1, x = 2, [-1] = 3, [1.5] = 2 }",
  bias_nan = "A[1]:bias { [5] = 0 / 0 }",
  bias_infinite = "A[1]:bias { [5] = math.huge }",
  bias_ban = "A[1]:bias { [5] = -math.huge }",
  bias_loop = "A[1]:bias(setmetatable({}, { __pairs = L }))",
}

local WITH_LOGITS = {
  close_tensor = "A[2].tensor:close()",
  top_many = "A[2]:top(1 << 40)",
  top_negative = "A[2]:top(-5)",
  biases_nan = "A[2]:bias { [5] = 0 / 0 }",
  biases_large = "A[2]:bias { [5] = 1e39 }",
  biases_infinite = "A[2]:bias { [5] = math.huge }",
  biases_ban = "A[2]:bias { [5] = -math.huge }",
  biases_wrong = "A[2]:bias { [1 << 40] = 1 }",
  ban_all = "local t = {} for i = 0, 99999 do t[#t + 1] = i end A[2]:ban(t)",
  ban_vocabulary = "local t = {} for i = 1, A[1].vocab.size do t[i] = i - 1 end A[2]:ban(t)",
  ban_loop = "A[2]:ban(setmetatable({}, { __index = L, __len = L }))",
}

local ON_REQUESTS = { "request", "normalize", "template", "admit", "generate", "parse", "respond",
  "done" }
local ON_SEQUENCES = { "start", "logits", "token" }

local function misuses_of(...)
  local all = {}
  for _, list in ipairs { ... } do
    for name, body in pairs(list) do all[name] = body end
  end
  return all
end

-- ---- a server -----------------------------------------------------------------------------------

local scripts = select(2, perigee.sys.scripts())

local function script_for(phase, name, body)
  local mine = "true"
  if phase ~= "start" and phase ~= "logits" and phase ~= "token" then
    mine = ("type(A[1].headers) == 'table' and A[1].headers['x-misuse'] == '%s'"):format(name)
  end
  return ("local function L() while true do end end\nreturn { %s = function(...) local A = { ... } "
    .. "if not (%s) then return end %s end }"):format(phase, mine, body)
end

--- Starts a server with a script for each misuse of a phase; calls body { address, pid, folder } in
--- a task.
local function with_server(t, phase, misuses, body)
  local files = {}
  for name, source in pairs(misuses) do
    files[("hooks/%s.lua"):format(name)] = script_for(phase, name, source)
  end
  local folder = sites.folder(files)
  local out = uv.new_pipe(false)
  local args = { "serve", "examples/moonlet", "--port", "0", "--sequences", "4", "--context",
    "1024", "--cache-bytes", "16M", "--site", folder, "--no-log" }
  if scripts then table.move({ "--scripts", scripts }, 1, 2, 1, table.move(args, 1, #args, 3)) end
  local exited, line, text = async.signal(), async.signal(), ""
  local handle, pid
  local limit = uv.new_timer() -- no process is left behind, whatever a test does
  limit:start(harness.LIMIT_MS, 0, function() handle:kill "sigkill" end)
  handle, pid = assert(uv.spawn(uv.exepath(), { args = args, stdio = { nil, out, nil } }, function()
    handle:close()
    limit:close()
    exited:set(true)
  end))
  out:read_start(function(_, bytes)
    if not bytes then
      if not line.is_set then line:set(nil) end
      return out:close()
    end
    text = text .. bytes
    local first = text:match "^([^\n]*)\n"
    if first and not line.is_set then line:set(first) end
  end)
  async.run(function()
    local ok, why = xpcall(function()
      local address = assert(line:wait(), "the server did not start")
      repeat
        async.sleep(10)
        local answer = http.request { url = address .. "/health", timeout_ms = REQUEST_MS }
      until answer and answer.status == 200
      body { address = address, pid = pid, folder = folder }
    end, debug.traceback)
    if not ok then t.fail(why) end
    handle:kill(ok and #t.failures == 0 and "sigterm" or "sigkill")
    exited:wait()
    sites.remove(folder)
  end)
end

local function ask(address, phase, name)
  local body = { messages = { { role = "user", content = "Hello!" } }, max_tokens = 3,
    temperature = 0 }
  if name and (phase == "start" or phase == "logits" or phase == "token") then
    body.perigee = { script = name }
  end
  local answer, why = http.request { url = address .. "/v1/chat/completions", method = "POST",
    body = json.encode(body), headers = { ["x-misuse"] = name }, timeout_ms = REQUEST_MS }
  return answer and answer.status or tostring(why)
end

--- Milliseconds of CPU time that the loop thread of a process has used: a busy machine makes
--- /health late, but not this. Where the system does not tell: of the wall clock.
local function clock_ms(pid)
  local f = io.open(("/proc/%d/schedstat"):format(pid))
  local ns = f and f:read "n"
  if f then f:close() end
  return (ns or uv.hrtime()) * 1e-6
end

--- Sends a request with a misuse; returns its status and the longest time /health took meanwhile.
local function try(server, phase, name)
  local status, worst, ended = nil, 0, false
  async.all {
    function()
      status = ask(server.address, phase, name)
      ended = true
    end,
    function()
      local last
      repeat
        last = ended
        local began = clock_ms(server.pid)
        local answer = http.request { url = server.address .. "/health", timeout_ms = REQUEST_MS }
        local took = clock_ms(server.pid) - began
        worst = math.max(worst, answer and took or REQUEST_MS)
        async.sleep(2)
      until last -- one more: `done` comes after the answer
    end,
  }
  return status, worst
end

-- An answer that a `respond` hook makes empty is withheld; a prompt may be too long.
local REFUSED = { respond = 403, template = 400 }
-- The conversation is what the hook made of it.
local BROKEN = { chat_loop = 400, fields_loop = 400, clears_second = 400 }

local function check(t, server, phase, name)
  local status, worst = try(server, phase, name)
  -- Once more: CPU time grows too when another process uses the other half of the core.
  if worst > HEALTH_MS then status, worst = try(server, phase, name) end
  local what = ("%s/%s"):format(phase, name)
  t.ok(worst <= HEALTH_MS, ("%s: /health took %.0f ms"):format(what, worst))
  local allowed = status == 200 or status == REFUSED[phase] or status == BROKEN[name]
  t.ok(allowed, ("%s: the request got %s"):format(what, status))
  return worst < REQUEST_MS
end

local function run_phase(phase, misuses)
  test("misuse of " .. phase, function(t)
    with_server(t, phase, misuses, function(server)
      for name in pairs(misuses) do
        if not check(t, server, phase, name) then return end
      end
      t.eq(ask(server.address), 200, phase .. ": a request afterwards")
    end)
  end)
end

for _, phase in ipairs(ON_REQUESTS) do
  run_phase(phase, misuses_of(ANYWHERE, WITH_REQUEST, phase == "generate" and WITH_RUN or {}))
end
for _, phase in ipairs(ON_SEQUENCES) do
  run_phase(phase, misuses_of(ANYWHERE, WITH_SEQ, phase == "logits" and WITH_LOGITS or {}))
end

-- ---- policies -----------------------------------------------------------------------------------

local WITH_STEP = {
  grants_text = "A[1].grants = 'x'",
  grants_index = "A[1].grants = setmetatable({}, { __index = function() return { 1, 1 } end })",
  grants_loop = "A[1].grants = setmetatable({}, { __index = L, __len = L, __pairs = L })",
  grant_loop = "A[1].grants = { setmetatable({}, { __index = L }) }",
  preempted_loop = "A[1].preempted = setmetatable({}, { __index = L, __pairs = L })",
  grants_unknown = "A[1].grants = { { 99, 1 } }",
}

test("misuse of schedule", function(t)
  local env = sandbox.environment { perigee = { log = function() end } }
  for name, body in pairs(misuses_of(ANYWHERE, WITH_STEP)) do
    local source = "local function L() while true do end end "
      .. ("return function(...) local A = { ... } %s end"):format(body)
    local policy = assert(load(source, name, "t", env))()
    local asked = scheduler.new(policy, { report = function() end })
    local sequences = { { id = 1, state = "waiting", left = 8, past = 0, generated = 0,
      cached = 0, choice = 0, age = 0, bytes = 0, prompt = 8, tag = {} } }
    local began = perigee.sys.cpu_ns()
    local grants = asked:grants(sequences, { tokens = 8, free = 100, timing = {} })
    local took = (perigee.sys.cpu_ns() - began) * 1e-6
    t.eq(grants, { { 1, 8 } }, name)
    t.ok(took <= HEALTH_MS, ("%s: %.0f ms"):format(name, took))
  end
end)

-- ---- loading ------------------------------------------------------------------------------------

local LOADED = {
  loop = "while true do end",
  find = "(('a'):rep(30000)):find '.-.-.-.-b' return {}",
  selftest = "return { selftest = function() while true do end end }",
  state = "return { state = function() while true do end end }",
  definition = "local function L() while true do end end "
    .. "return setmetatable({}, { __index = L, __pairs = L, __len = L })",
  timer = "require 'perigee'.every(0.01, function() while true do end end) return {}",
  memory = "local t = {} for i = 1, 1e9 do t[i] = {} end",
}

--- The longest time of /health until the scripts were loaded, or could not be.
local function watch_load(server, write)
  local function status()
    local answer = assert(http.request { url = server.address .. "/v1/status",
      timeout_ms = REQUEST_MS })
    local now = json.decode(answer.body).scripts
    return ("%s %s"):format(now.version, now.error)
  end
  local before, worst, rounds = status(), 0, 0
  write()
  repeat
    local began = clock_ms(server.pid)
    local answer = http.request { url = server.address .. "/health", timeout_ms = REQUEST_MS }
    worst = math.max(worst, answer and clock_ms(server.pid) - began or REQUEST_MS)
    if not answer then return worst end
    async.sleep(2)
    rounds = rounds + 1
  until rounds % 20 == 0 and status() ~= before
  return worst
end

local function put(path, source)
  local f = assert(io.open(path .. ".new", "w"))
  f:write(source)
  f:close()
  assert(os.rename(path .. ".new", path))
end

test("misuse while a script is loaded", function(t)
  with_server(t, "request", { nothing = "" }, function(server)
    for name, source in pairs(LOADED) do
      local worst = 0
      for _, text in ipairs { source, ("return {} -- %s"):format(name) } do
        worst = math.max(worst, watch_load(server, function()
          put(server.folder .. "/hooks/bad.lua", text)
        end))
      end
      t.ok(worst <= HEALTH_MS, ("%s: /health took %.0f ms"):format(name, worst))
      if worst >= REQUEST_MS then return end
    end
    t.eq(ask(server.address), 200, "a request afterwards")
  end)
end)

test("many scripts are loaded a few at a time", function(t)
  with_server(t, "request", { nothing = "" }, function(server)
    local worst = watch_load(server, function()
      for i = 1, 300 do
        put(("%s/hooks/many%d.lua"):format(server.folder, i), "return { request = function() end }")
      end
    end)
    t.ok(worst <= HEALTH_MS, ("/health took %.0f ms"):format(worst))
    t.eq(ask(server.address), 200, "a request afterwards")
  end)
end)
