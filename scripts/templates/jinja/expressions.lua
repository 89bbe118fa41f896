-- expressions: the Lua expression of each kind of node; compile.lua generates the statements.
local filters = require "templates.jinja.filters"
local lexer = require "templates.jinja.lexer"
local tests = require "templates.jinja.tests"
local null = require("templates.jinja.values").null

local MAX_OPERANDS = 100 -- of one Lua call; Lua has 255 registers, and operands are calls too

-- Methods of the compiler: one per node tag, and shared ones.
local expressions, methods = {}, {}

local function quote(s) return (("%q"):format(s):gsub("\\\n", "\\n")) end

--- The Lua expression of a node; second, true if it is a Lua boolean.
function methods:expr(node) return expressions[node.tag](self, node) end

--- The Lua expression of a node's truth.
function methods:condition(node)
  if node.tag == "not" then return "not " .. self:condition(node[1]) end
  if node.tag == "and" or node.tag == "or" then
    local parts = {}
    for i, part in ipairs(node) do parts[i] = self:condition(part) end
    return "(" .. table.concat(parts, " " .. node.tag .. " ") .. ")"
  end
  local code, is_boolean = self:expr(node)
  return is_boolean and code or "truth(" .. code .. ")"
end

function methods:list_of(nodes)
  local out = {}
  for i, node in ipairs(nodes) do out[i] = (self:expr(node)) end
  return table.concat(out, ",")
end

function expressions.const(_, node)
  local v = node.value
  if v == null then return "none" end
  if type(v) == "string" then return quote(v) end
  if type(v) == "boolean" then return tostring(v), true end
  if type(v) == "table" then return ("big(%q)"):format(v.digits) end
  if math.type(v) == "integer" then return tostring(v) end
  if v == math.huge then return "(1/0)" end
  local text = ("%.17g"):format(v)
  return text:find "[.e]" and text or text .. ".0"
end

function expressions.name(self, node)
  local ref, loop = self:resolve(node.name)
  if loop then loop.used = true end
  return ref
end

function expressions.list(self, node) return "list{" .. self:list_of(node) .. "}" end
function expressions.tuple(self, node) return "tuple{" .. self:list_of(node) .. "}" end

function expressions.dict(self, node)
  local parts = {}
  for i, pair in ipairs(node) do parts[i] = (self:expr(pair[1])) .. "," .. (self:expr(pair[2])) end
  return "dict{" .. table.concat(parts, ",") .. "}"
end

-- Attributes of a loop that is known at compile time: %i is the iteration, %n the number of items.
local LOOP = { index = "%i", index0 = "(%i-1)", first = "(%i==1)", last = "(%i==%n)", length = "%n",
  revindex = "(%n-%i+1)",
  revindex0 = "(%n-%i)" }

function expressions.attr(self, node)
  local subject, name = node[1], node.name
  if subject.tag == "name" and subject.name == "loop" then
    local _, loop = self:resolve "loop"
    if loop and LOOP[name] then
      return (LOOP[name]:gsub("%%(.)", loop)), name == "first" or name == "last"
    end
  end
  return ("attr(%s,%s)"):format(self:expr(subject), quote(name))
end

function expressions.item(self, node)
  return ("item(%s,%s)"):format(self:expr(node[1]), (self:expr(node[2])))
end

function expressions.slice(self, node)
  local function bound(n) return n and (self:expr(n)) or "nil" end
  return ("slice(%s,%s,%s,%s)"):format(self:expr(node[1]), bound(node.from), bound(node.to),
    bound(node.step))
end

