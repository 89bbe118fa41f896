-- gpt_oss: the channels of harmony; `analysis` is reasoning.
local harmony = require "parsers.harmony"

return {
  name = "gpt_oss",
  aliases = { "harmony" },
  run = harmony.read,
  opened = harmony.opened,
  closing = "<|end|><|start|>assistant",
  closing_again = "<|end|><|start|>assistant<|channel|>final<|message|>",
  ends = "<|end|>",
  grammar = function(s)
    local any, close = s:upto "<|end|>"
    local after = { s:mark "<|start|>", s:text "assistant" }
    return { after = after, answer = { s:mark "<|channel|>", s:text "final", s:mark "<|message|>" },
      block = { s:mark "<|channel|>", s:text "analysis", s:mark "<|message|>", any, close,
        table.unpack(after) } }
  end,
  inner = harmony.marks,
  channels = true,
  selftest = {
    { text = "<|channel|>analysis<|message|>weigh<|end|><|start|>assistant<|channel|>final"
        .. "<|message|>Pick B.<|return|>",
      reasoning = "weigh", content = "Pick B." },
    { text = "<|channel|>analysis<|message|>a<|end|><|channel|>analysis<|message|>b",
      reasoning = "a\nb" },
    { text = '<|channel|>final <|constrain|>JSON<|message|>{"a": 1}', content = '{"a": 1}' },
    { text = "weigh<|end|><|channel|>final<|message|>B",
      prompt_tail = "<|channel|>analysis<|message|>", reasoning = "weigh", content = "B" },
  },
}
