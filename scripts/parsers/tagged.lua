-- tagged: the family of formats that write calls as tags, alone or in a wrapper:
--   <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
local args = require "parsers.args"
local scan = require "parsers.scan"

local tagged = {}

local GAP = 64 -- bytes of white space or stray words that are read over before a tag

--- Does this text come at `at`, after white space? nil if more text is needed. Also returns where
--- it ends.
local function comes(s, at, literal)
  local _, last = s.buf:find("^%s*", at)
  if last - at > GAP then return false end
  local text = s.buf:sub(last + 1, last + #literal)
  if text == literal then return true, last + 1 + #literal end
  if s.ended or text ~= literal:sub(1, #text) then return false end
end

--- A value without its closing tag ends at the call's closing tag, if the wrapper's comes right
--- after that. If the value's own closing tag follows both, they are part of the value.
local function closes_value(f)
  return function(s, at)
    local is, next_at = comes(s, at, f.wrapper_end)
    if not is then return is end
    local goes_on = comes(s, next_at, f.parameter_end)
    if goes_on == nil then return nil end
    return not goes_on
  end
end

--- The marks of a format of this family; the defaults are Qwen's.
function tagged.new(marks)
  local f = { call = "<function=", call_end = "</function>", parameter = "<parameter=",
    parameter_end = "</parameter>", tag_end = ">", name = "^[^<>%s%c]*", key = "^[^<>%c]*",
    wrapper_end = "</tool_call>", unknown = "json" }
  for key, value in pairs(marks or {}) do f[key] = value end
  f.inside = { f.parameter, f.call_end }
  f.value_end = scan.marks({ f.parameter_end, f.call_end }, { [f.call_end] = closes_value(f) })
  f.all = { f.call, f.call_end, f.parameter, f.parameter_end, f.wrapper_end }
  return f
end

--- The name in a tag; nil if it is empty or too long.
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

--- A call after its opening mark. Missing closing tags are forgiven once a parameter is complete,
--- or in a wrapper.
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
    local options = { key = key, types = s.tools:types(name, key), close = f.value_end, trim = true,
      unknown = f.unknown }
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

--- A call after a few stray words, which f.lenient reads; nil, and the words are text, if none
--- comes.
local function form_after_words(s, f)
  local words = s:word("^[^{<]*", GAP)
  if words and s:ahead "{" then return f.lenient, words end
  s.starved = s.starved and words == ""
end

--- A handler for a wrapper. `forms` maps the first text of a call to the function that reads it.
--- Text between and after the calls is content. s.wrapper is set until the closing mark has been
--- read.
function tagged.wrapped(s, f, forms)
  s.wrapper = nil
  s:space()
  local form, words = form_of(s, forms), ""
  if not form and f.lenient then form, words = form_after_words(s, f) end
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

--- A handler for the closing mark of a wrapper: it is removed if a wrapper is open, otherwise it is
--- text.
function tagged.close(s)
  local open = s.wrapper
  s.wrapper = nil
  return open
end

--- A form for `wrapped`: a call in tags.
function tagged.form(f)
  return function(s)
    return s:take(f.call) and tagged.call(s, f, true)
  end
end

--- The description of such calls for parsers/shape.lua. `line`: the white space that the model's
--- template writes around a value.
function tagged.grammar(s, f, o)
  local b = s.b
  local stray = b:cat(b:text(f.call_end), b:pattern "\\s*", b:text(f.wrapper_end))
  local call = s:each(function(tool)
    return { s:text(f.call .. tool.name .. f.tag_end .. "\n"),
      s:tags(tool, { key = { f.parameter, f.tag_end }, value_end = f.parameter_end, line = o.line,
        stray = stray, trim = true, unknown = f.unknown }), s:text(f.call_end .. "\n") }
  end)
  return { mark = o.mark, before = { s:text "\n" }, call = call, after = { s:mark(f.wrapper_end) },
    gap = not o.section and { s:text "\n" } or nil, section = o.section }
end

return tagged
