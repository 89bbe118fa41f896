-- tests: everything that may follow `is`. Entries as in methods.lua; functions return a boolean.
local case = require "templates.jinja.case"
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local kind, null, is_undefined, eq = values.kind, values.null, values.is_undefined, operators.eq

local tests = {}

local function of_kind(...)
  local kinds = {}
  for _, k in ipairs { ... } do kinds[k] = true end
  return { function(v) return kinds[kind(v)] == true end }
end

tests.defined = { function(v) return not is_undefined(v) end }
tests.undefined = { is_undefined }
tests.none = { function(v) return v == null end }
tests.boolean, tests.integer, tests.float = of_kind "bool", of_kind "int", of_kind "float"
tests.number, tests.string, tests.mapping = of_kind("int", "float", "bool"), of_kind "str",
  of_kind "dict"
tests["true"] = { function(v) return v == true end }
tests["false"] = { function(v) return v == false end }
tests.callable = of_kind("macro", "func", "loop", "undefined")
tests.sequence = of_kind("str", "list", "tuple", "dict", "range", "undefined")
tests.iterable = of_kind("str", "list", "tuple", "dict", "range", "view", "generator", "undefined",
  "loop")
tests.escaped = { function(v) return type(v) == "table" and v.safe == true end }

tests.odd = { function(v) return eq(operators.mod(v, 2), 1) end }
tests.even = { function(v) return eq(operators.mod(v, 2), 0) end }
tests.divisibleby = { function(v, n) return eq(operators.mod(v, n), 0) end, "num", min = 1 }
tests.lower = { function(v) return case.is(strings.text(operators.tilde(v)), "lower") end }
tests.upper = { function(v) return case.is(strings.text(operators.tilde(v)), "upper") end }
tests.sameas = { function(v, other)
  if values.is_str(v) then return eq(v, other) end
  return math.type(v) == math.type(other) and rawequal(v, other)
end, "other", min = 1 }
tests["in"] = { operators.contains, "seq", min = 1 }

local function compare(f, ...)
  for _, name in ipairs { ... } do tests[name] = { f, "other", min = 1 } end
end
compare(function(a, b) return eq(a, b) end, "==", "eq", "equalto")
compare(function(a, b) return not eq(a, b) end, "!=", "ne")
compare(operators.gt, ">", "gt", "greaterthan")
compare(operators.ge, ">=", "ge")
compare(operators.lt, "<", "lt", "lessthan")
compare(operators.le, "<=", "le")

return tests
