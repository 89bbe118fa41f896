-- mistral: [THINK]…[/THINK].
return require("parsers.think").new {
  name = "mistral",
  open = "[THINK]",
  close = "[/THINK]",
  selftest = {
    { text = "[THINK]weigh[/THINK]Pick B.", reasoning = "weigh", content = "Pick B." },
    { text = "weigh[/THINK]Pick B.", reasoning = "weigh", content = "Pick B." },
    { text = "<think>x</think>B", content = "<think>x</think>B" },
  },
}
