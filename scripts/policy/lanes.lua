-- lanes: priority classes. Every lane has a share of the prompt tokens of a step; what a lane does
-- not use goes to the others, the most urgent one first. So an urgent request overtakes a thousand
-- patient ones, and these still move.
--
-- A request names its lane in tag.lane (set by an `admit` script), in the header x-lane, or in
-- `priority` of its body: the name of a lane, or a number (below 0 is more urgent, above 0 less).
-- Others go to the middle lane. A lane refuses requests beyond its `depth`. A request that has
-- waited for patience_s comes first whatever its lane, so none waits forever.
local perigee = require "perigee"

local function lane_of(req, lanes)
  local asked = req.tag.lane or req.headers["x-lane"] or req.body.priority
  for _, lane in ipairs(lanes) do
    if lane.name == asked then return lane end
  end
  local middle, n = (#lanes + 1) // 2, math.tointeger(asked) or 0
  return lanes[n < 0 and 1 or n > 0 and #lanes or middle]
end

return {
  name = "lanes",
  version = 1,
  config = {
    lanes = {
      { name = "urgent", share = 0.6, depth = 64 },
      { name = "normal", share = 0.3, depth = 256 },
      { name = "batch", share = 0.1, depth = 8192 },
    },
    patience_s = 60,
  },

  admit = function(req, queue, self)
    local lane = lane_of(req, self.config.lanes)
    if queue:count { lane = lane.name } >= lane.depth then
      local why = ("the %s lane is full: %d requests waiting"):format(lane.name, lane.depth)
      return perigee.reject(429, why, { retry_after = queue:eta() })
    end
    return { lane = lane.name }
  end,

  schedule = function(step, self)
    local config = self.config
    step:decode() -- every stream continues
    local function patient(seq) return seq.age > config.patience_s end
    for _, seq in ipairs(step:prompts(patient)) do step:prefill(seq) end
    local total = step:room()
    for _, lane in ipairs(config.lanes) do
      local quota = math.ceil(total * lane.share)
      for _, seq in ipairs(step:prompts { lane = lane.name }) do
        if quota <= 0 then break end
        quota = quota - step:prefill(seq, quota)
      end
    end
    local rank = {}
    for i, lane in ipairs(config.lanes) do rank[lane.name] = i end
    step:order(function(seq) return rank[seq.tag.lane] or #config.lanes end)
    step:fill() -- the rest
  end,

  selftest = {
    ["shares of a step, and the rest goes to the most urgent lane"] = function(try)
      local step = try.step({ { state = "waiting", left = 900, tag = { lane = "urgent" } },
        { state = "waiting", left = 900, tag = { lane = "batch" } } }, { tokens = 100 })
      try.schedule(step)
      assert(step.given[1] == 60 and step.given[2] == 10, "60 and 10 expected")
    end,
    ["a request that has waited long comes first"] = function(try)
      local step = try.step({ { state = "waiting", left = 900, tag = { lane = "urgent" } },
        { state = "waiting", left = 900, age = 100, tag = { lane = "batch" } } }, { tokens = 100 })
      try.schedule(step)
      assert(step.given[2] == 100, "all of the step expected")
    end,
    ["header, number, and a full lane"] = function(try)
      assert(try.admit(try.req { headers = { ["x-lane"] = "urgent" } },
        try.queue()).lane == "urgent")
      assert(try.admit(try.req { body = { priority = 3 } }, try.queue()).lane == "batch")
      assert(try.admit(try.req {}, try.queue { count = 256 }).status == 429)
    end,
  },
}
