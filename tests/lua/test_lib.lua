-- lib and ui: command lines, sizes, tables, pretty printing.
local args = require "lib.args"
local perigee = require "perigee"
local plot = require "ui.plot"
local pretty = require "ui.pretty"
local progress = require "ui.progress"
local show = require "ui.table"
local term = require "ui.term"
local test = require("harness").test
local text = require "lib.text"

local OPTIONS = { {
  { name = "count", kind = "integer", min = 1, max = 9, value = "N", help = "how many" },
  { name = "rate", kind = "number", value = "X", default = 0.5, help = "how fast" },
  { name = "size", kind = "bytes", value = "B", help = "how large" },
  { name = "mode", kind = "choice", choices = { "a", "b" }, help = "which" },
  { name = "to-file", kind = "string", value = "F", help = "where" },
  { name = "quiet", kind = "flag", help = "less" },
} }

local function parse(words, settings) return args.parse(OPTIONS, words, settings or {}) end

test("command lines are read", function(t)
  t.eq(parse {}, {})
  t.eq(parse { "x", "--count", "3", "y", "--quiet" }, { "x", "y", count = 3, quiet = true })
  t.eq(parse { "--count=3", "--to-file=", "--size=2K", "--rate", "1e3", "--mode=b" },
    { count = 3, to_file = "", size = 2048, rate = 1000.0, mode = "b" })
  t.eq(parse { "--quiet", "--", "--count", "-" }, { "--count", "-", quiet = true })
  t.eq(parse({ "x", "--count", "3" }, { stop = true }), { "x", "--count", "3" })
  t.eq(parse({ "skipped", "x" }, { first = 2 }), { "x" })
  t.eq(parse { "-h", "-" }, { "-", help = true })
  t.eq(args.defaults(OPTIONS, { rate = 2 }).rate, 2)
  t.eq(args.defaults(OPTIONS, {}).rate, 0.5)
end)

test("wrong command lines give a message of one line", function(t)
  local function wrong(words, message) t.eq({ parse(words) }, { nil, message }) end
  wrong({ "--cuont", "3" }, "--cuont: unknown option, did you mean --count?")
  wrong({ "--count" }, "--count: needs a value")
  wrong({ "--count", "x" }, "--count: 'x' is not an integer")
  wrong({ "--count", "1e0" }, "--count: '1e0' is not an integer")
  wrong({ "--count", "10" }, "--count: '10' is not between 1 and 9")
  wrong({ "--mode", "c" }, "--mode: 'c' is not one of a, b")
  wrong({ "--size", "2X" }, "--size: '2X' is not a size such as 8G")
  wrong({ "--quiet=1" }, "--quiet: takes no value")
  wrong({ "-q" }, "-q: unknown option")
end)

test("help lists every option", function(t)
  local lines = args.help(OPTIONS[1])
  t.match(lines, "  %-%-count N +how many\n")
  t.match(lines, "%-%-mode a|b +which")
  t.match(lines, "how fast %(default: 0.5%)")
end)

test("sizes", function(t)
  t.eq(text.bytes(0), "0 B")
  t.eq(text.bytes(1536), "1.5 KiB")
  t.eq(text.bytes(3 << 30), "3.0 GiB")
  t.eq(text.parse_bytes "8G", 8 << 30)
  t.eq(text.parse_bytes "1.5 MiB", 3 << 19)
  t.eq(text.parse_bytes "10", 10)
  t.eq(text.parse_bytes "-1", nil)
  t.eq(text.parse_bytes "9999999T", nil)
  t.eq(text.seconds(0.0000042), "4 µs")
  t.eq(text.seconds(2), "2.00 s")
end)

