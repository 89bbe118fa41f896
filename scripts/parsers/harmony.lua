-- harmony: messages with channels, read by the tool parser `harmony` and the reasoning parser
-- `gpt_oss`. The recipient comes before or after the channel:
--   <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>…<|call|>
-- A message with a recipient is a call. Otherwise analysis is reasoning, commentary and final are
-- content.
local args = require "parsers.args"
local scan = require "parsers.scan"

local harmony = {}

local ENDS = { "<|call|>", "<|end|>", "<|return|>", "<|start|>", "<|channel|>" }
local between = { ends = ENDS, marks = scan.marks(ENDS),
  soft = { ["<|start|>"] = true, ["<|channel|>"] = true } }
local all = scan.marks { "<|call|>", "<|end|>", "<|return|>", "<|start|>", "<|channel|>",
  "<|message|>" }
harmony.marks = { "<|channel|>", "<|constrain|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>",
  "<|return|>" }
local header_end = scan.marks(harmony.marks)
local HEADER = 256 -- bytes between two marks of a header; longer text is not a header
local BEGINS = { ["<|start|>"] = true, ["<|channel|>"] = true }

--- NAME of functions.NAME in a header, or nil.
local function recipient(text)
  local at = text:find("to=", 1, true)
  local name = at and text:match("^[^%s<]+", at + 3)
  name = name and name:gsub("^functions%.", "")
  return name ~= "" and name or nil
end

--- Reads the header that `mark` opened, up to <|message|>. Returns channel and recipient; nil if it
--- is not a header.
local function header(s, mark)
  local channel, to
  while mark ~= "<|message|>" do
    local text, next_mark = s:short_field(header_end, HEADER)
    if not text then return nil end
    to = recipient(text) or to
    if mark == "<|channel|>" then channel = text:match "%S+" end
    if next_mark ~= "<|channel|>" and next_mark ~= "<|constrain|>"
      and next_mark ~= "<|message|>" then
      s:back(next_mark)
      return nil
    end
    mark = next_mark
  end
  return channel or "final", to
end

--- The body of a message to a tool.
local function tool_message(s, name)
  if not s.options.calls then
    local _, mark = s:field(between.marks)
    if BEGINS[mark] then s:back(mark) end
    s.events:other("commentary", s:held_text())
    return true
  end
  s:space()
  return args.between(s, name, between)
end

--- The body of a message of analysis or content; returns the mark that ends it.
local function body(s, channel)
  local target = s.content
  if channel == "analysis" then target = s.reasoning end
  target:cut()
  s.thinking = channel == "analysis"
  local mark = s:upto(all, function(text) target:text(text) end)
  s.thinking = false
  target:cut()
  return mark
end

--- One message after the mark that opened it; returns the mark that ended it, which may open the
--- next.
local function message(s, mark)
  s:hold(#mark)
  s.first_call, s.starved = s.events.calls + 1, false
  local channel, to = header(s, mark)
  local ended
  if channel and to then
    ended = tool_message(s, to)
  elseif channel then
    s.held = nil
    return body(s, channel)
  end
  local text = s:release()
  if ended then
    s.content:mark()
    return ended
  end
  local begun = s.events:drop(s.first_call)
  if channel or begun or s.starved then
    s.events:other("unfinished", text)
  else
    s.content:text(text)
  end
end

--- A handler for the marks that begin a message: reads it if it is a call.
function harmony.call(s, mark)
  local channel, to = header(s, mark)
  local ended = channel and to and tool_message(s, to)
  if BEGINS[ended] then s:back(ended) end
  return ended
end

--- Has the prompt opened a message of the analysis channel?
function harmony.opened(tail)
  local text = tail or ""
  local at = 0
  repeat
    local next_at = text:find("<|channel|>", at + 1, true)
    at = next_at or at
  until not next_at
  local rest = at > 0 and text:sub(at) or ""
  return rest:find("^<|channel|>analysis") and rest:find("<|message|>", 1, true)
    and not rest:find("<|end|>", 1, true)
end

--- Reads an answer, for both parsers. Without s.options.calls, calls are reported as commentary.
function harmony.read(s)
  local function put(text) s.content:text(text) end
  local mark
  if harmony.opened(s.tail) then
    mark = body(s, "analysis")
  else
    s:hold(0)
    s:space()
    local to = s:ahead "to="
    local text = s:release()
    if to then mark = message(s, "") else put(text) end
  end
  while true do
    if not BEGINS[mark] then
      mark = s:upto(all, put)
      if not mark then return end
    end
    if BEGINS[mark] or mark == "<|message|>" then
      mark = message(s, mark)
    else
      s.content:mark()
    end
  end
end

return harmony
