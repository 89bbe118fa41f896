-- mistral: [TOOL_CALLS] and calls in JSON, or NAME{…}, NAME[ARGS]{…}, NAME[CALL_ID]id[ARGS]{…}.
local args = require "parsers.args"

local BETWEEN, MARKED = { "[ARGS]", "[CALL_ID]", "{" }, { "[ARGS]", "[CALL_ID]" }

--- NAME and its arguments, with one of `between` before them.
local function call(s, between)
  local name = s:name()
  if not name then return false end
  s:space()
  local mark = s:one_of(between)
  if mark == "[CALL_ID]" then
    if not s:word(args.NAME) then return false end -- the id may be empty
    mark = s:take "[ARGS]"
  elseif mark == "{" then
    s:back(mark)
  end
  if not mark then return false end
  s:space()
  return s:ahead "{" and args.streamed(s, name)
end

local function calls(s)
  s:space()
  if s:ahead "[" or s:ahead "{" then return args.calls(s) end
  if not call(s, BETWEEN) then return false end
  repeat -- the mark may be missing before the next call
    s:commit()
    s:space()
  until not call(s, MARKED)
  s.starved = false
  return false
end

return {
  name = "mistral",
  marks = { ["[TOOL_CALLS]"] = calls },
  inner = { "[ARGS]", "[CALL_ID]" },
  opening = { { "[TOOL_CALLS]", "[ARGS]", shows = "[ARGS]" },
    { '[TOOL_CALLS][{"name": "', '", "arguments":' } },
  grammar = function(s)
    if s:shows "[ARGS]" then
      return { mark = "[TOOL_CALLS]", call = s:each(function(tool)
        return { s:text(tool.name), s:mark "[ARGS]", s:object(tool) }
      end) }
    end
    return { mark = "[TOOL_CALLS]", section = true, before = { s:text "[" },
      call = s:json_call "arguments", gap = { s:text ", " }, after = { s:text "]" } }
  end,
  selftest = {
    { text = 'Now.[TOOL_CALLS] [{"name": "a", "arguments": {"x": 1}}, {"name": "b", "arguments": '
        .. '{}}]', content = "Now.",
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '[TOOL_CALLS]a[ARGS]{"x": "[TOOL_CALLS]b[ARGS]{}"}[TOOL_CALLS]c{}',
      calls = { { "a", '{"x": "[TOOL_CALLS]b[ARGS]{}"}' }, { "c", "{}" } } },
    { text = "[TOOL_CALLS]a[ARGS]{}b[ARGS]{} c", content = "c",
      calls = { { "a", "{}" }, { "b", "{}" } } },
    { text = '[TOOL_CALLS]a[CALL_ID]x7[ARGS]{"n": 2}', calls = { { "a", '{"n": 2}' } } },
    { text = "[TOOL_CALLS]a[ARGS]not-json", content = "[TOOL_CALLS]a[ARGS]not-json" },
    { text = "see [ARGS]", content = "see [ARGS]" },
    { text = '[TOOL_CALLS]a[ARGS]{"x": ', unfinished = '[TOOL_CALLS]a[ARGS]{"x": ' },
  },
}
