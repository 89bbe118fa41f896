-- The parts of the REPL that work without a terminal: line editor, completion, history.
local complete = require "repl.complete"
local console = require "ui.console"
local help = require "repl.help"
local history = require "repl.history"
local line = require "ui.line"
local perigee = require "perigee"
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

-- Keys, and the text after them.
local KEYS = {
  { "abc\2x", "abx|c" }, { "abc\1\6x", "ax|bc" }, { "abc\1\4", "|bc" }, { "abc\4", "abc|" },
  { "abc\27[D\8", "a|c" }, { "abc\27[D\127", "a|c" }, { "abc\1\8", "|abc" },
  { "abc\27OD\27ODx\27OCy", "axby|c" }, { "abc\27OHx\27OFy", "xabcy|" },
  { "abc\27[1~x\27[4~y", "xabcy|" }, { "abc\27[7~x\27[8~y", "xabcy|" },
  { "one two\27[1;5Dx\27[1;5Cy", "one xtwoy|" }, { "one two\27[1;3Dx\27[1;3Cy", "one xtwoy|" },
  { "one two\1\27d", "| two" }, { "one two\1\27d\25\25", "oneone| two" },
  { "one two\1\27d\27d\25", " two|" }, { "ab\21\21\25", "ab|" }, { "ab\11\25", "ab|" },
  { "ab\1\11c\25", "cab|" }, { "ab cd\23\25\25", "ab cdcd|" }, { "ab\127\25", "a|" },
  { "a b", "a b|" }, { "a\31b", "ab|" }, { "a\27xb", "ab|" }, { "a_1 é.b\27b\27bx", "a_1 x|é.b" },
  { "one  two\1\27f\27fx", "one  twox|" }, { "one\27fx", "onex|" },
}

test("every key, also under its other names", function(t)
  t.unforced() -- nothing of C is involved
  for _, case in ipairs(KEYS) do t.eq(after(case[1]), case[2], ("%q"):format(case[1])) end
end)

test("a text of several lines: up and down keep the column", function(t)
  local text3 = "\27[200~abc\nde\nfghi\27[201~"
  t.eq(after(text3 .. "\27[A"), "abc\nde|\nfghi")
  t.eq(after(text3 .. "\16\16"), "ab|c\nde\nfghi")
  t.eq(after(text3 .. "\2\2\2\16\16"), "a|bc\nde\nfghi")
  t.eq(after(text3 .. "\16\16\16"), "ab|c\nde\nfghi")
  t.eq(after(text3 .. "\16\16\14"), "abc\nde|\nfghi")
  t.eq(after(text3 .. "\16\16\14\14"), "abc\nde\nfg|hi")
  t.eq(after(text3 .. "\16\16\14\14\14"), "abc\nde\nfg|hi")
  t.eq(after(text3 .. "\16\1x\5y"), "abc\nxdey|\nfghi")
  t.eq(after(text3 .. "\16\11"), "abc\nde|\nfghi")
  t.eq(after(text3 .. "\16\2\11\25\25"), "abc\ndee|\nfghi")
  t.eq(after "\27[200~éé\nabc\27[201~\27[A", "é|é\nabc")
  t.eq(after "\27[200~abcd\n漢字\27[201~\2\27[A", "abc|d\n漢字")
  t.eq(after "\27[200~abcd\n漢字\27[201~\1\27[A\6\27[B", "abcd\n|漢字")
end)

test("characters stay whole when their bytes arrive one by one", function(t)
  t.eq(after "é漢\127", "é|")
  t.eq(after { "\xe6", "\xbc", "\xa2", "x" }, "漢x|")
  t.eq(after "é漢\27[D\27[Dx", "x|é漢")
  t.eq(after { "ab\27", "[", "D", "x" }, "ax|b")
end)

