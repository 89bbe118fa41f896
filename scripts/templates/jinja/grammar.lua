-- grammar: reads tokens, and has the rules for expressions; parser.lua adds the rules for
-- statements.
local lexer = require "templates.jinja.lexer"
local null = require("templates.jinja.values").null

local MAX_DEPTH = 120
local MAX_CHAIN = 150 -- links of .a[b](c)|d …: each nests the code, and Lua allows 200 levels
local MAX_PARTS = 2000 -- of a and b and c …

local Parser = {}
Parser.__index = Parser

-- ---- tokens -------------------------------------------------------------------------------------

function Parser:peek(ahead) return self.tokens[math.min(self.at + (ahead or 0), #self.tokens)] end

function Parser:next()
  local token = self.tokens[self.at]
  if self.at < #self.tokens then self.at = self.at + 1 end
  return token
end

local NAMES = { eof = "the end of the template", variable_end = "'}}'", block_end = "'%}'",
  data = "text",
  variable_begin = "'{{'", block_begin = "'{%'" }

local function describe(token)
  if NAMES[token.type] then return NAMES[token.type] end
  if token.type == "string" then return "a string" end
  return "'" .. tostring(token.value) .. "'"
end

function Parser:fail(line, text, ...) lexer.fail(line or self:peek().line, text, ...) end

function Parser:is(kind, value)
  local token = self.tokens[self.at]
  return token.type == kind and (value == nil or token.value == value)
end

function Parser:op(value) return self:is("operator", value) end
function Parser:word(value) return self:is("name", value) end

function Parser:skip(kind, value)
  if not self:is(kind, value) then return nil end
  return self:next()
end

function Parser:expect(kind, value)
  if self:is(kind, value) then return self:next() end
  local wanted = value and "'" .. value .. "'" or NAMES[kind] or "a " .. kind
  self:fail(nil, "expected %s, got %s", wanted, describe(self:peek()))
end

function Parser:node(tag, fields)
  fields.tag = tag
  fields.line = fields.line or self:peek().line
  return fields
end

--- Runs a rule one level deeper.
function Parser:nested(rule, ...)
  self.depth = self.depth + 1
  if self.depth > MAX_DEPTH then self:fail(nil, "nested deeper than %d levels", MAX_DEPTH) end
  local result = rule(self, ...)
  self.depth = self.depth - 1
  return result
end

--- Adds a link to a chain of `count` links; returns the new count.
function Parser:link(count, most)
  most = most or MAX_CHAIN
  if count >= most then self:fail(nil, "more than %d operations in a row", most) end
  return count + 1
end

-- ---- expressions --------------------------------------------------------------------------------

local CONSTANTS = { ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false,
  none = null, None = null }

function Parser:expression(no_condition)
  return self:nested(no_condition and self.or_expression or self.condition)
end

function Parser:condition()
  local line, left = self:peek().line, self:or_expression()
  local links = 0
  while self:skip("name", "if") do
    links = self:link(links)
    local test, otherwise = self:or_expression(), nil
    if self:skip("name", "else") then otherwise = self:nested(self.condition) end
    left = self:node("cond", { line = line, test = test, left, otherwise })
  end
  return left
end

function Parser:or_expression()
  local line, parts = self:peek().line, { self:and_expression() }
  while self:skip("name", "or") do parts[self:link(#parts, MAX_PARTS)] = self:and_expression() end
  if #parts == 1 then return parts[1] end
  parts.line = line
  return self:node("or", parts)
end

function Parser:and_expression()
  local line, parts = self:peek().line, { self:not_expression() }
  while self:skip("name", "and") do parts[self:link(#parts, MAX_PARTS)] = self:not_expression() end
  if #parts == 1 then return parts[1] end
  parts.line = line
  return self:node("and", parts)
end

function Parser:not_expression()
  local token = self:skip("name", "not")
  if token then return self:node("not", { line = token.line, self:nested(self.not_expression) }) end
  return self:compare()
end

local COMPARE = { ["=="] = true, ["!="] = true, ["<"] = true, ["<="] = true, [">"] = true,
  [">="] = true }

function Parser:compare_sign()
  local token = self:peek()
  if token.type == "operator" and COMPARE[token.value] then return self:next().value end
  if self:skip("name", "in") then return "in" end
  local after = self:peek(1)
  if self:word "not" and after.type == "name" and after.value == "in" then
    self:next()
    self:next()
    return "not in"
  end
end

function Parser:compare()
  local line, first = self:peek().line, self:sum()
  local parts, sign = { first }, self:compare_sign()
  while sign do
    self:link(#parts, MAX_PARTS)
    parts[#parts + 1], parts[#parts + 2] = sign, self:sum()
    sign = self:compare_sign()
  end
  if #parts == 1 then return first end
  parts.line = line
  return self:node("compare", parts)
end

--- A left-associative level: operands of one rule, joined by any of the signs.
local function binary(operand, ...)
  local signs = {}
  for _, sign in ipairs { ... } do signs[sign] = true end
  return function(self)
    local line, left, links = self:peek().line, operand(self), 0
    while self:is "operator" and signs[self:peek().value] do
      local sign = self:next().value
      -- a + b + c … is one call
      if sign ~= "+" or left.sign ~= "+" then links = self:link(links) end
      left = self:node("binary", { line = line, sign = sign, left, operand(self) })
      line = self:peek().line
    end
    return left
  end
end

Parser.power = binary(function(self) return self:unary() end, "**")
Parser.product = binary(function(self) return self:power() end, "*", "/", "//", "%")

function Parser:concat()
  local line, parts = self:peek().line, { self:product() }
  while self:skip("operator", "~") do parts[#parts + 1] = self:product() end
  if #parts == 1 then return parts[1] end
  parts.line = line
  return self:node("concat", parts)
end

Parser.sum = binary(function(self) return self:concat() end, "+", "-")

function Parser:unary(no_filter)
  local token = self:peek()
  local signed = self:skip("operator", "-") or self:skip("operator", "+")
  local node = signed and self:node("unary",
    { line = token.line, sign = token.value, self:nested(self.unary, true) })
    or self:primary()
  node = self:postfix(node)
  return no_filter and node or self:filters(node)
end

function Parser:primary()
  local token = self:peek()
  if token.type == "name" then
    self:next()
    if CONSTANTS[token.value] ~= nil then
      return self:node("const", { line = token.line, value = CONSTANTS[token.value] })
    end
    return self:node("name", { line = token.line, name = token.value })
  elseif token.type == "string" then
    local parts = {}
    while self:is "string" do parts[#parts + 1] = self:next().value end
    return self:node("const", { line = token.line, value = table.concat(parts) })
  elseif token.type == "integer" or token.type == "float" then
    return self:node("const", { line = token.line, value = self:next().value })
  elseif self:skip("operator", "(") then
    local node = self:tuple { parenthesized = true }
    self:expect("operator", ")")
    return node
  elseif self:op "[" then
    return self:list()
  elseif self:op "{" then
    return self:dict()
  end
  self:fail(token.line, "expected an expression, got %s", describe(token))
end

function Parser:list()
  local node = self:node("list", { line = self:expect("operator", "[").line })
  while not self:op "]" do
    if #node > 0 then self:expect("operator", ",") end
    if self:op "]" then break end
    node[#node + 1] = self:expression()
  end
  self:expect("operator", "]")
  return node
end

function Parser:dict()
  local node = self:node("dict", { line = self:expect("operator", "{").line })
  while not self:op "}" do
    if #node > 0 then self:expect("operator", ",") end
    if self:op "}" then break end
    local key = self:expression()
    self:expect("operator", ":")
    node[#node + 1] = { key, self:expression() }
  end
  self:expect("operator", "}")
  return node
end

--- Expressions separated by commas. options: no_condition, parenthesized, stop (a word that ends
--- the list).
function Parser:tuple(options)
  local line, items, commas = self:peek().line, {}, false
  while true do
    if #items > 0 then self:expect("operator", ",") end
    if self:is "variable_end" or self:is "block_end" or self:op ")" or options.stop
      and self:word(options.stop) then
      break
    end
    items[#items + 1] = self:expression(options.no_condition)
    if not self:op "," then break end
    commas = true
  end
  if not commas then
    if items[1] then return items[1] end
    if not options.parenthesized then
      self:fail(nil, "expected an expression, got %s", describe(self:peek()))
    end
  end
  items.line = line
  return self:node("tuple", items)
end

function Parser:postfix(node)
  local links = 0
  while true do
    links = self:link(links)
    if self:op "." then
      node = self:attribute(node)
    elseif self:op "[" then
      node = self:subscript(node)
    elseif self:op "(" then
      node = self:call(node)
    else
      return node
    end
  end
end

function Parser:attribute(node)
  local line, token = self:next().line, self:next()
  if token.type == "name" then
    return self:node("attr", { line = line, node, name = token.value })
  end
  if token.type ~= "integer" then
    self:fail(token.line, "expected a name or a number after '.', got %s", describe(token))
  end
  return self:node("item", { line = line, node, self:node("const", { value = token.value }) })
end

function Parser:subscript(node)
  local line, args = self:next().line, {}
  while not self:op "]" do
    if #args > 0 then self:expect("operator", ",") end
    args[#args + 1] = self:index()
  end
  self:expect("operator", "]")
  if #args == 1 and args[1].tag == "slice" then
    args[1][1] = node
    return args[1]
  end
  for _, arg in ipairs(args) do
    if arg.tag == "slice" then self:fail(line, "a slice cannot be combined with other indexes") end
  end
  args.line = line
  local index = #args == 1 and args[1] or self:node("tuple", args)
  return self:node("item", { line = line, node, index })
end

--- An index or a slice.
function Parser:index()
  local line, from = self:peek().line, nil
  if not self:op ":" then
    from = self:expression()
    if not self:op ":" then return from end
  end
  local slice = self:node("slice", { line = line, from = from })
  self:next()
  local function bound()
    if self:op ":" or self:op "]" or self:op "," then return nil end
    return self:expression()
  end
  slice.to = bound()
  if self:skip("operator", ":") then slice.step = bound() end
  return slice
end

--- Arguments: a list, with `named` as pairs, `rest` for *x and `map` for **x.
function Parser:arguments()
  local line, args = self:expect("operator", "(").line, { named = {} }
  while not self:op ")" do
    if #args + #args.named > 0 or args.rest or args.map then
      self:expect("operator", ",")
      if self:op ")" then break end
    end
    local after = self:peek(1)
    if self:skip("operator", "*") then
      if args.rest or args.map then
        self:fail(line, "a call has a second '*', or a '*' after '**'")
      end
      args.rest = self:expression()
    elseif self:skip("operator", "**") then
      if args.map then self:fail(line, "a call has a second '**'") end
      args.map = self:expression()
    elseif self:is "name" and after.type == "operator" and after.value == "=" then
      if args.map then self:fail(line, "a call has a named argument after '**'") end
      local name = self:next().value
      self:next()
      args.named[#args.named + 1] = { name, self:expression() }
    else
      if args.rest or args.map or #args.named > 0 then
        self:fail(line, "a call has a positional argument after a named one")
      end
      args[#args + 1] = self:expression()
    end
  end
  self:expect("operator", ")")
  return args
end

function Parser:call(node)
  local line = self:peek().line
  return self:node("call", { line = line, node, args = self:arguments() })
end

function Parser:dotted_name()
  local name = self:expect("name").value
  while self:skip("operator", ".") do name = name .. "." .. self:expect("name").value end
  return name
end

--- One filter, beginning at its name; node is nil for the text of a block.
function Parser:filter(node)
  local line, name = self:peek().line, self:dotted_name()
  local args = self:op "(" and self:arguments() or { named = {} }
  return self:node("filter", { line = line, node, name = name, args = args, subject = node ~= nil })
end

function Parser:filters(node)
  local links = 0
  while true do
    links = self:link(links)
    if self:skip("operator", "|") then
      node = self:filter(node)
    elseif self:word "is" then
      node = self:test(node)
    elseif self:op "(" then
      node = self:call(node)
    else
      return node
    end
  end
end

local ARGUMENT = { name = true, string = true, integer = true, float = true }
local NO_ARGUMENT = { ["else"] = true, ["or"] = true, ["and"] = true }

function Parser:test_arguments()
  if self:op "(" then return self:arguments() end
  local token = self:peek()
  if not ARGUMENT[token.type] and not self:op "[" and not self:op "{" or token.type == "name"
    and NO_ARGUMENT[token.value] then
    return { named = {} }
  end
  if self:word "is" then self:fail(nil, "tests cannot be chained with 'is'") end
  return { self:postfix(self:primary()), named = {} }
end

function Parser:test(node)
  local line = self:next().line
  local negated = self:skip("name", "not")
  local name = self:dotted_name()
  local test = self:node("test", { line = line, node, name = name, args = self:test_arguments() })
  return negated and self:node("not", { line = line, test }) or test
end

return { Parser = Parser, CONSTANTS = CONSTANTS, describe = describe }
