-- none: everything is content.
return {
  name = "none",
  marks = {},
  selftest = { { text = "<tool_call>{}</tool_call>\n", content = "<tool_call>{}</tool_call>\n" },
    { text = " \n" } },
}
