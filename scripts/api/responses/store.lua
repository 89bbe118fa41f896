-- store: responses that clients may come back to, in memory and, if there is a folder for them, in
-- files (disk.lua): then what is not in memory is read again when it is asked for, inside a task.
--
-- Each API key has its own part: it finds nothing of another's, and cannot push it out. A part is
-- bounded by the number of responses, the bytes of their JSON, and their age since they were last
-- used; the one that was not used for longest goes first. A response names the one before it, so a
-- conversation is a chain, and using its end uses all of it.
--
--   entry: { id, previous (an id, or nil), object (JSON text of the response), input (JSON texts of
--          its own input items), output (of its items), background, ended (async.signal),
--          running (it is not as it stays) }
local async = require "lib.async"
local Disk = require "api.responses.disk"
local perigee = require "perigee"
local uv = require "luv"
local json = perigee.json

local store = {}

local Store = {}
Store.__index = Store

-- Of one key, unless configured: a day's work of an agent, at about 50 KB a turn.
-- Files: what they take is cheaper, and OpenAI keeps responses for 30 days.
store.LIMITS = { count = 4096, bytes = 64 << 20, seconds = 86400,
  disk_bytes = 1 << 30, disk_seconds = 30 * 86400 }

-- Bytes of an entry or an item besides its text: tables, and the index.
local ENTRY, ITEM = 512, 128

--- limits: those above, and folder. note: a function for lines of the log.
function store.new(limits, note)
  limits = limits or store.LIMITS
  return setmetatable({ limits = limits, parts = {}, disk = limits.folder and Disk.new {
    folder = limits.folder, bytes = limits.disk_bytes, seconds = limits.disk_seconds,
    note = note } }, Store)
end

local function part_of(self, key)
  key = key or false -- no key: everyone
  local part = self.parts[key] or { entries = {}, items = {}, count = 0, bytes = 0, clock = 0 }
  self.parts[key] = part
  return part
end

local function size_of(entry)
  local size = ENTRY + #entry.object
  for _, list in ipairs { entry.input, entry.output } do
    for _, text in ipairs(list) do size = size + ITEM + #text end
  end
  return size
end

local function now_s() return uv.hrtime() * 1e-9 end

local function touch(part, entry)
  part.clock = part.clock + 1
  entry.used, entry.at = part.clock, now_s()
end

--- Calls f(id, text) for each item of an entry.
local function each_item(entry, f)
  for _, list in ipairs { entry.input, entry.output } do
    for _, text in ipairs(list) do f(text:match '"id": ?"([^"\\]+)"', text) end
  end
end

local function drop(part, entry)
  part.entries[entry.id] = nil
  part.count, part.bytes = part.count - 1, part.bytes - entry.size
  each_item(entry, function(id, text)
    if id and part.items[id] == text then part.items[id] = nil end
  end)
end

--- Drops what is too old or too much.
local function trim(self, part)
  local limits, before = self.limits, now_s() - self.limits.seconds
  for _, entry in pairs(part.entries) do
    if entry.at < before then drop(part, entry) end
  end
  while part.count > limits.count or part.bytes > limits.bytes do
    local oldest
    for _, entry in pairs(part.entries) do
      if not oldest or entry.used < oldest.used then oldest = entry end
    end
    drop(part, oldest)
  end
end

--- Puts an entry into memory, in the place of an earlier one with its id.
local function remember(self, key, entry)
  local part = part_of(self, key)
  if part.entries[entry.id] then drop(part, part.entries[entry.id]) end
  entry.size = size_of(entry)
  part.entries[entry.id] = entry
  part.count, part.bytes = part.count + 1, part.bytes + entry.size
  each_item(entry, function(id, text)
    if id then part.items[id] = text end
  end)
  touch(part, entry)
  trim(self, part)
end

--- Keeps an entry. One that is complete (done) is also written to a file.
function Store:put(key, entry, done)
  entry.running = not done
  remember(self, key, entry)
  if done and self.disk then self.disk:write(key, entry) end
end

--- The entry of an id; nil when there is none for this key.
function Store:get(key, id)
  local part = part_of(self, key)
  local entry = part.entries[id]
  if entry and entry.at < now_s() - self.limits.seconds then
    drop(part, entry)
    entry = nil
  end
  if entry then
    touch(part, entry)
  elseif self.disk then
    entry = self.disk:read(key, id)
    if entry then remember(self, key, entry) end
  end
  return entry
end

--- Forgets a response; false when there is none.
function Store:delete(key, id)
  local entry = self:get(key, id)
  if entry and part_of(self, key).entries[id] then drop(part_of(self, key), entry) end
  if self.disk then self.disk:delete(key, id) end
  return entry ~= nil
end

local DIGITS = { digits = true } -- as requests are read

--- The id of the n-th item of a response (from 0 on): the response can be found by it.
function store.item_id(prefix, response, n)
  return ("%s%s%04x"):format(prefix, response:match "[^_]*$", n)
end

--- The item of an id, decoded; nil when there is none.
function Store:item(key, id)
  local part = part_of(self, key)
  local name = not part.items[id] and self.disk and id:match "^%a+_(%x+)%x%x%x%x$"
  if name then self:get(key, "resp_" .. name) end
  local text = part.items[id]
  return text and json.decode(text, DIGITS)
end

--- All items of a conversation up to a response, decoded; or nil, the id that is not there or not
--- complete, and whether that is so because it is still running. What a response has that failed or
--- was cancelled is part of the conversation: its client saw it.
function Store:conversation(key, id)
  local chain, items = {}, {}
  while id do
    local entry = self:get(key, id)
    if not entry or entry.running then return nil, id, entry ~= nil end
    chain[#chain + 1], id = entry, entry.previous
  end
  for i = #chain, 1, -1 do
    for _, list in ipairs { chain[i].input, chain[i].output } do
      for _, text in ipairs(list) do
        async.breathe()
        items[#items + 1] = json.decode(text, DIGITS)
      end
    end
  end
  return items
end

return store
