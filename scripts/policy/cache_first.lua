-- cache_first: of the waiting requests, the one with most of its prompt in the prefix cache goes
-- first, before that prefix is evicted. Good for agents and for repeated questions about long
-- documents. Requests that have waited for patience_s come before all others, oldest first, so none
-- waits forever.
return {
  name = "cache_first",
  version = 1,
  config = { patience_s = 10 },

  schedule = function(step, self)
    step:order(function(seq)
      if seq.age > self.config.patience_s then return -math.huge end
      return -seq.cached
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
