-- cache_first: among requests that wait, the one with most of its prompt in the prefix cache goes first, before something
-- else pushes it out. Good for agents and long documents that are asked about again and again. Who has waited for
-- patience_s comes before that, oldest first, so nobody waits for ever.
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
    ["the longest cached beginning first, but not before who waits too long"] = function(try)
      local sequences = { { state = "waiting", left = 80, cached = 0 }, { state = "waiting", left = 20, cached = 60 },
        { state = "waiting", left = 80, cached = 0, age = 20 } }
      local step = try.step(sequences, { tokens = 130 })
      try.schedule(step)
      assert(step.given[3] == 80 and step.given[2] == 20 and step.given[1] == 30)
    end,
  },
}
