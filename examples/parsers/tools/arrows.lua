-- arrows: a custom tool format, for a model trained to call tools as  ->name({"key": "value"})<-
--
-- Copy it to SITE/parsers/tools and serve with --site SITE. It is used for models whose chat
-- template contains all texts of `detect`. The scanner finds the marks, however the text is cut;
-- the handler of a mark reads what follows, or returns false if it is not a call. The self-test
-- runs on the whole text and byte by byte before the parser is used. The verbs of `s` are described
-- in scripts/parsers/scan.lua.
local args = require "parsers.args"

local function call(s)
  local name = s:name()
  if not name or not s:take "(" then return false end
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
