-- qwen3_xml: <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>. The
-- wrapper may be missing, or hold a call in JSON. A value of undeclared type is a string.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local f = tagged.new { unknown = "string" }
local forms = { ["<function="] = tagged.form(f), ["{"] = args.object }
local tools = { { type = "function",
  ["function"] = { name = "tide", parameters = { properties = { port = { type = "string" },
  days = { type = "integer" }, metric = { type = "boolean" }, opts = { type = "object" } } } } } }

return {
  name = "qwen3_xml",
  aliases = { "qwen3_coder", "qwen3.5" },
  marks = {
    ["<tool_call>"] = function(s) return tagged.wrapped(s, f, forms) end,
    ["</tool_call>"] = tagged.close,
    ["<function="] = function(s) return tagged.call(s, f) end,
  },
  inner = f.all,
  opening = { "<tool_call>\n<function=", ">\n" },
  grammar = function(s) return tagged.grammar(s, f, { mark = "<tool_call>", line = "\n" }) end,
  selftest = {
    { text = "Hm.\n<tool_call>\n<function=tide>\n<parameter=port>\nBrest\n</parameter>\n"
        .. "<parameter=days>\n3\n</parameter>\n"
        .. "<parameter=metric>\nTrue\n</parameter>\n</function>\n</tool_call>", tools = tools,
      content = "Hm.",
      calls = { { "tide", '{"port": "Brest", "days": 3, "metric": true}' } } },
    { text = "<function=tide><parameter=port>42</parameter><parameter=opts>{'a': None}"
        .. "</parameter></function>", tools = tools,
      calls = { { "tide", '{"port": "42", "opts": {"a": null}}' } } },
    { text = "<tool_call><function=tide><parameter=days>three</parameter></tool_call>",
      tools = tools, calls = { { "tide", '{"days": "three"}' } } },
    { text = '<function=f><parameter=x>a < b & "c"\n\n</parameter></function>',
      calls = { { "f", '{"x": "a < b & \\"c\\"\\n"}' } } },
    { text = "<tool_call><function=f><parameter=x>1</function></tool_call>",
      calls = { { "f", '{"x": "1"}' } } },
    { text = "<tool_call><function=f></function></tool_call>", calls = { { "f", "{}" } } },
    { text = "I thought of <function=foo> and left it.",
      content = "I thought of <function=foo> and left it." },
    { text = "Ok <tool_call><function=f><parameter=x>ha", content = "Ok",
      unfinished = "<tool_call><function=f><parameter=x>ha" },
  },
}
