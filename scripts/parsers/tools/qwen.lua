-- qwen: the forms of hermes, and [Calling tool: NAME({…})].
local args = require "parsers.args"
local hermes = require "parsers.tools.hermes"
local tagged = require "parsers.tagged"

--- NAME({…})] after the opening mark.
local function bracket(s)
  s:space()
  local name = s:name_before "("
  if not name then return false end
  s:space()
  if not s:ahead "{" or not args.streamed(s, name) then return false end
  s:space()
  if not s:take ")" then return false end
  s:space()
  return s:take "]"
end

return {
  name = "qwen",
  aliases = { "qwen3" },
  bracket = bracket,
  marks = {
    ["<tool_call>"] = hermes.marks["<tool_call>"],
    ["</tool_call>"] = tagged.close,
    ["<function="] = hermes.marks["<function="],
    ["[Calling tool:"] = bracket,
  },
  inner = hermes.inner,
  opening = hermes.opening,
  grammar = hermes.grammar,
  selftest = {
    { text = 'Wait. [Calling tool: tide({"port": "Brest"})]', content = "Wait.",
      calls = { { "tide", '{"port": "Brest"}' } } },
    { text = '[Calling tool: a({})]\n[Calling tool: b({"x": [1, 2]})]',
      calls = { { "a", "{}" }, { "b", '{"x": [1, 2]}' } } },
    { text = '<tool_call>\n{"name": "a", "arguments": {}}\n</tool_call>\n'
        .. '<function=b><parameter=n>2</parameter></function>',
      calls = { { "a", "{}" }, { "b", '{"n": 2}' } } },
    { text = "[Calling tool: nobody]", content = "[Calling tool: nobody]" },
    { text = 'One moment. [Calling tool: tide({"port": "Br', content = "One moment.",
      unfinished = '[Calling tool: tide({"port": "Br' },
  },
}
