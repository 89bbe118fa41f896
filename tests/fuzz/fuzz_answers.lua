-- Anything as the answer of a site's hooks, in every phase: the request still gets a valid
-- response, nothing of it stays behind, and a call takes no longer than its deadline allows.
--
-- An input is a program of bytes. Each of its parts begins with a phase; the bytes after it make
-- what the hook does to its arguments and the value that it returns (see `makers` and `deeds`).
package.path = package.path .. ";tests/lua/?.lua"
local apiapp = require "apiapp"
local async = require "lib.async"
local driver = require "driver"
local perigee = require "perigee"
local phases = require "hooks.phases"
local plain = require "hooks.plain"
local uv = require "luv"
local json = perigee.json

local PHASES = { "request", "normalize", "template", "admit", "generate", "start", "logits",
  "token", "parse", "respond", "done", "schedule" }
local ON_SEQUENCES = { start = true, logits = true, token = true }
-- A sanitizer makes a single call of C slow, and two deadlines follow one another: of the hook, and
-- of making the request tidy.
local SLACK_MS = 1000

-- ---- values -------------------------------------------------------------------------------------

local Reader = {}
Reader.__index = Reader

--- The next byte; 0 at the end.
function Reader:next()
  self.at = self.at + 1
  return self.bytes:byte(self.at) or 0
end

