-- mistral: [TOOL_CALLS] and a JSON array of calls, or NAME{…}, NAME[ARGS]{…}, NAME[CALL_ID]id[ARGS]{…}.
local args = require "parsers.args"

local BETWEEN = { "[ARGS]", "[CALL_ID]", "{" }

local function calls(s)
  s:space()
  if s:ahead "[" then return args.array(s) end
  local name = s:word(args.NAME)
  local mark = name and name ~= "" and s:one_of(BETWEEN)
  if mark == "[CALL_ID]" then
    if not s:word(args.NAME) then return false end
    mark = s:take "[ARGS]"
  elseif mark == "{" then
    s:back(mark)
  end
  if not mark then return false end
  s:space()
  return s:ahead "{" and args.streamed(s, name)
end

return {
  name = "mistral",
  marks = { ["[TOOL_CALLS]"] = calls },
  inner = { "[ARGS]", "[CALL_ID]" },
  opening = { { "[TOOL_CALLS]", "[ARGS]", shows = "[ARGS]" }, { '[TOOL_CALLS][{"name": "', '", "arguments":' } },
  selftest = {
    { text = 'Now.[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": {}}]', content = "Now.",
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '[TOOL_CALLS]a[ARGS]{"x": "[TOOL_CALLS]b[ARGS]{}"}[TOOL_CALLS]c{}',
      calls = { { "a", '{"x": "[TOOL_CALLS]b[ARGS]{}"}' }, { "c", "{}" } } },
    { text = '[TOOL_CALLS]a[CALL_ID]x7[ARGS]{"n": 2}', calls = { { "a", '{"n": 2}' } } },
    { text = "[TOOL_CALLS]a[ARGS]not-json", content = "[TOOL_CALLS]a[ARGS]not-json" },
    { text = "see [ARGS]", content = "see [ARGS]" },
    { text = '[TOOL_CALLS]a[ARGS]{"x": ', unfinished = '[TOOL_CALLS]a[ARGS]{"x": ' },
  },
}
