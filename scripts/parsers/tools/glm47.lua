-- glm47: <tool_call>NAME <arg_key>KEY</arg_key><arg_value>VALUE</arg_value> … </tool_call>. White
-- space in values is kept. A call of an undeclared tool is reported as unknown.
local args = require "parsers.args"
local scan = require "parsers.scan"

local INSIDE = { "<arg_key>", "</tool_call>" }
local INNER = { "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>" }
local key_end, value_end = scan.marks { "</arg_key>" }, scan.marks { "</arg_value>" }
local call_end = scan.marks { "</tool_call>" }

local function ignore() end

--- Skips a call of an unknown tool and reports it.
local function refuse(s)
  if not s:upto(call_end, ignore) then return false end
  s.events:other("unknown", s:held_text())
  return true
end

--- Options: first (of equal keys the first counts), strict (a call without parameters counts only
--- if its tool is declared).
local function call(s, options)
  s:space()
  local name = s:name "^[^<%s]*"
  if not name then return false end
  s:space()
  local mark = s:one_of(INSIDE)
  if not mark or mark == "</tool_call>" and options.strict and not s.tools:known(name) then
    return false
  end
  if s.tools.given and not s.tools:known(name) then
    s:back(mark)
    return refuse(s)
  end
  local c, seen = args.begin(s, name), {}
  while mark == "<arg_key>" do
    local key = s:short_field(key_end, 256)
    if not key then return false end
    key = args.strip(key)
    s:space()
    if not s:take "<arg_value>" then return false end
    local put = ignore
    if not (options.first and seen[key]) then
      c:next()
      put = function(text) c:put(text) end
    end
    seen[key] = true
    local o = { key = key, types = s.tools:types(name, key), close = value_end }
    if not args.parameter(s, put, o) then return false end
    s:space()
    mark = s:one_of(INSIDE)
  end
  if not mark then return false end
  c:finish()
  return true
end

local function grammar(s)
  return { mark = "<tool_call>", call = s:each(function(tool)
    return { s:text(tool.name .. "\n"), s:tags(tool, { value_end = "</arg_value>",
      key = { "<arg_key>", "</arg_key>\n<arg_value>" } }) }
  end), after = { s:mark "</tool_call>" }, gap = { s:text "\n" } }
end

local tools = { { name = "tide",
  parameters = { properties = { port = { type = "string" }, days = { type = "integer" } } } } }

return {
  name = "glm47",
  aliases = { "glm4" },
  call = call,
  marks = { ["<tool_call>"] = function(s) return call(s, {}) end },
  inner = INNER,
  opening = { "<tool_call>", "\n" },
  grammar = grammar,
  selftest = {
    { text = "So.\n<tool_call>tide\n<arg_key>port</arg_key>\n<arg_value> 42</arg_value>\n"
        .. "<arg_key>days</arg_key>\n"
        .. "<arg_value>3</arg_value>\n</tool_call><tool_call>tide</tool_call>", tools = tools,
      content = "So.",
      calls = { { "tide", '{"port": " 42", "days": 3}' }, { "tide", "{}" } } },
    { text = "<tool_call>rm\n<arg_key>path</arg_key><arg_value>/</arg_value></tool_call>left",
      tools = tools, content = "left",
      unknown = "<tool_call>rm\n<arg_key>path</arg_key><arg_value>/</arg_value></tool_call>" },
    { text = "<tool_call>f<arg_key>o</arg_key><arg_value>[1]</arg_value></tool_call>",
      calls = { { "f", '{"o": [1]}' } } },
    { text = "the <tool_call> tag is one", content = "the <tool_call> tag is one" },
    { text = "<tool_call>f<arg_key>o</arg_key><arg_value>ha",
      unfinished = "<tool_call>f<arg_key>o</arg_key><arg_value>ha" },
  },
}
