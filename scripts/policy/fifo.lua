-- fifo: the policy that ships. Rows that write come first, each gets its token; then prompts are read, in the order in which
-- they came, as far as the step has room, and beside rows that write only so much that the step takes at most about twice
-- as long as without: so no long prompt stalls a stream.
local policy = require "policy"

return function(step)
  local reading, writing = {}, 0
  for _, row in ipairs(step:running()) do
    if row.state == "writing" then
      writing = writing + step:give(row)
    else
      reading[#reading + 1] = row
    end
  end
  local budget = writing > 0 and policy.read_budget(step, 2) or step.left
  for _, rows in ipairs { reading, step:waiting() } do
    for _, row in ipairs(rows) do
      budget = budget - step:give(row, math.min(row.left, budget, step.left))
      if budget <= 0 then return end
    end
  end
end
