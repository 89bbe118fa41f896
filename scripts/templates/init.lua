-- templates: chat templates, compiled once and rendered many times.
--
--   local templates = require "templates"
--   local template = templates.compile(source)      -- nil, err: a syntax error, with its line
--   local text = template:render({ messages = … }, { now = … })
--
-- Variables are JSON values from perigee.json, or plain Lua tables. A template cannot change them
-- and sees nothing else. With `spans`, strings that came with the variables are not trusted:
-- special tokens must not be recognized in them (see Tokenizer:encode). The text of the template
-- and the special tokens of the model's files (`tokens`) are trusted.
local compile = require "templates.jinja.compile"
local perigee = require "perigee"
local runtime = require "templates.jinja.runtime"
local sources = require "templates.source"
local values = require "templates.jinja.values"

local templates = {}

--- Limits of one rendering: loop iterations and calls, levels of calls, bytes of text. Published
--- templates take 400 steps per message at most; 10 million steps take about a second.
templates.limits = { steps = 10000000, depth = 100, output = 32 << 20 }

local Template = {}
Template.__index = Template

-- Compiled templates. A server has a few per model; a full cache is emptied.
local CACHE_SIZE = 64
local cache, cached = {}, 0

local function failure(name, err)
  local where = err.line and ("line %d: "):format(err.line) or ""
  local message = err.message:gsub("%s*\n%s*", " ")
  return perigee.error("format", (name and name .. ": " or "") .. where .. message)
end

--- A template, or nil and an error. options: name (for errors).
function templates.compile(source, options)
  local name = options and options.name
  local known = cache[source]
  if known then return setmetatable({ chunk = known, source = source, name = name }, Template) end
  local ok, chunk = pcall(compile.chunk, source)
  if not ok then
    if getmetatable(chunk) ~= values.Failure then error(chunk, 0) end
    return nil, failure(name, chunk)
  end
  if cached >= CACHE_SIZE then cache, cached = {}, 0 end
  cache[source], cached = chunk, cached + 1
  return setmetatable({ chunk = chunk, source = source, name = name }, Template)
end

--- Renders. options: tokens (trusted variables), now (seconds since the epoch, shown as UTC;
--- default: the local clock), spans, limits, continue_final_message (see continue.lua). Returns the
--- text, and with spans a table:
---   spans        { {from, to, trusted}, … } in bytes, 1-based, over the whole text
---   boundaries   { {at, messages}, … }: the first `messages` messages are the first `at` bytes
---   generations  { {from, to}, … }: ranges of generation blocks
--- or nil and an error.
function Template:render(variables, options)
  if type(variables) ~= "table" then
    error("variables must be a table, got " .. type(variables), 2)
  end
  options = options or {}
  local finish
  if options.continue_final_message then
    local why
    variables, finish, why = require("templates.continue").prepare(variables,
      options.continue_final_message)
    if not variables then return nil, perigee.error("argument", why) end
  end
  local limits = {}
  for name, limit in pairs(templates.limits) do
    limits[name] = options.limits and options.limits[name] or limit
  end
  local text, info = runtime.run(self.chunk, variables, {
    tokens = options.tokens, now = options.now, spans = options.spans, limits = limits,
  })
  if not text then return nil, failure(self.name, info) end
  if not finish then return text, info end
  local cut, bad = finish(text, info)
  if not cut then return nil, perigee.error("argument", bad) end
  return cut, info
end

-- ---- the templates of a model -------------------------------------------------------------------

local Set = {}
Set.__index = Set

--- The templates of a model directory, a GGUF file or a .jinja file, with the model's special
--- tokens; or nil and an error. options: template (a source that replaces the model's).
function templates.open(path, options)
  local set, why = sources.open(path, options and options.template)
  if not set then return nil, why end
  set.path = path
  return setmetatable(set, Set)
end

--- The template for a request: options.name; with options.tools, tool_use; else default. Or nil and
--- an error.
function Set:get(options)
  local name, why = sources.choose(self, options or {})
  if not name then return nil, perigee.error("argument", self.path .. ": " .. why) end
  return templates.compile(self.templates[name], { name = name ~= "default" and name or nil })
end

--- Renders with the template for this request. The model's special tokens are variables, unless the
--- request sets them. Options: those of Template:render, and name.
function Set:render(variables, options)
  options = options or {}
  local tools = variables.tools
  local some = tools ~= nil and tools ~= perigee.json.null and (type(tools) ~= "table"
    or #tools > 0)
  local template, why = self:get { name = options.name, tools = some }
  if not template then return nil, why end
  local tokens = {}
  for name, token in pairs(self.tokens) do
    if variables[name] == nil then tokens[name] = token end
  end
  local all = setmetatable({ tokens = tokens }, { __index = options })
  return template:render(variables, all)
end

return templates
