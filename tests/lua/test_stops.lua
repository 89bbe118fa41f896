-- Stop strings on text in pieces, as Lua gets at them.
local perigee = require "perigee"
local test = require("harness").test

test("stop strings of the matcher: held back, found, and begun anew", function(t)
  local stops <close> = assert(perigee.stops.open { "END", "DX" })
  t.eq({ stops:push "a E" }, { "a " })
  t.eq({ stops:push "N" }, { "" })
  t.eq({ stops:finish() }, { "EN" })
  t.eq({ stops:push "D" }, { "" })
  t.eq({ stops:push "X b" }, { "", 2 })
  t.eq({ stops:push "more" }, { "" })
  t.eq({ stops:finish() }, { "" })
  local other <close> = assert(stops:fork())
  t.eq({ other:push "xEND" }, { "x", 1 })
  local one <close> = assert(perigee.stops.open "é")
  t.eq({ one:push "caf\xc3" }, { "caf" })
  t.eq({ one:push "\xa9!" }, { "", 1 })
  t.fails("argument", perigee.stops.open { "a", "" })
  t.raises(function() perigee.stops.open { 5 } end, "stop[1] must be a string, got number")
  t.raises(function() perigee.stops.open() end, "stop must be a string or a list of strings")
  one:close()
  t.raises(function() one:push "x" end, "closed")
end)
