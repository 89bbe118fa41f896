-- fair: API keys share the machine by weight. The tokens that a key has used count against it, and
-- half of them are forgotten every half_life_s. So keys that used little go first, and a key that
-- floods the queue waits for itself. Being away earns nothing: a key that comes back starts level
-- with the one that has used least among the active keys.
--
-- Running sequences are shared as well. Waiting sequences of the key that runs the fewest come
-- first, and while a key has none running and no slot is free, the youngest sequence of the key
-- with the most is preempted: it continues when there is room again.
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

--- Running sequences by key, in proportion to its weight, lists of them, and the keys in order of
--- appearance: pairs() would decide differently in every process between equal shares.
local function running_by_key(step, weights)
  local share, lists, keys = {}, {}, {}
  for _, seq in ipairs(step:running()) do
    local key = key_of(seq)
    if not lists[key] then
      lists[key] = {}
      table.insert(keys, key)
    end
    table.insert(lists[key], seq)
    share[key] = (share[key] or 0) + 1 / (weights[key] or weights.default)
  end
  return share, lists, keys
end

--- Preempts the youngest sequence of the key with the largest share, if it runs several.
local function make_room(step, share, lists, keys, weights)
  local largest
  for _, key in ipairs(keys) do
    if #lists[key] > 1 and (not largest or share[key] > share[largest]) then largest = key end
  end
  if not largest then return end
  step:preempt(table.remove(lists[largest]))
  share[largest] = share[largest] - 1 / (weights[largest] or weights.default)
end

--- Makes room for one sequence of each key that waits and has none running.
local function let_in(step, share, lists, keys, weights)
  local seen, needed = {}, 0
  for _, seq in ipairs(step:waiting()) do
    local key = key_of(seq)
    if not lists[key] and not seen[key] then
      seen[key], needed = true, needed + 1
      if needed > step.slots then make_room(step, share, lists, keys, weights) end
    end
  end
end

-- Above any number of tokens: a waiting sequence of a key that runs fewer comes first.
local SLOT = 1e12

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
    local share, lists, keys = running_by_key(step, weights)
    let_in(step, share, lists, keys, weights)
    step:order(function(seq)
      local key = key_of(seq)
      local running = seq.state == "waiting" and share[key] or 0
      return running * SLOT + (state.used[key] or 0)
    end)
    for seq, n in step:fill() do
      local key = key_of(seq)
      state.used[key] = (state.used[key] or 0) + n / (weights[key] or weights.default)
    end
  end,

  selftest = {
    ["a key without running sequences gets a slot of the one with the most"] = function(try)
      local sequences = {}
      for i = 1, 4 do sequences[i] = { state = "decode", left = 1, tag = { key = "rude" } } end
      for i = 5, 8 do sequences[i] = { state = "waiting", left = 4, tag = { key = "rude" } } end
      sequences[9] = { state = "waiting", left = 4, tag = { key = "late" } }
      local step = try.step(sequences, { tokens = 64, slots = 4 })
      try.schedule(step)
      assert(step.preempted[4] and not step.preempted[3], "the youngest is preempted")
      assert((step.given[9] or 0) > 0, "the late key gets its slot")
      step = try.step({ sequences[1], sequences[2], sequences[9] }, { tokens = 64, slots = 4 })
      try.schedule(step)
      assert(not next(step.preempted), "nothing is preempted while slots are free")
    end,

    ["over many steps, keys get tokens by their weights"] = function(try)
      try.self.config.weights = { default = 1, gold = 4 }
      local got = { gold = 0, tin = 0 }
      for _ = 1, 50 do
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
