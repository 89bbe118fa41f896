-- window: the sequences that a policy sees, so that a step costs the same however many wait.
--
-- Those that run are always seen. Waiting requests whose tags agree (the same API key, the same
-- lane, ...) form a group, and of each group the oldest are seen: MOST sequences of all groups
-- together, and at least one request of each. The others enter as these begin or end. So a policy
-- finds a request of every key and of every lane, and what it chooses among is limited.
--
-- infos has a table for every sequence in view, by id: the core fills these and no others.
local window = {}

local MOST = 256 -- the shipped policies need 1.5 ms of their 10 for them

local Window = {}
Window.__index = Window

function window.new()
  return setmetatable({ infos = {}, groups = {}, count = 0, group_of = {} }, Window)
end

local PLAIN = { string = true, number = true, boolean = true }

--- The name of the group: the plain values of the tag, which scripts may have made.
local function name_of(tag)
  local words = {}
  for key, value in next, type(tag) == "table" and tag or {} do
    if type(key) == "string" and PLAIN[type(value)] then
      words[#words + 1] = key .. "=" .. tostring(value)
    end
  end
  table.sort(words)
  return table.concat(words, "\0")
end

--- The group of a tag: { waiting = sequences in view, first =, last =, [i] = { id, n } hidden
--- requests, size = sequences }.
local function group_of(self, tag)
  local name = name_of(tag)
  local group = self.groups[name]
  if not group then
    group = { name = name, waiting = 0, first = 1, last = 0, size = 0 }
    self.groups[name], self.count = group, self.count + 1
  end
  return group
end

--- Has the group room in view?
local function has_room(self, group)
  return group.waiting < math.max(1, MOST // self.count)
end

local function show(self, group, id, n)
  for i = id, id + n - 1 do
    if self.group_of[i] then self.infos[i] = self.infos[i] or {} end -- else it has ended
  end
  group.waiting = group.waiting + n
end

--- A request of n sequences, `id` and the next ones, waits.
function Window:add(id, n, tag)
  local group = group_of(self, tag)
  group.size = group.size + n
  for i = id, id + n - 1 do self.group_of[i] = group end
  if group.first > group.last and has_room(self, group) then return show(self, group, id, n) end
  group.last = group.last + 1
  group[group.last] = { id, n }
end

--- A sequence runs: it is in view, whatever waits.
function Window:show(id, tag)
  if self.infos[id] then return end
  if not self.group_of[id] then
    local group = group_of(self, tag)
    group.size, self.group_of[id] = group.size + 1, group
  end
  self.infos[id] = {}
end

--- A sequence has ended.
function Window:drop(id)
  local group = self.group_of[id]
  self.infos[id], self.group_of[id] = nil, nil
  if not group then return end
  group.size = group.size - 1
  if group.size == 0 then
    self.groups[group.name], self.count = nil, self.count - 1
  end
end

--- Lets hidden requests enter. Returns whether any did.
local function admit(self, group)
  local entered = false
  while group.first <= group.last and has_room(self, group) do
    local id, n = table.unpack(group[group.first])
    group[group.first], group.first = nil, group.first + 1
    show(self, group, id, n)
    entered = true
  end
  return entered
end

--- Looks at the sequences in view. Returns true if others are in view now as well.
function Window:look(sequences)
  for _, group in pairs(self.groups) do group.waiting = 0 end
  for i = 1, #sequences do
    local info = sequences[i]
    local group = info.state == "waiting" and self.group_of[info.id]
    if group then group.waiting = group.waiting + 1 end
  end
  local entered = false
  for _, group in pairs(self.groups) do entered = admit(self, group) or entered end
  return entered
end

return window
