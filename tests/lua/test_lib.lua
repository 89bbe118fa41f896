-- lib and ui: command lines, sizes, tables, pretty printing.
local args = require "lib.args"
local pretty = require "ui.pretty"
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
