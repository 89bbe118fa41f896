-- lexer: turns the source of a template into tokens { type, value, line }.
--
-- Types: data, variable_begin, variable_end, block_begin, block_end, name, string, integer, float,
-- operator, eof. White space control happens here: '-' removes all white space on its side. Chat
-- templates are rendered with trim_blocks and lstrip_blocks, so the newline after a block and the
-- spaces before it on its line are also removed, unless it has a '+'.
local strings = require "templates.jinja.strings"
local values = require "templates.jinja.values"
local SPACES, skip_left, skip_right = strings.SPACES, strings.skip_left, strings.skip_right

local lexer = {}

--- Raises a syntax error with its line.
function lexer.fail(line, text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  error(setmetatable({ message = text, line = line }, values.Failure), 0)
end

-- Longest first.
local OPERATORS = { "//", "**", "==", "!=", ">=", "<=",
  "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<",
  "=", ".", ":", "|", ",", ";" }
local BY_FIRST = {}
for _, op in ipairs(OPERATORS) do
  local list = BY_FIRST[op:sub(1, 1)] or {}
  list[#list + 1] = op
  BY_FIRST[op:sub(1, 1)] = list
end
local OPENS = { ["("] = ")", ["["] = "]", ["{"] = "}" }
local CLOSES = { [")"] = true, ["]"] = true, ["}"] = true }

local ESCAPES = { n = "\n", t = "\t", r = "\r", a = "\a", b = "\b", f = "\f", v = "\v",
  ["\\"] = "\\", ["'"] = "'",
  ['"'] = '"', ["\n"] = "" }
local HEX = { x = 2, u = 4, U = 8 }

--- The value of the inside of a string literal, with Python's escapes.
local function unescape(t, line)
  if not t:find("\\", 1, true) then return t end
  local out, i = {}, 1
  while true do
    local at = t:find("\\", i, true)
    if not at then break end
    out[#out + 1] = t:sub(i, at - 1)
    local c = t:sub(at + 1, at + 1)
    local octal = t:match("^[0-7][0-7]?[0-7]?", at + 1)
    if octal then
      out[#out + 1], i = utf8.char(tonumber(octal, 8)), at + 1 + #octal
    elseif HEX[c] then
      local digits = t:sub(at + 2, at + 1 + HEX[c])
      local code = #digits == HEX[c] and digits:match "^%x+$" and tonumber(digits, 16)
      if not code or code > 0x10FFFF then
        lexer.fail(line, "'\\%s' needs %d hexadecimal digits of a character", c, HEX[c])
      end
      i = at + 2 + HEX[c]
      local low = code >= 0xD800 and code < 0xDC00 and t:match("^\\u([dD][c-fC-F]%x%x)", i)
      if low then
        code, i = 0x10000 + ((code - 0xD800) << 10) + (tonumber(low, 16) - 0xDC00), i + 6
      end
      if code >= 0xD800 and code < 0xE000 then
        lexer.fail(line, "a string has half of a surrogate pair")
      end
      out[#out + 1] = utf8.char(code)
    else
      out[#out + 1], i = ESCAPES[c] or "\\" .. c, at + 2
    end
  end
  out[#out + 1] = t:sub(i)
  return table.concat(out)
end

--- The byte after the string literal that starts at i.
local function string_end(t, i, line)
  local quote, at = t:sub(i, i), i + 1
  while true do
    at = t:find("[\\" .. quote .. "]", at)
    if not at then lexer.fail(line, "this string is not closed") end
    if t:sub(at, at) == quote then return at + 1 end
    at = at + 2
  end
end

--- The byte after the digits (of a set, with single underscores between them) at i; nil if there
--- are none.
local function digits_end(t, i, set)
  local stop = t:match("^" .. set .. "+()", i)
  while stop do
    local more = t:match("^_" .. set .. "+()", stop)
    if not more then break end
    stop = more
  end
  return stop
end

local BASES = { x = { 16, "%x" }, o = { 8, "[0-7]" }, b = { 2, "[01]" } }

--- The number at i: its type, its value, the byte after it.
local function number_at(t, i)
  local base = t:sub(i, i) == "0" and BASES[t:sub(i + 1, i + 1):lower()]
  local after = base and digits_end(t, t:match("^_?()", i + 2), base[2])
  if after then
    return "integer", tonumber(t:sub(i + 2, after - 1):gsub("_", ""), base[1]), after
  end
  local stop = digits_end(t, i, "%d")
  local whole = stop
  if t:sub(i - 1, i - 1) ~= "." and t:sub(stop, stop) == "." then -- in a.1.2 the 1.2 is not a float
    stop = digits_end(t, stop + 1, "%d") or stop
  end
  local exponent = t:match("^[eE][+-]?()", stop)
  stop = exponent and digits_end(t, exponent, "%d") or stop
  if stop > whole then return "float", tonumber((t:sub(i, stop - 1):gsub("_", ""))) * 1.0, stop end
  if t:sub(i, i) == "0" then stop = digits_end(t, i, "0") end -- 007 is not one number, as in Python
  return "integer", values.integer((t:sub(i, stop - 1):gsub("_", ""))), stop
end

-- ---- the scanner --------------------------------------------------------------------------------

local Scanner = {}
Scanner.__index = Scanner

function Scanner:push(kind, value)
  self[#self + 1] = { type = kind, value = value, line = self.line }
end

--- Moves to byte `to` and counts lines. `newline` is the next line end, so that a long line is
--- searched once.
function Scanner:move(to)
  while self.newline < to do
    self.line = self.line + 1
    self.newline = self.text:find("\n", self.newline + 1, true) or math.huge
  end
  self.at = to
end

--- Data up to `to`, without the white space that the tag at `to` removes. sign: the tag's; lstrip:
--- it is a block or a comment.
function Scanner:data(to, sign, lstrip)
  local t = self.text:sub(self.at, to)
  if sign == "-" then
    t = t:sub(1, skip_left(t, #t, SPACES))
  elseif sign ~= "+" and lstrip then
    local line = skip_left(t, #t, SPACES)
    local newline = t:match "^.*()\n" or 0
    if newline > line then line = newline end
    if line == newline and (newline > 0 or self.line_start) and line < #t then
      t = t:sub(1, line)
    end
  end
  if t ~= "" then self:push("data", t) end
  self:move(to + 1)
end

--- Moves to byte i, after the end of a tag with this sign. trim: the newline after a block is
--- removed.
function Scanner:pass_tag(i, sign, trim)
  local t = self.text
  if sign == "-" then
    i = skip_right(t, i, SPACES)
  elseif sign ~= "+" and trim and t:sub(i, i) == "\n" then
    i = i + 1
  end
  self.line_start = t:sub(i - 1, i - 1) == "\n"
  self:move(i)
end

function Scanner:comment(i)
  local close = self.text:find("#}", i, true)
  if not close then lexer.fail(self.line, "this comment is not closed, expected '#}'") end
  local sign = close > i and self.text:sub(close - 1, close - 1) or ""
  self:pass_tag(close + 2, sign, true)
end

--- {% raw %} at i (after its sign); false if it is another block.
function Scanner:raw(i)
  local t = self.text
  local sign, after = t:match("^%s*raw%s*(%-?)%%}()", i)
  if not sign then return false end
  local began = self.line
  self:pass_tag(after, sign, false)
  local from = self.at
  while true do
    local at = t:find("{%", from, true)
    if not at then lexer.fail(began, "this raw block is not closed, expected 'endraw'") end
    local before, last, stop = t:match("^{%%([-+]?)%s*endraw%s*([-+]?)%%}()", at)
    if stop then
      self:data(at - 1, before, true)
      self:pass_tag(stop, last, true)
      return true
    end
    from = at + 2
  end
end

local ENDS = { variable = "}}", block = "%}" }

--- Does the tag end here? Returns its sign and the byte after it.
function Scanner:tag_end(kind)
  local t, i = self.text, self.at
  if t:sub(i, i + 1) == ENDS[kind] then return "", i + 2 end
  local sign = t:sub(i, i)
  if (sign == "-" or sign == "+" and kind == "block") and t:sub(i + 1, i + 2) == ENDS[kind] then
    return sign, i + 3
  end
end

--- One token of an expression.
function Scanner:token(stack)
  local t, i = self.text, self.at
  local c = t:sub(i, i)
  if c:find "%d" then
    local kind, value, after = number_at(t, i)
    self:push(kind, value)
    self:move(after)
  elseif c:find "[%a_\x80-\xff]" then
    local name = t:match("^[%w_\x80-\xff]+", i)
    self:push("name", name)
    self:move(i + #name)
  elseif c == "'" or c == '"' then
    local after = string_end(t, i, self.line)
    self:push("string", unescape(t:sub(i + 1, after - 2), self.line))
    self:move(after)
  else
    local op
    for _, candidate in ipairs(BY_FIRST[c] or {}) do
      if t:sub(i, i + #candidate - 1) == candidate then
        op = candidate
        break
      end
    end
    if not op then
      lexer.fail(self.line, "unexpected character '%s'", t:match("^" .. utf8.charpattern, i) or c)
    end
    if OPENS[op] then
      stack[#stack + 1] = OPENS[op]
    elseif CLOSES[op] then
      local wanted = table.remove(stack)
      if wanted ~= op then
        lexer.fail(self.line, wanted and "expected '%s', got '%s'" or "unexpected '%s'",
          wanted or op, op)
      end
    end
    self:push("operator", op)
    self:move(i + #op)
  end
end

--- The inside of a {{ }} or {% %}.
function Scanner:tag(kind)
  local stack, t, began = {}, self.text, self.line
  self:push(kind .. "_begin")
  while true do
    self:move(skip_right(t, self.at, SPACES))
    if self.at > #t then
      lexer.fail(began, "this tag is not closed, expected '%s'", stack[#stack] or ENDS[kind])
    end
    local sign, after
    if #stack == 0 then sign, after = self:tag_end(kind) end
    if sign then
      self:push(kind .. "_end")
      return self:pass_tag(after, sign, kind == "block")
    end
    self:token(stack)
  end
end

--- The next tag after the current byte: its position and its kind.
function Scanner:next_tag()
  local at = self.at
  while true do
    at = self.text:find("{", at, true)
    if not at then return nil end
    local c = self.text:sub(at + 1, at + 1)
    if c == "{" or c == "%" or c == "#" then return at, c end
    at = at + 1
  end
end

--- Tokens of a template. Raises a Failure with its line.
function lexer.scan(source)
  source = source:gsub("\r\n?", "\n"):gsub("\n$", "")
  if not utf8.len(source) then
    lexer.fail(1, "the template is not valid UTF-8 at byte %d", select(2, utf8.len(source)))
  end
  local newline = source:find("\n", 1, true) or math.huge
  local s = setmetatable({ text = source, at = 1, line = 1, newline = newline, line_start = true },
    Scanner)
  while true do
    local at, kind = s:next_tag()
    if not at then break end
    local sign = source:match("^[-+]", at + 2) or ""
    s:data(at - 1, sign, kind ~= "{")
    local inside = at + 2 + #sign
    if kind == "#" then
      s:comment(inside)
    elseif kind == "%" and s:raw(inside) then -- luacheck: ignore 542
    else
      s:move(inside)
      s:tag(kind == "{" and "variable" or "block")
    end
  end
  s:data(#source, "", false)
  s:push("eof")
  return s
end

return lexer
