-- access: obj.name, obj[key], slices, and calls.
local format = require "templates.jinja.format"
local methods = require "templates.jinja.methods"
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local fail, kind, null = values.fail, values.kind, values.null
local Dict, List, Str, Undefined, Tuple = values.Dict, values.List, values.Str, values.Undefined,
  values.Tuple

local access = {}

-- ---- calls --------------------------------------------------------------------------------------

local function position(entry, name)
  for i = 2, #entry do
    if entry[i] == name then return i - 1 end
  end
end

--- Calls an entry (see methods.lua). kw is a flat list of names and values, or nil.
local function invoke(name, entry, kw, self, ...)
  if entry.raw then return entry[1](self, kw, ...) end
  local n, args = select("#", ...), nil
  if n > #entry - 1 then fail("%s takes at most %d arguments, got %d", name, #entry - 1, n) end
  if kw and #kw > 0 then
    args = { ... }
    for i = 1, #kw, 2 do
      local at = not entry.positional and position(entry, kw[i])
      if not at or args[at] ~= nil then fail("%s takes no argument '%s'", name, kw[i]) end
      args[at] = kw[i + 1]
      n = math.max(n, at)
    end
  end
  for i = 1, entry.min or 0 do
    local v
    if args then v = args[i] else v = select(i, ...) end
    if v == nil then fail("%s needs the argument '%s'", name, entry[i + 1]) end
  end
  if args then return entry[1](self, table.unpack(args, 1, n)) end
  return entry[1](self, ...)
end
access.invoke = invoke

