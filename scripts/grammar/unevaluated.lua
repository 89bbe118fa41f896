-- unevaluated: unevaluatedProperties and unevaluatedItems where what else applies does not depend
-- on the value: $ref and allOf, and alternatives that say nothing about members. They are then what
-- additionalProperties and items are, of one schema with all names, patterns and places of the
-- others.
--
--   {allOf: [{properties: {a: …}}], properties: {b: …}, unevaluatedProperties: false}
--     and {properties: {a: true, b: true}, additionalProperties: false}
local failure = require "grammar.failure"

local unevaluated = {}

local DEPTH = 32 -- of schemas that apply in the same place; more, and circles, are refused

local Seen = {}
Seen.__index = Seen

--- Everything that a node and those that apply with it evaluate is added.
function Seen:add(reader, node, depth, chosen)
  if depth == 0 then return self:refuse "schemas refer to each other too deeply" end
  reader:open(node)
  if node.loose then return self:refuse "what else applies is not known" end
  local says = node.properties or node.patterns or node.additional or node.prefix or node.items
    or node.contains or node.unevaluated_properties or node.unevaluated_items
  if chosen and says then return self:refuse "depends on which alternative holds" end
  for _, entry in ipairs(node.properties or {}) do self.names[entry.name] = true end
  for _, entry in ipairs(node.patterns or {}) do self.patterns[entry.name] = true end
  if node ~= self.node then
    self.all_names = self.all_names or node.unevaluated_properties ~= nil
    self.all_items = self.all_items or node.unevaluated_items ~= nil
  end
  self.all_names = self.all_names or node.additional ~= nil
  self.all_items = self.all_items or node.items ~= nil
  self.prefix = math.max(self.prefix, #(node.prefix or {}))
  self.contains = self.contains or node.contains ~= nil
  for _, inner in ipairs { node.ref or false, table.unpack(node.all_of or {}) } do
    if inner then self:add(reader, inner, depth - 1, chosen) end
  end
  for _, list in ipairs { node.any_of or {}, node.one_of or {}, { node.if_of },
    node.if_of and { node.then_of } or {}, node.if_of and { node.else_of } or {} } do
    for _, inner in ipairs(list) do self:add(reader, inner, depth - 1, true) end
  end
  for _, entry in ipairs(node.dependent or {}) do self:add(reader, entry.node, depth - 1, true) end
end

function Seen:refuse(why)
  failure.raise("unsupported", self.node, "%s: %s", self.keyword, why)
end

local function sorted(set)
  local list = {}
  for name in pairs(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- Adds a schema to a node that has been read, in place of the two keywords.
function unevaluated.apply(reader, node)
  local keyword = node.unevaluated_properties and "unevaluatedProperties" or "unevaluatedItems"
  local seen = setmetatable({ node = node, keyword = keyword, names = {}, patterns = {},
    prefix = 0 }, Seen)
  seen:add(reader, node, DEPTH, false)
  local anything, group = reader:blank(node.at), reader:blank(node.at)
  anything.ready, anything.raw, group.ready = true, true, true
  if node.unevaluated_properties and not seen.all_names then
    group.properties, group.patterns, group.additional = {}, {}, node.unevaluated_properties
    for i, name in ipairs(sorted(seen.names)) do
      group.properties[i] = { name = name, node = anything }
    end
    for i, pattern in ipairs(sorted(seen.patterns)) do
      group.patterns[i] = { name = pattern, node = anything }
    end
  end
  if node.unevaluated_items and not seen.all_items then
    seen.keyword = "unevaluatedItems"
    if seen.contains then seen:refuse "depends on what contains finds" end
    group.items = node.unevaluated_items
    for i = 1, seen.prefix do
      group.prefix = group.prefix or {}
      group.prefix[i] = anything
    end
  end
  node.all_of = table.move(node.all_of or {}, 1, #(node.all_of or {}), 1, {})
  table.insert(node.all_of, group)
end

return unevaluated
