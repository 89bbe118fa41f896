-- fifo: the policy that ships. Sequences in decode come first, each gets its token; then prompts
-- are computed in order of arrival, as many tokens as the step has room for. Next to sequences in
-- decode that is only so much that the step does not take much longer (STRETCH and BRIEF in
-- engine/step.lua), so a long prompt never stalls a stream.
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
