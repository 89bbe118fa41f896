-- deepseek_r1: <think>…</think>.
return require("parsers.think").new {
  name = "deepseek_r1",
  selftest = {
    { text = "<think>\nweigh\n</think>\n\nPick B.", reasoning = "weigh", content = "Pick B." },
    { text = "weigh</think>Pick B.", prompt_tail = "<think>\n", reasoning = "weigh",
      content = "Pick B." },
    { text = "Use <think> tags.", content = "Use <think> tags." },
    { text = "<think>still", reasoning = "still" },
    { text = '<think>a <tool_call>{"name": "f"}</tool_call> b</think>C',
      reasoning = "a  b", content = '<tool_call>{"name": "f"}</tool_call>C' },
  },
}
