-- serve.lua - a server on the fake Metal, of which one call fails: the request that it hits gets an
-- error, or the model cannot be loaded; the next one is answered as ever. A step without memory is
-- tried again, so most failures hit nobody.
--
--   PERIGEE_METAL=... perigee run tests/metal/serve.lua [STRIDE]
--
-- Every STRIDE-th call of a server's life is tried: opening, loading and the steps of two requests.
package.path = "tests/lua/?.lua;" .. package.path
local async = require "lib.async"
local config = require "serve.config"
local http = require "http"
local json = require "perigee".json
local serve = require "serve"
local uv = require "luv"

local MOST = 480 -- such a life has fewer calls that may fail: the last tries show it
local BODY = json.encode { model = "moonlet", prompt = "The moon", max_tokens = 5, temperature = 0 }
local stride = tonumber((...)) or 1

local function settings()
  return config.merge(assert(config.check { port = 0, log = false, cache_bytes = 1 << 20,
    sequences = 2, context = 64, device = "metal" }), nil)
end

--- The status and the text of one request.
local function complete(address)
  local answer = assert(http.request { method = "POST", url = address .. "/v1/completions",
    headers = { ["content-type"] = "application/json" }, body = BODY, timeout_ms = 60000 })
  local body = json.decode(answer.body)
  if answer.status ~= 200 then
    assert(answer.status >= 500 and body.error.message ~= "", answer.body)
    return answer.status
  end
  return 200, body.choices[1].text
end

--- A server whose n-th call fails; n = 0: none. Returns the answers of three requests.
local function life(n)
  local answers = {}
  if n > 0 then uv.os_setenv("FAKE_METAL_FAIL_AT", tostring(n)) end
  local app = assert(serve.new { config = settings(),
    models = { { name = "moonlet", path = "examples/moonlet" } } })
  local places = assert(app:start())
  async.run(function()
    local ok, why = xpcall(function()
      while app:state() == "loading" do async.sleep(5) end
      for i = 1, 3 do
        local status, text = complete(places[1].address)
        answers[i] = text or status
      end
    end, debug.traceback)
    if not ok then answers[1] = why end
    app:stop()
  end)
  uv.run() -- until the server has stopped
  uv.os_unsetenv "FAKE_METAL_FAIL_AT"
  return answers
end

local passed, failed, hit, last = 0, 0, 0, 0
local want = life(0)[1]
assert(type(want) == "string" and #want < 100, want)
for n = 1, MOST, stride do
  local got = life(n)
  local wrong = 0
  for i = 1, 3 do if got[i] ~= want then wrong = wrong + 1 end end
  -- At most one request is hit, unless the model could not be loaded.
  local loaded = got[1] == want or got[2] == want or got[3] == want
  if wrong > 0 then hit, last = hit + 1, n end
  if wrong <= 1 or not loaded then
    passed = passed + 1
  else
    failed = failed + 1
    print(("FAIL serve: call %d: %s, %s, %s"):format(n, got[1], got[2], got[3]))
  end
end
if hit < 1 or last + stride > MOST then
  failed = failed + 1
  print(("FAIL serve: %d tries hit a request, the last at call %d of %d"):format(hit, last, MOST))
end
print(("serve on the fake: %d passed, %d failed, 0 skipped"):format(passed, failed))
os.exit(failed == 0 and 0 or 1, true)
