-- What is kept of the Responses API's answers, over a real socket: background responses that are
-- deleted.
local apiapp = require "apiapp"
local async = require "lib.async"
local harness = require "harness"
local uv = require "luv"
local test = harness.test

if ... then return end -- once is enough: under forced collection test_responses does

local PATH = "/v1/responses"

local function by(name) return { ["x-test-key"] = name } end

local function wait_for(t, what, f)
  for _ = 1, harness.LIMIT_MS // 10 do
    if f() then return end
    async.sleep(10)
  end
  t.fail("never: " .. what)
end

--- A store with files in a folder of its own.
local function on_disk()
  return { count = 10, bytes = 1 << 20, seconds = 1000, disk_bytes = 1 << 20, disk_seconds = 1000,
    folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-kept-XXXXXX")) }
end

--- A background request that does not end by itself; returns its id when it runs.
local function start(t, app, headers)
  local _, queued = app:ask(PATH, { input = "Tell me a story.", ignore_eos = true,
    max_output_tokens = 4000, background = true }, { headers = headers })
  wait_for(t, "it runs", function() return app.entry.batch.alive == 1 end)
  return queued.id
end

test("a background response that is deleted while it runs ends, and stays deleted", function(t)
  apiapp.run(t, function(app)
    local mine = by "mine"
    local id = start(t, app, mine)
    t.eq((app:ask(PATH .. "/" .. id, nil, { method = "DELETE" })), 404, "of another key")
    local status, gone = app:ask(PATH .. "/" .. id, nil, { method = "DELETE", headers = mine })
    t.eq({ status, gone.deleted, app.entry.batch.alive }, { 200, true, 0 })
    wait_for(t, "nothing is left", function() return next(app.live) == nil end)
    t.eq((app:ask(PATH .. "/" .. id, nil, { method = "GET", headers = mine })), 404)
    t.eq(app.responses.disk:read("mine", id), nil, "its file")
  end, { responses = on_disk() })
end)
