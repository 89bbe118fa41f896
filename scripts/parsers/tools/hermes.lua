-- hermes: <tool_call>{"name": …, "arguments": {…}}</tool_call>. Also tags in the wrapper or alone,
-- an array of calls in it, and a JSON object that calls a declared tool as the whole answer.
local args = require "parsers.args"
local tagged = require "parsers.tagged"

local bare = { bare = true, known = true }
local f = tagged.new { lenient = function(s) return args.object(s, bare) end }
local forms = { ["{"] = args.object, ["["] = args.array, ["<function="] = tagged.form(f) }

return {
  name = "hermes",
  aliases = { "nous" },
  marks = {
    ["<tool_call>"] = function(s) return tagged.wrapped(s, f, forms) end,
    ["</tool_call>"] = tagged.close,
    ["<function="] = function(s) return tagged.call(s, f) end,
  },
  inner = f.all,
  tags = function(s) return tagged.grammar(s, f, { mark = "<tool_call>", line = "\n" }) end,
  opening = { '<tool_call>\n{"name": "', '", "arguments":' },
  grammar = function(s)
    return { mark = "<tool_call>", before = { s:text "\n" }, call = s:json_call "arguments",
      after = { s:text "\n", s:mark "</tool_call>" }, gap = { s:text "\n" } }
  end,
  start = { ["{"] = f.lenient },
  selftest = {
    { text = 'Looking.\n<tool_call>\n{"name": "tide", "arguments": {"port": "Brest"}}\n'
        .. '</tool_call>', content = "Looking.",
      calls = { { "tide", '{"port": "Brest"}' } } },
    { text = '<tool_call>{"arguments": {"n": 1}, "name": "count"}</tool_call>',
      calls = { { "count", '{"n": 1}' } } },
    { text = '<tool_call>{"name": "now"}</tool_call> done', content = "done",
      calls = { { "now", "{}" } } },
    { text = '<tool_call>so {"name": "now", "arguments": {}} ok</tool_call>', content = "so  ok",
      calls = { { "now", "{}" } } },
    { text = '<tool_call>{"name": "now", "arguments": {}</tool_call>',
      calls = { { "now", "{}" } } },
    { text = '<tool_call>{"name": "now", "args": {}}</tool_call>',
      content = '<tool_call>{"name": "now", "args": {}}</tool_call>' },
    { text = "<tool_call><function=say><parameter=text>hi</parameter></function></tool_call>",
      calls = { { "say", '{"text": "hi"}' } } },
    { text = '{"name": "say", "arguments": {"text": "hi"}}',
      calls = { { "say", '{"text": "hi"}' } } },
    { text = '{"name": "Ada", "age": 36}', content = '{"name": "Ada", "age": 36}' },
    { text = '<tool_call>{"name": "say", "arguments": {"text": }}</tool_call>',
      content = '<tool_call>{"name": "say", "arguments": {"text": }}</tool_call>' },
    { text = 'So: <tool_call>{"name": "say", "argu', content = "So:",
      unfinished = '<tool_call>{"name": "say", "argu' },
    { text = "a <tool_call> is a tag", content = "a <tool_call> is a tag" },
  },
}