test("a character is taken when all of its bytes are there", function(t)
  for _, c in ipairs { "a", "é", "\u{7ff}", "\u{800}", "漢", "\u{ffff}", "\u{10000}", "🙂" } do
    local editor = new_editor()
    for i = 1, #c do
      editor:feed(c:sub(i, i))
      t.eq({ editor.text, editor.pending }, i < #c and { "", c:sub(1, i) } or { c, "" }, c)
    end
    editor:feed "x\2\2"
    t.eq(editor.cursor, 0)
    editor:feed "\6"
    t.eq(editor.cursor, #c)
  end
  local editor = new_editor() -- an escape sequence that does not end
  editor:feed("\27[" .. ("1"):rep(14))
  t.eq(editor.text, "")
  editor:feed "1"
  t.eq(editor.text, "[" .. ("1"):rep(15))
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
  t.eq(after "a\27[200~\27[201~b", "ab|")
  t.eq(after "\27[200~a\27[201~\27[200~b\27[201~", "ab|")
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

test("history: every step, the draft and its ends", function(t)
  t.unforced() -- nothing of C is involved
  local entries = { "x1", "x2", "x3" }
  for keys, want in pairs { ["\27[A\27[A\27[A\27[B"] = "x2", ["\16\16\16\14"] = "x2",
    ["\27OA\27OA"] = "x2", ["\27OA\27OA\27OB"] = "x3", ["dra\27[B"] = "dra",
    ["a\27[A\27[Bb\27[A\27[B"] = "ab", ["a\27[A\27[Ab\27[B\27[B"] = "a",
    ["\18\18\5"] = "x3", ["\18\18\18\5"] = "x2", ["\18x1\127\5"] = "x3",
    ["\18x1\8\18\5"] = "x2", ["\18x2zz\5"] = "x2", ["a\18x2\27[A\5"] = "x3",
    ["a\18x2\3"] = "a", ["a\18x2\7"] = "a" } do
    t.eq(after(keys, { table.unpack(entries) }), want .. "|", ("%q"):format(keys))
  end
  t.eq(after("\18a\18b\5", { "ab1", "a", "ab2" }), "ab1|")
  t.eq(after("\18d o\5", { "a", "second one", "do" }), "second one|")
  t.eq(after("\18a.b\5", { "a.b", "axb" }), "a.b|")
  local editor, owner = new_editor(entries)
  editor:feed "a\18x2"
  editor:feed "\27"
  t.ok(editor.search and editor.pending == "\27")
  local drawn = #owner.screen
  editor:flush_escape()
  t.eq({ editor.search, editor.pending, editor.text }, { nil, "", "a" })
  t.ok(#owner.screen > drawn)
  drawn = #owner.screen
  editor:flush_escape()
  t.eq(#owner.screen, drawn)
end)

test("what the keys that end or clear a line write", function(t)
  local function written(keys, more)
    local editor, owner = new_editor { "old\nentry of the history" }
    editor:feed(keys)
    owner.screen = {}
    editor:feed(more)
    return table.concat(owner.screen), editor
  end
  local clear, empty = "\r\27[J", "\r\27[J> \r\27[2C"
  t.eq(written("ab\2", "\r"), clear .. "> ab\r\27[4C" .. "\r\n" .. empty)
  t.eq(written("ab\2", "\3"), clear .. "> ab\r\27[4C" .. "^C\r\n" .. empty)
  local long = ("x"):rep(30)
  local got, editor = written(long, "\12")
  t.eq({ got, editor.row }, { "\27[H\27[2J" .. clear .. "> " .. long .. "\r\27[12C", 1 })
  t.eq(written(long, "\r"), "\27[1A" .. clear .. "> " .. long .. "\r\27[12C\r\n" .. empty)
  t.eq(written("a", "\18"), clear .. "(search ''): ")
  t.eq(written("a\18", "old"), clear .. "(search 'old'): ol…")
  t.eq(written("a\18", "d"), clear .. "(search 'd'): old …")
  t.eq(written("a\18", "zz"), clear .. "(search 'zz'): ")
end)

test("a closed editor takes no more keys and draws nothing", function(t)
  local editor, owner = new_editor()
  owner.on_end = function() editor.closed = true end
  editor:feed "a\3"
  owner.screen = {}
  editor:feed "\4abc"
  t.eq({ editor.text, editor.pending, owner.screen }, { "", "abc", {} })
end)

test("Tab completes, or lists", function(t)
  t.eq(after "al\t", "alpha|")
  t.eq(after "be\t.g\t", "beta.gamma|")
  t.eq(after "\t", "  |")
  local editor, owner = new_editor()
  editor:feed "alpha\t"
  t.match(table.concat(owner.screen), "alpha  alphabet\r\n")
  t.eq(editor.text, "alpha")
  t.eq(after "x = alx\2\t", "x = alpha|x")
  t.eq(after "\27[200~f(\n\27[201~\t", "f(\n  |")
  t.eq(after "alphabe\t", "alphabet|")
  t.eq(after "alphabet\t", "alphabet|")
  t.eq(after "zzz\t", "zzz|")
end)

test("Tab lists at most 200 candidates", function(t)
  for n, more in pairs { [1] = false, [2] = "", [200] = "", [201] = "  …" } do
    local editor, owner = new_editor()
    local list = {}
    for i = 1, n do list[i] = ("c%d"):format(i) end
    owner.complete = function(before) return list, before end
    editor:feed "c"
    owner.screen = {}
    editor:feed "\t"
    if n == 1 then
      t.eq(editor.text, "c1")
    else
      t.eq(table.concat(owner.screen), "\r\27[J" .. table.concat(list, "  ", 1, math.min(n, 200))
        .. more .. "\r\n\r\27[J> c\r\27[3C")
    end
  end
end)

test("a list of candidates takes the place of a text of several rows", function(t)
  local editor, owner = new_editor()
  local long = "x = " .. ("y"):rep(20) .. " + alpha"
  editor:feed(long)
  t.eq(editor.row, 1)
  owner.screen = {}
  editor:feed "\t"
  t.eq(table.concat(owner.screen), "\27[1A\r\27[Jalpha  alphabet\r\n\r\27[J> " .. long
    .. "\r\27[14C")
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
  editor:feed "y" -- one beyond
  t.eq(owner.screen[#owner.screen], "> " .. ("y"):rep(19) .. "\r\27[1C")
  t.eq(editor.row, 1)
end)

--- The screen of a terminal of 20 columns after this output: its lines, and the cursor as "|".
local function screen_of(output)
  local rows, row, column = { {} }, 1, 0
  local function put(c)
    if column == 20 then row, column = row + 1, 0 end
    rows[row] = rows[row] or {}
    for i = #rows[row] + 1, column do rows[row][i] = " " end
    column = column + 1
    rows[row][column] = c
  end
  while output ~= "" do
    local n, command = output:match "^\27%[(%d*)(%a)"
    local taken
    if n then
      local by = tonumber(n) or 1
      if command == "A" then row = row - by
      elseif command == "C" then column = column + by
      else
        for i = column + 1, 20 do rows[row][i] = nil end
        for i = row + 1, #rows do rows[i] = nil end
      end
      taken = #n + 3
    else
      local c = output:match "^[%z\1-\127\194-\244][\128-\191]*"
      if c == "\r" then column = 0
      elseif c == "\n" then
        row = row + 1
        rows[row] = rows[row] or {}
      else put(c) end
      taken = #c
    end
    output = output:sub(taken + 1)
  end
  column = math.min(column, 19)
  for i = #rows[row] + 1, column do rows[row][i] = " " end
  table.insert(rows[row], column + 1, "|")
  for i, list in ipairs(rows) do rows[i] = table.concat(list) end
  return rows
end

test("a screen shows the text and the cursor, whatever was there before", function(t)
  t.unforced() -- the terminal below allocates a lot
  local edge, two = ("e"):rep(18), ("z"):rep(38)
  local function paste(s) return "\27[200~" .. s .. "\27[201~" end
  local cases = {
    { paste "ab\ncd", { "> ab", ". cd|" } },
    { paste "ab\ncd" .. "\16", { "> ab|", ". cd" } },
    { paste(edge .. "\ncd"), { "> " .. edge, ". cd|" } },
    { paste("cd\n" .. edge), { "> cd", ". " .. edge, "|" } },
    { paste("cd\n" .. edge) .. "\2", { "> cd", ". " .. edge:sub(2) .. "|e", "" } },
    { paste("cd\n" .. edge) .. "\16", { "> cd|", ". " .. edge, "" } },
    { two, { "> " .. two:sub(1, 18), two:sub(1, 20), "|" } },
    { two .. "\1", { "> |" .. two:sub(1, 18), two:sub(1, 20), "" } },
    { two .. "\1\27[F\127", { "> " .. two:sub(1, 18), two:sub(1, 19) .. "|" } },
    { two .. "\21ab", { "> ab|" } },
    { paste(two .. "\n" .. edge .. "\nx") .. "\16\16",
      { "> z|" .. two:sub(2, 18), two:sub(1, 20), ". " .. edge, ". x" } },
  }
  for i, case in ipairs(cases) do
    for _, size in ipairs { 1, #case[1] } do -- drawn after each byte, or once
      local editor, owner = new_editor()
      editor:feed "some text before\21"
      for at = 1, #case[1], size do editor:feed(case[1]:sub(at, at + size - 1)) end
      t.eq(screen_of(table.concat(owner.screen)), case[2], ("screen %d by %d"):format(i, size))
    end
  end
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
  env.chain = setmetatable({ a = 1 }, { __index = { a = print, ab = print, ["a b"] = 1, [1] = 1 } })
  env.loop = setmetatable({ x = 1 }, {})
  getmetatable(env.loop).__index = env.loop
  t.eq({ list "chain.", list "chain:", list "loop." }, { { "a", "ab" }, { "ab" }, { "x" } })
  local x <close> = perigee.tensor.zeros { 2 }
  env.x = x
  t.eq({ list "x:uns", list "x.uns", list "x.sha", list "x:sha" },
    { { "unsqueeze" }, { "unsqueeze" }, { "shape" }, {} })
  t.eq({ list "an", list "f().al", list "(1):fo", list "x = x.sh" }, { { "and" }, {}, {},
    { "shape" } })
  local modules = { "repl", "repl.complete", "repl.help", "repl.history" }
  for _, before in ipairs { 'require "rep', "require('rep", "x = require ( 'rep", "require'rep" } do
    local got, part = complete.candidates(before, env)
    t.eq({ got, part }, { modules, "rep" }, before)
  end
  package.loaded["zz.loaded"] = true
  t.eq(list 'require "zz', { "zz.loaded" })
  package.loaded["zz.loaded"] = nil
  for before, part in pairs { ["obj.ow"] = "ow", ["ob"] = "ob", ["1 + "] = "", ["obj:"] = "" } do
    t.eq(select(2, complete.candidates(before, env)), part, before)
  end
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
  t.eq(uv.fs_stat(folder .. "/deep").mode & tonumber("777", 8), tonumber("700", 8))
  local lines = setmetatable({ "a.b", "axb", "a.b c" }, getmetatable(h))
  t.eq({ lines:search("a.b", 9), lines:search("a.b", 3), lines:search("a.b", 2),
    lines:search("a.b", 1), lines:search("axb", 2) }, { 3, 3, 1, 1, 2 })
  t.eq({ lines:search("a.b", 0), lines:search("axb", 1) }, {})
  os.remove(path)
  os.remove(folder .. "/deep/er")
  os.remove(folder .. "/deep")
  os.remove(folder)
  t.eq(text.read_file(path), nil)
end)

--- Calls f with these variables in the environment (false: without them).
local function with_environment(values, f)
  local before = {}
  for name, value in pairs(values) do
    before[name] = os.getenv(name) or false
    if value then uv.os_setenv(name, value) else uv.os_unsetenv(name) end
  end
  local ok, why = pcall(f)
  for name, value in pairs(before) do
    if value then uv.os_setenv(name, value) else uv.os_unsetenv(name) end
  end
  if not ok then error(why, 0) end
end

test("where the history is", function(t)
  local function path(state, home)
    local got
    with_environment({ XDG_STATE_HOME = state, HOME = home }, function()
      got = history.open().path
    end)
    return got
  end
  t.eq(path("/s", "/h"), "/s/perigee/history")
  t.eq(path("relative", "/h"), "/h/.local/state/perigee/history")
  t.eq(path("", "/h"), "/h/.local/state/perigee/history")
  t.eq(path(false, "/h"), "/h/.local/state/perigee/history")
  t.eq(path(false, ""), nil)
  t.eq(path(false, false), nil)
  with_environment({ XDG_STATE_HOME = false, HOME = false }, function()
    local h = history.open()
    h:add "kept in memory"
    t.eq({ h[1], h:save() }, { "kept in memory", nil, "no home folder" })
  end)
  local none, why = history.open("README.md/history"):save()
  t.eq(none, nil)
  t.match(why, "^ENOTDIR")
end)

--- A session of the REPL without a terminal: say(source) returns what it wrote to its console and
--- to stderr. Colors are marked.
local function session(timing)
  local owner, out, err, open, quits = nil, {}, {}, console.open, 0
  local function paint(color, s) return ("<%s %s>"):format(color, s) end
  console.open = function(given)
    owner = given
    return { paint = paint, terminal = timing, run = function() out[#out + 1] = "running" end,
      write = function(s) out[#out + 1] = s end, quit = function() quits = quits + 1 end }
  end
  with_environment({ XDG_STATE_HOME = "/nonexistent" }, repl.start)
  console.open = open
  return function(source)
    local real = io.stderr
    rawset(io, "stderr", { write = function(_, ...) err[#err + 1] = table.concat { ... } end })
    out, err = {}, {}
    owner.on_input(source)
    rawset(io, "stderr", real)
    return table.concat(out), table.concat(err), quits
  end, owner, out
end

test("a session evaluates, prints and remembers", function(t)
  local say, owner, out = session()
  t.eq(out, { "running" })
  t.ok(_G.perigee == perigee and _G.uv == uv)
  t.eq({ owner.prompt, owner.more }, { "pe> ", "  > " })
  t.match(owner.banner, "^perigee " .. perigee.version:gsub("%p", "%%%0") .. "  ·  %? for help")
  t.eq((owner.complete "perigee.gua"), { "guard" })
  for source, want in pairs { ["1+1"] = "<cyan 2>\n", ["1, 'a'"] = '<cyan 1>\n<green "a">\n',
    ["x = 5"] = "", ["nil"] = "<yellow nil>\n", ["7;"] = "", ["7; "] = "", ["  "] = "",
    ["return 3"] = "<cyan 3>\n", ["local a = 1 return a"] = "<cyan 1>\n" } do
    t.eq({ say(source) }, { want, "", 0 }, source)
  end
  say "'last', 2"
  t.eq(_G._, "last")
  say "x = 1"
  t.eq(_G._, "last")
  say "8;"
  t.eq(_G._, 8)
  say "nil"
  t.eq(_G._, nil)
  with_environment({ COLUMNS = "10" }, function()
    t.eq(say "{ 'aaa', 'bbb' }", '{\n  <green "aaa">,\n  <green "bbb">\n}\n')
  end)
  _G.x, _G.perigee, _G.uv = nil, nil, nil
end)

test("a session reports errors without its own frames", function(t)
  local say = session()
  t.eq({ say "error('oops', 0)" }, { "", "oops\nstack traceback:\n\t[C]: in function 'error'\n"
    .. "\trepl:1: in main chunk\n", 0 })
  t.match(select(2, say "= 1"), "^repl:1: unexpected symbol near")
  t.eq({ say "for" }, { "", "repl:1: <name> expected near <eof>\n", 0 })
  t.match(select(2, say "setmetatable({}, { __tostring = function() error 'shown' end })"), "^$")
  t.match(select(2, say "f("), "near <eof>\n$")
  _G.perigee, _G.uv = nil, nil
end)

test("commands of a session", function(t)
  local say = session()
  t.match(say "?", "^  1 %+ 1 .*:quit          quit %(or Ctrl%-D%)\n$")
  t.match(say "? sys.width ", "^perigee%.sys%.width%(")
  t.match(say "  ?guard", "^perigee%.guard%(fn, limits%)\n  ")
  t.eq({ say "?nothing" }, { "", "no help for 'nothing'\n", 0 })
  t.eq({ say ":bogus one" }, { "", "unknown command :bogus (? for help)\n", 0 })
  t.eq({ say "?a b" }, { "", "unknown command ?a (? for help)\n", 0 })
  t.eq({ say ":q" }, { "", "", 1 })
  t.eq({ say "  :quit" }, { "", "", 2 })
  _G.perigee, _G.uv = nil, nil
  for source, want in pairs { ["?"] = true, [":q"] = true, [" ?for"] = true, ["for"] = false,
    ["1"] = true, ["x ="] = false, ["x = ="] = true, ["x = 1"] = true, [""] = true } do
    t.eq(repl.is_complete(source), want, source)
  end
end)

test("a session on a terminal shows the time of what was slow", function(t)
  local say = session(true)
  t.match(say "uv.sleep(101)", "^<dim %d+%.%d+ m?s>\n$")
  t.eq(say "1", "<cyan 1>\n")
  t.eq(session(false) "uv.sleep(101);", "")
  _G.perigee, _G.uv = nil, nil
end)

test("annotations become help", function(t)
  local entries = help.read [[
---@meta
--- A module.
---@class my.module  what it does
---@field version string  its version
--- Long
--- text.
---@field flags? integer
local module = {}

--- Adds numbers.
--- Second line.
---@param a integer
---@return integer
function module.add(a) end

local unrelated = 1
---@class (exact) my.Thing : base
local Thing = {}
function Thing:go() end
function other.free(x) end
]]
  local short = {}
  for i, e in ipairs(entries) do
    short[i] = { e.kind, e.name, e.class, e.member or false, e.signature or e.description }
  end
  t.eq(short, {
    { "class", "my.module", "my.module", false, "what it does" },
    { "field", "my.module.version", "my.module", "version", "string  its version" },
    { "field", "my.module.flags", "my.module", "flags", "integer  Long text." },
    { "function", "my.module.add", "my.module", "add", "my.module.add(a)" },
    { "class", "my.Thing", "my.Thing", false, ": base" },
    { "function", "my.Thing:go", "my.Thing", "go", "my.Thing:go()" },
    { "function", "other.free", "other", "free", "other.free(x)" },
  })
  t.eq(help.describe(entries[1]), "my.module\n  what it does\n  A module.\n  meta ")
  t.eq(help.describe(entries[2]), "my.module.version\n  string  its version")
  t.eq(help.describe(entries[4]), "my.module.add(a)\n  Adds numbers.\n  Second line.\n"
    .. "  param a integer\n  return integer")
  t.eq(help.describe(entries[6]), "my.Thing:go()")
  t.eq(help.describe(entries[7]), "other.free(x)")
end)

test("help finds whole names before endings", function(t)
  t.unforced() -- it reads every annotation
  local function names(wanted)
    local out = {}
    for i, e in ipairs(help.find(wanted)) do out[i] = e.name end
    return out
  end
  t.eq(names "perigee.Tokenizer:encode", { "perigee.Tokenizer:encode" })
  t.eq(names "perigee.TOKENIZER.encode", { "perigee.Tokenizer:encode" })
  t.eq(names "tokenizer.encode", { "perigee.Tokenizer:encode" })
  t.eq(names "sys", { "perigee.sys" })
  t.eq(names "ncode", {})
  local class = help.describe(help.find("perigee.Detokenizer")[1])
  t.match(class, "^perigee%.Detokenizer\n")
  t.match(class, "\n  perigee%.Detokenizer:push%(")
  t.eq(class:find "perigee.Tensor:", nil)
  class = help.describe(help.find("perigee.Tokenizer")[2])
  t.match(class, "\n  perigee%.Tokenizer%.size  integer +Highest id %+ 1%.\n")
end)
