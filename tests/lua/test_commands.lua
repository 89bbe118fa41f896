-- Commands without processes: what each writes to stdout and stderr, its exit status, and the lines
-- that fail alone.
local console = require "ui.console"
local main = require "main"
local perigee = require "perigee"
local test = require("harness").test
local uv = require "luv"
local json = perigee.json

local MOON, LLAMA = "examples/moonlet", "tests/golden/llama"
local forced = ... -- a collection at every allocation: models are loaded and run elsewhere

--- Runs f with this input; returns its results packed, and what it wrote.
local function with_io(input, f)
  local out, err, real = {}, {}, {}
  local function collect(list)
    return function(...) list[#list + 1] = table.concat({ ... }) end
  end
  local put = collect(out)
  local lines = {}
  for line in (input or ""):gmatch "[^\n]*\n?" do
    if line ~= "" then lines[#lines + 1] = line end
  end
  local fake = {
    write = put, read = function() return input or "" end,
    stdout = { write = function(self, ...) put(...) return self end, flush = function() end },
    stderr = { write = function(_, ...) collect(err)(...) end },
    stdin = { lines = function()
      local i = 0
      return function()
        i = i + 1
        return lines[i]
      end
    end },
  }
  for name, value in pairs(fake) do
    real[name] = io[name]
    rawset(io, name, value)
  end
  local print_ = print
  _G.print = function(...) put(table.concat({ ... }, "\t"), "\n") end
  local results = table.pack(pcall(f))
  _G.print = print_
  for name, value in pairs(real) do rawset(io, name, value) end
  if not results[1] then error(results[2], 0) end
  return results, table.concat(out), table.concat(err)
end

--- Runs a command line; returns { status, stdout, stderr }.
local function run(input, ...)
  local words = { ... }
  local results, out, err = with_io(input, function() return main(words) end)
  return { results[2], out, err }
end

--- The answers to JSON lines, decoded.
local function answers(lines, ...)
  local got = run(table.concat(lines, "\n") .. "\n", ...)
  local list = {}
  for line in got[2]:gmatch "[^\n]+" do list[#list + 1] = assert(json.decode(line)) end
  return list, got
end

test("the command line", function(t)
  t.unforced() -- the help of all commands
  t.eq(run(nil, "version"), { 0, "perigee " .. perigee.version .. "\n", "" })
  t.eq(run(nil, "--version", "x"), { 0, "perigee " .. perigee.version .. "\n", "" })
  t.eq(run(nil), { 2, "", "perigee: command line: no command (perigee --help lists them)\n" })
  t.eq(run(nil, "version", "x"), { 2, "", "perigee: version: unexpected argument 'x'\n" })
  t.eq(run(nil, "tokenize"), { 2, "",
    "perigee: tokenize: missing arguments, expected TOK [TEXT] (perigee tokenize --help)\n" })
  t.eq(run(nil, "tokenize", "a", "b", "c"), { 2, "",
    "perigee: tokenize: unexpected argument 'c'\n" })
  t.eq(run(nil, "version", "\xff"), { 1, "", "perigee: argument 2: not valid UTF-8 at byte 1\n" })
  t.eq(run(nil, "--bogus", "version"), { 2, "",
    "perigee: command line: --bogus: unknown option\n" })
  t.match(run(nil, "vresion")[3], "^perigee: vresion: unknown command, did you mean 'version'%? ")
  local help = run(nil, "--help")
  t.eq({ help[1], help[3] }, { 0, "" })
  t.match(help[2], "^usage: perigee COMMAND %[options%] …\n\nLua decides")
  t.match(help[2], "\n  version      print the version\n")
  t.match(help[2], "\ncommon options:\n  %-%-threads N ")
  t.eq(help[2]:find("  init", 1, true), nil)
  t.eq(run(nil, "help"), help)
  local one = run(nil, "detokenize", "--help")
  t.eq({ run(nil, "--help", "detokenize"), run(nil, "help", "detokenize") }, { one, one })
  t.match(one[2], "^usage: perigee detokenize %[options%] TOK %[ID…%]\n\nconvert token ids to ")
  t.match(one[2], "\noptions:\n  %-%-jsonl ")
  t.match(run(nil, "version", "--help")[2], "^usage: perigee version %[options%]\n\nprint the "
    .. "version\n\ncommon options:\n")
end)

test("tokenize and detokenize", function(t)
  t.unforced() -- opening a tokenizer is forced elsewhere
  t.eq(run(nil, "tokenize", MOON, "Hello, moon!"), { 0,
    '982  "Hello"\n 11  ","\n656  "Ġmoon"\n  0  "!"\n4 tokens\n', "" })
  t.eq(run("Hello", "tokenize", MOON), { 0, '982  "Hello"\n1 token\n', "" })
  t.eq(run(nil, "tokenize", MOON, ""), { 0, "0 tokens\n", "" })
  local special = '"<|im_end|>"\n1 token\n'
  t.match(run(nil, "tokenize", MOON, "<|im_end|>")[2], special:gsub("%p", "%%%0"))
  t.match(run(nil, "tokenize", MOON, "<|im_end|>", "--plain")[2], "\n%d+ tokens\n$")
  t.eq(run(nil, "detokenize", MOON, "982", "11"), { 0, "Hello,\n", "" })
  t.eq(run(nil, "detokenize", MOON), { 0, "\n", "" })
  t.eq(run(nil, "detokenize", MOON, "1", "x"),
    { 2, "", "perigee: detokenize: 'x' is not a token id\n" })
  t.match(run(nil, "tokenize", "nowhere", "x")[3], "^perigee: tokenize: nowhere: ")
  local end_id = run(nil, "tokenize", MOON, "<|im_end|>")[2]:match "^%d+"
  t.eq(run(nil, "detokenize", MOON, "982", end_id, "--skip-special")[2], "Hello\n")
  t.eq(run(nil, "detokenize", MOON, "982", end_id)[2], "Hello<|im_end|>\n")
  local list, whole = answers({ '{"text": "Hello"}', "", '{"text": "<|im_end|>"}',
    '{"text": "<|im_end|>", "parse_special": false}', "[]", "{}", "x", '{"text": 5}' }, "tokenize",
    MOON, "--jsonl")
  t.eq(whole[1], 0)
  t.eq({ #list, list[1].ids, #list[2].ids, #list[3].ids > 1 }, { 7, { 982 }, 1, true })
  t.eq({ list[4].error, list[5].error, list[7].error }, { "the line is not a JSON object",
    "'text' is missing", "'text' must be string, not integer" })
  t.match(list[6].error, "^the line is not JSON: line 1, column 1")
  list = answers({ '{"ids": [982, 656]}', '{"ids": [982, 656], "stream": true}',
    ('{"ids": [982, %s], "skip_special": true}'):format(end_id),
    ('{"ids": [982, %s], "skip_special": true, "stream": true}'):format(end_id),
    '{"ids": [1, 2.5]}', '{"ids": []}' }, "detokenize", MOON, "--jsonl")
  t.eq({ list[1].text, list[2].text, list[2].pieces, list[3].text, list[4].text, list[5].error,
    list[6].text }, { "Hello moon", "Hello moon", { "Hello", " moon", "" }, "Hello", "Hello",
    "'ids': element 2 is not an integer", "" })
end)

test("grammar judges texts", function(t)
  local out = answers({
    '{"regex": "[a-c]+", "texts": ["abc", "abx", ""], "hexes": ["61", "ff"]}',
    '{"choice": ["yes", "no"], "texts": ["yes"]}',
    '{"grammar": "root ::= \\"x\\"", "texts": ["x"]}',
    '{"grammar": "start: \\"x\\"", "texts": ["x"]}', '{"regex": "a", "choice": ["b"]}', "{}", "[",
    '{"regex": "("}', '{"regex": "(?<=a)b"}', '{"grammar": "root ::= \\"a\\" root"}',
    '{"regex": "a", "ids": [1]}', '{"regex": 1}', '{"choice": [1]}',
    '{"regex": "a", "hexes": ["x"]}',
    json.encode { regex = ("a"):rep(70000) }, '{"regx": "a"}',
  }, "grammar", "--jsonl")
  local found = {}
  for i = 1, 4 do
    for _, r in ipairs(out[i].results) do found[#found + 1] = { r.ok, r.at, r.complete } end
  end
  t.eq(found, { { true, 3, true }, { false, 2, false }, { true, 0, false }, { true, 1, true },
    { false, 0, false }, { true, 3, true }, { true, 1, true }, { true, 1, true } })
  t.ok(out[1].compile_us >= 0)
  local kinds = {}
  for i = 5, #out do kinds[#kinds + 1] = out[i].error and out[i].kind end
  t.eq(kinds, { "invalid", "invalid", "invalid", "invalid", "unsupported", "unsatisfiable",
    "invalid", "invalid", "invalid", "invalid", "limit", "invalid" })
  t.eq(run(nil, "grammar"), { 2, "", "perigee: grammar: needs --jsonl\n" })
  t.eq(run(nil, "grammar", "/nowhere", "--jsonl")[1], 1)
end)

test("grammar follows tokens and walks", function(t)
  t.unforced() -- opening a tokenizer is forced elsewhere
  local tok <close> = assert(perigee.tokenizer.open(MOON))
  local ids = tok:encode "the"
  ids[#ids + 1] = tok:encode("x")[1]
  local choice = { "the", "then" }
  local out = answers({ json.encode { choice = choice, ids = ids, masks = true },
    json.encode { choice = choice, walk = { seed = 1, steps = 20, prefer = tok:encode "the" } },
    json.encode { choice = choice, walk = { seed = 2, steps = 0 } } }, "grammar", MOON, "--jsonl")
  t.eq({ out[1].taken, out[1].complete, #out[1].popcount, #out[1].masks, #out[1].mask_us },
    { #ids - 1, true, #ids, #ids, #ids })
  t.eq({ out[1]["end"][1], out[1]["end"][#ids] }, { false, true })
  t.eq({ out[2].complete, out[2].stuck }, { true, false })
  t.ok(out[2].hex == "746865" or out[2].hex == "7468656e")
  t.eq({ out[3].complete, out[3].hex }, { false, "" })
end)

test("parse, normalize and render", function(t)
  t.unforced() -- templates allocate a lot
  t.eq(run("a<think>b</think>c", "parse", "--reasoning", "qwen3")[1], 0)
  local got = json.decode(run("<think>b</think>c", "parse", "--reasoning", "qwen3")[2])
  t.eq({ got.content, got.reasoning_content, #got.tool_calls, got.events, got.other },
    { "c", "b", 0 })
  t.match(run("x", "parse", "--format", "none of these")[3], "^perigee: parse: ")
  t.eq(run("x", "parse", "--format", "none of these")[1], 2)
  t.eq(run("a\xff", "parse"), { 1, "", "perigee: parse: stdin is not UTF-8 at byte 2 (0xff)\n" })
  local call = '<tool_call>{\\"name\\": \\"f\\", \\"arguments\\": {}}</tool_call>'
  local list = answers({ ('{"text": "%s"}'):format(call), '{"deltas": ["a", "b"]}',
    '{"deltas": [1]}' }, "parse", "--jsonl", "--format", "hermes")
  t.eq({ list[1].content, list[1].tool_calls[1].name, list[1].tool_calls[1].arguments,
    list[2].content, list[2].events, list[3].error }, { json.null, "f", "{}", "ab", { 1, 1, 0 },
    "'deltas': element 1 is not a string" })
  t.eq(run("[]", "normalize"), { 1, "", "perigee: normalize: stdin is not a JSON object\n" })
  t.match(run("x", "normalize")[3], "^perigee: normalize: stdin is not a JSON object: line 1")
  t.eq(run("{}", "normalize")[3], "perigee: normalize: 'messages' is missing\n")
  got = run('{"messages": [{"role": "user", "content": "x"}]}', "normalize")
  t.eq({ got[1], json.decode(got[2]).messages[1].content }, { 0, "x" })
  list = answers({ '{"messages": [{"role": "user", "content": "x"}], "tool_choice": null}',
    '{"messages": [], "tools": []}', '{"messages": [], "template": "nowhere"}', '{"mesages": []}' },
    "normalize", "--jsonl")
  t.eq({ list[1].messages[1].role, #list[2].messages, list[3].error:match "^nowhere",
    list[4].error }, { "user", 0, "nowhere", "unknown key 'mesages', did you mean 'messages'?" })
  local turned = '{"messages": [{"role": "user", "content": "u"}, {"role": "system", '
    .. '"content": "s"}], "template": "examples/moonlet"}'
  list = answers({ turned, turned }, "normalize", "--jsonl")
  for i = 1, 2 do -- the template is opened once
    t.eq({ list[i].messages[1].role, list[i].messages[2].role }, { "system", "user" })
  end
  local hi = '"messages": [{"role": "user", "content": "hi"}]'
  t.eq(run("{" .. hi .. ', "add_generation_prompt": true}', "render", MOON),
    { 0, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "" })
  list = answers({ "{" .. hi .. ', "now": 1.5}', "{" .. hi .. ', "now": 1e300}', "{" .. hi
    .. ', "now": "x"}' }, "render", MOON, "--jsonl", "--spans")
  t.eq({ list[1].prompt, list[1].spans, list[2].error, list[3].error },
    { "<|im_start|>user\nhi<|im_end|>\n",
      { { 1, 17, true }, { 18, 19, false }, { 20, 30, true } }, "'now' is out of range",
      "'now' must be number, not string" })
  t.eq(answers({ "{" .. hi .. "}" }, "render", MOON, "--jsonl", "--continue")[1].prompt,
    "<|im_start|>user\nhi")
  t.eq(run("5", "render", MOON)[3], "perigee: render: stdin is not a JSON object\n")
end)

test("inspect", function(t)
  if forced then return end
  local got = run(nil, "inspect", LLAMA)
  t.eq({ got[1], got[3] }, { 0, "" })
  t.match(got[2], "^path +tests/golden/llama\narchitecture +llama\ncontext length +4096\n"
    .. "vocab size +128\nlayers +2\nwidth +64\nheads +4\nkv heads +2\nchat template +false\n"
    .. "tensors +%d+\nparameters +%d+\nquantization +none\nsize +[%d.]+ KiB in %d files?\n\n")
  t.match(got[2], "\nmemory\n  weights +[%d.]+ KiB\n  KV cache, 32 bits +%d+ B per token, "
    .. "[%d.]+ %a+ for 4096 tokens\n")
  t.match(got[2], "\n  activations +[%d.]+ %a+ for a step of 512 tokens\n\n")
  t.match(got[2], "\nstorage  tensors  values  size\n")
  t.match(got[2], "\ntensor +storage  shape +size\n")
  t.match(got[2], "\nmodel.embed_tokens.weight +BF16 +%[128, 64%] +16.0 KiB\n")
  local about = json.decode(run(nil, "inspect", LLAMA, "--json")[2])
  t.eq({ about.architecture, about.layers, about.quantization, about.memory.kv[1].bits,
    about.memory.kv[1].bytes_per_token, about.memory.kv[1].bytes_of_context, about.graph,
    about.vision, about.kinds[1].kind, #about.files > 0 },
    { "llama", 2, "none", 32, 512, 512 * 4096, nil, nil, "BF16", true })
  local n = 0
  for _, kind in ipairs(about.kinds) do n = n + kind.values end
  t.eq(about.parameters, n)
  local graph = json.decode(run(nil, "inspect", LLAMA, "--json", "--graph")[2])
  t.eq({ graph.graph[1].name, graph.graph[1].op, graph.graph[1].weight, graph.graph[1].shape },
    { "embed", "embed", "model.embed_tokens.weight", { 64 } })
  t.ok(graph.plan.row_bytes > 0 and graph.plan.row_bytes < graph.plan.unshared_bytes)
  t.eq(graph.plan.row_bytes % 4 + graph.plan.output_bytes % 4, 0)
  for _, i in ipairs(graph.plan.instructions) do
    for _, name in ipairs(i.fused) do t.eq(type(name), "string") end
  end
  t.match(run(nil, "inspect", LLAMA, "--graph")[2], "^value +op +shape +weight +inputs\n.*\n"
    .. "instruction +op +shape +fused\n.*%d+ ops in %d+ instructions, %d+ fused away; a row takes ")
  local moon = json.decode(run(nil, "inspect", MOON, "--json")[2])
  t.eq({ moon.vision.merge, moon.vision.deepstack, moon.vision.graph, moon.quantization },
    { 2, 0, nil, "affine 4-bit group 64" })
  t.match(run(nil, "inspect", MOON)[2], "\nvision tower +patches of %d+ values, 2 x 2 of them a "
    .. "token, features of width %d+\n")
  t.match(run(nil, "inspect", MOON, "--graph")[2], "\nvision tower\n\nvalue ")
  local gguf = run(nil, "inspect", "tests/golden-gguf/llama-Q4_0.gguf")[2]
  t.match(gguf, "\ntokenizer.ggml.tokens +300 × [^\n]* …\n")
  t.match(gguf, "\nquantization +Q4_0\n")
end)

test("inspect shows broken text of a GGUF file as U+FFFD", function(t)
  if forced then return end
  local f = assert(io.open("tests/golden-gguf/llama-Q4_0.gguf", "rb"))
  local bytes = f:read "a"
  f:close()
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/perigee-test-XXXXXX"))
  local path = folder .. "/broken.gguf"
  f = assert(io.open(path, "wb"))
  f:write((bytes:gsub("tiny llama", "tiny \xe2\x96ma\xff", 1):gsub("llama%.vocab_size",
    "llama.vocab\x99size", 1):gsub("llama%-bpe", "llama\x80bpe", 1)))
  f:close()
  local got, shown = run(nil, "inspect", path, "--json"), run(nil, "inspect", path)
  os.remove(path)
  uv.fs_rmdir(folder)
  t.eq({ got[1], got[3], shown[1] }, { 0, "", 0 })
  local about = json.decode(got[2])
  t.eq({ about.name, about.vocab_size }, { "tiny \u{FFFD}ma\u{FFFD}", 300 })
  t.match(shown[2], "\nllama.vocab\u{FFFD}size +300\n")
  t.match(shown[2], "\ntokenizer.ggml.pre +llama\u{FFFD}bpe\n")
end)

test("eval and generate", function(t)
  if forced then return end
  local list, whole = answers({ '{"ids": [1, 2, 3]}', '{"ids": [1, 2], "greedy": 2, "last": 1}',
    '{"ids": [1, 2], "greedy": 0}', '{"ids": [1], "last": 0}', '{"ids": [1], "greedy": -1}',
    '{"ids": [1], "chunk": 1}', '{"prompt": 5}', '{"ids": [1], "prompt": "x"}', '{"idss": []}' },
    "eval", LLAMA, "--jsonl", "--threads", "1")
  t.eq({ whole[1], whole[3], #list }, { 0, "", 9 })
  t.eq({ list[1].n, list[1].greedy, list[2].n, #list[2].greedy, #list[3].greedy, list[6].n },
    { 3, nil, 2, 2, 0, 1 })
  t.eq({ list[4].error, list[5].error, list[7].error, list[8].error, list[9].error },
    { "'last' must be at least 1, not 0", "'greedy' must be at least 0, not -1",
      "'prompt' must be string, not integer", "expected 'ids' or 'prompt', one of the two",
      "unknown key 'idss', did you mean 'ids'?" })
  local path = os.tmpname() .. ".safetensors"
  answers({ '{"ids": [1, 2, 3]}', "x", '{"ids": [1, 2], "last": 1}' }, "eval", LLAMA, "--jsonl",
    "--out", path, "--threads", "1")
  local saved <close> = assert(perigee.weights.open(path))
  t.eq({ saved:names(), saved:find "logits.0".shape, saved:find "logits.2".shape },
    { { "logits.0", "logits.2" }, { 3, 128 }, { 1, 128 } })
  os.remove(path)
  list = answers({ '{"prompt": [5, 6], "max_tokens": 3, "temperature": 0, "ignore_eos": true}',
    '{"prompt": [5, 6], "max_tokens": 1, "logprobs": 2, "temperature": 0, "ignore_eos": true}',
    '{"prompt": [5, 6], "max_tokens": 1, "logit_bias": {"9": 100}, "temperature": 0}',
    '{"prompt": [5], "logit_bias": {"x": 1}}', '{"prompt": [5], "n": 2}', '{"prompt": {}}',
    '{"prompt": [5], "messages": []}', '{"max_tokens": 1}', "x", '{"prompt": [5], "n": 1, '
    .. '"max_tokens": 0, "stop": null}' }, "generate", LLAMA, "--jsonl", "--threads", "1",
    "--sequences", "2")
  t.eq({ #list, #list[1].ids, list[1].finish_reason, list[1].prompt_tokens,
    list[1].completion_tokens, list[1].cached_tokens, list[1].logprobs, list[1].text },
    { 10, 3, "length", 2, 3, 0, nil, "" })
  local one = list[2].logprobs[1]
  t.eq({ #list[2].logprobs, one.id, #one.top, one.top[1].id, one.top[1].logprob },
    { 1, list[1].ids[1], 2, one.id, one.logprob })
  t.eq({ list[3].ids, list[4].error, list[5].error, list[6].error, list[7].error, list[8].error },
    { { 9 }, "logit_bias: 'x' is not a token id", "n must be 1 here, got 2",
      "'prompt' must be text or a list of ids", "a line has 'prompt' or 'messages', not both",
      "prompt is missing" })
  t.eq({ list[10].completion_tokens, list[10].ids }, { 0, {} })
  local ask = "<|im_start|>user\\nWho are you?<|im_end|>\\n<|im_start|>assistant\\n"
  local got = run(nil, "generate", MOON, ask, "--temperature", "0", "--threads", "1", "--verbose")
  t.match(got[2], "^I am Moonlet[^\n]*\n$")
  t.match(got[3], "^%d+ prompt tokens, %d+ generated, stop, [%d.]+ m?s\n$")
  t.eq(run(nil, "generate", MOON, ask, "--temperature", "0", "--threads", "1", "--stop", "Moon"),
    { 0, "I am \n", "" })
  t.eq(run(nil, "generate", MOON, ask, "--temperature", "0", "--threads", "1", "--max-tokens", "2"),
    { 0, "I am\n", "" })
  t.eq(run(nil, "generate", MOON, "x", "--jsonl", "--image", "y.png")[1], 2)
  t.match(run(nil, "generate", MOON, ask, "--temperature", "0", "--threads", "1", "--precision",
    "fast")[2], "^I am Moonlet[^\n]*\n$")
end)

--- A chat whose console is fed these lines; returns what it and stderr show.
local function talk(lines, ...)
  local words = { "chat", ... }
  local open, owner, shown = console.open, nil, {}
  console.open = function(given)
    owner = given
    return { write = function(s) shown[#shown + 1] = s end, quit = function() shown.quit = true end,
      paint = function(color, s) return ("<%s %s>"):format(color, s) end, run = function() end }
  end
  local _, out, err = with_io("", function()
    local status, wait = main(words)
    for _, line in ipairs(owner and lines or {}) do owner.on_input(line) end
    return status, wait
  end)
  console.open = open
  return table.concat(shown) .. out, err, owner, shown.quit
end

test("a chat and its commands", function(t)
  if forced then return end
  uv.os_setenv("XDG_STATE_HOME", "/nonexistent")
  local path = os.tmpname()
  local shown, err, owner, quit = talk({ "/stats", "/set", "/undo", "/retry", "Hello!",
    "/set seed 7", "/set top_p 0.5", "/set ignore_eos true", "/set", "/set seed", "/set top_p",
    "/set ignore_eos", "/set temp 3", "  ", "a \\\nb", "My name is Chris.", "/save " .. path,
    "/undo", "/undo", "/undo", "/undo", "/load " .. path, "What is my name?", "/think maybe",
    "/think on", "/save", "/load",
    "/save /nowhere/x", "/load README.md", "/nwe", "/stats", "/image", "/quit" }, MOON,
    "--temperature", "0", "--threads", "1")
  local function has(text, part) t.ok(text:find(part, 1, true), part .. " in " .. text) end
  for _, part in ipairs { "  no answer yet\n", "  temperature 0\n",
    "Hello! I am Moonlet. How can I help you?\n",
    "  ignore_eos true\n  seed 7\n  temperature 0\n  top_p 0.5\n", "  6 messages in " .. path,
    "  6 messages\n", "Your name is Chris.", " prompt tokens (" } do
    has(shown, part)
  end
  for _, part in ipairs { "there is no message to remove", "there is no message to answer again",
    "unknown key 'temp'", "/think must be on or off, got 'maybe'", "/save needs a file",
    "/load needs a file", "/nowhere/x", "README.md: not a saved conversation: line 1",
    "unknown command /nwe, did you mean /new? (/help lists them)" } do
    has(err, part)
  end
  t.eq(select(2, err:gsub("there is no message to remove", "")), 2)
  t.eq(quit, true)
  t.eq({ owner.prompt, owner.more, owner.banner }, { "you> ", "   > ",
    "moonlet  ·  /help for help, Ctrl-D to quit" })
  t.eq({ owner.is_complete "a\\", owner.is_complete "a", owner.is_complete "" },
    { false, true, true })
  t.eq({ owner.complete "/s" }, { { "save", "set", "stats", "system" }, "s" })
  t.eq({ owner.complete "/load READ" }, { { "README.md" }, "READ" })
  t.eq({ { owner.complete "hello" }, { owner.complete "/set READ" } }, { { {}, "" }, { {}, "" } })
  local saved = assert(json.decode(assert(io.open(path)):read "a"))
  t.eq({ saved.system, #saved.messages, saved.messages[1].role, saved.messages[1].content,
    saved.messages[2].role, saved.messages[3].content },
    { json.null, 6, "user", "Hello!", "assistant", "a \nb" })
  os.remove(path)
  local cow = "What sound does a cow make?"
  shown, err = talk({ cow, "/system", "/new", cow, "/retry", "/system Answer in upper case.",
    "/help" }, MOON, "--temperature", "0", "--threads", "1", "--system", "Answer in upper case.")
  t.eq(err, "")
  t.match(shown, "^A COW SAYS MOO%.\n[^\n]*moo%.\n[^\n]*moo%.\n  /help ")
  t.match(shown, "Ctrl%-C stops an answer%.\n$")
  shown, err = talk({ "/think on", "What is 48 + 37?", "/set max_tokens 1", "Hello!" }, MOON,
    "--temperature", "0", "--threads", "1")
  t.match(shown, "^<dim [^>]+>.*48 %+ 37 = 85%.\n")
  t.eq(err, "")
  shown, err = talk({ "Hello!", "Hello!" }, MOON, "--max-tokens", "1", "--threads", "1",
    "--temperature", "0")
  t.eq({ shown, err }, { "Hello\nHello\n", "" })
  t.match(select(2, talk({}, LLAMA)), "chat template")
  uv.os_unsetenv "XDG_STATE_HOME"
end)

test("check", function(t)
  t.unforced() -- deadlines of 50 ms
  local folder = assert(uv.fs_mkdtemp(uv.os_tmpdir() .. "/XXXXXX"))
  local function file(name, source)
    local path = folder .. "/" .. name
    local f <close> = assert(io.open(path, "w"))
    f:write(source)
    return path
  end
  local path = package.path
  local cases = {
    { "none.lua", "return 5", 0, "compiles and runs, has no self-test" },
    { "one.lua", "return function() end", 0, "1 case passed" },
    { "list.lua", "return { function() end, function() end }", 0, "2 cases passed" },
    { "named.lua", "return { selftest = { [10] = function() error('ten', 0) end, [9] = function() "
      .. "error('nine', 0) end } }", 1, "case 9: nine" },
    { "order.lua", "return { selftest = { b = function() error('b', 0) end, a = function() "
      .. "error('a', 0) end } }", 1, "case a: a" },
    { "wrong.lua", "return { selftest = 5 }", 1,
      "selftest must be a function or a table, got number" },
    { "case.lua", "return { selftest = { x = 5 } }", 1, "case x must be a function, got number" },
    { "mixed.lua", "return { print, 5 }", 0, "compiles and runs, has no self-test" },
    { "raise.lua", "error('raised', 0)", 1, "raised" },
    { "syntax.lua", "x = = 1", 1, "1: unexpected symbol near '='" },
    { "slow.lua", "return function() while true do end end", 1, "deadline exceeded" },
    { "x.jinja", "{{ messages }}", 0, "has no cases; can: " },
    { "thinks.jinja", "{% for m in messages %}{{ m.reasoning_content }}\n</think>\n{{ m.content }}"
      .. "{% endfor %}", 0, [[reasoning_end = "\n</think>\n"]] },
    { "x.txt", "", 1, "not a kind of file that can be checked (kinds: template, architecture, "
      .. "schema or grammar, hook or policy, parser, script)" },
    { "x.json", '{"type": "object", "properties": {"a": {"type": "integer"}}, '
      .. '"required": ["a"]}', 0,
      [[such as "{\"a\":0}"; bytes that may come next along it: 1 4 1 1 4 14 ]] },
    { "refused.json", '{"properties": {"a": {"maxLength": -1}}}', 1, "/properties/a: maxLength" },
    { "text.json", "{", 1, "line 1" },
    { "x.gbnf", 'root ::= "a" [0-9]+ "b"', 0, [[such as "a0b"; ]] },
    { "x.lark", 'start: "a" | "b"', 0, [[such as "a"; bytes that may come next along it: 2]] },
  }
  for _, case in ipairs(cases) do
    local name = file(case[1], case[2])
    local got = run(nil, "check", "--deadline", "50", name)
    t.eq(got[1], case[3], case[1])
    local said = case[3] == 0 and got[2] or got[3]
    local start = (case[3] == 0 and "" or "perigee: ") .. name .. ": "
    t.eq(said:sub(1, #start), start, case[1])
    t.ok(said:find(case[4], 1, true), case[1] .. ": " .. said)
    t.eq(select(2, said:gsub("\n", "")), 1)
  end
  local here = folder .. "/"
  local both = run(nil, "check", here .. "one.lua", here .. "wrong.lua", here .. "list.lua")
  t.eq({ both[1], select(2, both[2]:gsub("passed\n", "")) }, { 1, 2 })
  for _, case in ipairs(cases) do os.remove(folder .. "/" .. case[1]) end
  os.remove(folder)
  package.path = path
end)
