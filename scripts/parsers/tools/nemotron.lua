-- nemotron: Qwen's tags or JSON in <tool_call>, never without the wrapper; or <TOOLCALL> and a JSON
-- array of calls.
local args = require "parsers.args"
local hermes = require "parsers.tools.hermes"
local tagged = require "parsers.tagged"

return {
  name = "nemotron",
  aliases = { "nemotron3" },
  marks = {
    ["<tool_call>"] = hermes.marks["<tool_call>"], ["</tool_call>"] = tagged.close,
    ["<TOOLCALL>"] = args.wrapped, ["</TOOLCALL>"] = tagged.close,
  },
  inner = hermes.inner,
  opening = { { '<TOOLCALL>[{"name": "', '", "arguments":', shows = "<TOOLCALL>" },
    { "<tool_call>\n<function=", ">\n" } },
  grammar = function(s)
    if not s:shows "<TOOLCALL>" then return hermes.tags(s) end
    return { mark = "<TOOLCALL>", section = true, before = { s:text "[" },
      call = s:json_call "arguments", gap = { s:text ", " },
      after = { s:text "]", s:mark "</TOOLCALL>" } }
  end,
  selftest = {
    { text = "<tool_call><function=sum><parameter=a>1</parameter><parameter=b>[2]</parameter>"
        .. "</function></tool_call>",
      calls = { { "sum", '{"a": 1, "b": [2]}' } } },
    { text = '<tool_call><function=calc>{"e": "2*3"}</function></tool_call>',
      calls = { { "calc", '{"e": "2*3"}' } } },
    { text = '<TOOLCALL>[{"name": "sum", "arguments": {"a": 1}}, {"name": "now"}]</TOOLCALL>',
      calls = { { "sum", '{"a": 1}' }, { "now", "{}" } } },
    { text = "<function=sum><parameter=a>1</parameter></function>",
      content = "<function=sum><parameter=a>1</parameter></function>" },
  },
}
