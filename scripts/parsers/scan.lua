-- scan: the incremental scanner that every parser reads from.
--
-- A parser is plain code that reads as if the whole answer were in memory. It runs as a coroutine:
-- where it needs text that has not arrived, it is suspended, and `feed` resumes it. So no decision
-- depends on how the answer was cut into pieces, no byte is read twice, and time is linear.
--
-- A format is a table of marks, each with a handler. The scanner finds the marks; a handler reads
-- what follows its mark and returns true for a call, false for text that only looked like one. In
-- the second case the text becomes content and reading continues after it. Five verbs are enough
-- for most handlers:
--
--   s:space()           skip white space
--   s:take(literal)     read this text if it comes next; false if it does not
--   s:ahead(literal)    does this text come next? reads nothing
--   s:name(pattern)     read a name: letters, digits, _ . - (or another class, such as "^[%w_]*");
--                       nil if there is none
--   s:one_of(list)      read whichever of these texts comes next and return it; nil for none
--
-- The arguments of a call are read by args.lua, which emits the events. A whole format:
--
--   local function call(s)                      -- ->name({"key": "value"})<-
--     local name = s:name()
--     if not name or not s:take "(" then return false end
--     return s:ahead "{" and args.streamed(s, name) and s:take ")<-"
--   end
--   return { name = "arrows", marks = { ["->"] = call }, selftest = { … } }
--
-- For more: `word` reads any class of characters, `field` and `short_field` read up to a mark,
-- `upto` streams up to one, `commit` keeps the calls made so far whatever follows, s.tools knows
-- the declared tools. The types of all of these are in scripts/meta/parsers.lua.
--
-- The scanner holds back less text than its longest mark, and all of a call being tried. White
-- space next to a removed mark is dropped by the channels (events.lua).
local byte, find, sub = string.byte, string.find, string.sub

local NAME = "^[%w_.%-]*"

local scan = { NAME = NAME }
local Scan = {}
Scan.__index = Scan

-- ---- marks --------------------------------------------------------------------------------------

--- The mark of a list (longest first) at `at`. Otherwise nil, and whether the text may still become
--- one.
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

--- Compiles a set of marks. Candidates are looked up by their first two bytes, so that text full of
--- near-marks ("<" in code) stays cheap. `follow` = { mark = function(s, at) } decides by the text
--- after a mark whether it counts: true, false, or nil if more text is needed.
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
  return { by = by, class = #list > 0 and "[" .. table.concat(class) .. "]", list = list,
    longest = #list > 0 and #list[1], follow = follow }
end

-- ---- input --------------------------------------------------------------------------------------

--- Options: events (an events.list), content and reasoning (channels), tools (args.tools), tail
--- (the end of the prompt).
function scan.new(body, options)
  local s = setmetatable({ buf = "", pos = 1, ended = false, starved = false, at_start = true,
    kept = {}, kept_bytes = 0, held = nil, first_call = 1, events = options.events,
    content = options.content, reasoning = options.reasoning, tools = options.tools,
    tail = options.tail, options = options }, Scan)
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
  if sink and not self.held and not (self.class and find(piece, self.class)) then
    return sink(piece)
  end
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

--- Ends the text where it was not cut off: an open call stays text instead of being reported as
--- unfinished.
function Scan:close()
  self.closed = true
  self:finish()
end

--- Waits for more text; false at the end of the answer.
function Scan:more()
  if self.ended then
    self.starved = true
    return false
  end
  coroutine.yield()
  return true
end

-- ---- reading ------------------------------------------------------------------------------------

--- Waits until n bytes are available; false if the answer ends first.
function Scan:need(n)
  while #self.buf - self.pos + 1 < n do
    if not self:more() then return false end
  end
  return true
end

--- The next byte; nil at the end.
function Scan:peek()
  while self.pos > #self.buf do
    if not self:more() then return nil end
  end
  return byte(self.buf, self.pos)
end

--- Reads whichever of these texts comes next and returns it, or nil. If one is a prefix of another,
--- the longer must be listed first.
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

--- Reads this text if it comes next; false otherwise.
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

--- Does this text come next? Reads nothing.
function Scan:ahead(literal)
  if not self:take(literal) then return false end
  self.pos = self.pos - #literal
  return true
end

--- Skips white space.
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

--- Reads the longest match of an anchored pattern of one class, such as "^[%w_]*". Returns nil,
--- with `most` bytes read, if it is longer than `most` (256: no tool name or key is that long).
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

--- Like `word`, for names: nil if there is none.
function Scan:name(pattern)
  local name = self:word(pattern or NAME)
  return name ~= "" and name or nil
end

--- Reads a name and the character `c` after it; returns the name, or nil.
function Scan:name_before(c)
  local name = self:name()
  return name and self:take(c) and name or nil
end

--- For `follow` functions: the byte after the match of an anchored pattern at `at`, and its
--- position. False if the match is longer than `most` bytes, nil if that byte has not arrived.
function Scan:after(at, pattern, most)
  local _, last = find(self.buf, pattern, at)
  if last - at > (most or 300) then return false end
  return byte(self.buf, last + 1), last + 1
end

--- Reads white space and returns it.
function Scan:gap()
  return self:word("^%s*", math.huge)
end

--- Reads up to and including the first of the marks and returns it, nil at the end; the text before
--- it goes to `sink` as it arrives. While this waits with nothing held back, `feed` passes pieces
--- that cannot begin a mark straight to the sink: that is most of every answer.
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

--- Reads up to and including the first of the marks; returns the text before it and the mark, nil
--- at the end.
function Scan:field(marks)
  local parts = {}
  local mark = self:upto(marks, function(text) parts[#parts + 1] = text end)
  if mark then return table.concat(parts), mark end
end

--- Like `field` for short texts: nil, with nothing read, if more than `most` bytes come before the
--- mark; nil, with everything read, at the end.
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

--- Steps back over text that has just been read.
function Scan:back(literal)
  self.pos = self.pos - #literal
end

--- A handler for marks without meaning, which are removed.
function scan.drop() return true end

-- ---- trying -------------------------------------------------------------------------------------

--- Keeps text, from n bytes back on, until `release`.
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

--- Returns the kept text and stops keeping.
function Scan:release()
  local text = sub(self.buf, self.held, self.pos - 1)
  self.held = nil
  if self.kept_bytes > 0 then
    text = table.concat(self.kept) .. text
    self.kept, self.kept_bytes = {}, 0
  end
  return text
end

--- The calls made since `hold` stay calls, whatever follows.
function Scan:commit()
  self.content:mark()
  self.first_call = self.events.calls + 1
  self:hold(0)
end

--- Runs a handler on text that is held from its mark on. If the handler returns true, the text was
--- markup. Otherwise the text since the last commit is content and reading continues after it,
--- without reading it again. A call cut off by the end of the answer is not content: it is reported
--- as unfinished (for a `soft` mark, which also occurs in prose, only if the call had begun).
function Scan:attempt(handler, options)
  self.first_call = self.events.calls + 1
  self.starved = false
  if handler(self, options.mark) then
    self.held = nil
    self.content:mark()
    return true
  end
  if self.starved then self.pos = #self.buf + 1 end -- the rest was taken for the start of a mark
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

--- Compiles a format: { marks = { mark = handler }, start = { first character of the answer =
--- handler }, soft = { mark = true }, follow = see scan.marks }.
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

-- Not a field of the format: a site may copy a format field by field and change its marks.
local compiled = setmetatable({}, { __mode = "k" })
local bare = { soft = true }

--- The body of a parser for a format of marks and handlers; compiled once per format.
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
