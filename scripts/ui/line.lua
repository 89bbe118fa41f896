-- line: a line editor without a terminal: it takes keys and writes what to draw.
--
-- The text may have several lines. After each batch of keys it is drawn as a whole: up to its first
-- row, clear, write, place the cursor. So other output can hide it and draw it again. The owner
-- supplies
--   write(bytes), columns(), complete(before) -> candidates, part; is_complete(text),
--   on_line(text), on_end(), history.
local term = require "ui.term"
local texts = require "lib.text"

local Line = {}
Line.__index = Line

local PASTE_END = "\27[201~"
local MOST_SHOWN = 200 -- candidates of a completion: about a screen

-- ---- text ---------------------------------------------------------------------------------------

function Line:set(text, cursor)
  self.text = text
  self.cursor = cursor or #text -- bytes before the cursor
end

function Line:insert(s)
  self.text = self.text:sub(1, self.cursor) .. s .. self.text:sub(self.cursor + 1)
  self.cursor = self.cursor + #s
end

--- Removes the bytes between two positions; `keep`: Ctrl-Y inserts them again.
function Line:cut(from, to, keep)
  if keep and to > from then self.killed = self.text:sub(from + 1, to) end
  self.text = self.text:sub(1, from) .. self.text:sub(to + 1)
  self.cursor = from
end

--- Is this position in the middle of a character?
function Line:inside(at)
  return (self.text:byte(at + 1) or 0) & 0xC0 == 0x80
end

function Line:left_of(at)
  at = at - 1
  while at > 0 and self:inside(at) do at = at - 1 end
  return math.max(at, 0)
end

