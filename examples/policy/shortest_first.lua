-- shortest_first: of the waiting requests, the one with the fewest prompt tokens to compute goes
-- first, so a short question never waits for a long document; but none waits longer than patience_s
-- for that. Copy it to SITE/policy and serve with --site SITE --policy shortest_first. A policy is
-- asked once per step: step:order sets the importance, step:fill gives the tokens by it.
return {
  version = 1,
  config = { patience_s = 20 },

  schedule = function(step, self)
    step:order(function(seq)
      if seq.age > self.config.patience_s then return -seq.age end
      return seq.left - seq.cached
    end)
    step:fill()
  end,

  selftest = function(try)
    local step = try.step({ { left = 900 }, { left = 30 }, { left = 80, age = 60 } },
      { tokens = 100 })
    try.schedule(step)
    assert(step.given[3] == 80 and step.given[2] == 20 and step.given[1] == nil)
  end,
}
