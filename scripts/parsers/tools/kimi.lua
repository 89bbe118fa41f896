-- kimi: <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>,
-- between section marks.
local args = require "parsers.args"
local scan = require "parsers.scan"

local ARGUMENTS, END = "<|tool_call_argument_begin|>", "<|tool_call_end|>"
local arguments = scan.marks { ARGUMENTS }
local between = { ends = { END }, marks = scan.marks { END } }

--- functions.NAME:0 -> NAME. The name may have dots if it was declared so; otherwise all before the
--- last dot is a prefix.
local function tool_name(s, id)
  local name = (id:match "%S+" or ""):gsub(":%d+$", ""):gsub("^functions%.", "")
  if not s.tools:known(name) then name = name:match "[^.]*$" end
  return name ~= "" and name or nil
end

local function call(s)
  local id = s:short_field(arguments, 256)
  local name = id and tool_name(s, id)
  if not name then return false end
  return args.between(s, name, between)
end

return {
  name = "kimi",
  aliases = { "kimi_k2", "moonshot" },
  marks = {
    ["<|tool_calls_section_begin|>"] = scan.drop, ["<|tool_calls_section_end|>"] = scan.drop,
    ["<|tool_call_section_begin|>"] = scan.drop, ["<|tool_call_section_end|>"] = scan.drop,
    ["<|tool_call_begin|>"] = call,
  },
  inner = { ARGUMENTS, END },
  opening = { "<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":0" .. ARGUMENTS },
  grammar = function(s)
    local number = s.b:pattern ":(?:0|[1-9][0-9]{0,3})" -- of the call in the whole conversation
    return { mark = "<|tool_calls_section_begin|>", section = true, call = s:each(function(tool)
      return { s:mark "<|tool_call_begin|>", s:text("functions." .. tool.name), number,
        s:mark(ARGUMENTS), s:object(tool), s:mark(END) }
    end), after = { s:mark "<|tool_calls_section_end|>" } }
  end,
  selftest = {
    { text = 'Wait.<|tool_calls_section_begin|><|tool_call_begin|>functions.tide:0'
        .. '<|tool_call_argument_begin|>{"port": "Brest"}'
        .. "<|tool_call_end|><|tool_call_begin|>now:1<|tool_call_argument_begin|> {} "
        .. "<|tool_call_end|><|tool_calls_section_end|>",
      content = "Wait.", calls = { { "tide", '{"port": "Brest"}' }, { "now", "{}" } } },
    { text = "<|tool_call_begin|>functions.fs.read:0<|tool_call_argument_begin|>{}"
        .. "<|tool_call_end|>",
      tools = { { name = "fs.read" } }, calls = { { "fs.read", "{}" } } },
    { text = "<|tool_call_begin|>now:0<|tool_call_argument_begin|><|tool_call_end|>",
      calls = { { "now", "{}" } } },
    { text = "<|tool_call_begin|>log:0<|tool_call_argument_begin|>{oops<|tool_call_end|>",
      calls = { { "log", '"{oops"' } } },
    { text = '<|tool_call_begin|>log:0<|tool_call_argument_begin|>{"a": 1',
      unfinished = '<|tool_call_begin|>log:0<|tool_call_argument_begin|>{"a": 1' },
  },
}
