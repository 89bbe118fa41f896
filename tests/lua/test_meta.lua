-- Every function and field that C exposes to Lua has an annotation in scripts/meta, and vice versa.
local help = require "repl.help"
local perigee = require "perigee"
local test = require("harness").test

--- "perigee.sys.machine" -> kind, for all fields of perigee; "perigee.Tensor.rows" for classes.
local function exposed()
  local out = {}
  local function walk(t, path)
    for k, v in pairs(t) do
      local name = path .. "." .. tostring(k)
      if type(v) == "table" then walk(v, name)
      elseif type(v) == "function" then out[name] = "function"
      else out[name] = "field" end
    end
  end
  walk(perigee, "perigee")
  for class, parts in pairs(perigee.classes()) do
    for _, name in ipairs(parts.methods) do out[class .. "." .. name] = "function" end
    for _, name in ipairs(parts.fields) do out[class .. "." .. name] = "field" end
  end
  return out
end

--- Annotated members of modules and C classes. Plain tables (options, results) are not exposed.
local function annotated()
  local out, classes = {}, perigee.classes()
  for _, e in ipairs(help.entries()) do
    local module = not e.class:match "%.%u[%w_]*$"
    if e.member and (module or classes[e.class]) then out[e.class .. "." .. e.member] = e.kind end
  end
  return out
end

test("annotations and C functions are the same list", function(t)
  local have, described = exposed(), annotated()
  t.eq(have["perigee.guard"], "function")
  t.eq(described["perigee.sys.machine"], "function")
  --- Names of a that are missing in b, or have another kind there.
  local function differing(a, b)
    local out = {}
    for name, kind in pairs(a) do
      if b[name] ~= kind then out[#out + 1] = name end
    end
    table.sort(out)
    return out
  end
  t.eq(differing(have, described), {},
    "C functions and fields without an annotation in scripts/meta")
  t.eq(differing(described, have), {}, "annotations in scripts/meta of things that do not exist")
end)

test("annotations are parsed", function(t)
  local entries = help.read [[
---@meta

---@class perigee.Thing: perigee.Base  What it is.
---@field size integer  How large.
---What it is called,
---and why.
---@field name? string
---@field [integer] number
local Thing = {}

---Does it.
---More about it.
---@param a string  first
---@return integer?
function Thing:act(a, ...) end

-- not documentation
function Thing.make(options) end

function global.other() end
]]
  local names = {}
  for i, e in ipairs(entries) do names[i] = e.kind .. " " .. e.name end
  t.eq(names, { "class perigee.Thing", "field perigee.Thing.size", "field perigee.Thing.name",
    "function perigee.Thing:act", "function perigee.Thing.make", "function global.other" })
  t.eq(entries[2].description, "integer  How large.")
  t.eq(entries[3].description, "string  What it is called, and why.")
  t.eq(entries[4].doc, { "Does it.", "More about it." })
  t.eq(entries[4].signature, "perigee.Thing:act(a, ...)")
  t.eq(#entries[4].tags, 2)
  t.eq(entries[5].doc, {})
end)

test("help finds by full name and by ending", function(t)
  local function names(word)
    local out = {}
    for i, e in ipairs(help.find(word)) do out[i] = e.name end
    return out
  end
  t.eq(names "perigee.guard", { "perigee.guard" })
  t.eq(names "guard", { "perigee.guard" })
  t.eq(names "sys.machine", { "perigee.sys.machine" })
  t.eq(names "uard", {})
  t.match(help.describe(help.find("sys")[1]), "perigee.sys.width%(text%)")
end)
