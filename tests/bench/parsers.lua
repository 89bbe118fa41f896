-- parsers: the slowest text of each tool format: 1 MB of something that is almost markup. With a
-- second argument the text arrives in pieces of that many bytes.
--   perigee run tests/bench/parsers.lua [format [bytes]]
local parsers = require "parsers"

local only, piece = arg[1], tonumber(arg[2])
local BYTES = 1000000

local WORDS = { "x", " ", "\n", "<", "[", "{", "`", '{"', "\\", "<tool_call>", "<tool_call>{",
  "<tool_call>\n", "</tool_call>", "<function=a>", "<function=a><parameter=b>",
  '<tool_call>{"name": "a", "arguments": {"x": ', '{"name": "a", "arguments": {}}',
  '<tool_call>{"name": "a", "arguments": {}}', '<tool_call>{"name": "a", "arguments": {"b": "\\',
  "[[", '{"a":', "[a(", "[a(b=", "```json[", "```", "<|channel|>", "<|channel|>a<|message|>",
  "<|tool_call>call:a{", "<|tool_call>call:a{b:<|\"|>", "<｜tool▁call▁begin｜>",
  "<｜tool▁call▁begin｜>a<｜tool▁sep｜>{", "<tool_call>f<arg_key>", "[TOOL_CALLS]",
  "[TOOL_CALLS]a[ARGS]{", "<|recipient|>a", '<invoke name="a">', "tool_code = f(", "</think>",
  "<think>", "<think></think>", "<|tool_call_begin|>a", "</function>  ", "<parameter=a></function>",
  "<|python_start|>[", "<|from|>a" }

local function pieces_of(text)
  if not piece then return text end
  local pieces = {}
  for at = 1, #text, piece do pieces[#pieces + 1] = text:sub(at, at + piece - 1) end
  return pieces
end

--- The seconds of the slowest text, and the word it repeats.
local function slowest(format)
  local most, of = 0, nil
  for _, word in ipairs(WORDS) do
    local pieces = pieces_of(word:rep(BYTES // #word))
    collectgarbage()
    local from = os.clock()
    parsers.parse(pieces, { format = format, reasoning = "qwen3" })
    local took = os.clock() - from
    if took > most then most, of = took, word end
  end
  return most, of
end

for _, format in ipairs(only and { only } or parsers.names "tools") do
  local took, word = slowest(format)
  print(("%-14s %6.2f s of %s"):format(format, took, (("%q"):format(word):gsub("\\\n", "\\n"))))
end
