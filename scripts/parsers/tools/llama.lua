-- llama: {"name": …, "parameters": {…}} as the whole answer or after <|python_tag|>, several separated by semicolons; also
-- <function=NAME>{…}</function>.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local f = tagged.new { json_only = true }

--- Objects separated by one of o.separators. Options: bare, as args.object's.
local function objects(s, o)
  if not args.object(s, o) then return false end
  s:commit()
  local gap = s:gap()
  local mark = s:one_of(o.separators)
  gap = gap .. (mark or "")
  if mark then
    gap = gap .. s:gap()
    if s:ahead "{" then return objects(s, o) end
  end
  s.content:text(gap)
  s:hold(0)
  return true
end

local tag, bare = { separators = { ";" } }, { separators = { ";" }, bare = true }

return {
  name = "llama",
  aliases = { "llama3", "llama4" },
  objects = objects,
  marks = {
    ["<|python_tag|>"] = function(s)
      s:space()
      return objects(s, tag)
    end,
    ["<function="] = function(s) return tagged.call(s, f) end,
  },
  start = { ["{"] = function(s) return objects(s, bare) end },
  inner = { "</function>" },
  opening = { '{"name": "', '", "parameters":' },
  selftest = {
    { text = '<|python_tag|>{"name": "a", "parameters": {"x": 1}}; {"name": "b", "parameters": {}}',
      calls = { { "a", '{"x": 1}' }, { "b", "{}" } } },
    { text = '{"type": "function", "name": "a", "parameters": {}}', calls = { { "a", "{}" } } },
    { text = 'Before <|python_tag|>{"name": "a", "parameters": {}} After', content = "Before  After", calls = { { "a", "{}" } } },
    { text = '<function=a>{"x": 1}</function>!', content = "!", calls = { { "a", '{"x": 1}' } } },
    { text = '{"name": "Ada"} is a person.', content = '{"name": "Ada"} is a person.' },
    { text = 'Here: {"name": "a", "parameters": {}}', content = 'Here: {"name": "a", "parameters": {}}' },
    { text = "{", content = "{" },
    { text = '<|python_tag|>print("x")', content = '<|python_tag|>print("x")' },
    { text = '<|python_tag|>{"name": "a"', unfinished = '<|python_tag|>{"name": "a"' },
  },
}
