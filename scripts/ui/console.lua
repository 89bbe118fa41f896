-- console: reads what a person types, one piece at a time: with a line editor on a terminal, line
-- by line from a plain stream. The REPL and the chat use it.
--
--   local c = console.open { banner, prompt, more, history, is_complete = function(text),
--                            complete = function(before), on_input = function(text) }
--   c.run()                       -- returns at once; the loop does the rest
--
-- on_input gets a piece as soon as is_complete returns true for it. It runs outside raw mode, so
-- that Ctrl-C is a signal there. A console also has c.write(text), c.paint(color, text), c.quit()
-- and c.terminal (true if it is one).
local line = require "ui.line"
local term = require "ui.term"
local uv = require "luv"

local ESCAPE_MS = 50 -- after Esc: the rest of an escape sequence arrives sooner

local console = {}

-- ---- a plain stream -----------------------------------------------------------------------------

--- Collects lines until they make a complete piece.
local function stream_feeder(self, owner)
  local rest, source = "", nil
  local function feed_line(one)
    source = source and source .. "\n" .. one or one
    if not owner.is_complete(source) then return end
    local whole = source
    source = nil
    owner.on_input(whole)
  end
  return function(bytes)
    rest = rest .. (bytes or "")
    while not self.ended do
      local newline = rest:find("\n", 1, true)
      if not newline then break end
      local one = rest:sub(1, newline - 1)
      rest = rest:sub(newline + 1)
      feed_line((one:gsub("\r$", "")))
    end
    if bytes or self.ended then return end
    if rest ~= "" then feed_line(rest) end
    if source then owner.on_input(source) end -- incomplete: on_input reports what is missing
  end
end

local function start_stream(owner)
  local pipe
  local self = {
    paint = term.painter(false),
    write = function(s) io.stdout:write(s):flush() end,
  }
  function self.quit()
    self.ended = true
    if pipe and not pipe:is_closing() then pipe:close() end
  end
  local feed = stream_feeder(self, owner)
  function self.run()
    if uv.guess_handle(0) ~= "pipe" then
      for one in io.stdin:lines "L" do
        feed(one)
        if self.ended then return end
        uv.run "nowait"
      end
      return feed(nil)
    end
    pipe = uv.new_pipe(false)
    pipe:open(0)
    pipe:read_start(function(err, bytes)
      feed(not err and bytes or nil)
      if (err or not bytes) and not pipe:is_closing() then pipe:close() end
    end)
  end
  return self
end

-- ---- a terminal ---------------------------------------------------------------------------------

--- Replaces print() by one that hides the line being edited, prints, and draws the line again.
local function print_above(editor)
  local plain = print
  _G.print = function(...)
    if not editor.shown then return plain(...) end
    editor:hide()
    plain(...)
    io.stdout:flush()
    editor:draw()
  end
end

--- The callbacks of the line editor (ui/line.lua).
local function editor_owner(owner, tty)
  return {
    prompt = owner.prompt, more = owner.more, history = owner.history,
    paint = term.painter(term.has_color(1)),
    write = function(s) io.stdout:write(s):flush() end,
    is_complete = owner.is_complete,
    columns = function()
      local width = tty:get_winsize()
      return width and width > 0 and width or 80
    end,
    complete = owner.complete or function() return {}, "" end,
  }
end

local function start_terminal(owner)
  local tty, escape = uv.new_tty(0, true), uv.new_timer()
  local hands = editor_owner(owner, tty)
  local self = { paint = hands.paint, write = hands.write, terminal = true }
  local editor = line.new(hands)

  local function edit(on)
    tty:set_mode(on and 1 or 0)
    hands.write(on and "\27[?2004h" or "\27[?2004l")
    editor.shown = on
  end
  function self.quit()
    self.ended, editor.closed = true, true
    edit(false)
    escape:close()
    tty:close()
  end
  function hands.on_end()
    hands.write "\r\n"
    self.quit()
  end
  function hands.on_line(source)
    hands.history:add(source)
    edit(false)
    owner.on_input(source)
    if not self.ended then edit(true) end
  end

  function self.run()
    print_above(editor)
    hands.write(owner.banner .. "\n")
    edit(true)
    editor:draw()
    tty:read_start(function(err, bytes)
      if err or not bytes then return not self.ended and self.quit() end
      editor:feed(bytes)
      if not self.ended and editor.pending == "\27" then
        escape:start(ESCAPE_MS, 0, function() editor:flush_escape() end)
      end
    end)
  end
  return self
end

--- A console on stdin and stdout.
function console.open(owner)
  if term.is_tty(0) and term.is_tty(1) then return start_terminal(owner) end
  return start_stream(owner)
end

return console
