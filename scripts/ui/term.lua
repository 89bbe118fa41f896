-- term: size and colors of the terminal, and the width of text on it.
local perigee = require "perigee"
local uv = require "luv"

local term = {}

local CODES = { bold = "1", dim = "2", red = "31", green = "32", yellow = "33", magenta = "35",
  cyan = "36" }

--- Is this file descriptor (0, 1, 2) a terminal?
function term.is_tty(fd)
  return uv.guess_handle(fd) == "tty"
end

--- Columns of the terminal at stdout, 80 without one. COLUMNS in the environment overrides it.
function term.columns()
  local given = math.tointeger(tonumber(os.getenv "COLUMNS"))
  if given and given > 0 then return given end
  if not term.is_tty(1) then return 80 end
  local tty = uv.new_tty(1, false)
  local width = tty and tty:get_winsize()
  if tty then tty:close() end
  return width and width > 0 and width or 80
end

--- May colors be used on this file descriptor?
function term.has_color(fd)
  return term.is_tty(fd) and not os.getenv "NO_COLOR" and os.getenv "TERM" ~= "dumb"
end

--- A function paint(color, text) that adds color codes, or returns the text unchanged.
function term.painter(enabled)
  if not enabled then return function(_, s) return s end end
  return function(color, s) return ("\27[%sm%s\27[0m"):format(CODES[color], s) end
end

--- Columns of a text, without its color codes.
function term.width(s)
  return perigee.sys.width((s:gsub("\27%[[%d;]*m", "")))
end

--- The text padded with blanks to this many columns; `right`: blanks come first.
function term.pad(s, columns, right)
  local blanks = (" "):rep(columns - term.width(s))
  return right and blanks .. s or s .. blanks
end

--- The text cut to this many columns, ending in an ellipsis if it was longer.
function term.clip(s, columns)
  if term.width(s) <= columns then return s end
  local out, used = {}, 0
  for _, c in utf8.codes(s, true) do
    local char = utf8.char(c)
    used = used + perigee.sys.width(char)
    if used > columns - 1 then break end
    out[#out + 1] = char
  end
  return table.concat(out) .. "…"
end

return term
