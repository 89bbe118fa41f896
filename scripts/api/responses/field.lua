-- field: fields of objects inside of a request, at a path such as input[2].content[0]; null is the
-- same as nothing.
local errors = require "lib.errors"
local perigee = require "perigee"
local schema = require "api.schema"
local json = perigee.json

local field = {}

function field.is_given(value) return value ~= nil and value ~= json.null end

--- A field of this kind (api/schema.lua), or nil; raises when it is something else.
function field.optional(object, key, at, kind, bounds)
  local value = object[key]
  if not field.is_given(value) then return nil end
  return schema.value(kind, ("%s.%s"):format(at, key), value, bounds)
end

--- A field that must be there, of kind string unless said otherwise.
function field.needed(object, key, at, bounds)
  if not field.is_given(object[key]) then errors.refuse(("%s.%s"):format(at, key), "is missing") end
  return field.optional(object, key, at, "string", bounds)
end

--- The kind of an item. Without a type it is a message or, where all that it has is an id, a
--- reference.
function field.kind(item)
  if field.is_given(item.type) then return item.type end
  local said = field.is_given(item.role) or field.is_given(item.content)
  return field.is_given(item.id) and not said and "item_reference" or "message"
end

return field
