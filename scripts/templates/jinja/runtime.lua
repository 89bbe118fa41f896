-- runtime: the functions that a compiled template calls, and running it.
local access = require "templates.jinja.access"
local clock = require "templates.jinja.clock"
local operators = require "templates.jinja.operators"
local strings = require "templates.jinja.strings"
local text = require "templates.jinja.text"
local values = require "templates.jinja.values"
local fail, state, truth, null = values.fail, values.state, values.truth, values.null
local Macro, Loop, Namespace, Func = values.Macro, values.Loop, values.Namespace, values.Func

local runtime = { CHUNK = "=chat template" }

-- ---- words of a chunk ---------------------------------------------------------------------------

local words = {
  none = null, truth = truth, str = text.str, tick = values.tick, list = values.list,
  tuple = values.tuple,
  undefined = values.undefined, big = values.big, cat = strings.cat, attr = access.attr,
  item = access.item, slice = access.slice,
  call = access.call, method = access.method, spread = access.spread, named = access.named,
  invoke = access.invoke,
}
for _, name in ipairs { "add", "sub", "mul", "div", "floordiv", "mod", "pow", "neg", "pos", "eq",
  "lt", "le", "gt", "ge",
  "contains", "tilde" } do
  words[name] = operators[name]
end
runtime.words = words

--- Stores the value of a condition in a slot.
function words.keep(slots, i, v)
  slots[i] = v
  return v
end

--- Stores any value in a slot; returns whether it is true.
function words.hold(slots, i, v)
  slots[i] = v
  return truth(v)
end

--- The value of `a and b` when it is not b: the slot's value if that is false, else false.
function words.held(slots, i)
  local v = slots[i]
  return not truth(v) and v
end

function words.sum(total, ...)
  local add = operators.add
  for i = 1, select("#", ...) do total = add(total, (select(i, ...))) end
  return total
end

function words.dict(list)
  local d = values.dict()
  for i = 1, #list, 2 do values.put(d, list[i], list[i + 1]) end
  return d
end

function words.iter(v)
  local items = values.items(v)
  return items, #items
end

function words.unpack(v, n)
  local items = values.items(v)
  if #items ~= n then fail("expected %d values to unpack, got %d", n, #items) end
  return items
end

function words.setfield(ns, name, v)
  if values.kind(ns) ~= "namespace" then
    fail("only attributes of a namespace can be set, got %s", values.typename(ns))
  end
  if name:sub(1, 1) == "_" then
    fail("a namespace's attribute cannot begin with '_': '%s'", name)
  end
  values.put(ns.dict, name, v)
end

function words.loop(items, n, depth0, recurse)
  return setmetatable({ items = items, n = n, i = 0, depth0 = depth0, recurse = recurse }, Loop)
end

function words.macro(name, params, caller, kwargs, varargs, fn)
  return setmetatable({ name = name, params = params, caller = caller, kwargs = kwargs,
    varargs = varargs, fn = fn, special = caller or kwargs or varargs }, Macro)
end

function words.unprovided(name)
  return values.undefined(("parameter '%s' was not provided"):format(name))
end
function words.unknown(kind, name) fail("no %s named '%s'", kind, name) end

-- ---- where messages begin -----------------------------------------------------------------------

--- A loop of the main text begins. Returns a record if boundaries are wanted and this is the
--- outermost loop over messages.
function words.begin(items, n)
  local record = state.record
  if not record or record.inside then return nil end
  local first = items[1]
  if type(first) ~= "table" or not first.message then return nil end
  record.inside = true
  return { start = n }
end

