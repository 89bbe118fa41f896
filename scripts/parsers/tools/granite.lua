-- granite: <|tool_call|> or <tool_call> and a JSON array of calls, or the array alone; only at the
-- start of the answer.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local function calls(s)
  return s.at_start and args.wrapped(s)
end

return {
  name = "granite",
  aliases = { "granite3" },
  marks = { ["<|tool_call|>"] = calls, ["<tool_call>"] = calls, ["</tool_call>"] = tagged.close },
  start = { ["["] = function(s) return args.array(s, { bare = true }) end },
  opening = { '<|tool_call|>[{"name": "', '", "arguments":' },
  grammar = function(s)
    return { mark = "<|tool_call|>", section = true, before = { s:text "[" },
      call = s:json_call "arguments", gap = { s:text ", " }, after = { s:text "]" } }
  end,
  selftest = {
    { text = '<|tool_call|>[{"name": "a", "arguments": {"x": 1}}, {"type": "b", "arguments": {}}]',
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '<tool_call>[{"name": "a", "arguments": {}}]</tool_call>', calls = { { "a", "{}" } } },
    { text = '[{"name": "a", "arguments": "{\\"x\\": 1}"}] ok', content = "ok",
      calls = { { "a", '{"x": 1}' } } },
    { text = '<|tool_call|>[{"name": "a", "arguments": "raw"}]', calls = { { "a", '"raw"' } } },
    { text = 'Sure. <|tool_call|>[{"name": "a", "arguments": {}}]',
      content = 'Sure. <|tool_call|>[{"name": "a", "arguments": {}}]' },
    { text = '<|tool_call|>{"name": "a"}<|tool_call|>[{"name": "b"}]',
      calls = { { "a", "{}" }, { "b", "{}" } } },
    { text = "[1, 2]", content = "[1, 2]" },
  },
}