function Reader:pick(list) return list[self:next() % #list + 1] end

local function forever() while true do end end -- luacheck: ignore 542
local function raise() error(setmetatable({}, { __tostring = forever }), 0) end
local EVENTS = { "__index", "__pairs", "__len", "__tostring", "__eq", "__close", "__name", "__call",
  "__newindex", "__metatable", "__concat", "__lt", "__mode" }
local HANDLERS = { forever, raise, function() return 1 end, function(t) return t end,
  function() return forever, nil, nil end, "k", false }
local TEXTS = { "", "a", "\0", "\xff", "\xed\xa0\x80", "\n", "</s>", "<|im_end|>", "assistant",
  "user", "stop", "text", "detach", "0", "\u{1F30A}", ("x"):rep(1 << 16), ("é"):rep(1 << 19) }
local NUMBERS = { 0, 1, -1, 2, 0.5, 0 / 0, 1 / 0, -1 / 0, math.maxinteger, math.mininteger, 2 ^ 53,
  1e308, 128, 129, 400, 599, 4096 }
local KEYS = { "type", "text", "content", "reasoning", "messages", "role", "calls", "name",
  "arguments", "id", "finish", "ids", "usage", "tools", "template", "status", "message", "n",
  "sampling", "prompt_tokens", "completion_tokens",
  "choices", "index", "logprobs", "finish_reason" }
local FIELDS = { "id", "api", "path", "n", "stream", "sampling", "tag", "ctx", "attached",
  "headers", "scripts", "model", "key", "chat", "prompts", "best_of", "received", "started",
  "attach", "ids", "all_ids", "prompt_tokens", "tools", "include_usage", "perigee" }
local TYPES = { "text", "reasoning", "call", "call_begin", "arguments", "finish", "content", "x" }

local value -- value(reader, args, depth)

local makers = {
  function() return nil end,
  function(r) return r:next() % 2 == 0 end,
  function(r) return r:pick(NUMBERS) end,
  function(r) return r:pick(TEXTS) end,
  function(r, args) return args[r:next() % 3 + 1] end,
  function(r, args, depth) -- a record
    local t = {}
    for _ = 1, r:next() % 5 do t[r:pick(KEYS)] = value(r, args, depth) end
    return t
  end,
  function(r, args, depth) -- a list
    local t = {}
    for i = 1, r:next() % 5 do t[i] = value(r, args, depth) end
    return t
  end,
  function(r, args, depth) -- with a metatable
    local inner = value(r, args, depth)
    local meta = {}
    for _ = 1, r:next() % 3 + 1 do meta[r:pick(EVENTS)] = r:pick(HANDLERS) end
    return plain.setmetatable(type(inner) == "table" and inner or {}, meta)
  end,
  function(r) -- contains itself
    local t = { type = "text", text = "x" }
    t[r:pick(KEYS)], t[1] = t, t
    return t
  end,
  function(r) -- deep
    local t = {}
    for _ = 1, r:pick { 10, 255, 257, 10000 } do t = { t } end
    return t
  end,
  function(r) -- long
    local t, n = {}, r:pick { 100, 10000, 300000 }
    for i = 1, n do t[i] = i end
    return t
  end,
  function(r) return r:pick { print, forever, coroutine.create(forever), io.stdout, raise } end,
  function(r, args, depth) -- odd keys
    return { [value(r, args, depth) and true] = 1, [1.5] = value(r, args, depth), [{}] = 2 }
  end,
  function(r, args, depth) -- a refusal
    return phases.reject(r:pick { 400, 403, 429, 503, 599 }, r:pick(TEXTS),
      { retry_after = r:pick { 0, 1.5, 1e300 }, code = value(r, args, depth) })
  end,
  function(r, args, depth) -- a delta
    return { type = r:pick(TYPES), text = value(r, args, depth) }
  end,
  function(r, args, depth) -- a chat
    return { messages = { { role = r:pick(TEXTS), content = value(r, args, depth) } } }
  end,
  function(r) -- ids
    local t = {}
    for i = 1, r:next() % 40 do t[i] = r:next() - (r:next() % 8 == 0 and 300 or 0) end
    return t
  end,
  function(r, args, depth) -- an output
    return { content = value(r, args, depth), finish = r:pick(TEXTS), ids = value(r, args, depth),
      usage = value(r, args, depth), calls = value(r, args, depth) }
  end,
}

function value(r, args, depth)
  if depth == 0 then return r:next() end
  return r:pick(makers)(r, args, depth - 1)
end

--- What a hook does before it returns. Returns a value to return at once.
local deeds = {
  function() end, function() end, function() end, function() end,
  function(r, args) -- a field of the request or of the sequence
    local first = args[1]
    if type(first) == "table" then first[r:pick(FIELDS)] = value(r, args, 3) end
  end,
  function(r, args) -- a field of the second argument
    local second = args[2]
    if type(second) == "table" then second[r:pick(KEYS)] = value(r, args, 3) end
  end,
  function(r, args) -- inside a field of the request
    local first = args[1]
    local inner = type(first) == "table" and first[r:pick(FIELDS)]
    if type(inner) == "table" then inner[r:pick(KEYS)] = value(r, args, 3) end
  end,
  function(r, args) -- run, in generate
    if type(args[2]) == "function" then return args[2](args[1], value(r, args, 3)) end
  end,
  function(r, args) error(value(r, args, 3), r:next() % 3) end,
  function(r, args) coroutine.yield(value(r, args, 2), value(r, args, 2)) end,
  forever,
  function(r, args) -- a metatable on an argument
    local target = args[r:next() % 3 + 1]
    if type(target) == "table" then
      plain.setmetatable(target, { [r:pick(EVENTS)] = r:pick(HANDLERS) })
    end
  end,
  function() -- memory
    local list = {}
    while #list >= 0 do list[#list + 1] = { list } end
  end,
  function(r, args) -- methods of a sequence, of logits, of a step
    local object, name = args[r:next() % 2 + 1], r:pick { "force", "bias", "ban", "top", "stop",
      "give", "preempt", "prefill", "order", "fill", "running", "waiting", "decode" }
    if type(object) == "table" or type(object) == "userdata" then
      object[name](object, value(r, args, 3))
    end
  end,
}

-- ---- hooks --------------------------------------------------------------------------------------

--- The hook of one part of the input: at each call it begins at the same byte.
local function hook_of(bytes)
  return function(...)
    local args, r = { ... }, setmetatable({ bytes = bytes, at = 0 }, Reader)
    local now = r:pick(deeds)(r, args)
    if now ~= nil and r:next() % 2 == 0 then return now end
    return value(r, args, 4)
  end
end

--- The script of an input: { hooks }, and whether it sits on sequences.
local function script_of(input)
  local hooks, on_sequences = {}, false
  for part in (input .. "\xfe"):gmatch "([^\xfe]*)\xfe" do
    local phase = part ~= "" and PHASES[part:byte() % #PHASES + 1]
    if phase then
      hooks[phase] = hook_of(part:sub(2))
      on_sequences = on_sequences or ON_SEQUENCES[phase]
    end
  end
  return { name = "fuzz", hooks = hooks, strikes = {}, self = {}, params = {},
    struck = function(_, _, record)
      if type(record.last) ~= "string" then error "a strike without a reason" end
    end }, on_sequences
end

local app, over, faults = nil, async.signal(), {}

local function install(script)
  local now = app.scripts.now
  now.phases, now.by_name, now.list = {}, { fuzz = script }, { script }
  for phase in pairs(script.hooks) do now.phases[phase] = { script } end
  now.phases.schedule = nil -- the batch's own, not the request's
  local scheduler = app.entry.batch.scheduler
  scheduler.report = function() end
  scheduler:reload(script.hooks.schedule)
end

-- ---- checks -------------------------------------------------------------------------------------

async.on_error = function(err) faults[#faults + 1] = tostring(err) .. (err.traceback or "") end

local call = phases.call
function phases.call(script, phase, ...)
  local started = perigee.sys.cpu_ns()
  local ok, answer = call(script, phase, ...)
  local took = (perigee.sys.cpu_ns() - started) * 1e-6
  if took > 2 * phases.list[phase].ms + SLACK_MS then
    faults[#faults + 1] = ("%s took %.0f ms"):format(phase, took)
  end
  return ok, answer
end

local function check_error(status, body)
  if math.type(status) ~= "integer" or status < 400 or status == 500 then
    error(("status %s: %s"):format(tostring(status), json.encode(body):sub(1, 600)))
  end
  local object = json.is_object(body) and body.error
  if not json.is_object(object) or type(object.message) ~= "string" then
    error(("status %d without an error object"):format(status))
  end
end

local function check_whole(status, body)
  if status ~= 200 then return check_error(status, body) end
  if not json.is_object(body) or type(body.choices) ~= "table" or #body.choices < 1 then
    error "a response without choices"
  end
  for _, choice in ipairs(body.choices) do
    if not json.is_object(choice) or not json.is_object(choice.message) then
      error "a choice without a message"
    end
    if type(choice.finish_reason) ~= "string" then error "a choice that has not ended" end
  end
end

local function check_stream(list, other, status)
  if not list then return check_error(status, other) end
  local last = list[#list]
  if last == "[DONE]" then return end
  if not json.is_object(last) or not last.error then error "a stream without an end" end
end

local function ask(on_sequences, stream)
  local body = { messages = { { role = "user", content = "Hello!" } }, max_tokens = 4,
    temperature = 0, perigee = on_sequences and { script = "fuzz" } or nil }
  if stream then
    check_stream(app:events("/v1/chat/completions", body))
  else
    check_whole(app:ask("/v1/chat/completions", body))
  end
end

local function run(input)
  local script, on_sequences = script_of(input)
  install(script)
  faults = {}
  ask(on_sequences, false)
  ask(on_sequences, true)
  for _ = 1, 4000 do -- `done` hooks run after the response
    if app.scripts.now.users == 0 then break end
    async.sleep(5)
  end
  if app.scripts.now.users ~= 0 then error "a request is still on its way" end
  install { hooks = {} }
  check_whole(app:ask("/v1/chat/completions",
    { messages = { { role = "user", content = "Hi" } }, max_tokens = 1 }))
  if #faults > 0 then error(faults[1], 0) end
end

-- ---- the target ---------------------------------------------------------------------------------

local t = { fail = function(why) error(why, 0) end, eq = function() end }
apiapp.run(t, function(opened)
  app = opened
  over:wait()
end, { noisy = true })
while not app do uv.run "once" end

driver.main {
  -- Both requests may get a conversation of 300,000 parts, whose template takes 2 to 4 s each, and
  -- four times that under sanitizers; the loop turns meanwhile.
  name = "answers", task = true, most = 200, run = run, slow = 8,
  generate = function(r)
    local parts = {}
    for i = 1, r:below(3) do parts[i] = r:bytes(1 + r:below(24)) end
    return table.concat(parts, "\xfe")
  end,
  close = function()
    over:set()
    uv.run()
  end,
}
