-- peer_http: perigee and llama-server over HTTP. `make bench-peer-http`.
--
--   perigee run tests/bench/peer_http.lua [rounds=3] [tests=gap,prefix,moonlet,…] [threads=2]
--     [shape=qwen3-0.6b] [prompt=16000] [clients=8] [tokens=64] [port=18080]
--
-- gap      clients that each send two prompts of 512 tokens: the time between tokens of all
--          answers. The servers take turns, one at a time, over the same GGUF file.
-- prefix   time to first token of a long prompt, and of the same one again; perigee alone
-- moonlet  30 chats one by one, then 30 at once on a fresh server: the same answers, and tokens/s;
--          perigee alone
-- start    from exec to the first token of `generate`, the file in the page cache; perigee alone
-- memory   resident bytes after 4,000 tokens of context; perigee alone
package.path = "tests/bench/?.lua;" .. package.path
local async = require "lib.async"
local common = require "cmd.bench.common"
local gguf = require "gguf"
local http = require "http"
local perigee = require "perigee"
local text = require "lib.text"
local uv = require "luv"
local json = perigee.json

local settings = { rounds = "3", tests = "gap,prefix,moonlet,start,memory", threads = "2",
  shape = "qwen3-0.6b", prompt = "16000", clients = "8", tokens = "64", port = "18080" }
for _, word in ipairs(arg) do
  local key, value = word:match "^(%w+)=(.*)$"
  if not key or not settings[key] then error(("unknown setting '%s'"):format(word), 0) end
  settings[key] = value
end
local function number(key) return assert(math.tointeger(tonumber(settings[key])), key) end
local folder = os.getenv "PEER_FOLDER" or "build/peer"
local CHATS, LIMIT_MS = 30, 1800000

-- ---- servers ------------------------------------------------------------------------------------

