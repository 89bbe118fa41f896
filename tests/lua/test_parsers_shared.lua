-- Parsers against recorded results of another program for the same texts, if the recordings are
-- present. Where that program loses or doubles text, ignores the schema or invents arguments, ours
-- differs; those cases are listed by name.
if ... then return end -- pure Lua: forced collection finds nothing

local harness = require "harness"
local parsers = require "parsers"
local perigee = require "perigee"
local selftest = require "parsers.selftest"
local text = require "lib.text"

local json = perigee.json
local test = harness.test
local SHARED = "../shared/cases/"

--- Cases in which ours differs: parser/name = why.
local DIFFERS = {
  ["reasoning gpt_oss/two analysis"] = "the second thought is lost",
  ["reasoning harmony/analysis only"] = "the thought is lost",
  ["reasoning harmony/constrain"] = "the answer is lost",
  ["reasoning qwen3/TestQwen3Parser.test_only_start_tag_no_reasoning"] =
    "thinking that is cut off is thinking, and is streamed",
  ["reasoning qwen3/TestQwen3SpecificCases.test_qwen3_implicit_mode_support"] = "the same",
  ["reasoning qwen3/TestNonStreamingPromotion.test_content_none_handled"] = "the same",
  ["reasoning poolside_v1/unclosed tool call in think"] = "the same",
  ["tool auto/xml function call"] = "without a schema 3 is a number, as in the stream",
  ["tool auto/xml one"] = "the schema says integer",
  ["tool auto/xml object value"] = "the schema says object",
  ["tool auto/xml python literal"] = "the schema says array",
  ["tool auto/xml float to number"] = "the schema says number",
  ["tool step3p5/xml digits for a string parameter"] = "the schema says string",
  ["tool deepseek/text after"] = "the text after the calls is lost",
  ["tool qwen3_xml/test_streaming_extra_text_after_tool_call_is_preserved"] =
    "the text after the call is lost",
  ["tool mistral/name brace invalid json kept"] = "arguments that are cut off are invented",
}

local ALIAS = { generic_fallback = "auto" }

local function strip(s)
  return type(s) == "string" and s:match "^%s*(.-)%s*$" or ""
end

--- The text after thinking, which a tool parser may or may not leave in the content.
local function after_think(s)
  return strip(s:match ".*</think>(.*)$" or s)
end

local function value(arguments)
  local v, why = json.decode(arguments or "")
  if why then return nil end
  return v
end

local ideals = {} -- the ideal result, by kind, parser and text

local function place(case)
  return table.concat({ case.kind, case.parser, case.input.text or "" }, "\0")
end

--- The ideal result of a case, or nil.
local function wanted(case)
  return ideals[place(case)] or case.whole_text or not case.stream_deltas and not case.note
    and case.expected or nil
end

local function field(o, ...)
  for _, key in ipairs { ... } do
    local v = o[key]
    if v ~= nil and v ~= json.null and v ~= "" then return v end
  end
end

