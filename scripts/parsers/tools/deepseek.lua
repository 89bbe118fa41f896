-- deepseek: calls between <｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>, as V3 and R1 or V3.1 write
-- them:
--   <｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME, a fence with JSON, <｜tool▁call▁end｜>
--   <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>
local args = require "parsers.args"
local scan = require "parsers.scan"
local tagged = require "parsers.tagged"

local SEP, END = "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
local sep = scan.marks { SEP }
local plain = { ends = { END }, marks = scan.marks { END } }
local fenced = { ends = { "```" }, marks = scan.marks { "```" .. END, "```\n" .. END } }

--- The name of a call: the text before the separator, or the line after it if that text is the kind
--- of tool ("function").
local function name_of(s)
  local first = s:short_field(sep, 256)
  s:space()
  if not first or s:peek() == 123 or s:ahead(END) then return first and first:match "%S+" end
  local line = s:word("^[^\n`<{]*", 256)
  s:space()
  return line and line:match "^[%w_.%-]+%f[%s\0]"
end

local function call(s)
  local name = name_of(s)
  if not name or name == "function" and not s.tools:known(name) then return false end
  if not s:take "```" then
    return (s:peek() == 123 or s:ahead(END)) and args.between(s, name, plain)
  end
  s:take "json"
  s:space()
  if not args.between(s, name, fenced) then return false end
  s.wrapper = true
  return true
end

--- Calls for parsers/shape.lua, with these texts around the name and the arguments.
local function section(s, kind, before, after)
  return { mark = "<｜tool▁calls▁begin｜>", section = true, gap = { s:text "\n" },
    call = s:each(function(tool)
      local begin = { s:mark "<｜tool▁call▁begin｜>" }
      if kind ~= "" then table.move({ s:text(kind), s:mark(SEP) }, 1, 2, 2, begin) end
      begin[#begin + 1] = s:text(tool.name)
      if kind == "" then begin[#begin + 1] = s:mark(SEP) end
      return table.move({ s:text(before), s:object(tool), s:text(after), s:mark(END) }, 1, 4,
        #begin + 1, begin)
    end), after = { s:mark "<｜tool▁calls▁end｜>" } }
end

return {
  name = "deepseek",
  section = section,
  aliases = { "deepseek_v3", "deepseek_r1" },
  marks = {
    ["<｜tool▁calls▁begin｜>"] = scan.drop,
    ["<｜tool▁calls▁end｜>"] = scan.drop,
    ["<｜tool▁call▁begin｜>"] = call,
    [END] = tagged.close,
  },
  inner = { SEP },
  opening = { "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n" },
  grammar = function(s) return section(s, "function", "\n```json\n", "\n```") end,
  selftest = {
    { text = "Let me look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>tide\n"
        .. "```json\n{\"port\": \"Brest\"}\n```"
        .. "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n"
        .. "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      content = "Let me look.", calls = { { "tide", '{"port": "Brest"}' }, { "now", "{}" } } },
    { text = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tide<｜tool▁sep｜>{\"port\": \"Brest\"}"
        .. "<｜tool▁call▁end｜>"
        .. "<｜tool▁calls▁end｜> and on",
      content = "and on", calls = { { "tide", '{"port": "Brest"}' } } },
    { text = "<｜tool▁call▁begin｜>tide<｜tool▁sep｜>{oops}<｜tool▁call▁end｜>",
      calls = { { "tide", '"{oops}"' } } },
    { text = "<｜tool▁call▁begin｜>tide<｜tool▁sep｜>{\"po",
      unfinished = "<｜tool▁call▁begin｜>tide<｜tool▁sep｜>{\"po" },
  },
}
