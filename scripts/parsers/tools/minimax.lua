-- minimax: <invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>, usually between
-- <minimax:tool_call> and </minimax:tool_call>. [e~[ is the model's end mark.
local scan = require "parsers.scan"
local tagged = require "parsers.tagged"

local f = tagged.new { call = '<invoke name="', call_end = "</invoke>",
  parameter = '<parameter name="', tag_end = '">', name = '^[^<>"%s%c]*', key = '^[^<>"%c]*',
  wrapper_end = "</minimax:tool_call>" }
local forms = { ["<invoke"] = tagged.form(f) }

return {
  name = "minimax",
  aliases = { "minimax_m2" },
  marks = {
    ["<minimax:tool_call>"] = function(s) return tagged.wrapped(s, f, forms) end,
    ["</minimax:tool_call>"] = tagged.close,
    ['<invoke name="'] = function(s) return tagged.call(s, f) end,
    ["[e~["] = scan.drop,
  },
  inner = f.all,
  opening = { '<minimax:tool_call>\n<invoke name="', '">\n' },
  grammar = function(s)
    return tagged.grammar(s, f, { mark = "<minimax:tool_call>", section = true })
  end,
  selftest = {
    { text = 'Sure.\n<minimax:tool_call>\n<invoke name="tide">\n<parameter name="port">Brest'
        .. '</parameter>\n'
        .. '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n</invoke>\n'
        .. '</minimax:tool_call>[e~[',
      content = "Sure.", calls = { { "tide", '{"port": "Brest", "days": 3}' }, { "now", "{}" } } },
    { text = '<invoke name="f"><parameter name="o">{"a": 1}</parameter></invoke>',
      calls = { { "f", '{"o": {"a": 1}}' } } },
    { text = '<minimax:tool_call><invoke name="f"><parameter name="o">ha',
      unfinished = '<minimax:tool_call><invoke name="f"><parameter name="o">ha' },
  },
}
