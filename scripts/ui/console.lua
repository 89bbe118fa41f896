-- console: reads what a person types, piece by piece: with an editor on a terminal, line by line from a plain stream. The
-- REPL and the chat are owners of one.
--
--   local c = console.open { banner, prompt, more, history, is_complete = function(text), complete = function(before),
--                            on_input = function(text) }
--   c.run()                       -- the loop does the rest
--
-- A piece is given to on_input as soon as is_complete says so. It runs outside of raw mode, so that Ctrl-C is a signal
-- there. Besides run there are c.write(text), c.paint(color, text), c.terminal (is it one?), and c.quit().
local line = require "repl.line"
local term = require "ui.term"
local uv = require "luv"

local ESCAPE_MS = 50

local console = {}

-- ---- a plain stream ------------------------------------------------------------------------------------------------

--- Feeds whole lines; a piece that is not complete waits for the next one.
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
    if source then owner.on_input(source) end -- its owner says what is missing
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

-- ---- a terminal ----------------------------------------------------------------------------------------------------

--- print() while a line is being edited: hides the line, prints, draws it again.
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

--- What the editor asks of its owner.
local function editor_owner(owner, tty)
  return {
    prompt = owner.prompt, more = owner.more, paint = term.painter(term.has_color(1)), history = owner.history,
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

--- A console for an owner; its run() starts reading, the loop does the rest.
function console.open(owner)
  if term.is_tty(0) and term.is_tty(1) then return start_terminal(owner) end
  return start_stream(owner)
end

return console
