-- format: Python's two kinds of string formatting: 'a %s' % b and 'a {}'.format(b).
local strings = require "templates.jinja.strings"
local text = require "templates.jinja.text"
local values = require "templates.jinja.values"
local fail, typename = values.fail, values.typename

local format = { str = text.str }

local MAX_WIDTH = 100000

-- ---- numbers ------------------------------------------------------------------------------------

local function as_number(v)
  if type(v) == "boolean" then return v and 1 or 0 end
  return type(v) == "number" and v or nil
end

--- A float as C prints it, with exponents of at least two digits and Python's inf and nan.
local function float_text(v, spec)
  if v ~= v then return "nan" end
  if v == math.huge then return "inf" end
  if v == -math.huge then return "-inf" end
  local precision = math.min(spec.precision or 6, 99)
  return ("%" .. (spec.alternate and "#" or "") .. "." .. precision .. spec.type):format(v)
end

local function digits_of(v, base, upper)
  if v == math.mininteger then
    return digits_of(-(v // base), base, upper) .. digits_of(-(v % -base), base, upper)
  end
  local out, n = {}, math.abs(v)
  repeat
    local d = n % base
    out[#out + 1] = string.char(d < 10 and 48 + d or (upper and 55 or 87) + d)
    n = n // base
  until n == 0
  return table.concat(out):reverse()
end

local BASES = { x = 16, X = 16, o = 8, b = 2, d = 10 }
local PREFIXES = { x = "0x", X = "0X", o = "0o", b = "0b", d = "" }

--- The sign and the digits of an integer.
local function int_parts(v, spec)
  if type(v) == "table" then
    if spec.type ~= "d" then fail("%s does not fit in 64 bits", v.digits) end
    local sign, digits = v.digits:match "^(%-?)(.*)$"
    return sign, "", digits
  end
  local prefix = spec.alternate and PREFIXES[spec.type] or ""
  return v < 0 and "-" or "", prefix, digits_of(v, BASES[spec.type], spec.type == "X")
end

local function grouped(digits, mark, size)
  local whole, rest = digits:match "^(%x*)(.*)$"
  whole = whole:reverse():gsub(("%x"):rep(size), "%0" .. mark):reverse()
  if whole:sub(1, 1) == mark then whole = whole:sub(2) end
  return whole .. rest
end

--- The sign to show; numbers that are not negative get the requested one.
local function sign_of(sign, spec)
  return sign == "" and (spec.sign == "+" or spec.sign == " ") and spec.sign or sign
end

--- Pads sign, prefix and digits to the requested width.
local function place(sign, prefix, digits, spec)
  local body = sign .. prefix .. digits
  local missing = (spec.width or 0) - #body
  if missing <= 0 then return body end
  if spec.zero then return sign .. prefix .. ("0"):rep(missing) .. digits end
  return nil, body
end

-- ---- % ------------------------------------------------------------------------------------------

local function percent_number(v, spec)
  local n = as_number(v)
  local kind = spec.type
  if values.kind(v) == "int" and not n then
    n = (kind == "i" or kind == "u" or BASES[kind]) and v or v.float
  end
  if not n then fail("%%%s format: a number is required, not %s", kind, typename(v)) end
  local sign, prefix, digits
  if kind == "d" or kind == "i" or kind == "u" or BASES[kind] then
    if type(n) == "number" and math.type(n) ~= "integer" then
      if BASES[kind] and kind ~= "d" then
        fail("%%%s format: an integer is required, not float", kind)
      end
      n = math.tointeger(n < 0 and math.ceil(n) or math.floor(n))
        or fail "the number is too large for %d"
    end
    spec.type = BASES[kind] and kind or "d"
    sign, prefix, digits = int_parts(n, spec)
    if spec.precision then digits = ("0"):rep(spec.precision - #digits) .. digits end
  else
    sign, digits = float_text(n * 1.0, spec):match "^(%-?)(.*)$"
    prefix = ""
  end
  local whole, body = place(sign_of(sign, spec), prefix, digits, spec)
  return whole or strings.pad(body, spec.width, { side = spec.left and "left" or "right" })
end

local function percent_text(v, spec)
  local s
  if spec.type == "c" then
    s = math.type(v) == "integer" and v >= 0 and v < 0x110000 and utf8.char(v) or values.is_str(v)
      and strings.len(v) == 1 and v
      or fail "%c requires a character"
  else
    s = spec.type == "s" and text.str(v) or text.repr(v)
  end
  if spec.precision then s = strings.range(s, 0, math.min(spec.precision, strings.len(s))) end
  return strings.pad(s, spec.width or 0, { side = spec.left and "left" or "right" })
end

local function width_of(digits)
  local n = digits ~= "" and tonumber(digits) or nil
  if n and n > MAX_WIDTH then fail("width or precision %s is too large", digits) end
  return n
end

--- Reads a conversion after a '%' at byte i; returns the spec and the byte after it.
local function percent_spec(t, i)
  local name, flags, width, precision, kind, after
  if t:sub(i, i) == "(" then
    local close = t:find(")", i, true) or fail "incomplete format key"
    name, i = t:sub(i + 1, close - 1), close + 1
  end
  flags, width, i = t:match("^([-+ #0]*)([%d*]*)()", i)
  precision, after = t:match("^%.([%d*]*)()", i)
  kind, after = t:match("^[hlL]?([diouxXeEfFgGcrsa%%])()", after or i)
  if not kind then fail("unsupported format character in '%s'", t:sub(i - 1, i + 3)) end
  return { name = name, width = width, precision = precision, type = kind, after = after,
    left = flags:find("-", 1, true) ~= nil, zero = flags:find("0", 1, true) ~= nil,
    alternate = flags:find("#", 1, true) ~= nil,
    sign = flags:find("+", 1, true) and "+" or flags:find(" ", 1, true) and " " or nil }
end

--- s % args; whole: the right operand, for named fields.
function format.percent(s, args, whole)
  local t, pieces, from, used = strings.text(s), {}, 1, 0
  local is_map = type(whole) == "table" and getmetatable(whole) == values.Dict
  local function next_value()
    used = used + 1
    local v = args[used]
    if v == nil then fail "not enough arguments for format string" end
    return v
  end
  local function size(word)
    if word ~= "*" then return width_of(word) end
    local n = next_value()
    if math.type(n) ~= "integer" or n > MAX_WIDTH or n < -MAX_WIDTH then
      fail "* wants an integer"
    end
    return n
  end
  while true do
    local at = t:find("%", from, true)
    if not at then break end
    local spec = percent_spec(t, at + 1)
    pieces[#pieces + 1] = strings.sub(s, from, at - 1)
    spec.width = size(spec.width)
    if spec.width and spec.width < 0 then spec.width, spec.left = -spec.width, true end
    if spec.precision then spec.precision = size(spec.precision) or 0 end
    if spec.type == "%" then
      pieces[#pieces + 1] = "%"
    else
      local v
      if spec.name then
        if not is_map then fail "format requires a mapping" end
        v = values.open(whole).map[spec.name]
        if v == nil then fail("format: no key '%s'", spec.name) end
      else
        v = next_value()
      end
      if spec.left then spec.zero = false end
      local textual = spec.type == "s" or spec.type == "r" or spec.type == "a" or spec.type == "c"
      pieces[#pieces + 1] = (textual and percent_text or percent_number)(v, spec)
    end
    from = spec.after
  end
  local class = type(whole) == "table" and getmetatable(whole)
  local lenient = is_map or class == values.List or class == values.Range
    or class == values.Undefined
  if used < #args and not lenient then
    fail "not all arguments converted during string formatting"
  end
  pieces[#pieces + 1] = strings.sub(s, from)
  return strings.cat(pieces)
end

-- ---- {} -----------------------------------------------------------------------------------------

local ALIGN = { ["<"] = "left", [">"] = "right", ["^"] = "center", ["="] = "number" }

local function brace_spec(t)
  local spec, i = {}, 1
  local first = t:match(utf8.charpattern) or ""
  if ALIGN[t:sub(#first + 1, #first + 1)] and first ~= "" then
    spec.fill, spec.align, i = first, ALIGN[t:sub(#first + 1, #first + 1)], #first + 2
  elseif ALIGN[t:sub(1, 1)] then
    spec.align, i = ALIGN[t:sub(1, 1)], 2
  end
  local sign, alternate, zero, width, mark, rest = t:match("^([-+ ]?)z?(#?)(0?)(%d*)([,_]?)(.*)$",
    i)
  local precision, kind = rest:match "^%.(%d+)(%a?%%?)$"
  if not precision then kind = rest:match "^(%a?%%?)$" end
  if not kind then fail("invalid format specifier '%s'", t) end
  if zero ~= "" and spec.align then spec.fill = spec.fill or "0" end
  spec.sign, spec.alternate, spec.zero = sign ~= "" and sign or nil, alternate ~= "",
    zero ~= "" and not spec.align
  spec.width, spec.mark, spec.precision = width_of(width), mark ~= "" and mark or nil,
    precision and width_of(precision)
  spec.type = kind
  return spec
end

local function brace_float(v, spec)
  local kind = spec.type
  if kind == "%" then
    spec.type, spec.precision = "f", spec.precision or 6
    return float_text(v * 100.0, spec) .. "%"
  end
  if kind == "" then
    if not spec.precision then return text.float(v * 1.0) end
    spec.type = "g"
    local s = float_text(v * 1.0, spec)
    return s:find "[.e]" and s or s .. ".0"
  end
  if kind == "n" then spec.type = "g" end
  if not ("eEfFgGn"):find(kind, 1, true) then
    fail("unknown format code '%s' for a number", kind)
  end
  return float_text(v * 1.0, spec)
end

local function brace_number(v, spec)
  local sign, prefix, digits
  local kind = spec.type
  if kind == "c" then
    if math.type(v) ~= "integer" or v < 0 or v > 0x10FFFF then
      fail("unknown format code 'c' for %s", text.str(v))
    end
    return format.aligned(utf8.char(v), spec, "right")
  end
  if values.kind(v) == "int" and (kind == "" or kind == "n" or BASES[kind]) then
    if kind == "" or kind == "n" then spec.type = "d" end
    if spec.precision then fail "precision is not allowed for an integer" end
    sign, prefix, digits = int_parts(v, spec)
  elseif BASES[kind] then
    fail("unknown format code '%s' for a float", kind)
  else
    sign, digits = brace_float(v, spec):match "^(%-?)(.*)$"
    prefix = ""
  end
  if spec.mark then
    digits = grouped(digits, spec.mark, (kind == "x" or kind == "X" or kind == "b" or kind == "o")
      and 4 or 3)
  end
  if spec.align == "number" and not spec.fill then spec.zero = false end
  sign = sign_of(sign, spec)
  local whole, body = place(sign, prefix, digits, spec)
  if whole then return whole end
  if spec.align == "number" then
    local width = spec.width - #sign - #prefix
    digits = strings.pad(digits, width, { side = "right", fill = spec.fill })
    return strings.cat { sign, prefix, digits }
  end
  return format.aligned(body, spec, "right")
end

--- Pads to the width; when centering, an odd character goes to the right.
function format.aligned(s, spec, default)
  local side = spec.align or default
  local missing = (spec.width or 0) - strings.len(s)
  if missing <= 0 then return s end
  local left = side == "right" and missing or side == "center" and missing // 2 or 0
  local fill = spec.fill or spec.zero and "0" or " "
  return strings.cat { strings.times(fill, left), s, strings.times(fill, missing - left) }
end

local function brace_value(v, spec_text)
  if spec_text == "" then return text.str(v) end
  local spec = brace_spec(spec_text)
  if values.is_str(v) then
    if spec.type ~= "" and spec.type ~= "s" then
      fail("unknown format code '%s' for a str", spec.type)
    end
    if spec.sign then fail "a sign is not allowed in the format of a str" end
    if spec.precision then v = strings.range(v, 0, math.min(spec.precision, strings.len(v))) end
    return format.aligned(strings.unsafe(v), spec, "left")
  end
  local n = as_number(v) or values.kind(v) == "int" and v
  if not n then fail("unsupported format specifier for %s", typename(v)) end
  return brace_number(n, spec)
end

--- Looks up attributes and items of fields such as {0.name} and {0[key]}; set by access.lua.
format.attr, format.item = nil, nil

local function field_value(field, args, kw, auto)
  local name, path = field:match "^([^.%[]*)(.*)$"
  local v
  if name == "" or name:match "^%d+$" then
    local counted = name == ""
    if auto.counted ~= nil and auto.counted ~= counted then
      fail "format: fields with and without a number"
    end
    auto.counted = counted
    local index = counted and auto.n or tonumber(name)
    if name == "" then auto.n = auto.n + 1 end
    v = args[index + 1]
    if v == nil then fail("format: argument %d is missing", index) end
  else
    v = kw[name]
    if v == nil then fail("format: argument '%s' is missing", name) end
  end
  while path ~= "" do
    local attr, after = path:match "^%.([^.%[]+)()"
    if attr then
      v = format.attr(v, attr)
    else
      local key
      key, after = path:match "^%[([^%]]+)%]()"
      if not key then fail("format: malformed field '%s'", field) end
      v = format.item(v, tonumber(key) and math.tointeger(tonumber(key)) or key)
    end
    path = path:sub(after)
  end
  return v
end

--- The position of the brace that closes the field at i; a spec may contain fields.
local function close_of(t, i)
  local depth = 1
  while depth > 0 do
    local at = t:find("[{}]", i)
    if not at then fail "format: expected '}' before the end" end
    depth = depth + (t:sub(at, at) == "{" and 1 or -1)
    i = at + 1
  end
  return i - 1
end

local function fill(s, args, kw, auto)
  local t, pieces, from = strings.text(s), {}, 1
  auto.depth = auto.depth + 1
  if auto.depth > 2 then fail "format: specifiers are nested too deeply" end
  while true do
    local at = t:find("[{}]", from)
    if not at then break end
    pieces[#pieces + 1] = strings.sub(s, from, at - 1)
    local c = t:sub(at, at)
    if t:sub(at + 1, at + 1) == c then
      pieces[#pieces + 1] = strings.sub(s, at, at)
      from = at + 2
    elseif c == "}" then
      fail "format: a single '}' in the text"
    else
      local close = close_of(t, at + 1)
      local inner = t:sub(at + 1, close - 1)
      local field, conversion, spec = inner:match "^([^!:]*)(!?%a?)(.*)$"
      if spec ~= "" and spec:sub(1, 1) ~= ":" then fail("format: malformed field '{%s}'", inner) end
      local v = field_value(field, args, kw, auto)
      if conversion == "!r" or conversion == "!a" then
        v = text.repr(v)
      elseif conversion == "!s" then
        v = text.str(v)
      elseif conversion ~= "" then
        fail("format: unknown conversion '%s'", conversion)
      end
      local inner_spec = spec:sub(2)
      if inner_spec:find("{", 1, true) then
        inner_spec = strings.text(fill(inner_spec, args, kw, auto))
      end
      pieces[#pieces + 1] = brace_value(v, inner_spec)
      from = close + 1
    end
  end
  auto.depth = auto.depth - 1
  pieces[#pieces + 1] = strings.sub(s, from)
  return strings.cat(pieces)
end

--- s.format(args…, **kw); kw is a map by name.
function format.brace(s, args, kw) return fill(s, args, kw, { n = 0, depth = 0 }) end

return format