--- An iteration begins: the text so far belongs to the messages before this one.
function words.note(b, item, n)
  b[#b + 1] = n
  b[#b + 1] = type(item) == "table" and item.message or 0
end

--- The loop has ended. A loop without output was a search and gives no boundaries.
function words.finish(b, n)
  local record = state.record
  record.inside = false
  if n == b.start then return end
  local list = record.boundaries
  for i = 1, #b, 2 do list[#list + 1] = { pieces = b[i], messages = b[i + 1] - 1 } end
  list[#list + 1] = { pieces = n, messages = b[#b] }
end

function words.generated(from, to)
  local record = state.record
  if record then record.generations[#record.generations + 1] = { from, to } end
end

-- ---- global functions ---------------------------------------------------------------------------

local globals = {}
runtime.globals = globals

local function define(name, fn) globals[name] = setmetatable({ name = name, fn = fn }, Func) end

local function integer(v)
  local n = operators.number(v)
  if math.type(n) ~= "integer" then fail("range needs integers, got %s", values.typename(v)) end
  return n
end

local MAX_RANGE = 100000

define("range", function(_, from, to, step)
  if from == nil then fail "range needs a number" end
  from, to, step = integer(from), to and integer(to), step and integer(step) or 1
  if not to then from, to = 0, from end
  if step == 0 then fail "range: the step cannot be zero" end
  local count = step > 0 and (to - from + step - 1) // step or (from - to - step - 1) // -step
  if count > MAX_RANGE then fail("a range has %d numbers, the limit is %d", count, MAX_RANGE) end
  local out = { from = from, to = to, step = step }
  for i = 1, count do out[i] = from + (i - 1) * step end
  values.tick(math.max(count, 0))
  return setmetatable(out, values.Range)
end)

--- dict(mapping or pairs, **named)
local function make_dict(kw, source)
  local d = values.dict()
  if source ~= nil and values.kind(source) == "dict" then
    for _, k in ipairs(values.open(source).keys) do values.put(d, k, source.map[values.hash(k)]) end
  elseif source ~= nil then
    if values.is_undefined(source) then fail(source.message) end
    for _, pair in ipairs(values.items(source)) do
      local items = words.unpack(pair, 2)
      values.put(d, items[1], items[2])
    end
  end
  for i = 1, kw and #kw or 0, 2 do values.put(d, kw[i], kw[i + 1]) end
  return d
end

define("dict", make_dict)
define("namespace", function(kw, source)
  local d = make_dict(kw, source)
  for _, k in ipairs(d.keys) do
    if not values.is_str(k) or strings.text(k):sub(1, 1) == "_" then
      fail "names in a namespace are strings that do not begin with '_'"
    end
  end
  return setmetatable({ dict = d }, Namespace)
end)

define("raise_exception", function(_, message)
  fail("%s", strings.text(text.str(message == nil and "raise_exception was called" or message)))
end)

define("strftime_now", function(_, format)
  if format == nil or not values.is_str(format) then fail "strftime_now wants a format" end
  return strings.from(format, clock.format(strings.text(format), state.now))
end)

define("joiner", function(_, separator)
  local used = false
  return setmetatable({ name = "joiner", fn = function()
    local out = used and (separator or ", ") or ""
    used = true
    return out
  end }, Func)
end)

define("cycler", function(_, ...)
  local items, at = { ... }, 1
  if #items == 0 then fail "cycler needs something to cycle through" end
  local function refuse() fail "a cycler cannot be called" end
  local object = setmetatable({ name = "cycler", fn = refuse, fields = {} }, Func)
  local fields = object.fields
  fields.current = items[1]
  fields.next = setmetatable({ name = "next", fn = function()
    local item = items[at]
    at = at % #items + 1
    fields.current = items[at]
    return item
  end }, Func)
  fields.reset = setmetatable({ name = "reset", fn = function()
    at, fields.current = 1, items[1]
    return null
  end }, Func)
  return object
end)

-- ---- running ------------------------------------------------------------------------------------

--- The lookup of variables: trusted ones, the caller's, then the functions above.
local function lookup(variables, trusted, doubt)
  return function(name)
    local v = trusted and trusted[name]
    if v ~= nil then return values.wrap(v, false) end
    v = variables[name]
    if v ~= nil then
      v = values.wrap(v, doubt)
      if name == "messages" and type(v) == "table" then v.messages = true end
      return v
    end
    return globals[name] or values.unknown(name)
  end
end

local MAX_LEVELS = 2000 -- the deepest value (200 levels) is printed by three functions per level

--- Adds the template's line to an error.
local function locate(err)
  if getmetatable(err) ~= values.Failure then
    err = setmetatable({ message = tostring(err) }, values.Failure)
  end
  for level = 2, MAX_LEVELS do
    local info = debug.getinfo(level, "Sl")
    if not info then break end
    if info.source == runtime.CHUNK and info.currentline > 0 then
      err.line = info.currentline
      break
    end
  end
  return err
end

local function byte_ends(pieces, n)
  local ends, at = { [0] = 0 }, 0
  for i = 1, n do
    values.rest(i)
    at = at + #strings.text(pieces[i])
    ends[i] = at
  end
  return ends
end

--- Boundaries in bytes, strictly increasing; of equal ones the last is kept.
local function boundaries(list, ends)
  local out = {}
  for _, b in ipairs(list) do
    local at = ends[b.pieces]
    while #out > 0 and out[#out].at >= at do out[#out] = nil end
    out[#out + 1] = { at = at, messages = b.messages }
  end
  return out
end

--- Alternating spans that cover the text: {from, to, trusted}.
local function spans_of(s)
  local t = strings.text(s)
  local marks, out, at = type(s) == "table" and s.marks or {}, {}, 1
  for k = 1, #marks, 2 do
    values.rest(k - 1)
    if marks[k] > at then out[#out + 1] = { at, marks[k] - 1, true } end
    out[#out + 1] = { marks[k], marks[k + 1], false }
    at = marks[k + 1] + 1
  end
  if at <= #t then out[#out + 1] = { at, #t, true } end
  return out
end

--- Runs a compiled chunk. options: tokens (trusted variables), now, spans, limits. Returns the text
--- and, with spans, a table of spans, boundaries and generations; or nil and a Failure.
function runtime.run(chunk, variables, options)
  values.begin(options.limits)
  state.now = options.now
  state.record = options.spans and { boundaries = {}, generations = {} } or nil
  local info
  local ok, result = xpcall(function()
    local pieces, n = chunk(lookup(variables, options.tokens, options.spans))
    local whole = strings.cat(pieces, n)
    if state.record then
      local ends, record = byte_ends(pieces, n), state.record
      info = { spans = spans_of(whole), boundaries = boundaries(record.boundaries, ends),
        generations = {} }
      for i, g in ipairs(record.generations) do
        info.generations[i] = { ends[g[1]] + 1, ends[g[2]] }
      end
    end
    return strings.text(whole)
  end, locate)
  state.record = nil
  if ok then return result, info end
  if getmetatable(result) ~= values.Failure then -- out of memory in the message handler itself
    result = setmetatable({ message = tostring(result) }, values.Failure)
  end
  return nil, result
end

return runtime
