-- values: the values of a template.
--
-- Strings, numbers and booleans are Lua's, None is json.null. Everything else is a table whose
-- metatable is one of the classes below, with the name of its Python type as `kind`. A template
-- cannot change lists and dicts (the reference's sandbox refuses it as well), so JSON values are
-- converted lazily: a list or dict from JSON holds the original as `raw` until it is first read,
-- and as `src` afterwards.
--
-- When a caller wants spans, strings that came with the messages are `Str` tables: text and marks,
-- where marks is a flat list of byte ranges {from, to, from, to, …} that are not trusted. A Str
-- always has marks (except for the results of `safe`, see strings.lua), so renderings without spans
-- only see Lua strings.
--
-- An integer beyond 64 bits is a `Big`: its digits. It can be printed and compared, but not
-- computed with.
--
-- One rendering runs at a time; its limits are in `state`. In a task, a long rendering yields to
-- the event loop, and another one may start meanwhile: `state` is saved and restored around the
-- yield.
local async = require "lib.async"
local perigee = require "perigee"
local json = perigee.json
local null = json.null
local mathtype = math.type

local values = { null = null }

local function class(kind, name)
  return { kind = kind, name = name or kind }
end

local Str, List, Tuple, Dict = class "str", class "list", class "tuple", class "dict"
local Range, View, Gen = class "range", class("view", "dict_items"), class("generator", "generator")
local Big = class "int"
local Undefined, Namespace = class("undefined", "Undefined"), class("namespace", "Namespace")
local Macro, Func, Loop = class("macro", "Macro"), class("func", "function"),
  class("loop", "LoopContext")
values.Str, values.List, values.Tuple, values.Dict, values.Range, values.View = Str, List, Tuple,
  Dict, Range, View
values.Gen, values.Undefined, values.Namespace, values.Macro = Gen, Undefined, Namespace, Macro
values.Func, values.Loop, values.Big = Func, Loop, Big

-- ---- errors and limits --------------------------------------------------------------------------

--- An error of a template: message, and line, which is added where the error is caught.
local Failure = { __tostring = function(e) return e.message end }
values.Failure = Failure

--- Raises an error of the template. Arguments as of string.format.
local function fail(text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  error(setmetatable({ message = text }, Failure), 0)
end
values.fail = fail

local state = {}
values.state = state

-- Steps between two reads of the clock, since a read costs as much as several. A step of a template
-- that joins texts takes up to 50 us, so these take 3 ms at most.
local STRETCH = 64

--- Yields to the event loop when this task has run long enough.
local function pause()
  state.pause = state.steps - STRETCH
  if not async.is_late() then return end
  local saved = {}
  for name, value in pairs(state) do saved[name] = value end
  async.sleep(0)
  for name in pairs(state) do state[name] = nil end
  for name, value in pairs(saved) do state[name] = value end
end

--- Counts work: one step per loop iteration, per item that a filter visits, per call.
local function tick(n)
  local left = state.steps - (n or 1)
  state.steps = left
  if left < 0 then fail("the template runs too long: more than %d steps", state.max_steps) end
  if left < state.pause then pause() end
end
values.tick = tick

--- Lets the loop turn in the middle of long work that is not counted: at every STRETCH-th item.
local function turn(i)
  if i % STRETCH == 0 and state.steps then pause() end
end
values.turn = turn
values.rest = turn

--- Counts text that is searched: one step per 256 bytes. Callers pass more bytes for dearer
--- operations.
function values.scan(bytes)
  if bytes >= 256 then tick(bytes >> 8) end
end

--- Counts a search for `needle` bytes in `bytes` bytes; the worst case compares each with each.
function values.search(bytes, needle)
  if bytes > 0 then values.scan(bytes + (bytes * needle >> 6)) end
end

--- Counts bytes of text that is created.
local function charge(n)
  if n > state.max_output then
    fail("the text is too long: more than %d bytes", state.max_output)
  end
  local left = state.bytes - n
  state.bytes = left
  if left < 0 then
    fail("the template produces too much text: more than %d bytes in all", state.max_bytes)
  end
end
values.charge = charge

--- Starts a rendering.
function values.begin(limits)
  state.max_steps, state.steps, state.pause = limits.steps, limits.steps, limits.steps - STRETCH
  state.max_output, state.max_depth, state.depth = limits.output, limits.depth, 0
  state.max_bytes = limits.output * 64 -- of all intermediate texts together
  state.bytes = state.max_bytes
  state.record = nil
end

local CALL = 10 -- steps per call of a macro

--- Calls f one level deeper; raises at the limit.
function values.deeper(f, ...)
  local depth = state.depth + 1
  tick(CALL)
  if depth > state.max_depth then
    fail("macro or loop calls are nested deeper than %d levels", state.max_depth)
  end
  state.depth = depth
  local result = f(...)
  state.depth = depth - 1
  return result
end

-- ---- kinds --------------------------------------------------------------------------------------

--- An integer by its decimal digits (and sign).
function values.big(digits)
  return setmetatable({ digits = digits, float = tonumber(digits) * 1.0 }, Big)
end

local MAX_DIGITS = 4300 -- Python's limit

--- The integer with these decimal digits (and sign).
function values.integer(digits)
  if #digits > MAX_DIGITS then
    fail("an integer has %d digits, the limit is %d", #digits, MAX_DIGITS)
  end
  local sign, rest = digits:match "^([+-]?)0*(%d+)$"
  digits = (sign == "-" and "-" or "") .. rest
  local n = tonumber(digits)
  return mathtype(n) == "integer" and n or values.big(digits)
end

--- str, int, float, bool, none, list, tuple, dict, range, view, generator, undefined, namespace,
--- macro, func, loop
local function kind(v)
  local t = type(v)
  if t == "string" then return "str" end
  if t == "table" then return getmetatable(v).kind end
  if t == "number" then return mathtype(v) == "integer" and "int" or "float" end
  return t == "boolean" and "bool" or "none"
end
values.kind = kind

--- The type's name as Python prints it.
function values.typename(v)
  if v == null then return "NoneType" end
  if type(v) == "table" then return v.typename or getmetatable(v).name end
  return kind(v)
end

local function is_str(v)
  return type(v) == "string" or type(v) == "table" and getmetatable(v) == Str
end
values.is_str = is_str

function values.is_undefined(v) return type(v) == "table" and getmetatable(v) == Undefined end

-- ---- undefined ----------------------------------------------------------------------------------

--- The value of a missing name. Any use other than printing, testing and looping raises the
--- message.
function values.undefined(text) return setmetatable({ message = text }, Undefined) end

function values.unknown(name)
  return setmetatable({ message = ("'%s' is undefined"):format(name), name = name }, Undefined)
end

--- The undefined value of obj.name or obj[name].
function values.missing(obj, name)
  local what = obj == null and "'None'" or "'" .. values.typename(obj) .. " object'"
  local shown = is_str(name) and "attribute '" .. (type(name) == "string" and name or name.text)
    .. "'"
    or "element " .. (type(name) == "number" and tostring(name) or "of that kind")
  return setmetatable({ message = what .. " has no " .. shown }, Undefined)
end

-- ---- lists and dicts ----------------------------------------------------------------------------

function values.list(t) return setmetatable(t, List) end
function values.tuple(t) return setmetatable(t, Tuple) end

--- A one-shot iterator over a list of items.
function values.gen(t) return setmetatable({ items = t }, Gen) end

--- The result of dict.keys(), values() and items(): a list with the name of its type.
function values.view(name, t)
  t.typename = name
  return setmetatable(t, View)
end

local MAX_DEPTH = 200

--- The key that a value has in the map of a dict.
local function hash(k, depth)
  local t = type(k)
  if t == "string" or k == null then return k end
  if t == "boolean" then return k and 1 or 0 end
  if t == "number" then
    if k ~= k then fail("NaN cannot be a key") end
    return k
  end
  local mt = getmetatable(k)
  if mt == Str then return k.text end
  if mt == Tuple then
    local parts, bytes = {}, 0
    depth = (depth or 0) + 1
    if depth > MAX_DEPTH then fail("a value is nested deeper than %d levels", MAX_DEPTH) end
    for i = 1, #k do
      local h = hash(k[i], depth)
      parts[i] = type(h) .. ":" .. tostring(h)
      bytes = bytes + #parts[i]
    end
    tick(#k)
    charge(4 * bytes)
    return "\0(" .. table.concat(parts, ",") .. ")"
  end
  if mt == Big then return "\0int " .. k.digits end
  if mt == List or mt == Dict or mt == View then
    fail("a %s cannot be a key", k.typename or mt.name)
  end
  return mt == Undefined and Undefined or k -- one undefined equals another
end
values.hash = hash

--- An empty dict, filled with values.put before a template sees it.
function values.dict() return setmetatable({ keys = {}, map = {} }, Dict) end

function values.put(dict, key, value)
  local h = hash(key)
  if dict.map[h] == nil then dict.keys[#dict.keys + 1] = key end
  dict.map[h] = value
end

-- ---- JSON values --------------------------------------------------------------------------------

-- Words of messages that templates build special tokens from ('<|' + role + '|>'): trusted.
local ROLES = { system = true, user = true, assistant = true, tool = true, developer = true,
  model = true, ipython = true,
  observation = true, ["function"] = true, tool_call = true, tool_response = true,
  latest_reminder = true }
local TYPES = { text = true, image = true, image_url = true, video = true, audio = true,
  input_text = true,
  input_audio = true, input_image = true, thinking = true, reasoning = true, ["function"] = true }
local WORDS = { role = ROLES, type = TYPES }

local function taint(s)
  if s == "" then return s end
  return setmetatable({ text = s, marks = { 1, #s } }, Str)
end

--- Converts a JSON value for a template. With `doubt` its strings are not trusted.
local function wrap(v, doubt)
  local t = type(v)
  if t == "string" then return doubt and taint(v) or v end
  if t == "table" then
    local mt = getmetatable(v)
    if mt and mt.kind then return v end
    if json.is_array(v) then return setmetatable({ raw = v, doubt = doubt }, List) end
    return setmetatable({ raw = v, doubt = doubt }, Dict)
  end
  if t == "userdata" and json.digits(v) then return values.big(json.digits(v)) end
  if t == "function" or t == "thread" or t == "userdata" and v ~= null then
    error(("a template variable cannot be a %s"):format(t), 0)
  end
  return v
end
values.wrap = wrap

local function open_list(list)
  local raw, doubt, messages = list.raw, list.doubt, list.messages
  for i = 1, #raw do
    turn(i)
    local v = wrap(raw[i], doubt)
    if messages and type(v) == "table" and getmetatable(v) == Dict then v.message = i end
    list[i] = v
  end
  list.raw, list.src = nil, not doubt and raw or nil
end

local function sorted_keys(raw)
  local keys = {}
  for k in pairs(raw) do
    if type(k) ~= "string" then
      error(("a template variable has the key %s, keys must be strings"):format(tostring(k)), 0)
    end
    keys[#keys + 1] = k
    turn(#keys)
  end
  if not getmetatable(raw) then table.sort(keys) end
  return keys
end

local function open_dict(dict)
  local raw, doubt = dict.raw, dict.doubt
  local keys, map = sorted_keys(raw), {}
  for i, k in ipairs(keys) do
    turn(i)
    local v = raw[k]
    local words = doubt and WORDS[k]
    map[k] = wrap(v, doubt and not (words and words[v]))
    if doubt then keys[i] = taint(k) end
  end
  dict.keys, dict.map, dict.raw, dict.src = keys, map, nil, not doubt and raw or nil
end

--- The dict, with `keys` and `map` filled.
local function open(dict)
  if dict.raw then open_dict(dict) end
  return dict
end
values.open = open

--- The list, with its items filled.
local function opened(list)
  if list.raw then open_list(list) end
  return list
end
values.opened = opened

-- ---- iterating ----------------------------------------------------------------------------------

--- The characters of a string; set by strings.lua.
values.characters = nil

--- The items of an iterable value, as a list that must not be changed; nil if it is not iterable.
local function try_items(v)
  if type(v) == "string" then return values.characters(v) end
  if type(v) ~= "table" then return nil end
  local mt = getmetatable(v)
  if mt == List then return opened(v) end
  if mt == Tuple or mt == View or mt == Range then return v end
  if mt == Dict then return open(v).keys end
  if mt == Gen then
    local items = v.items
    v.items = {}
    return items
  end
  if mt == Undefined then return {} end
  if mt == Str then return values.characters(v) end
end
values.try_items = try_items

function values.items(v)
  local items = try_items(v)
  if not items then fail("'%s' object is not iterable", values.typename(v)) end
  return items
end

--- Python's len; nil if the value has none.
function values.try_len(v)
  if type(v) == "string" then return values.length(v) end
  if type(v) ~= "table" then return nil end
  local mt = getmetatable(v)
  if mt == List then return v.raw and #v.raw or #v end
  if mt == Tuple or mt == View or mt == Range then return #v end
  if mt == Dict then return #open(v).keys end
  if mt == Undefined then return 0 end
  if mt == Str then return values.length(v) end
  if mt == Loop then return v.n end
end

function values.len(v)
  local n = values.try_len(v)
  if not n then fail("object of type '%s' has no length", values.typename(v)) end
  return n
end

--- Python's bool.
function values.truth(v)
  local t = type(v)
  if t == "boolean" then return v end
  if t == "string" then return v ~= "" end
  if t == "number" then return v ~= 0 end
  if t == "table" then
    local mt = getmetatable(v)
    if mt == Dict then return #open(v).keys > 0 end
    if mt == List then return (v.raw and #v.raw or #v) > 0 end
    if mt == Undefined then return false end
    if mt == Str then return v.text ~= "" end
    if mt == Tuple or mt == View or mt == Range then return #v > 0 end
    return true
  end
  return false -- None
end

return values
