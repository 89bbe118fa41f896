-- repl: evaluates what is typed. A session knows nothing about terminals; `start` gives it one, or a plain stream.
local complete = require "repl.complete"
local help = require "repl.help"
local history = require "repl.history"
local line = require "repl.line"
local perigee = require "perigee"
local pretty = require "ui.pretty"
local term = require "ui.term"
local text = require "lib.text"
local uv = require "luv"

local SLOW_S = 0.1
local ESCAPE_MS = 50
local BANNER = "perigee %s  ·  ? for help, Ctrl-D to leave"
local HELP = [[
  1 + 1          an expression prints its value, no `return` needed; a final ; silences it
  _              the last value
  ?name          help about what C offers: ?guard, ?sys.machine
  Tab            completes names; Ctrl-R searches the history; Ctrl-C stops what runs
  :quit          leave (or Ctrl-D)]]

local Session = {}
Session.__index = Session

--- An expression or a statement; nil and the message when it is neither, nil and true when more is needed.
local function compile(source)
  local chunk = load("return " .. source, "=repl", "t")
  if chunk then return chunk end
  local why
  chunk, why = load(source, "=repl", "t")
  if chunk then return chunk end
  if why:match "<eof>$" then return nil, true end
  return nil, why
end

local function is_command(source)
  return source:match "^%s*[?:]" ~= nil
end

--- Can it be run, or is it wrong for good? Then Enter runs it; otherwise it adds a line.
local function is_complete(source)
  if is_command(source) then return true end
  local chunk, why = compile(source)
  return chunk ~= nil or why ~= true
end

function Session:write_error(message)
  io.stdout:flush()
  io.stderr:write(self.paint_error("red", message), "\n")
end

--- The traceback down to the door.
local function trace_of(err)
  local trace = (err.traceback or ""):gsub("in upvalue 'chunk'", "in main chunk")
  trace = trace:gsub("\n%s*%[C%]: in function 'perigee%.guard'.*$", ""):gsub("\n[^\n]*repl/init%.lua:[^\n]*", "")
  return trace:find "\n" and "\n" .. trace or ""
end

function Session:print_results(source, values)
  if values.n == 0 then return end
  _G._ = values[1]
  if source:match ";%s*$" then return end
  local options = { width = term.columns(), paint = self.paint }
  for i = 1, values.n do self.write(pretty.format(values[i], options) .. "\n") end
end

function Session:help(name)
  if name == "" then return self.write(HELP .. "\n") end
  local found = help.find(name)
  if #found == 0 then return self:write_error("no help about '" .. name .. "'") end
  for _, entry in ipairs(found) do self.write(help.describe(entry) .. "\n") end
end

function Session:command(source)
  local name = source:match "^%s*%?%s*([%w_%.:]*)%s*$"
  if name then return self:help(name) end
  if source:match "^%s*:q" then return self.quit() end
  self:write_error("unknown command " .. source:match "^%s*(%S+)" .. " (? for help)")
end

--- Runs one complete piece of source and shows what came out.
function Session:evaluate(source)
  if source:match "^%s*$" then return end
  if is_command(source) then return self:command(source) end
  local chunk, why = compile(source)
  if not chunk then return self:write_error(why == true and select(2, load(source, "=repl", "t")) or why) end
  local began, values = uv.hrtime(), nil
  local ok, err = perigee.guard(function() values = table.pack(chunk()) end, { interruptible = true })
  local took = (uv.hrtime() - began) / 1e9
  if ok then ok, err = perigee.guard(function() self:print_results(source, values) end, { interruptible = true }) end
  if not ok then self:write_error(err.text .. (err.code == "error" and trace_of(err) or "")) end
  if self.timing and took >= SLOW_S then self.write(self.paint("dim", text.seconds(took)) .. "\n") end
end

local function new_session(settings)
  settings.paint_error = term.painter(term.has_color(2))
  return setmetatable(settings, Session)
end

-- ---- a plain stream ------------------------------------------------------------------------------------------------

--- Feeds whole lines; a piece that is not complete waits for the next one.
local function stream_feeder(session)
  local rest, source = "", nil
  local function feed_line(one)
    source = source and source .. "\n" .. one or one
    if not is_complete(source) then return end
    local whole = source
    source = nil
    session:evaluate(whole)
  end
  return function(bytes)
    rest = rest .. (bytes or "")
    while not session.ended do
      local newline = rest:find("\n", 1, true)
      if not newline then break end
      local one = rest:sub(1, newline - 1)
      rest = rest:sub(newline + 1)
      feed_line((one:gsub("\r$", "")))
    end
    if bytes or session.ended then return end
    if rest ~= "" then feed_line(rest) end
    if source then session:evaluate(source) end -- reports what is missing
  end
end

local function start_stream()
  local pipe
  local session = new_session {
    paint = term.painter(false),
    write = function(s) io.stdout:write(s):flush() end,
  }
  function session.quit()
    session.ended = true
    if pipe and not pipe:is_closing() then pipe:close() end
  end
  local feed = stream_feeder(session)
  if uv.guess_handle(0) ~= "pipe" then
    for one in io.stdin:lines "L" do
      feed(one)
      if session.ended then return end
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

local function start_terminal()
  local tty, escape = uv.new_tty(0, true), uv.new_timer()
  local owner = {
    prompt = "pe> ", more = "  > ", paint = term.painter(term.has_color(1)), history = history.open(),
    write = function(s) io.stdout:write(s):flush() end,
    is_complete = is_complete,
    columns = function()
      local width = tty:get_winsize()
      return width and width > 0 and width or 80
    end,
    complete = function(before) return complete.candidates(before, _G) end,
  }
  local session = new_session { paint = owner.paint, write = owner.write, timing = true }
  local editor = line.new(owner)

  local function edit(on)
    tty:set_mode(on and 1 or 0)
    owner.write(on and "\27[?2004h" or "\27[?2004l")
    editor.shown = on
  end
  function session.quit()
    session.ended, editor.closed = true, true
    edit(false)
    escape:close()
    tty:close()
  end
  function owner.on_end()
    owner.write "\r\n"
    session.quit()
  end
  function owner.on_line(source)
    owner.history:add(source)
    edit(false) -- so that Ctrl-C is a signal while it runs
    session:evaluate(source)
    if not session.ended then edit(true) end
  end

  print_above(editor)
  owner.write(BANNER:format(perigee.version) .. "\n")
  edit(true)
  editor:draw()
  tty:read_start(function(err, bytes)
    if err or not bytes then return not session.ended and session.quit() end
    editor:feed(bytes)
    if not session.ended and editor.pending == "\27" then
      escape:start(ESCAPE_MS, 0, function() editor:flush_escape() end)
    end
  end)
end

--- Starts reading; the loop does the rest.
local function start()
  _G.perigee, _G.uv = perigee, uv
  if term.is_tty(0) and term.is_tty(1) then start_terminal() else start_stream() end
end

return { start = start, is_complete = is_complete }
