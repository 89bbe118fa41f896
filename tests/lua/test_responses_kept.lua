-- What the Responses API keeps, over a real socket: what was sent, as it was sent, and what came of
-- it, also of responses that are still made.
local apiapp = require "apiapp"
local handler = require "api.handler"
local harness = require "harness"
local http = require "http"
local perigee = require "perigee"
local uv = require "luv"
local test = harness.test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_responses does

local PATH = "/v1/responses"

local function by(name) return { ["x-test-key"] = name } end

--- A store with files in a folder of its own.
local function on_disk()
  return { count = 10, bytes = 1 << 20, seconds = 1000, disk_bytes = 1 << 20, disk_seconds = 1000,
    folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-kept-XXXXXX")) }
end

--- A background request that does not end by itself; returns its id when it runs.
local function start(t, app, headers)
  local _, queued = app:ask(PATH, { input = "Tell me a story.", ignore_eos = true,
    max_output_tokens = 4000, background = true }, { headers = headers })
  apiapp.wait_for(t, "it runs", function() return app.entry.batch.alive == 1 end)
  return queued.id
end

test("a background response that is deleted while it runs ends, and stays deleted", function(t)
  apiapp.run(t, function(app)
    local mine = by "mine"
    local id = start(t, app, mine)
    t.eq((app:ask(PATH .. "/" .. id, nil, { method = "DELETE" })), 404, "of another key")
    local status, gone = app:ask(PATH .. "/" .. id, nil, { method = "DELETE", headers = mine })
    t.eq({ status, gone.deleted, app.entry.batch.alive }, { 200, true, 0 })
    apiapp.wait_for(t, "nothing is left", function() return next(app.live) == nil end)
    t.eq((app:ask(PATH .. "/" .. id, nil, { method = "GET", headers = mine })), 404)
    t.eq(app.responses.disk:read("mine", id), nil, "its file")
  end, { responses = on_disk() })
end)

test("numbers of any size are kept as they were sent", function(t)
  apiapp.run(t, function(app)
    local long = "123456789012345678901234567890"
    local body = '{"max_output_tokens":1,"input":[{"role":"user","content":"Hi","n":[1.5,' .. long
      .. ',null,{"m":-' .. long .. "}]}]}"
    local status, made = app:ask(PATH, body)
    t.eq(status, 200)
    local path = PATH .. "/" .. made.id .. "/input_items"
    local _, page = app:ask(path, nil, { method = "GET" })
    t.eq(page.data[1].content[1].text, "Hi")
    local answer = assert(http.request { host = "127.0.0.1", port = app.port, target = path })
    t.ok(answer.body:find("1.5, ?" .. long .. ", ?null") and answer.body:find('": ?%-' .. long),
      answer.body)
  end)
end)

test("a bug where an answer begins is an error in the words of the API", function(t)
  apiapp.run(t, function(app)
    local handle = handler(app, { read = function() return { id = "x" } end,
      face = function() error "no face" end })
    app:route("POST", "/faceless", function(request, response) return handle(request, response) end)
    local status, answer = app:ask("/faceless", {})
    t.eq({ status, answer.error.type }, { 500, "server_error" })
    t.eq(#app.notes, 1, "in the log")
  end, { noisy = true })
end)

test("a summary outlives the process with a folder; without one it is missed", function(t)
  local responses, input = on_disk(), nil
  local function ask(app, given)
    return app:ask(PATH, { input = given or input, max_output_tokens = 1 })
  end
  apiapp.run(t, function(app)
    app:says "All is well."
    input = select(2, app:ask(PATH .. "/compact", { input = "Hello!" })).output
  end, { responses = responses })
  uv.run()
  apiapp.run(t, function(app) t.eq((ask(app)), 200) end, { responses = responses })
  uv.run()
  apiapp.run(t, function(app)
    local status, answer = ask(app)
    t.eq({ status, answer.error.param }, { 400, "input[1].encrypted_content" })
    t.eq((ask(app, { input[1], { type = "compaction", encrypted_content = "of others" } })), 200)
  end)
  uv.run()
  local path = responses.folder .. "/server/secret"
  t.eq({ uv.fs_stat(path).size, uv.fs_stat(path).mode & 511 }, { 32, 384 })
  local file <close> = assert(io.open(path, "wb"))
  assert(file:write "short"):close()
  apiapp.run(t, function(app)
    t.match(app.notes[1], "server/secret is not a secret: it has 5 bytes, not 32")
    t.eq((ask(app)), 400)
  end, { responses = responses, noisy = true })
end)

test("a summary that is cut or empty is an error", function(t)
  apiapp.run(t, function(app)
    local function ask(more, said)
      app:says(said)
      local body = { input = "Hello!" }
      for key, value in pairs(more) do body[key] = value end
      local status, answer = app:ask(PATH .. "/compact", body)
      local err = answer.error or {}
      return { status, err.param ~= json.null and err.param or err.code }
    end
    t.eq(ask({ max_output_tokens = 2 }, "One, two, three."), { 400, "max_output_tokens" })
    t.eq(ask({}, " \n"), { 500, "no_summary" })
    t.eq(ask({}, "<think>\nhm\n</think>\n\n"), { 500, "no_summary" })
    t.eq(ask({}, ("word "):rep(4000)), { 400, "input" })
    -- what was asked of answers is not asked of it
    app:says "One, two."
    local status = app:ask(PATH .. "/compact", { input = "Hello!", stop = { "," },
      text = { format = { type = "json_object" } } })
    t.eq(status, 200)
  end, { context = 384 })
end)

test("a conversation that fills the context is compacted without its oldest turns", function(t)
  apiapp.run(t, function(app)
    local input, most = json.array(), app.entry.context
    local function tokens()
      return select(2, app:ask(PATH .. "/input_tokens", { input = input })).input_tokens
    end
    repeat
      input[#input + 1] = { role = "user", content = ("word "):rep(40) }
      input[#input + 1] = { role = "assistant", content = "Yes." }
    until tokens() > most
    app:says "Many words."
    local status, small = app:ask(PATH .. "/compact", { input = input })
    t.eq({ status, #small.output }, { 200, #input // 2 + 1 })
    t.ok(small.usage.input_tokens < most - most // 9, small.usage.input_tokens)
  end, { context = 1024 })
end)

test("messages that a conversation refers to are compacted as if they were in it", function(t)
  apiapp.run(t, function(app)
    app:says "Done."
    local _, first = app:ask(PATH, { input = "My name is Chris." })
    local _, page = app:ask(PATH .. "/" .. first.id .. "/input_items", nil, { method = "GET" })
    local item = page.data[1]
    for _, reference in ipairs { { type = "item_reference", id = item.id },
      { type = "item_reference", id = item.id, role = "user" }, { id = item.id } } do
      local status, small = app:ask(PATH .. "/compact", { input = { reference,
        { type = "item_reference", id = first.output[1].id }, { role = "user", content = "Hi" } } })
      t.eq({ status, #small.output }, { 200, 3 })
      t.eq({ small.output[1].id, small.output[1].content[1].text, small.output[2].content[1].text },
        { item.id, "My name is Chris.", "Hi" })
    end
  end)
end)

test("a conversation does not go on from a response that is still made", function(t)
  apiapp.run(t, function(app)
    local id = start(t, app)
    local body = { input = "And?", previous_response_id = id, max_output_tokens = 1 }
    local status, answer = app:ask(PATH, body)
    t.eq({ status, answer.error.param }, { 400, "previous_response_id" })
    t.match(answer.error.message, "still in progress")
    app:ask(PATH .. "/" .. id .. "/cancel", "")
    local _, cancelled = app:ask(PATH .. "/" .. id, nil, { method = "GET" })
    status, answer = app:ask(PATH, body)
    t.eq({ cancelled.status, status }, { "cancelled", 200 })
    t.ok(answer.usage.input_tokens > cancelled.usage.input_tokens + 4, "with what it said")
  end)
end)
