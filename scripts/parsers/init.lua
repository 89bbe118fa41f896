-- parsers: split the text of an answer into content, reasoning and tool calls as it is generated.
--
--   local p = parsers.new { format = "hermes", reasoning = "qwen3", tools = request.tools }
--   for _, event in ipairs(p:feed(piece)) do … end      -- see events.lua
--   for _, event in ipairs(p:finish()) do … end
--
--   pieces ─► reasoning parser ─ content ─► tool parser ─ content, calls ─► events
--                    └───────── reasoning ───────────────────────────────────►
--
-- A format is one page in tools/ or reasoning/. Its fields:
--   marks      { mark = handler }, see scan.lua; or `run`, a function that reads everything itself
--   inner      other texts that it looks for inside a call
--   opening    { text before the name, text after the name }: how a call begins, used to force one;
--              or a list of such, where `shows` is a text of the chat templates that use it
--   grammar    function(s): what a call looks like, see shape.lua; of a reasoning format: what
--              comes before an answer, see parsers.thought
--   opened     function(prompt tail): has the prompt opened a block of thinking?
--   closing    the text that ends thinking; closing_again: when the model begins once more.
--              mark: the mark in it, where a template may have other white space around; ends: the
--              mark that ends thinking, if `closing` has more than that
--   selftest   cases, see selftest.lua
local args = require "parsers.args"
local async = require "lib.async"
local events = require "parsers.events"
local perigee = require "perigee"
local scan = require "parsers.scan"
local shape = require "parsers.shape"
local text = require "lib.text"

local parsers = {}

local NAMES = {
  tools = { "hermes", "qwen", "qwen3_xml", "llama", "mistral", "deepseek", "deepseek_v31", "kimi",
    "granite", "nemotron", "xlam", "functionary", "glm47", "poolside_v1", "gemma4", "harmony",
    "minimax", "seed_oss", "step3p5", "pythonic", "auto", "none" },
  reasoning = { "qwen3", "deepseek_r1", "glm4", "gemma4", "gpt_oss", "mistral", "step3p5",
    "poolside_v1", "seed_oss", "none" },
}
local WHAT = { tools = "tool format", reasoning = "reasoning format" }

-- ---- formats by name ----------------------------------------------------------------------------

