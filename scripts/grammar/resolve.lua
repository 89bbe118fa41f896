-- resolve: what a $ref means. Only places inside the document: pointers, anchors, and the names
-- that $id gives to parts of it. Nothing is ever fetched.
--
-- A place is { raw, at, base, root }: the JSON value, its pointer in the document, the URI that
-- relative references in it start from, and the resource it belongs to (the nearest value with a
-- $id), in which pointers start.
local failure = require "grammar.failure"
local json = require("perigee").json

local resolve = {}

local NODES = 50000 -- values that a search for names may look at

-- ---- URIs ---------------------------------------------------------------------------------------

--- "a/./b/../c" -> "a/c"
local function without_dots(path)
  local parts, absolute = {}, path:sub(1, 1) == "/"
  local last
  for part in path:gmatch "[^/]*" do
    last = part
    if part == ".." then
      if #parts > 0 then parts[#parts] = nil end
    elseif part ~= "." and part ~= "" then
      parts[#parts + 1] = part
    end
  end
  local slash = (last == "" or last == "." or last == "..") and #parts > 0
  return (absolute and "/" or "") .. table.concat(parts, "/") .. (slash and "/" or "")
end

--- A reference seen from a base URI, both without fragments.
local function join(base, reference)
  if reference == "" then return base end
  if reference:find "^%a[%w+.-]*:" then return reference end
  local scheme, authority, path = base:match "^(%a[%w+.-]*:)(//[^/]*)(.*)$"
  if not scheme then scheme, authority, path = "", "", base end
  if reference:sub(1, 2) == "//" then return scheme .. reference end
  if reference:sub(1, 1) ~= "/" then reference = path:match "^(.*/)" and
    path:match "^(.*/)" .. reference or "/" .. reference end
  return scheme .. authority .. without_dots(reference)
end

local function split(uri)
  local before, fragment = uri:match "^([^#]*)#?(.*)$"
  return before, fragment
end

--- The place of a value below another: its $id, if it has one, starts a resource.
function resolve.below(place, raw, at)
  local id = json.is_object(raw) and raw["$id"]
  if type(id) ~= "string" or id:sub(1, 1) == "#" then
    return { raw = raw, at = at, base = place.base, root = place.root }
  end
  local here = { raw = raw, at = at, base = join(place.base, (split(id))) }
  here.root = here
  return here
end

--- The place of the whole document.
function resolve.document(raw)
  local nowhere = { base = "" }
  local place = resolve.below(nowhere, raw, "")
  place.root = place
  return place
end

-- ---- names --------------------------------------------------------------------------------------

local function escaped(key) return (key:gsub("~", "~0"):gsub("/", "~1")) end

--- The pointer of a member.
function resolve.pointer(at, key) return at .. "/" .. escaped(tostring(key)) end

-- Values of these keywords are data, whatever they look like; those of the others have schemas by
-- names, which may be the same words.
local DATA = { enum = true, const = true, default = true, examples = true }
local NAMED = { properties = true, patternProperties = true, dependentSchemas = true,
  dependencies = true, ["$defs"] = true, definitions = true }

--- Everything in the document that has a name: resources by URI, anchors by URI#name.
local function names_of(document)
  local found, todo, seen = {}, { document }, 0
  while #todo > 0 do
    local place = table.remove(todo)
    local raw = place.raw
    seen = seen + 1
    if seen > NODES then
      failure.raise("limit", "", "has more than %d values to search for $id and $anchor", NODES)
    end
    if place.root == place then found[place.base] = found[place.base] or place end
    if json.is_object(raw) then
      for _, keyword in ipairs { "$anchor", "$dynamicAnchor", "$id" } do
        local name = raw[keyword]
        if type(name) == "string" and keyword == "$id" then name = name:match "^#(.+)$" end
        if type(name) == "string" then
          local uri = place.base .. "#" .. name
          found[uri] = found[uri] or place
        end
      end
    end
    if json.is_object(raw) or json.is_array(raw) then
      for key, value in pairs(raw) do
        if type(value) == "table" and (place.named or not DATA[key]) then
          local index = type(key) == "number" and key - 1 or key
          local inner = resolve.below(place, value, resolve.pointer(place.at, index))
          inner.named = NAMED[key] and not place.named
          todo[#todo + 1] = inner
        end
      end
    end
  end
  return found
end

-- ---- references ---------------------------------------------------------------------------------

local function unescaped(part)
  part = part:gsub("~1", "/"):gsub("~0", "~")
  return part
end

--- The place that a pointer leads to from a resource; nil if there is none.
local function follow(place, pointer)
  for part in pointer:gmatch "/([^/]*)" do
    local key, raw = unescaped(part), place.raw
    local value
    if json.is_object(raw) then
      value = raw[key]
    elseif json.is_array(raw) and key:find "^%d+$" and #key < 10 then
      value = raw[math.tointeger(tonumber(key)) + 1]
    end
    if value == nil then return nil end
    place = resolve.below(place, value, place.at .. "/" .. part)
  end
  return place
end

--- The place that a reference at another place means.
function resolve.find(document, place, reference)
  local before, fragment = split(reference)
  fragment = fragment:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end)
  local root = place.root
  local uri = join(place.base, before)
  if before ~= "" and uri ~= root.base then
    document.names = document.names or names_of(document)
    root = document.names[uri]
  end
  if not root then
    failure.raise("unsupported", place,
      "$ref to %q is not in the schema, and nothing is fetched", reference)
  end
  local target
  if fragment == "" or fragment:sub(1, 1) == "/" then
    target = follow(root, fragment)
  else
    document.names = document.names or names_of(document)
    target = document.names[root.base .. "#" .. fragment]
  end
  if not target then
    failure.raise("format", place, "$ref to %q leads nowhere in the schema", reference)
  end
  return target
end

return resolve
