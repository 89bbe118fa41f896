-- strict: the subset of JSON schema that OpenAI's strict mode takes. Who asks for it wants to be
-- told where a schema leaves it, so what is outside is refused even if it could be enforced.
local failure = require "grammar.failure"

local strict = {}

local FORBIDDEN = { all_of = "allOf", not_of = "not", if_of = "if", then_of = "then",
  else_of = "else", dependent = "dependentSchemas", dependent_required = "dependentRequired",
  one_of = "oneOf", patterns = "patternProperties", contains = "contains", unique = "uniqueItems",
  names = "propertyNames", min_properties = "minProperties", max_properties = "maxProperties" }

--- Checks a node that has been read.
function strict.check(node, root)
  for field, keyword in pairs(FORBIDDEN) do
    if node[field] then failure.raise("format", node, "%s is not allowed with strict", keyword) end
  end
  if node == root and not (node.types and node.types.object) then
    failure.raise("format", node, "with strict the type must be object")
  end
  if not (node.types and node.types.object) then return end
  if not node.additional or node.additional.raw ~= false then
    failure.raise("format", node, "with strict additionalProperties must be false")
  end
  local required = {}
  for _, name in ipairs(node.required or {}) do required[name] = true end
  for _, entry in ipairs(node.properties or {}) do
    if not required[entry.name] then
      failure.raise("format", node, "with strict %q must be required", entry.name)
    end
  end
end

return strict
