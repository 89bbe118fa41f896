-- canary: some users, always the same ones, get another chat template; /metrics compares both.
-- Copy it to SITE/hooks, the new template to SITE/templates/canary.jinja; serve with --site SITE.
-- Hooks: template names the template that renders this conversation; done reports the result.
local perigee = require "perigee"

return {
  version = 1,
  config = { template = "canary", percent = 10 },

  template = function(req, _, self)
    local slot = perigee.hash(self.config.template, req.user or req.key or req.peer) % 100
    req.ctx.arm = slot < self.config.percent and "canary" or "control"
    if req.ctx.arm == "canary" then return perigee.template(self.config.template) end
  end,

  done = function(req, usage)
    if not req.ctx.arm then return end
    perigee.metric("canary_tokens", usage.completion_tokens, { arm = req.ctx.arm })
  end,

  selftest = function(try)
    try.self.config.percent = 100
    local req = try.req { user = "alice" }
    local ok, answer = pcall(try.template, req, {})
    assert(ok and answer.template == "canary" or tostring(answer):find "templates/canary.jinja")
    try.done(req, { completion_tokens = 7 })
    assert(try.counted[1].labels.arm == "canary")
    try.self.config.percent = 0
    assert(try.template(try.req { user = "alice" }, {}) == nil)
  end,
}
