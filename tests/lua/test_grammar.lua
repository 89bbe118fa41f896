-- Grammars in Lua: the builder, matchers and masks.
local perigee = require "perigee"
local source = require "grammar.source"
local test = require("harness").test
local grammar = perigee.grammar

local function builder(limits) return assert(grammar.builder(limits)) end

--- "whole", "part", or the number of bytes that a grammar takes of a text.
local function verdict(g, text)
  local m <close> = assert(g:matcher())
  local taken = assert(m:feed(text))
  return taken < #text and taken or m.complete and "whole" or "part"
end

local function verdicts(g, texts)
  local out = {}
  for i, text in ipairs(texts) do out[i] = verdict(g, text) end
  return out
end

--- The grammar of one term.
local function of_term(b, term)
  local root = assert(b:rule "root")
  assert(b:define(root, { { term } }))
  return assert(b:compile(root))
end

test("terms", function(t)
  local function try(make, texts)
    local b = builder()
    return verdicts(of_term(b, make(b)), texts)
  end
  t.eq(try(function(b) return b:cat(b:text "a", b:bytes "xy") end, { "ax", "ay", "az" }),
    { "whole", "whole", 1 })
  t.eq(try(function(b) return b:any { b:text "a", b:text "bc" } end, { "a", "b" }),
    { "whole", "part" })
  t.eq(try(function(b) return b:both(b:pattern "[a-z]+", b:except(b:text "no")) end,
    { "no", "now", "1" }), { "part", "whole", 0 })
  t.eq(try(function(b) return b:times(b:chars { { 0xe0, 0xff } }, 2, 3) end,
    { "é", "éü", "éüöä" }), { "part", "whole", 6 })
  t.eq(try(function(b) return b:times(b:text "ab", 1) end, { "", "ababab" }), { "part", "whole" })
  t.eq(try(function(b) return b:remainder(7, 0) end, { "21", "22" }), { "whole", "part" })
  t.eq(try(function(b) return b:words { "car", "care", "do" } end, { "car", "care", "d", "c" }),
    { "whole", "whole", "part", "part" })
  t.eq(try(function(b) return b:pattern("^a.b$", { search = true, json = true }) end,
    { "a\\nb", "axb", 'a\\"b', "a\\rb" }), { 2, "whole", "whole", "whole" })
  t.eq(try(function(b) return b:pattern("a.\\s", { json = true, ecma = true }) end,
    { "a\\rb", "ax\u{2003}", "ax\\r" }), { 2, "whole", "whole" })
  t.eq(try(function(b) return b:pattern("a.\\s", { ecma = true }) end,
    { "a\rb", "ax\u{2003}", "ax\r" }), { 1, "whole", "whole" })
  t.eq(try(function(b) return b:pattern "a\\\0" end, { "a\0", "ab" }), { "whole", 1 })
  t.eq(try(function(b) return b:cat {} end, { "", "a" }), { "whole", 0 })
end)

test("questions about terms", function(t)
  local b <close> = builder()
  local even, odd = b:pattern "(aa)*", b:pattern "a(aa)*"
  t.eq({ b:empty(b:both(even, odd)), b:empty(even), b:empty(b:any {}) }, { true, false, true })
  t.eq({ b:matches(odd, "aaa"), b:matches(odd, "aa"), b:matches(odd, "") }, { true, false, false })
  local later = b:text "zz" -- a question does not end the making of terms
  t.eq(b:matches(later, "zz"), true)
  t.fails("format", b:pattern "(")
  t.fails("unsupported", b:pattern "(?<=a)b")
end)

test("rules, parameters and lists", function(t)
  local b = builder()
  local value, rest = b:rule "value", b:rule "rest"
  b:define(value, { { b:text "{", rest } })
  b:define(rest, {
    { b:text "a", b:with(rest, { set = 1 }), when = { { mask = 1, most = 0 } } },
    { b:text "b", b:with(rest, { set = 2 }), when = { { mask = 2, most = 0 } } },
    { b:text "}", when = { { mask = 3, count = true, least = 1 } } },
  })
  t.eq(verdicts(assert(b:compile(value)), { "{a}", "{ba}", "{}", "{aa" }),
    { "whole", "whole", 1, 2 })
  b = builder()
  local x = b:rule "x"
  local many = b:list(x, 2, 3)
  b:define(x, { { b:text "(", many, b:text ")" }, { b:text "." } })
  t.eq(verdicts(assert(b:compile(x)), { "(..)", "(.)", "(..(..", "(....)" }),
    { "whole", 2, "part", 4 })
  b = builder()
  local count = b:rule "count"
  b:define(count, { { b:text "x", b:with(count, { add = 1, mask = 0x30 }) },
    { b:text ".", when = { { mask = 0x30, least = 2 } } } })
  t.eq(verdicts(assert(b:compile(count)), { "xx.", "x.", "xxxxx." }), { "whole", 1, "whole" })
end)

