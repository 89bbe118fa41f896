-- pythonic: [name(key="text", n=2), other()], optionally between <|python_start|> and
-- <|python_end|> or <|tool_call_start|> and <|tool_call_end|>. Without the marks only a list of
-- calls of declared tools counts; any other bracket is text. Between them, any name counts if no
-- tools were declared, and the calls may be in JSON.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local function call(s, any)
  s:space()
  local name = s:name_before "("
  return name and (any or s.tools:known(name)) and args.keywords(s, name)
end

--- The rest of a list after its first call.
local function rest(s, any)
  s:space()
  while s:take "," do
    if not call(s, any) then return false end
    s:space()
  end
  return s:take "]"
end

--- The list after its bracket. No call counts until all of it is read.
local function list(s, any)
  return call(s, any) and rest(s, any)
end

--- The list between two marks; the closing one may be missing.
local function marked(s)
  s:space()
  if not s:take "[" then return false end
  s:space()
  if s:ahead "{" then
    if not args.array(s, { inside = true }) then return false end
  elseif not list(s, not s.tools.given) then
    return false
  end
  s.wrapper = true
  return true
end

--- Texts of templates, and the marks around calls that they mean.
local MARKS = { { "<|python_start|>", "<|python_start|>", "<|python_end|>" },
  { "<|tool_call_start|>", "<|tool_call_start|>", "<|tool_call_end|>" },
  { "<|tool_list_start|>", "<|tool_call_start|>", "<|tool_call_end|>" } }

local tools = { { name = "tide" }, { name = "log" } }

return {
  name = "pythonic",
  rest = rest,
  marks = {
    ["["] = function(s) return list(s, false) end,
    ["<|python_start|>"] = marked, ["<|python_end|>"] = tagged.close,
    ["<|tool_call_start|>"] = marked, ["<|tool_call_end|>"] = tagged.close,
  },
  opening = { { "<|python_start|>[", "(", shows = "<|python_start|>" },
    { "<|tool_call_start|>[", "(", shows = "<|tool_call_start|>" },
    { "<|tool_call_start|>[", "(", shows = "<|tool_list_start|>" }, { "[", "(" } },
  grammar = function(s)
    local mark, close
    for _, pair in ipairs(MARKS) do
      if not mark and s:shows(pair[1]) then mark, close = pair[2], pair[3] end
    end
    return { mark = mark, section = true, before = { s:text "[" }, call = s:each(function(tool)
      return { s:text(tool.name .. "("), s:keywords(tool), s:text ")" }
    end), gap = { s:text ", " }, after = { s:text "]", mark and s:mark(close) } }
  end,
  follow = { ["["] = function(s, at)
    local c = s:after(at, "^%s*[%w_.%-]*")
    if c ~= 40 then return c and false end
    return s.tools:known(s.buf:match("^%s*([%w_.%-]*)", at))
  end },
  soft = { ["["] = true },
  selftest = {
    { text = "[tide(port=\"Brest\", n=-2.5e3, flag=True, none=None, list=[1, 'a'], map={'k': "
        .. "{\"x\": 1}}), log()]", tools = tools,
      calls = { { "tide", '{"port": "Brest", "n": -2.5e3, "flag": true, "none": null, "list": '
          .. '[1, "a"], '
        .. '"map": {"k": {"x": 1}}}' }, { "log", "{}" } } },
    { text = "<|python_start|>[log(text='it\\'s')]<|python_end|>", tools = tools,
      calls = { { "log", '{"text": "it\'s"}' } } },
    { text = '<|tool_call_start|>[log(text="a"), tide()]<|tool_call_end|>Wait.', tools = tools,
      content = "Wait.", calls = { { "log", '{"text": "a"}' }, { "tide", "{}" } } },
    { text = "[tide(port=1), rm()] [a](b) [1, 2]", tools = tools,
      content = "[tide(port=1), rm()] [a](b) [1, 2]" },
    { text = "[tide(port)]", tools = tools, content = "[tide(port)]" },
    { text = "[tide(port=\"Br", tools = tools, unfinished = "[tide(port=\"Br" },
  },
}
