-- deepseek_v31: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>. The parser of deepseek
-- reads both layouts; only the text that forces a call differs.
local deepseek = require "parsers.tools.deepseek"

return {
  name = "deepseek_v31",
  marks = deepseek.marks,
  inner = deepseek.inner,
  opening = { "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "<｜tool▁sep｜>" },
  grammar = function(s) return deepseek.section(s, "", "", "") end,
  selftest = {
    { text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": 1}<｜tool▁call▁end｜>"
        .. "<｜tool▁call▁begin｜>b<｜tool▁sep｜>{}"
        .. "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = "<｜tool▁call▁begin｜>a<｜tool▁sep｜><｜tool▁call▁end｜>", calls = { { "a", "{}" } } },
    { text = "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\"",
      unfinished = "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\"" },
  },
}
