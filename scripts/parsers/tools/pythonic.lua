-- pythonic: [name(key="text", n=2), other()], optionally between <|python_start|> and <|python_end|>. Only a list of calls of
-- known tools counts; any other bracket is text. (Between the marks any name does where no tools were declared.)
local args = require "parsers.args"

local function call(s, any)
  s:space()
  local name = s:name_before "("
  return name and (any or s.tools:known(name)) and args.keywords(s, name)
end

--- What follows the first call of a list.
local function rest(s, any)
  s:space()
  while s:take "," do
    if not call(s, any) then return false end
    s:space()
  end
  return s:take "]"
end

--- The list behind its bracket; nothing of it counts before all of it is read.
local function list(s, any)
  return call(s, any) and rest(s, any)
end

local tools = { { name = "tide" }, { name = "log" } }

return {
  name = "pythonic",
  rest = rest,
  marks = {
    ["["] = function(s) return list(s, false) end,
    ["<|python_start|>"] = function(s)
      s:space()
      if not s:take "[" or not list(s, not s.tools.given) then return false end
      s:space()
      s:take "<|python_end|>"
      return true
    end,
    ["<|python_end|>"] = function() return true end,
  },
  opening = { { "<|python_start|>[", "(", shows = "<|python_start|>" }, { "[", "(" } },
  follow = { ["["] = function(s, at)
    local c = s:behind_name(at)
    return c and c == 40
  end },
  soft = { ["["] = true },
  selftest = {
    { text = "[tide(port=\"Brest\", n=-2.5e3, flag=True, none=None, list=[1, 'a'], map={'k': {\"x\": 1}}), log()]", tools = tools,
      calls = { { "tide", '{"port": "Brest", "n": -2.5e3, "flag": true, "none": null, "list": [1, "a"], '
        .. '"map": {"k": {"x": 1}}}' }, { "log", "{}" } } },
    { text = "<|python_start|>[log(text='it\\'s')]<|python_end|>", tools = tools, calls = { { "log", '{"text": "it\'s"}' } } },
    { text = "[tide(port=1), rm()] [a](b) [1, 2]", tools = tools, content = "[tide(port=1), rm()] [a](b) [1, 2]" },
    { text = "[tide(port)]", tools = tools, content = "[tide(port)]" },
    { text = "[tide(port=\"Br", tools = tools, unfinished = "[tide(port=\"Br" },
  },
}
