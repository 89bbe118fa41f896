-- compile: turns a tree into one Lua chunk.
--
-- The chunk has the same lines as the template, so that Lua's debug information locates errors. An
-- expression becomes one Lua expression of calls into the runtime; `and`, `or` and conditions store
-- their left side in a slot of the table K (one per function), because Lua's operators only test
-- for nil and false. Text is appended to the list `o`, of length `n`.
--
-- A variable of the template is a Lua local, v1, v2 … Blocks with their own scope (for, macro,
-- with, set blocks …) start with a copy of each outer variable that they assign, because
-- assignments do not leave the block. A name that no scope declares is looked up once, at the
-- start. Variables beyond Lua's limit on locals live in a table.
local expressions = require "templates.jinja.expressions"
local filters = require "templates.jinja.filters"
local lexer = require "templates.jinja.lexer"
local parser = require "templates.jinja.parser"
local runtime = require "templates.jinja.runtime"
local tests = require "templates.jinja.tests"
local quote = expressions.quote

local compile = {}

-- Names looked up at the start, and again names in scopes; Lua allows 200 locals.
local MAX_LOCALS = 60
local MAX_LOOPS = 10   -- nested in one function
local MAX_PARAMS = 50
local MAX_SOURCE = 4 << 20

local Compiler = {}
Compiler.__index = Compiler
for name, f in pairs(expressions.methods) do Compiler[name] = f end

-- ---- writing ------------------------------------------------------------------------------------

