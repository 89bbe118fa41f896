-- failure: why a schema gives no grammar. It is raised as a table with a code and one line that
-- names the place in the schema, as a JSON pointer, and the keyword.
--
--   format         no schema says this: maxLength: -1
--   unsupported    a schema, but one whose answers no grammar of ours describes
--   unsatisfiable  no value fits
--   limit          more of something than is allowed; the line has both numbers
local failure = {}

local class = {}

--- Raises a failure at a place: a node, or a pointer.
function failure.raise(code, at, format, ...)
  local where = type(at) == "table" and at.at or at
  local line = ("%s: " .. format):format(where == "" and "the schema" or where, ...)
  line = line:gsub("\\\n", "\\n") -- %q ends a line where a name does
  error(setmetatable({ code = code, message = line }, class), 0)
end

--- What the builder returned, or its failure.
function failure.checked(value, why)
  if value == nil then failure.raise(why.code, "", "%s", why.message) end
  return value
end

function failure.is(value) return getmetatable(value) == class end

return failure