test("paths, words, files", function(t)
  t.eq(text.dirname "a/b.lua", "a")
  t.eq(text.dirname "b.lua", ".")
  t.eq(text.dirname "/b.lua", "/")
  t.eq(text.nearest("rnu", { "repl", "run", "check" }), "run")
  t.eq(text.nearest("zzzzzzz", { "repl", "run" }), nil)
  for pattern, cases in pairs { ["a*c"] = { ac = true, abbc = true, acb = false },
    ["*"] = { [""] = true, x = true }, [""] = { [""] = true, x = false },
    ["a?c"] = { abc = true, ac = false }, ["*b*"] = { abc = true, ac = false, b = true },
    ["%a.*"] = { ["%a.x"] = true, bx = false },
    ["a*a*b"] = { aab = true, aaab = true, aba = false },
    abc = { abc = true, ab = false, abcd = false } } do
    for s, want in pairs(cases) do t.eq(text.matches(pattern, s), want, pattern .. " " .. s) end
  end
  t.eq(text.suggestion("rnu", { "repl", "run" }), ", did you mean 'run'?")
  t.eq(text.suggestion("rnu", { "repl", "run" }, "--%s"), ", did you mean --run?")
  t.eq(text.suggestion("zzzzzzz", { "repl", "run" }), "")
  t.eq({ text.trim " a  b\t", text.trim "", text.trim " \n " }, { "a  b", "", "" })
  local spaces = (" "):rep(1 << 20) -- quadratic, each of these would take minutes
  t.eq({ text.trim(spaces), text.trim("a" .. spaces .. "b"), text.trim(spaces .. "c" .. spaces) },
    { "", "a" .. spaces .. "b", "c" })
  t.eq({ text.common_prefix { "abc", "abd" }, text.common_prefix {} }, { "ab", "" })
  t.eq(text.sorted_keys { b = 1, a = 1, [3] = 1 }, { 3, "a", "b" })
  local content, why = text.read_file "/nonexistent"
  t.eq(content, nil)
  t.match(why, "^/nonexistent: ")
end)

test("tables are aligned by screen columns", function(t)
  t.eq(show.render({ { "name", "n" }, { "漢字", 5 }, { "x", 12345 } }),
    "name  n\n漢字      5\nx     12345")
end)

test("padding and clipping count columns", function(t)
  t.eq(term.pad("漢", 4), "漢  ")
  t.eq(term.pad("ab", 4, true), "  ab")
  t.eq(term.clip("abcdef", 4), "abc…")
  t.eq(term.clip("漢字漢字", 5), "漢字…")
  t.eq(term.clip("abc", 3), "abc")
  t.eq(term.width "\27[31mred\27[0m", 3)
end)

test("values are readable", function(t)
  t.eq(pretty.format(1), "1")
  t.eq(pretty.format(1.0), "1.0")
  t.eq(pretty.format(0.1), "0.1")
  t.eq(pretty.format(1 / 3), "0.33333333333333331")
  t.eq(pretty.format(-1 / 0), "-inf")
  t.eq(pretty.format(nil), "nil")
  t.eq(pretty.format 'a"b\n\0\1é\xff', [["a\"b\n\0\x01é\xff"]])
  t.eq(pretty.format {}, "{}")
  t.eq(pretty.format { 1, 2, x = { "y" }, ["end"] = true, [1.5] = 0 },
    '{ 1, 2, [1.5] = 0, ["end"] = true, x = { "y" } }')
end)

test("cycles are marked, long values cut, lines broken", function(t)
  local cycle = { 1 }
  cycle.me = cycle
  t.eq(pretty.format(cycle), "{ 1, me = <cycle> }")
  local shared = { 1 }
  t.eq(pretty.format { shared, shared }, "{ { 1 }, { 1 } }")
  local many = {}
  for i = 1, 1000 do many[i] = i end
  t.match(pretty.format(many, { items = 3 }), "^{ 1, 2, 3, … 997 more }$")
  t.eq(pretty.format(("é"):rep(10), { string = 5 }), '"éé"…')
  t.eq(pretty.format({ { { {} }, { 1 } } }, { depth = 2 }), "{ { {…}, {…} } }")
  t.eq(pretty.format({ "aaaa", "bbbb" }, { width = 10 }), '{\n  "aaaa",\n  "bbbb"\n}')
end)

