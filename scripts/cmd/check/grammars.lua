-- grammars: checks of files that say what a text may be: JSON schemas (.json) and grammars (.gbnf,
-- .lark). The summary shows how large the grammar is, a short text of it, and how many
-- bytes may come next at each of its places.
local perigee = require "perigee"
local source = require "grammar.source"
local text = require "lib.text"

local grammars = {}

local LONGEST = 400 -- bytes of an example: more than a line has room for

-- What an example is made of, the first that may come: what ends something, then plain characters.
local LIKED = '"}])>a0{[' .. "bcdefghijklmnopqrstuvwxyz123456789-.:,/ABCDEFGHIJKLMNOPQRSTUVWXYZ_ "

--- How many bytes may come next, and the one that is liked best: not the last one again.
local function choices(m, last)
  local count, best, rank = 0, nil, math.huge
  local here = m.length
  for byte = 0, 255 do
    local c = string.char(byte)
    if assert(m:feed(c)) == 1 then
      count = count + 1
      local at = LIKED:find(c, 1, true) or #LIKED + byte
      if c == last then at = at + #LIKED end
      if at < rank then best, rank = c, at end
      m:trim(here)
    end
  end
  return count, best
end

--- A text of a grammar and the widths along it; nil if a short one is not found.
local function example(g)
  local m <close> = assert(g:matcher())
  local parts, widths = {}, {}
  while not m.complete do
    local count, best = choices(m, parts[#parts])
    if not best or #parts == LONGEST then return nil end
    widths[#widths + 1] = tostring(count)
    assert(m:feed(best))
    parts[#parts + 1] = best
  end
  return table.concat(parts), widths
end

--- What is enforced, in one line.
local function describe(g)
  local size = ("%d rules, %d lexemes, %d KB"):format(g.rules, g.lexemes, (g.memory + 1023) >> 10)
  local shown, widths = example(g)
  if not shown then return size end
  local said = ("%q"):format(shown):gsub("\\\n", "\\n")
  return ("%s; such as %s; bytes that may come next along it: %s"):format(size, said,
    table.concat(widths, " "))
end

local function given_in(path)
  local content, why = text.read_file(path)
  if not content then return nil, why end
  if not path:find "%.json$" then return { grammar = content } end
  local schema
  schema, why = perigee.json.decode(content, { digits = true })
  if schema == nil then return nil, why end
  return { schema = schema }
end

--- The check of a file: one line, or nil and an error.
function grammars.check(path)
  local given, why = given_in(path)
  if not given then return nil, why end
  local g <close>, bad = source.compile(given)
  if not g then return nil, bad end
  return describe(g)
end

return grammars