local function compare(t, case, r)
  local want, label = wanted(case), ("%s %s/%s"):format(case.kind, case.parser, case.name)
  if not want or DIFFERS[label:gsub(" %(stream%)$", "")] then return false end
  local calls = field(want, "tool_calls", "final_tool_calls") or {}
  if not t.eq(#r.calls, #calls, label) then return true end
  for i, call in ipairs(calls) do
    t.eq(r.calls[i].name, call.name, label)
    local v = value(call.arguments)
    if v ~= nil then t.eq(value(r.calls[i].arguments), v, label) end
  end
  return true
end

local function compare_reasoning(t, case, r)
  local want, label = wanted(case), ("%s %s/%s"):format(case.kind, case.parser, case.name)
  if not want or DIFFERS[label:gsub(" %(stream%)$", "")]
    or case.input.text:find("<tool_call>", 1, true) then
    return
  end
  t.eq(strip(r.reasoning), strip(field(want, "reasoning", "reasoning_content", "final_reasoning")),
    label)
  t.eq(after_think(r.content or ""), after_think(field(want, "content", "final_content") or ""),
    label)
end

test("recorded cases", function(t)
  local source = text.read_file(SHARED .. "parsers.json")
  if not source then t.skip "no recorded cases" end
  local n = 0
  local cases = assert(json.decode(source))
  for _, case in ipairs(cases) do
    if case.ideal then ideals[place(case)] = case.ideal end
  end
  for _, case in ipairs(cases) do
    if case.kind ~= "normalize" then
      local s, o = case.input.text, { tools = case.input.tools, format = "none" }
      o[case.kind == "tool" and "format" or "reasoning"] = ALIAS[case.parser] or case.parser
      local opens = s:match "^(.-)</think>"
      if case.kind == "reasoning" and opens and not opens:find("<think>", 1, true) then
        o.prompt_tail = "<think>\n"
      end
      local r = parsers.parse(s, o)
      if case.kind == "tool" then
        if compare(t, case, r) then n = n + 1 end
      else
        compare_reasoning(t, case, r)
        n = n + 1
      end
      local whole = json.encode(selftest.shape(r))
      t.eq(json.encode(selftest.shape(parsers.parse(selftest.bytes(s), o))), whole,
        case.name .. " byte by byte")
      if case.stream_deltas and table.concat(case.stream_deltas) == s then
        t.eq(json.encode(selftest.shape(parsers.parse(case.stream_deltas, o))), whole,
          case.name .. " in its pieces")
      end
    end
  end
  t.ok(n > 500, ("%d cases"):format(n))
end)

--- The formats detected for the templates of real models, by file name. "auto" and "none" for
--- templates without tools or thinking, or with a format that is not supported (DSML,
--- <function name=…>, <mm:think>, <|open|> …).
local TEMPLATES = {
  ["Apertus-8B-Instruct"] = "auto none", ["Apriel-1.6-15b-Thinker-fixed"] = "auto none",
  ["Bielik-11B-v3.0-Instruct"] = "hermes qwen3", ["GLM-4.6"] = "glm47 glm4",
  ["GLM-4.7-Flash"] = "glm47 glm4",
  ["GigaChat3.1-10B-A1.8B"] = "auto none", ["HuggingFaceTB-SmolLM3-3B"] = "auto qwen3",
  ["Kimi-K3"] = "auto none",
  ["LFM2-8B-A1B"] = "pythonic none", ["LFM2.5-8B-A1B"] = "pythonic qwen3",
  ["LFM2.5-Instruct"] = "auto qwen3",
  ["MiMo-VL"] = "hermes none", ["MiniMax-M1"] = "auto none", ["MiniMax-M3"] = "auto none",
  ["NVIDIA-Nemotron-Nano-v2"] = "nemotron qwen3",
  ["NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use"] = "hermes none",
  ["Qwen-QwQ-32B"] = "hermes qwen3", ["Qwen-Qwen2.5-7B-Instruct"] = "hermes none",
  ["Qwen-Qwen3-0.6B"] = "hermes qwen3",
  ["Qwen3-Coder"] = "qwen3_xml none", ["Reka-Edge"] = "hermes qwen3",
  ["deepseek-ai-DeepSeek-R1-Distill-Qwen-32B"] = "deepseek deepseek_r1",
  ["deepseek-ai-DeepSeek-V3.1"] = "deepseek_v31 deepseek_r1",
  ["deepseek-ai-DeepSeek-V3.2"] = "auto deepseek_r1",
  ["deepseek-ai-DeepSeek-V4-Flash-0731"] = "auto deepseek_r1",
  ["deepseek-ai-DeepSeek-V4"] = "auto deepseek_r1",
  ["google-gemma-2-2b-it"] = "auto none", ["google-gemma-4-31B-it-interleaved"] = "gemma4 gemma4",
  ["google-gemma-4-31B-it"] = "gemma4 gemma4", ["ibm-granite-granite-4.0"] = "hermes none",
  ["llama-cpp-deepseek-r1"] = "deepseek deepseek_r1", ["llama-cpp-rwkv-world"] = "auto qwen3",
  ["meetkai-functionary-medium-v3.1"] = "functionary none",
  ["meta-llama-Llama-3.1-8B-Instruct"] = "llama none",
  ["moonshotai-Kimi-K2"] = "kimi none", ["muse-glimmer"] = "auto none",
  ["openai-gpt-oss-120b"] = "harmony gpt_oss",
  ["openbmb-MiniCPM5-1B"] = "auto qwen3", ["poolside-Laguna-XS.2"] = "poolside_v1 poolside_v1",
  ["tencent-Hy3"] = "auto none", ["unsloth-mistral-Devstral-Small-2507"] = "mistral none",
  ["upstage-Solar-Open-100B"] = "auto none",
}

test("templates show the formats", function(t)
  local some = 0
  for name, want in pairs(TEMPLATES) do
    local template = text.read_file(SHARED .. "templates/" .. name .. ".jinja")
    if template then
      some = some + 1
      t.eq(table.concat({ parsers.detect(template) }, " "), want, name)
    end
  end
  if some == 0 then t.skip "no templates" end
end)
