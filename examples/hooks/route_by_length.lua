-- route_by_length: long conversations go to a second model; clients need not know that there are
-- two. Serve with  perigee serve chat=DIR long=DIR --site SITE  and this file in SITE/hooks.
-- Hook: request may choose another model by its name, before the model is looked up.
local function characters(req)
  local n = 0
  for _, message in ipairs(req.chat and req.chat.messages or {}) do
    if type(message.content) == "string" then n = n + #message.content end
  end
  return n + (type(req.prompt) == "string" and #req.prompt or 0)
end

return {
  version = 1,
  config = { from = "chat", to = "long", characters = 16000 },

  request = function(req, self)
    local config = self.config
    if (req.model or config.from) ~= config.from then return end
    if characters(req) > config.characters then req.model = config.to end
  end,

  selftest = function(try)
    local function request(words)
      return try.req { model = "chat",
        chat = { messages = { { role = "user", content = words } } } }
    end
    local short, long = request "Hi", request(("word "):rep(5000))
    try.request(short)
    try.request(long)
    assert(short.model == "chat" and long.model == "long")
  end,
}
