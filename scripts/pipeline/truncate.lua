-- truncate: a conversation that is too long, without its oldest turns, for requests that want that
-- (req.truncates).
--
-- System messages, the last message of a user and the newest turn stay; from the oldest on as many
-- others go as must, a call together with its results. What is left has room for an answer. A
-- conversation that fits is not touched, unless there must be such room (req.needs_room).
local admission = require "pipeline.admission"
local errors = require "lib.errors"
local json = require("perigee").json

local truncate = {}

local SHARE = 8 -- of the context that is left for an answer, unless it is to be shorter
local STAYS = { system = true, developer = true }

--- The turns that may go, oldest first: lists of positions.
local function turns_of(messages)
  local turns, asked = {}, nil
  for i, message in ipairs(messages) do
    if message.role == "tool" and #turns > 0 then
      table.insert(turns[#turns], i)
    elseif not STAYS[message.role] then
      turns[#turns + 1] = { i }
      if message.role == "user" then asked = turns[#turns] end
    end
  end
  local free = {}
  for i = 1, #turns - 1 do
    if turns[i] ~= asked then free[#free + 1] = turns[i] end
  end
  return free
end

--- A conversation without its first n turns.
local function without(chat, turns, n)
  local gone, out, messages = {}, {}, json.array()
  for i = 1, n do
    for _, at in ipairs(turns[i]) do gone[at] = true end
  end
  for key, value in pairs(chat) do out[key] = value end
  for i, message in ipairs(chat.messages) do
    if not gone[i] then messages[#messages + 1] = message end
  end
  out.messages = messages
  return out
end

local function is_too_long(err) return errors.is(err) and err.code == "context_length_exceeded" end

--- Tokens that a prompt may have.
local function room_of(entry, req)
  local most = admission.most(entry)
  return most - math.min(req.sampling.max_tokens or most, most // SHARE)
end

--- The prompt that make() makes of req.chat; raises when even the newest turn is too long.
function truncate.fit(entry, req, make)
  local fits, whole = pcall(make)
  if not fits and not is_too_long(whole) then error(whole, 0) end
  if fits and (not req.needs_room or #whole.ids <= room_of(entry, req)) then return whole end
  local chat = req.chat
  local turns = turns_of(chat.messages)
  local from, to, found, kept = 1, #turns, nil, nil
  while from <= to do
    local n = (from + to) // 2
    req.chat = without(chat, turns, n)
    local ok, prompt = pcall(make)
    if ok and (#prompt.ids <= room_of(entry, req) or n == #turns) then
      found, kept, to = prompt, req.chat, n - 1
    else
      from = n + 1
    end
  end
  if not found and not fits then error(whole, 0) end
  req.chat = kept or chat
  return found or whole
end

return truncate
