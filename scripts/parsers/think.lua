-- think: the family of formats with reasoning between two marks at the start of the answer,
-- <think>…</think>. The prompt may have opened the block already. A call inside the block is passed
-- on as content, where the tool parser finds it.
local scan = require "parsers.scan"

local think = {}

--- Marks that open and close a call. `mention`: the mark also occurs in prose, so a call must
--- follow.
local CALLS = {
  { open = "<tool_call>", close = "</tool_call>", mention = true },
  { open = "<seed:tool_call>", close = "</seed:tool_call>", mention = true },
  { open = "<minimax:tool_call>", close = "</minimax:tool_call>", mention = true },
  { open = "<TOOLCALL>", close = "</TOOLCALL>", mention = true },
  { open = "[TOOL_CALLS]", mention = true }, -- lasts to the end of the block
  { open = "<|tool_calls_section_begin|>", close = "<|tool_calls_section_end|>" },
  { open = "<|tool_call_begin|>", close = "<|tool_call_end|>" },
  { open = "<|tool_call_start|>", close = "<|tool_call_end|>" },
  { open = "<｜tool▁calls▁begin｜>", close = "<｜tool▁calls▁end｜>" },
  { open = "<｜tool▁call▁begin｜>", close = "<｜tool▁call▁end｜>" },
}

--- Has the prompt opened a block? nil if the prompt is not known.
local function open_in(tail, f)
  if not tail then return nil end
  local function last(mark)
    local at, found = 0, 0
    repeat
      at = tail:find(mark, at + 1, true)
      found = at or found
    until not at
    return found
  end
  return last(f.open) > last(f.close)
end

local BODY = { [60] = true, [91] = true, [123] = true } -- < [ {
local AFTER_NAME = { [10] = true, [60] = true, [91] = true, [123] = true } -- newline < [ {

--- Does a call follow, rather than prose about the mark?
local function is_call(s, call)
  if not call.mention then return true end
  s:space()
  local c = s:peek()
  if not c then return false end
  if BODY[c] then return true end
  return s:name() ~= nil and AFTER_NAME[s:peek()] or false
end

--- Passes a call inside the block on as content, up to its closing mark. Returns true if the block
--- ended before that.
local function pass_call(s, f, call)
  s:hold(#call.open)
  local real = is_call(s, call)
  local text = s:release()
  if not real then
    s.reasoning:text(text)
    return false
  end
  s.reasoning:mark()
  s.thinking = false
  s.content:text(text)
  local mark = s:upto(f.ends[call.open], function(part) s.content:text(part) end)
  if mark and mark ~= f.close then s.content:text(mark) end
  s.thinking = true
  return mark == f.close
end

--- Reads to the end of the block; false at the end of the answer.
local function block(s, f)
  s.reasoning:mark()
  s.thinking = true
  while true do
    local mark = s:upto(f.inside, function(text) s.reasoning:text(text) end)
    if not mark then return false end
    if mark == f.open then
      s.nested = s.nested + 1
      s.reasoning:text(mark)
    elseif mark == f.close or pass_call(s, f, f.calls[mark]) then
      s.thinking = false
      s.reasoning:cut()
      s.content:mark()
      return true
    end
  end
end

--- A closing mark in the content. If it ends a block in which another was opened, or one that the
--- prompt opened without our knowledge, the content so far was reasoning. Otherwise it is text.
local function stray_close(s, f, o)
  if s.nested > 0 then
    s.nested = s.nested - 1
  elseif o.mentioned > 0 or not o.unknown then
    o.mentioned = math.max(0, o.mentioned - 1)
    s.content:text(f.close)
    return false
  end
  s.options.relabel()
  o.unknown = false
  return true
end

local function read(s, f)
  local o = { unknown = s.tail == nil, mentioned = 0 }
  local function put(text) s.content:text(text) end
  s.nested = 0
  local opened, edge = open_in(s.tail, f), true
  local closed = false
  if opened then -- the model may open the block once more
    s.thinking = true
    s.reasoning:text(s:gap())
    s:take(f.open)
  end
  while true do
    if opened then
      o.unknown = false
      if not block(s, f) then return end
      edge, opened, closed = true, false, true
    end
    -- at the start or after a block: another may open, a second closing mark is dropped
    if edge then
      put(s:gap())
      if s:take(f.open) then
        opened = true
        s.content:mark()
      elseif closed and s:take(f.close) then
        s.content:mark()
      else
        edge = false
      end
    else
      local mark = s:upto(f.outside, put)
      if not mark then return end
      if mark == f.open then
        o.mentioned = o.mentioned + 1
        put(mark)
      elseif mark == f.close then
        edge = stray_close(s, f, o)
        closed = edge
      else
        s.content:mark()
      end
    end
  end
end

--- Makes a format of { name, open, close, drop = marks to remove from the content }.
function think.new(format)
  local f = { open = format.open or "<think>", close = format.close or "</think>", calls = {},
    ends = {} }
  local inside, outside = { f.open, f.close }, { f.open, f.close }
  for _, call in ipairs(CALLS) do
    f.calls[call.open] = call
    f.ends[call.open] = scan.marks { f.close, call.close }
    inside[#inside + 1] = call.open
  end
  for _, mark in ipairs(format.drop or {}) do outside[#outside + 1] = mark end
  f.inside, f.outside = scan.marks(inside), scan.marks(outside)
  format.inner = outside
  format.mark, format.closing = f.close, "\n" .. f.close .. "\n\n"
  format.grammar = function(s)
    local any, close = s:upto(f.close)
    return { block = { s:mark(f.open), any, close, s.b:pattern "\\n{0,2}" } }
  end
  format.opened = function(tail) return open_in(tail, f) end
  format.run = function(s) return read(s, f) end
  return format
end

return think
