-- help: reads the LuaCATS annotations of scripts/meta. They are the help of the REPL, and a test
-- compares them with what C exposes.
--
-- Form: `---@class NAME` with `---@field` lines, `local VAR = {}` for the class, then `function
-- VAR.name(…) end` or `function VAR:name(…) end`, each with its comment above. The description of a
-- field is after its type or, if it is long, in `---` lines above it. A module is a class named by
-- its path ("perigee.sys"); the class of an object has a capital letter ("perigee.Tensor").
local perigee = require "perigee"
local text = require "lib.text"

local help = {}

local Reader = {}
Reader.__index = Reader

function Reader:reset()
  self.doc, self.tags = {}, {}
end

function Reader:add(entry)
  entry.doc, entry.tags = self.doc, self.tags
  self.entries[#self.entries + 1] = entry
  return entry
end

function Reader:tag(kind, rest)
  if kind == "class" then
    local name, description = rest:gsub("^%b()%s*", ""):match "^([%w_%.]+)%s*(.*)$"
    self.class = self:add { kind = "class", name = name, class = name, description = description }
    self:reset()
  elseif kind == "field" and self.class then
    local name, description = rest:match "^([%w_]+)%??%s+(.*)$"
    if name then
      local class = self.class.name
      if #self.doc > 0 then description = description .. "  " .. table.concat(self.doc, " ") end
      local entry = { kind = "field", name = class .. "." .. name, class = class, member = name,
        description = description, doc = {}, tags = {} }
      self.entries[#self.entries + 1] = entry
    end
    self:reset()
  else
    self.tags[#self.tags + 1] = { kind = kind, text = rest }
  end
end

function Reader:code(line)
  local variable = line:match "^local%s+([%w_]+)%s*=%s*{}"
  if variable and self.class then
    self.variables[variable], self.class = self.class.name, nil
  end
  local owner, separator, member, parameters =
    line:match "^function%s+([%w_]+)([%.:])([%w_]+)%s*(%b())"
  if owner then
    local class = self.variables[owner] or owner
    local name = class .. separator .. member
    self:add { kind = "function", name = name, class = class, member = member,
      signature = name .. parameters }
  end
  self:reset()
end

--- The entries of the text of one file.
function help.read(source)
  local reader = setmetatable({ entries = {}, variables = {} }, Reader)
  reader:reset()
  for line in text.lines(source) do
    local kind, rest = line:match "^%-%-%-%s*@(%a+)%s*(.*)$"
    if kind then reader:tag(kind, rest)
    elseif line:match "^%-%-%-" then reader.doc[#reader.doc + 1] = line:match "^%-%-%-%s?(.*)$"
    else reader:code(line) end
  end
  return reader.entries
end

local all

--- All entries of scripts/meta.
function help.entries()
  if all then return all end
  all = {}
  for _, path in ipairs((perigee.sys.scripts())) do
    if path:match "^meta/.*%.lua$" then
      for _, entry in ipairs(help.read(perigee.sys.script(path) or "")) do all[#all + 1] = entry end
    end
  end
  return all
end

local function plain(name)
  return (name:lower():gsub(":", "."))
end

--- Entries with this name, or else those whose name ends in it.
function help.find(name)
  local exact, ending = {}, {}
  local wanted = plain(name)
  for _, entry in ipairs(help.entries()) do
    local have = plain(entry.name)
    if have == wanted then exact[#exact + 1] = entry
    elseif have:sub(-#wanted - 1) == "." .. wanted then ending[#ending + 1] = entry end
  end
  return #exact > 0 and exact or ending
end

local function member_lines(class)
  local lines = {}
  for _, entry in ipairs(help.entries()) do
    if entry.class == class and entry.kind ~= "class" then
      local line = entry.signature or entry.name .. "  " .. (entry.description or "")
      lines[#lines + 1] = "  " .. line
    end
  end
  return lines
end

--- An entry as text.
function help.describe(entry)
  local lines = { entry.signature or entry.name }
  if entry.description and entry.description ~= "" then
    lines[#lines + 1] = "  " .. entry.description
  end
  for _, line in ipairs(entry.doc) do lines[#lines + 1] = "  " .. line end
  for _, tag in ipairs(entry.tags) do lines[#lines + 1] = ("  %s %s"):format(tag.kind, tag.text) end
  if entry.kind == "class" then
    local members = member_lines(entry.name)
    table.move(members, 1, #members, #lines + 1, lines)
  end
  return table.concat(lines, "\n")
end

return help
