-- flight: the steps that were submitted to the engine thread and are not done.
--
-- The next step is decided while these run, so the policy has to see the sequences as they will be
-- after them: granted tokens count as computed. A waiting sequence that was granted some will run
-- only if a slot is free. The core passes over the others, which still wait, and a policy that took
-- them for running would never make room for them.
local flight = {}

local Flight = {}
Flight.__index = Flight

--- slots: the sequences that may run at once.
function flight.new(slots)
  return setmetatable({ slots = slots, submitted = 0 }, Flight)
end

--- A step with these grants was submitted. Returns its number.
function Flight:add(grants)
  self.submitted = self.submitted + 1
  self[#self + 1] = { number = self.submitted, grants = grants }
  return self.submitted
end

--- Forgets the steps up to this number, which are done.
function Flight:forget(completed)
  while #self > 0 and self[1].number <= completed do table.remove(self, 1) end
end

--- The sequences by id, and how many slots are free.
local function index(self, sequences)
  local infos, free = {}, self.slots
  for i = 1, #sequences do
    local info = sequences[i]
    infos[info.id] = info
    if info.state ~= "waiting" then free = free - 1 end
  end
  return infos, free
end

local function advance(info, tokens)
  info.left = info.left - tokens
  info.state = info.left > 0 and "prefill" or "decode"
  if info.left <= 0 then info.left = 1 end
end

--- Changes sequences as the core lists them to what they will be.
function Flight:expect(sequences)
  if #self == 0 then return end
  local infos, free = index(self, sequences)
  for _, step in ipairs(self) do
    for _, g in ipairs(step.grants) do
      local info = infos[g[1]]
      local state = info and info.state
      local enters = state == "waiting" and free > 0
      if enters then free = free - 1 end
      if enters or state == "prefill" then advance(info, g[2]) end
    end
  end
end

return flight
