-- cache_first: of the waiting requests, the one with most of its prompt in the prefix cache goes
-- first, before that prefix is evicted. Good for agents and for repeated questions about long
-- documents. A session (seq.tag.session) that ran within keep_s goes before those that did not: so
-- the agents at work finish, and beginners do not push their prefixes out of the cache. Requests
-- that have waited for patience_s come before all others, oldest first, so none waits forever.
local KNOWN = 1 << 40 -- more than any prompt has tokens

--- What a session is called here: two keys may use one name.
local function name_of(seq)
  local session = seq.tag.session
  return session and ("%s\0%s"):format(seq.tag.key or "", session)
end

--- Notes who runs, and forgets who has not for keep_s.
local function note(step, self)
  local last = self.state.last
  for _, seq in ipairs(step:running()) do
    local name = name_of(seq)
    if name then last[name] = step.now end
  end
  if step.now - self.state.swept < self.config.keep_s then return end
  self.state.swept = step.now
  for name, at in pairs(last) do
    if step.now - at > self.config.keep_s then last[name] = nil end
  end
end

return {
  name = "cache_first",
  version = 2,
  config = { patience_s = 10, keep_s = 60 },
  state = function(old, from) return from == 2 and old or { last = {}, swept = 0 } end,

  schedule = function(step, self)
    note(step, self)
    step:order(function(seq)
      if seq.age > self.config.patience_s then return -math.huge end
      local at = self.state.last[name_of(seq) or ""]
      local known = at and step.now - at <= self.config.keep_s
      return -seq.cached - (known and KNOWN or 0)
    end)
    step:fill()
  end,

  selftest = {
    ["the longest cached prefix first, but after requests that waited too long"] = function(try)
      local sequences = { { state = "waiting", left = 80, cached = 0 },
        { state = "waiting", left = 20, cached = 60 },
        { state = "waiting", left = 80, cached = 0, age = 20 } }
      local step = try.step(sequences, { tokens = 130 })
      try.schedule(step)
      assert(step.given[3] == 80 and step.given[2] == 20 and step.given[1] == 30)
    end,
  },
}
