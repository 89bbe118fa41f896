-- auto: for models whose format is unknown. The marks of all formats count; without marks, a JSON
-- object or array with a name and arguments as the whole answer, and [NAME({…})].
local args = require "parsers.args"
local deepseek = require "parsers.tools.deepseek"
local functionary = require "parsers.tools.functionary"
local gemma4 = require "parsers.tools.gemma4"
local glm47 = require "parsers.tools.glm47"
local harmony = require "parsers.harmony"
local kimi = require "parsers.tools.kimi"
local llama = require "parsers.tools.llama"
local minimax = require "parsers.tools.minimax"
local mistral = require "parsers.tools.mistral"
local nemotron = require "parsers.tools.nemotron"
local pythonic = require "parsers.tools.pythonic"
local qwen = require "parsers.tools.qwen"
local seed_oss = require "parsers.tools.seed_oss"
local tagged = require "parsers.tagged"
local xlam = require "parsers.tools.xlam"

local f = tagged.new()
local forms = { ["{"] = args.object, ["<function="] = tagged.form(f), ["["] = args.array }
local bare = { bare = true }
local array = { bare = true, inside = true }
local strict = { strict = true }

--- The first character inside <tool_call> shows the format.
local function wrapper(s)
  s:space()
  local c = s:peek()
  if c == 123 or c == 60 or c == 91 then return tagged.wrapped(s, f, forms) end
  return glm47.call(s, strict)
end

--- An array of calls as the answer; [NAME({…})]; and for declared tools [NAME(key=value)].
local function bracket(s)
  if s.at_start then
    s:space()
    if s:ahead "{" then return args.array(s, array) end
  end
  local name = s:name_before "("
  if not name then return false end
  s:space()
  if not s:ahead "{" then
    return s.tools:known(name) and args.keywords(s, name) and pythonic.rest(s)
  end
  if not args.streamed(s, name) then return false end
  s:space()
  return s:take ")" and s:take "]"
end

local marks = { ["<tool_call>"] = wrapper, ["["] = bracket, ["[Calling tool:"] = qwen.bracket,
  ["<|tool_call|>"] = args.wrapped, ["<tool_calls>"] = args.wrapped,
  ["</tool_calls>"] = tagged.close, ["<|channel|>"] = harmony.call, ["<|start|>"] = harmony.call }
for _, format in ipairs { llama, mistral, deepseek, kimi, minimax, seed_oss, functionary, nemotron,
  pythonic } do
  for mark, handler in pairs(format.marks) do marks[mark] = marks[mark] or handler end
end
for _, mark in ipairs { "<|tool_call>", "<tool_call|>" } do marks[mark] = gemma4.marks[mark] end
marks["</think>"], marks["```json"] = xlam.marks["</think>"], xlam.fence

--- The texts that the formats look for inside their calls.
local inner = {}
for _, format in ipairs { qwen, llama, mistral, deepseek, kimi, minimax, seed_oss, functionary,
  gemma4, glm47 } do
  table.move(format.inner, 1, #format.inner, #inner + 1, inner)
end
table.move(harmony.marks, 1, #harmony.marks, #inner + 1, inner)

return {
  name = "auto",
  aliases = { "generic" },
  marks = marks,
  inner = inner,
  opening = qwen.opening,
  grammar = qwen.grammar,
  follow = { ["["] = function(s, at)
    local c, next_at = s:after(at, "^%s*[%w_.%-]*")
    if c ~= 40 then return c and c == 123 end
    if s.tools:known(s.buf:match("^%s*([%w_.%-]*)", at)) then return true end
    c = s:after(next_at + 1, "^%s*")
    return c and c == 123
  end },
  soft = { ["["] = true, ["```json"] = true },
  start = { ["{"] = function(s) return args.calls(s, bare) end },
  selftest = {
    { text = '<tool_call>{"name": "a", "arguments": {}}</tool_call><tool_call><function=b>'
        .. '<parameter=x>1</parameter></function>'
        .. "</tool_call>",
      calls = { { "a", "{}" }, { "b", '{"x": 1}' } } },
    { text = '[read({"path": "/tmp"})]', calls = { { "read", '{"path": "/tmp"}' } } },
    { text = '{"name": "a", "arguments": {}}, {"name": "b", "arguments": {}}',
      calls = { { "a", "{}" }, { "b", "{}" } } },
    { text = '{"name": "Ada", "age": 36}', content = '{"name": "Ada", "age": 36}' },
    { text = '<tool_calls>\n{"name": "a", "arguments": {}}\n{"name": "b"}\n</tool_calls>',
      calls = { { "a", "{}" }, { "b", "{}" } } },
    { text = "<|channel|>commentary to=functions.a<|message|>{}<|call|>",
      calls = { { "a", "{}" } } },
    { text = "[the docs](x) and [read(path)] and [1, 2]",
      content = "[the docs](x) and [read(path)] and [1, 2]" },
    { text = '<|tool_call>call:f{a:1}<tool_call|>[TOOL_CALLS]g{}',
      calls = { { "f", '{"a": 1}' }, { "g", "{}" } } },
  },
}