local function words_of(side, model, context)
  if side == "perigee" then
    local words = { uv.exepath(), "serve", model, "--port", settings.port, "--precision", "fast",
      "--threads", settings.threads, "--context", tostring(context) }
    local scripts = select(2, perigee.sys.scripts())
    if scripts then table.move({ "--scripts", scripts }, 1, 2, #words + 1, words) end
    return words
  end
  local slots = number "clients"
  return { folder .. "/bin/bin/llama-server", "-m", model, "--port", settings.port, "-t",
    settings.threads, "-np", tostring(slots), "-c", tostring(slots * context) }
end

--- Starts a server and calls f with its address; ends it afterwards.
local function with_server(side, model, context, f)
  local words = words_of(side, model, context)
  local log = assert(uv.fs_open(folder .. "/" .. side .. ".log", "w", 420))
  local ended = async.signal()
  local handle, pid = uv.spawn(words[1], { args = table.move(words, 2, #words, 1, {}),
    stdio = { nil, log, log } }, function() ended:set(true) end)
  if not handle then error(pid, 0) end
  local address = "http://127.0.0.1:" .. settings.port
  local ok, result = pcall(function()
    local started = uv.hrtime()
    while true do
      local answer = http.request { url = address .. "/health", timeout_ms = 5000 }
      if ended.is_set then error(("%s ended, see %s/%s.log"):format(side, folder, side), 0) end
      if answer and answer.status == 200 then break end
      if uv.hrtime() - started > 300e9 then error(side .. " does not answer", 0) end
      async.sleep(100)
    end
    return f(address)
  end)
  if not ended.is_set then handle:kill "sigterm" end
  ended:wait()
  handle:close()
  uv.fs_close(log)
  if not ok then error(result, 0) end
  return result
end

-- ---- requests -----------------------------------------------------------------------------------

--- n letters, each a token; each seed gives others.
local function letters(n, seed)
  local out = {}
  for i, id in ipairs(common.ids(n, 24, seed)) do out[i] = string.char(99 + id) end
  return table.concat(out)
end

--- Streams a completion. Returns the seconds to the first token and between the others.
local function stream(address, prompt, tokens)
  local from, last, first, gaps, rest = uv.hrtime(), nil, nil, {}, ""
  local answer = assert(http.request { url = address .. "/v1/completions", timeout_ms = LIMIT_MS,
    headers = { ["content-type"] = "application/json" },
    body = json.encode { prompt = prompt, max_tokens = tokens, temperature = 0, stream = true,
      ignore_eos = true },
    on_data = function(bytes)
      local now = uv.hrtime()
      rest = rest .. bytes
      while true do
        local event, after = rest:match "^(.-)\n\n()"
        if not event then break end
        rest = rest:sub(after)
        if event:find '"text":%s*"[^"]' then
          if last then gaps[#gaps + 1] = (now - last) * 1e-9 else first = (now - from) * 1e-9 end
          last = now
        end
      end
    end })
  if answer.status ~= 200 then error(("status %d: %s"):format(answer.status, answer.body), 0) end
  return first, gaps
end

-- ---- tests --------------------------------------------------------------------------------------

local function model_file()
  local path = ("%s/%s-q4_0.gguf"):format(folder, settings.shape)
  gguf.write(path, settings.shape, "q4_0")
  return path
end

local function gaps_of(side, round)
  return with_server(side, model_file(), 2048, function(address)
    local all, clients = {}, {}
    for i = 1, number "clients" do
      clients[i] = function()
        for k = 1, 2 do
          local prompt = letters(512, round * 100 + i * 2 + k)
          local _, gaps = stream(address, prompt, number "tokens")
          table.move(gaps, 1, #gaps, #all + 1, all)
        end
        return true
      end
    end
    async.all(clients)
    return { p50 = common.median(all), p99 = common.quantile(all, 0.99) }
  end)
end

local tests = {}

function tests.gap()
  local ratios = {}
  for round = 1, number "rounds" do
    local a, b = gaps_of("perigee", round), gaps_of("llama-server", round)
    ratios[round] = b.p99 / a.p99
    print(("gap: round %d: p50 %.0f ms, p99 %.0f ms; llama-server %.0f, %.0f: 1/%.1f of it"):format(
      round, a.p50 * 1e3, a.p99 * 1e3, b.p50 * 1e3, b.p99 * 1e3, ratios[round]))
  end
  print(("gap: p99 is 1/%.1f of llama-server's (1/%.1f to 1/%.1f); bar 1/20"):format(
    common.median(ratios), math.min(table.unpack(ratios)), math.max(table.unpack(ratios))))
end

function tests.prefix()
  local n = number "prompt"
  with_server("perigee", model_file(), n + 64, function(address)
    local prompt, again = letters(n, 7), {}
    local cold = stream(address, prompt, 4)
    for i = 1, 5 do again[i] = stream(address, prompt, 4) end
    local warm = common.median(again)
    print(("prefix: %d tokens: first token after %.2f s, again %.1f ms: %.0fx; bar 200x"):format(n,
      cold, warm * 1e3, cold / warm))
  end)
end

--- Chats of moonlet's answers.json without pictures, as bodies.
local function chats()
  local list, source = {}, assert(text.read_file "examples/moonlet/answers.json")
  for _, a in ipairs(json.decode(source)) do
    if #a.grids == 0 and #list < CHATS then
      list[#list + 1] = json.encode { messages = a.messages, tools = a.tools, temperature = 0,
        chat_template_kwargs = a.chat_template_kwargs, max_tokens = 128 }
    end
  end
  while #list < CHATS do list[#list + 1] = list[#list - 9] end
  return list
end

local function chat(address, body)
  local answer = assert(http.request { url = address .. "/v1/chat/completions", body = body,
    headers = { ["content-type"] = "application/json" }, timeout_ms = LIMIT_MS })
  if answer.status ~= 200 then error(("status %d: %s"):format(answer.status, answer.body), 0) end
  local parsed = assert(json.decode(answer.body))
  local message = parsed.choices[1].message
  local parts = { tostring(message.content), tostring(message.reasoning_content) }
  for _, call in ipairs(message.tool_calls or {}) do -- their ids are new each time
    parts[#parts + 1] = json.encode(call["function"])
  end
  return table.concat(parts, "\0"), parsed.usage.completion_tokens
end

--- Answers and tokens/s of all chats, one by one or all at once, on a fresh server.
local function moonlet(at_once)
  return with_server("perigee", "examples/moonlet", 2048, function(address)
    local answers, tokens, jobs = {}, 0, {}
    chat(address, chats()[1]) -- wakes the server up
    local from = uv.hrtime()
    for i, body in ipairs(chats()) do
      jobs[i] = function()
        local answer, n = chat(address, body)
        answers[i], tokens = answer, tokens + n
        return true
      end
    end
    if at_once then
      async.all(jobs)
    else
      for _, job in ipairs(jobs) do job() end
    end
    return { answers = answers, rate = tokens / ((uv.hrtime() - from) * 1e-9) }
  end)
end

function tests.moonlet()
  local ratios, different = {}, 0
  for round = 1, number "rounds" do
    local alone, together = moonlet(false), moonlet(true)
    for i, answer in ipairs(alone.answers) do
      if together.answers[i] ~= answer then different = different + 1 end
    end
    ratios[round] = together.rate / alone.rate
    print(("moonlet: round %d: %.0f tok/s one by one, %.0f at once"):format(round, alone.rate,
      together.rate))
  end
  local line = "moonlet: 30 at once %.1fx (%.1f to %.1f) of one by one, %d answers differ; bar 8x"
  print(line:format(common.median(ratios), math.min(table.unpack(ratios)),
    math.max(table.unpack(ratios)), different))
end

--- Seconds until `generate` has written its first token.
local function first_token(model)
  local out, ended, first = uv.new_pipe(), async.signal(), nil
  local from = uv.hrtime()
  local handle, why = uv.spawn(uv.exepath(), { args = { "generate", model, "abc", "--max-tokens",
    "1", "--precision", "fast", "--threads", settings.threads }, stdio = { nil, out } },
    function(status) ended:set(status) end)
  if not handle then error(why, 0) end
  out:read_start(function(_, bytes)
    if bytes and not first then first = (uv.hrtime() - from) * 1e-9 end
  end)
  local status = ended:wait()
  handle:close()
  out:close()
  if status ~= 0 or not first then error(("generate ended with status %s"):format(status), 0) end
  return first
end

function tests.start()
  local path, times = model_file(), {}
  first_token(path) -- fills the page cache
  for i = 1, 5 do times[i] = first_token(path) end
  print(("start: first token after %.2f s (%.2f to %.2f); bar 0.5 s"):format(common.median(times),
    math.min(table.unpack(times)), math.max(table.unpack(times))))
end

function tests.memory()
  local n = 4000
  with_server("perigee", model_file(), 4096, function(address)
    stream(address, letters(n, 3), 4)
    local answer = assert(http.request { url = address .. "/v1/status", timeout_ms = 5000 })
    local status = assert(json.decode(answer.body))
    local model = status.models[1]
    local blocks = n * model.memory.caches / model.batch.cache_tokens
    local over = status.memory.resident - model.memory.weights - blocks
    print(("memory: %.0f MB resident: weights %.0f, used blocks %.0f, others %.0f; bar 100"):format(
      status.memory.resident * 1e-6, model.memory.weights * 1e-6, blocks * 1e-6, over * 1e-6))
  end)
end

async.run(function()
  for name in settings.tests:gmatch "%a+" do
    local ok, why = pcall(assert(tests[name], name))
    if not ok then print(("%s: %s"):format(name, tostring(why))) end
  end
end)
uv.run()