function Compiler:emit(code, ...)
  if select("#", ...) > 0 then code = code:format(...) end
  self.code[#self.code + 1] = code .. " "
end

--- A place that is filled in later, with code that has no newlines.
function Compiler:reserve()
  self.code[#self.code + 1] = ""
  return #self.code
end

--- The code that follows belongs to this line of the template.
function Compiler:at(line)
  if line > self.line then
    self.code[#self.code + 1] = ("\n"):rep(line - self.line)
    self.line = line
  end
end

--- Holds text back, so that adjacent texts become one string.
function Compiler:literal(text, line)
  if not self.pending then self.pending, self.pending_line = {}, line end
  self.pending[#self.pending + 1] = text
end

function Compiler:flush()
  if not self.pending then return end
  self:at(self.pending_line)
  self:emit("n=n+1 o[n]=%s", quote(table.concat(self.pending)))
  self.pending = nil
end

function Compiler:fresh(prefix)
  self.count = self.count + 1
  return prefix .. self.count
end

-- ---- functions and scopes -----------------------------------------------------------------------

--- The Lua function being generated: its slots, locals and loops.
function Compiler:open_function()
  local f = { outer = self.fn, locals = 0, loops = {}, slots = 0, captures = 0 }
  self.fn = f
  self:emit "local o,n={},0"
  f.head = self:reserve()
  return f
end

function Compiler:close_function()
  local f = self.fn
  local head = f.slots > 0 and "local K={} " or ""
  self.code[f.head] = head .. (f.overflow and ("local %s={} "):format(f.overflow) or "")
  self.fn = f.outer
end

function Compiler:slot()
  self.fn.slots = self.fn.slots + 1
  return self.fn.slots
end

--- A place for a variable in the function: a local name (to be declared by the caller) or a field
--- of a table.
function Compiler:place(name)
  local f = self.fn
  f.locals = f.locals + 1
  if f.locals <= MAX_LOCALS then return self:fresh "v", true end
  f.overflow = f.overflow or self:fresh "X"
  return ("%s[%s]"):format(f.overflow, quote(name .. "#" .. self:fresh ""))
end

--- Declares a variable of the current scope with its first value.
function Compiler:declare(name, value)
  local ref, is_local = self:place(name)
  self:emit("%s%s=%s", is_local and "local " or "", ref, value)
  self.scope.vars[name] = ref
  return ref
end

local function collect(target, names)
  if target.tag == "name" then
    names[#names + 1] = target.name
  elseif target.tag == "tuple" then
    for _, t in ipairs(target) do collect(t, names) end
  end
end

--- The names that statements assign in their own scope.
local function assigned(body, names)
  for _, node in ipairs(body) do
    if node.tag == "set" or node.tag == "setblock" then
      collect(node.target, names)
    elseif node.tag == "macro" then
      names[#names + 1] = node.name
    elseif node.tag == "if" then
      for _, branch in ipairs(node) do assigned(branch[2], names) end
      if node.otherwise then assigned(node.otherwise, names) end
    end
  end
  return names
end

--- Opens a scope for a body; `vars` are variables that exist already (parameters, targets).
function Compiler:open_scope(body, vars, extra)
  local outer = self.scope
  local scope = { parent = outer, vars = {}, before = self.fn.locals }
  for k, v in pairs(extra or {}) do scope[k] = v end
  self.scope = scope
  for k, v in pairs(vars or {}) do scope.vars[k] = v end
  for _, name in ipairs(assigned(body, {})) do
    if scope.vars[name] == nil then
      self.scope = outer
      local first = outer and self:resolve(name) or ("get(%s)"):format(quote(name))
      self.scope = scope
      self:declare(name, first)
    end
  end
  return scope
end

function Compiler:close_scope()
  self.fn.locals = self.scope.before
  self.scope = self.scope.parent
end

local SPECIAL = { caller = "pc", kwargs = "pk", varargs = "pv" }

--- caller, kwargs or varargs of the macro around a scope. Macros around that one then also take
--- them.
local function use_special(scope, name)
  local id = scope.special.id
  while scope do
    if scope.special then scope.special[name] = true end
    scope = scope.parent
  end
  return SPECIAL[name] .. id
end

--- The Lua expression of a name's value; second, the loop if the name is its `loop`.
function Compiler:resolve(name)
  local scope = self.scope
  while scope do
    if scope.vars[name] then return scope.vars[name] end
    if name == "loop" and scope.loop then
      return scope.loop.object, scope.loop
    end
    if scope.special and SPECIAL[name] then return use_special(scope, name) end
    scope = scope.parent
  end
  return self:outside(name)
end

--- A variable of the rendering, looked up when the chunk starts.
function Compiler:outside(name)
  local ref = self.outer[name]
  if ref then return ref end
  self.outer_count = self.outer_count + 1
  local is_local = self.outer_count <= MAX_LOCALS
  ref = is_local and self:fresh "v" or ("X0[%s]"):format(quote(name))
  self.outer[name] = ref
  self.lookups[#self.lookups + 1] = ("%s%s=get(%s) "):format(is_local and "local " or "", ref,
    quote(name))
  return ref
end

-- ---- statements ---------------------------------------------------------------------------------

local statements = {}

function Compiler:body(nodes)
  for _, node in ipairs(nodes) do
    if node.tag ~= "output" then
      self:flush()
      self:at(node.line)
    end
    statements[node.tag](self, node)
  end
  self:flush()
end

function Compiler:put(code)
  self:emit("n=n+1 o[n]=%s", code)
end

function statements.output(self, node)
  for _, part in ipairs(node) do
    if part.tag == "const" and type(part.value) == "string" then
      self:literal(part.value, part.line)
    elseif part.tag == "concat" then
      statements.output(self, part)
    else
      self:flush()
      self:at(part.line)
      self:put("str(" .. (self:expr(part)) .. ")")
    end
  end
end

--- Stores the Lua expression in a target.
function Compiler:assign(target, code)
  if target.tag == "name" then
    self:emit("%s=%s", self.scope.vars[target.name], code)
  elseif target.tag == "field" then
    self:emit("setfield(%s,%s,%s)", self:resolve(target.name), quote(target.field), code)
  else
    local temp = self:fresh "t"
    self:emit("do local %s=unpack(%s,%d)", temp, code, #target)
    for i, inner in ipairs(target) do self:assign(inner, ("%s[%d]"):format(temp, i)) end
    self:emit "end"
  end
end

function statements.set(self, node)
  self:assign(node.target, (self:expr(node[1])))
end

--- Captures the text of a body in a local; returns the local's name.
function Compiler:capture(body)
  local name = self:fresh "t"
  self:emit("local %s do local o,n={},0", name)
  self.fn.captures = self.fn.captures + 1
  self:open_scope(body)
  self:body(body)
  self:close_scope()
  self.fn.captures = self.fn.captures - 1
  self:emit("%s=cat(o,n) end", name)
  return name
end

function Compiler:filtered(code, list)
  for _, filter in ipairs(list) do code = self:apply("filter", filter, code) end
  return code
end

function statements.setblock(self, node)
  self:emit "do"
  self:assign(node.target, self:filtered(self:capture(node.body), node.filters))
  self:emit "end"
end

function statements.filter_block(self, node)
  self:emit "do"
  self:put("str(" .. self:filtered(self:capture(node.body), node.filters) .. ")")
  self:emit "end"
end

statements["if"] = function(self, node)
  self.soft = self.soft + 1
  for i, branch in ipairs(node) do
    self:emit("%s %s then", i == 1 and "if" or "elseif", self:condition(branch[1]))
    self:body(branch[2])
  end
  if node.otherwise then
    self:emit "else"
    self:body(node.otherwise)
  end
  self:emit "end"
  self.soft = self.soft - 1
end

function statements.scope(self, node)
  self:emit "do"
  self:open_scope(node.body)
  self:body(node.body)
  self:close_scope()
  self:emit "end"
end

statements["with"] = function(self, node)
  local codes, vars = {}, {}
  for i, value in ipairs(node.values) do codes[i] = (self:expr(value)) end
  self:emit "do"
  local before = self.fn.locals
  for i, target in ipairs(node.targets) do
    local names = {}
    collect(target, names)
    for _, name in ipairs(names) do
      local ref, is_local = self:place(name)
      if is_local then self:emit("local %s", ref) end
      vars[name] = ref
    end
    self.scope = { parent = self.scope, vars = vars }
    self:assign(target, codes[i])
    self.scope = self.scope.parent
  end
  self:open_scope(node.body, vars)
  self:body(node.body)
  self:close_scope()
  self.fn.locals = before
  self:emit "end"
end

--- Records the range of a generation block if its text goes directly to the output.
function statements.generation(self, node)
  local direct = not self.fn.outer and self.fn.captures == 0
  local start = self:fresh "t"
  if direct then self:emit("do local %s=n", start) else self:emit "do" end
  self:open_scope(node.body)
  self:body(node.body)
  self:close_scope()
  if direct then self:emit("generated(%s,n)", start) end
  self:emit "end"
end

-- ---- loops --------------------------------------------------------------------------------------

--- Declares the targets of a loop and assigns the item to them.
function Compiler:targets(target, item)
  local names, vars = {}, {}
  collect(target, names)
  for _, name in ipairs(names) do
    if name == "loop" then lexer.fail(target.line, "cannot assign to 'loop' in a for loop") end
    local ref, is_local = self:place(name)
    if is_local then self:emit("local %s", ref) end
    vars[name] = ref
  end
  self.scope = { parent = self.scope, vars = vars }
  self:assign(target, item)
  self.scope = self.scope.parent
  return vars
end

--- Filters the items by the `if` of the loop.
function Compiler:loop_filter(node, loop)
  local kept, index, before = self:fresh "t", self:fresh "i", self.fn.locals
  self:emit("do local %s={} for %s=1,%s do tick()", kept, index, loop.n)
  local vars = self:targets(node.target, ("%s[%s]"):format(loop.items, index))
  self.scope = { parent = self.scope, vars = vars }
  self:emit("if %s then %s[#%s+1]=%s[%s] end", self:condition(node.test), kept, kept, loop.items,
    index)
  self.scope = self.scope.parent
  self.fn.locals = before
  self:emit("end %s,%s=%s,#%s end", loop.items, loop.n, kept, kept)
end

--- The loop over the Lua expression `source`.
function Compiler:loop(node, source, recursion)
  local id, loops = self:fresh "", self.fn.loops
  if #loops >= MAX_LOOPS then
    lexer.fail(node.line, "loops are nested deeper than %d levels", MAX_LOOPS)
  end
  local loop = { id = id, i = "i" .. id, n = "c" .. id, items = "s" .. id, object = "L" .. id,
    used = recursion ~= nil }
  local direct = not self.fn.outer and self.fn.captures == 0
  self:emit("do local %s,%s=iter(%s)", loop.items, loop.n, source)
  if node.test then self:loop_filter(node, loop) end
  local head = self:reserve()
  if direct then self:emit("local b%s=begin(%s,n)", id, loop.items) end
  if node.otherwise then self:emit("local e%s=true", id) end -- until an iteration completes
  self:emit("for %s=1,%s do tick()", loop.i, loop.n)
  local each = self:reserve()
  if direct then self:emit("if b%s then note(b%s,%s[%s],n) end", id, id, loop.items, loop.i) end
  self:emit "do"
  loops[#loops + 1] = loop
  local before = self.fn.locals
  local vars = self:targets(node.target, ("%s[%s]"):format(loop.items, loop.i))
  self:open_scope(node.body, vars, { loop = loop })
  self:body(node.body)
  self:close_scope()
  self.fn.locals = before
  loops[#loops] = nil
  if node.otherwise then self:emit("e%s=false", id) end
  self:emit "end"
  if loop.continues then self:emit("::q%s::", id) end
  self:emit "end"
  if direct then self:emit("if b%s then finish(b%s,n) end", id, id) end
  if loop.used then
    self.code[head] = ("local %s=loop(%s,%s,%s) "):format(loop.object, loop.items, loop.n,
      recursion or "0")
    self.code[each] = ("%s.i=%s "):format(loop.object, loop.i)
  end
  if node.otherwise then
    self:emit("if e%s then", id)
    self:open_scope(node.otherwise)
    self:body(node.otherwise)
    self:close_scope()
    self:emit "end"
  end
  self:emit "end"
end

statements["for"] = function(self, node)
  if not node.recursive then return self:loop(node, (self:expr(node.items))) end
  local f = self:fresh "r"
  local source = (self:expr(node.items))
  self:emit("do local %s %s=function(value,depth)", f, f)
  self:open_function()
  self:loop(node, "value", "depth," .. f)
  self:emit "return cat(o,n) end"
  self:close_function()
  self:put(("%s(%s,0)"):format(f, source))
  self:emit "end"
end

statements["break"] = function(self, node)
  if #self.fn.loops == 0 then lexer.fail(node.line, "'break' outside a loop") end
  self:emit "do break end"
end

statements["continue"] = function(self, node)
  local loop = self.fn.loops[#self.fn.loops]
  if not loop then lexer.fail(node.line, "'continue' outside a loop") end
  loop.continues = true
  self:emit("goto q%s", loop.id)
end

-- ---- macros -------------------------------------------------------------------------------------

--- The Lua expression that creates a macro.
function Compiler:macro(node, name)
  if #node.params > MAX_PARAMS then
    lexer.fail(node.line, "a macro has %d parameters, the limit is %d", #node.params, MAX_PARAMS)
  end
  local id = self:fresh ""
  local names, quoted, vars = {}, {}, {}
  for i, param in ipairs(node.params) do
    names[i], quoted[i] = ("p%s_%d"):format(id, i), quote(param)
    vars[param] = names[i]
  end
  local head = self:reserve()
  local special = { id = id }
  local soft = self.soft
  self.soft = 0
  self:open_function()
  local outer = self.scope
  self.scope = { parent = outer, vars = vars, special = special }
  for i, param in ipairs(node.params) do
    local default = node.defaults[i] and (self:expr(node.defaults[i]))
      or ("unprovided(%s)"):format(quote(param))
    self:emit("if %s==nil then %s=%s end", names[i], names[i], default)
  end
  self:open_scope(node.body, vars, { special = special })
  self:body(node.body)
  self:close_scope()
  self.scope, self.soft = outer, soft
  self:emit "return cat(o,n) end)"
  self:close_function()
  for _, word in ipairs { "caller", "kwargs", "varargs" } do
    names[#names + 1] = SPECIAL[word] .. id
  end
  self.code[head] = ("macro(%s,{%s},%s,%s,%s,function(%s) "):format(quote(name),
    table.concat(quoted, ","),
    tostring(special.caller == true), tostring(special.kwargs == true),
    tostring(special.varargs == true),
    table.concat(names, ","))
end

function statements.macro(self, node)
  self:emit("%s=", self.scope.vars[node.name])
  self:macro(node, node.name)
end

function statements.call_block(self, node)
  local name = self:fresh "t"
  self:emit("do local %s=", name)
  self:macro(node, "caller")
  self:put("str(" .. self:call(node.call, '"caller",' .. name) .. ")")
  self:emit "end"
end

-- ---- the whole template -------------------------------------------------------------------------

local names = {}
for name in pairs(runtime.words) do names[#names + 1] = name end
table.sort(names)
local HEADER = "local W,F,T,FE,TE=... local " .. table.concat(names,
  ",") .. "=W." .. table.concat(names, ",W.")

local function functions_of(entries)
  local out = {}
  for name, entry in pairs(entries) do out[name] = entry[1] end
  return out
end
local F, T = functions_of(filters), functions_of(tests)

--- The Lua source of a template. Raises a Failure with its line.
function compile.source(source)
  local self = setmetatable({ code = {}, line = 1, count = 0, outer = {}, outer_count = 0,
    lookups = {}, soft = 0 }, Compiler)
  local tree = parser.parse(source)
  self:emit(HEADER .. " return function(get)")
  local lookups = self:reserve()
  self:open_function()
  self:open_scope(tree)
  self:body(tree)
  self:close_scope()
  self:emit "return o,n end"
  self:close_function()
  self.code[lookups] = (self.outer_count > MAX_LOCALS and "local X0={} " or "")
    .. table.concat(self.lookups)
  return table.concat(self.code)
end

--- The function that renders a template: it takes a lookup of variables and returns the pieces of
--- text and their number.
function compile.chunk(source)
  if #source > MAX_SOURCE then
    lexer.fail(1, "the template has %d bytes, the limit is %d", #source, MAX_SOURCE)
  end
  local code = compile.source(source)
  local chunk, why = load(code, runtime.CHUNK, "t", {})
  if not chunk then
    local line, what = why:match ":(%d+): (.*)$"
    lexer.fail(tonumber(line) or 1, "the template is too complex (%s)", what or why)
  end
  return chunk(runtime.words, F, T, filters, tests)
end

return compile
