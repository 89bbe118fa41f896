-- serve: throughput and latency of `perigee serve` for n clients over HTTP. The server is a
-- process; each client sends its next request as soon as the last one is answered.
--   perigee run tests/bench/serve.lua [MODEL [CLIENTS [ANSWERS [TOKENS]]]]
-- CLIENTS: numbers such as 1,16,64. ANSWERS: per client. TOKENS: per answer.
--
-- Modes: stream (chat, one event per token), whole (chat, one response), tools (stream with tools
-- declared), text (completions, streamed). Columns: first is the time to first token, next the time
-- between tokens, loop the CPU time per token of the thread that runs Lua, engine that of all other
-- threads. Other programs and the speed of the model hardly change loop.
local async = require "lib.async"
local http = require "http"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local model, counts = arg[1] or "examples/moonlet", arg[2] or "1,16,64"
local answers, tokens = tonumber(arg[3] or 2), tonumber(arg[4] or 128)
local LIMIT_MS = 600000

-- ---- the server ---------------------------------------------------------------------------------

--- Starts a server; returns its address, its process id and a function that ends it.
local function start()
  local args, out = { "serve", model, "--port", "0", "--context", "1024" }, uv.new_pipe(false)
  local scripts = select(2, perigee.sys.scripts())
  if scripts then args = table.move(args, 1, #args, 3, { "--scripts", scripts }) end
  local ended = async.signal()
  local handle, pid = uv.spawn(uv.exepath(), { args = args, stdio = { nil, out } },
    function() ended:set(true) end)
  assert(handle, pid)
  local text = ""
  local address = async.await(function(resume)
    out:read_start(function(_, bytes)
      text = text .. (bytes or "\n")
      if text:find("\n", 1, true) then resume(text:match "^[^\n]*") end
    end)
  end)
  if address == "" then error("the server did not start", 0) end
  while http.request { url = address .. "/health" }.status ~= 200 do async.sleep(20) end
  return address, pid, function()
    handle:kill "sigterm"
    ended:wait()
    handle:close()
    out:close()
  end
end

--- CPU time of a process in seconds: its first thread, and all others. Nothing where /proc does not
--- have it.
local function cpu(pid)
  local folder = uv.fs_scandir(("/proc/%d/task"):format(pid))
  local first, others = 0, 0
  while folder do
    local name = uv.fs_scandir_next(folder)
    if not name then return first, others end
    local file <close> = io.open(("/proc/%d/task/%s/schedstat"):format(pid, name))
    local took = (file and file:read "n" or 0) * 1e-9
    if name == tostring(pid) then first = took else others = others + took end
  end
end

-- ---- the clients --------------------------------------------------------------------------------

local PARAMETERS = { type = "object", properties = { place = { type = "string" } },
  required = { "place" } }
local TOOL = { type = "function", ["function"] = { name = "weather",
  description = "The weather at a place.", parameters = PARAMETERS } }

local MODES = { { name = "stream", stream = true }, { name = "whole" },
  { name = "tools", stream = true, tools = { TOOL } },
  { name = "text", stream = true, prompt = "The moon is" } }

local function body_of(mode, seed)
  local body = { stream = mode.stream, seed = seed, temperature = 1, max_tokens = tokens,
    ignore_eos = true, tools = mode.tools, prompt = mode.prompt }
  if not mode.prompt then body.messages = { { role = "user", content = "Who are you?" } } end
  return json.encode(body)
end

--- Sends one request; adds its times to `seen`.
local function ask(address, mode, seen)
  local from, last, n = uv.hrtime(), nil, 0
  seen.asked = seen.asked + 1
  local path = mode.prompt and "/v1/completions" or "/v1/chat/completions"
  local answer = assert(http.request { url = address .. path, body = body_of(mode, seen.asked),
    headers = { ["content-type"] = "application/json" }, timeout_ms = LIMIT_MS,
    on_data = mode.stream and function(bytes)
      local now, at = uv.hrtime(), 1
      while true do
        local _, stop = bytes:find("\n\n", at, true)
        if not stop then break end
        at, n = stop + 1, n + 1
        if last then
          seen.next[#seen.next + 1] = now - last
        elseif n > (mode.prompt and 0 or 1) then -- the first event of a chat has no text
          seen.first[#seen.first + 1] = now - from
        end
        last = n > (mode.prompt and 0 or 1) and now or nil
      end
    end })
  assert(answer.status == 200, answer.body)
  if not mode.stream then seen.first[#seen.first + 1] = uv.hrtime() - from end
end

local function at(list, share)
  if #list == 0 then return "-" end
  table.sort(list)
  return ("%.1f"):format(list[math.max(1, math.ceil(share * #list))] * 1e-6)
end

local function measure(place, mode, n)
  local seen, clients = { asked = 0, first = {}, next = {} }, {}
  local function client()
    for _ = 1, answers do ask(place.address, mode, seen) end
    return true
  end
  for i = 1, n do clients[i] = client end
  local loop, engine = cpu(place.pid)
  local from = uv.hrtime()
  async.all(clients)
  local took, made = (uv.hrtime() - from) * 1e-9, seen.asked * tokens
  local loop_now, engine_now = cpu(place.pid)
  local function each(a, b) return a and ("%.0f"):format((b - a) / made * 1e6) or "-" end
  print(("%-7s %7d %10.1f %9.0f %9s %7s %9s %7s %9s %9s"):format(mode.name, n, seen.asked / took,
    made / took, at(seen.first, 0.5), at(seen.first, 0.99), at(seen.next, 0.5),
    at(seen.next, 0.99), each(loop, loop_now), each(engine, engine_now)))
end

async.run(function()
  local address, pid, stop = start()
  local ok, why = pcall(function()
    print(("%-7s %7s %10s %9s %9s %7s %9s %7s %9s %9s"):format("", "clients", "answers/s",
      "tokens/s", "first p50", "p99 ms", "next p50", "p99 ms", "loop us", "engine us"))
    local place = { address = address, pid = pid }
    measure(place, { name = "(warm)", stream = true }, 1)
    for _, mode in ipairs(MODES) do
      for n in counts:gmatch "%d+" do measure(place, mode, math.tointeger(tonumber(n))) end
    end
  end)
  stop()
  if not ok then error(why, 0) end
end)
uv.run()
