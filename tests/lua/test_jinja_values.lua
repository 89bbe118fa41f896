-- Expressions of templates on strings, lists and numbers: what Python makes of them
-- (tests/gen/strings.py), also when the strings come with a request.
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local text = require "lib.text"

if ... then return end -- forced collection finds nothing here that test_jinja does not

local PATH = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" .. "/../templates/strings.json"
local cases = assert(perigee.json.decode(assert(text.read_file(PATH))))

--- The text and its spans, or the error's text.
local function render(source, variables, options)
  local template, why = templates.compile("{{ " .. source .. " }}")
  if not template then return tostring(why) end
  local out, info = template:render(variables, options)
  return out or tostring(info), info
end

test("methods, slices and arithmetic give what Python gives", function(t)
  t.ok(#cases > 3000)
  for _, case in ipairs(cases) do
    local got = render(case[1], {})
    if got ~= case[2] then t.eq(got, case[2], case[1]) end
  end
end)

local ESCAPES = { n = "\n", r = "\r", ["\\"] = "\\" }

--- The expression with variables for its strings, their values, and the variables' number.
local function with_variables(source)
  local given, n = {}, 0
  local out = source:gsub("'([^']*)'", function(s)
    n = n + 1
    given["v" .. n] = s:gsub("\\(.)", ESCAPES)
    return "v" .. n
  end)
  return out, given, n
end

--- The parts of a text that are not trusted.
local function untrusted(out, info)
  local parts = {}
  for _, s in ipairs(info.spans) do
    if not s[3] then parts[#parts + 1] = out:sub(s[1], s[2]) end
  end
  return parts
end

test("strings of a request do the same, and no byte of them is trusted", function(t)
  for _, case in ipairs(cases) do
    local inner, want = case[1]:match "^'%[' ~ (.*) ~ '%]'$", case[2]
    local source, given, n = with_variables(inner or case[1])
    if n > 0 then
      local padded = source:find "just" or source:find "center" or source:find "zfill"
      if inner then source = "'[' ~ " .. source .. " ~ ']'" end
      local got, info = render(source, given, { spans = true })
      if got ~= want then
        t.eq(got, want, source)
      elseif inner and want ~= "[]" then
        local doubted = padded and given.v1 or want:sub(2, -2)
        t.eq(untrusted(got, info), { doubted ~= "" and doubted or nil }, source)
      end
    end
  end
end)
