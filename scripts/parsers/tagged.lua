-- tagged: the family of calls as tags, <function=NAME><parameter=KEY>VALUE</parameter></function>, alone or in a wrapper.
local args = require "parsers.args"
local scan = require "parsers.scan"

local tagged = {}

local GAP = 64

--- Does this text stand at `at`, after some white space? nil when the text so far does not tell; and where it ends.
local function comes(s, at, literal)
  local _, last = s.buf:find("^%s*", at)
  if last - at > GAP then return false end
  local text = s.buf:sub(last + 1, last + #literal)
  if text == literal then return true, last + 1 + #literal end
  if s.ended or text ~= literal:sub(1, #text) then return false end
end

--- A value whose closing tag is missing ends at the call's, when that stands before the wrapper's. When the value's stands
--- behind both after all, they are text.
local function closes_value(f)
  return function(s, at)
    local is, behind = comes(s, at, f.wrapper_end)
    if not is then return is end
    local goes_on = comes(s, behind, f.parameter_end)
    if goes_on == nil then return nil end
    return not goes_on
  end
end

--- The marks of a member of the family; what is not said is as in Qwen's.
function tagged.new(marks)
  local f = { call = "<function=", call_end = "</function>", parameter = "<parameter=", parameter_end = "</parameter>",
    tag_end = ">", name = "^[^<>%s%c]*", key = "^[^<>%c]*", wrapper_end = "</tool_call>", unknown = "json" }
  for key, value in pairs(marks or {}) do f[key] = value end
  f.inside = { f.parameter, f.call_end }
  f.value_end = scan.marks({ f.parameter_end, f.call_end }, { [f.call_end] = closes_value(f) })
  f.all = { f.call, f.call_end, f.parameter, f.parameter_end, f.wrapper_end }
  return f
end

--- What a tag names; nil when that is nothing, or too long.
local function tag_name(s, f, pattern)
  local name = s:word(pattern, 256)
  s:space()
  if not name or not name:find "%S" or not s:take(f.tag_end) then return nil end
  return args.strip(name)
end

--- A function's body as JSON.
local function json_body(s, f, name)
  if not args.streamed(s, name) then return false end
  s:space()
  return s:take(f.call_end) or not s:peek()
end

--- A call behind its opening mark. Missing closing tags are forgiven once a parameter is complete, or in a wrapper.
function tagged.call(s, f, wrapped)
  local name = tag_name(s, f, f.name)
  if not name then return false end
  s:space()
  if s:ahead "{" then return json_body(s, f, name) end
  if f.json_only then return false end
  local call
  while true do
    local mark = s:one_of(f.inside)
    if not mark and not call and not (wrapped and s:ahead(f.wrapper_end)) then return false end
    call = call or args.begin(s, name)
    if mark ~= f.parameter then
      call:finish()
      return true
    end
    local key = tag_name(s, f, f.key)
    if not key then return false end
    call:next()
    local options = { key = key, types = s.tools:types(name, key), close = f.value_end, trim = true, unknown = f.unknown }
    local close = args.parameter(s, function(text) call:put(text) end, options)
    if not close then return false end
    if close == f.call_end then s:back(close) end
    s:space()
  end
end

local function form_of(s, forms)
  for text, form in pairs(forms) do
    if s:ahead(text) then return form end
  end
end

--- The call behind a few words that should not be there (f.lenient reads it); nil, and the words are text, when there is none.
local function form_behind(s, f)
  local words = s:word("^[^{<]*", GAP)
  if words and s:ahead "{" then return f.lenient, words end
  s.starved = s.starved and words == ""
end

--- What a wrapper may hold, by its first text; each form reads one call. Text between or behind them is content.
--- s.wrapper: the closing mark has not come yet.
function tagged.wrapped(s, f, forms)
  s.wrapper = nil
  s:space()
  local form, words = form_of(s, forms), ""
  if not form and f.lenient then form, words = form_behind(s, f) end
  if not form then return false end
  while form do
    if not form(s) then return false end
    s.content:text(words)
    s.wrapper = true
    s:commit()
    words = s:gap()
    if s:take(f.wrapper_end) then return tagged.close(s) end
    if s:take "," then words = words .. "," .. s:gap() end
    form = form_of(s, forms)
    if form then words = "" end
  end
  s.content:text(words)
  return true
end

--- The closing mark of a wrapper is removed where a wrapper is open; else it is text.
function tagged.close(s)
  local open = s.wrapper
  s.wrapper = nil
  return open
end

--- A form for wrapped: a call in tags.
function tagged.form(f)
  return function(s)
    return s:take(f.call) and tagged.call(s, f, true)
  end
end

return tagged