--- The names of all formats of a kind ("tools" or "reasoning"), without aliases.
function parsers.names(kind)
  return table.move(NAMES[kind], 1, #NAMES[kind], 1, {})
end

local by_name = {}

local function index(kind)
  if by_name[kind] then return by_name[kind] end
  local all = {}
  for _, name in ipairs(NAMES[kind]) do
    local format = require("parsers." .. kind .. "." .. name)
    for _, alias in ipairs(format.aliases or {}) do all[alias] = format end
    async.breathe()
  end
  for _, name in ipairs(NAMES[kind]) do all[name] = require("parsers." .. kind .. "." .. name) end
  by_name[kind] = all
  return all
end

--- The format with this name or alias (a table is a format already); nil and a message if unknown.
function parsers.find(kind, name)
  if type(name) == "table" then return name end
  local format = index(kind)[name]
  if format then return format end
  return nil, ("unknown %s '%s'%s (there are: %s)"):format(WHAT[kind], name,
    text.suggestion(name, NAMES[kind]), table.concat(NAMES[kind], ", "))
end

-- ---- formats by template ------------------------------------------------------------------------

--- The first entry whose texts all occur in the template decides.
local DETECT = {
  tools = {
    { "harmony", "<|channel|>", "<|message|>" },
    { "gemma4", "<|tool_call>" },
    { "seed_oss", "<seed:tool_call>" },
    { "minimax", "<minimax:tool_call>" },
    { "kimi", "<|tool_call_argument_begin|>" },
    { "deepseek", "<｜tool▁sep｜>", "```json" },
    { "deepseek_v31", "<｜tool▁sep｜>" },
    { "poolside_v1", "<arg_key>", "</assistant>" },
    { "glm47", "<arg_key>" },
    { "mistral", "[TOOL_CALLS]" },
    { "functionary", "<|recipient|>" },
    { "functionary", "<function=", "<|python_tag|>" },
    { "pythonic", "<|python_start|>" },
    { "pythonic", "<|tool_call_start|>" },
    { "pythonic", "<|tool_list_start|>" },
    { "nemotron", "<TOOLCALL>" },
    { "auto", "]<]minimax[>[" }, -- a format that is not supported; it contains <tool_call>
    { "qwen3_xml", "<tool_call>", "<function=" },
    { "granite", "<|tool_call|>" },
    { "hermes", "<tool_call>" },
    { "llama", "<|python_tag|>" },
    { "llama", '"parameters": dictionary' },
  },
  reasoning = {
    { "gpt_oss", "<|channel|>analysis" },
    { "gemma4", "<|channel>" },
    { "seed_oss", "<seed:think>" },
    { "mistral", "[THINK]" },
    { "poolside_v1", "<think>", "</assistant>" },
    { "glm4", "<think>", "<arg_key>" },
    { "deepseek_r1", "</think>", "<｜Assistant｜>" },
    { "qwen3", "</think>" },
    { "qwen3", "<think>" },
  },
}

local function detect(entries, template)
  for _, entry in ipairs(entries) do
    local all = true
    for i = 2, #entry do all = all and template:find(entry[i], 1, true) ~= nil end
    if all then return entry[1] end
  end
end

--- The names of the tool format and the reasoning format of a chat template; "auto" and "none" if
--- it shows none.
function parsers.detect(template)
  return detect(DETECT.tools, template) or "auto", detect(DETECT.reasoning, template) or "none"
end

-- ---- forcing a call, and keeping marks in the text ----------------------------------------------

--- The text that forces a call when the answer starts with it: everything up to the arguments of
--- the tool `name`, or up to the tool's name if none is given. Returns nil if the format has no
--- calls ("none") or if not every format can write that name. Options: template (models that share
--- a format may open calls differently), reasoning and prompt_tail (thinking that the prompt opened
--- is closed before the call).
function parsers.opening(format, name, options)
  local o, list = options or {}, assert(parsers.find("tools", format)).opening
  if not list or name and not name:find "^[%w_.%-]+$" then return nil end
  if type(list[1]) == "string" then list = { list } end
  local thinks = assert(parsers.find("reasoning", o.reasoning or "none"))
  local before = thinks.opened and thinks.opened(o.prompt_tail) and thinks.closing or ""
  for _, opening in ipairs(list) do
    if not opening.shows or o.template and o.template:find(opening.shows, 1, true) then
      return before .. opening[1] .. (name and name .. opening[2] or "")
    end
  end
end

--- What calls in a format (a name) look like, as rules in a builder: { whole, rest, marks }, see
--- shape.rules; nil if the format has no such description. o: those of shape.new, and parallel.
function parsers.calls(b, format, o)
  local page = assert(parsers.find("tools", format))
  if not page.grammar then return nil end
  local s = shape.new(b, o)
  return shape.rules(s, page.grammar(s), o.parallel)
end

--- The texts that begin a call in a format (a name), none if nothing marks it; nil if it has no
--- grammar. template: the model's.
function parsers.call_marks(format, template)
  local page = assert(parsers.find("tools", format))
  if not page.grammar then return nil end
  local b = assert(perigee.grammar.builder())
  local mark = page.grammar(shape.new(b, { tools = {}, template = template })).mark
  b:close()
  return type(mark) == "string" and { mark } or mark or {}
end

--- What a reasoning format writes before an answer, as symbols in a builder; empty if it has no
--- grammar: block (reasoning as a whole), after (what follows the mark that closes it), answer
--- (what comes before any answer). o: token, as of shape.new.
function parsers.thought(b, reasoning, o)
  local page = assert(parsers.find("reasoning", reasoning))
  return page.grammar and page.grammar(shape.new(b, { tools = {}, token = o.token })) or {}
end

--- Has a prompt with this end opened reasoning, has it closed it, and by which mark does that end?
function parsers.reasons(reasoning, tail)
  local page = assert(parsers.find("reasoning", reasoning))
  local mark = page.ends or page.mark
  if not mark then return false, true end
  local opened = page.opened(tail) and true or false
  return opened, not opened and text.trim(tail or ""):sub(-#mark) == mark, mark
end

--- The text that ends thinking in a reasoning format (a name), and the one that ends it when the
--- model begins once more; nil if the format has none. `shown`: what the model's template writes
--- between reasoning and answer, if it writes both.
function parsers.closing(reasoning, shown)
  local format = assert(parsers.find("reasoning", reasoning))
  local mark, text_of = format.mark, format.closing
  local from, to = nil, nil
  if mark and shown then from, to = shown:find(mark, 1, true) end
  if from and not (shown:sub(1, from - 1) .. shown:sub(to + 1)):find "%S" then text_of = shown end
  return text_of, format.closing_again or text_of
end

--- The texts that two formats (names) look for, sorted. Special tokens among them must be kept when
--- the answer is detokenized.
function parsers.marks(format, reasoning)
  local set = {}
  for kind, name in pairs { tools = format, reasoning = reasoning } do
    local page = assert(parsers.find(kind, name))
    for mark in pairs(page.marks or {}) do set[mark] = true end
    for _, mark in ipairs(page.inner or {}) do set[mark] = true end
  end
  return text.sorted_keys(set)
end

-- ---- a parser -----------------------------------------------------------------------------------

local Parser = {}
Parser.__index = Parser

--- A format given by name or as a table. Raises for an unknown name.
local function format_of(kind, given)
  if type(given) == "table" then return given end
  return given and assert(parsers.find(kind, given))
end

local function body(format)
  return format.run or scan.format(format)
end

--- The tool stage: a scanner, or none if everything is content.
local function tool_stage(p, format, o)
  local target = p.content
  if format.name == "none" then
    p.put = function(piece) target:text(piece) end
    return
  end
  local both = format.channels and o.reasoning and o.reasoning.channels
  local reasoning = p.reasoning
  if not both then
    reasoning = events.channel(function(piece) p.events:text("analysis", piece) end)
  end
  local options = { events = p.events, content = target, reasoning = reasoning, tools = o.tools,
    tail = o.tail, calls = true }
  function p.restart()
    if p.second then p.second:close() end
    p.second = scan.new(body(format), options)
  end
  p.restart()
  p.put = function(piece) p.second:feed(piece) end
  return both
end

--- The reasoning stage, in front of the tool stage.
local function reasoning_stage(p, format, o)
  local put = p.put
  local content = events.channel(put)
  local function relabel()
    if p.restart then p.restart() end -- the text held by the tool parser is reasoning as well
    p.events:push { type = "relabel" }
    p.reasoning.started = p.reasoning.started or p.content.started
    p.reasoning:cut()
    content:restart()
    p.content:restart()
  end
  p.first = scan.new(body(format), { events = p.events, content = content, reasoning = p.reasoning,
    tools = o.tools, tail = o.tail, relabel = relabel })
  p.first_content = content
  p.put = function(piece) p.first:feed(piece) end
end

--- What parsers know about tools: for parsers of the same tools (options.known), so that a hundred
--- definitions are read once and not for every choice.
parsers.known = args.tools

--- Options: format, reasoning (names or tables; default "auto" and "none"), tools (as in the
--- request), prompt_tail (the end of the prompt, to see whether it opened a thinking block).
function parsers.new(options)
  local p = setmetatable({ events = events.list(), held = "" }, Parser)
  p.content = events.channel(function(piece) p.events:text("content", piece) end)
  p.reasoning = events.channel(function(piece) p.events:text("reasoning", piece) end)
  local o = { tools = options.known or args.tools(options.tools), tail = options.prompt_tail,
    reasoning = format_of("reasoning", options.reasoning or "none") }
  local both = tool_stage(p, format_of("tools", options.format or "auto"), o)
  if o.reasoning.name ~= "none" and not both then reasoning_stage(p, o.reasoning, o) end
  return p
end

--- The length of the text up to its last complete UTF-8 character.
local function whole(piece)
  local n = #piece
  for back = 0, 2 do
    local c = piece:byte(n - back)
    if not c or c < 0x80 then return n end
    if c >= 0xC0 then
      local size = c >= 0xF0 and 4 or c >= 0xE0 and 3 or 2
      return back + 1 < size and n - back - 1 or n
    end
  end
  return n
end

--- Takes the next piece of text, cut anywhere (also inside a character); returns its events.
function Parser:feed(piece)
  if self.held ~= "" then piece = self.held .. piece end
  local n = whole(piece)
  self.held = n < #piece and piece:sub(n + 1) or ""
  if n > 0 then self.put(n < #piece and piece:sub(1, n) or piece) end
  return self.events:take()
end

--- Is the text so far inside of reasoning?
function Parser:thinking()
  local reader = self.first or self.second
  return reader ~= nil and reader.thinking == true
end

--- Ends the text; returns the last events.
function Parser:finish()
  if self.held ~= "" then self.put(self.held) end
  if self.first then
    self.first:finish()
    self.first_content:finish()
  end
  if self.second then self.second:finish() end
  self.content:finish()
  self.reasoning:finish()
  return self.events:take()
end

--- Parses a whole text, or a list of pieces: { content, reasoning, calls = { { name, arguments } },
--- other = { { kind, text } }, counts = the number of events after each piece and at the end }.
function parsers.parse(pieces, options)
  if type(pieces) == "string" then pieces = { pieces } end
  local p, result, counts = parsers.new(options or {}), events.result(), {}
  for i, piece in ipairs(pieces) do
    local list = p:feed(piece)
    result:add(list)
    counts[i] = #list
  end
  local list = p:finish()
  result:add(list)
  counts[#counts + 1] = #list
  local r = result:finish()
  r.counts = counts
  return r
end

return parsers
