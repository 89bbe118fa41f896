-- arrows: a tool format of one's own: a model that was trained to write  ->name({"key": "value"})<-  when it calls a tool.
-- Copy it to SITE/parsers/tools and serve with --site SITE. Models whose chat template has the texts of `detect` use it.
-- Marks are found by the scanner wherever the text is cut; the function behind one takes what follows, or returns false when it
-- is no call after all. The self-test runs whole and byte by byte before the parser serves.
local args = require "parsers.args"

local function call(s)
  local name = s:word("^[%w_]*", 64)
  if not name or name == "" or not s:take "(" then return false end
  if not s:ahead "{" or not args.streamed(s, name) then return false end
  return s:take ")<-"
end

return {
  name = "arrows",
  detect = { "->", "<-" },
  marks = { ["->"] = call },
  selftest = {
    { text = '->weather({"city": "Oslo"})<-', calls = { { "weather", '{"city": "Oslo"}' } } },
    { text = "Look: ->here, see?", content = "Look: ->here, see?" },
  },
}
