-- tagged: the family of calls as tags, <function=NAME><parameter=KEY>VALUE</parameter></function>, alone or in a wrapper.
local args = require "parsers.args"
local scan = require "parsers.scan"

local tagged = {}

--- The marks of a member of the family; what is not said is as in Qwen's.
function tagged.new(marks)
  local f = { call = "<function=", call_end = "</function>", parameter = "<parameter=", parameter_end = "</parameter>",
    tag_end = ">", name = "^[^<>%c]*", wrapper_end = "</tool_call>", unknown = "json" }
  for key, value in pairs(marks or {}) do f[key] = value end
  f.inside = { f.parameter, f.call_end }
  f.value_end = scan.marks { f.parameter_end }
  f.all = { f.call, f.call_end, f.parameter, f.parameter_end, f.wrapper_end }
  return f
end

local function tag_name(s, f)
  local name = s:word(f.name, 256)
  if not name or name == "" or not s:take(f.tag_end) then return nil end
  return name
end

--- A function's body as JSON.
local function json_body(s, f, name)
  if not args.streamed(s, name) then return false end
  s:space()
  return s:take(f.call_end) or not s:peek()
end

--- A call behind its opening mark. Missing closing tags are forgiven once a parameter is complete.
function tagged.call(s, f)
  local name = tag_name(s, f)
  if not name then return false end
  s:space()
  if s:ahead "{" then return json_body(s, f, name) end
  if f.json_only then return false end
  local call
  while true do
    local mark = s:one_of(f.inside)
    if not mark and not call then return false end
    call = call or args.begin(s, name)
    if mark ~= f.parameter then
      call:finish()
      return true
    end
    local key = tag_name(s, f)
    if not key then return false end
    call:next()
    local options = { key = key, types = s.tools:types(name, key), close = f.value_end, trim = true, unknown = f.unknown }
    if not args.parameter(s, function(text) call:put(text) end, options) then return false end
    s:space()
  end
end

--- What a wrapper may hold, by its first text; each reads one call.
function tagged.wrapped(s, f, forms)
  s:space()
  local first = true
  while true do
    local done
    for text, form in pairs(forms) do
      if s:ahead(text) then
        done = form(s)
        if not done then return false end
        break
      end
    end
    if not done then
      if first then return false end
      return true
    end
    first = false
    s:commit()
    local gap = s:gap()
    if s:take(f.wrapper_end) then return true end
    s.content:text(gap)
    s:hold(0)
  end
end

--- A form for wrapped: a call in tags.
function tagged.form(f)
  return function(s)
    return s:take(f.call) and tagged.call(s, f)
  end
end

return tagged
