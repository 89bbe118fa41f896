-- Parsers: the text that forces a call, and the marks that detokenization must keep.
if ... then return end -- pure Lua: forced collection finds nothing

local harness = require "harness"
local parsers = require "parsers"
local selftest = require "parsers.selftest"

local test = harness.test
local tools = { { name = "tide", parameters = { properties = { port = { type = "string" } } } } }

--- The text a model writes after the opening of a call of tide, by format, or by format and
--- template.
local JSON = ' {"port": "Brest"}}\n</tool_call>'
local XML = "<parameter=port>\nBrest\n</parameter>\n</function>\n</tool_call>"
local ARGS = "<arg_key>port</arg_key>\n<arg_value>Brest</arg_value>\n</tool_call>"
local REST = {
  hermes = JSON, qwen = JSON, auto = JSON,
  qwen3_xml = XML, nemotron = XML, step3p5 = XML,
  seed_oss = XML:gsub("/tool_call", "/seed:tool_call"),
  minimax = '<parameter name="port">Brest</parameter>\n</invoke>\n</minimax:tool_call>',
  llama = ' {"port": "Brest"}}', granite = ' {"port": "Brest"}}]', xlam = ' {"port": "Brest"}}]',
  mistral = ' {"port": "Brest"}}]', ["mistral [ARGS]"] = '{"port": "Brest"}',
  deepseek = '{"port": "Brest"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
  deepseek_v31 = '{"port": "Brest"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
  kimi = '{"port": "Brest"}<|tool_call_end|><|tool_calls_section_end|>',
  functionary = '{"port": "Brest"}</function>', ["functionary <|recipient|>"] = '{"port": "Brest"}',
  glm47 = ARGS, poolside_v1 = ARGS, gemma4 = 'port:<|"|>Brest<|"|>}<tool_call|>',
  harmony = '{"port": "Brest"}<|call|>',
  pythonic = 'port="Brest")]', ["pythonic <|python_start|>"] = 'port="Brest")]<|python_end|>',
}

local function check_call(t, o, s)
  for _, pieces in ipairs { { s }, selftest.bytes(s) } do
    local r = parsers.parse(pieces, o)
    t.eq(selftest.shape(r), { calls = { { "tide", '{"port": "Brest"}' } } },
      o.format .. " of " .. s)
  end
end

