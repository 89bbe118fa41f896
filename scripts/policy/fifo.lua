-- fifo: the policy that ships. Rows that write come first, each gets its token; then prompts are read, in the order in which
-- they came, as far as the step has room, and beside rows that write only so much that the step takes not much longer than
-- without (policy.STRETCH): so no long prompt stalls a stream.
return {
  name = "fifo",
  version = 1,

  schedule = function(step)
    step:write()
    for _, row in ipairs(step:prompts()) do
      if step:room() == 0 then break end
      step:read(row)
    end
  end,
}