function Line:right_of(at)
  at = at + 1
  while at < #self.text and self:inside(at) do at = at + 1 end
  return math.min(at, #self.text)
end

function Line:line_start()
  local before = self.text:sub(1, self.cursor)
  return #before - #before:match "[^\n]*$"
end

function Line:line_end()
  local newline = self.text:find("\n", self.cursor + 1, true)
  return newline and newline - 1 or #self.text
end

function Line:word_left()
  local before = self.text:sub(1, self.cursor)
  return #before - #before:match "[%w_\128-\255]*[^%w_\128-\255]*$"
end

function Line:word_right()
  local _, last = self.text:find("^[^%w_\128-\255]*[%w_\128-\255]*", self.cursor + 1)
  return last or #self.text
end

-- ---- history ------------------------------------------------------------------------------------

--- Shows the history entry `step` further. The text being typed counts as the entry after the last.
function Line:recall(step)
  local h = self.owner.history
  local at = (self.at or #h + 1) + step
  if at < 1 or at > #h + 1 then return end
  if not self.at or self.at == #h + 1 then self.draft = self.text end
  self.at = at
  self:set(at == #h + 1 and self.draft or h[at])
end

--- Up and down move inside a text of several lines first.
function Line:vertical(step)
  local start = self:line_start()
  if step < 0 and start == 0 or step > 0 and self:line_end() == #self.text then
    return self:recall(step)
  end
  local column = self.cursor - start
  self.cursor = step < 0 and start - 1 or self:line_end() + 1
  local from = self:line_start()
  self.cursor = math.min(from + column, self:line_end())
  while self.cursor > from and self:inside(self.cursor) do self.cursor = self.cursor - 1 end
end

function Line:search_more(from)
  local s = self.search
  s.at = self.owner.history:search(s.words, from) or s.at
end

-- ---- keys ---------------------------------------------------------------------------------------

function Line:accept()
  if not self.owner.is_complete(self.text) then return self:insert "\n" end
  local text = self.text
  self.cursor = #text
  self:draw()
  self.owner.write "\r\n"
  self:reset()
  self.owner.on_line(text)
end

function Line:cancel()
  self.cursor = #self.text
  self:draw()
  self.owner.write "^C\r\n"
  self:reset()
end

function Line:tab()
  local before = self.text:sub(1, self.cursor)
  if before:match "^%s*$" or before:match "\n%s*$" then return self:insert "  " end
  local list, part = self.owner.complete(before)
  local shared = texts.common_prefix(list)
  if #shared > #part then return self:insert(shared:sub(#part + 1)) end
  if #list < 2 then return end
  self:hide()
  local shown = table.concat(list, "  ", 1, math.min(#list, MOST_SHOWN))
  self.owner.write(shown .. (#list > MOST_SHOWN and "  …" or "") .. "\r\n")
end

local keys = {
  ["\1"] = function(l) l.cursor = l:line_start() end, -- Ctrl-A
  ["\2"] = function(l) l.cursor = l:left_of(l.cursor) end,
  ["\3"] = Line.cancel,
  ["\4"] = function(l) -- Ctrl-D
    if l.text == "" then l.owner.on_end() else l:cut(l.cursor, l:right_of(l.cursor)) end
  end,
  ["\5"] = function(l) l.cursor = l:line_end() end, -- Ctrl-E
  ["\6"] = function(l) l.cursor = l:right_of(l.cursor) end,
  ["\b"] = function(l) l:cut(l:left_of(l.cursor), l.cursor) end,
  ["\127"] = function(l) l:cut(l:left_of(l.cursor), l.cursor) end,
  ["\t"] = Line.tab,
  ["\n"] = Line.accept,
  ["\r"] = Line.accept,
  ["\11"] = function(l) l:cut(l.cursor, l:line_end(), true) end, -- Ctrl-K
  ["\12"] = function(l) l.owner.write "\27[H\27[2J" l.row = 0 end, -- Ctrl-L
  ["\14"] = function(l) l:vertical(1) end,
  ["\16"] = function(l) l:vertical(-1) end,
  ["\18"] = function(l) l.search = { words = "", at = nil } end, -- Ctrl-R
  ["\21"] = function(l) l:cut(l:line_start(), l.cursor, true) end, -- Ctrl-U
  ["\23"] = function(l) l:cut(l:word_left(), l.cursor, true) end, -- Ctrl-W
  ["\25"] = function(l) l:insert(l.killed or "") end, -- Ctrl-Y
  ["\27[A"] = function(l) l:vertical(-1) end,
  ["\27[B"] = function(l) l:vertical(1) end,
  ["\27[C"] = function(l) l.cursor = l:right_of(l.cursor) end,
  ["\27[D"] = function(l) l.cursor = l:left_of(l.cursor) end,
  ["\27[H"] = function(l) l.cursor = l:line_start() end,
  ["\27[F"] = function(l) l.cursor = l:line_end() end,
  ["\27[3~"] = function(l) l:cut(l.cursor, l:right_of(l.cursor)) end, -- Delete
  ["\27b"] = function(l) l.cursor = l:word_left() end,
  ["\27f"] = function(l) l.cursor = l:word_right() end,
  ["\27d"] = function(l) l:cut(l.cursor, l:word_right(), true) end,
}
for other, same in pairs {
  ["\27OA"] = "\27[A", ["\27OB"] = "\27[B", ["\27OC"] = "\27[C", ["\27OD"] = "\27[D",
  ["\27OH"] = "\27[H", ["\27OF"] = "\27[F",
  ["\27[1~"] = "\27[H", ["\27[7~"] = "\27[H", ["\27[4~"] = "\27[F", ["\27[8~"] = "\27[F",
  ["\27[1;5C"] = "\27f", ["\27[1;5D"] = "\27b", ["\27[1;3C"] = "\27f", ["\27[1;3D"] = "\27b",
} do
  keys[other] = keys[same]
end

--- A key during Ctrl-R. Returns true if the search has used it.
function Line:search_key(key)
  local s = self.search
  if key == "\18" then self:search_more((s.at or #self.owner.history + 1) - 1)
  elseif key == "\127" or key == "\b" then
    s.words, s.at = s.words:sub(1, -2), nil
    self:search_more(math.huge)
  elseif key == "\7" or key == "\3" or key == "\27" then self.search = nil
  elseif key:byte() >= 32 and key:byte() ~= 127 then
    s.words = s.words .. key
    self:search_more(s.at or math.huge)
  else -- any other key accepts the match, then does its own work
    self.search = nil
    if s.at then self:set(self.owner.history[s.at]) end
    return false
  end
  return true
end

function Line:key(key)
  if self.search and self:search_key(key) then return end
  local action = keys[key]
  if action then action(self)
  elseif key:byte() >= 32 then self:insert(key) end
end

--- The first key of the bytes; nil if it is incomplete.
local function next_key(bytes)
  local first = bytes:byte()
  if first == 27 then
    local sequence = bytes:match "^\27%[[%d;]*[%a~]" or bytes:match "^\27O%a"
      or bytes:match "^\27[^%[O]"
    if sequence or #bytes > 16 then return sequence or "\27" end
    return nil
  end
  local n = first < 0xC0 and 1 or first < 0xE0 and 2 or first < 0xF0 and 3 or 4
  if #bytes < n then return nil end
  return bytes:sub(1, n)
end

function Line:paste(bytes)
  local last = bytes:find(PASTE_END, 1, true)
  if not last then return nil end -- wait for the rest
  local pasted = bytes:sub(1, last - 1):gsub("\r\n?", "\n")
  self:insert((pasted:gsub("[%c]", function(c) return c == "\n" and c or " " end)))
  return bytes:sub(last + #PASTE_END)
end

--- Takes bytes from the terminal and draws the result.
function Line:feed(bytes)
  bytes = self.pending .. bytes
  while #bytes > 0 and not self.closed do
    if self.pasting then
      local rest = self:paste(bytes)
      if not rest then break end
      self.pasting, bytes = false, rest
    else
      local key = next_key(bytes)
      if not key then break end
      bytes = bytes:sub(#key + 1)
      if key == "\27[200~" then self.pasting = true else self:key(key) end
    end
  end
  self.pending = bytes
  if not self.closed then self:draw() end
end

--- A lone Esc is a key if nothing follows it for a moment; the owner calls this then.
function Line:flush_escape()
  if self.pending == "\27" then
    self.pending = ""
    self:key "\27"
    self:draw()
  end
end

-- ---- drawing ------------------------------------------------------------------------------------

local function rows_of(width, columns)
  return math.max(1, (width + columns - 1) // columns)
end

function Line:prompt(i)
  return i == 1 and self.owner.prompt or self.owner.more
end

--- Removes the text from the screen.
function Line:hide()
  self.owner.write((self.row > 0 and ("\27[%dA"):format(self.row) or "") .. "\r\27[J")
  self.row = 0
end

function Line:draw_search()
  local s = self.search
  local found = s.at and self.owner.history[s.at]:gsub("\n", " ") or ""
  local shown = ("(search '%s'): %s"):format(s.words, found)
  self.owner.write(term.clip(shown, self.owner.columns() - 1))
end

function Line:draw()
  self:hide()
  if self.search then return self:draw_search() end
  local columns, out, i = self.owner.columns(), {}, 0
  local row, at, cursor_row, cursor_column = 0, 0, 0, 0
  for line in (self.text .. "\n"):gmatch "([^\n]*)\n" do
    i = i + 1
    local prompt = self:prompt(i)
    local width = term.width(prompt) + term.width(line)
    if self.cursor >= at and self.cursor <= at + #line then
      local before = term.width(prompt) + term.width(line:sub(1, self.cursor - at))
      cursor_row, cursor_column = row + before // columns, before % columns
    end
    out[#out + 1] = self.owner.paint("bold", prompt) .. line
    row, at = row + rows_of(width, columns), at + #line + 1
    -- After a full last row the terminal keeps the cursor at the edge until the next character.
    if width > 0 and width % columns == 0 and at > #self.text then
      out[#out] = out[#out] .. "\r\n"
      row = row + 1
    end
  end
  local up = row - 1 - cursor_row
  self.owner.write(table.concat(out, "\r\n") .. (up > 0 and ("\27[%dA"):format(up) or "") .. "\r"
    .. (cursor_column > 0 and ("\27[%dC"):format(cursor_column) or ""))
  self.row = cursor_row
end

function Line:reset()
  self.text, self.cursor, self.row = "", 0, 0
  self.at, self.draft, self.search = nil, "", nil
end

local function new(owner)
  local self = setmetatable({ owner = owner, pending = "", pasting = false }, Line)
  self:reset()
  return self
end

return { new = new }
