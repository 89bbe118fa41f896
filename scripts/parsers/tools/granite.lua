-- granite: <|tool_call|> or <tool_call> and a JSON array of calls, or the array alone; only at the start of the answer.
local args = require "parsers.args"

local MARKS = { "<|tool_call|>", "<tool_call>" }

local function calls(s)
  if s:one_of(MARKS) then s:space() end
  if not args.array(s, { bare = true }) then return false end
  local gap = s:gap()
  if not s:take "</tool_call>" then
    s.content:text(gap)
    s:hold(0)
  end
  return true
end

return {
  name = "granite",
  aliases = { "granite3" },
  marks = {},
  start = { ["<"] = calls, ["["] = calls },
  inner = { "<|tool_call|>", "<tool_call>", "</tool_call>" },
  opening = { '<|tool_call|>[{"name": "', '", "arguments":' },
  selftest = {
    { text = '<|tool_call|>[{"name": "a", "arguments": {"x": 1}}, {"type": "b", "arguments": {}}]',
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '<tool_call>[{"name": "a", "arguments": {}}]</tool_call>', calls = { { "a", "{}" } } },
    { text = '[{"name": "a", "arguments": "{\\"x\\": 1}"}] ok', content = "ok", calls = { { "a", '{"x": 1}' } } },
    { text = '<|tool_call|>[{"name": "a", "arguments": "raw"}]', calls = { { "a", '"raw"' } } },
    { text = 'Sure. <|tool_call|>[{"name": "a", "arguments": {}}]',
      content = 'Sure. <|tool_call|>[{"name": "a", "arguments": {}}]' },
    { text = "[1, 2]", content = "[1, 2]" },
  },
}
