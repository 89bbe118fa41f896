-- watch: calls a function when files in some folders have changed.
--
-- Folders are watched, not files, since editors write a new file and rename it. Changes that come
-- together are reported once: when nothing has happened for DEBOUNCE_MS, or LATEST_MS after the
-- first one. Where the system cannot watch (no inotify, too many watches), the folders are scanned
-- every POLL_MS instead; so are folders that have vanished, until they are back. Handles do not
-- keep the loop alive.
local uv = require "luv"

-- DEBOUNCE_MS: editors and rsync write their files within a few ms; a person sees no delay at 100.
local watch = { DEBOUNCE_MS = 100, LATEST_MS = 1000, POLL_MS = 1000 }

local Watch = {}
Watch.__index = Watch

-- ---- scanning -----------------------------------------------------------------------------------

--- Names, sizes and times of all files in the folders, as one string.
local function scan(folders)
  local parts = {}
  for _, folder in ipairs(folders) do
    local request = uv.fs_scandir(folder)
    for name in function() return request and uv.fs_scandir_next(request) end do
      local stat = uv.fs_stat(folder .. "/" .. name)
      if stat then
        parts[#parts + 1] = ("%s/%s %d %d.%d"):format(folder, name, stat.size, stat.mtime.sec,
          stat.mtime.nsec)
      end
    end
  end
  table.sort(parts)
  return table.concat(parts, "\n")
end

-- ---- reporting ----------------------------------------------------------------------------------

local function changed(self)
  local now = uv.now()
  self.since = self.since or now
  if now - self.since > watch.LATEST_MS and self.debounce:is_active() then return end
  self.debounce:start(watch.DEBOUNCE_MS, 0, function()
    self.since = nil
    self:refresh() -- folders may have appeared and vanished
    self.tell()
  end)
  self.debounce:unref()
end

local function poll(self)
  if self.timer then return end
  self.seen, self.timer = scan(self.list()), uv.new_timer()
  self.timer:start(watch.POLL_MS, watch.POLL_MS, function()
    local now = scan(self.list())
    if now ~= self.seen then
      self.seen = now
      changed(self)
    end
  end)
  self.timer:unref()
end

local function exists(folder)
  local stat = uv.fs_stat(folder)
  return stat and stat.type == "directory" and stat or nil
end

--- Waits for folders that were watched and are gone.
local function wait_for(self, missing)
  if #missing == 0 or self.timer then return self.missed:stop() end
  self.missed:start(watch.POLL_MS, watch.POLL_MS, function()
    for _, folder in ipairs(missing) do
      if exists(folder) then
        self.missed:stop()
        return changed(self)
      end
    end
  end)
  self.missed:unref()
end

local function open(self, folder)
  local handle = uv.new_fs_event()
  local ok = not self.polling and handle and handle:start(folder, {}, function(err)
    if err then poll(self) end
    changed(self)
  end)
  if ok then
    handle:unref()
    self.handles[folder] = handle
  else
    if handle then handle:close() end
    poll(self)
  end
end

--- Watches the folders that exist now.
function Watch:refresh()
  local there, missing = {}, {}
  for _, folder in ipairs(self.list()) do
    local stat = exists(folder)
    if not stat and self.known[folder] then missing[#missing + 1] = folder end
    if stat then
      there[folder], self.known[folder] = stat.ino, true
      if self.handles[folder] and self.inodes[folder] ~= stat.ino then -- another folder
        self.handles[folder]:close()
        self.handles[folder] = nil
      end
      if not self.handles[folder] and not self.timer then open(self, folder) end
    end
  end
  for folder, handle in pairs(self.handles) do
    if not there[folder] then
      handle:close()
      self.handles[folder] = nil
    end
  end
  self.inodes = there
  wait_for(self, missing)
end

function Watch:close()
  for _, handle in pairs(self.handles) do handle:close() end
  self.handles = {}
  if self.timer then self.timer:close() end
  self.debounce:close()
  self.missed:close()
end

--- list: returns the folders, whether they exist or not; tell: called after changes. options: poll
--- = true scans instead of watching.
function watch.open(list, tell, options)
  local self = setmetatable({ list = list, tell = tell, handles = {}, inodes = {}, known = {},
    debounce = uv.new_timer(), missed = uv.new_timer(), polling = options and options.poll }, Watch)
  self:refresh()
  return self
end

return watch
