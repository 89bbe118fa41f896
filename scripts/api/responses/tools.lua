-- tools: what clients of the Responses API offer, as functions of a conversation, and back.
--
-- Functions lie flat here. A custom tool takes free text: it is offered as a function with one text
-- parameter (grammar/input.lua), which is held to the tool's grammar if it has one. The functions
-- of a namespace are offered by their own names, or with that of the namespace before it where two
-- would be equal. Tools that only OpenAI's servers can run are left out, as clients send them to
-- every server.
--
--   local offer = tools.read(body.tools, body.tool_choice)
--   offer.tools, offer.choice        for chat (chat/check.lua)
--   offer.of[name]                   { name, namespace, custom }: what the client calls it
--   offer.strict[name]               its arguments must follow its schema, or its grammar
--                                    (api/request.lua)
--   offer:name(name, namespace)      what the model calls it
local check = require "chat.check"
local errors = require "lib.errors"
local field = require "api.responses.field"
local input = require "grammar.input"
local perigee = require "perigee"
local schema = require "api.schema"
local json = perigee.json
local refuse, is_object, kind_of = errors.refuse, check.is_object, check.kind_of

local tools = {}

local Offer = {}
Offer.__index = Offer

local NAME = { from = 1, to = 128 } -- bytes of a name, as chat/check.lua has it
local MOST = 1024 -- tools of a request

local function name_of(tool, at)
  local name = field.needed(tool, "name", at, NAME)
  if not name:find "^[%w_.%-]+$" then
    refuse(at .. ".name", "must consist of letters, digits, _ . and -, got '%s'", name)
  end
  return name
end

-- ---- kinds --------------------------------------------------------------------------------------

local function add(self, given, fields)
  local name = given.name
  if self.of[name] and given.namespace then name = given.namespace .. "." .. name end
  if self.of[name] then return end -- offered already
  local fn = json.object { { "name", name } }
  for _, key in ipairs { "description", "parameters" } do fn[key] = fields[key] end
  self.strict[name] = fields.strict
  self.of[name] = given
  self.tools[#self.tools + 1] = json.object { { "type", "function" }, { "function", fn } }
end

local kinds = {}

kinds["function"] = function(self, tool, at, namespace)
  add(self, { name = name_of(tool, at), namespace = namespace },
    { description = field.optional(tool, "description", at, "string"),
      parameters = field.optional(tool, "parameters", at, "object"),
      strict = field.optional(tool, "strict", at, "boolean") })
end

local SYNTAXES = { lark = true, regex = true }
-- Bytes of a grammar: as many as a pattern may have, and half a second of a helper thread.
local DEFINITION = { to = 64 << 10 }

--- The grammar of a custom tool, as of grammar/input.lua; nil: its text is free.
local function text_of(tool, at)
  local format = field.optional(tool, "format", at, "object")
  if not format or format.type ~= "grammar" then return nil end
  at = at .. ".format"
  local syntax = field.needed(format, "syntax", at, NAME)
  if not SYNTAXES[syntax] then
    refuse(at .. ".syntax", "must be 'lark' or 'regex', got '%s'", syntax)
  end
  return { [syntax] = field.needed(format, "definition", at, DEFINITION), field = at }, syntax
end

--- A model that has read the grammar needs less help to follow it.
local function described(tool, at, text, syntax)
  local said = field.optional(tool, "description", at, "string") or ""
  if not text then return said end
  return ("%s\nThe input follows this grammar (%s):\n%s"):format(said, syntax, text[syntax])
end

function kinds.custom(self, tool, at)
  local text, syntax = text_of(tool, at)
  add(self, { name = name_of(tool, at), custom = true }, { strict = text,
    description = described(tool, at, text, syntax),
    parameters = json.object { { "type", "object" },
      { "properties", json.object { { input.NAME, json.object { { "type", "string" } } } } },
      { "required", json.array { input.NAME } } } })
end

local read_list

function kinds.namespace(self, tool, at)
  local name = name_of(tool, at)
  read_list(self, field.optional(tool, "tools", at, "array") or {}, at .. ".tools", name)
end

--- Reads a list of tools; only functions can be inside of a namespace.
function read_list(self, list, at, namespace)
  for i, tool in ipairs(list) do
    local path = ("%s[%d]"):format(at, i - 1)
    schema.value("object", path, tool)
    local kind = kinds[field.needed(tool, "type", path, NAME)]
    if kind and (not namespace or tool.type == "function") then
      kind(self, tool, path, namespace)
      if #self.tools > MOST then
        refuse("tools", "must have at most %d entries, got more", MOST)
      end
    end
  end
end

-- ---- the choice ---------------------------------------------------------------------------------

--- The name under which the model knows a tool of the client.
function Offer:name(name, namespace)
  for offered, given in pairs(namespace and self.of or {}) do
    if given.name == name and given.namespace == namespace then return offered end
  end
  return name
end

local MODES = { auto = true, none = true, required = true }
local NAMED = { ["function"] = true, custom = true }

--- A tool by its name, in chat's form.
local function named(name)
  return json.object { { "type", "function" },
    { "function", json.object { { "name", name } } } }
end

--- Only these tools can be called. Those that were left out are none of ours.
local function allow(self, choice)
  local mode, names = check.allowed(choice, "tool_choice", function(tool, at)
    schema.value("object", at, tool)
    if not NAMED[tool.type] then return nil end
    return self:name(field.needed(tool, "name", at, NAME), tool.namespace), at .. ".name"
  end, function(name) return self.of[name] end)
  local list = json.array()
  for _, tool in ipairs(self.tools) do
    local name = tool["function"].name
    if names[name] then list[#list + 1] = named(name) end
  end
  return json.object { { "type", "allowed_tools" },
    { "allowed_tools", json.object { { "mode", mode }, { "tools", list } } } }
end

--- tool_choice in chat's form. Objects of kinds that this server does not have mean nothing here.
local function choose(self, choice)
  if not field.is_given(choice) or MODES[choice] then return choice end
  if not is_object(choice) then
    refuse("tool_choice", 'must be "none", "auto", "required" or an object, got %s',
      type(choice) == "string" and "'" .. choice:sub(1, 64) .. "'" or kind_of(choice))
  end
  if choice.type == "allowed_tools" then return allow(self, choice) end
  if not NAMED[choice.type] then return "auto" end
  local name = self:name(field.needed(choice, "name", "tool_choice", NAME),
    choice.namespace)
  return named(name)
end

--- Reads both fields of a request; raises what is wrong with them.
function tools.read(list, choice)
  local self = setmetatable({ of = {}, tools = json.array(), strict = {} }, Offer)
  read_list(self, list or {}, "tools")
  self.choice = choose(self, choice)
  return self
end

return tools
