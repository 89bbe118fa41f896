-- Patterns, string.rep and the loops of table: the same results as Lua's own functions, which the
-- registry keeps, and a deadline that ends what would run for hours.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

local forced = ...
local registry = debug.getregistry()
local own = { string = registry["perigee.own_string"], table = registry["perigee.own_table"] }

-- Enough to meet every pair of items; a forced collection or a sanitizer takes too long for more.
local ROUNDS = (forced or os.getenv "SAN") and 300 or 20000

-- ---- comparing ---------------------------------------------------------------------------------

local ITEMS = { "a", "b", "c", " ", "%a", "%d", "%s", "%w", "%A", "%.", "%%", "%z", "%1", "%2",
  "%0", "%b()", "%bab", "%f[a]", "%f[%w]", "%f[^%w]", ".", "[abc]", "[^a]", "[a-c]", "[%a_]",
  "[]a]",
  "[^]a]", "[a-cx]", "[a-b%d_-]", "[b-ca-a ]", "[^a-b(]",
  "[a-]", "[a%]b]", "[a-%z]", "[%a-z]", "(", ")", "()", "^", "$", "*", "+", "-", "?", "x",
  "\0", "[", "]", "%", "é", "(a*", "(.)", "(a-)b" }
local PIECES = { "a", "b", "c", " ", "(", ")", "x", "_", "1", "é", "\0", "ab", "aab", "]", "-", "%",
  "$", "^", "\n", "." }
local REPLACEMENTS = { "<%0>", "%1", "%2", "-", "%%", { a = "X", b = false, ab = "Y" },
  function(x, y) return y and tostring(x) .. tostring(y) end, "%9", "%", 12, "%1%1" }

