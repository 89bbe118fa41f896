-- queue_limits: limits the requests of each key, running and waiting, and refuses when the queue is
-- too long to wait.
-- Copy it to SITE/hooks and serve with --site SITE.
-- Settings: hooks = { { "queue_limits", each = 8, wait_s = 30 } }.
-- Hook: admit sees the queue before the request joins it; the table it returns becomes part of the
-- request's tag, which policies see.
local perigee = require "perigee"

return {
  version = 1,
  config = { each = 16, wait_s = 60 },

  admit = function(req, queue, self)
    local key = req.key or "anonymous"
    if queue:count { tenant = key } >= self.config.each then
      local why = ("%s already has %d requests here"):format(key, self.config.each)
      return perigee.reject(429, why, { retry_after = 5 })
    end
    local wait = queue:eta()
    if wait > self.config.wait_s then
      local why = ("the queue is about %d s long"):format(wait)
      return perigee.reject(503, why, { retry_after = math.ceil(wait / 2) })
    end
    return { tenant = key }
  end,

  selftest = function(try)
    assert(try.admit(try.req { key = "alice" }, try.queue()).tenant == "alice")
    assert(try.admit(try.req { key = "alice" }, try.queue { count = 16 }).status == 429)
    assert(try.admit(try.req { key = "alice" }, try.queue { eta = 90 }).status == 503)
  end,
}
