-- parser: turns tokens into a tree.
--
-- Expressions: const, name, list, tuple, dict, attr, item, slice, call, filter, test, cond, ["or"],
-- ["and"], ["not"], compare, binary, concat, unary. Statements: output, set, setblock, ["if"],
-- ["for"], macro, call_block, filter_block, with, scope, generation, ["break"], ["continue"]. Every
-- node has its line.
local grammar = require "templates.jinja.grammar"
local lexer = require "templates.jinja.lexer"
local Parser, CONSTANTS, describe = grammar.Parser, grammar.CONSTANTS, grammar.describe

local parser = {}

--- A name, or names separated by commas, with or without parentheses; with_namespace: also
--- name.attribute.
function Parser:target(with_namespace)
  local line, items, commas = self:peek().line, {}, false
  repeat
    local token = self:peek()
    if #items > 0 and (token.type ~= "name" or token.value == "in") and not self:op "(" then
      break
    end
    if self:skip("operator", "(") then
      items[#items + 1] = self:nested(self.target, with_namespace)
      self:expect("operator", ")")
    else
      local name = self:expect("name").value
      if CONSTANTS[name] ~= nil then self:fail(token.line, "cannot assign to '%s'", name) end
      if with_namespace and self:skip("operator", ".") then
        local field = self:expect("name").value
        items[#items + 1] = self:node("field", { line = token.line, name = name, field = field })
      else
        items[#items + 1] = self:node("name", { line = token.line, name = name })
      end
    end
    local more = self:skip("operator", ",")
    commas = commas or more
  until not more
  if not commas then return items[1] end
  items.line = line
  return self:node("tuple", items)
end

--- Statements up to one of the words, which stays the current token.
function Parser:body(opened, ...)
  local words = { ... }
  self.open[#self.open + 1] = { opened, words }
  local body = self:nested(self.statements, words)
  self.open[#self.open] = nil
  return body
end

--- The end of a block: its word and the end of the tag.
function Parser:close(word) self:expect("name", word) end

local statements = {}

function statements.set(self, line)
  local target = self:target(true)
  if self:skip("operator", "=") then
    return self:node("set", { line = line, target = target, self:tuple {} })
  end
  local filters = {}
  while self:skip("operator", "|") do filters[#filters + 1] = self:filter() end
  self:expect "block_end"
  local body = self:body("set", "endset")
  self:close "endset"
  return self:node("setblock", { line = line, target = target, filters = filters, body = body })
end

statements["if"] = function(self, line)
  local node = self:node("if", { line = line })
  repeat
    local test = self:tuple { no_condition = true }
    self:expect "block_end"
    local body = self:body("if", "elif", "else", "endif")
    node[#node + 1] = { test, body }
    local word = self:next().value
  until word ~= "elif"
  if self.tokens[self.at - 1].value == "else" then
    self:expect "block_end"
    node.otherwise = self:body("if", "endif")
    self:close "endif"
  end
  return node
end

statements["for"] = function(self, line)
  local node = self:node("for", { line = line, target = self:target() })
  self:expect("name", "in")
  node.items = self:tuple { no_condition = true, stop = "recursive" }
  if self:skip("name", "if") then node.test = self:expression() end
  node.recursive = self:skip("name", "recursive") ~= nil
  self:expect "block_end"
  node.body = self:body("for", "endfor", "else")
  if self:next().value == "else" then
    self:expect "block_end"
    node.otherwise = self:body("for", "endfor")
    self:close "endfor"
  end
  return node
end

--- (a, b=1): names and defaults.
function Parser:signature(node)
  local known = {}
  node.params, node.defaults = {}, {}
  self:expect("operator", "(")
  while not self:op ")" do
    if #node.params > 0 then self:expect("operator", ",") end
    if self:op ")" then break end
    local name = self:expect("name").value
    if known[name] then self:fail(nil, "parameter '%s' is declared twice", name) end
    known[name] = true
    node.params[#node.params + 1] = name
    if self:skip("operator", "=") then
      node.defaults[#node.params] = self:expression()
    elseif next(node.defaults) then
      self:fail(nil, "parameter '%s' needs a default, because an earlier one has one", name)
    end
  end
  self:expect("operator", ")")
end

function statements.macro(self, line)
  local node = self:node("macro", { line = line, name = self:expect("name").value })
  self:signature(node)
  self:expect "block_end"
  node.body = self:body("macro", "endmacro")
  self:close "endmacro"
  return node
end

function statements.call(self, line)
  local node = self:node("call_block", { line = line, params = {}, defaults = {} })
  if self:op "(" then self:signature(node) end
  node.call = self:expression()
  if node.call.tag ~= "call" then self:fail(line, "expected a call after 'call'") end
  self:expect "block_end"
  node.body = self:body("call", "endcall")
  self:close "endcall"
  return node
end

function statements.filter(self, line)
  local filters = { self:filter() }
  while self:skip("operator", "|") do filters[#filters + 1] = self:filter() end
  self:expect "block_end"
  local body = self:body("filter", "endfilter")
  self:close "endfilter"
  return self:node("filter_block", { line = line, filters = filters, body = body })
end

statements["with"] = function(self, line)
  local node = self:node("with", { line = line, targets = {}, values = {} })
  while not self:is "block_end" do
    if #node.targets > 0 then self:expect("operator", ",") end
    node.targets[#node.targets + 1] = self:target()
    self:expect("operator", "=")
    node.values[#node.values + 1] = self:expression()
  end
  self:expect "block_end"
  node.body = self:body("with", "endwith")
  self:close "endwith"
  return node
end

function statements.block(self, line)
  local name = self:expect("name").value
  self:skip("name", "scoped")
  self:skip("name", "required")
  self:expect "block_end"
  local node = self:node("scope", { line = line, body = self:body("block", "endblock") })
  self:close "endblock"
  self:skip("name", name)
  return node
end

function statements.generation(self, line)
  self:expect "block_end"
  local body = self:body("generation", "endgeneration")
  local node = self:node("generation", { line = line, body = body })
  self:close "endgeneration"
  return node
end

function statements.autoescape(self, line)
  local value = self:expression()
  if value.tag ~= "const" or value.value ~= false then
    self:fail(line, "autoescape is not available")
  end
  self:expect "block_end"
  local node = self:node("scope", { line = line, body = self:body("autoescape", "endautoescape") })
  self:close "endautoescape"
  return node
end

function statements.print(self, line)
  local node = self:node("output", { line = line })
  while not self:is "block_end" do
    if #node > 0 then self:expect("operator", ",") end
    node[#node + 1] = self:expression()
  end
  return node
end

statements["break"] = function(self, line) return self:node("break", { line = line }) end
statements["continue"] = function(self, line) return self:node("continue", { line = line }) end

local REFUSED = { include = true, import = true, from = true, extends = true }

function Parser:unknown(token)
  local open = self.open[#self.open]
  if REFUSED[token.value] then
    self:fail(token.line, "'%s' is not available: a chat template is a single file", token.value)
  end
  if open then
    self:fail(token.line, "unknown tag '%s', expected '%s' to close '%s'", token.value,
      table.concat(open[2], "' or '"), open[1])
  end
  self:fail(token.line, "unknown tag '%s'", token.value)
end

function Parser:statement()
  local token = self:peek()
  if token.type ~= "name" then
    self:fail(nil, "expected the name of a tag, got %s", describe(token))
  end
  local rule = statements[token.value]
  if not rule then self:unknown(token) end
  self:next()
  return rule(self, token.line)
end

local function among(words, token)
  for _, word in ipairs(words) do
    if token.type == "name" and token.value == word then return true end
  end
  return false
end

function Parser:statements(words)
  local body = {}
  while true do
    local token = self:next()
    if token.type == "data" then
      local const = self:node("const", { line = token.line, value = token.value })
      body[#body + 1] = self:node("output", { line = token.line, const })
    elseif token.type == "variable_begin" then
      body[#body + 1] = self:node("output", { line = self:peek().line, self:tuple {} })
      self:expect "variable_end"
    elseif token.type == "block_begin" then
      if words and among(words, self:peek()) then return body end
      body[#body + 1] = self:statement()
      self:expect "block_end"
    else
      if words then
        local open = self.open[#self.open]
        self:fail(token.line, "the template ends inside '%s', expected '%s'", open[1],
          table.concat(words, "' or '"))
      end
      return body
    end
  end
end

--- The statements of a template. Raises a Failure with its line.
function parser.parse(source)
  local self = setmetatable({ tokens = lexer.scan(source), at = 1, depth = 0, open = {} }, Parser)
  return self:statements()
end

return parser
