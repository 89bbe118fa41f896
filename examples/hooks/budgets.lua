-- budgets: every API key has a daily budget of tokens; then it is told when to come back.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Setting: hooks = { { "budgets", daily = { alice = 5000000 } } }.
-- Hooks: request refuses, done counts. The counts survive reloads and are reset every day.
local perigee = require "perigee"

local DAY = 86400

return {
  version = 1,
  config = { default = 1000000, daily = {} },
  state = function(old) return old or { day = 0, used = {} } end,

  request = function(req, self)
    local state, day = self.state, perigee.now() // DAY
    if state.day ~= day then state.day, state.used = day, {} end
    local key = req.key or "anonymous"
    local limit, used = self.config.daily[key] or self.config.default, state.used[key] or 0
    if used >= limit then
      local why = ("%s has used %d of %d tokens today"):format(key, used, limit)
      local tomorrow = math.ceil((day + 1) * DAY - perigee.now())
      return perigee.reject(429, why, { code = "budget", retry_after = tomorrow })
    end
  end,

  done = function(req, usage, self)
    local key, used = req.key or "anonymous", self.state.used
    used[key] = (used[key] or 0) + usage.prompt_tokens + usage.completion_tokens
  end,

  selftest = function(try)
    local req = try.req { key = "alice" }
    assert(try.request(req) == nil)
    try.done(req, { prompt_tokens = 900000, completion_tokens = 100000 })
    assert(try.request(req).status == 429)
    assert(try.request(try.req { key = "bob" }) == nil)
  end,
}
