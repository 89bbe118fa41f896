-- history: the lines typed, oldest first, without duplicates, in a file of the user's state folder.
local text = require "lib.text"
local uv = require "luv"

local LIMIT = 1000 -- entries: the file is written after each line

local History = {}
History.__index = History

--- $XDG_STATE_HOME/perigee/history, or ~/.local/state/perigee/history; nil when there is no home.
local function default_path()
  local state, home = os.getenv "XDG_STATE_HOME", os.getenv "HOME"
  if state and state:sub(1, 1) == "/" then return state .. "/perigee/history" end
  return home and home ~= "" and home .. "/.local/state/perigee/history" or nil
end

local function make_folder(path)
  if uv.fs_stat(path) then return end
  local parent = text.dirname(path)
  if parent ~= path then make_folder(parent) end
  uv.fs_mkdir(path, tonumber("700", 8))
end

local ESCAPED = { ["\n"] = "\\n", ["\\"] = "\\\\" }
local UNESCAPED = { n = "\n", ["\\"] = "\\" }

--- Writes a new file and renames it, so that a crash leaves the old one. Returns nil and why if it
--- cannot; callers may ignore that.
function History:save()
  if not self.path then return nil, "no home folder" end
  make_folder(text.dirname(self.path))
  local lines = {}
  for i, entry in ipairs(self) do lines[i] = entry:gsub("[\n\\]", ESCAPED) .. "\n" end
  local temporary = ("%s.%d"):format(self.path, uv.os_getpid())
  local fd, why = uv.fs_open(temporary, "w", tonumber("600", 8))
  if not fd then return nil, why end
  local written, reason = uv.fs_write(fd, table.concat(lines))
  uv.fs_close(fd)
  if not written then return nil, reason end
  return uv.fs_rename(temporary, self.path)
end

--- Adds an entry at the end and removes an older one with the same text.
function History:add(entry)
  if entry:match "^%s*$" then return end
  for i = #self, 1, -1 do
    if self[i] == entry then table.remove(self, i) end
  end
  self[#self + 1] = entry
  while #self > LIMIT do table.remove(self, 1) end
  self:save()
end

--- The index of the newest entry at or before `from` that contains the words, or nil.
function History:search(words, from)
  for i = math.min(from, #self), 1, -1 do
    if self[i]:find(words, 1, true) then return i end
  end
end

--- Reads the file; without one the history is empty.
local function open(path)
  local self = setmetatable({ path = path or default_path() }, History)
  local content = self.path and text.read_file(self.path)
  for line in (content or ""):gmatch "[^\n]+" do
    self[#self + 1] = line:gsub("\\(.)", UNESCAPED)
  end
  return self
end

return { open = open }
