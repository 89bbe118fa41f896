-- fifo: the policy that ships. Sequences that write come first, each gets its token; then prompts are read, in the order in which
-- they came, as far as the step has room, and beside sequences that write only so much that the step takes not much longer than
-- without (policy.STRETCH): so no long prompt stalls a stream.
return {
  name = "fifo",
  version = 1,

  schedule = function(step)
    step:decode()
    for _, seq in ipairs(step:prompts()) do
      if step:room() == 0 then break end
      step:prefill(seq)
    end
  end,
}
