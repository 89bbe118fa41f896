-- Tokenizers in Lua: encode, decode, stream, bytes, trusted spans, background jobs.
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"

local function open(name) return assert(perigee.tokenizer.open("tests/tokenizers/" .. name)) end

test("text goes to ids and back", function(t)
  local tok <close> = open "bpe-qwen2"
  local ids = tok:encode "Hello, wörld 123!"
  t.eq(tok:decode(ids), "Hello, wörld 123!")
  t.eq(tok:id(tok:token(ids[1])), ids[1])
  t.eq(tok:token(10 ^ 9 // 1 | 0), nil)
  t.eq(tok:decode { -1, 1 << 40 }, "")
  t.eq(tok:encode "", {})
  t.raises(function() tok:decode { "x" } end, "ids[1] must be an integer")
  t.fails("format", tok:encode "\xff")
end)

test("more ids than the limit are an error that counts them", function(t)
  local tok <close> = open "bpe-qwen2"
  local text = ("Hello "):rep(50)
  local count = #tok:encode(text)
  t.eq(#tok:encode(text, { max_ids = count }), count)
  local err = t.fails("limit", tok:encode(text, { max_ids = count - 1, positions = { 0, #text } }))
  t.eq(err.message, ("text has %d tokens, the limit is %d"):format(count, count - 1))
  t.eq(err.count, count)
  tok:encode(text, { max_ids = 3 }, t.expect(function(ids, why)
    t.eq(ids, nil)
    t.eq({ why.code, why.count, why.above }, { "limit", nil, 3 }) -- a job stops there
  end))
  uv.run()
end)

test("a stream's pieces are whole characters and join to the decode", function(t)
  local tok <close> = open "bpe-qwen2"
  local text = "naïve 水が流れ 🌙!"
  local ids = tok:encode(text)
  local stream <close> = tok:stream()
  local pieces = {}
  for i, id in ipairs(ids) do
    pieces[i] = stream:push(id)
    t.eq(utf8.len(pieces[i]) ~= nil, true)
  end
  pieces[#pieces + 1] = stream:finish()
  t.eq(table.concat(pieces), text)
end)

test("the bytes of the tokens of a text join to the text", function(t)
  local text = "Hello, wörld 水が 🌙!\n\n"
  for _, name in ipairs { "bpe-qwen2", "bpe-llama3", "spm-gemma" } do
    local tok <close> = open(name)
    local parts, ids = {}, tok:encode(text)
    for i, id in ipairs(ids) do parts[i] = tok:bytes(id) end
    t.eq(table.concat(parts), text, name)
  end
end)

test("the bytes of one token: alphabet, fallback, special, unknown", function(t)
  local level <close> = open "bpe-qwen2"
  local function bytes(tok, token) return tok:bytes(assert(tok:id(token), token)) end
  t.eq({ bytes(level, "Ġ"), bytes(level, "Ċ"), bytes(level, "ð"), bytes(level, "<|im_end|>") },
    { " ", "\n", "\xF0", "<|im_end|>" })
  t.eq({ level:bytes(-1), level:bytes(level.size), level:bytes(1 << 40) }, { "", "", "" })
  local pieces <close> = open "spm-llama"
  t.eq({ bytes(pieces, "▁"), bytes(pieces, "<0xF0>"), bytes(pieces, "</s>") },
    { " ", "\xF0", "</s>" })
end)

test("special tokens are recognised in trusted spans only", function(t)
  local tok <close> = open "bpe-qwen2"
  local mark
  for id = 0, tok.size - 1 do
    if tok:is_special(id) then mark = tok:token(id) end
  end
  local id = tok:id(mark)
  local function count(ids)
    local n = 0
    for _, x in ipairs(ids) do if x == id then n = n + 1 end end
    return n
  end
  local text = mark .. "user " .. mark
  t.eq(count(tok:encode(text)), 2)
  t.eq(count(tok:encode(text, { parse_special = false })), 0)
  t.eq(count(tok:encode(text, { spans = { { 1, #mark, true }, { #mark + 1, #text, false } } })), 1)
  t.raises(function() tok:encode(text, { spans = { { 5, 2, true } } }) end,
    "spans[1] must be between 1 and")
  t.raises(function() tok:encode(text, { parse_specials = true }) end, "parse_special")
end)

test("positions count the tokens before a byte", function(t)
  local tok <close> = open "bpe-qwen2"
  local text = "<|im_start|>user\nHi wörld<|im_end|>\n"
  local mark = #"<|im_start|>"
  local ids, at = tok:encode(text, { positions = { 0, mark - 1, mark, #text - 1, #text } })
  t.eq(ids, tok:encode(text))
  t.eq(at, { 0, 0, 1, #ids - 1, #ids })
  for cut = 0, #text do
    local _, one = tok:encode(text, { positions = { cut } })
    local whole = tok:decode(table.move(ids, 1, one[1], 1, {}))
    t.eq(#whole <= cut, true, ("%d tokens are %d bytes, before %d"):format(one[1], #whole, cut))
    if ids[one[1] + 1] then t.eq(#tok:decode(table.move(ids, 1, one[1] + 1, 1, {})) > cut, true) end
  end
  t.eq({ tok:encode("", { positions = { 0 } }) }, { {}, { 0 } })
  t.eq(select("#", tok:encode(text)), 1)
  local function refused(positions, part)
    t.raises(function() tok:encode(text, { positions = positions }) end, part)
  end
  refused({ 2, 1 }, ("positions[2] must be between 2 and %d, got 1"):format(#text))
  refused({ #text + 1 }, ("positions[1] must be between 0 and %d"):format(#text))
  refused({ 1.5 }, "positions[1] must be an integer")
end)

test("positions count the special tokens before the text", function(t)
  local tok <close> = open "post-template"
  local text = "the of"
  local ids, at = tok:encode(text, { add_special = true, positions = { 0, #text } })
  local bare = tok:encode(text)
  t.eq(at[1] > 0 and at[1] < #ids, true)
  t.eq(at[2], #ids)
  local _, plain = tok:encode(text, { positions = { 0, #text } })
  t.eq(plain, { 0, #bare })
end)

test("files that cannot be read are an error of one line", function(t)
  t.match(t.fails("io", perigee.tokenizer.open "tests/nowhere").message, "^tests/nowhere")
  t.fails("format", perigee.tokenizer.open "tests/lua/run.lua")
end)

-- ---- background jobs ----------------------------------------------------------------------------

test("a job opens and encodes with the same result", function(t)
  local text = ("Hello, wörld <|im_start|> 123! "):rep(500)
  local options = { positions = { 0, 40, #text }, spans = { { 1, 400, true } } }
  local want, at = open("bpe-qwen2"):encode(text, options)
  local returned = perigee.tokenizer.open("tests/tokenizers/bpe-qwen2", t.expect(function(tok, err)
    t.eq(err, nil)
    local left = 4
    local function one_less()
      left = left - 1
      if left == 0 then tok:close() end
    end
    t.eq(tok:encode(text, options, t.expect(function(ids, positions)
      t.eq(ids, want)
      t.eq(positions, at)
      one_less()
    end)), true)
    tok:encode(text, options, t.expect(function(ids) t.eq(ids, want) one_less() end))
    tok:encode("", nil, t.expect(function(...)
      t.eq({ ... }, { {} })
      one_less()
    end))
    tok:encode("\xff", {}, t.expect(function(...)
      t.match(t.fails("format", ...).message, "not UTF%-8 at byte 1")
      one_less()
    end))
    t.eq(tok:encode "Hi", tok:encode "Hi") -- a job does not use the loop's scratch
    t.raises(function() tok:encode(text, nil, 5) end, "function expected")
    t.raises(function() tok:encode(text, { positions = { -1 } }, print) end, "positions[1]")
  end))
  t.eq(returned, true)
  perigee.tokenizer.open("tests/nowhere", t.expect(function(...) t.fails("io", ...) end))
end)

test("a tokenizer may be closed while jobs encode with it", function(t)
  local text = ("The quick brown fox. "):rep(2000)
  local tok = open "bpe-llama3"
  local want = tok:encode(text)
  for _ = 1, 6 do
    assert(tok:encode(text, { add_special = false }, t.expect(function(ids) t.eq(#ids, #want) end)))
  end
  tok:close()
  tok = nil -- luacheck: ignore
  collectgarbage()
end)

test("a program may end while jobs encode", function(t)
  local script = os.tmpname()
  local file = assert(io.open(script, "w"))
  file:write [[
    local tok = assert(require("perigee").tokenizer.open "tests/tokenizers/bpe-llama3")
    local text = ("The quick brown fox. "):rep(20000)
    for _ = 1, 8 do tok:encode(text, nil, function() end) end
    setmetatable({}, { __gc = function() print(pcall(tok.encode, tok, "x", nil, print)) end })
    if arg[1] == "exit" then os.exit(0, true) end
    if arg[1] == "raise" then error "over" end
  ]]
  file:close()
  for how, status in pairs { finish = 0, exit = 0, raise = 1 } do
    local program = ("%s run %s %s >/dev/null 2>&1"):format(uv.exepath(), script, how)
    local _, what, code = os.execute(program)
    t.eq({ what, code }, { "exit", status }, how)
  end
  os.remove(script)
end)
