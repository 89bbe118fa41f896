-- More of what the Messages API reads: blocks that carry text of their own, and an answer that was
-- begun.
local apiapp = require "apiapp"
local perigee = require "perigee"
local test = require("harness").test
local json = perigee.json

if ... then return end -- once is enough: under forced collection test_api does

local PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"

local function user(words) return { role = "user", content = words } end

--- The tokens of a conversation.
local function count(t, app, messages)
  local status, answer = app:ask(COUNT, { messages = messages })
  t.eq(status, 200, json.encode(answer):sub(1, 200))
  return answer.input_tokens
end

local function document(words)
  return { type = "document", source = { type = "text", media_type = "text/plain", data = words } }
end

test("a document is its text, also a long one", function(t)
  apiapp.run(t, function(app)
    for _, n in ipairs { 1, 10000 } do
      local words = ('A "line"\n\u{e9}'):rep(n)
      t.eq(count(t, app, { user { document(words) } }), count(t, app, { user(words) }))
      local call = { role = "assistant", content = { { type = "tool_use", id = "t", name = "f",
        input = json.object() } } }
      local function result(said)
        return user { { type = "tool_result", tool_use_id = "t", content = said } }
      end
      t.eq(count(t, app, { user "x", call, result { document(words) } }),
        count(t, app, { user "x", call, result(words) }))
    end
    app.config.limits.text = 100000
    local status, answer = app:ask(PATH, { max_tokens = 1, messages = { user { document(
      ("x"):rep(70000)), document(("y"):rep(70000)) } } })
    t.eq({ status, answer.error.type }, { 413, "request_too_large" })
    t.match(answer.error.message, "messages%[0%].content%[1%].source.data")
    for _, wrong in ipairs { "12345678901234567890", "5", "null", "{}" } do
      local body = '{"max_tokens":1,"messages":[{"role":"user","content":[%s]}]}'
      for _, block in ipairs { '{"type":"document","source":{"type":"text","data":%s}}',
        '{"type":"image","source":{"type":"base64","data":%s}}' } do
        status, answer = app:ask(PATH, body:format(block:format(wrong)))
        t.eq(status, 400)
        t.match(answer.error.message, "content%[0%].source.data must be a string")
      end
    end
  end)
end)

test("an answer of a form cannot have begun", function(t)
  apiapp.run(t, function(app)
    local form = { type = "json_schema", schema = { type = "object", properties = json.object() } }
    local begun = { user "JSON?", { role = "assistant", content = "{" } }
    for _, more in ipairs { { output_config = { format = form } }, { output_format = form } } do
      local body = { max_tokens = 20, messages = begun }
      for key, value in pairs(more) do body[key] = value end
      local status, answer = app:ask(PATH, body)
      t.eq({ status, answer.error.type }, { 400, "invalid_request_error" })
      t.match(answer.error.message, "^messages must not end with .*" .. next(more))
      body.messages = { user "JSON?" }
      t.eq((app:ask(PATH, body)), 200)
    end
    t.eq((app:ask(PATH, { max_tokens = 1, messages = begun,
      output_config = { effort = "low" } })), 200)
  end)
end)

test("a search result is its title, its source and its texts", function(t)
  apiapp.run(t, function(app)
    local function found(more)
      local block = { type = "search_result", title = "Moon", source = "https://moon.example",
        content = { { type = "text", text = "It shines." }, { type = "text", text = "At night." } },
        citations = { enabled = true } }
      for key, value in pairs(more or {}) do block[key] = value end
      return block
    end
    local words = "Moon\nhttps://moon.example\nIt shines.\nAt night."
    t.eq(count(t, app, { user { found() } }), count(t, app, { user(words) }))
    local call = { role = "assistant", content = { { type = "tool_use", id = "t", name = "f",
      input = json.object() } } }
    local function result(said)
      return user { { type = "tool_result", tool_use_id = "t", content = said } }
    end
    t.eq(count(t, app, { user "x", call, result { found() } }),
      count(t, app, { user "x", call, result(words) }))
    for _, case in ipairs { { { title = 5 }, "title" }, { { source = json.null }, "source" },
      { { content = 5 }, "content" },
      { { content = { { type = "image" } } }, "content[0].type" } } do
      local status, answer = app:ask(COUNT, { messages = { user { found(case[1]) } } })
      t.eq(status, 400)
      t.ok(answer.error.message:find("messages[0].content[0]." .. case[2], 1, true),
        answer.error.message)
    end
  end)
end)

test("answers and errors have their id where the vendor's clients look for it", function(t)
  apiapp.run(t, function(app)
    local body = { max_tokens = 1, messages = { user "Hello!" } }
    local function id_of(path, sent)
      local _, _, headers = app:ask(path, sent)
      return headers["request-id"], headers["x-request-id"]
    end
    for _, path in ipairs { PATH, COUNT } do
      for _, sent in ipairs { body, {} } do -- the second is wrong
        local id, known = id_of(path, sent)
        t.ok(id ~= nil and id == known, path)
      end
    end
    local _, headers = app:events(PATH, body)
    t.eq(headers["request-id"], headers["x-request-id"])
    t.eq(id_of("/v1/responses", { input = "x", max_output_tokens = 1 }), nil)
    t.eq(id_of("/v1/responses", {}), nil)
  end)
end)