test("metatables: __tostring is used, its errors are caught, __index is not followed", function(t)
  t.eq(pretty.format(setmetatable({}, { __tostring = function() return "me" end })), "me")
  t.match(pretty.format(setmetatable({}, { __tostring = error })), "fails")
  t.eq(pretty.format(setmetatable({ 1 }, { __index = error, __len = error, __pairs = error })),
    "{ 1 }")
end)

test("stderr is closed at once when nothing waits", function(t)
  local stderr = require "lib.stderr"
  local order = {}
  stderr.close(function() order[#order + 1] = "first" end)
  stderr.close(function() order[#order + 1] = "second" end)
  t.eq(order, { "first", "second" })
end)

test("the breaker keeps the first line of the last message, up to 1000 bytes", function(t)
  local b = require("lib.breaker").new()
  b:strike(("x"):rep(1001) .. "\nmore")
  t.eq(b.last, ("x"):rep(1000))
  b:strike "second"
  t.eq(b.last, "second")
end)

test("tables: headers, indents, numbers", function(t)
  local rows = { { "name", "n" }, { "x", 1.23456 }, { "yy", true }, {} }
  t.eq(show.render(rows), "name  n\nx     1.235\nyy    true\n")
  t.eq(show.render(rows, { header = true, indent = "> ",
    paint = function(color, s) return ("<%s %s>"):format(color, s) end }),
    "> <dim name  n>\n> x     1.235\n> yy    true\n> ")
  t.eq(show.render { { 1, "a" }, { 100, "b" } }, "  1  a\n100  b")
  t.eq(show.render {}, "")
end)

test("text on a terminal", function(t)
  t.eq({ term.painter(true)("red", "x"), term.painter(true)("dim", "x"), term.painter(false)("red",
    "x") }, { "\27[31mx\27[0m", "\27[2mx\27[0m", "x" })
  t.eq({ term.clip("ab", 2), term.clip("abc", 2), term.clip("abc", 1), term.clip("漢字", 4),
    term.clip("漢字", 3), term.clip("漢字", 2) }, { "ab", "a…", "…", "漢字", "漢…", "…" })
  t.eq({ term.pad("ab", 2), term.pad("abc", 2), term.pad("a", 2, true) }, { "ab", "abc", " a" })
  t.eq({ term.width "\27[1;31mé\27[0m", term.width "" }, { 1, 0 })
end)

test("values at the width, the depth and the number that fit", function(t)
  for limit, want in pairs { [2] = '""…', [3] = '"漢"…', [4] = '"漢"…', [5] = '"漢"…',
    [6] = '"漢漢"…', [8] = '"漢漢"…', [9] = '"漢漢漢"', [10] = '"漢漢漢"' } do
    t.eq(pretty.format("漢漢漢", { string = limit }), want, limit)
  end
  t.eq(pretty.format "a\xffb\xfe", [["a\xffb\xfe"]])
  t.eq(pretty.format "\t\r\\\127", [["\t\r\\\x7f"]])
  local flat = '{ "aaaa", "bbbb" }'
  t.eq({ pretty.format({ "aaaa", "bbbb" }, { width = 20 }) }, { flat })
  t.ok(pretty.format({ "aaaa", "bbbb" }, { width = 19 }):find "\n")
  local inner = { { "aaaa", "bbbb" } }
  t.eq(pretty.format(inner, { width = 22 }), "{\n  " .. flat .. "\n}")
  t.eq(select(2, pretty.format(inner, { width = 21 }):gsub("\n", "")), 5)
  t.eq(pretty.format({ { 1 } }, { depth = 1 }), "{ {…} }")
  t.eq(pretty.format({ { { {}, 1 } } }, { depth = 3 }), "{ { { {}, 1 } } }")
  t.eq(pretty.format({ 1, 2, x = 3 }, { items = 2 }), "{ 1, 2, … 1 more }")
  t.eq(pretty.format({ 1, 2, x = 3 }, { items = 3 }), "{ 1, 2, x = 3 }")
  t.eq(pretty.format({ 1, x = 3, y = 4 }, { items = 2 }), "{ 1, x = 3, … 1 more }")
  local many = {}
  for i = 1, 25 do many[("k%02d"):format(i)] = i end
  t.match(pretty.format(many, { items = 2 }), "… 23 more }$")
  t.eq(pretty.format { [true] = 1, [0] = 2, [-1] = 3, a = 4, b = 5, [1.5] = 6 },
    "{ [-1] = 3, [0] = 2, [1.5] = 6, a = 4, b = 5, [true] = 1 }")
  local key = setmetatable({}, { __tostring = function() return "key" end })
  t.eq(pretty.format { [key] = 1 }, "{ [key] = 1 }")
  t.match(pretty.format { [{}] = 1 }, "^{ %[table: 0x%x+%] = 1 }$")
  t.eq(pretty.format { ["a b"] = 1, ["1"] = 2, nil_ = 3, ["nil"] = 4 },
    '{ ["1"] = 2, ["a b"] = 1, ["nil"] = 4, nil_ = 3 }')
  t.eq({ pretty.format(0 / 0), pretty.format(1 / 0), pretty.format(1e100), pretty.format(-0.0),
    pretty.format(2 ^ 53), pretty.format(true) }, { "nan", "inf", "1e+100", "-0.0",
    "9007199254740992.0", "true" })
  local function paint(color, s) return color:sub(1, 1) .. s end
  t.eq(pretty.format({ 1, "x", true, { {} } }, { paint = paint, depth = 2 }),
    '{ c1, g"x", ytrue, { {} } }')
  t.match(pretty.format(print, { paint = paint }), "^mfunction: ")
  local lines = setmetatable({}, { __tostring = function() return "\nx" end })
  t.eq(pretty.format { lines, 1 }, "{\n  \nx,\n  1\n}")
end)

test("pictures of numbers", function(t)
  local ascii = { ascii = true }
  t.eq({ plot.spark({ 1, 2, 3, 4, 5, 6, 7, 8 }, ascii), plot.spark({}, ascii),
    plot.spark({ 5, 5 }, ascii), plot.spark({ 1, 0 / 0, 2 }, ascii) },
    { "_.:-=+*#", "", "__", "_?#" })
  t.eq(plot.spark({ 1, 2, 3 }, { ascii = true, low = 2, high = 2 }), "__#")
  t.eq(plot.spark({ 0, 4, 9 }, { ascii = true, low = 0, high = 8 }), "_=#")
  t.eq(plot.spark({ 0 / 0 }, ascii), "?")
  -- The difference of the first two is above what their type holds.
  t.eq(plot.spark(perigee.tensor({ -40000, 26000, 40000 }):to "f16", ascii), "_*#")
  t.eq(plot.spark({ 1, 2 }, { ascii = false }), "▁█")
  t.eq(plot.histogram({ 0, 0, 0, 4 }, { ascii = true, bins = 2, width = 6 }),
    "         0 .. 2          |###### 3\n         2 .. 4          |##     1")
  t.eq(plot.histogram({ counts = { 1, 0 }, low = 0, high = 1 }, { ascii = false, width = 2 }),
    "         0 … 0.5        |██ 1\n       0.5 … 1          |   0")
  local _, lines = plot.histogram({ 1, 2 }, ascii):gsub("\n", "")
  t.eq(lines, 9)
  t.match(plot.histogram({ 1, 2 }, ascii), "|" .. ("#"):rep(40) .. " 1")
  t.eq(plot.heat({ { 1, 2 }, { 3, 0 / 0 } }, { ascii = true, labels = { "a", "bbb" } }),
    "[2 x 2]   1 to 3\n  a |  ++|\nbbb |@@??|")
  t.eq(plot.heat({ 1, 2, 3 }, { ascii = true, width = 22 }),
    "[1 x 3]   1 to 1   1 of 1 rows, 1 of 3 columns\n|  |")
  t.eq(plot.heat({ 1, 2, 3 }, { ascii = true, width = 24 }),
    "[1 x 3]   1 to 3   1 of 1 rows, 1 of 2 columns\n|  @@|")
  t.eq(plot.heat({ { 1 }, { 2 }, { 3 } }, { ascii = true, height = 2, labels = { "a", "b", "c" } }),
    "[3 x 1]   1 to 3   1 of 2 rows, 1 of 1 columns\na |  |\nc |@@|")
  t.eq(plot.heat({ { 1, 2 }, { 1, 2 }, { 2, 1 } }, { ascii = false, width = 80 }),
    "[3 x 2]   1 … 2\n\27[38;5;17;48;5;17m▀\27[38;5;196;48;5;196m▀\27[0m\n"
    .. "\27[38;5;196m▀\27[38;5;17m▀\27[0m")
  t.raises(function() plot.heat { { { 1 } } } end, "heat: matrix expected, got rank 3")
end)

test("the colors of a heat map go from blue to red by small steps", function(t)
  local row = {}
  for i = 1, 21 do row[i] = i end
  local colors = {}
  for code in plot.heat({ row }, { ascii = false, width = 80 }):gmatch "38;5;(%d+)m" do
    local n = tonumber(code) - 16
    colors[#colors + 1] = { n // 36, n // 6 % 6, n % 6 } -- the cube of 6 x 6 x 6 colors
  end
  t.eq({ #colors, colors[1], colors[21] }, { 21, { 0, 0, 1 }, { 5, 0, 0 } })
  for i = 2, #colors do
    local moved = 0
    for k = 1, 3 do moved = moved + math.abs(colors[i][k] - colors[i - 1][k]) end
    t.eq(moved, 1, i)
  end
end)

test("a progress line", function(t)
  local out, real = {}, io.stderr
  local function run(f)
    out = {}
    rawset(io, "stderr", { write = function(_, ...) out[#out + 1] = table.concat { ... } end })
    f()
    rawset(io, "stderr", real)
    return out
  end
  local p = progress.new("work", 8)
  p.visible, p.columns = true, 100
  local clear = "\r\27[K"
  t.eq(run(function() p:update(2, "note") end),
    { clear .. "work " .. ("█"):rep(6) .. ("░"):rep(18) .. "  25% note" })
  t.eq(run(function() p:update(3) end), {}) -- too soon
  t.eq(run(function() p:update(8) end), { clear .. "work " .. ("█"):rep(24) .. " 100% " })
  p.next = 0
  t.eq(run(function() p:update(0) end), { clear .. "work " .. ("░"):rep(24) .. "   0% " })
  p.next, p.columns = 0, 8
  t.eq(run(function() p:update(9) end), { clear .. "work █…" })
  t.eq(run(function() p:close() p:close() p:update(1) end), { clear })
  local quick = progress.new("quick", 2, 60000)
  quick.visible, quick.columns = true, 100
  t.eq(run(function() quick:update(1) quick:update(2) quick:close() end), {}) -- done in time
  local slow = progress.new("slow", 2, 60000)
  slow.visible, slow.columns, slow.next = true, 100, 0 -- the minute is over
  t.eq(run(function() slow:update(1) slow:update(2) slow:close() end),
    { clear .. "slow " .. ("█"):rep(12) .. ("░"):rep(12) .. "  50% ",
      clear .. "slow " .. ("█"):rep(24) .. " 100% ", clear })
  local none = progress.new("none", 0)
  none.visible, none.columns = true, 100
  t.eq(run(function() none:update(0) end), { clear .. "none " .. ("█"):rep(24) .. " 100% " })
  t.eq(run(function() local _ <close> = none end), { clear })
end)
