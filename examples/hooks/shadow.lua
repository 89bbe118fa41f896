-- shadow: some finished requests are also sent to another server, to compare its answers.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Settings: hooks = { { "shadow", url = "http://…", percent = 5 } }.
-- Hook: done may wait, since the client has its answer by then. The other answer goes to the log.
local perigee = require "perigee"

return {
  version = 1,
  config = { url = "http://127.0.0.1:8081/v1/chat/completions", percent = 5,
    timeout_ms = 60000 },

  done = function(req, usage, self)
    local config = self.config
    if not req.chat or perigee.hash(req.id) % 100 >= config.percent then return end
    local started = perigee.now()
    local body = { messages = req.chat.messages, max_tokens = usage.completion_tokens + 64 }
    local answer, why = perigee.http.request { url = config.url, method = "POST",
      timeout_ms = config.timeout_ms, headers = { ["content-type"] = "application/json" },
      body = perigee.json.encode(body) }
    perigee.log(answer and "answered" or "failed", { id = req.id, why = why and tostring(why),
      status = answer and answer.status, seconds = perigee.now() - started,
      body = answer and answer.body:sub(1, 4000) })
  end,

  selftest = function(try)
    local asked
    function try.http(options)
      asked = options
      return { status = 200, headers = {}, body = "{}" }
    end
    try.self.config.percent = 100
    local chat = { messages = { { role = "user", content = "Hi" } } }
    try.done(try.req { chat = chat }, { completion_tokens = 3 })
    assert(asked.body:find('"Hi"', 1, true) and try.said[1] == "shadow: answered")
  end,
}
