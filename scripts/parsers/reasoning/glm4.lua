-- glm4: <think>…</think>; the box marks around the answer are removed.
return require("parsers.think").new {
  name = "glm4",
  aliases = { "glm47" },
  drop = { "<|begin_of_box|>", "<|end_of_box|>" },
  selftest = {
    { text = "<think>weigh</think><|begin_of_box|>42<|end_of_box|>", reasoning = "weigh",
      content = "42" },
    { text = "a <|begin_of_box|>b<|end_of_box|> c", content = "a b c" },
  },
}
