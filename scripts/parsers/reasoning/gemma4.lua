-- gemma4: <|channel>thought … <channel|>, or up to <|channel>response. The marks are single tokens,
-- so they count anywhere in the text.
local scan = require "parsers.scan"

local CALL, CALL_END = "<|tool_call>", "<tool_call|>"
local marks = { [true] = scan.marks { "<|channel>", "<channel|>", CALL },
  [false] = scan.marks { "<|channel>", "<channel|>" } }
local call_end = scan.marks { CALL_END, "<channel|>" }
local THOUGHT, RESPONSE = { thought = true }, { response = true, final = true }

local function open_in(tail)
  return tail and tail:find "<|channel>thought%s*$" ~= nil
end

--- The label after <|channel>: true for thinking, false for the answer; nil and the text read if it
--- is neither.
local function label(s)
  s:hold(#"<|channel>")
  local word = s:word("^%a*", 16)
  if THOUGHT[word] or RESPONSE[word] then
    s:take "\n"
    s.held = nil
    return THOUGHT[word] or false
  end
  return nil, s:release()
end

--- Passes a call inside thinking on as content, where the tool parser finds it.
local function pass_call(s)
  local function put(text) s.content:text(text) end
  s.reasoning:mark()
  s.thinking = false
  put(CALL)
  local mark = s:upto(call_end, put)
  s.thinking = true
  if mark == CALL_END then put(mark) elseif mark then s:back(mark) end
end

local function run(s)
  local channels = { [true] = s.reasoning, [false] = s.content }
  local thinking, seen = open_in(s.tail) or false, s.tail ~= nil
  if thinking then s.reasoning:mark() end
  while true do
    local channel = channels[thinking]
    s.thinking = thinking
    local mark = s:upto(marks[thinking], function(text) channel:text(text) end)
    if not mark then return end
    local now, text = false, nil
    if mark == CALL then
      pass_call(s)
      now, text = nil, ""
    elseif mark == "<|channel>" then
      now, text = label(s)
    elseif not thinking and not seen then
      s.options.relabel()
    else
      s.thinking = false
      now = s:take "thought\n" -- a model that repeats itself may leave out the opening mark
    end
    if now == nil then
      channel:text(text)
    else
      seen, thinking = true, now
      s.reasoning:cut()
      s.content:mark()
    end
  end
end

return {
  name = "gemma4",
  run = run,
  opened = open_in,
  mark = "<channel|>",
  closing = "\n<channel|>",
  grammar = function(s)
    local any, close = s:upto "<channel|>"
    return { block = { s:mark "<|channel>", s:text "thought\n", any, close } }
  end,
  inner = { "<|channel>", "<channel|>" },
  selftest = {
    { text = "<|channel>thought\nweigh\n<channel|>Pick B.", reasoning = "weigh",
      content = "Pick B." },
    { text = "<|channel>thought\nweigh<|channel>response\nPick B.", reasoning = "weigh",
      content = "Pick B." },
    { text = "<|channel>thought\na\n<channel|><|channel>thought\nb<channel|>C", reasoning = "a\nb",
      content = "C" },
    { text = "weigh<channel|>Pick B.", reasoning = "weigh", content = "Pick B." },
    { text = "<|channel>thought\na<|tool_call>call:f{}<tool_call|>b<channel|>C", reasoning = "ab",
      content = "<|tool_call>call:f{}<tool_call|>C" },
    { text = "<|channel>thought\ntext<|channel>", reasoning = "text<|channel>" },
  },
}
