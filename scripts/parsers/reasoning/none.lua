-- none: no reasoning is looked for.
return {
  name = "none",
  marks = {},
  selftest = { { text = "<think>a</think>B", content = "<think>a</think>B" } },
}
