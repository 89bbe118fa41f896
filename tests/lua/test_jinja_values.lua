-- Expressions of templates on strings, lists and numbers: what Python makes of them
-- (tests/gen/strings.py), and what the reference makes of its own filters and tests; also when the
-- strings come with a request.
local perigee = require "perigee"
local templates = require "templates"
local test = require("harness").test
local text = require "lib.text"

if ... then return end -- forced collection finds nothing here that test_jinja does not

local FOLDER = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$" .. "/../templates/"

local function read(name)
  return assert(perigee.json.decode(assert(text.read_file(FOLDER .. name))))
end

local cases, expressions = read "strings.json", read "expressions.json"

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

test("an integer beyond 64 bits equals the float of the same value", function(t)
  t.eq(render("1e20 == 100000000000000000000", {}), "True")
  t.eq(render("100000000000000000000 == 1e20", {}), "True")
  t.eq(render("1e20 == 100000000000000000001", {}), "False")
  t.eq(render("-1e20 != 100000000000000000000", {}), "True")
  t.eq(render("100000000000000000000 == 100000000000000000000", {}), "True")
  t.eq(render("100000000000000000000 == '100000000000000000000'", {}), "False")
end)

test("statements give what the reference gives", function(t)
  for _, case in ipairs(read "statements.json") do
    for _, spans in ipairs { false, true } do
      local template, why = templates.compile(case[1])
      local got
      if template then got, why = template:render({}, { spans = spans }) end
      t.eq(got or tostring(why), case[2], case[1])
    end
  end
end)

test("filters, tests and formats give what the reference gives", function(t)
  for _, case in ipairs(expressions) do
    t.eq(render(case[1], {}), case[2], case[1])
    t.eq(render(case[1], {}, { spans = true }), case[2], "with spans: " .. case[1])
  end
end)

local ESCAPES = { n = "\n", r = "\r", t = "\t", ["\\"] = "\\" }

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

test("arguments of filters and formats may come with a request", function(t)
  for _, case in ipairs(expressions) do
    if not case[1]:find "\\['xuU]" and not case[1]:find '"' then
      local source, given = with_variables(case[1])
      t.eq(render(source, given, { spans = true }), case[2], case[1])
    end
  end
end)

--- How many characters a method changes, and a number for what it makes of them.
local function digest(name)
  local all, n, sum = {}, 0, 0
  for c = 0x20, 0x1FFFF do
    if c < 0xD800 or c > 0xDFFF then all[#all + 1] = utf8.char(c) end
  end
  local i, given = 0, table.concat(all, "\n") .. "\n"
  for line in render("given." .. name .. "()", { given = given }):gmatch "([^\n]*)\n" do
    i = i + 1
    if line ~= all[i] then
      n = n + 1
      for _, c in utf8.codes(all[i] .. line) do sum = (sum * 33 + c) & 0xffffffffffff end
    end
  end
  return { n, sum }
end

-- By Python, of Unicode 14:
--   def digest(f):
--       n = s = 0
--       for c in map(chr, range(0x20, 0x20000)):
--           if f(c) != c:
--               n += 1
--               for x in c + f(c): s = (s * 33 + ord(x)) % 2 ** 48
--       return n, s
test("all characters change their case as in Python", function(t)
  t.eq(digest "upper", { 1525, 114577464594645 })
  t.eq(digest "lower", { 1433, 37316707031273 })
  t.eq(digest "title", { 1452, 77858212830131 })
end)

test("two halves of a surrogate pair are one character", function(t)
  for source, want in pairs { ["\\ud83d\\ude00"] = "\u{1F600}", ["\\uD800\\uDC00"] = "\u{10000}",
    ["\\udbff\\udfff"] = "\u{10FFFF}", ["\\ud7ff\\ue000"] = "\u{D7FF}\u{E000}",
    ["a\\ud83d\\ude00b"] = "a\u{1F600}b", ["\\U0010ffff"] = "\u{10FFFF}" } do
    t.eq(render("'" .. source .. "'", {}), want, source)
  end
end)
