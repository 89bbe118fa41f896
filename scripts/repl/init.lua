-- repl: evaluates what is typed. A session knows nothing about terminals; `start` gives it a console.
local complete = require "repl.complete"
local console = require "ui.console"
local help = require "repl.help"
local history = require "repl.history"
local perigee = require "perigee"
local pretty = require "ui.pretty"
local term = require "ui.term"
local text = require "lib.text"
local uv = require "luv"

local SLOW_S = 0.1
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
  if not ok then self:write_error(err.message .. (err.code == "error" and trace_of(err) or "")) end
  if self.timing and took >= SLOW_S then self.write(self.paint("dim", text.seconds(took)) .. "\n") end
end

--- Starts reading; the loop does the rest.
local function start()
  _G.perigee, _G.uv = perigee, uv
  local session = setmetatable({ paint_error = term.painter(term.has_color(2)) }, Session)
  local here = console.open {
    banner = BANNER:format(perigee.version), prompt = "pe> ", more = "  > ", history = history.open(), is_complete = is_complete,
    complete = function(before) return complete.candidates(before, _G) end,
    on_input = function(source) session:evaluate(source) end,
  }
  session.paint, session.write, session.quit, session.timing = here.paint, here.write, here.quit, here.terminal
  here.run()
end

return { start = start, is_complete = is_complete }
