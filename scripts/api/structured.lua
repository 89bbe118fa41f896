-- structured: the fields by which clients say what form an answer has, as req.grammar: a form of
-- grammar/source.lua, with `field`, the name that refusals blame. One thing has many names:
--
--   response_format                        OpenAI's chat; `text.format` of Responses
--   output_config.format, output_format    Anthropic's
--   structured_outputs, guided_json, …     vLLM's
--   grammar, json_schema                   llama.cpp's
--
-- Every API reads the last two groups and response_format. More than one at once is refused, since
-- two forms do not make one, and so is what would be another form if it were left out. The first
-- two groups have the form of text (`of_text`), beside which calls have their own; the others have
-- that of the whole answer, which cannot be a call as well.
local async = require "lib.async"
local check = require "chat.check"
local errors = require "lib.errors"
local perigee = require "perigee"
local schema = require "api.schema"
local json = perigee.json
local refuse = errors.refuse

local structured = {}

--- For api/schema.lua: the fields of all APIs. Those of `structured` go to structured.read.
structured.FIELDS = {
  { "fast_forward", "boolean" },
  { "response_format", "object", into = "structured" },
  { "structured_outputs", "object", into = "structured" },
  { "guided_json", "any", into = "structured" },
  { "guided_regex", "string", from = 1, into = "structured" },
  { "guided_choice", "array", from = 1, into = "structured" },
  { "guided_grammar", "string", from = 1, into = "structured" },
  { "guided_whitespace_pattern", "any", into = "structured" },
  { "grammar", "string", into = "structured" },
  { "grammar_lazy", "any", into = "structured" },
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

local SOME = 256 -- texts between two looks at the clock: less than a millisecond

local function choice_of(list, field)
  schema.value("array", field, list, { from = 1 })
  local texts = {}
  for i, text in ipairs(list) do
    if i % SOME == 0 then async.breathe() end
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

--- What only other servers have; some clients send that they do not want it.
local function not_here(wish, field)
  if wish ~= false then refuse(field, "is not supported by this server") end
end

local TYPES = "must be 'text', 'json_object' or 'json_schema', got %s"

--- A format object: {type: text}, {type: json_object}, which has a schema in llama.cpp's clients,
--- {type: json_schema, …}. `inside`: the schema and its fields lie in an object of that name.
local function format_of(format, field, inside)
  schema.value("object", field, format)
  local kind = format.type
  if kind == "text" then return nil end
  if kind == "json_object" then
    if not is_given(format.schema) then return any_object(field) end
    return schema_of(format.schema, field .. ".schema")
  end
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

--- The same, as the form of text.
local function text_format(format, field, inside)
  local made = format_of(format, field, inside)
  if made then made.of_text = true end
  return made
end

-- ---- vLLM's object ------------------------------------------------------------------------------

local outputs = {
  json = schema_of, regex = regex_of, choice = choice_of, grammar = grammar_of,
  json_object = function(wanted, field)
    return schema.value("boolean", field, wanted) and any_object(field) or nil
  end,
  structural_tag = not_here, whitespace_pattern = not_here,
  disable_additional_properties = not_here,
}
local FORMS = { "json", "regex", "choice", "grammar", "json_object", "structural_tag" }
local OTHERS = { "whitespace_pattern", "disable_additional_properties" }

local function one_of(list)
  if list[2] then
    refuse(list[2].field, "and %s are both given, but an answer has one form", list[1].field)
  end
  return list[1]
end

--- The forms of an object under these names, and how many of the names are there.
local function forms_in(given, field, names)
  local found, count = {}, 0
  for _, name in ipairs(names) do
    if is_given(given[name]) then
      count = count + 1
      found[#found + 1] = outputs[name](given[name], ("%s.%s"):format(field, name))
    end
  end
  return found, count
end

local function structured_outputs(given, field)
  local found, count = forms_in(given, field, FORMS)
  if count == 0 then refuse(field, "must have one of %s", table.concat(FORMS, ", ", 1, 5)) end
  forms_in(given, field, OTHERS)
  local made, compact = one_of(found), given.disable_any_whitespace
  if made and is_given(compact) then
    schema.value("boolean", field .. ".disable_any_whitespace", compact)
    made.whitespace = compact and "compact" or nil
  end
  return made
end

-- ---- all ----------------------------------------------------------------------------------------

local readers = {
  response_format = function(given, field)
    return text_format(given, field, "json_schema")
  end,
  structured_outputs = structured_outputs, guided_json = schema_of, guided_regex = regex_of,
  guided_choice = choice_of, guided_grammar = grammar_of, guided_whitespace_pattern = not_here,
  grammar = grammar_of, grammar_lazy = not_here, json_schema = schema_of,
}

--- req.grammar of what schema.read made of structured.FIELDS, and of an API's own formats, a list
--- of { field, format }. Raises what is wrong with them.
function structured.read(out, formats)
  local given, found = out.structured or {}, {}
  for _, f in ipairs(structured.FIELDS) do
    local value = given[f[1]]
    if value ~= nil then found[#found + 1] = readers[f[1]](value, f[1]) end
  end
  for _, one in ipairs(formats or {}) do
    if is_given(one[2]) then found[#found + 1] = text_format(one[2], one[1]) end
  end
  return one_of(found)
end

return structured
