-- gemma4: <|tool_call>call:NAME{key:<|"|>text<|"|>,n:3}<tool_call|>. A block may hold several calls
-- and its end may be missing. Also call:NAME(key="text"), a tool_code fence with calls in Python's
-- syntax, and tool_code = NAME(…).
local args = require "parsers.args"
local scan = require "parsers.scan"
local tagged = require "parsers.tagged"

local QUOTE = '<|"|>'
local quote = scan.marks { QUOTE }

local function call(s)
  local name = s:name()
  if not name then return false end
  s:space()
  if s:take "(" then return args.keywords(s, name) end
  if not s:ahead "{" then return false end
  return args.streamed(s, name, { quote = QUOTE, marks = quote, bare = true,
    is_text = function(key) return args.only_string(s.tools:types(name, key)) end })
end

local function block(s)
  s:space()
  if not s:take "call:" then return false end
  local gap
  repeat
    if not call(s) then return false end
    s:commit()
    gap = s:gap()
    if s:take "<tool_call|>" then return true end
    if s:take "," then gap = gap .. "," .. s:gap() end
  until not s:take "call:"
  s.content:text(gap)
  s.wrapper = true
  return true
end

--- NAME(…) or print(NAME(…)).
local function python(s)
  local name = s:name "^[%w_.]*"
  if not name or not s:take "(" then return false end
  if name ~= "print" then return args.keywords(s, name) end
  name = s:name "^[%w_.]*"
  return name and s:take "(" and args.keywords(s, name) and s:take ")"
end

local function fence(s)
  s:space()
  repeat
    if not python(s) then return false end
    s:commit()
    s:space()
  until not s:peek() or s:take "```"
  return true
end

return {
  name = "gemma4",
  block = block,
  marks = {
    ["<|tool_call>"] = block,
    ["<tool_call|>"] = tagged.close,
    ["<turn|>"] = scan.drop,
    ["```tool_code"] = fence,
    ["tool_code = "] = python,
  },
  inner = { QUOTE },
  opening = { "<|tool_call>call:", "{" },
  grammar = function(s)
    return { mark = "<|tool_call>", before = { s:text "call:" }, call = s:each(function(tool)
      return { s:text(tool.name), s:marked(tool, QUOTE) }
    end), after = { s:mark "<tool_call|>" } }
  end,
  soft = { ["```tool_code"] = true, ["tool_code = "] = true },
  selftest = {
    { text = 'Sure.\n<|tool_call>call:tide{port:<|"|>a: {b}, "c"<|"|>,days:3}call:now{}'
        .. '<tool_call|><turn|>', content = "Sure.",
      calls = { { "tide", '{"port": "a: {b}, \\"c\\"", "days": 3}' }, { "now", "{}" } } },
    { text = '<|tool_call>call:f{o:{<|"|>k<|"|>:[1,true,null,x y]}}<tool_call|>',
      calls = { { "f", '{"o": {"k": [1, true, null, "x y"]}}' } } },
    { text = "<|tool_call>call:my-tool.v2{n:7}",
      tools = { { name = "my-tool.v2",
        parameters = { properties = { n = { type = "string" } } } } },
      calls = { { "my-tool.v2", '{"n": "7"}' } } },
    { text = '<|tool_call>call:f(port="Brest", days=3)',
      calls = { { "f", '{"port": "Brest", "days": 3}' } } },
    { text = 'Hm.\n```tool_code\nf(a="x")\nprint(g())\n```', content = "Hm.",
      calls = { { "f", '{"a": "x"}' }, { "g", "{}" } } },
    { text = "call me at foo()", content = "call me at foo()" },
    { text = '<|tool_call>call:f{a:<|"|>x', unfinished = '<|tool_call>call:f{a:<|"|>x' },
  },
}
