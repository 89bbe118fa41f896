-- fair: API keys share the machine by weight. The tokens that a key has used count against it, and
-- half of them are forgotten every half_life_s. So keys that used little go first, and a key that
-- floods the queue waits for itself. Being away earns nothing: a key that comes back starts level
-- with the one that has used least among the active keys.
--
-- The key is tag.key, the name of the API key. Its weight is in the config, or weights.default.

local function key_of(seq) return seq.tag.key or "" end

local function forget(state, now, half_life)
  local keep = 0.5 ^ (math.max(0, now - (state.at or now)) / half_life)
  for key, used in pairs(state.used) do
    state.used[key] = used * keep > 1 and used * keep or nil
  end
  state.at = now
end

return {
  name = "fair",
  version = 1,
  config = { weights = { default = 1 }, half_life_s = 300 },
  state = function(old) return old or { used = {} } end,

  admit = function(req, queue, self)
    local used, mine, least = self.state.used, req.key or "", nil
    if queue:count { key = req.key } > 0 then return end
    for key, n in pairs(used) do
      if key ~= mine and queue:count { key = key } > 0 then least = math.min(least or n, n) end
    end
    used[mine] = math.max(used[mine] or 0, least or 0)
  end,

  schedule = function(step, self)
    local state, weights = self.state, self.config.weights
    forget(state, step.now, self.config.half_life_s)
    step:order(function(seq) return state.used[key_of(seq)] or 0 end)
    for seq, n in step:fill() do
      local key = key_of(seq)
      state.used[key] = (state.used[key] or 0) + n / (weights[key] or weights.default)
    end
  end,

  selftest = {
    ["over many steps, keys get tokens by their weights"] = function(try)
      try.self.config.weights = { default = 1, gold = 4 }
      local got = { gold = 0, tin = 0 }
      for _ = 1, 200 do
        local sequences = {}
        for i = 1, 8 do
          sequences[i] = { state = "waiting", left = 16,
            tag = { key = i % 2 == 0 and "gold" or "tin" } }
        end
        local step = try.step(sequences, { tokens = 16 })
        try.schedule(step)
        for i, seq in ipairs(sequences) do
          got[seq.tag.key] = got[seq.tag.key] + (step.given[i] or 0)
        end
      end
      local ratio = got.gold / got.tin
      assert(ratio > 3.5 and ratio < 4.5, "got " .. ratio)
    end,
  },
}