local function some(list, most)
  local parts = {}
  for i = 1, math.random(0, most) do parts[i] = list[math.random(#list)] end
  return own.table.concat(parts)
end

local function call(f, ...) return table.pack(pcall(f, ...)) end

--- Ours compiles a pattern first, so it may refuse one whose malformed part Lua does not reach.
local function agree(theirs, ours, is_pattern)
  if theirs[1] ~= ours[1] then return is_pattern and theirs[1] end
  if not theirs[1] then return true end
  for i = 1, math.max(theirs.n, ours.n) do
    if theirs[i] ~= ours[i] then return false end
  end
  return theirs.n == ours.n
end

local function all_matches(gmatch, ...)
  local out, n = {}, 0
  for a, b, c in gmatch(...) do
    n = n + 1
    out[n] = ("%s|%s|%s"):format(tostring(a), tostring(b), tostring(c))
    if n > 50 then break end
  end
  return own.table.concat(out, ";")
end

test("random patterns give what Lua's own functions give", function(t)
  local seed = os.time()
  math.randomseed(seed)
  for _ = 1, ROUNDS do
    local pattern, subject = some(ITEMS, 6), some(PIECES, 12)
    local start = math.random() < 0.2 and math.random(-14, 14) or nil
    local most = math.random() < 0.2 and math.random(-1, 4) or nil
    local replacement = REPLACEMENTS[math.random(#REPLACEMENTS)]
    local function compare(name, ...)
      local theirs, ours = call(own.string[name], ...), call(string[name], ...)
      if not agree(theirs, ours, true) then
        t.fail(("seed %d: %s(%q, %q): %s, not %s"):format(seed, name, subject, pattern,
          tostring(ours[2]), tostring(theirs[2])))
      end
    end
    compare("find", subject, pattern, start)
    compare("match", subject, pattern, start)
    compare("gsub", subject, pattern, replacement, most)
    local theirs = call(all_matches, own.string.gmatch, subject, pattern, start)
    if not agree(theirs, call(all_matches, string.gmatch, subject, pattern, start), true) then
      t.fail(("seed %d: gmatch(%q, %q)"):format(seed, subject, pattern))
    end
  end
end)

test("patterns that are long, deep or unusual", function(t)
  local cases = { { ("a"):rep(500), ("b?"):rep(190) .. ("a"):rep(100) },
    { ("a"):rep(300), ("(a)"):rep(32) }, { "a.b", "%." }, { "x=1, y=2", "(%w+)=(%w+)" },
    { ("ab"):rep(99), ("[ab]"):rep(120) }, { "caf\xe9", "[\xe0-\xff]" }, { "", "" }, { "", "^$" },
    { "a\0b", "%z" }, { "THE (quick) fox", "%((%a+)%)" }, { "f(a(b)c)d", "%b()" } }
  for _, case in ipairs(cases) do
    t.eq(call(string.find, table.unpack(case)), call(own.string.find, table.unpack(case)), case[2])
  end
  for _, bad in ipairs { "(", "()%", "%", "[a", "%b", "%f", "(()", "%1", ("()"):rep(33) } do
    t.eq(pcall(string.find, "a", bad), false, bad)
  end
  t.eq({ ("abc"):gsub("", "-") }, { "-a-b-c-", 4 })
  t.eq(("x"):rep(3, ","), "x,x,x")
  t.eq((""):rep(1 << 40), "")
  t.raises(function() return ("ab"):rep(math.maxinteger) end, "resulting string too large")
end)

test("every class, alone, complemented and in sets, for every byte", function(t)
  local all = {}
  for c = 0, 255 do all[c + 1] = string.char(c) end
  all = table.concat(all)
  for name in ("acdglpsuwxz"):gmatch "." do
    for _, form in ipairs { "%" .. name, "%" .. name:upper(), "[%" .. name .. "]",
      "[^%" .. name .. "]", "[%" .. name:upper() .. "\1-\3x]" } do
      t.eq((all:gsub(form, "")), (own.string.gsub(all, form, "")), form)
    end
  end
  for _, set in ipairs { "[a-z]", "[^a-z]", "[z-a]", "[\0-\31]", "[\128-\255]", "[a-cA-C_]",
    "[%-%]]", "[-a]", "[a%-c]", "[+--]", "[^%s%p]" } do
    t.eq((all:gsub(set, "")), (own.string.gsub(all, set, "")), set)
  end
end)

test("what is wrong with a pattern or a replacement", function(t)
  for bad, why in pairs { ["("] = "unfinished capture", ["a)."] = "invalid pattern capture",
    ["%"] = "malformed pattern (ends with '%')", ["[a"] = "malformed pattern (missing ']')",
    ["["] = "missing ']'", ["[a%"] = "missing ']'", ["[^"] = "missing ']'", ["[]"] = "missing ']'",
    ["%b"] = "missing arguments to '%b'", ["%bx"] = "missing arguments to '%b'",
    ["%f"] = "missing '[' after '%f'", ["%fa"] = "missing '[' after '%f'",
    ["%1"] = "invalid capture index %1", ["(a%1)"] = "invalid capture index %1",
    ["(a)%2"] = "invalid capture index %2", ["%0"] = "invalid capture index %0" } do
    t.raises(function() return ("aaa"):find(bad) end, why)
  end
  for bad, why in pairs { ["%"] = "invalid use of '%'", ["%x"] = "invalid use of '%'",
    ["%2"] = "invalid capture index %2", ["a%:"] = "invalid use of '%'" } do
    t.raises(function() return ("a"):gsub("(a)", bad) end, why)
  end
  t.raises(function() return ("a"):gsub("a", function() return {} end) end,
    "invalid replacement value (a table)")
  t.raises(function() return ("a"):gsub("a") end, "string/function/table expected, got no value")
  t.eq({ ("a"):gsub("a", "%1%0") }, { "aa", 1 })
  local nine = ("(a)"):rep(9)
  t.eq((("a"):rep(9):gsub(nine, "%9")), "a")
end)

test("pack takes what Lua's own takes, sizes of up to six digits", function(t)
  for _, args in ipairs { { "<i4", 5 }, { ">s1s2", "ab", "c" }, { "z", "x" }, { "" },
    { "<i1i2i3i4i5i6i7i8", 1, 2, 3, 4, 5, 6, 7, 8 }, { "c100000", "x" }, { "!4 i1 i4", 1, 2 } } do
    t.eq(call(string.pack, table.unpack(args)), call(own.string.pack, table.unpack(args)), args[1])
  end
  t.raises(function() return string.pack("c1000000", "x") end, "has more than 6 digits")
  t.raises(function() return string.pack("i4c0000001", 1, "x") end, "has more than 6 digits")
  t.raises(function() return string.pack("i4", "x") end, "bad argument #2")
end)

test("find and gmatch begin where they are told", function(t)
  for start = -5, 6 do
    for _, f in ipairs { "find", "match" } do
      for _, pattern in ipairs { "a", "()", "^.", "b*", "%f[b]" } do
        t.eq(call(string[f], "abab", pattern, start), call(own.string[f], "abab", pattern, start))
      end
    end
    t.eq(all_matches(string.gmatch, "abab", "()b*", start),
      all_matches(own.string.gmatch, "abab", "()b*", start))
    t.eq(call(string.find, "a.b.", ".", start, true),
      call(own.string.find, "a.b.", ".", start, true))
  end
  t.eq({ ("a+b"):find("+b", 1, true) }, { 2, 3 })
  t.eq({ ("a\0b^c"):find "b%^" }, { 3, 4 })
  t.eq({ ("a\0^"):find "\0^" }, { own.string.find("a\0^", "\0^") })
end)

test("patterns are too complex at the depth where Lua's own are", function(t)
  local function depth(find)
    local n = 1
    while pcall(find, ("a"):rep(n), ("a?"):rep(n)) do n = n + 1 end
    return n
  end
  t.eq(depth(string.find), depth(own.string.find))
end)

test("rep gives what Lua's own does", function(t)
  for _ = 1, math.min(ROUNDS, 500) do
    local args = { some(PIECES, 3), math.random(-1, 40), some(PIECES, 2) }
    t.eq(string.rep(table.unpack(args)), own.string.rep(table.unpack(args)))
  end
end)

test("a long text is repeated without reading past its ends", function(t)
  local long = ("x"):rep(16 << 20)
  t.eq({ #long:rep(1), #long:rep(1, ","), long:rep(2, ","):sub(-3), #long:rep(2, ",") },
    { 16 << 20, 16 << 20, "xxx", (32 << 20) + 1 })
  t.eq(#("x"):rep(2, long), (16 << 20) + 2)
end)

test("a pattern that is in use survives others", function(t)
  local seen = {}
  for key, value in ("a=1 b=2 c=3"):gmatch "(%w)=(%w)" do
    for i = 1, 300 do assert(not ("x"):find("[ab]" .. i)) end
    seen[#seen + 1] = key .. value
  end
  t.eq(seen, { "a1", "b2", "c3" })
  t.eq(("a b c"):gsub("(%w)", function(c)
    for i = 1, 300 do assert(not ("x"):find("(%d)" .. i)) end
    return c .. c
  end), "aa bb cc")
end)

-- ---- table --------------------------------------------------------------------------------------

local function number()
  local kind = math.random(8)
  if kind < 6 then return math.random(-2, 7) end
  if kind == 6 then return nil end
  if kind == 7 then return math.maxinteger - math.random(0, 2) end
  return math.mininteger + math.random(0, 2)
end

local arguments = {
  insert = function()
    if math.random() < 0.05 then return table.pack(1, 2, 3) end
    return math.random() < 0.5 and table.pack(99) or table.pack(number(), 98)
  end,
  remove = function() return math.random() < 0.4 and table.pack() or table.pack(number()) end,
  concat = function()
    return table.pack(({ ",", "", 5 })[math.random(3)], math.random(0, 4), math.random(0, 6))
  end,
  move = function()
    local first = math.random(-2, 6)
    local at = math.random() < 0.05 and math.maxinteger - 1 or math.random(-2, 7)
    return table.pack(first, first + math.random(-2, 5), at)
  end,
}

local function random_list()
  local list = {}
  for i = 1, math.random(0, 5) do list[i] = math.random(9) end
  if math.random() < 0.1 then list[math.random(8)] = nil end
  if math.random() < 0.1 then list[3] = {} end
  return list
end

local function copy(list)
  local out = {}
  for key, value in pairs(list) do out[key] = value end
  return out
end

test("table functions do what Lua's own do", function(t)
  local names = { "insert", "remove", "concat", "move" }
  for _ = 1, ROUNDS do
    local name, list = names[math.random(4)], random_list()
    local args, a, b = arguments[name](), copy(list), copy(list)
    local theirs = call(own.table[name], a, table.unpack(args, 1, args.n))
    local ours = call(table[name], b, table.unpack(args, 1, args.n))
    if name == "move" and theirs[1] then theirs[2], ours[2] = nil, nil end -- a and b themselves
    if not agree(theirs, ours) then t.fail(name .. " returns something else") end
    t.eq(b, a, name)
  end
end)

--- Results, and the text of an error.
local function told(...)
  local got = call(...)
  if not got[1] then got[2] = tostring(got[2]):gsub("^.-:%d+: ", ""):gsub("to '[^']*'", "") end
  return got
end

test("values that stand for tables, by their metamethods", function(t)
  local calls = { insert = { { 7 }, { 1, 7 }, { 2, 7 } }, remove = { {}, { 1 } },
    concat = { {}, { "," }, { ",", 2 }, { ",", 1, 2 } }, move = { { 1, 2, 3 }, { 1, 1, 1 } } }
  for kinds = 0, 7 do
    for name, list in pairs(calls) do
      for _, args in ipairs(list) do
        local got = {}
        for i, library in ipairs { own.table, table } do
          local held = { "a", "b", "c" }
          debug.setmetatable(0, {
            __index = kinds & 1 > 0 and held or nil,
            __newindex = kinds & 2 > 0 and function(_, k, v) held[k] = v end or nil,
            __len = kinds & 4 > 0 and function() return #held end or nil })
          got[i] = { told(library[name], 5, table.unpack(args)), held }
        end
        debug.setmetatable(0, nil)
        t.eq(got[2], got[1], ("%s %d"):format(name, kinds))
      end
    end
  end
  t.eq(told(table.insert, {}, 1, 2, 3)[2], "wrong number of arguments ")
  t.eq(told(table.insert, {})[2], "wrong number of arguments ")
end)

test("ends of lists, and a list that is moved into itself or another", function(t)
  local last = math.maxinteger
  t.eq({ table.concat { 1, "b", 2.5 }, table.concat({ 1, 2 }, "-"),
    table.concat({ 1, 2, 3 }, "-", 2), table.concat({}, "-"),
    table.concat({ [last] = "x" }, ",", last, last) },
    { "1b2.5", "1-2", "2-3", "", "x" })
  for first = 1, 3 do
    for at = 1, 4 do
      for _, library in ipairs { table, own.table } do
        local same, other = { 1, 2, 3 }, { 9 }
        t.eq(rawequal(library.move(same, first, 3, at, same), same), true)
        t.eq(rawequal(library.move({ 1, 2, 3 }, first, 3, at, other), other), true)
        local want = { 1, 2, 3 }
        for i = first, 3 do want[at + i - first] = ({ 1, 2, 3 })[i] end
        t.eq(same, want)
      end
    end
  end
  t.raises(function() table.move({}, 1, 2, last) end, "destination wrap around")
  t.raises(function() table.move({}, 0, last, 1) end, "too many elements to move")
  t.raises(function() table.move({}, 1, 1, 1, 5) end, "table expected, got number")
  t.raises(function() table.remove({ 1, 2 }, 4) end, "position out of bounds")
  t.raises(function() table.insert({ 1 }, 3, 1) end, "position out of bounds")
  t.raises(function() table.insert({ 1 }, 0, 1) end, "position out of bounds")
  t.eq({ table.remove({ 1, 2 }, 3), table.remove({}, 0), table.remove {} }, {})
end)

-- ---- deadlines ---------------------------------------------------------------------------------

local LONG = ("a"):rep(30000)

local function endless() return setmetatable({}, { __len = function() return 1 << 40 end }) end

local ENDLESS = {
  lazy = function() return LONG:find ".-.-.-.-b" end,
  greedy = function() return LONG:find "a*a*a*a*b" end,
  maybe = function() return LONG:find(("a?"):rep(60) .. ("a"):rep(60) .. "b") end,
  captures = function() return LONG:find "(a*)(a*)(a*)%1%2%3b" end,
  balance = function() return (("("):rep(300000)):find "%b()" end,
  quadratic = function() return (("a"):rep(3000000)):gsub("[%w._%-]+@[%w.%-]+", "") end,
  gmatch = function() return LONG:gmatch "a-a-a-a-b" () end,
  replacement = function()
    return (("a"):rep(1000000)):gsub("()", { [1] = false })
      and (("a"):rep(1000000)):gsub("(b*)", ("%1"):rep(1000000))
  end,
  plain = function()
    return (("a"):rep(2000000)):find(("a"):rep(1000000) .. "b", 1, true)
  end,
  compile = function() return ("a"):find("[" .. ("%a%d"):rep(300000) .. "]") end,
  move = function() table.move({}, 1, 1 << 40, 2) end,
  insert = function() table.insert(endless(), 1, 1) end,
  remove = function() table.remove(endless(), 1) end,
  concat = function()
    return table.concat(setmetatable({}, { __index = function() return "" end }), "", 1, 1 << 40)
  end,
}

test("a deadline of 20 ms ends every loop in C within 100 ms", function(t)
  local margin = (forced or os.getenv "SAN") and 2000 or 0 -- of building the texts
  for name, fn in pairs(ENDLESS) do
    local began = perigee.sys.cpu_ns()
    t.fails("deadline", perigee.guard(fn, { deadline_ms = 20, memory = 64 << 20 }))
    local took = (perigee.sys.cpu_ns() - began) / 1e6
    t.ok(took < 100 + margin, ("%s: stopped after %.0f ms"):format(name, took))
  end
end)

test("methods of strings in coroutines are stopped also", function(t)
  local began = uv.hrtime()
  t.fails("deadline", perigee.guard(function()
    return coroutine.wrap(function() return pcall(string.find, LONG, ".-.-.-.-b") end)()
  end, { deadline_ms = 20 }))
  t.ok(uv.hrtime() - began < 5e9)
end)
