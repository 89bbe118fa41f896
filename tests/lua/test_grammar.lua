-- Grammars in Lua: the builder, matchers, masks, and the command.
local perigee = require "perigee"
local test = require("harness").test
local grammar = perigee.grammar
local json = perigee.json

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
    { "a\\nb", "axb", 'a\\"b' }), { 1, "whole", "whole" })
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
  t.eq(verdicts(assert(b:compile(x)), { "(..)", "(.)", "(...(..", "(....)" }),
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
    function() b:define(r, { { "a" } }) end, function() b:with(r, {}, 1)
      b:with(r, { other = 1 }) end,
    function() b:define(r, { { 1, when = { 1 } } }) end, function() b:token(-1) end,
    function() b:times(1, -1) end, function() b:times(1) end, function() b:list(r, 1, 1 << 40) end,
    function() b:chars { { 1 } } end, function() b:words { 1 } end,
    function() b:remainder(0, 0) end, function() b:remainder(5, 5) end,
    function() grammar.choice { 1 } end, function() grammar.builder { terms = 1e9 // 1 | 0 } end,
  } do
    t.raises(f, "")
  end
end)

local function open_tokens()
  local tok = assert(perigee.tokenizer.open "tests/tokenizers/bpe-qwen2")
  local ends = { tok:id "<|im_end|>" }
  return tok, assert(grammar.tokens(tok, ends)), ends[1]
end

test("masks", function(t)
  local tok <close>, tokens <close>, last = open_tokens()
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
  t.eq({ m:take(last), m:mask() }, { true, 0, (select(2, m:mask())) })
  local steps = m.length
  t.raises(function() m:trim(steps + 1) end, "must be between 0 and the length")
  m:trim(0)
  t.eq({ m.length, m.complete, m:forced() }, { 0, false, "the" })
  local other <close> = assert(m:fork())
  t.eq({ other:feed "then", other:over(), m.length }, { 4, true, 0 })
  t.ok(m.memory > 0 and g.memory > 0 and not g.worn and g.rules == 1 and g.lexemes == 1)
end)

test("tokens of a grammar", function(t)
  local tok <close>, tokens <close>, last = open_tokens()
  local b = builder()
  local root = b:rule "root"
  local mark = assert(tok:id "<|im_start|>")
  b:define(root, { { b:text "a", b:token(mark), b:text "b" } })
  local m <close> = assert(assert(b:compile(root)):matcher(tokens))
  t.eq({ m:take(mark), m:feed "a", m:take(last) }, { false, 1, false })
  t.eq({ m:mask(), m:nth(1) }, { 1, m:nth(1) })
  t.eq({ m:nth(1), m:take(mark), m:feed "b", m.complete }, { mark, true, 1, true })
end)

-- ---- the command --------------------------------------------------------------------------------

local function ask(lines, arguments)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  for _, line in ipairs(lines) do
    f:write(type(line) == "string" and line or json.encode(line), "\n")
  end
  f:close()
  local run = assert(io.popen(("%s grammar %s --jsonl < %s"):format(perigee.sys.executable(),
    arguments or "", path)))
  local out = {}
  for line in run:lines() do out[#out + 1] = json.decode(line) end
  run:close()
  os.remove(path)
  return out
end

test("the command judges texts", function(t)
  local out = ask {
    { regex = "[a-c]+", texts = { "abc", "abx", "" }, hexes = { "61", "ff" } },
    { choice = { "yes", "no" }, texts = { "yes" } },
    { grammar = 'root ::= "x"', texts = { "x" } },
    { grammar = 'start: "x"', texts = { "x" } },
    { regex = "a", choice = { "b" } }, {}, "[", { regex = "(" }, { regex = "(?<=a)b" },
    { grammar = 'root ::= "a" root' }, { regex = "a", ids = { 1 } }, { regex = 1 },
    { regex = ("a"):rep(70000) }, { regx = "a" },
  }
  local function brief(r) return { r.ok, r.at, r.complete } end
  local first = {}
  for i, r in ipairs(out[1].results) do first[i] = brief(r) end
  t.eq(first, { { true, 3, true }, { false, 2, false }, { true, 0, false }, { true, 1, true },
    { false, 0, false } })
  t.ok(out[1].compile_us >= 0)
  for i = 2, 4 do t.eq(brief(out[i].results[1]), { true, #out[i].results[1].at == 0 and 0 or
    (i == 2 and 3 or 1), true }) end
  local kinds = {}
  for i = 5, #out do kinds[#kinds + 1] = out[i].error and out[i].kind end
  t.eq(kinds, { "invalid", "invalid", "invalid", "invalid", "unsupported", "unsatisfiable",
    "invalid", "invalid", "limit", "invalid" })
end)

test("the command follows tokens and walks", function(t)
  local tok <close> = assert(perigee.tokenizer.open "tests/tokenizers/bpe-qwen2")
  local ids = tok:encode "the"
  ids[#ids + 1] = tok:encode("x")[1]
  local out = ask({ { choice = { "the", "then" }, ids = ids, masks = true },
    { choice = { "the", "then" }, walk = { seed = 1, steps = 20, prefer = tok:encode "the" } },
    { choice = { "the", "then" }, walk = { seed = 2, steps = 0 } } }, "tests/tokenizers/bpe-qwen2")
  t.eq({ out[1].taken, out[1].complete, #out[1].popcount, #out[1].masks, #out[1].mask_us },
    { #ids - 1, true, #ids, #ids, #ids })
  t.eq({ out[1]["end"][1], out[1]["end"][#ids] }, { false, true })
  t.eq({ out[2].complete, out[2].stuck }, { true, false })
  t.ok(out[2].hex == "746865" or out[2].hex == "7468656e")
  t.eq({ out[3].complete, out[3].hex }, { false, "" })
end)
