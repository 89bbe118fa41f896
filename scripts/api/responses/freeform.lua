-- freeform: the text of a custom tool's call, out of the JSON text of its one parameter (tools.lua)
-- while that comes.
--
--   local call = freeform.new()
--   call:feed(piece)        -> more of the text, as far as it is certain; perhaps ""
--   call:finish()           -> the rest of it, and all of it
--
-- A model may write something else than {"input": "…"}: then the text is that of its only parameter
-- if that is text, or the JSON as it is, and all of it comes at the end.
local encode = require "api.encode"
local perigee = require "perigee"
local json = perigee.json

local freeform = {}

local Call = {}
Call.__index = Call

function freeform.new() return setmetatable({ raw = {}, rest = "", sent = {} }, Call) end

--- The JSON text of a call with this text.
function freeform.arguments(said)
  return encode(json.object { { "input", said } })
end

--- The bytes of a string's JSON text that can be decoded by themselves, and whether it ends there.
local function certain(rest)
  local at = 1
  while true do
    local i = rest:find('["\\]', at)
    if not i then return #rest, false end
    if rest:sub(i, i) == '"' then return i - 1, true end
    local need = rest:sub(i + 1, i + 1) == "u" and 6 or 2
    if rest:find("^\\u[dD][89abAB]", i) then need = 12 end -- a pair of surrogates
    if i + need - 1 > #rest then return i - 1, false end
    at = i + need
  end
end

function Call:feed(piece)
  self.raw[#self.raw + 1] = piece
  if self.closed then return "" end
  self.rest = self.rest .. piece
  if not self.begun then
    local from = self.rest:match '^%s*{%s*"input"%s*:%s*"()'
    if not from then return "" end
    self.begun, self.rest = true, self.rest:sub(from)
  end
  local n, ends = certain(self.rest)
  local said = json.decode('"' .. self.rest:sub(1, n) .. '"')
  if type(said) ~= "string" then ends, said = true, "" end
  self.rest, self.closed = self.rest:sub(n + 1), ends
  self.sent[#self.sent + 1] = said
  return said
end

--- The text that decoded arguments mean, if they mean any.
local function meant(value)
  if not json.is_object(value) then return nil end
  if type(value.input) == "string" then return value.input end
  local only, n = nil, 0
  for _, v in pairs(value) do only, n = v, n + 1 end
  return n == 1 and type(only) == "string" and only or nil
end

function Call:finish()
  local raw, sent = table.concat(self.raw), table.concat(self.sent)
  local value = json.decode(raw)
  local said = value ~= nil and meant(value)
  if not said and sent ~= "" then return "", sent end -- it was cut off
  said = said or raw
  if said:sub(1, #sent) ~= sent then return "", sent end
  return said:sub(#sent + 1), said
end

return freeform
