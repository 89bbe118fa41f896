-- mslx.lua - makes C++ of one preprocessed .metal file, and says what Metal would refuse.
--
--   c++ -E ... x.metal | lua5.4 tests/metal/mslx.lua host|cuda|strict NAME > x.cpp
--
-- Only what C++ cannot express is rewritten: attributes go, `threadgroup` arrays become storage of
-- the executor, function constants become variables with a table, `constant` means const, and each
-- kernel gets an entry with the attribute of every parameter. The shims (shim/*.h) do the rest.
-- `host` is compiled and run, `cuda` becomes PTX for NVIDIA's GPUs; `strict` keeps the address
-- spaces and is only checked by clang.
-- Lines keep their numbers, so compilers and reports name the line of the .metal file.
-- Everything reported is an error: exit 1.

local target, module = arg[1], arg[2]
assert(target == "host" or target == "cuda" or target == "strict",
  "mslx: the target is host, cuda or strict")
local source = io.read("a")

-- ---- tokens -------------------------------------------------------------------------------------

local tokens = {}
local failed = false

local function report(token, text)
  failed = true
  io.stderr:write(("%s:%d: %s\n"):format(token.file, token.line, text))
end

local PATTERNS = {
  { "space", "^%s+" },
  { "name", "^[%a_][%w_]*" },
  { "number", "^%.?%d[%w_%.]*[eE][%+%-]%d+[fFhH]?" },
  { "number", "^%.?%d[%w_%.]*" },
  { "string", '^"[^"\n]*"' },
  { "mark", "^%[%[" },
  { "mark", "^%]%]" },
  { "mark", "^." },
}

local function read_tokens()
  local at, line, file = 1, 1, "?"
  while at <= #source do
    local directive = (at == 1 or source:sub(at - 1, at - 1) == "\n") and
                        source:match("^#[^\n]*\n", at)
    local text, kind
    if directive then
      text, kind = directive, "line"
    else
      for _, p in ipairs(PATTERNS) do
        text, kind = source:match(p[2], at), p[1]
        if text then break end
      end
    end
    tokens[#tokens + 1] = { kind = kind, text = text, line = line, file = file }
    local number, name = text:match('^#%s*%a*%s*(%d+)%s+"([^"]*)"')
    if directive and number then
      line, file = tonumber(number), name
    else
      line = line + select(2, text:gsub("\n", ""))
    end
    at = at + #text
  end
end

-- "]]" closes an attribute only where one is open; a[b[i]] has two subscripts.
local function split_brackets()
  local open, out = {}, {}
  for _, t in ipairs(tokens) do
    if t.text == "[[" or t.text == "[" then
      open[#open + 1] = t.text
    elseif t.text == "]" then
      open[#open] = nil
    elseif t.text == "]]" and open[#open] == "[[" then
      open[#open] = nil
    elseif t.text == "]]" then
      open[#open], open[#open - 1] = nil, nil
      out[#out + 1] = { kind = "mark", text = "]", line = t.line, file = t.file }
      t = { kind = "mark", text = "]", line = t.line, file = t.file }
    end
    out[#out + 1] = t
  end
  tokens = out
end

local function blank(t) return t and (t.kind == "space" or t.kind == "line") end
-- The next token that is not blank after i (or before it, with by = -1).
local function beside(i, by)
  by = by or 1
  i = i + by
  while blank(tokens[i]) do i = i + by end
  return i
end
local function next_text(i) local t = tokens[beside(i)]; return t and t.text end

local CLOSES = { ["("] = ")", ["["] = "]", ["{"] = "}", ["[["] = "]]", ["<"] = ">" }
-- The place of the bracket that closes the one at i.
local function closing(i)
  local open, close, depth = tokens[i].text, CLOSES[tokens[i].text], 0
  for j = i, #tokens do
    if tokens[j].text == open then depth = depth + 1 end
    if tokens[j].text == close then depth = depth - 1 end
    if depth == 0 then return j end
  end
  error(("%s:%d: %s is never closed"):format(tokens[i].file, tokens[i].line, open))
end

local function text_of(from, to)
  local parts = {}
  for j = from, to do
    local t = tokens[j]
    parts[#parts + 1] = blank(t) and " " or t.text
  end
  return (table.concat(parts):gsub("%s+", " "):gsub("^ ", ""):gsub(" $", ""))
end

local function set(words)
  local s = {}
  for w in words:gmatch("%S+") do s[w] = true end
  return s
end

-- ---- lint: what Metal refuses or takes to mean something else -----------------------------------

local REFUSED = set [[double goto new delete virtual try catch throw dynamic_cast typeid
  thread_local register union asm wchar_t printf std noexcept long bfloat]]
local SPACES = set "device constant threadgroup thread"
local types = set [[void bool char uchar short ushort int uint ulong float half size_t int8_t
  uint8_t int16_t uint16_t int32_t uint32_t auto unsigned signed uint2 uint3]]

local function lint_number(t)
  local text = t.text
  if text:find("^0[xX]") then return end
  if text:find("[%.eE]") and not text:find("[fFhH]$") then
    report(t, "a floating literal needs an f: it is a float in Metal and a double here: " .. text)
  end
end

-- A pointer or reference whose type has no address space. Walks back over the type.
local function lint_pointer(i)
  local after, j = tokens[beside(i)], beside(i, -1)
  if tokens[j].text == tokens[i].text or after.text == tokens[i].text then return end
  local spaced, type, names, depth = false, nil, 0, 0
  while tokens[j] do
    local u = tokens[j]
    if u.text == ">" then depth = depth + 1
    elseif u.text == "<" and depth > 0 then depth = depth - 1
    elseif u.kind == "name" then
      if SPACES[u.text] then spaced = true
      elseif depth == 0 and u.text ~= "const" then type, names = type or u.text, names + 1 end
    elseif depth == 0 then break end
    j = beside(j, -1)
  end
  local declares = after.kind == "name" or after.text == ")" or after.text == ","
  if type and names == 1 and types[type] and not spaced and declares and
      not SPACES[after.text] then
    report(tokens[i], "a pointer or reference without an address space: " .. type)
  end
end

-- Words of Metal that C lets stand for names.
local RESERVED = set [[half constant device thread threadgroup kernel vertex fragment texture
  sampler bool]]

local function lint_name(i, depth)
  local t, after = tokens[i], tokens[beside(i)]
  local before = tokens[beside(i, -1)]
  if RESERVED[t.text] and (before.text == "." or after.text:find("^[,;=%[]$")) then
    report(t, "a word of Metal as a name: " .. t.text)
  end
  if REFUSED[t.text] then report(t, "not in Metal or not used here: " .. t.text) end
  if t.text == "struct" or t.text == "class" then
    if after.kind == "name" then types[after.text] = true end
    if next_text(beside(i)) == ":" then report(t, "no derived classes") end
  end
  if t.text == "typedef" then
    local j = i
    while tokens[j].text ~= ";" do j = tokens[j].text == "{" and closing(j) + 1 or j + 1 end
    types[tokens[beside(j, -1)].text] = true
  end
  if t.text == "static" and depth > 0 then report(t, "no static variables inside functions") end
  if before and before.text == "." and t.text:find("^[xyzwrgba][xyzwrgba]+$") and
      #t.text <= 4 then
    report(t, "no swizzles: ." .. t.text)
  end
end

local function lint_mark(i)
  local t, before = tokens[i], tokens[beside(i, -1)]
  if t.text == "[" and before and before.kind == "mark" and not before.text:find("[%)%]]") then
    report(t, "no lambdas before Metal 3.2")
  elseif t.text == "(" and next_text(i) == "*" then
    local name = beside(beside(i))
    if tokens[name].kind == "name" and next_text(name) == ")" and
        next_text(beside(name)) == "(" then
      report(t, "no function pointers")
    end
  elseif t.text == "*" or t.text == "&" then
    lint_pointer(i)
  end
end

local function lint()
  local depth = 0
  for i, t in ipairs(tokens) do
    if t.kind == "number" then lint_number(t)
    elseif t.kind == "name" then lint_name(i, depth)
    elseif t.kind == "mark" then
      lint_mark(i)
      if t.text == "{" then depth = depth + 1 elseif t.text == "}" then depth = depth - 1 end
    end
  end
end

-- Functions that call themselves, over any number of others.
local function lint_recursion()
  local calls, where, i, depth = {}, {}, 1, 0
  local current
  while i <= #tokens do
    local t = tokens[i]
    if t.text == "{" then depth = depth + 1 end
    if t.text == "}" then
      depth = depth - 1
      if depth == 0 then current = nil end
    end
    if t.kind == "name" and next_text(i) == "(" then
      if depth == 0 then
        local body = beside(closing(beside(i)))
        if tokens[body] and tokens[body].text == "{" then
          current = t.text
          calls[current], where[current] = calls[current] or {}, t
        end
      elseif current then
        calls[current][t.text] = true
      end
    end
    i = i + 1
  end
  local state = {}
  local function visit(name)
    state[name] = "open"
    for callee in pairs(calls[name]) do
      if state[callee] == "open" then report(where[callee], "no recursion: " .. callee) end
      if calls[callee] and not state[callee] then visit(callee) end
    end
    state[name] = "done"
  end
  for name in pairs(calls) do if not state[name] then visit(name) end end
end

-- ---- kernels: parameters and their attributes ---------------------------------------------------

-- The attributes of positions: kind in the shim, and whether it may have several components.
local POSITIONS = {
  thread_position_in_grid = { "GRID", true },
  threadgroup_position_in_grid = { "GROUP", true },
  thread_position_in_threadgroup = { "THREAD", true },
  threads_per_threadgroup = { "THREADS", true },
  threadgroups_per_grid = { "GROUPS", true },
  thread_index_in_threadgroup = { "INDEX" },
  simdgroup_index_in_threadgroup = { "SIMDGROUP" },
  thread_index_in_simdgroup = { "LANE" },
  simdgroups_per_threadgroup = { "SIMDGROUPS" },
}

-- Slots are named by the enum of kernels/metal/args.h, which the shim includes.
local function parameter(from, to)
  local attribute, where
  for j = from, to do
    if tokens[j].text == "[[" then
      where, attribute = j, text_of(j + 1, closing(j) - 1)
      break
    end
  end
  local p = { at = tokens[beside(from - 1)], text = text_of(from, (where or to + 1) - 1) }
  p.name = p.text:match("([%a_][%w_]*)$") or "?"
  if not attribute then
    report(p.at, "a parameter of a kernel without an attribute: " .. p.text)
    return nil
  end
  for j = where, closing(where) do tokens[j].gone = true end
  local slot = attribute:match("^buffer%s*%((.*)%)$")
  if slot then
    p.kind, p.index = "BUFFER", slot
    p.space = p.text:match("%f[%w]device%f[%W]") or p.text:match("%f[%w]constant%f[%W]")
    p.writes = p.space == "device" and not p.text:find("%f[%w]const%f[%W]")
    if not p.space then report(p.at, "a buffer without an address space: " .. p.text) end
  elseif POSITIONS[attribute] then
    p.kind, p.index = POSITIONS[attribute][1], "0"
    p.wide = POSITIONS[attribute][2] and (p.text:match("(%d)%s+[%w_]+$") or "1")
    if not p.text:find("^u[is]") then report(p.at, "positions are uint or ushort: " .. p.text) end
  else
    report(p.at, "an unknown attribute: " .. attribute)
    return nil
  end
  return p
end

local function parameters(open)
  local list, from, depth, close = {}, open + 1, 0, closing(open)
  for j = open + 1, close do
    local text = tokens[j].text
    if CLOSES[text] then depth = depth + 1 end
    if (text == ")" or text == "]" or text == "]]" or text == ">") and j < close then
      depth = depth - 1
    end
    if (text == "," and depth == 0) or j == close then
      list[#list + 1] = parameter(from, j - 1)
      from = j + 1
    end
  end
  local used, wide = {}, nil
  for _, p in ipairs(list) do
    if p.kind == "BUFFER" then
      if used[p.index] then report(p.at, "slot " .. p.index .. " is used twice") end
      used[p.index] = true
    elseif p.wide then
      if wide and wide ~= p.wide then
        report(p.at, "positions of one kernel have the same number of components")
      end
      wide = p.wide
    end
  end
  return list
end

-- ---- the rewriting ------------------------------------------------------------------------------

local out = {}
local function emit(text) out[#out + 1] = text end
local kernels, order, instances, constants, arrays = {}, {}, {}, {}, 0

-- template [[host_name("x")]] kernel decltype(f<1>) f<1>;
local function instance(i)
  local j = i
  while tokens[j].text ~= ";" do j = j + 1 end
  local text = text_of(i, j)
  local name, call = text:match('host_name%s*%(%s*"([^"]*)"%s*%)'), text:match("decltype%s*(%b())")
  if name and call then
    instances[#instances + 1] = { name = name, call = call:sub(2, -2), at = tokens[i] }
  else
    report(tokens[i], "an instantiation that is not understood: " .. text)
  end
  for k = i, j do
    if tokens[k].text:find("\n") then emit((tokens[k].text:gsub("[^\n]", ""))) end
  end
  return j + 1
end

-- constant uint NAME [[function_constant(n)]];
local function function_constant(i)
  local j = i
  while tokens[j].text ~= ";" do j = j + 1 end
  local type, name, index =
    text_of(i, j):match("^constant (%w+) ([%w_]+) %[%[function_constant%((.-)%)%]%]")
  if not name then return nil end
  if type ~= "uint" then report(tokens[i], "function constants are uint here: " .. name) end
  constants[#constants + 1] = { name = name, index = index }
  emit(("MSL_FUNCTION_CONSTANT(%s)"):format(name))
  return j
end

-- threadgroup T name[n]; inside a kernel. nil: a pointer, whose qualifier just goes or stays.
local function group_array(i, inside)
  local j = i
  while tokens[j].text ~= ";" and tokens[j].text ~= "=" and tokens[j].text ~= ")" do j = j + 1 end
  local type, name, size = text_of(i, j):match("^threadgroup ([%w_]+) ([%w_]+)(%b[]);$")
  if not type then
    if text_of(i, j):find("^threadgroup [%w_ ]+%b[]") then
      report(tokens[i], "an array of a threadgroup is declared alone and without values")
    end
    return nil
  end
  if not inside then report(tokens[i], "arrays of a threadgroup belong to a kernel: " .. name) end
  emit(("MSL_GROUP_ARRAY(%d, %s, %s, %s);"):format(arrays, type, name, size:sub(2, -2)))
  arrays = arrays + 1
  return j + 1
end

local function begins_statement(i)
  local before = tokens[beside(i, -1)]
  return not before or before.text:find("^[;{}]$") ~= nil
end

local function check_program_scope(i)
  local j = i
  while tokens[j] and not tokens[j].text:find("^[;={(]$") do j = j + 1 end
  local words = text_of(i, j)
  local stop = tokens[j] and tokens[j].text
  -- (a single name ends a typedef)
  if (stop == ";" or stop == "=") and words:find("^[%w_]+ [%w_]") and
      not words:find("%f[%w]constant%f[%W]") and
      not words:find("^using") and not words:find("^typedef") and not words:find("^template") and
      not words:find("^struct") and not words:find("^static_assert") and
      not words:find("^enum") then
    report(tokens[i], "a variable of the program must be constant: " .. words)
  end
end

local function rewrite()
  local i, depth, kernel_at = 1, 0, nil
  while i <= #tokens do
    local t, skip = tokens[i], nil
    if t.gone then
      skip = i + 1
      if t.text:find("\n") then emit("\n") end
    elseif t.kind == "name" then
      if depth == 0 and begins_statement(i) then check_program_scope(i) end
      if t.text == "template" and next_text(i) == "[[" then
        skip = instance(i)
      elseif t.text == "kernel" then
        emit("MSL_KERNEL")
        skip = i + 1
        local name = beside(beside(i))
        local templated = tokens[beside(i, -1)].text == ">"
        local k = { name = tokens[name].text, template = templated, at = t }
        k.list = parameters(beside(name))
        kernels[k.name] = k
        order[#order + 1] = k
        kernel_at = depth
      elseif t.text == "constant" and depth == 0 and begins_statement(i) then
        skip = function_constant(i)
        if not skip then
          emit("MSL_PROGRAM_CONSTANT")
          skip = i + 1
        end
      elseif t.text == "threadgroup" and begins_statement(i) and depth > 0 then
        skip = group_array(i, kernel_at)
      end
      if not skip and SPACES[t.text] and target ~= "strict" then
        local constant_too = t.text == "constant" and tokens[beside(i, -1)].text ~= "const" and
                               next_text(i) ~= "const"
        emit(constant_too and "const" or "")
        skip = i + 1
      end
    elseif t.kind == "line" then
      local number, name = t.text:match('^#%s*(%d+)%s+("[^"]*")')
      emit(number and ("#line %s %s\n"):format(number, name) or "\n")
      skip = i + 1
    elseif t.text == "{" then
      depth = depth + 1
    elseif t.text == "}" then
      depth = depth - 1
      if kernel_at == depth then kernel_at = nil end
    elseif t.text == "[[" then
      report(t, "an attribute where none is expected: " .. text_of(i, closing(i)))
    end
    if not skip then
      emit(t.text)
      skip = i + 1
    end
    i = skip
  end
end

-- ---- output -------------------------------------------------------------------------------------

local function write_host_entries()
  io.write(('\n#line 1 "entries of %s"\n'):format(module))
  io.write("static const msl_constant module_constants[] = {\n")
  for _, c in ipairs(constants) do
    io.write(('  {"%s", %s, &%s},\n'):format(c.name, c.index, c.name))
  end
  io.write("  {nullptr, -1, nullptr}};\n")
  for n, one in ipairs(instances) do
    local list, tags = kernels[one.call:match("^[%w_]+")].list, {}
    io.write(("static const msl_argument arguments_%d[] = {\n"):format(n))
    for j, p in ipairs(list) do
      tags[j] = ("metal::tag<metal::%s, %s>"):format(p.kind, p.index)
      if p.kind == "BUFFER" then
        local element = ("metal::element_of<&%s, %d>"):format(one.call, j - 1)
        io.write(('  {"%s", %s, %s, alignof(%s), sizeof(%s)},\n'):format(
          p.name, p.index, p.writes and "true" or "false", element, element))
      end
    end
    io.write('  {nullptr, -1, false, 0, 0}};\n')
    io.write(('static const msl_kernel kernel_%d = {"%s",\n'):format(n, one.name))
    io.write(("  metal::entry<&%s, %s>::run,\n"):format(one.call, table.concat(tags, ", ")))
    io.write(("  arguments_%d, module_constants};\n"):format(n))
  end
  io.write("}\n")
  io.write(('extern "C" void msl_init_%s(void);\n'):format(module))
  io.write(('extern "C" void msl_init_%s(void) {\n'):format(module))
  for n = 1, #instances do
    io.write(("  msl_register(&module_%s::kernel_%d);\n"):format(module, n))
  end
  io.write("}\n")
end

-- A function of the module for each instance: its name is that of the kernel.
local function write_cuda_entries()
  io.write(('\n#line 1 "entries of %s"\n'):format(module))
  for _, one in ipairs(instances) do
    local tags = {}
    for j, p in ipairs(kernels[one.call:match("^[%w_]+")].list) do
      tags[j] = ("metal::tag<metal::%s, %s>"):format(p.kind, p.index)
    end
    io.write(('extern "C" MSL_ENTRY void %s(metal::arguments a) {\n'):format("msl_" .. one.name))
    io.write(("  metal::entry<&%s, %s>::run(a);\n}\n"):format(one.call, table.concat(tags, ", ")))
  end
  io.write("}\n")
end

read_tokens()
split_brackets()
lint()
lint_recursion()
rewrite()
for _, k in ipairs(order) do
  if not k.template then instances[#instances + 1] = { name = k.name, call = k.name, at = k.at } end
end
for _, one in ipairs(instances) do
  if not kernels[one.call:match("^[%w_]+")] then report(one.at, "no such kernel: " .. one.call) end
end

if failed then os.exit(1) end
io.write(('#include "tests/metal/shim/%s.h"\n'):format(target))
if target ~= "strict" then
  io.write(("namespace module_%s {\nusing namespace metal;\n"):format(module))
  io.write(table.concat(out))
  if target == "host" then write_host_entries() else write_cuda_entries() end
else
  io.write(table.concat(out))
  -- Every instance is named, so that the bodies of templates are checked too.
  for n, one in ipairs(instances) do
    io.write(("\nvoid *used_%d = (void *)&%s;"):format(n, one.call))
  end
  io.write("\n")
end
