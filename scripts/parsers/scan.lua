-- scan: the one incremental scanner. A parser is a function that reads from a Scan as if the whole text were there; where
-- it is not there yet the function is suspended (it runs as a coroutine) and goes on with the next piece. So a decision
-- never depends on how the text was cut, and what has been read is never looked at again: time is linear.
--
-- What is always held back is less than the longest mark that could still come; a call that is being tried is held for
-- the case that it is none (see attempt). White space next to a removed mark is dropped by the channels (see events.lua).
local byte, find, sub = string.byte, string.find, string.sub

local NAME = "^[%w_.%-]*"

local scan = { NAME = NAME }
local Scan = {}
Scan.__index = Scan

-- ---- marks ---------------------------------------------------------------------------------------------------------

--- Which mark of a list (longest first) stands at `at`; or nil, and whether one could still come there.
local function mark_at(list, buf, at)
  local partial = false
  for i = 1, #list do
    local mark = list[i]
    local n = #mark
    local text = sub(buf, at, at + n - 1)
    if text == mark then
      if partial then return mark, true end
      return mark
    end
    if #text < n and text == sub(mark, 1, #text) then partial = true end
  end
  return nil, partial
end

local function longest_first(list)
  local sorted = table.move(list, 1, #list, 1, {})
  table.sort(sorted, function(a, b) return #a > #b or #a == #b and a < b end)
  return sorted
end

--- A set of marks to look for, made once. A place where one could begin is looked up by its first two bytes: almost-marks
--- must be cheap. `follow`: { mark = function(s, at) }: is it one, seen what follows? (nil: the text so far does not tell)
function scan.marks(list, follow)
  local by, class = {}, {}
  list = longest_first(list)
  for _, mark in ipairs(list) do
    local c = byte(mark)
    if not by[c] then
      by[c] = { all = {} }
      class[#class + 1] = (mark:find "^%w" and "" or "%") .. mark:sub(1, 1)
    end
    table.insert(by[c].all, mark)
  end
  for _, group in pairs(by) do
    for second = 0, 255 do
      local some = {}
      for _, mark in ipairs(group.all) do
        if #mark == 1 or byte(mark, 2) == second then some[#some + 1] = mark end
      end
      group[second] = #some == 1 and #some[1] == 1 and some[1] or #some > 0 and some or nil
    end
  end
  return { by = by, class = #list > 0 and "[" .. table.concat(class) .. "]", list = list, longest = #list > 0 and #list[1],
    follow = follow }
end

-- ---- input ---------------------------------------------------------------------------------------------------------

--- options: events (where events go), content (a channel), reasoning (a channel), tools (args.tools), tail (prompt tail).
function scan.new(body, options)
  local s = setmetatable({ buf = "", pos = 1, ended = false, starved = false, at_start = true, kept = {}, kept_bytes = 0,
    held = nil, first_call = 1, events = options.events, content = options.content, reasoning = options.reasoning,
    tools = options.tools, tail = options.tail, options = options }, Scan)
  s.thread = coroutine.create(function() body(s) end)
  s:resume()
  return s
end

function Scan:resume()
  if coroutine.status(self.thread) == "dead" then return end
  local ok, err = coroutine.resume(self.thread)
  if not ok then error(debug.traceback(self.thread, tostring(err)), 0) end
end

function Scan:feed(piece)
  if piece == "" then return end
  local sink = self.sink
  if sink and not self.held and not (self.class and find(piece, self.class)) then return sink(piece) end
  if self.held then
    if self.pos > self.held then
      local text = sub(self.buf, self.held, self.pos - 1)
      self.kept[#self.kept + 1] = text
      self.kept_bytes = self.kept_bytes + #text
    end
    self.held = 1
  end
  self.buf = self.pos > #self.buf and piece or sub(self.buf, self.pos) .. piece
  self.pos = 1
  self:resume()
end

function Scan:finish()
  self.ended = true
  self:resume()
end

--- The text is over, but not cut off: what was begun is no call, and stays text.
function Scan:close()
  self.closed = true
  self:finish()
end

--- Waits for more text; false at the end.
function Scan:more()
  if self.ended then
    self.starved = true
    return false
  end
  coroutine.yield()
  return true
end

-- ---- reading -------------------------------------------------------------------------------------------------------

--- Waits until n bytes are there; false when the text ends before.
function Scan:need(n)
  while #self.buf - self.pos + 1 < n do
    if not self:more() then return false end
  end
  return true
end

--- The next byte, nil at the end.
function Scan:peek()
  while self.pos > #self.buf do
    if not self:more() then return nil end
  end
  return byte(self.buf, self.pos)
end

--- Which of these comes next (read over it), or nil. Where one begins like another, the longer is listed first.
function Scan:one_of(list)
  while true do
    local mark, partial = mark_at(list, self.buf, self.pos)
    if mark and (not partial or self.ended) then
      self.pos = self.pos + #mark
      return mark
    end
    if not partial or not self:more() then return nil end
  end
end

--- Reads over this text if it comes next.
function Scan:take(literal)
  local n = #literal
  while true do
    local text = sub(self.buf, self.pos, self.pos + n - 1)
    if text == literal then
      self.pos = self.pos + n
      return true
    end
    if #text == n or text ~= sub(literal, 1, #text) or not self:more() then return false end
  end
end

--- Does this text come next? Nothing is read.
function Scan:ahead(literal)
  if not self:take(literal) then return false end
  self.pos = self.pos - #literal
  return true
end

--- Reads over white space.
function Scan:space()
  while true do
    local at = find(self.buf, "%S", self.pos)
    if at then
      self.pos = at
      return
    end
    self.pos = #self.buf + 1
    if not self:more() then return end
  end
end

--- Reads what fits an anchored pattern of one class, like "^[%w_]*"; nil when that is more than `most` bytes (which are read).
function Scan:word(pattern, most)
  local parts, bytes = nil, 0
  while true do
    local _, last = find(self.buf, pattern, self.pos)
    local text = sub(self.buf, self.pos, last)
    local room = (most or 256) - bytes
    if #text > room then
      self.pos = self.pos + room
      return nil
    end
    bytes = bytes + #text
    self.pos = last + 1
    local more = last == #self.buf and self:more()
    if not more then
      if not parts then return text end
      parts[#parts + 1] = text
      return table.concat(parts)
    end
    parts = parts or {}
    parts[#parts + 1] = text
  end
end

--- The name that stands before this character, which is read over; nil when there is none.
function Scan:name_before(c)
  local name = self:word(NAME)
  return name and name ~= "" and self:take(c) and name or nil
end

--- For `follow`: the byte behind what fits an anchored pattern, and where it is; false when that is more than `most` bytes,
--- nil when it is not there yet.
function Scan:behind(at, pattern, most)
  local _, last = find(self.buf, pattern, at)
  if last - at > (most or 300) then return false end
  return byte(self.buf, last + 1), last + 1
end

--- White space, as text.
function Scan:gap()
  return self:word("^%s*", math.huge)
end

--- Reads to the first of the marks and over it; the text before it goes to `sink` as it comes. Returns the mark, nil at the end.
--- While it waits with nothing held back, what cannot begin a mark goes to the sink straight from `feed`: most of every answer.
function Scan:upto(marks, sink)
  local class, by = marks.class, marks.by
  while true do
    local buf, pos = self.buf, self.pos
    local at = class and find(buf, class, pos)
    while at do
      local c, second = byte(buf, at, at + 1)
      local list = by[c].all
      if second then list = by[c][second] end
      local mark, partial = list, false
      if type(list) == "table" then mark, partial = mark_at(list, buf, at) end
      local follow = mark and marks.follow and marks.follow[mark]
      if follow then
        local is = follow(self, at + #mark)
        if is == nil then partial = true end
        if not is then mark = nil end
      end
      if mark and (not partial or self.ended) then
        self.pos = at + #mark
        if at > pos then sink(sub(buf, pos, at - 1)) end
        return mark
      end
      if partial and not self.ended then break end
      at = find(buf, class, at + 1)
    end
    local stop = at or #buf + 1
    self.pos = stop
    if stop > pos then sink(sub(buf, pos, stop - 1)) end
    if not at then self.sink, self.class = sink, class end
    local more = self:more()
    self.sink = nil
    if not more then return nil end
  end
end

--- The text before the first of the marks, and the mark, which is read over; nil at the end of the text.
function Scan:field(marks)
  local parts = {}
  local mark = self:upto(marks, function(text) parts[#parts + 1] = text end)
  if mark then return table.concat(parts), mark end
end

--- As field, for short texts: nil when more than `most` bytes come before the mark, and then nothing is read; nil at the
--- end of the text, and then all is.
function Scan:short_field(marks, most)
  while true do
    local buf, pos = self.buf, self.pos
    local window = sub(buf, pos, pos + most + marks.longest - 1)
    local first, found
    for _, mark in ipairs(marks.list) do
      local at = find(window, mark, 1, true)
      if at and (not first or at < first) then first, found = at, mark end
    end
    if found then
      if first > most + 1 then return nil end
      self.pos = pos + first - 1 + #found
      return sub(window, 1, first - 1), found
    end
    if #window == most + marks.longest then return nil end
    if not self:more() then
      self.pos = #self.buf + 1
      return nil
    end
  end
end

--- Steps back over text that was just read.
function Scan:back(literal)
  self.pos = self.pos - #literal
end

-- ---- trying --------------------------------------------------------------------------------------------------------

--- From here (n bytes back) on, text is kept until release.
function Scan:hold(n)
  self.held = self.pos - n
  if self.kept_bytes > 0 then self.kept, self.kept_bytes = {}, 0 end
end

function Scan:held_bytes()
  return self.kept_bytes + self.pos - self.held
end

function Scan:held_text()
  local last = sub(self.buf, self.held, self.pos - 1)
  if self.kept_bytes == 0 then return last end
  return table.concat(self.kept) .. last
end

--- The kept text; nothing is kept any more.
function Scan:release()
  local text = sub(self.buf, self.held, self.pos - 1)
  self.held = nil
  if self.kept_bytes > 0 then
    text = table.concat(self.kept) .. text
    self.kept, self.kept_bytes = {}, 0
  end
  return text
end

--- What was read since hold is a call and stays one, whatever follows.
function Scan:commit()
  self.content:mark()
  self.first_call = self.events.calls + 1
  self:hold(0)
end

--- Runs a handler on text that is held from its mark on. It returns true when that was markup; else the text since the last
--- commit is content as it stands and reading goes on behind it: what was read is not read again. A call that the end
--- of the text cut off is no content: it is reported as unfinished. `soft`: that is so only when the call had begun.
function Scan:attempt(handler, options)
  self.first_call = self.events.calls + 1
  self.starved = false
  if handler(self, options.mark) then
    self.held = nil
    self.content:mark()
    return true
  end
  if self.starved then self.pos = #self.buf + 1 end -- what is left was read as the beginning of a mark
  local text = self:release()
  local begun = self.events:drop(self.first_call)
  if self.starved and not self.closed and (begun or not options.soft) then
    if find(text, "%S") then self.events:other("unfinished", text) end
    self.content:mark()
  else
    self.at_start = false
    self.content:text(text)
  end
  return false
end

--- The words of a format: { marks = { mark = handler }, start = { first character = handler }, soft = { mark = true },
--- follow = as marks' }.
local function compile(format)
  local list, options = {}, {}
  for mark in pairs(format.marks) do list[#list + 1] = mark end
  table.sort(list)
  for _, mark in ipairs(list) do
    options[mark] = { mark = mark, soft = format.soft and format.soft[mark] or false }
  end
  local start = {}
  for c, handler in pairs(format.start or {}) do start[byte(c)] = handler end
  return { marks = scan.marks(list, format.follow), options = options, start = start }
end

local compiled = setmetatable({}, { __mode = "k" })
local bare = { soft = true }

--- The body of a parser that consists of marks and what to do at each.
function scan.format(format)
  local f = compiled[format] or compile(format)
  compiled[format] = f
  return function(s)
    local content = s.content
    local function put(text)
      if s.at_start and find(text, "%S") then s.at_start = false end
      content:text(text)
    end
    while true do
      while s.at_start do
        content:text(s:gap())
        local mark = s:one_of(f.marks.list)
        local handler = not mark and f.start[s:peek()]
        if mark then
          s:hold(#mark)
          s:attempt(format.marks[mark], f.options[mark])
        elseif handler then
          s.at_start = false
          s:hold(0)
          s:attempt(handler, bare)
        else
          break
        end
      end
      local mark = s:upto(f.marks, put)
      if not mark then return end
      s:hold(#mark)
      s:attempt(format.marks[mark], f.options[mark])
    end
  end
end

return scan
