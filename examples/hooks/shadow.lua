-- shadow: some finished requests are sent to another server, too, to see how it would have answered them.
-- Copy it to SITE/hooks and serve with --site SITE. Settings: hooks = { { "shadow", url = "http://…", percent = 5 } }.
-- Hook: done may wait, the client has its answer by then. What the other says is logged, for `jq` and friends.
local perigee = require "perigee"

return {
  version = 1,
  config = { url = "http://127.0.0.1:8081/v1/chat/completions", percent = 5, timeout_ms = 60000 },

  done = function(req, usage, self)
    local config = self.config
    if not req.chat or perigee.hash(req.id) % 100 >= config.percent then return end
    local started = perigee.now()
    local answer, why = perigee.http.request { url = config.url, method = "POST", timeout_ms = config.timeout_ms,
      headers = { ["content-type"] = "application/json" },
      body = perigee.json.encode { messages = req.chat.messages, max_tokens = usage.completion_tokens + 64 } }
    perigee.log(answer and "answered" or "failed", { id = req.id, status = answer and answer.status, why = why and tostring(why),
      seconds = perigee.now() - started, body = answer and answer.body:sub(1, 4000) })
  end,

  selftest = function(try)
    local asked
    function try.http(options)
      asked = options
      return { status = 200, headers = {}, body = "{}" }
    end
    try.self.config.percent = 100
    try.done(try.req { chat = { messages = { { role = "user", content = "Hi" } } } }, { completion_tokens = 3 })
    assert(asked.body:find('"Hi"', 1, true) and try.said[1] == "shadow: answered")
  end,
}
