-- clock: Python's strftime. A fixed time is in seconds since the epoch, shown as UTC; without one
-- the local time is used.
local fail = require("templates.jinja.values").fail

local clock = {}

local PLAIN = "aAbBcCdDeFgGhHIjmMnprRStTuUVwWxXyYzZ"

local special = {
  ["%"] = function() return "%" end,
  f = function() return "000000" end,
  s = function(now) return tostring(now) end,
  P = function(now, zone) return os.date(zone .. "%p", now):lower() end,
  k = function(now, zone) return ("%2d"):format(tonumber(os.date(zone .. "%H", now))) end,
  l = function(now, zone) return ("%2d"):format(tonumber(os.date(zone .. "%I", now))) end,
}

local function one(flag, letter, now, zone)
  local out
  if special[letter] then
    out = special[letter](now, zone)
  elseif PLAIN:find(letter, 1, true) then
    out = os.date(zone .. "%" .. letter, now)
  else
    fail("strftime_now: unknown conversion '%%%s%s'", flag, letter)
  end
  if flag == "-" then out = out:gsub("^[0 ]+(.)", "%1") end
  if flag == "_" then
    out = out:gsub("^0+(.)", function(rest) return (" "):rep(#out - #rest) .. rest end)
  end
  if flag == "^" then out = out:upper() end
  return out
end

--- Fills in the conversions of a format. fixed: seconds since the epoch, or nil for the local
--- clock.
function clock.format(format, fixed)
  local zone, now = fixed and "!" or "", fixed or os.time()
  if format:find "%%$" and not format:find "%%%%$" then
    fail "strftime_now: the format ends in '%'"
  end
  return (format:gsub("%%([-_^0#]?)(.)", function(flag, letter)
    return one(flag, letter, now, zone)
  end))
end

return clock
