-- pretty: any Lua value as readable text: fits the width, marks cycles, cuts long values.
local term = require "ui.term"

local DEFAULTS = { width = 80, depth = 6, items = 100, string = 2000, indent = "  " }
local WORDS = "and break do else elseif end false for function goto if in local nil not or repeat "
  .. "return then true until while"
local KEYWORDS = {}
for word in WORDS:gmatch "%a+" do KEYWORDS[word] = true end

local ESCAPES = { ["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ["\\"] = "\\\\", ['"'] = '\\"',
  ["\0"] = "\\0" }

local function escape(c) return ESCAPES[c] or ("\\x%02x"):format(c:byte()) end

--- A string as a Lua literal; invalid UTF-8 and control characters become escapes.
local function quote(s, limit)
  local cut = #s > limit and limit or nil
  if cut then
    -- Do not cut inside a character.
    while cut > 0 and (s:byte(cut + 1) or 0) & 0xC0 == 0x80 do cut = cut - 1 end
    s = s:sub(1, cut)
  end
  local out, at = {}, 1
  while at <= #s do
    local ok, bad = utf8.len(s, at)
    local good = ok and #s or bad - 1
    out[#out + 1] = s:sub(at, good):gsub('[%c"\\]', escape)
    if not ok then out[#out + 1] = ("\\x%02x"):format(s:byte(bad)) end
    at = (ok and #s or bad) + 1
  end
  return '"' .. table.concat(out) .. '"' .. (cut and "…" or "")
end

local function number(n)
  if math.type(n) == "integer" then return tostring(n) end
  if n ~= n then return "nan" end
  if n == math.huge or n == -math.huge then return n > 0 and "inf" or "-inf" end
  local short = ("%.14g"):format(n)
  if tonumber(short) ~= n then short = ("%.17g"):format(n) end
  return short:find "[%.eE]" and short or short .. ".0"
end

local Printer = {}
Printer.__index = Printer

--- A value that is not a table, in one line.
function Printer:scalar(v)
  local kind = type(v)
  if kind == "string" then return self.paint("green", quote(v, self.string)) end
  if kind == "number" then return self.paint("cyan", number(v)) end
  if kind == "boolean" or kind == "nil" then return self.paint("yellow", tostring(v)) end
  local ok, s = pcall(tostring, v)
  return self.paint("magenta", ok and s or kind .. " (its __tostring fails)")
end

function Printer:key(k)
  if type(k) == "string" and k:find "^[%a_][%w_]*$" and not KEYWORDS[k] then return k end
  if type(k) == "table" then return "[" .. self:short(k) .. "]" end
  return "[" .. self:scalar(k) .. "]"
end

--- A table as a key: its tostring only.
function Printer.short(_, t)
  local ok, s = pcall(tostring, t)
  return ok and s or "table"
end

local ORDER = { number = 1, string = 2, boolean = 3 }

local function before(a, b)
  local ta, tb = type(a), type(b)
  if ta ~= tb then
    local oa, ob = ORDER[ta] or 9, ORDER[tb] or 9
    return oa < ob or oa == ob and ta < tb
  end
  if ta == "number" or ta == "string" then return a < b end
  return tostring(a) < tostring(b)
end

--- The keys outside the list part, sorted, and how many there are. Of a huge table only the first
--- 10 * limit keys are sorted.
local function other_keys(t, n, limit)
  local keys, count = {}, 0
  for k in next, t do
    if not (math.type(k) == "integer" and k >= 1 and k <= n) then
      count = count + 1
      if count <= 10 * limit then keys[#keys + 1] = k end
    end
  end
  table.sort(keys, before)
  return keys, count
end

--- The texts of a table's entries.
function Printer:entries(t, depth)
  local out, n = {}, rawlen(t)
  for i = 1, math.min(n, self.items) do out[i] = self:value(rawget(t, i), depth + 1) end
  local keys, count = other_keys(t, n, self.items)
  local room = self.items - #out
  for i = 1, math.min(#keys, room) do
    out[#out + 1] = self:key(keys[i]) .. " = " .. self:value(rawget(t, keys[i]), depth + 1)
  end
  local left = n + count - #out
  if left > 0 then out[#out + 1] = self.paint("dim", ("… %d more"):format(left)) end
  return out
end

function Printer:table(t, depth)
  if self.open[t] then return self.paint("dim", "<cycle>") end
  if next(t) == nil then return "{}" end
  if depth >= self.depth then return self.paint("dim", "{…}") end
  self.open[t] = true
  local entries = self:entries(t, depth)
  self.open[t] = nil
  local total, lines = 4, false
  for _, e in ipairs(entries) do
    total = total + term.width(e) + 2
    lines = lines or e:find("\n", 1, true) ~= nil
  end
  local fits = not lines and total + depth * #self.indent <= self.width
  if fits then return "{ " .. table.concat(entries, ", ") .. " }" end
  local pad = self.indent:rep(depth + 1)
  local body = table.concat(entries, ",\n" .. pad)
  return "{\n" .. pad .. body .. "\n" .. self.indent:rep(depth) .. "}"
end

function Printer:value(v, depth)
  if type(v) ~= "table" then return self:scalar(v) end
  local meta = getmetatable(v)
  if type(meta) == "table" and rawget(meta, "__tostring") then return self:scalar(v) end
  return self:table(v, depth)
end

--- The text of a value. Options: width, depth, items (shown of a table), string (longest, in
--- bytes), indent, paint.
local function format(v, options)
  local p = setmetatable({ open = {} }, Printer)
  for k, default in pairs(DEFAULTS) do p[k] = options and options[k] or default end
  p.paint = options and options.paint or term.painter(false)
  return p:value(v, 0)
end

return { format = format }
