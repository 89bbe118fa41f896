-- logprobs: those of the tokens that an item's text was made of. Tokens and text come apart: a
-- parser holds text back and removes marks, so each piece of text is looked for in that of the
-- tokens since the last one.
--
--   local tokens = logprobs.new()
--   tokens:add(bytes, json)       a token, and the JSON text of its logprobs
--   tokens:take(text, first)      -> the JSON texts of the tokens in it; what was before them is
--                                 forgotten. first: a mark may be before it, with this text in it
local logprobs = {}

local Tokens = {}
Tokens.__index = Tokens

function logprobs.new() return setmetatable({ list = {}, raw = "" }, Tokens) end

function Tokens:add(bytes, json)
  self.list[#self.list + 1] = { n = #bytes, json = json }
  self.raw = self.raw .. bytes
end

--- Where a text is: at its first place, or at its last one.
local function find(raw, text, last)
  local from, to = raw:find(text, 1, true)
  while last and from do
    local next_from, next_to = raw:find(text, from + 1, true)
    if not next_from then break end
    from, to = next_from, next_to
  end
  return from, to
end

--- A text that is not there in one piece is all of what came. A token may reach into the next
--- piece: it belongs to the first one.
function Tokens:take(text, first)
  local from, to
  if text ~= "" then from, to = find(self.raw, text, first) end
  if not from then from, to = 1, #self.raw end
  local out, at, used = {}, 0, 0
  for i, token in ipairs(self.list) do
    if at >= to then break end
    if at + token.n >= from and token.json then out[#out + 1] = token.json end
    at, used = at + token.n, i
  end
  self.list, self.raw = table.move(self.list, used + 1, #self.list, 1, {}), self.raw:sub(to + 1)
  if at > to then table.insert(self.list, 1, { n = at - to }) end
  return out
end

return logprobs
