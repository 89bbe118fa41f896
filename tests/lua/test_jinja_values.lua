-- Expressions of templates on strings, lists and numbers: what Python makes of them
-- (tests/gen/strings.py).
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local text = require "lib.text"

if ... then return end -- forced collection finds nothing here that test_jinja does not

local PATH = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" .. "/../templates/strings.json"

test("methods, slices and arithmetic give what Python gives", function(t)
  local cases = assert(perigee.json.decode(assert(text.read_file(PATH))))
  t.ok(#cases > 3000)
  for _, case in ipairs(cases) do
    local source, want = case[1], case[2]
    local template, why = templates.compile("{{ " .. source .. " }}")
    local got, err
    if template then got, err = template:render {} end
    if got ~= want then t.eq(got or tostring(why or err), want, source) end
  end
end)