--- The Lua code of the arguments of a call: named ones as one list (or nil), then the positional
--- ones.
function methods:arguments(args, extra)
  local named = {}
  for _, pair in ipairs(args.named) do
    named[#named + 1] = quote(pair[1]) .. "," .. (self:expr(pair[2]))
  end
  if extra then named[#named + 1] = extra end
  local kw = #named > 0 and "{" .. table.concat(named, ",") .. "}" or "nil"
  if args.map then kw = ("named(%s,%s)"):format(kw, (self:expr(args.map))) end
  if #args > MAX_OPERANDS then
    lexer.fail(self.line, "a call has %d arguments, the limit is %d", #args, MAX_OPERANDS)
  end
  local list = self:list_of(args)
  if args.rest then
    list = ("spread(%s%s)"):format(self:expr(args.rest), list ~= "" and "," .. list or "")
  end
  return kw, list ~= "" and "," .. list or ""
end

function methods:call(node, extra)
  local f = node[1]
  local kw, list = self:arguments(node.args, extra)
  if f.tag == "attr" then
    return ("method(%s,%s,%s%s)"):format(self:expr(f[1]), quote(f.name), kw, list)
  end
  return ("call(%s,%s%s)"):format(self:expr(f), kw, list)
end

function expressions.call(self, node) return self:call(node) end

--- The code of the arguments in the order of an entry's names, or nil if it is not known yet.
function methods:ordered(entry, args)
  if args.rest or args.map or entry.raw then return nil end
  local count = #entry - 1
  if #args > count then return nil end
  local out, last = {}, #args
  for i, node in ipairs(args) do out[i] = (self:expr(node)) end
  for _, pair in ipairs(args.named) do
    local at
    for i = 2, #entry do
      if entry[i] == pair[1] then at = i - 1 end
    end
    if not at or out[at] then return nil end
    out[at], last = (self:expr(pair[2])), math.max(last, at)
  end
  for i = 1, last do out[i] = out[i] or "nil" end
  for i = 1, entry.min or 0 do
    if not out[i] or out[i] == "nil" then return nil end
  end
  return table.concat(out, ",")
end

--- A filter or test applied to the Lua expression `subject`.
function methods:apply(kind, node, subject)
  local entries = kind == "filter" and filters or tests
  local entry = entries[node.name]
  if not entry then
    if self.soft == 0 then lexer.fail(node.line, "no %s named '%s'", kind, node.name) end
    return ("unknown(%s,%s)"):format(quote(kind), quote(node.name))
  end
  local letter = kind == "filter" and "F" or "T"
  local list = self:ordered(entry, node.args)
  if list then
    return ("%s[%s](%s%s)"):format(letter, quote(node.name), subject,
      list ~= "" and "," .. list or "")
  end
  local kw, rest = self:arguments(node.args)
  return ("invoke(%s,%sE[%s],%s,%s%s)"):format(quote(node.name), letter, quote(node.name), kw,
    subject, rest)
end

function expressions.filter(self, node) return self:apply("filter", node, (self:expr(node[1]))) end
function expressions.test(self, node)
  return self:apply("test", node, (self:expr(node[1]))), true
end

--- a if c else b. A slot holds c, because a may be false.
function expressions.cond(self, node)
  local slot = self:slot()
  self.soft = self.soft + 1
  local test = self:condition(node.test)
  local yes, yes_boolean = self:expr(node[1])
  local no, no_boolean = 'undefined("the condition is false and there is no else")', false
  if node[2] then no, no_boolean = self:expr(node[2]) end
  self.soft = self.soft - 1
  return ("(keep(K,%d,%s) and %s or not K[%d] and %s)"):format(slot, test, yes, slot, no),
    yes_boolean and no_boolean
end

expressions["or"] = function(self, node)
  local parts, all = {}, true
  for i, part in ipairs(node) do
    local code, is_boolean = self:expr(part)
    all = all and is_boolean
    if i == #node or is_boolean then
      parts[i] = code
    else
      local slot = self:slot()
      parts[i] = ("hold(K,%d,%s) and K[%d]"):format(slot, code, slot)
    end
  end
  return "(" .. table.concat(parts, " or ") .. ")", all
end

expressions["and"] = function(self, node)
  local result, result_boolean = self:expr(node[#node])
  for i = #node - 1, 1, -1 do
    local code, is_boolean = self:expr(node[i])
    if is_boolean then
      result = ("(%s and %s)"):format(code, result)
    else
      local slot = self:slot()
      result = ("(hold(K,%d,%s) and %s or held(K,%d))"):format(slot, code, result, slot)
    end
    result_boolean = result_boolean and is_boolean
  end
  return result, result_boolean
end

expressions["not"] = function(self, node) return "(not " .. self:condition(node[1]) .. ")", true end

local COMPARE = { ["=="] = "eq(%s,%s)", ["!="] = "(not eq(%s,%s))", ["<"] = "lt(%s,%s)",
  ["<="] = "le(%s,%s)",
  [">"] = "gt(%s,%s)", [">="] = "ge(%s,%s)", ["in"] = "contains(%s,%s)",
  ["not in"] = "(not contains(%s,%s))" }

function expressions.compare(self, node)
  if #node == 3 then
    return COMPARE[node[2]]:format(self:expr(node[1]), (self:expr(node[3]))), true
  end
  local parts, left = {}, (self:expr(node[1]))
  for i = 2, #node, 2 do -- a < b < c: a slot holds b for the second comparison
    local right = (self:expr(node[i + 1]))
    local slot = self:slot()
    parts[#parts + 1] = COMPARE[node[i]]:format(left, ("keep(K,%d,%s)"):format(slot, right))
    left = ("K[%d]"):format(slot)
  end
  return "(" .. table.concat(parts, " and ") .. ")", true
end

local BINARY = { ["+"] = "add", ["-"] = "sub", ["*"] = "mul", ["/"] = "div", ["//"] = "floordiv",
  ["%"] = "mod", ["**"] = "pow" }

--- a + b + c … is one call, because nested calls would hit Lua's limit on nesting.
local function flatten(node)
  local parts = {}
  while node.tag == "binary" and node.sign == "+" do
    parts[#parts + 1] = node[2]
    node = node[1]
  end
  parts[#parts + 1] = node
  local n = #parts
  for i = 1, n // 2 do parts[i], parts[n + 1 - i] = parts[n + 1 - i], parts[i] end
  return parts
end

--- f(a, b, c …), in groups of at most MAX_OPERANDS.
function methods:many(f, parts)
  local first = (self:expr(parts[1]))
  for from = 2, #parts, MAX_OPERANDS do
    local group = { table.unpack(parts, from, math.min(from + MAX_OPERANDS - 1, #parts)) }
    first = ("%s(%s,%s)"):format(f, first, self:list_of(group))
  end
  return first
end

function expressions.binary(self, node)
  if node.sign == "+" and node[1].tag == "binary" and node[1].sign == "+" then
    return self:many("sum", flatten(node))
  end
  return ("%s(%s,%s)"):format(BINARY[node.sign], self:expr(node[1]), (self:expr(node[2])))
end

function expressions.concat(self, node) return self:many("tilde", node) end

function expressions.unary(self, node)
  return ("%s(%s)"):format(node.sign == "-" and "neg" or "pos", (self:expr(node[1])))
end

return { methods = methods, quote = quote }
