-- xlam: a JSON array of calls as the answer, also in a code fence, after [TOOL_CALLS] or after
-- thinking.
local args = require "parsers.args"

local bare = { bare = true }

local function calls(s)
  s:space()
  return args.calls(s, bare)
end

--- Calls in a code fence.
local function fence(s)
  s:take "json"
  if not calls(s) then return false end
  s:space()
  s:take "```"
  return true
end

return {
  name = "xlam",
  fence = fence,
  marks = {
    ["[TOOL_CALLS]"] = calls,
    ["```"] = fence,
    ["</think>"] = function(s)
      s.content:text "</think>"
      s.at_start = true
      return true
    end,
  },
  follow = { ["```"] = function(s, at)
    local c = s:after(at, "^%a*%s*")
    return c and (c == 91 or c == 123)
  end },
  soft = { ["```"] = true },
  start = { ["["] = calls, ["{"] = calls },
  opening = { '[{"name": "', '", "arguments":' },
  grammar = function(s)
    return { section = true, before = { s:text "[" }, call = s:json_call "arguments",
      gap = { s:text ", " }, after = { s:text "]" } }
  end,
  selftest = {
    { text = '[{"name": "a", "arguments": {"x": 1}}, {"name": "b", "parameters": {}}]',
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '```json\n[{"name": "a", "arguments": {}}]\n```', calls = { { "a", "{}" } } },
    { text = 'So:\n```\n{"name": "a", "arguments": {}}\n```', content = "So:",
      calls = { { "a", "{}" } } },
    { text = '<think>hm</think>[{"name": "a", "arguments": {}}]', content = "<think>hm</think>",
      calls = { { "a", "{}" } } },
    { text = '[TOOL_CALLS][{"name": "a", "arguments": {}}]\n', calls = { { "a", "{}" } } },
    { text = '[1, 2] and ```json\n{"x": 1}\n```', content = '[1, 2] and ```json\n{"x": 1}\n```' },
  },
}
