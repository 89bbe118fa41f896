-- queue_limits: no key may have more than so many requests running and waiting, and patience is told before it is lost.
-- Copy it to SITE/hooks and serve with --site SITE. Settings: hooks = { { "queue_limits", each = 8, wait_s = 30 } }.
-- Hook: admit sees the queue before the request joins it; what it returns becomes part of the request's tag, which policies see.
local perigee = require "perigee"

return {
  version = 1,
  config = { each = 16, wait_s = 60 },

  admit = function(req, queue, self)
    local key = req.key or "anonymous"
    if queue:count { tenant = key } >= self.config.each then
      return perigee.reject(429, ("%s has %d requests here already"):format(key, self.config.each), { retry_after = 5 })
    end
    local wait = queue:eta()
    if wait > self.config.wait_s then
      return perigee.reject(503, ("about %d s of work are waiting"):format(wait), { retry_after = math.ceil(wait / 2) })
    end
    return { tenant = key }
  end,

  selftest = function(try)
    assert(try.admit(try.req { key = "alice" }, try.queue()).tenant == "alice")
    assert(try.admit(try.req { key = "alice" }, try.queue { count = 16 }).status == 429)
    assert(try.admit(try.req { key = "alice" }, try.queue { eta = 90 }).status == 503)
  end,
}
