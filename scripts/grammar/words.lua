-- words: strings of a schema as terms over the inside of a JSON string, in its usual spelling:
-- quotes, backslashes and control characters escaped, everything else as it is. A length counts
-- characters of the value, so \n is one. Raw words are spelled without quotes and escapes, for
-- places that end at a mark (parameters.lua).
local failure = require "grammar.failure"
local format = require "grammar.format"
local read = require "grammar.read"
local reading = require "grammar.reading"
local json = require("perigee").json

local words = {}

-- Bytes of texts that one call of the builder gets. It makes a term for nearly every byte, and
-- while it does nobody else can run: some 8 ms.
local PIECE = 16 << 10
local STEP = 1000 -- bytes that make a step of a conversion (init.lua)

local COUNT = (1 << 31) - 2 -- the most that the builder counts

local Words = {}
Words.__index = Words

-- ---- long texts, piece by piece -----------------------------------------------------------------

--- The term of a text; `spend(steps)` lets others run.
function words.text(b, text, spend)
  local from = #text - #text % PIECE
  local term = b:text(text:sub(from + 1))
  for at = from - PIECE + 1, 1, -PIECE do
    spend(PIECE / STEP)
    term = b:cat(b:text(text:sub(at, at + PIECE - 1)), term)
  end
  return term
end

--- The term of any of these texts.
function words.any(b, texts, spend)
  local list, piece, bytes = {}, {}, 0
  local function flush()
    spend(bytes / STEP)
    list[#list + 1] = b:words(piece)
    piece, bytes = {}, 0
  end
  for _, text in ipairs(texts) do
    if #text > PIECE then
      list[#list + 1] = words.text(b, text, spend)
    else
      if bytes + #text > PIECE then flush() end
      piece[#piece + 1], bytes = text, bytes + #text
    end
  end
  flush()
  return b:any(list)
end

-- ---- strings ------------------------------------------------------------------------------------

--- options: raw, bare (a term of what may stand between quotes, nil: everything), and job (of
--- reading.lua).
function words.new(b, options, spend)
  local w = setmetatable({ b = b, read = {}, formats = {}, raw = options.raw, bare = options.bare,
    job = options.job, spend = spend }, Words)
  w.char = failure.checked(b:pattern("[\\s\\S]", { json = not w.raw }))
  w.plain = b:times(w.char, 0)
  w.quote = b:text '"'
  return w
end

--- A value's text without its quotes.
function Words:inside(value)
  self.spend(read.GLANCE)
  return self.raw and value or json.encode(value):sub(2, -2)
end

function Words:exactly(value) return words.text(self.b, self:inside(value), self.spend) end
function Words:any(texts) return words.any(self.b, texts, self.spend) end

function Words:quoted(term)
  if self.bare then term = term == self.plain and self.bare or self.b:both(term, self.bare) end
  return self.b:cat(self.quote, term, self.quote)
end

function Words:length(node, least, most)
  if least and least > COUNT then
    failure.raise("limit", node, "minLength is %s, at most %d are counted",
      least == math.huge and "beyond counting" or tostring(least), COUNT)
  end
  return self.b:times(self.char, least or 0, most and most <= COUNT and most or nil)
end

--- A pattern, which may match anywhere; each text is read once.
function Words:pattern(node, keyword, text)
  local term = self.read[text]
  if term then return term end
  local why
  self.spend(#text)
  term, why = reading.pattern(self.b, text, { search = true, json = not self.raw, ecma = true },
    self.job)
  if not term then
    failure.raise(why.code, node, "%s: %s", keyword, why.message:gsub("^pattern: ", ""))
  end
  self.read[text] = term
  return term
end

--- The strings of a format; nil if it is an annotation.
function Words:format(name)
  local known = format.patterns[name]
  if not known then return nil end
  if not self.formats[name] then
    local term = failure.checked(self.b:pattern(known[1], { json = not self.raw }))
    if known[2] then term = self.b:both(term, self.b:times(self.char, 0, known[2])) end
    self.formats[name] = term
  end
  return self.formats[name]
end

return words