--- Takes a keyword out of a flat list: returns its value and the list without it.
local function take(kw, name)
  for i = 1, #kw, 2 do
    if kw[i] == name then
      local rest = table.move(kw, 1, i - 1, 1, {})
      return kw[i + 1], table.move(kw, i + 2, #kw, i, rest)
    end
  end
  return nil, kw
end

local function to_dict(kw)
  local dict = values.dict()
  for i = 1, #kw, 2 do values.put(dict, kw[i], kw[i + 1]) end
  return dict
end

--- Binds arguments to a macro's parameters and calls it.
local function call_macro(m, kw, ...)
  local n, params = select("#", ...), m.params
  if (not kw or #kw == 0) and not m.special and n <= #params then
    return values.deeper(m.fn, ...)
  end
  local args, count = { ... }, #params
  kw = kw or {}
  local bound = table.move(args, 1, math.min(n, count), 1, {})
  for i = n + 1, count do bound[i], kw = take(kw, params[i]) end
  local caller, varargs, kwargs
  if m.caller then
    caller, kw = take(kw, "caller")
    if caller == nil then caller = values.undefined "no caller defined" end
  end
  if m.kwargs then
    kwargs = to_dict(kw)
  elseif #kw > 0 then
    fail("macro '%s' takes no keyword argument '%s'", m.name, kw[1])
  end
  if m.varargs then
    varargs = values.tuple(table.move(args, count + 1, n, 1, {}))
  elseif n > count then
    fail("macro '%s' takes at most %d arguments, got %d", m.name, count, n)
  end
  bound[count + 1], bound[count + 2], bound[count + 3] = caller, kwargs, varargs
  return values.deeper(m.fn, table.unpack(bound, 1, count + 3))
end

--- f(…, **kw)
function access.call(f, kw, ...)
  values.tick()
  local k = kind(f)
  if k == "macro" then return call_macro(f, kw, ...) end
  if k == "func" then return f.fn(kw, ...) end
  if k == "loop" then
    if not f.recurse then fail "only a loop marked as recursive can be called" end
    return values.deeper(f.recurse, (...), f.depth0 + 1)
  end
  if k == "undefined" then fail(f.message) end
  fail("'%s' object is not callable", values.typename(f))
end

--- Arguments of a call with *list: the other arguments, then the items of the list.
function access.spread(list, ...)
  local args, items = { ... }, values.items(list)
  if #items > 200 then fail("a call has %d arguments, the limit is 200", #items) end
  return table.unpack(table.move(items, 1, #items, #args + 1, args))
end

--- Named arguments of a call with **dict.
function access.named(kw, dict)
  if kind(dict) ~= "dict" then fail("** needs a dict, got %s", values.typename(dict)) end
  kw = kw or {}
  for _, k in ipairs(values.open(dict).keys) do
    if not values.is_str(k) then fail "names of arguments must be strings" end
    kw[#kw + 1] = strings.text(k)
    kw[#kw + 1] = dict.map[values.hash(k)]
  end
  return kw
end

-- ---- attributes ---------------------------------------------------------------------------------

local function bound(obj, name, entry)
  local function call(kw, ...) return invoke(name, entry, kw, obj, ...) end
  return setmetatable({ name = name, fn = call }, values.Func)
end

local function neighbour(step, otherwise)
  return function(l)
    local v = l.items[l.i + step]
    if v == nil then return values.undefined(otherwise) end
    return v
  end
end

local loop_fields = {
  index = function(l) return l.i end,
  index0 = function(l) return l.i - 1 end,
  revindex = function(l) return l.n - l.i + 1 end,
  revindex0 = function(l) return l.n - l.i end,
  first = function(l) return l.i == 1 end,
  last = function(l) return l.i == l.n end,
  length = function(l) return l.n end,
  depth = function(l) return l.depth0 + 1 end,
  depth0 = function(l) return l.depth0 end,
  previtem = neighbour(-1, "there is no previous item"),
  nextitem = neighbour(1, "there is no next item"),
}

methods.loop = {
  cycle = { function(l, _, ...)
    local n = select("#", ...)
    if n == 0 then fail "cycle needs something to cycle through" end
    return (select((l.i - 1) % n + 1, ...))
  end, raw = true },
  changed = { function(l, _, ...)
    local now = values.tuple { ... }
    if l.seen and operators.eq(l.seen, now) then return false end
    l.seen = now
    return true
  end, raw = true },
}

local macro_fields = {
  name = function(m) return m.name end,
  arguments = function(m) return values.tuple(table.move(m.params, 1, #m.params, 1, {})) end,
  catch_kwargs = function(m) return m.kwargs end,
  catch_varargs = function(m) return m.varargs end,
  caller = function(m) return m.caller end,
}

--- An attribute that is not an item: a method or a field, or nil.
local function own(obj, name)
  local k = kind(obj)
  local table_of = methods[k]
  local entry = table_of and table_of[name]
  if entry then return bound(obj, name, entry) end
  local refused = methods.refused[k]
  if refused and refused[name] then return refused[name] end
  if k == "loop" and loop_fields[name] then return loop_fields[name](obj) end
  if k == "macro" and macro_fields[name] then return macro_fields[name](obj) end
  if k == "func" and obj.fields then return obj.fields[name] end
  if k == "namespace" then return obj.dict.map[name] end
  if k == "tuple" and obj.fields then return obj[obj.fields[name]] end
end

local dict_methods, dict_refused = methods.dict, methods.refused.dict

--- obj.name
function access.attr(obj, name)
  if type(obj) == "table" then
    local class = getmetatable(obj)
    if class == Dict and not dict_methods[name] and not dict_refused[name] then
      local v = values.open(obj).map[name]
      if v ~= nil then return v end
      return values.missing(obj, name)
    end
    if class == Undefined then fail(obj.message) end
  end
  local v = own(obj, name)
  if v ~= nil then return v end
  return values.missing(obj, name)
end

--- obj[key]
function access.item(obj, key)
  if values.is_undefined(obj) then fail(obj.message) end
  local class = type(obj) == "table" and getmetatable(obj)
  local key_class = type(key) == "table" and getmetatable(key)
  if key_class == List or key_class == Dict then return values.missing(obj, key) end
  if class == Dict then
    local v = values.open(obj).map[values.hash(key)]
    if v ~= nil then return v end
  elseif math.type(key) == "integer" or type(key) == "boolean" then
    local i = type(key) == "boolean" and (key and 1 or 0) or key
    local v
    if type(obj) == "string" or class == Str then
      v = strings.at(obj, i)
    elseif class == List or class == Tuple or class == values.Range then
      if obj.raw then values.opened(obj) end
      v = obj[i < 0 and #obj + i + 1 or i + 1]
    end
    if v ~= nil then return v end
  end
  if values.is_str(key) then
    local v = own(obj, strings.text(key))
    if v ~= nil then return v end
  end
  return values.missing(obj, key)
end

--- obj.name(…), without creating the bound method.
function access.method(obj, name, kw, ...)
  local entry
  if type(obj) == "string" then
    entry = methods.str[name]
  elseif type(obj) == "table" then
    local m = methods[getmetatable(obj).kind]
    entry = m and m[name]
  end
  if entry then
    values.tick()
    return invoke(name, entry, kw, obj, ...)
  end
  return access.call(access.attr(obj, name), kw, ...)
end

-- ---- slices -------------------------------------------------------------------------------------

local function bound_of(v, what)
  if v == nil or v == null then return nil end
  return methods.want_int(v, "a slice's " .. what)
end

--- Python's slice.indices: first, end (not included), step.
local function indices(n, from, to, step)
  local low, high = step > 0 and 0 or -1, step > 0 and n or n - 1
  local function clip(v, default)
    if v == nil then return default end
    if v < 0 then v = v + n end
    return math.max(low, math.min(v, high))
  end
  return clip(from, step > 0 and low or high), clip(to, step > 0 and high or low)
end

local function pick(items, i, j, step)
  local out, n = {}, 0
  for at = i, step > 0 and j - 1 or j + 1, step do
    n = n + 1
    out[n] = items[at + 1]
  end
  values.tick(n)
  return out
end

--- obj[from:to:step]; omitted parts are nil.
function access.slice(obj, from, to, step)
  from, to, step = bound_of(from, "start"), bound_of(to, "end"), bound_of(step, "step") or 1
  if step == 0 then fail "a slice's step cannot be zero" end
  if values.is_undefined(obj) then fail(obj.message) end
  if values.is_str(obj) then
    local i, j = indices(strings.len(obj), from, to, step)
    if step == 1 then return strings.range(obj, i, j) end
    return strings.cat(pick(values.characters(obj), i, j, step))
  end
  local class = type(obj) == "table" and getmetatable(obj)
  if class ~= List and class ~= Tuple and class ~= values.Range then
    fail("'%s' object cannot be sliced", values.typename(obj))
  end
  values.opened(obj)
  local i, j = indices(#obj, from, to, step)
  local out = pick(obj, i, j, step)
  if class == values.Range then
    out.from, out.to, out.step = obj.from + i * obj.step, obj.from + j * obj.step, obj.step * step
  end
  return setmetatable(out, class)
end

format.attr, format.item = access.attr, access.item
return access