test("the opening and the rest of a call are that call", function(t)
  for key, rest in pairs(REST) do
    local format, template = key:match "^(%S+) ?(.*)$"
    local o = { template = template }
    local with, without = parsers.opening(format, "tide", o), parsers.opening(format, nil, o)
    t.eq(with:sub(1, #without + 4), without .. "tide", format)
    check_call(t, { format = format, tools = tools }, with .. rest)
    check_call(t, { format = format, tools = tools, reasoning = "qwen3", prompt_tail = "" },
      with .. rest)
  end
end)

test("every format but none has an opening", function(t)
  for _, format in ipairs(parsers.names "tools") do
    t.eq(parsers.opening(format) ~= nil, format ~= "none", format)
    t.eq(REST[format] ~= nil, format ~= "none", format)
  end
  t.eq(parsers.opening("none", "tide"), nil)
  for _, name in ipairs { "", "a b", 'a"', "a>", "é" } do
    t.eq(parsers.opening("hermes", name), nil, name)
  end
  t.raises(function() parsers.opening "hermess" end, "unknown tool format 'hermess'")
end)

test("thinking that the prompt has opened is closed first", function(t)
  local tails = { qwen3 = "<think>\n", deepseek_r1 = "<think>", glm4 = "<think>",
    step3p5 = "<think>\n", poolside_v1 = "<think>", mistral = "[THINK]", seed_oss = "<seed:think>",
    gemma4 = "<|channel>thought\n", gpt_oss = "<|channel|>analysis<|message|>" }
  local ends = { mistral = "[/THINK]", seed_oss = "</seed:think>", gemma4 = "<channel|>",
    gpt_oss = "<|end|>", none = "" }
  for _, reasoning in ipairs(parsers.names "reasoning") do
    local format = reasoning == "gpt_oss" and "harmony" or "hermes"
    local o = { format = format, reasoning = reasoning, prompt_tail = tails[reasoning],
      tools = tools }
    t.eq(tails[reasoning] ~= nil, reasoning ~= "none", reasoning)
    local opening = parsers.opening(format, "tide", o)
    check_call(t, o, opening .. REST[format])
    t.ok(opening:find(ends[reasoning] or "</think>", 1, true), reasoning .. " ends its thinking")
    t.eq(parsers.opening(format, "tide", { reasoning = reasoning, prompt_tail = "assistant\n" }),
      parsers.opening(format, "tide"))
  end
end)

-- A reasoning format, the end of a prompt, and whether its thinking is still open there.
local TAILS = {
  { "qwen3", "<think>", true }, { "qwen3", "</think><think>", true }, { "qwen3", "", false },
  { "qwen3", "<think>a</think>", false }, { "qwen3", "<think>a</think>b<think>c", true },
  { "qwen3", "<think>a</think>b</think>", false }, { "qwen3", nil, false },
  { "gpt_oss", "<|channel|>analysis<|message|>a", true },
  { "gpt_oss", "<|channel|>analysis<|message|>a<|end|>", false },
  { "gpt_oss", "<|channel|>analysis", false }, { "gpt_oss", "<|message|>", false },
  { "gpt_oss", "<|channel|>final<|message|>", false }, { "gpt_oss", nil, false },
  { "gpt_oss", "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", false },
  { "gpt_oss", "<|channel|>final<|message|>b<|end|><|channel|>analysis<|message|>a", true },
  { "gemma4", "<|channel>thought", true }, { "gemma4", "<|channel>thought\n", true },
  { "gemma4", "<|channel>thought\na", false }, { "gemma4", nil, false },
}

test("only thinking that is open is closed", function(t)
  for _, case in ipairs(TAILS) do
    local reasoning, tail, open = table.unpack(case, 1, 3)
    local closed = parsers.opening("hermes", nil, { reasoning = reasoning, prompt_tail = tail })
      ~= parsers.opening "hermes"
    t.eq(closed, open, ("%s after %s"):format(reasoning, tail))
    local r = parsers.parse("x", { format = "none", reasoning = reasoning, prompt_tail = tail })
    t.eq({ r.reasoning, r.content }, open and { "x" } or { [2] = "x" }, reasoning .. " parses")
  end
end)

test("marks are all the texts that a pair of formats looks for", function(t)
  t.eq(parsers.marks("none", "none"), {})
  t.eq(parsers.marks("kimi", "none"), {
    "<|tool_call_argument_begin|>", "<|tool_call_begin|>", "<|tool_call_end|>",
    "<|tool_call_section_begin|>", "<|tool_call_section_end|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>" })
  t.eq(parsers.marks("none", "mistral"), { "[/THINK]", "[THINK]" })
  t.raises(function() parsers.marks("hermes", "nope") end, "unknown reasoning format 'nope'")
  local function has(list, wanted)
    for _, mark in ipairs(list) do
      if mark == wanted then return true end
    end
    return false
  end
  local auto = parsers.marks("auto", "none")
  for _, name in ipairs { "tools.qwen", "tools.llama", "tools.mistral", "tools.deepseek",
    "tools.kimi", "tools.minimax", "tools.seed_oss", "tools.functionary", "tools.gemma4",
    "tools.glm47" } do
    for _, mark in ipairs(require("parsers." .. name).inner) do
      t.ok(has(auto, mark), "auto looks for " .. mark)
    end
  end
  for _, mark in ipairs(parsers.marks("harmony", "none")) do
    t.ok(has(auto, mark), "auto looks for " .. mark)
  end
  for key, rest in pairs(REST) do
    local format, template = key:match "^(%S+) ?(.*)$"
    local marks = parsers.marks(format, "none")
    local all = parsers.opening(format, "x", { template = template }) .. rest
    for mark in all:gmatch "<[^<>=\" ]*>" do
      local tag = mark == "<function=x>" or mark == "<parameter=port>"
      if not tag then t.ok(has(marks, mark), format .. " looks for " .. mark) end
    end
  end
end)
