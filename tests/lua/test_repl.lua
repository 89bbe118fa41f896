-- The parts of the REPL that work without a terminal: line editor, completion, history.
local complete = require "repl.complete"
local history = require "repl.history"
local line = require "ui.line"
local repl = require "repl"
local test = require("harness").test
local text = require "lib.text"
local uv = require "luv"

--- An editor whose lines are collected.
local function new_editor(entries)
  local owner = { prompt = "> ", more = ". ", lines = {}, screen = {}, ended = false }
  owner.history = setmetatable(entries or {}, getmetatable(history.open "/nonexistent"))
  owner.write = function(s) owner.screen[#owner.screen + 1] = s end
  owner.columns = function() return 20 end
  owner.paint = function(_, s) return s end
  owner.is_complete = repl.is_complete
  local env = { alpha = 1, alphabet = 2, beta = { gamma = 3 } }
  owner.complete = function(before) return complete.candidates(before, env) end
  owner.on_line = function(s) owner.lines[#owner.lines + 1] = s end
  owner.on_end = function() owner.ended = true end
  return line.new(owner), owner
end

--- The text after these keys, with | at the cursor.
local function after(keys, entries)
  local editor = new_editor(entries)
  for _, k in ipairs(type(keys) == "table" and keys or { keys }) do editor:feed(k) end
  return editor.text:sub(1, editor.cursor) .. "|" .. editor.text:sub(editor.cursor + 1)
end

test("keys edit the line", function(t)
  t.eq(after "abc", "abc|")
  t.eq(after "abc\27[D\27[Dx", "ax|bc")
  t.eq(after "abc\1x", "x|abc")
  t.eq(after "abc\27[H\27[C\27[3~", "a|c")
  t.eq(after "abc\1\5d", "abcd|")
  t.eq(after "abc\27[D\11", "ab|")
  t.eq(after "abc def\23x", "abc x|")
  t.eq(after "abc def\21x", "x|")
  t.eq(after "abc def\21\25\25", "abc defabc def|")
  t.eq(after "ab\127", "a|")
  t.eq(after "\127\8", "|")
  t.eq(after "one two\27bx", "one x|two")
  t.eq(after "one two\1\27fx", "onex| two")
  t.eq(after "a\27[Zb", "ab|")
end)

test("characters stay whole when their bytes arrive one by one", function(t)
  t.eq(after "é漢\127", "é|")
  t.eq(after { "\xe6", "\xbc", "\xa2", "x" }, "漢x|")
  t.eq(after "é漢\27[D\27[Dx", "x|é漢")
  t.eq(after { "ab\27", "[", "D", "x" }, "ax|b")
end)

test("Enter evaluates complete input and continues incomplete input", function(t)
  local editor, owner = new_editor()
  editor:feed "1 + 1\r"
  editor:feed "function f()\rreturn 1\rend\r"
  editor:feed "bad syntax here\r"
  t.eq(owner.lines, { "1 + 1", "function f()\nreturn 1\nend", "bad syntax here" })
  editor:feed "abc\3"
  t.eq(editor.text, "")
  editor:feed "\4"
  t.eq(owner.ended, true)
end)

test("a paste is text, not keys", function(t)
  t.eq(after "\27[200~a\tb\r\nc\27[201~d", "a b\ncd|")
  t.eq(after { "\27[200~a\1", "b\27[2", "01~c" }, "a bc|")
end)

test("history: up, down, draft, search", function(t)
  local entries = { "first", "second one", "third" }
  t.eq(after("\27[A", entries), "third|")
  t.eq(after("\27[A\27[A\27[A\27[A", entries), "first|")
  t.eq(after("dra\27[A\27[A\27[B\27[B", entries), "dra|")
  t.eq(after("\18on", entries), "|")
  t.eq(after("\18on\5", entries), "second one|")
  t.eq(after("\18i\18\5", entries), "first|")
  t.eq(after("\18zzz\7x", entries), "x|")
  t.eq(after("for\r  x\27[A", { "old" }), "for|\n  x")
end)

test("Tab completes, or lists", function(t)
  t.eq(after "al\t", "alpha|")
  t.eq(after "be\t.g\t", "beta.gamma|")
  t.eq(after "\t", "  |")
  local editor, owner = new_editor()
  editor:feed "alpha\t"
  t.match(table.concat(owner.screen), "alpha  alphabet\r\n")
  t.eq(editor.text, "alpha")
end)

test("paths are completed", function(t)
  local files = require "ui.files"
  t.eq(files.complete "examples/moonlet/images/b", { "examples/moonlet/images/blue_circle.png",
    "examples/moonlet/images/blue_square_yellow_star.png" })
  t.eq(files.complete "examples/moonlet/im", { "examples/moonlet/images/" })
  t.eq(files.complete "READ", { "README.md" })
  t.eq(files.complete "nowhere/x", {})
  t.eq(files.complete ".luach", { ".luacheckrc" })
end)

test("drawing wraps long lines and places the cursor", function(t)
  local editor, owner = new_editor()
  editor:feed(("x"):rep(30)) -- 32 columns of 20
  t.eq(owner.screen[#owner.screen], "> " .. ("x"):rep(30) .. "\r\27[12C")
  t.eq(editor.row, 1)
  editor:feed "\1"
  t.eq(owner.screen[#owner.screen], "> " .. ("x"):rep(30) .. "\27[1A\r\27[2C")
  t.eq(editor.row, 0)
  editor:feed("\5\21" .. ("y"):rep(18)) -- exactly the edge
  t.eq(owner.screen[#owner.screen], "> " .. ("y"):rep(18) .. "\r\n\r")
  t.eq(editor.row, 1)
end)

test("completion follows tables, metatables and methods", function(t)
  local env = { string = string, s = "text",
    obj = setmetatable({ own = 1 }, { __index = { inherited = function() end } }),
    hang = setmetatable({}, { __index = function() while true do end end }) }
  local function list(before) return (complete.candidates(before, env)) end
  local many, sorted = {}, {}
  for i = 1, 40 do
    sorted[i] = ("x%02d"):format(i)
    many[sorted[i]] = true
  end
  env.many = many
  t.eq(list "many.x", sorted)
  t.eq(list "string.form", { "format" })
  t.eq(list "x = obj.", { "inherited", "own" })
  t.eq(list "obj:", { "inherited" })
  t.eq(list "s:up", { "upper" })
  t.eq(list "ob", { "obj" })
  t.eq(list "whi", { "while" })
  t.eq(list "nothing.a", {})
  t.eq(list "hang.a.b", {})
  t.eq(list 'require "repl.hel', { "repl.help" })
  t.eq(list "1 + ", {})
end)

test("the history file has no duplicates, and entries may have several lines", function(t)
  local folder = assert(uv.fs_mkdtemp(os.tmpname():gsub("[^/]*$", "") .. "perigee-XXXXXX"))
  local path = folder .. "/deep/er/history"
  local h = history.open(path)
  for _, entry in ipairs { "a", "b", "a", "x\ny\\n", "   ", "" } do h:add(entry) end
  local again = history.open(path)
  t.eq({ table.unpack(again) }, { "b", "a", "x\ny\\n" })
  t.eq(again:search("a", 9), 2)
  t.eq(uv.fs_stat(path).mode & tonumber("777", 8), tonumber("600", 8))
  for i = 1, 1100 do h[i] = tostring(i) end
  h:add "last"
  t.eq(#history.open(path), 1000)
  t.eq(history.open(path)[1000], "last")
  os.remove(path)
  os.remove(folder .. "/deep/er")
  os.remove(folder .. "/deep")
  os.remove(folder)
  t.eq(text.read_file(path), nil)
end)
