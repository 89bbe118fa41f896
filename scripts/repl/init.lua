-- repl: evaluates lines of Lua. A session knows nothing about terminals; `start` gives it a
-- console.
local complete = require "repl.complete"
local console = require "ui.console"
local help = require "repl.help"
local history = require "repl.history"
local perigee = require "perigee"
local pretty = require "ui.pretty"
local term = require "ui.term"
local text = require "lib.text"
local uv = require "luv"

local SLOW_S = 0.1 -- show the time of evaluations that took longer
local BANNER = "perigee %s  ·  ? for help, Ctrl-D to quit"
local HELP = [[
  1 + 1          prints the value of an expression; end it with ; to print nothing
  _              the last value
  ?name          help on a function or class: ?guard, ?sys.machine
  Tab            completes names; Ctrl-R searches the history; Ctrl-C interrupts
  :quit          quit (or Ctrl-D)]]

local Session = {}
Session.__index = Session

--- The chunk of an expression or a statement; or nil and a message; or nil and true if the source
--- is incomplete.
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

--- Does Enter evaluate the source (it compiles, or more lines cannot help), or add a line?
local function is_complete(source)
  if is_command(source) then return true end
  local chunk, why = compile(source)
  return chunk ~= nil or why ~= true
end

function Session:write_error(message)
  io.stdout:flush()
  io.stderr:write(self.paint_error("red", message), "\n")
end

--- The traceback, without the frames of the REPL itself.
local function trace_of(err)
  local trace = (err.traceback or ""):gsub("in upvalue 'chunk'", "in main chunk")
  trace = trace:gsub("\n%s*%[C%]: in function 'perigee%.guard'.*$", "")
  trace = trace:gsub("\n[^\n]*repl/init%.lua:[^\n]*", "")
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
  if #found == 0 then return self:write_error("no help for '" .. name .. "'") end
  for _, entry in ipairs(found) do self.write(help.describe(entry) .. "\n") end
end

function Session:command(source)
  local name = source:match "^%s*%?%s*([%w_%.:]*)%s*$"
  if name then return self:help(name) end
  if source:match "^%s*:q" then return self.quit() end
  self:write_error("unknown command " .. source:match "^%s*(%S+)" .. " (? for help)")
end

--- Evaluates one piece of source and prints its results.
function Session:evaluate(source)
  if source:match "^%s*$" then return end
  if is_command(source) then return self:command(source) end
  local chunk, why = compile(source)
  if not chunk then
    if why == true then why = select(2, load(source, "=repl", "t")) end
    return self:write_error(why)
  end
  local began, values = uv.hrtime(), nil
  local limits = { interruptible = true }
  local ok, err = perigee.guard(function() values = table.pack(chunk()) end, limits)
  local took = (uv.hrtime() - began) / 1e9
  if ok then
    ok, err = perigee.guard(function() self:print_results(source, values) end, limits)
  end
  if not ok then self:write_error(err.message .. (err.code == "error" and trace_of(err) or "")) end
  if self.timing and took >= SLOW_S then
    self.write(self.paint("dim", text.seconds(took)) .. "\n")
  end
end

--- Starts reading and returns; the loop does the rest.
local function start()
  _G.perigee, _G.uv = perigee, uv
  local session = setmetatable({ paint_error = term.painter(term.has_color(2)) }, Session)
  local here = console.open {
    banner = BANNER:format(perigee.version), prompt = "pe> ", more = "  > ",
    history = history.open(), is_complete = is_complete,
    complete = function(before) return complete.candidates(before, _G) end,
    on_input = function(source) session:evaluate(source) end,
  }
  session.paint, session.write = here.paint, here.write
  session.quit, session.timing = here.quit, here.terminal
  here.run()
end

return { start = start, is_complete = is_complete }
