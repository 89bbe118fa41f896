-- mistral: [THINK]…[/THINK].
return require("parsers.think").new {
  name = "mistral",
  open = "[THINK]",
  close = "[/THINK]",
  selftest = {
    { text = "[THINK]weigh[/THINK]Pick B.", reasoning = "weigh", content = "Pick B." },
    { text = "weigh[/THINK]Pick B.", reasoning = "weigh", content = "Pick B." },
    { text = "[THINK]weigh [TOOL_CALLS]f[ARGS]{}", reasoning = "weigh",
      content = "[TOOL_CALLS]f[ARGS]{}" },
    { text = "<think>x</think>B", content = "<think>x</think>B" },
  },
}
