-- llama: one or more {"name": …, "parameters": {…}} as the whole answer or after <|python_tag|>;
-- also <function=NAME>{…}</function>.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local f = tagged.new { json_only = true }

local bare = { bare = true }

return {
  name = "llama",
  aliases = { "llama3", "llama4" },
  marks = {
    ["<|python_tag|>"] = function(s)
      s:space()
      return args.calls(s)
    end,
    ["<function="] = function(s) return tagged.call(s, f) end,
  },
  start = { ["{"] = function(s) return args.calls(s, bare) end },
  inner = { "</function>" },
  opening = { '{"name": "', '", "parameters":' },
  grammar = function(s)
    return { mark = s:shows "<|python_tag|>" and "<|python_tag|>" or nil, section = true,
      call = s:json_call "parameters", gap = { s:text "; " } }
  end,
  selftest = {
    { text = '<|python_tag|>{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '{"name": "a", "parameters": {}}\n{"name": "b", "parameters": {}}',
      calls = { { "a", "{}" }, { "b", "{}" } } },
    { text = '{"type": "function", "name": "a", "parameters": {}}', calls = { { "a", "{}" } } },
    { text = 'Before <|python_tag|>{"name": "a", "parameters": {}} After',
      content = "Before  After", calls = { { "a", "{}" } } },
    { text = '<function=a>{"x": 1}</function>!', content = "!", calls = { { "a", '{"x": 1}' } } },
    { text = '{"name": "Ada"} is a person.', content = '{"name": "Ada"} is a person.' },
    { text = 'Here: {"name": "a", "parameters": {}}',
      content = 'Here: {"name": "a", "parameters": {}}' },
    { text = "{", content = "{" },
    { text = '<|python_tag|>print("x")', content = '<|python_tag|>print("x")' },
    { text = '<|python_tag|>{"name": "a"', unfinished = '<|python_tag|>{"name": "a"' },
  },
}