test("what cannot be compiled says why", function(t)
  local b = builder()
  local r = b:rule "r"
  b:define(r, { { b:text "a", r } })
  t.fails("unsatisfiable", b:compile(r))
  t.raises(function() b:text "a" end, "the grammar is compiled")
  b = builder()
  local err = t.fails("format", b:compile(b:rule "never"))
  t.eq(err.message, "rule 'never' is used, but not defined")
  b = builder { terms = 20 }
  r = b:rule "r"
  b:define(r, { { b:text "a text that is long enough" } })
  t.fails("limit", b:compile(r))
  t.fails("unsatisfiable", grammar.choice {})
  t.fails("format", grammar.regex "a)")
  t.fails("format", grammar.gbnf "root ::= [")
  t.fails("unsupported", grammar.lark "%import x\nstart: \"a\"")
end)

test("misuse raises", function(t)
  local b <close> = builder()
  local r = b:rule "r"
  for _, f in ipairs { function() b:cat(99) end, function() b:cat(r) end,
    function() b:define(1, {}) end, function() b:define(-9, {}) end,
    function() b:define(r, { 1 }) end, function() b:define(r, { { {} } }) end,
    function() b:define(r, { { "a" } }) end, function() b:with(r, { other = 1 }) end,
    function() b:define(r, { { 1, when = { 1 } } }) end, function() b:token(-1) end,
    function() b:times(1, -1) end, function() b:times(1) end, function() b:list(r, 1, 1 << 40) end,
    function() b:chars { { 1 } } end, function() b:words { 1 } end,
    function() b:remainder(0, 0) end, function() b:remainder(5, 5) end,
    function() grammar.choice { 1 } end, function() grammar.builder { terms = 1e9 // 1 | 0 } end,
  } do
    t.raises(f, "")
  end
end)

--- Two patterns that have no text in common, which takes a long search to see.
local function long_search(b)
  return b:both(b:pattern "(a|b)*a(a|b){9}", b:pattern "(a|b)*b(a|b){9}")
end

test("with a callback a helper thread computes", function(t)
  local b = builder()
  local root, hard = b:rule "root", long_search(b)
  b:define(root, { { b:text "ab" } })
  local none, why = b:empty(hard, { steps = 10 })
  t.eq({ none, why.code }, { nil, "limit" })
  t.eq(b:empty(b:text "a", { steps = 10 }), false) -- nothing has failed for good
  local function compiled(g, err)
    local m <close> = assert(assert(g, err):matcher())
    t.eq({ m:feed "ab", m.complete }, { 2, true })
    t.raises(function() b:text "a" end, "the grammar is compiled")
    g:close()
  end
  t.eq(b:empty(hard, nil, t.expect(function(empty)
    t.eq(empty, true)
    t.eq(b:compile(root, nil, t.expect(compiled)), true)
    t.raises(function() b:text "a" end, "the grammar is compiled")
  end)), true)
  t.raises(function() b:text "a" end, "a job uses the builder")
end)

test("a builder may be closed while a job uses it", function(t)
  local b = builder()
  local hard = long_search(b)
  t.eq(b:empty(hard, nil, t.expect(function(empty)
    t.eq(empty, true)
    t.raises(function() b:text "a" end, "closed")
  end)), true)
  b:close()
end)

test("texts in other languages are parts of a grammar", function(t)
  local b = builder()
  local first = assert(b:gbnf 'root ::= "a" more\nmore ::= "b" | "c" root')
  local second = assert(b:lark 'start: "(" more ")"\nmore: "x" | start')
  local r = b:rule "both"
  b:define(r, { { first, b:text " ", second } })
  local g = assert(b:compile(r))
  for text, fits in pairs { ["ab (x)"] = true, ["acacab ((x))"] = true, ["ab x"] = false,
    ["ax (x)"] = false } do
    local m <close> = assert(g:matcher())
    t.eq({ m:feed(text) == #text and m.complete, text }, { fits, text })
  end
  b = builder()
  t.match(t.fails("format", b:gbnf "root ::= [").message, "line 1")
  t.fails("format", b:lark 'other: "a"')
end)

test("a builder reads texts on a helper thread, and nobody else uses it meanwhile", function(t)
  for read, text in pairs { pattern = "a+b", gbnf = 'root ::= "a"+ "b"',
    lark = 'start: "a"+ "b"' } do
    local b = builder()
    t.eq(b[read](b, text, nil, t.expect(function(symbol)
      t.eq(symbol < 0, read ~= "pattern")
      local root = b:rule "root"
      b:define(root, { { symbol } })
      t.eq(verdicts(assert(b:compile(root)), { "aab", "b" }), { "whole", 0 }, read)
    end)), true)
    t.raises(function() b:text "a" end, "a job uses the builder")
    local failing = builder()
    t.eq(failing[read](failing, "(", nil, t.expect(function(symbol, err)
      t.eq({ symbol, err.code }, { nil, "format" }, read)
    end)), true)
  end
  local b = builder()
  local rule = assert(b:lark 'start: "a" | "b" "c"')
  t.eq(b:term(rule, t.expect(function(term) t.eq(b:matches(term, "bc"), true) end)), true)
  local closed = builder()
  t.eq(closed:pattern("a", nil, t.expect(function(term)
    t.ok(term)
    t.raises(function() closed:text "a" end, "closed")
  end)), true)
  closed:close()
end)

test("texts in other languages, inside of a JSON string", function(t)
  local TEXTS = { 'a\\n\\"B\\u0001', 'a\\n\\"b\\t', 'a\n"', "a\\n'" }
  for read, text in pairs { gbnf = 'root ::= "a\\n\\"" [bB] [\\x01-\\t]',
    lark = 'start: "a\\n" /"/ "b"i "\\x01".."\\t"' } do
    local b = builder()
    local rule = assert(b[read](b, text, { json = true }))
    t.eq(verdicts(assert(b:compile(rule)), TEXTS), { "whole", "whole", 1, 3 }, read)
  end
end)

test("a regular rule is a term", function(t)
  local b = builder()
  local term = assert(b:term(assert(b:lark 'start: ("a" | B)+\nB: "b" "c"?')))
  local g = of_term(b, b:both(term, b:except(b:text "abc")))
  t.eq(verdicts(g, { "bcab", "abc", "c" }), { "whole", "part", 0 })
  b = builder()
  t.match(t.fails("unsupported", b:term(assert(b:lark 'start: "a" start | "b"'))).message,
    "not regular: rules refer to themselves, or repeat more than 64 times")
end)

test("texts are read on a helper thread, too", function(t)
  for read, text in pairs { regex = "a+b", gbnf = 'root ::= "a"+ "b"', lark = 'start: "a"+ "b"' } do
    t.eq(grammar[read](text, t.expect(function(g)
      local m <close> = assert(g:matcher())
      t.eq({ m:feed "aab", m.complete }, { 3, true }, read)
      g:close()
    end)), true)
  end
  t.eq(grammar.regex("(", t.expect(function(g, err)
    t.eq({ g, err.code }, { nil, "format" })
  end)), true)
end)

local function open_tokens()
  local tok = assert(perigee.tokenizer.open "tests/tokenizers/bpe-qwen2")
  local ends = { tok:id "<|im_end|>" }
  return tok, assert(grammar.tokens(tok, ends)), ends[1]
end

test("masks", function(t)
  local tok, tokens, last = open_tokens()
  t.eq(tokens.size, tok.size)
  t.ok(tokens.memory > 10000)
  local g <close> = assert(grammar.choice { "the", "then" })
  local m <close> = assert(g:matcher(tokens))
  t.raises(function() m:bitmap() end, "no mask was made")
  local count = assert(m:mask())
  local ids = {}
  for i = 1, count do ids[i] = m:nth(i) end
  t.eq({ m:nth(0), m:nth(count + 1) }, {})
  for _, id in ipairs(ids) do
    t.eq(("then"):sub(1, #tok:bytes(id)), tok:bytes(id))
    t.eq({ m:allows(id), m:bitmap():byte(id // 8 + 1) >> id % 8 & 1 }, { true, 1 })
  end
  t.eq({ m:allows(last), m:allows(-1), m:allows(1 << 40) }, { false, false, false })
  for _, id in ipairs(tok:encode "the") do t.eq(m:take(id), true) end
  t.eq({ m.complete, m:over() }, { true, false })
  m:mask()
  t.eq(m:allows(last), true)
  t.eq({ m:take(last), (m:mask()) }, { true, 0 })
  local steps = m.length
  t.raises(function() m:trim(steps + 1) end, "must be between 0 and the length")
  m:trim(0)
  t.eq({ m.length, m.complete, m:forced() }, { 0, false, "the" })
  local other <close> = assert(m:fork())
  t.eq({ other:feed "then", other:over(), m.length }, { 4, true, 0 })
  t.ok(m.memory > 0 and g.memory > 0 and not g.worn and g.rules == 1 and g.lexemes == 1)
end)

test("tokens of a grammar", function(t)
  local tok, tokens, last = open_tokens()
  local b = builder()
  local root = b:rule "root"
  local mark = assert(tok:id "<|im_start|>")
  b:define(root, { { b:text "a", b:token(mark), b:text "b" } })
  local m <close> = assert(assert(b:compile(root)):matcher(tokens))
  t.eq({ m:take(mark), m:feed "a", m:take(last) }, { false, 1, false })
  t.eq((m:mask()), 1)
  t.eq({ m:nth(1), m:take(mark), m:feed "b", m.complete }, { mark, true, 1, true })
end)

test("a grammar is GBNF if a line begins with a rule of it, else Lark", function(t)
  for _, case in ipairs { { 'root ::= "a"', "a" }, { '# a :: b\n\n  root\n  ::= "a"', "a" },
    { "x-1 ::= [a]\nroot::=x-1", "a" }, { 'start: "::="', "::=" },
    { '// x ::= y\nstart: "a" // z ::= "b"', "a" }, { 'start: "a"\n  | "b ::= c"', "b ::= c" } } do
    local g <close> = assert(source.compile { grammar = case[1] })
    t.eq(verdicts(g, { case[2] }), { "whole" }, case[1])
  end
end)
