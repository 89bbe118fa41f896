-- poolside_v1: the layout of glm47, but of equal keys the first counts.
local glm47 = require "parsers.tools.glm47"

local options = { first = true }
local tools = { { name = "write",
  parameters = { properties = { path = { type = "string" }, line = { type = "integer" } } } } }

return {
  name = "poolside_v1",
  marks = { ["<tool_call>"] = function(s) return glm47.call(s, options) end },
  inner = glm47.inner,
  opening = glm47.opening,
  grammar = glm47.grammar,
  selftest = {
    { text = "I will.<tool_call>write<arg_key>path</arg_key><arg_value>  a\n</arg_value>"
        .. "<arg_key>line</arg_key><arg_value>7</arg_value></tool_call>", tools = tools,
      content = "I will.", calls = { { "write", '{"path": "  a\\n", "line": 7}' } } },
    { text = "<tool_call>write<arg_key>path</arg_key><arg_value>a</arg_value>"
        .. "<arg_key>path</arg_key><arg_value>b</arg_value></tool_call>",
      tools = tools, calls = { { "write", '{"path": "a"}' } } },
    { text = "<tool_call>rm</tool_call>after", tools = tools, content = "after",
      unknown = "<tool_call>rm</tool_call>" },
  },
}
