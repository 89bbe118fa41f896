-- step3p5: Qwen's tags.
local hermes = require "parsers.tools.hermes"
local tagged = require "parsers.tagged"

return {
  name = "step3p5",
  aliases = { "step" },
  marks = {
    ["<tool_call>"] = hermes.marks["<tool_call>"],
    ["</tool_call>"] = tagged.close,
    ["<function="] = hermes.marks["<function="],
  },
  inner = hermes.inner,
  opening = { "<tool_call>\n<function=", ">\n" },
  grammar = hermes.tags,
  selftest = {
    { text = "<tool_call>\n<function=tide>\n<parameter=tags>\n['a', 'b']\n</parameter>\n"
        .. "</function>\n</tool_call>\n",
      calls = { { "tide", '{"tags": ["a", "b"]}' } } },
    { text = "No tool today.", content = "No tool today." },
  },
}
