-- seed_oss:
-- <seed:tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></seed:tool_call>.
local tagged = require "parsers.tagged"

local f = tagged.new { wrapper_end = "</seed:tool_call>" }
local forms = { ["<function="] = tagged.form(f) }
local tools = { { name = "tide",
  parameters = { properties = { port = { type = { "string", "null" } },
  days = { type = "integer" } } } } }

return {
  name = "seed_oss",
  marks = {
    ["<seed:tool_call>"] = function(s) return tagged.wrapped(s, f, forms) end,
    ["</seed:tool_call>"] = tagged.close,
  },
  inner = f.all,
  opening = { "<seed:tool_call>\n<function=", ">\n" },
  grammar = function(s) return tagged.grammar(s, f, { mark = "<seed:tool_call>" }) end,
  selftest = {
    { text = "<seed:tool_call>\n<function=tide>\n<parameter=port>12</parameter>\n"
        .. "<parameter=days>3</parameter>\n</function>\n"
        .. "</seed:tool_call>\n<seed:tool_call><function=log></function></seed:tool_call>",
      tools = tools,
      calls = { { "tide", '{"port": "12", "days": 3}' }, { "log", "{}" } } },
    { text = "<seed:tool_call> is a tag", content = "<seed:tool_call> is a tag" },
    { text = "<seed:tool_call><function=tide><parameter=port>", tools = tools,
      unfinished = "<seed:tool_call><function=tide><parameter=port>" },
  },
}
