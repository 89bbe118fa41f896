-- structured: the fields by which clients say what form an answer has, as req.grammar: a form of
-- grammar/source.lua, with `field`, the name that refusals blame. One thing has many names:
--
--   response_format                        OpenAI's chat; `text.format` of Responses
--   output_config.format, output_format    Anthropic's
--   structured_outputs, guided_json, …     vLLM's
--   grammar, json_schema                   llama.cpp's
--
-- More than one at once is refused, since two forms do not make one.
local check = require "chat.check"
local errors = require "lib.errors"
local perigee = require "perigee"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse

local structured = {}

--- For api/schema.lua: the fields of OpenAI's clients that go to structured.read.
structured.FIELDS = {
  { "response_format", "object", into = "structured" },
  { "structured_outputs", "object", into = "structured" },
  { "guided_json", "any", into = "structured" },
  { "guided_regex", "string", from = 1, into = "structured" },
  { "guided_choice", "array", from = 1, into = "structured" },
  { "guided_grammar", "string", from = 1, into = "structured" },
  { "grammar", "string", into = "structured" },
  { "json_schema", "any", into = "structured" },
}

local function is_given(v) return v ~= nil and v ~= json.null end

-- ---- single forms -------------------------------------------------------------------------------

--- A schema: an object, true or false, or the text of one.
local function schema_of(value, field)
  if type(value) == "string" then
    local decoded, why = json.decode(value, { digits = true })
    if decoded == nil then refuse(field, "is not valid JSON: %s", tostring(why)) end
    value = decoded
  end
  if type(value) ~= "boolean" and not check.is_object(value) then
    refuse(field, "must be a JSON schema, got %s", check.kind_of(value))
  end
  return { schema = value, field = field }
end

local function choice_of(list, field)
  schema.value("array", field, list, { from = 1 })
  local texts = {}
  for i, text in ipairs(list) do
    texts[i] = schema.value("string", ("%s[%d]"):format(field, i - 1), text)
  end
  return { choice = texts, field = field }
end

local function regex_of(text, field)
  return { regex = schema.value("string", field, text, { from = 1 }), field = field }
end

--- An empty grammar does not count: clients of llama.cpp send it.
local function grammar_of(text, field)
  schema.value("string", field, text)
  return text ~= "" and { grammar = text, field = field } or nil
end

local function any_object(field)
  return { schema = json.object { { "type", "object" } }, field = field }
end

local TYPES = "must be 'text', 'json_object' or 'json_schema', got %s"

--- A format object: {type: text}, {type: json_object}, {type: json_schema, …}. `inside`: the schema
--- and its fields lie in an object of that name.
function structured.format(format, field, inside)
  schema.value("object", field, format)
  local kind = format.type
  if kind == "text" then return nil end
  if kind == "json_object" then return any_object(field) end
  if kind ~= "json_schema" then
    refuse(field .. ".type", TYPES,
      type(kind) == "string" and "'" .. kind:sub(1, 64) .. "'" or check.kind_of(kind))
  end
  local given, at = format, field
  if inside then
    given, at = format[inside], ("%s.%s"):format(field, inside)
    if not is_given(given) then refuse(at, "is missing") end
    schema.value("object", at, given)
  end
  if not is_given(given.schema) then refuse(at .. ".schema", "is missing") end
  local made = schema_of(given.schema, at .. ".schema")
  if is_given(given.strict) then
    made.strict = schema.value("boolean", at .. ".strict", given.strict)
  end
  return made
end

-- ---- vLLM's object ------------------------------------------------------------------------------

local outputs = {
  json = schema_of, regex = regex_of, choice = choice_of, grammar = grammar_of,
  json_object = function(wanted, field)
    return schema.value("boolean", field, wanted) and any_object(field) or nil
  end,
}
local NAMES = { "json", "regex", "choice", "grammar", "json_object" }

local function one_of(list)
  if list[2] then
    refuse(list[2].field, "and %s are both given, but an answer has one form", list[1].field)
  end
  return list[1]
end

local function structured_outputs(given, field)
  if is_given(given.structural_tag) then
    refuse(field .. ".structural_tag", "is not supported by this server")
  end
  local found = {}
  for _, name in ipairs(NAMES) do
    if is_given(given[name]) then
      found[#found + 1] = outputs[name](given[name], ("%s.%s"):format(field, name))
    end
  end
  return one_of(found)
end

-- ---- all ----------------------------------------------------------------------------------------

local readers = {
  response_format = function(given, field)
    return structured.format(given, field, "json_schema")
  end,
  structured_outputs = structured_outputs, guided_json = schema_of, guided_regex = regex_of,
  guided_choice = choice_of, guided_grammar = grammar_of, grammar = grammar_of,
  json_schema = schema_of,
}

--- req.grammar of the fields that structured.FIELDS names; raises what is wrong with them.
function structured.read(given)
  local found = {}
  for _, f in ipairs(structured.FIELDS) do
    local value = given and given[f[1]]
    if value ~= nil then found[#found + 1] = readers[f[1]](value, f[1]) end
  end
  return one_of(found)
end

--- That of formats (structured.format) by their fields, in this order.
function structured.formats(list)
  local found = {}
  for _, one in ipairs(list) do
    if is_given(one[2]) then found[#found + 1] = structured.format(one[2], one[1]) end
  end
  return one_of(found)
end

return structured
